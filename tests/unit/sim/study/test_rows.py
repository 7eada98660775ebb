"""The row of a cell, whole: what was asked, what came out, and the table of many."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from sim.results.overview import Refused
from sim.study import rows
from sim.study.cells import Cell
from sim.study.rows import BOUNDED, INTERVALS, NUMBERS, SCHEMA, TEXTS, make_row, to_frame
from sim.values.code import project_digest
from sim.values.version import VERSION

CELL = Cell("k1", "lru", ("system=lru", "seed=4"), {"seed": 4}, {"b": 1, "a": [2]}, "abc")
ASKED = {
    "key": "k1",
    "study": "s",
    "system": "lru",
    "overrides": "system=lru seed=4",
    "version": VERSION,
    "code": project_digest(),
    "trace_sha256": "abc",
    "config": '{"a": [2], "b": 1}',
    "axis.seed": 4,
}


def test_a_refused_cell_has_what_was_asked_and_why_and_no_number() -> None:
    row = make_row("s", CELL, "refused", "no room")
    assert list(row) == [*SCHEMA, "axis.seed"]
    assert {name: value for name, value in row.items() if value is not None} == {
        **ASKED,
        "status": "refused",
        "error": "no room",
    }


def test_a_done_cell_has_every_number_text_and_interval_from_its_place() -> None:
    values: dict[str, Any] = {name: f"text {name}" for name in TEXTS}
    values |= {name: number / 8 for number, name in enumerate(NUMBERS)}
    summary: dict[str, Any] = {"labels": {"lossy": "lossy (x)"}, "overrides": []}
    for name, value in values.items():
        *path, last = name.split(".")
        place = summary
        for key in path:
            place = place.setdefault(key, {})
        place[last] = value
    summary["ci95"] = {name: [1.0, 2.0] for name in INTERVALS} | {"hit_ratio": None}
    by_sequence = {"sequence": (3, 5), "decode_ns": (1.5, 2.5), "decode_tokens": (7.0, 9.0)}
    row = make_row("s", CELL, "done", None, summary, by_sequence)
    low_high = {
        f"ci95.{name}.{end}": None if name == "hit_ratio" else value
        for name in INTERVALS
        for end, value in (("low", 1.0), ("high", 2.0))
    }
    assert row == {
        **ASKED,
        "status": "done",
        "error": None,
        **values,
        **low_high,
        "sequence": [3, 5],
        "decode_ns": [1.5, 2.5],
        "decode_tokens": [7.0, 9.0],
        "labels": "lossy (x)",
        "summary": json.dumps(summary),
    }
    assert set(row) == {*SCHEMA, "axis.seed"}
    assert set(BOUNDED) < set(NUMBERS)


def test_a_table_has_the_columns_of_all_studies_and_those_of_the_varied_keys() -> None:
    axes = {"seed": pl.Float64, "cancel": pl.Boolean, "shares": pl.String, "cache": pl.String}
    told = [
        {"key": "a", "hit_ratio": 1, "axis.seed": 3, "axis.cancel": True, "axis.cache": "lru"},
        {"key": "b", "decode_ns": [1, 2.5], "axis.shares": [1, 2], "axis.cancel": False},
        {"axis.shares": {"x": None}, "axis.cache": 7},
    ]
    frame = to_frame(told, axes)
    wanted = {**SCHEMA, **{f"axis.{key}": kind for key, kind in axes.items()}}
    assert dict(frame.schema) == dict(pl.Schema(wanted))
    assert frame.select("key", "hit_ratio", "decode_ns", "axis.seed", "axis.cancel").rows() == [
        ("a", 1.0, None, 3.0, True),
        ("b", None, [1.0, 2.5], None, False),
        (None, None, None, None, None),
    ]
    assert frame.select("axis.shares", "axis.cache").rows() == [
        (None, "lru"),
        ("[1, 2]", None),
        ('{"x": null}', "7"),
    ]
    assert to_frame([], {}).shape == (0, len(SCHEMA))


def test_an_overview_has_the_times_of_what_is_done_and_the_reasons_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(rows, "overview", lambda *told: given.append(told))
    done = {"status": "done", "summary": '{"x": 1}', "overrides": "a=1 b=2"}
    rows.overview_of(
        [
            {**done, "decode_ns": [1, 2]},
            {**done, "decode_ns": []},
            {**done, "decode_ns": None},
            {"status": "refused", "overrides": "a=3", "error": "no room"},
            {"status": "failed", "overrides": "a=4", "error": "died"},
        ]
    )
    ((first, *others), refused), *_ = given
    assert (first.summary, first.words, first.decode_ns.tolist()) == (
        {"x": 1},
        ("a=1", "b=2"),
        [1, 2],
    )
    assert [one.decode_ns for one in others] == [None, None]
    assert refused == [Refused("a=3", "no room"), Refused("a=4", "it failed: died")]


def test_of_two_words_for_one_key_an_overview_has_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study's own word that one cell replaced was shared by all, so no title had it: 10 tokens
    and 1 token looked alike.
    """
    given: list[Any] = []
    monkeypatch.setattr(rows, "overview", lambda *told: given.append(told))
    base = "workload.decode_tokens=10 system=lru"
    done = {"status": "done", "summary": "{}", "decode_ns": None}
    cells = [base, f"{base} workload.decode_tokens=1"]
    rows.overview_of([{**done, "overrides": words} for words in cells])
    ((first, second), _), *_ = given
    assert first.words == ("workload.decode_tokens=10", "system=lru")
    assert second.words == ("system=lru", "workload.decode_tokens=1")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("system=lru", "cache.shares=[0.9,0.1]"),
        ("+hardware.links.nvme.page_cache={_target_: a.Pages, capacity_gib: 8}", "seed=1"),
        ("a=[[1, 2], [3, 4]]", "b=f(1, 2)", "c='it is (so'", 'd="x y"', "e=z"),
    ],
)
def test_a_row_gives_its_words_back_with_the_blanks_that_are_inside(words: tuple[str, ...]) -> None:
    """A study's table called a system after the second half of a section with blanks."""
    assert rows.words_of(" ".join(words)) == words


def test_what_is_never_closed_parts_at_blanks() -> None:
    assert rows.words_of("trace.path=it's system=lru") == ("trace.path=it's", "system=lru")
    assert rows.words_of("a=[1 b=2") == ("a=[1", "b=2")
