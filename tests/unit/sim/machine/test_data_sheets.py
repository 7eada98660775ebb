"""The errors of machines from data sheets: whose they are, and what is expected of a next run."""

from __future__ import annotations

from math import sqrt

import pytest

from sim.machine.data_sheets import KEPT, SheetErrors, believed, of_preset
from sim.machine.validated import Validated
from sim.verbs.names import names, of_file

OWN = Validated(runs=9, systems=3, median_factor=1.05, worst_factor=1.3, log_error=0.1)
SHARED = SheetErrors(machines=5, middle_factor=1.5, log_error=0.6)


def test_what_is_expected_is_the_mean_square_over_systems_and_machines_by_hand() -> None:
    assert believed(None, None) is None
    assert believed(OWN, None) == pytest.approx((0.1, 3))
    assert believed(None, SHARED) == pytest.approx((0.6, 5))
    assert believed(OWN, SHARED) == pytest.approx((sqrt((3 * 0.01 + 5 * 0.36) / 8), 8))


def test_a_measured_machine_shares_no_errors_of_data_sheets_and_all_others_do() -> None:
    shares = {
        of_file("hardware", name)["preset"]: of_preset(of_file("hardware", name)["preset"])
        for name in names("hardware")
    }
    assert shares == {"roofline": KEPT, "paper": KEPT, "calibrated": None}


def test_they_are_told_as_a_factor() -> None:
    assert str(SHARED) == "5 machines from data sheets were off by 1.5 times in the middle"
