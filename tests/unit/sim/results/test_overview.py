"""Many runs as one answer: who is best at each budget, of which kind, and what is never mixed."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from sim.results.labels import Labels
from sim.results.overview import BOUND, LOSSLESS, LOSSY, Done, Refused, overview
from sim.results.overview_figure import share_scale
from sim.results.overview_words import MOST_LINES, show, verdict, write
from sim.values.units import GIB

TIMES = np.array([1.0, 2.0, 1.5, 1.1]) * 1e9


def run(system: str, speed: float, share: float = 0.25, words: str = "", **other: Any) -> Done:
    """A run that decodes ``speed`` times as fast as one token a second."""
    kinds = Labels(**other.pop("labels", {})).kinds()
    summary = {
        "system": system,
        "model": "m",
        "hardware": "h",
        "workload": "sequential",
        "trace": {"name": "t", "split": "eval", "sequences": 4, **other},
        "contracts": {"batching": "recorded"},
        "budget": {"resident_share": share, "allowed_bytes": int(share * 40 * GIB)},
        "decode_tokens_per_s": speed,
        "ci95": {"decode_tokens_per_s": [0.9 * speed, 1.1 * speed]},
        "stall_s": {"demand": 3.0},
        "makespan_s": 4.0,
        "hit_ratio": 0.5,
        "labels": kinds,
        "overrides": [],
    }
    return Done(summary, tuple(words.split()), TIMES / speed)


LOST = {"lossy": "lossy (experts skipped)"}
SEES = {"knows_future": "knows the future (Belady)"}


def test_the_best_of_a_budget_is_lossless_and_others_are_told_by_their_kind() -> None:
    runs = [run("seer", 9, labels=SEES), run("low", 4, labels=LOST), run("a", 2), run("b", 1)]
    (found,) = overview(runs).sets
    assert [line.kind for line in found.lines] == [BOUND, LOSSY, LOSSLESS, LOSSLESS]
    assert found.best.name == "a"
    ahead = {line.name: line.ahead.speedup if line.ahead else None for line in found.lines}
    assert ahead == {"seer": pytest.approx(4.5), "low": pytest.approx(2), "a": None, "b": 0.5}
    assert verdict(found) == (
        "With 25 % of the experts resident (10 GiB) a is the fastest lossless system, 2 tokens/s;"
        " low is 2.00x [2.00, 2.00] as fast and lossy; seer is 4.50x [4.50, 4.50] as fast and no"
        " system."
    )


def test_where_nothing_is_lossless_a_lossy_system_is_best_and_a_bound_is_no_system() -> None:
    (lossy,) = overview([run("seer", 9, labels=SEES), run("low", 4, labels=LOST)]).sets
    assert "low is the fastest lossy system" in verdict(lossy)
    (bound,) = overview([run("seer", 9, labels=SEES)]).sets
    assert "there is no system, only seer" in verdict(bound)


def test_what_cannot_be_told_apart_is_said() -> None:
    other = run("b", 1.99)
    times = other.decode_ns
    assert times is not None
    blurred = Done(other.summary, (), times * np.array([1.3, 0.8, 1.1, 0.9]))
    (found,) = overview([run("a", 2), blurred]).sets
    assert "a (not told apart from b) is the fastest" in verdict(found)
    few = [Done(one.summary, (), one.decode_ns[:2]) for one in (run("a", 2), blurred)]  # type: ignore[index]
    assert "not sure: fewer than 4 sequences" in verdict(overview(few).sets[0])


def test_runs_of_other_work_machines_or_bytes_are_in_other_sets() -> None:
    changed = run("a", 1, words="hardware.memory_gib=8")
    runs = [run("a", 1), run("a", 2, share=0.5), run("a", 3, sha256="other"), changed]
    found = overview(runs)
    assert [len(one.lines) for one in found.sets] == [1, 1, 1, 1]
    assert len(found.titles) == 2
    assert found.titles[-1].endswith("; hardware.memory_gib=8")


def test_words_that_tell_runs_apart_are_in_their_names() -> None:
    runs = [run("a", 1, words="system=a seed=1 x=2"), run("a", 2, words="system=a seed=2 x=2")]
    (found,) = overview(runs).sets
    assert [line.name for line in found.lines] == ["a seed=2", "a seed=1"]


def test_everything_is_printed_once_and_written_four_ways(tmp_path: Path) -> None:
    refused = [Refused(f"system={name}", "no room") for name in "xy"]
    found = overview([run("low", 4, labels=LOST), run("a", 2), run("a", 3, share=0.5)], refused)
    text = io.StringIO()
    show(found, Console(file=text, width=80))
    told = text.getvalue()
    assert max(map(len, told.splitlines()[:8])) <= 80
    assert told.count("no room") == 1
    assert "refused (2): no room: system=x; system=y" in told
    assert "low: lossy (experts skipped)" in told
    names = [path.name for path in write(found, tmp_path)]
    assert names == ["table.csv", "table.md", "table.json", "figure.png", "figure.svg"]
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kept = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert [row["system"] for row in rows] == [row["system"] for row in kept["runs"]]
    assert kept["answers"] == [verdict(one) for one in found.sets]
    assert kept["refused"][1] == {"words": "system=y", "why": "no room"}
    for name in ("table.csv", "table.md", "table.json", "figure.svg"):
        assert "lossy (experts skipped)" in (tmp_path / name).read_text(encoding="utf-8"), name


def test_of_many_runs_the_fastest_are_printed_and_all_are_written(tmp_path: Path) -> None:
    found = overview([run(f"s{number}", number) for number in range(1, MOST_LINES + 3)])
    text = io.StringIO()
    show(found, Console(file=text, width=80))
    assert "2 slower runs are in the table's files alone" in text.getvalue()
    write(found, tmp_path)
    assert len((tmp_path / "table.csv").read_text().splitlines()) == MOST_LINES + 3


def test_bars_of_other_work_are_drawn_on_one_scale() -> None:
    figure = Figure()
    short, long = figure.subplots(2)
    short.barh(0, 2.0)
    long.barh(0, 4.0)
    share_scale([short, long])
    assert short.get_xlim() == long.get_xlim() == (0, pytest.approx(4.2))
