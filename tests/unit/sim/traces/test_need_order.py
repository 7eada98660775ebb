"""The order of a row's choices: as a plain sort has it, whether they come in order or not."""

from __future__ import annotations

import numpy as np
import pytest

from sim.traces.routing import need_order

IN_ORDER = ([3, 1, 5], [0.5, 0.3, 0.2])
TIED_BY_ID = ([1, 3, 5], [0.4, 0.4, 0.2])
BY_WEIGHT = ([3, 1, 5], [0.2, 0.3, 0.5])
TIED_AGAINST_ID = ([3, 1, 5], [0.4, 0.4, 0.2])
LAST_DROPPED = ([3, 1, -1], [0.5, 0.3, 0.2])
FIRST_DROPPED = ([-1, 1, 3], [0.5, 0.3, 0.2])
ALL_DROPPED = ([-1, -1, -1], [0.0, 0.0, 0.0])
ROWS = (
    IN_ORDER,
    TIED_BY_ID,
    BY_WEIGHT,
    TIED_AGAINST_ID,
    LAST_DROPPED,
    FIRST_DROPPED,
    ALL_DROPPED,
)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (IN_ORDER, [0, 1, 2]),
        (TIED_BY_ID, [0, 1, 2]),
        (BY_WEIGHT, [2, 1, 0]),
        (TIED_AGAINST_ID, [1, 0, 2]),
        (LAST_DROPPED, [0, 1, 2]),
        (FIRST_DROPPED, [1, 2, 0]),
        (ALL_DROPPED, [0, 1, 2]),
    ],
)
def test_choices_go_by_weight_then_id_and_dropped_ones_last(
    row: tuple[list[int], list[float]], expected: list[int]
) -> None:
    assert need_order(*map(np.array, row)).tolist() == expected


def test_a_row_is_ordered_as_alone_whatever_stands_beside_it() -> None:
    ids, weights = (np.array([row[nth] for row in ROWS]) for nth in (0, 1))
    alone = [need_order(*map(np.array, row)).tolist() for row in ROWS]
    assert need_order(ids, weights).tolist() == alone
    assert need_order(ids[:, None], weights[:, None]).tolist() == [[row] for row in alone]


def test_random_rows_are_in_the_order_of_a_plain_sort() -> None:
    drawn = np.random.default_rng(0)
    ids, weights = drawn.integers(-1, 6, (500, 4)), drawn.integers(0, 3, (500, 4))
    for row_ids, row_weights, order in zip(ids, weights, need_order(ids, weights), strict=True):
        keys = [
            (i < 0, -w, i, at) for at, (i, w) in enumerate(zip(row_ids, row_weights, strict=True))
        ]
        assert order.tolist() == [at for *_, at in sorted(keys)]


def test_without_weights_choices_stand_as_they_came_but_for_dropped_ones() -> None:
    ids = np.array([[5, -1, 3], [1, 0, 2]])
    assert need_order(ids, np.zeros((2, 3)), as_it_stands=True).tolist() == [[0, 2, 1], [0, 1, 2]]


def test_no_rows_have_no_order() -> None:
    assert need_order(np.zeros((0, 3), int), np.zeros((0, 3))).shape == (0, 3)
