"""Checks of certificates and words of boards that a whole run does not come to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.board import certificates
from sim.board.certificates import INTERVAL, NUMBER, NUMBERS, TEXT, WORDS, Check, _check_pair, _is
from sim.board.entries import Board
from sim.board.page import coverage_of
from sim.results.coverage import coverage_at


@pytest.mark.parametrize(
    ("value", "kind", "is_one"),
    [
        (None, INTERVAL, True),
        ([1.0, 2.0], INTERVAL, True),
        ([0.0, 2.0], INTERVAL, False),
        ([1.0, 2.0, 3.0], INTERVAL, False),
        (None, NUMBERS, False),
        ([], NUMBERS, False),
        ([0.0], NUMBERS, True),
        ([], WORDS, False),
        (["a", "b"], WORDS, True),
        (["a", 1], WORDS, False),
        ("a\n", TEXT, False),
        (0, NUMBER, False),
        (2, NUMBER, True),
    ],
)
def test_a_value_of_a_certificate_has_its_form(value: object, kind: str, is_one: bool) -> None:
    assert _is(value, kind) is is_one


def test_runs_of_different_lengths_are_no_pair() -> None:
    runs = {side: {"decode_ns": times} for side, times in (("a", [1, 2]), ("b", [1]))}
    assert _check_pair({"pair": {}, "runs": runs}) == Check(
        "pair: ratio, interval, coverage and verdict from the sequences' times",
        "the runs have different numbers of sequences",
    )


def test_a_run_that_does_not_run_again_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"status": "refused", "error": "no such trace"}
    monkeypatch.setattr(certificates, "run_cell", lambda *words: row)
    cell: Any = None
    assert certificates._check_rerun({}, "b", cell) == Check(
        "b: run again", "it is refused: no such trace"
    )


def test_a_board_says_how_often_its_intervals_cover_the_truth() -> None:
    assert coverage_of(Board("n", "t", {}, (), None)) == "One sequence: no intervals."
    covers = coverage_at(np.full(4, 4.0))
    assert covers is not None
    assert coverage_of(Board("n", "t", {}, (), covers)) == (
        f"Intervals cover the truth in {100 * covers.lowest:.1f}% to {100 * covers.highest:.1f}% of"
        " simulated pairs with sequences of these lengths."
    )
