"""A frontier's table, sentences, rows and figure, from points made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from helpers.drawn import curves, kept
from helpers.printed import Heard
from sim import frontier as command
from sim.frontier import Frontier, Policy, rows_of, show, write
from sim.results.labels import Labels
from sim.screening.frontier import Point
from sim.values.units import GIB


def point(hits: int, asked: int, loads: int) -> Point:
    return Point(0, hits, asked, loads)


FOUND = Frontier(
    "lru, m; trace t (eval), 2 sequences, 9 gates",
    (
        Policy(
            "lru",
            True,
            {4: point(1, 8, 9), 6: point(4, 8, 6), 8: point(8, 8, 3), 7: point(5, 8, 5)},
            {4: 8, 6: 4, 8: 0},
            Labels(),
        ),
        Policy("fifo", False, {6: point(0, 0, 5), 8: point(6, 8, 4)}, {6: None}, Labels()),
        Policy("belady", True, {6: point(7, 8, 1)}, {6: 1}, Labels(knows_future="knows [all]")),
    ),
    (4, 6, 8),
    8,
    GIB // 4,
)


def test_the_table_and_the_sentences_tell_hits_and_loads_over_the_fewest() -> None:
    heard = Heard()
    show(FOUND, heard)  # type: ignore[arg-type]
    (table,) = heard.tables
    assert [[str(column.header), *column.cells] for column in table.columns] == [
        ["slots", "4", "6", "8"],
        ["resident", "50.0%", "75.0%", "100.0%"],
        ["GiB", "1", "1.5", "2"],
        ["lru", "0.125 (1.12x)", "0.500 (1.50x)", "1.000"],
        ["fifo *", "-", "-", "0.750"],
        ["belady", "-", "0.875 (1.00x)", "-"],
    ]
    assert not table.pad_edge
    assert heard.lines == [
        "lru, m; trace t (eval), 2 sequences, 9 gates: hit ratio of decode (loads of the whole run, x"
        " the fewest of any cache)",
        "lru, belady: exact at every number of slots, from one pass.",
        "*: walked at these numbers of slots; - where a union does not fit a pool.",
        "With 6 slots (75% resident) fifo makes the fewest loads of these: 5.",
        "belady: knows [all]",
    ]


@pytest.mark.parametrize(
    ("policies", "lines"),
    [
        (
            FOUND.policies[:1],
            [
                "lru: exact at every number of slots, from one pass.",
                "With 6 slots (75% resident) lru makes the fewest loads of these: 6, 1.50x the fewest"
                " of any cache.",
            ],
        ),
        (
            FOUND.policies[1:2],
            [
                "*: walked at these numbers of slots; - where a union does not fit a pool.",
                "With 6 slots (75% resident) fifo makes the fewest loads of these: 5.",
            ],
        ),
        (
            FOUND.policies[2:],
            ["belady: exact at every number of slots, from one pass.", "knows [all]"],
        ),
    ],
)
def test_only_what_there_is_is_told(policies: tuple[Policy, ...], lines: list[str]) -> None:
    heard = Heard()
    found = Frontier("t", policies, (4, 6, 8), 8, GIB)
    show(found, heard)  # type: ignore[arg-type]
    assert heard.lines[1:] == lines


def test_every_known_point_is_a_row_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = kept(monkeypatch)
    write(FOUND, tmp_path)
    rows = rows_of(FOUND)
    assert [(row["policy"], row["slots"]) for row in rows] == [
        *(("lru", slots) for slots in (4, 6, 7, 8)),
        ("fifo", 6),
        ("fifo", 8),
        ("belady", 6),
    ]
    assert rows[1] == {
        "policy": "lru",
        "exact_everywhere": True,
        "slots": 6,
        "resident_share": 0.75,
        "gib": 1.5,
        "hit_ratio": 0.5,
        "hits": 4,
        "asked": 8,
        "loads": 6,
        "fewest_loads": 4,
    }
    labels = ["belady: knows [all]"]
    told = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert told == {"title": FOUND.title, "labels": labels, "rows": rows}
    table = pl.read_csv(tmp_path / "table.csv").to_dicts()
    assert table == [{**row, "labels": labels[0]} for row in rows]
    hits, loads = figures[0].axes
    assert curves(hits)["lru"] == ([50, 75, 87.5, 100], [0.125, 0.5, 0.625, 1.0])
    assert curves(loads) == {
        "lru": ([50, 75, 87.5, 100], [9, 6, 5, 3]),
        "fifo": ([75, 100], [5, 4]),
        "belady": ([75], [1]),
        "the fewest of any cache": ([50, 75, 100], [8, 4, 0]),
    }
    assert figures[0].get_suptitle() == f"{FOUND.title}\nbelady: knows [all]"
    assert (hits.get_ylim(), loads.get_ylim()[0]) == ((0, 1.02), 0)


def test_the_command_asks_for_eight_parts_of_the_systems_own_policy_or_as_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(command, "frontier", lambda *of: asked.append(of) or FOUND)
    monkeypatch.setattr(command, "draw", lambda found, place: None)
    place = tmp_path / "out"
    assert command.main(["system=lru", f"output_dir={place}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"files: {place}"
    words = ["system=lru", "policies=lru,lfu", "points=3", f"output_dir={place}"]
    assert command.main(words) == 2
    assert command.main([*words, "overwrite=yes"]) == 0
    assert [(list(given), names, points) for given, names, points in asked] == [  # type: ignore[misc]
        (["system=lru"], [None], 8),
        (["system=lru"], ["lru", "lfu"], 3),
    ]
