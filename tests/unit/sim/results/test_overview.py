"""Many runs as one answer: who is best at each budget, of which kind, and what is never mixed."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from helpers import drawn
from helpers.overviews import BOUNDED, LOST, run
from helpers.printed import Heard, rows_of, shows
from sim.results.overview import BOUND, LOSSLESS, LOSSY, Done, Overview, Refused, overview
from sim.results.overview_words import MOST_LINES, cells, notes, show, verdict, write


def test_the_best_of_a_budget_is_lossless_and_others_are_told_by_their_kind() -> None:
    runs = [run("seer", 9, labels=BOUNDED), run("low", 4, labels=LOST), run("a", 2), run("b", 1)]
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


def test_where_nothing_is_decoded_there_is_a_table_without_speeds_and_no_figure(
    tmp_path: Path,
) -> None:
    def prompts(system: str) -> Done:
        one = run(system, 1.0, ends=None)
        return Done({**one.summary, "decode_tokens_per_s": None}, (), np.zeros(4))

    found = overview([prompts("b"), prompts("a"), run("c", 2.0, sequences=5)])
    prompt, decoded = found.sets
    assert verdict(prompt) == (
        "With 25 % of the experts resident (10 GiB) nothing is decoded, so nobody decodes fastest."
    )
    assert [cells(line, prompt)[1:] for line in prompt.lines] == [
        ("a", "-", "", "-", ""),
        ("b", "-", "", "-", ""),
    ]
    assert cells(decoded.best, decoded)[2:5] == ("2", "1.8 to 2.2", "1")
    assert [path.suffix for path in write(found, tmp_path)] == [
        ".csv",
        ".md",
        ".json",
        ".png",
        ".svg",
    ]
    told = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))["runs"]
    assert [(row["decode_tokens_per_s"], row["times_best"]) for row in told] == [
        (None, None),
        (None, None),
        (2.0, 1.0),
    ]
    assert len(write(overview([prompts("a")]), tmp_path)) == 3


def test_where_nothing_is_lossless_a_lossy_system_is_best_and_a_bound_is_no_system() -> None:
    (lossy,) = overview([run("seer", 9, labels=BOUNDED), run("low", 4, labels=LOST)]).sets
    assert "low is the fastest lossy system" in verdict(lossy)
    (bound,) = overview([run("seer", 9, labels=BOUNDED)]).sets
    assert "there is no system, only seer" in verdict(bound)


def test_an_answer_in_whole_where_runs_tie_or_are_too_few() -> None:
    """Of lossy and no systems the fastest is told, and only of the best's own kind who ties."""
    blur = np.array([1.3, 0.8, 1.1, 0.9])
    runs = [
        run("seer", 9.0, labels=BOUNDED),
        run("seen", 8.0, labels=BOUNDED),
        run("low", 4.0, labels=LOST),
        run("less", 3.0, labels=LOST),
    ]

    def blurred(one: Done, number: int) -> Done:
        assert one.decode_ns is not None
        return Done(one.summary, (), (one.decode_ns * blur)[:number])

    tie = [run("a", 2.0), blurred(run("b", 1.99), 4), blurred(run("z", 1.98, labels=LOST), 4)]
    (found,) = overview([*runs, *tie]).sets
    where = "With 25 % of the experts resident (10 GiB)"
    rest = (
        "low is 2.00x [2.00, 2.00] as fast and lossy; seer is 4.50x [4.50, 4.50] as fast and no"
        " system."
    )
    assert verdict(found) == (
        f"{where} a, b tie as the fastest lossless systems, a with 2 tokens/s; {rest}"
    )
    few = [Done(one.summary) for one in runs] + [blurred(one, 3) for one in tie]
    assert verdict(overview(few).sets[0]) == (
        f"{where} a has the highest speed of lossless systems, 2 tokens/s (not sure: fewer than 4"
        " independent sequences); low is 2.00x as fast and lossy; seer is 4.50x as fast and no system."
    )
    # The best is lossy itself: no word of the lossy ones, and of one lossless none is left.
    assert verdict(overview([*runs[:2], run("low", 4.0, labels=LOST)]).sets[0]) == (
        f"{where} low is the fastest lossy system, 4 tokens/s; seer is 2.25x [2.25, 2.25] as fast"
        " and no system."
    )
    assert verdict(overview(runs[:2]).sets[0]) == (
        f"{where} there is no system, only seer: 9 tokens/s."
    )


def test_ratios_are_not_said_to_be_against_a_lossless_system_where_there_is_none() -> None:
    lossless, lossy = run("a", 2.0), run("low", 4.0, labels=LOST)
    told = "x best: against the fastest lossless system at the budget"
    (always,) = [one for one in notes(overview([lossless, lossy])) if one.startswith("x best")]
    (never,) = [one for one in notes(overview([lossy])) if one.startswith("x best")]
    assert always.startswith(f"{told}, paired.")
    assert never.startswith(f"{told} (where there is none: the fastest lossy one, else the bound),")


def test_the_file_of_tables_in_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without a time by sequence has no interval, and nobody is faster for sure than it; of
    no run there is no figure.
    """
    drawn.kept(monkeypatch)
    refused = [Refused(f"x={at}", "pool 3 is full") for at in range(4)]
    runs = [run("a", 2.0), Done(run("b", 1.0, ends=None).summary), run("a", 3.0, share=0.5)]
    found = overview([*runs, run("c", 5.0, name="u")], refused)
    files = write(found, tmp_path)
    assert [path.name for path in files][3:] == ["figure.png", "figure.svg"]
    (of_interval,) = [text for text in notes(found) if text.startswith("x best: ")]
    head = "| resident | system | tokens/s | 95 % | x best | 95 % |\n|---|---|---|---|---|---|\n"
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == (
        "## m on h; trace t (eval), 4 sequences; sequential\n\n"
        f"{head}"
        "| 25.0% | a | 2 | 1.8 to 2.2 | 1 |  |\n"
        "| 25.0% | b | 1 |  | 0.50 |  |\n"
        "| 50.0% | a | 3 | 2.7 to 3.3 | 1 |  |\n\n"
        "With 25 % of the experts resident (10 GiB) a has the highest speed of lossless systems, 2"
        " tokens/s (not sure: not paired, for times by sequence are not known).\n"
        "\nWith 50 % of the experts resident (20 GiB) a decodes 3 tokens/s.\n\n"
        "## m on h; trace u (eval), 4 sequences; sequential\n\n"
        f"{head}"
        "| 25.0% | c | 5 | 4.5 to 5.5 | 1 |  |\n\n"
        "With 25 % of the experts resident (10 GiB) c decodes 5 tokens/s.\n\n"
        f"- {of_interval}\n"
        "- refused (4): pool 3 is full: x=0; x=1; x=2 and 1 more\n"
    )
    told = overview([], refused[:3])
    assert [path.name for path in write(told, tmp_path)] == ["table.csv", "table.md", "table.json"]
    assert (tmp_path / "table.csv").read_text(encoding="utf-8").split() == ["status"]
    assert [*notes(told)][-1] == "refused (3): pool 3 is full: x=0; x=1; x=2"


def test_one_run_alone_is_not_called_the_fastest() -> None:
    (alone,) = overview([run("a", 2)]).sets
    (lossy,) = overview([run("low", 4, labels=LOST)]).sets
    where = "With 25 % of the experts resident (10 GiB) "
    assert verdict(alone) == where + "a decodes 2 tokens/s."
    assert verdict(lossy) == where + "low (lossy) decodes 4 tokens/s."


def test_runs_whose_times_were_not_kept_are_compared_by_their_speeds() -> None:
    bare = [Done(one.summary, (), None) for one in (run("low", 5, labels=LOST), run("a", 2))]
    (found,) = overview(bare).sets
    assert verdict(found).endswith("system, 2 tokens/s; low is 2.50x as fast and lossy.")


def test_what_cannot_be_told_apart_is_said() -> None:
    other = run("b", 1.99)
    times = other.decode_ns
    assert times is not None
    blurred = Done(other.summary, (), times * np.array([1.3, 0.8, 1.1, 0.9]))
    (found,) = overview([run("a", 2), blurred]).sets
    assert "a, b tie as the fastest lossless systems, a with " in verdict(found)
    few = [Done(one.summary, (), one.decode_ns[:2]) for one in (run("a", 2), blurred)]  # type: ignore[index]
    told = verdict(overview(few).sets[0])
    assert "a has the highest speed of lossless systems, 2 tokens/s (not sure: fewer than 4" in told


def test_runs_of_other_work_machines_or_bytes_are_in_other_sets() -> None:
    changed = run("a", 1, words="hardware.memory_gib=8")
    runs = [run("a", 1), run("a", 2, share=0.5), run("a", 3, sha256="other"), changed]
    found = overview(runs)
    assert [len(one.lines) for one in found.sets] == [1, 1, 1, 1]
    assert len(found.titles) == 2
    assert found.titles[-1].endswith("; hardware.memory_gib=8")


def test_runs_of_other_drafts_or_contexts_are_in_other_sets_that_their_titles_name() -> None:
    plain = run("a", 1, words="system=a workload=sequential")
    drafted = run("a", 2, words="system=a workload=mtp_4")
    for key, value in (("draft_tokens", 4), ("draft_accepted", 0.5), ("context_tokens", 100)):
        other = replace(
            drafted,
            summary={
                **drafted.summary,
                "contracts": {**drafted.summary["contracts"], key: value},
            },
        )
        found = overview([plain, other])
        assert [len(one.lines) for one in found.sets] == [1, 1], key
    assert [title.rpartition("; ")[2] for title in found.titles] == [
        "workload=sequential",
        "workload=mtp_4",
    ]


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
    many = [Refused(f"system={name}", f"pool {name} is 0.{name} full") for name in range(9)]
    (line,) = [one for one in notes(overview([run("a", 2)], many)) if one.startswith("refused")]
    assert line.startswith(
        "refused (9): pool 0 is 0.0 full: system=0; system=1; system=2 and 6 more"
    )
    assert kept["refused"][1] == {"words": "system=y", "why": "no room"}
    for name in ("table.csv", "table.md", "table.json", "figure.svg"):
        assert "lossy (experts skipped)" in (tmp_path / name).read_text(encoding="utf-8"), name


def test_of_many_runs_the_fastest_are_printed_and_all_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn.kept(monkeypatch)
    found = overview([run(f"s{number}", number) for number in range(1, MOST_LINES + 3)])
    text = io.StringIO()
    show(found, Console(file=text, width=80))
    told = "2 slower runs are in table.csv, .md and .json alone, all of s2, s1"
    assert told in " ".join(text.getvalue().split())
    write(found, tmp_path)
    assert len((tmp_path / "table.csv").read_text().splitlines()) == MOST_LINES + 3


@pytest.mark.parametrize(("sets", "shown"), [(5, 8), (13, 3), (20, 3)])
def test_of_many_budgets_each_shows_its_part_of_the_lines_and_three_at_least(
    sets: int, shown: int
) -> None:
    shares = [0.04 * number for number in range(1, sets + 1)]
    found = overview([run(f"s{at}", at, share=share) for share in shares for at in range(1, 10)])
    text = io.StringIO()
    show(found, Console(file=text, width=80))
    assert f"{sets * (9 - shown)} slower runs are in table.csv" in " ".join(text.getvalue().split())


def of_every_kind() -> Overview:
    """Two budgets and two kinds of work; runs with and without intervals, and times by sequence."""
    runs = [
        run("seer", 9.31, labels=BOUNDED),
        run("low", 4.73, labels=LOST, ends=(4.13, 5.92)),
        run("a", 2.14),
        run("b", 1.27, ends=None),
        Done(run("c", 0.83).summary),
        run("a", 1.71, share=0.125),
        run("b", 1.13, share=0.125),
        run("a", 3.37, name="u"),
    ]
    other = runs[1].decode_ns
    assert other is not None
    runs[1] = Done(runs[1].summary, (), other * np.array([1.1, 0.9, 1.2, 1.0]))
    return overview(runs)


def test_every_printed_cell_is_the_number_in_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: ``table.csv``, whose numbers are written in full, and the runs themselves."""
    drawn.kept(monkeypatch)
    found = of_every_kind()
    heard = Heard()
    show(found, heard)
    write(found, tmp_path)
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    printed = [line for table in heard.tables for line in rows_of(table)]
    assert [str(table.title) for table in heard.tables] == list(found.titles)
    marks = {"lossy": " (lossy)", "a bound": " (a bound)", "lossless": ""}
    best = {"0.25 a": 2.14, "0.125 a": 1.71}
    assert len(printed) == len(rows) == 8
    for line, row in zip(printed, rows, strict=True):
        speed = float(row["decode_tokens_per_s"])
        shows(line["resident"], float(row["resident_share"]))
        assert line["system"] == row["system"] + marks[row["kind"]]
        shows(line["tokens/s"], speed)
        shows(line["95 %"], *(float(row[end]) for end in ("low", "high") if row[end]))
        times = best[f"{row['resident_share']} a"] if row["of"] == found.titles[0] else 3.37
        shows(line["x best"], speed / times)
        shows(
            line["95 % 2"],
            *(float(row[f"times_{end}"]) for end in ("low", "high") if row["times_low"]),
        )
    kept = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))["runs"]
    assert [{key: str("" if of is None else of) for key, of in row.items()} for row in kept] == rows
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    heads, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    told = [list(line.values()) for line in printed]
    assert [line for line in lines if line != heads] == told


def test_a_row_of_the_file_is_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the summaries."""
    drawn.kept(monkeypatch)
    found = of_every_kind()
    write(found, tmp_path)
    rows = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))["runs"]
    lines = [(line, one) for one in found.sets for line in one.lines]
    for row, (line, one) in zip(rows, lines, strict=True):
        summary = line.summary
        low_high = summary["ci95"]["decode_tokens_per_s"] or (None, None)
        assert (row["low"], row["high"]) == tuple(low_high)
        assert row["decode_tokens_per_s"] == summary["decode_tokens_per_s"]
        assert row["budget_gib"] == summary["budget"]["resident_share"] * 40
        assert row["waits"] == pytest.approx(0.75)
        assert row["hit_ratio"] == 0.5
        if line is one.best:
            assert (row["times_best"], row["times_low"], row["verdict"]) == (1.0, None, "")
        elif line.ahead is None:
            assert (row["times_best"], row["times_high"], row["verdict"]) == (None, None, "")
        else:
            low, high = line.ahead.interval or (None, None)
            assert row["times_best"] == line.ahead.speedup
            assert (row["times_low"], row["times_high"]) == (low, high)
            assert row["verdict"] == line.ahead.verdict
    assert rows[2]["labels"] == "knows the future (Belady)"


def test_of_many_runs_at_several_budgets_each_has_its_share_of_the_lines() -> None:
    runs = [run(f"s{at}", 1 + at, share) for at in range(30) for share in (0.25, 0.5)]
    heard = Heard()
    show(overview(runs), heard)
    shares = [line["resident"] for line in rows_of(heard.tables[0])]
    assert shares == ["25.0%"] * 20 + ["50.0%"] * 20
    told = "20 slower runs are in table.csv, .md and .json alone"
    assert heard.lines[-1] == f"{told}, all of s9, s8, s7, and 7 others"
    once = [run("lru", 1, share) for share in (0.25, 0.5)]
    show(overview([*(run(f"s{at}", 9, 0.5) for at in range(20)), *once]), heard)
    assert heard.lines[-1] == "1 slower run is in table.csv, .md and .json alone"
