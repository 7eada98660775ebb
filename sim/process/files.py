"""How files are written."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a full share of one, and a file that is larger than files may be."""
OF_DISK = ("os error", "transport error")
"""What polars' errors have in them where a file cannot be written."""


DRAFT = ".draft."
"""What stands behind a name in that of a file or folder in which its content is made."""


class NotWrittenError(OSError):
    """A file or folder cannot be written; the message says which."""


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as JSON, a value a line. Raise `NotWrittenError` where there is no room."""
    text = json.dumps(content, indent=1) + "\n"
    with writing(path):
        path.write_text(text, encoding="utf-8")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `NotWrittenError` where the disk has no room for what is written into the file or
    folder ``path``: Python's error names no file then, and polars makes one of its own.
    """
    try:
        yield
    except NotWrittenError:
        raise
    except _of_writing() as error:
        is_full = isinstance(error, OSError) and error.errno in NO_ROOM and error.filename is None
        if not is_full and not any(word in str(error) for word in OF_DISK):
            raise
        raise NotWrittenError(f"{path} cannot be written ({error})") from error


def _of_writing() -> tuple[type[Exception], ...]:
    """What writing raises. Polars' error is known where polars is in use; some machines have none."""
    polars = sys.modules.get("polars.exceptions")
    return (OSError,) if polars is None else (OSError, polars.PolarsError)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write ``content`` into the file ``path``, whole or not at all: what is there stays until then.

    Raise `NotWrittenError` where there is no room for it.
    """
    place = path.resolve()
    data = content.encode() if isinstance(content, str) else content
    with writing(path):
        if place.exists() and not place.is_file():  # such as /dev/stdout
            place.write_bytes(data)
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        with draft_of(place) as draft:
            draft.write_bytes(data)
            if place.exists():
                shutil.copymode(place, draft)
            os.replace(draft, place)


@contextmanager
def draft_of(place: Path, is_folder: bool = False) -> Iterator[Path]:
    """A new file or folder beside ``place``, in which its content is made; the block renames it.

    What the block leaves is removed when it ends, and what killed processes left before it begins.
    A lock says that the process of a draft still lives.
    """
    for left in place.parent.glob(f".{glob.escape(place.name)}{DRAFT}*"):
        _remove_left(left)
    draft, handle = _held(place, is_folder)
    try:
        yield draft
    finally:
        _remove(draft)
        os.close(handle)


def _held(place: Path, is_folder: bool) -> tuple[Path, int]:
    """A new draft of ``place``, and the file descriptor that has its lock."""
    while True:
        draft = place.with_name(f".{place.name}{DRAFT}{secrets.token_hex(4)}")
        if is_folder:
            draft.mkdir()
        else:
            draft.touch(exist_ok=False)
        # Another process may take it for one that was left, until it is locked.
        with suppress(FileNotFoundError):
            handle = os.open(draft, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if draft.exists():
                return draft, handle
            os.close(handle)


def _remove_left(draft: Path) -> None:
    with suppress(OSError):
        handle = os.open(draft, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(draft)
        finally:
            os.close(handle)


def _remove(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)
