"""Rows of a controller's events that are told of many keys at once.

A ranked forecast queues thousands of keys at a gate, and the next gate cancels them. A row for each
is what outputs show. Until somebody reads them, an array of keys says as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ManyRows(NamedTuple):
    """A row for each of the ``keys``, in order, with the same ``call`` and ``kind``, and no value.

    ``before``: how many rows that were noted one by one stand before them.
    """

    before: int
    call: int
    kind: int
    keys: NDArray[np.integer]


def with_many(
    columns: Mapping[str, Sequence[int]], many: Sequence[ManyRows]
) -> Mapping[str, Sequence[int]]:
    """The ``columns`` of rows that were noted one by one, with these rows in their places.

    Columns are those of `sim.values.types.EVENT_COLUMNS`.
    """
    if not many:
        return columns
    counts = [len(rows.keys) for rows in many]
    alone = len(columns["call"])
    # How many of the many rows come right before each of the others, and after the last.
    gaps = np.bincount([rows.before for rows in many], counts, alone + 1).astype(np.int64)
    is_alone = np.zeros(alone + sum(counts), np.bool_)
    is_alone[np.arange(alone) + gaps.cumsum()[:-1]] = True
    told = {
        "call": np.repeat([rows.call for rows in many], counts),
        "kind": np.repeat([rows.kind for rows in many], counts),
        "key": np.concatenate([rows.keys for rows in many]),
        "value": -1,
    }
    whole = {}
    for name, column in columns.items():
        values = np.asarray(column) if alone else np.empty(0, np.int32)
        found = np.empty(len(is_alone), values.dtype)
        found[is_alone], found[~is_alone] = values, told[name]
        whole[name] = found
    return whole  # type: ignore[return-value]  # an array is read as a sequence is
