"""How files are written."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polars.exceptions import PolarsError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a full share of one, and a file that is larger than files may be."""
OF_DISK = ("os error", "transport error")
"""What polars' errors have in them where a file cannot be written."""


class NotWrittenError(OSError):
    """A file or folder cannot be written; the message says which."""


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as JSON, a value a line."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `NotWrittenError` where the disk has no room for what is written into the file or
    folder ``path``: Python's error names no file then, and polars makes one of its own.
    """
    try:
        yield
    except NotWrittenError:
        raise
    except (OSError, PolarsError) as error:
        is_full = isinstance(error, OSError) and error.errno in NO_ROOM and error.filename is None
        if not is_full and not any(word in str(error) for word in OF_DISK):
            raise
        raise NotWrittenError(f"{path} cannot be written ({error})") from error
