"""The rows of a study on disk: parquet parts, and a journal of the rows that are in no part yet.

A finished cell is appended to ``journal.jsonl`` at once. Now and then the rows of the journal are
written to ``cells/part-N.parquet``, and the journal begins anew. A part is written under another
name and moved into place, so it appears whole or not at all. So a study that is killed at any
moment finds each finished cell in a part or in the journal. One process writes a dataset at a time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import polars as pl
from polars.exceptions import PolarsError

from sim.study.rows import AXIS, SCHEMA, Row, axis_types, to_frame

CELLS, JOURNAL, LOCK = "cells", "journal.jsonl", ".lock"
ROWS_A_PART, SECONDS_A_PART = 256, 20.0
BROKEN = ".corrupt"


class DatasetError(OSError):
    """A dataset cannot be written. Its content stays as it is."""


class Dataset:
    """The dataset in ``directory``, locked for writing while a ``with`` lasts.

    ``axes``: by varied key, the type of its column. ``tell`` is called with lines for the user.
    Raise DatasetError where another process writes the dataset, or nothing can be written there.
    """

    def __init__(
        self, directory: Path, axes: Mapping[str, Any], tell: Callable[[str], None]
    ) -> None:
        self.directory, self._axes, self._tell = directory, dict(axes), tell
        self.statuses: dict[str, str] = {}
        """The status of every recorded cell, by key: done, refused or failed."""
        self.codes: dict[str, str | None] = {}
        """The digest of the code that made its row; None where the row does not tell."""
        self._pending: list[Row] = []
        self._journal: IO[bytes] | None = None
        self._lock: IO[str] | None = None
        self._written_at = time.monotonic()

    def __enter__(self) -> Dataset:
        try:
            (self.directory / CELLS).mkdir(parents=True, exist_ok=True)
            self._take_lock()
            self._read_parts()
            self._read_journal()
            self._journal = (self.directory / JOURNAL).open("ab", buffering=0)
            self.flush()
        except DatasetError:
            raise
        except OSError as error:
            raise self._cannot_write(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        try:
            # After a DatasetError the rows of the next part stay in the journal.
            if not isinstance(error, DatasetError):
                self.flush()
        finally:
            if self._journal is not None:
                self._journal.close()
            if not self.statuses:
                self._vanish()
            if self._lock is not None:
                self._lock.close()

    def add(self, row: Row) -> None:
        """Record a finished cell."""
        assert self._journal is not None
        line = json.dumps(row).encode() + b"\n"
        try:
            if self._journal.write(line) < len(line):
                raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise self._cannot_write(error) from error
        self._note(row["key"], row["status"], row.get("code"))
        self._pending.append(row)
        if (
            len(self._pending) >= ROWS_A_PART
            or time.monotonic() > self._written_at + SECONDS_A_PART
        ):
            self.flush()

    def flush(self) -> None:
        """Write the rows that are only in the journal as a part."""
        self._written_at = time.monotonic()
        if not self._pending:
            return
        assert self._journal is not None
        numbers = [int(part.stem.partition("-")[2]) for part in self._parts()]
        try:
            self._publish(
                to_frame(self._pending, self._axes),
                f"part-{max(numbers, default=0) + 1:06d}.parquet",
            )
            self._journal.truncate(0)
        except OSError as error:
            raise self._cannot_write(error) from error
        self._pending.clear()

    def forget(self, keys: Iterable[str]) -> int:
        """Remove these cells, so that they run again. Return how many they were."""
        gone = set(keys)
        for part in self._parts():
            frame = pl.read_parquet(part, glob=False)
            kept = frame.filter(~pl.col("key").is_in(gone))
            if not len(kept):
                part.unlink()
            elif len(kept) < len(frame):
                self._publish(kept, part.name)
        for key in gone:
            del self.statuses[key], self.codes[key]
        return len(gone)

    def read(self) -> pl.DataFrame:
        """All recorded cells."""
        self.flush()
        return read_cells(self.directory)

    def _note(self, key: str, status: str, code: str | None) -> None:
        self.statuses[key], self.codes[key] = status, code

    # ---- reading what is there

    def _parts(self) -> list[Path]:
        return sorted((self.directory / CELLS).glob("part-*.parquet"))

    def _read_parts(self) -> None:
        for left in (self.directory / CELLS).glob(".part-*"):
            left.unlink()
        frames: dict[Path, pl.DataFrame] = {}
        for part in self._parts():
            try:
                frames[part] = frame = _part(part)
                if "code" not in frame.columns:
                    frame = frame.with_columns(code=pl.lit(None, pl.String))
                for told in frame.select("key", "status", "code").iter_rows():
                    self._note(*told)
            except (PolarsError, ValueError) as error:
                # Moved out of the folder of parts, which readers such as pandas read as a whole.
                aside = self.directory / (part.name + BROKEN)
                part.rename(aside)
                frames.pop(part, None)
                reason = str(error).splitlines()[0]
                self._tell(
                    f"{part} cannot be read ({reason}); it is kept as {aside.name}, and the cells"
                    " that it held run again"
                )
        self._agree(frames)

    def _agree(self, frames: Mapping[Path, pl.DataFrame]) -> None:
        """Give all parts the same columns, for a study that varies other keys than before, or the same
        ones in another order.
        """
        for frame in frames.values():
            for name in frame.columns:
                if name.startswith(AXIS):
                    key, kind = name.removeprefix(AXIS), frame.schema[name]
                    self._axes[key] = kind if self._axes.get(key, kind) == kind else pl.String
        wanted = {**SCHEMA, **{AXIS + key: kind for key, kind in self._axes.items()}}
        for part, frame in frames.items():
            # In the same order, too: parts are put below each other.
            if [*frame.schema.items()] != [*pl.Schema(wanted).items()]:
                there = set(frame.columns)
                columns = [
                    (pl.col(name) if name in there else pl.lit(None))
                    .cast(kind, strict=False)
                    .alias(name)
                    for name, kind in wanted.items()
                ]
                self._publish(frame.select(columns), part.name)

    def _read_journal(self) -> None:
        place = self.directory / JOURNAL
        if not place.exists():
            return
        good, lost = _journaled(place)
        if lost:
            self._tell(
                f"{place} has {lost} line{'s' * (lost > 1)} that cannot be read; those cells run"
                " again"
            )
        for row in good:
            if row["key"] not in self.statuses:
                self._note(row["key"], row["status"], row.get("code"))
                self._pending.append(row)
        # Rewritten without the torn last line, so that the next row begins a line of its own.
        temporary = place.with_name("." + JOURNAL)
        temporary.write_text(
            "".join(json.dumps(row) + "\n" for row in self._pending), encoding="utf-8"
        )
        os.replace(temporary, place)

    # ---- writing

    def _publish(self, frame: pl.DataFrame, name: str) -> None:
        building = self.directory / CELLS / f".{name}"
        try:
            # Python writes the bytes: polars panics where a file system refuses them.
            with building.open("wb") as file:
                file.write(_parquet(frame))
                file.flush()
                os.fsync(file.fileno())
            os.replace(building, self.directory / CELLS / name)
        finally:
            building.unlink(missing_ok=True)

    def _take_lock(self) -> None:
        place = self.directory / LOCK
        self._lock = place.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file together with an empty dataset.
            is_mine = place.exists() and os.path.samestat(
                os.fstat(self._lock.fileno()), place.stat()
            )
        except BlockingIOError:
            is_mine = False
        if not is_mine:
            self._lock.seek(0)
            who = self._lock.read().strip() or "another process"
            self._lock.close()
            self._lock = None
            raise DatasetError(
                f"output_dir={self.directory} is being written by {who}; wait for it, or choose"
                " another output_dir"
            )
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._lock.flush()

    def _vanish(self) -> None:
        """Remove the files of a dataset that recorded nothing; leave what others put there."""
        for name in (JOURNAL, LOCK):
            (self.directory / name).unlink(missing_ok=True)
        for folder in (self.directory / CELLS, self.directory):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _cannot_write(self, error: OSError) -> DatasetError:
        kept = f"; {len(self.statuses)} cells are recorded and stay" if self.statuses else ""
        return DatasetError(
            f"output_dir={self.directory} cannot be written ({error}){kept}: make room or choose"
            " another place, and start again with the same words"
        )


def _parquet(frame: pl.DataFrame) -> bytes:
    from io import BytesIO

    buffer = BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def _journaled(place: Path) -> tuple[list[Row], int]:
    """The rows of a journal, and how many of its lines cannot be read: the last one may be torn."""
    lines = place.read_bytes().split(b"\n")
    good, lost = [], sum(1 for line in lines[-1:] if line)
    for line in lines[:-1]:
        try:
            row = json.loads(line)
            row["key"], row["status"]
            good.append(row)
        except (ValueError, KeyError, TypeError):
            lost += 1
    return good, lost


def read_part(part: Path) -> pl.DataFrame:
    """The rows of one part. Raise ValueError for one that is broken."""
    try:
        return _part(part)
    except ValueError as error:
        raise ValueError(
            f"{part} cannot be read ({error}); the study's words again set it aside and run its"
            " cells anew"
        ) from None


def _part(part: Path) -> pl.DataFrame:
    """The rows of one part. Raise ValueError, with the reason alone, where no study wrote them."""
    try:
        found = pl.read_parquet(part, glob=False)
    except (PolarsError, OSError) as error:
        raise ValueError(str(error).splitlines()[0]) from None
    for name, kind in SCHEMA.items():
        there, wanted = found.schema.get(name, pl.Null()), pl.Schema({name: kind})[name]
        is_other = there not in (wanted, pl.Null()) and not (
            there.is_numeric() and wanted.is_numeric()
        )
        if is_other:
            raise ValueError(f"column {name} is {there}, must be {wanted}")
    return found


def read_cells(directory: str | Path) -> pl.DataFrame:
    """The recorded cells of a study: those of its parts, which
    ``polars.read_parquet("DIRECTORY/cells/*.parquet")`` reads, and those that are in its journal
    alone, of a study that was killed or still runs. Raise ValueError for a part that is broken.
    """
    place = Path(directory)
    journal = place / JOURNAL
    # The journal first: what moves to a part meanwhile is then in both, and not in neither.
    rows, _ = _journaled(journal) if journal.is_file() else ([], 0)
    parts = sorted((place / CELLS).glob("part-*.parquet"))
    frames = [read_part(part) for part in parts]
    try:
        # Parts of one study have the same columns, unless somebody changed one.
        found = pl.concat(frames, how="diagonal_relaxed") if frames else to_frame([], {})
    except PolarsError as error:
        told = str(error).splitlines()[0]
        raise ValueError(f"{place / CELLS}: parts do not go together ({told})") from None
    if not rows:
        return found
    recorded = set(found["key"])
    new = [row for row in rows if row["key"] not in recorded]
    if not new:
        return found
    axes = axis_types(
        {
            name.removeprefix(AXIS): [row.get(name) for row in new]
            for name in dict.fromkeys(name for row in new for name in row)
            if name.startswith(AXIS)
        }
    )
    return pl.concat([found, to_frame(new, axes)], how="diagonal_relaxed")
