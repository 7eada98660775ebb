"""The command that writes a trace's tables again, as small as parquet gets them.

``python -m capture.repack DIR``, for traces that travel.

polars writes every column in the same way. pyarrow can store a column's bytes plane by plane,
choose a codec for each column, and put all rows on one page. This saves a tenth to a fifth of the
bytes and takes minutes. Contents, columns and types stay as they are, which is checked before
anything is replaced. The digests in the header are updated.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sim.traces.trace import TraceError, read_header, read_trace
from sim.values.fields import HEADER_FILE

CODECS = {"brotli": 11, "zstd": 22}
ENCODINGS = ("PLAIN", "BYTE_STREAM_SPLIT")
ONE = 1 << 30
"""More rows and bytes than any trace has: makes one row group, and one page a column."""


def repack(directory: Path) -> dict[str, tuple[int, int]]:
    """Pack the tables of the trace in ``directory``.

    Returns bytes before and after, by file, of the files that became smaller; others stay as they
    are. Raise `TraceError` if the directory holds no trace, RuntimeError if a table would not be
    read back the same.
    """
    read_trace(directory)
    header = json.loads((directory / HEADER_FILE).read_text(encoding="utf-8"))
    packed: dict[str, tuple[int, int]] = {}
    drafts: list[tuple[Path, Path]] = []
    try:
        for path in sorted(read_header(directory).files):
            place = directory / path
            if place.suffix == ".parquet" and (content := _packed(place)) is not None:
                drafts.append((place.with_name(f".{place.name}.draft"), place))
                drafts[-1][0].write_bytes(content)
                packed[path] = place.stat().st_size, len(content)
                header["files"][path] = hashlib.sha256(content).hexdigest()
        draft = directory / f".{HEADER_FILE}.draft"
        drafts.append((draft, directory / HEADER_FILE))
        draft.write_text(json.dumps(header, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        for made, place in drafts:
            os.replace(made, place)
    finally:
        for made, _ in drafts:
            made.unlink(missing_ok=True)
    return packed


def _packed(place: Path) -> bytes | None:
    """The smallest file with the contents of ``place``; None where ``place`` is the smallest."""
    frame = pl.read_parquet(place, glob=False)
    codecs: dict[str, str] = {}
    encodings: dict[str, str] = {}
    for name in frame.columns:
        path = f"{name}.list.element" if isinstance(frame.schema[name], pl.Array) else name
        kinds = ENCODINGS if frame.schema[name] != pl.Boolean else ENCODINGS[:1]
        sizes = {
            (codec, kind): len(_written(frame.select(name), {path: codec}, {path: kind}))
            for codec, kind in itertools.product(CODECS, kinds)
        }
        codecs[path], encodings[path] = min(sizes, key=lambda pair: sizes[pair])
    content = _written(frame, codecs, encodings)
    again = pl.read_parquet(io.BytesIO(content))
    if again.schema != frame.schema or not again.equals(frame):
        raise RuntimeError(
            f"{place}: what was packed is not read back the same; the trace is as it was"
        )
    return content if len(content) < place.stat().st_size else None


def _written(frame: pl.DataFrame, codecs: Mapping[str, str], encodings: Mapping[str, str]) -> bytes:
    # Imported late: pyarrow is an optional dependency that only this command needs.
    import pyarrow.parquet as parquet

    buffer = io.BytesIO()
    options: dict[str, Any] = {
        "row_group_size": ONE,
        "data_page_size": ONE,
        "max_rows_per_page": ONE,
    }
    parquet.write_table(
        frame.to_arrow(),
        buffer,
        compression=dict(codecs),
        compression_level={path: CODECS[codec] for path, codec in codecs.items()},
        use_dictionary=False,
        column_encoding=dict(encodings),
        write_statistics=False,
        **options,
    )
    return buffer.getvalue()


def main(words: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message."""
    try:
        if len(words) != 1:
            raise ValueError("name one trace: moelab capture repack DIR")
        packed = repack(Path(words[0]))
    except (TraceError, ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"repack: {error}", file=sys.stderr)
        return 2
    for path, (before, after) in packed.items():
        print(f"{path}: {before:,} -> {after:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
