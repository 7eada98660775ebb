"""Machines from data sheets: which count, their errors by hand, and each left out in turn."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt

import pytest
from scipy.special import stdtrit

from real.suite.pairs import FITTED, ONE, SHEETS, SHEETS_AND_LINK, TOKEN, Pair
from real.suite.sheets import by_machine, left_out, reach, sheet_errors, told

PAIR = Pair("A", "a", SHEETS, "published", "x", None, TOKEN, "predicted", 1.0, 2.0)
THREE = {
    "A": [("x", 2.0, 1.0)],
    "B": [("x", 1.0, 4.0), ("y", 4.0, 1.0)],
    "C": [("x", 1.0, 1.0), ("y", 1.0, 100.0)],
}


def test_cards_of_a_kind_are_one_machine_and_what_is_not_of_data_sheets_is_left_out() -> None:
    pairs = [
        PAIR,
        replace(PAIR, machine="2 x A", run="y", basis=SHEETS_AND_LINK, predicted_s=3.0),
        replace(PAIR, machine="B", predicted_s=4.0),
        replace(PAIR, machine="A, another engine"),
        replace(PAIR, machine="C", basis="another published run"),
        replace(PAIR, machine="D", role=FITTED),
        replace(PAIR, machine="E", quantity=ONE),
    ]
    assert by_machine(pairs) == {"A": [("x", 2.0, 1.0), ("y", 3.0, 1.0)], "B": [("x", 4.0, 1.0)]}


def test_machines_count_alike_however_many_runs_they_have_by_hand() -> None:
    found = sheet_errors(THREE)
    last = log(100) / sqrt(2)
    mean = (log(2) ** 2 + log(4) ** 2 + last**2) / 3
    assert found.machines == 3
    assert found.middle_factor == pytest.approx(4)
    assert found.log_error == pytest.approx(sqrt(mean))
    assert reach(found) == pytest.approx(exp(stdtrit(3, 0.975) * sqrt(mean)))
    with pytest.raises(ValueError, match="need a machine with a scored run"):
        sheet_errors({})


def test_each_is_judged_by_all_others() -> None:
    """A and B expect of C a factor up to exp(4.30 x 1.10) = 112; so a run of 200 is outside."""
    assert left_out(THREE) == {"A": (1, 1), "B": (2, 2), "C": (2, 2)}
    far = {**THREE, "C": [("x", 1.0, 1.0), ("y", 1.0, 200.0)]}
    assert left_out(far) == {"A": (1, 1), "B": (2, 2), "C": (1, 2)}
    assert told(far).endswith(
        "4 of 5 runs are within what the others say, and 83% if machines count alike"
    )
    with pytest.raises(ValueError, match="need a machine"):
        left_out({"A": THREE["A"]})
