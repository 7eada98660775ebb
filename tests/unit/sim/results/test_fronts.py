"""The front of speed and loss, of points that are made by hand."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from sim.results.fronts import front


@pytest.mark.parametrize(
    ("points", "on_it"),
    [
        ([], []),
        ([(1, 5)], [True]),
        # As fast and losing less; as lossy and faster; both.
        ([(2, 1), (2, 2)], [True, False]),
        ([(3, 1), (2, 1)], [True, False]),
        ([(1, 3), (2, 2)], [False, True]),
        # Neither beats the other, and equal points do not beat each other.
        ([(1, 1), (2, 2)], [True, True]),
        ([(2, 1), (2, 1)], [True, True]),
        # Who has no loss is on no front and beats nobody.
        ([(9, nan), (1, 1)], [False, True]),
        ([(4, 4), (3, 2), (3, 3), (1, 1), (1, 2), (5, 9)], [True, True, False, True, False, True]),
    ],
)
def test_a_point_is_on_the_front_unless_one_is_no_worse_in_both_and_better_in_one(
    points: list[tuple[float, float]], on_it: list[bool]
) -> None:
    speed, loss = np.array(points, np.float64).reshape(-1, 2).T
    assert front(speed, loss).tolist() == on_it
