"""Rows that are told of many keys at once stand where they would have stood one by one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from sim.core.event_rows import ManyRows, with_many
from sim.values.types import EVENT_COLUMNS


def columns(rows: Sequence[tuple[int, int, int, int]]) -> dict[str, list[int]]:
    return {name: [row[nth] for row in rows] for nth, name in enumerate(EVENT_COLUMNS)}


def rows_of(found: Mapping[str, Sequence[int]]) -> list[tuple[int, ...]]:
    return list(zip(*(np.asarray(found[name]).tolist() for name in EVENT_COLUMNS), strict=True))


def test_many_rows_come_before_between_and_after_the_others() -> None:
    alone = columns([(1, 3, 70, -1), (4, 4, 71, 9)])
    many = [
        ManyRows(0, 1, 0, np.array([5, 6])),
        ManyRows(1, 2, 1, np.array([5])),
        ManyRows(1, 2, 0, np.array([8])),
        ManyRows(2, 5, 2, np.array([6])),
    ]
    assert rows_of(with_many(alone, many)) == [
        (1, 0, 5, -1),
        (1, 0, 6, -1),
        (1, 3, 70, -1),
        (2, 1, 5, -1),
        (2, 0, 8, -1),
        (4, 4, 71, 9),
        (5, 2, 6, -1),
    ]


def test_without_many_rows_the_columns_are_as_they_were() -> None:
    alone = columns([(1, 3, 70, -1)])
    assert with_many(alone, []) is alone


@pytest.mark.parametrize("seed", range(20))
def test_they_stand_where_rows_noted_one_by_one_would(seed: int) -> None:
    dice = random.Random(seed)
    alone: list[tuple[int, int, int, int]] = []
    many: list[ManyRows] = []
    whole: list[tuple[int, int, int, int]] = []
    for call in range(dice.randint(0, 12)):
        if dice.random() < 0.5:
            alone.append((call, 3, dice.randint(0, 99), dice.randint(-1, 99)))
            whole.append(alone[-1])
        else:
            keys = [dice.randint(0, 99) for _ in range(dice.randint(0, 3))]
            many.append(ManyRows(len(alone), call, 1, np.array(keys, np.int32)))
            whole += [(call, 1, key, -1) for key in keys]
    assert rows_of(with_many(columns(alone), many)) == whole
