"""Parquet files of strangers as columns of plain numbers.

They are read by pyarrow, in blocks of rows, so that what is held at once does not grow with the
file. Polars, which reads the project's own files, ends the whole process at a damaged page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from capture.importers.source import IDS, ImportFailure, Refuse, require_file, unreadable
from sim.traces.trace import TraceError

WHOLE = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)
# Versions of polars without half precision read it as single precision.
FLOATS = (pl.Float32, pl.Float64, *filter(None, [getattr(pl, "Float16", None)]))
LARGEST_FILE_BYTES = 1 << 34
MOST_FILES = 10_000
Ints = NDArray[np.int64]


def opened(refuse: Refuse, path: Path) -> Any:
    """The file as pyarrow has it; refuse what is no parquet."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportFailure(
            "format=parquet reads with pyarrow: pip install 'moe-offload-lab[study]'"
        ) from error
    with _refusing(refuse):
        return pyarrow.parquet.ParquetFile(path, pre_buffer=False)


@contextmanager
def _refusing(refuse: Refuse) -> Iterator[None]:
    """Refuse a file that pyarrow cannot read."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        raise TraceError(
            refuse.file, "content", str(error), "must be a parquet file that pyarrow reads"
        ) from None


def schema_in(refuse: Refuse, path: Path) -> Mapping[str, pl.DataType]:
    """The types of a file's columns by name. What polars has no type for is left out."""
    file, found = opened(refuse, path), {}
    import pyarrow

    with _refusing(refuse):
        for each in file.schema_arrow:
            try:
                found[each.name] = pl.Series(pl.from_arrow(pyarrow.array([], each.type))).dtype
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
                continue
    return found


def parts_of(path: Path) -> list[Path]:
    """The file ``path``, or the parquet files of the folder ``path`` in the order of their names."""
    what = "a parquet file, or a folder of them"
    try:
        found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    except OSError as error:
        raise unreadable("path", path, error, what) from None
    if not found:
        raise ImportFailure(f"path={path} has no *.parquet; name {what}")
    rule = f"must be at most {MOST_FILES}"
    Refuse(path.name)("files", len(found) > MOST_FILES, len(found), rule, "import fewer at once")
    return [require_file("path", part, what, LARGEST_FILE_BYTES) for part in found]


def inner_of(dtype: pl.DataType) -> tuple[pl.DataType, int]:
    """What lists in lists hold in the end, and how many levels of them there are."""
    depth = 0
    while isinstance(dtype, (pl.List, pl.Array)):
        dtype, depth = dtype.inner, depth + 1  # type: ignore[assignment]
    return dtype, depth


def blocks(
    refuse: Refuse, path: Path, columns: Sequence[str], rows: int
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Number of the first row, and these columns, of at most ``rows`` rows at a time."""
    file, begin = opened(refuse, path), 0
    with _refusing(refuse):
        batches = file.iter_batches(batch_size=rows, columns=list(columns), use_threads=False)
    while True:
        with _refusing(refuse):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)
            columns_of = {name: pl.Series(pl.from_arrow(batch.column(name))) for name in columns}
        yield begin, pl.DataFrame(columns_of)
        begin += len(batch)


def wholes(refuse: Refuse, name: str, column: pl.Series, row: Ints, most: int) -> Ints:
    """A column of whole numbers in ``0..most``; ``row`` has the numbers of its rows."""
    no_null(refuse, name, column, row)
    values = column.to_numpy()
    refuse_first(refuse, name, (values < 0) | (values > most), values, row, 0, most)
    return values.astype(np.int64)


def lists(
    refuse: Refuse, name: str, column: pl.Series, row: Ints, depth: int
) -> tuple[pl.Series, tuple[Ints, ...]]:
    """The values of a column of lists, one after another, and by level how long its lists are.

    No row, list or value may be null.
    """
    inner, _ = inner_of(column.dtype)
    levels: list[Ints] = []
    for level in range(depth):
        dtype: Any = inner
        for _ in range(depth - level):
            dtype = pl.List(dtype)
        column = column.cast(dtype)
        no_null(refuse, name, column, row)
        levels.append(column.list.len().to_numpy().astype(np.int64))
        # Where a list is empty, exploding it would make a null.
        column = column.filter(pl.Series(levels[-1] > 0)).explode()
        row = np.repeat(row, levels[-1])
    no_null(refuse, name, column, row)
    return column, tuple(levels)


def refuse_first(
    refuse: Refuse,
    name: str,
    wrong: NDArray[np.bool_],
    values: NDArray[Any],
    row: Ints,
    least: int,
    most: int,
) -> None:
    """Refuse the first of ``values`` that is wrong, by its row's number."""
    if wrong.any():
        at = int(wrong.argmax())
        rule = f"must lie in {least}..{most}"
        is_id = name == "experts" and values[at] > most
        refuse(f"row {row[at]}, {name}", True, values[at].item(), rule, IDS if is_id else None)


def no_null(refuse: Refuse, name: str, column: pl.Series, row: Ints) -> None:
    if column.null_count():
        at = int(column.is_null().arg_max() or 0)
        refuse(f"row {row[at]}, {name}", True, "null", "must hold no null")
