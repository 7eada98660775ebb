"""Ways to read a store: through the page cache, past it, by page faults of a mapping, or from RAM.

A reader belongs to one thread. It raises `StoreError` where it cannot read all that was asked for,
so nothing waits for bytes that will not come.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from real.store.variants import ALIGNMENT, StoreError

Bytes = NDArray[np.uint8]


class Reader(Protocol):
    def read(self, offset: int, into: Bytes) -> None:
        """Fill ``into`` with the file's bytes from ``offset`` on.

        Raise StoreError if the file does not have them all.
        """

    def close(self) -> None: ...


class BufferedReader:
    """Reads through the page cache."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDONLY)

    def read(self, offset: int, into: Bytes) -> None:
        done = 0
        while done < len(into):
            got = _read(self._path, self._file, into[done:], offset + done)
            if not got:
                raise _short(self._path, offset, len(into), done)
            done += got

    def close(self) -> None:
        os.close(self._file)


class DirectReader:
    """Reads past the page cache (O_DIRECT) into an aligned buffer of its own, and copies on."""

    def __init__(self, path: Path, piece_bytes: int) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be read past the page cache ({error.strerror}): this file system"
                " has no O_DIRECT; set engine.source=buffered, or engine.store_dir to a folder on"
                " a disk"
            ) from None
        self._mapping = mmap.mmap(-1, _up(piece_bytes) + 2 * ALIGNMENT)
        self._buffer: Any = np.frombuffer(self._mapping, np.uint8)

    def read(self, offset: int, into: Bytes) -> None:
        step = len(self._buffer) - 2 * ALIGNMENT
        for done in range(0, len(into), step):
            self._read_piece(offset + done, into[done : done + step])

    def _read_piece(self, offset: int, into: Bytes) -> None:
        begin = offset // ALIGNMENT * ALIGNMENT
        wanted, skipped = _up(offset + len(into) - begin), offset - begin
        got = 0
        while got < skipped + len(into):
            more = _read(self._path, self._file, self._buffer[got:wanted], begin + got)
            # A read that ends off the alignment has met the end of the file.
            if not more or ((got + more) % ALIGNMENT and got + more < skipped + len(into)):
                raise _short(self._path, offset, len(into), max(0, got + more - skipped))
            got += more
        np.copyto(into, self._buffer[skipped : skipped + len(into)])

    def close(self) -> None:
        os.close(self._file)


class MappedReader:
    """Reads by touching pages of a mapping, as llama.cpp does: those not cached are faulted in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDONLY)
        # A private mapping can be written, which torch asks of memory; nobody writes.
        self._mapping = mmap.mmap(self._file, 0, access=mmap.ACCESS_COPY)
        self.bytes: Any = np.frombuffer(self._mapping, np.uint8)

    def read(self, offset: int, into: Bytes) -> None:
        self.check(offset, len(into))
        np.copyto(into, self.bytes[offset : offset + len(into)])

    def check(self, offset: int, count: int) -> None:
        """Raise StoreError if the file has become too short.

        Touching pages that the file has lost would end the process.
        """
        size = os.fstat(self._file).st_size
        if size < offset + count:
            raise _short(self._path, offset, count, max(0, size - offset))

    def close(self) -> None:
        self.bytes = None
        # An array that still looks at the mapping keeps it open.
        with suppress(BufferError):
            self._mapping.close()
        os.close(self._file)


class RamReader:
    """Copies from the file's bytes in memory."""

    def __init__(self, content: Bytes) -> None:
        self.bytes = content

    def read(self, offset: int, into: Bytes) -> None:
        np.copyto(into, self.bytes[offset : offset + len(into)])

    def close(self) -> None: ...


def read_whole(path: Path, size: int) -> Bytes:
    """The first ``size`` bytes of a file, in memory. Raise StoreError if it is shorter."""
    content = np.empty(size, np.uint8)
    reader = BufferedReader(path)
    try:
        reader.read(0, content)
    finally:
        reader.close()
    return content


def drop_cached(path: Path) -> None:
    """Ask the kernel to drop what it has cached of a file."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _read(path: Path, file: int, into: Bytes, offset: int) -> int:
    try:
        return os.preadv(file, [into], offset)  # type: ignore[list-item]  # numpy arrays are buffers
    except OSError as error:
        raise StoreError(f"{path} cannot be read at byte {offset}: {error.strerror}") from error


def _short(path: Path, offset: int, count: int, got: int) -> StoreError:
    return StoreError(
        f"{path} ends within what is read: {got} of {count} bytes at {offset}; it was cut while the"
        " run was reading it: delete it, and run again"
    )


def _up(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
