"""Columns that grow as lists and are kept as arrays."""

from __future__ import annotations

import pytest

from sim.values.packing import INT8, Packing


def test_rows_of_several_columns_are_kept_apart_and_in_order() -> None:
    rows, alone = [7, -1, 8, 127], [1 << 40]
    packing = Packing({("at", "kind"): rows, ("end",): alone}, {"kind": INT8})
    packing.pack()
    assert (rows, alone) == ([], [])
    rows += [9, -128]
    whole = packing.whole()
    assert list(whole["at"]) == [7, 8, 9]
    assert list(whole["kind"]) == [-1, 127, -128]
    assert list(whole["end"]) == [1 << 40]


@pytest.mark.parametrize("number", [128, -129, 1 << 40])
def test_a_number_that_does_not_fit_its_column_is_no_other_number(number: int) -> None:
    packing = Packing({("kind",): [3, number]}, {"kind": INT8})
    with pytest.raises(OverflowError, match=f"{number} does not fit a column of width 'b'"):
        packing.pack()
