"""Reads the tables of a run back from its folder: the one reader for all commands but the audit."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PanicException, PolarsError

from sim.results.kept import RUN_AGAIN

LARGEST_ROWS = 1 << 28
"""The most rows of a table: a file of a few bytes can claim any number."""
TEXTS = (
    "phase",
    "class",
    "kind",
    "link",
    "outcome",
    "wanted",
    "served",
    "skips",
    "domain",
    "split",
)
"""The columns of text. They may be null where nothing has a name, such as the precision of a skip."""
MAY_BE_NULL = ("victim",)
"""Columns of numbers that are null where nothing left; no other is."""


def read_table(
    place: Path,
    columns: Collection[str],
    way: str = RUN_AGAIN,
    may_be_null: Collection[str] = MAY_BE_NULL,
) -> pl.DataFrame:
    """These columns of a run's table, in their types. Columns that a run has by its choices alone
    stand among ``columns`` only where the file has them (`columns_in`).

    Raise ValueError, with file, column, finding and the ``way`` out, for a file that is not there or
    cannot be read, and for a column that is lacking, of another type, or null.
    """
    if lacking := [name for name in columns if name not in columns_in(place, way)]:
        raise ValueError(f"{place} lacks the columns {', '.join(lacking)}; {way}")
    try:
        rows = pl.scan_parquet(place, glob=False).select(pl.len()).collect().item()
        if rows > LARGEST_ROWS:
            raise ValueError(f"{place} has {rows} rows, must have at most {LARGEST_ROWS}; {way}")
        found = pl.read_parquet(place, columns=list(columns), glob=False)
    except (PolarsError, PanicException, OSError) as error:
        raise ValueError(f"{place} cannot be read ({_first_line(error)}); {way}") from None
    for name in columns:
        _check_column(found[name], f"{place}: column {name}", way, may_be_null)
    return found


def columns_in(place: Path, way: str = RUN_AGAIN) -> frozenset[str]:
    """The names of a table's columns. Raise ValueError for a file that cannot be read."""
    if not place.is_file():
        raise ValueError(f"{place.parent} has no {place.name}; {way}")
    try:
        return frozenset(pl.scan_parquet(place, glob=False).collect_schema())
    except (PolarsError, PanicException, OSError) as error:
        raise ValueError(f"{place} cannot be read ({_first_line(error)}); {way}") from None


def check_together(tokens: pl.DataFrame, sequences: pl.DataFrame, folder: Path) -> None:
    """Raise ValueError where a token is of a sequence that is not there: one of both was cut."""
    known = sequences["sequence"]
    if lacking := sorted({*tokens["sequence"]} - {*known}):
        raise ValueError(
            f"{folder}/sequences.parquet lacks sequence {lacking[0]}, which tokens.parquet has: one"
            f" of them was cut, or is of another run; {RUN_AGAIN}"
        )
    if known.n_unique() < len(known):
        raise ValueError(f"{folder}/sequences.parquet has a sequence twice; {RUN_AGAIN}")


def _check_column(column: pl.Series, told: str, way: str, may_be_null: Collection[str]) -> None:
    dtype: Any = column.dtype
    if column.name in TEXTS:
        if dtype != pl.String:
            raise ValueError(f"{told} is {dtype}, must be text; {way}")
        return
    if not dtype.is_numeric():
        raise ValueError(f"{told} is {dtype}, must be numbers; {way}")
    if column.name not in may_be_null and (nulls := column.null_count()):
        raise ValueError(f"{told} has {nulls} nulls, must have none; {way}")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
