"""The data of a leaderboard's page, of entries that are made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.boards import BOARD, LOSSY, A, C
from sim.board.entries import Board, Left
from sim.board.page import _about, _board, _left, coverage_of, page
from sim.results.coverage import Coverage
from sim.results.paired import paired


def row(name: str, **other: Any) -> dict[str, Any]:
    return {
        "name": name,
        "part": "cache",
        "hits": 0.876543,
        "command": f"moelab run system={name} 'x=[1]'",
        "certificate": "",
    } | other


def test_a_board_has_its_entries_and_every_pair_unrounded() -> None:
    """The page rounds what it shows. Rounded twice, 1.58516 of a certificate would be 1.58."""
    told = _board(BOARD, "b", {("1_t_h", "a"): "a.json", ("2_t_h", "b"): "b.json"})
    pairs = told.pop("pairs")
    entries = told.pop("entries")
    said = "Intervals cover the truth in 94.1% to 95.6% of simulated pairs with sequences of these"
    assert told == {
        "name": "1_t_h",
        "title": "t on h",
        "said": f"{said} lengths.",
        "against": "b",
    }
    command = "moelab run system=c 'x=<1>' ''\"'\"'x=[1]'\"'\"''"
    quoted = "''\"'\"'x=[1]'\"'\"''"
    first = {"kind": "lossless", "tokens": 12.34567, "gain": 1.25678}
    first |= {"low": 0.912345 * 12.34567, "high": 1.112345 * 12.34567}
    bound = {"kind": "a bound", "tokens": 5.0, "gain": 1.0}
    bound |= {"low": 0.912345 * 5.0, "high": 1.112345 * 5.0}
    lossy = {"kind": "lossy", "tokens": 6.0, "low": None, "high": None, "gain": None}
    assert entries == [
        row(
            "a",
            **first,
            own="lossless",
            certificate="a.json",
            command=f"moelab run system=a {quoted}",
        ),
        row("b", **lossy, own=LOSSY, command=f"moelab run system=b {quoted}"),
        row("c x=<1>", **bound, own="knows the future", command=command),
    ]
    found = paired(np.array(A.decode_ns), np.array(C.decode_ns))
    assert found.interval is not None
    assert pairs[0] == [None, [2.0, 2.0, 2.0, "faster"], [found.speedup, *found.interval, "?"]]
    assert [line[at] for at, line in enumerate(pairs)] == [None] * 3
    assert pairs[1][0] == [0.5, 0.5, 0.5, "slower"]


@pytest.mark.parametrize(("against", "chosen"), [("c", "c x=<1>"), ("a", "a"), ("none", "a")])
def test_one_is_compared_with_whom_one_names_else_with_the_first(against: str, chosen: str) -> None:
    assert _board(BOARD, against, {})["against"] == chosen


def test_a_board_of_one_sequence_has_no_coverage() -> None:
    alone = Board("1", "t", {}, (A,), None)
    assert coverage_of(alone) == "One sequence, or one batch: no intervals."


def test_a_board_of_too_few_sequences_says_why_it_has_no_verdicts() -> None:
    """Eight sequences in two batches: intervals may leave out 1, and nobody is called faster."""
    batches = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    few = replace(A, row=A.row | {"decode_ns": batches})
    said = "No verdicts: 2 independent sequences, and 4 are needed."
    assert coverage_of(Board("1", "t", {}, (few,), Coverage(0.9, 0.95, 100))).endswith(said)
    assert "No verdicts" not in coverage_of(BOARD)


def test_what_is_not_entered_is_told_by_reason_without_shared_words() -> None:
    left = [
        Left("system=a x=1 y=2", "refused: <no room>"),
        Left("system=a x=2 y=2", "refused: <no room>"),
        Left("system=a z=3 y=2", "it decodes nothing"),
    ]
    assert _left(left) == (
        "<details><summary>3 not entered, and why</summary><ul>"
        "<li>refused: &lt;no room&gt;<br><code>x=1\nx=2</code></li>"
        "<li>it decodes nothing<br><code>z=3</code></li></ul></details>"
    )
    assert _left([]) == ""


def test_above_the_boards_stands_what_all_share_and_how_to_make_them() -> None:
    told = _about([BOARD], "moelab board <x>")
    assert told.startswith("<p class='warning'>SYNTHETIC &lt;t&gt;</p><p class='note'>Made by: ")
    assert "moelab board &lt;x&gt;" in told
    assert (told.count("<p class='warning'>"), told.count("<p class='note'>")) == (1, 5)
    assert (LOSSY in told, "knows the future" in told) == (False, False)


def test_a_name_cannot_end_the_script_of_the_page() -> None:
    text = page([BOARD], [], "a", {}, "moelab board")
    assert '"c x=\\u003c1>"' in text
    assert not any(mark in text for mark in ("<!--ABOUT-->", "<!--LEFT-->", "/*DATA*/"))
    assert _about([BOARD], "moelab board") in text
