"""How files are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polars.exceptions import PolarsError


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as JSON, a value a line."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@contextmanager
def writing_table(path: Path) -> Iterator[None]:
    """Raise OSError where polars cannot write a table into ``path``, as on a full disk: of that it
    makes an error of its own.
    """
    try:
        yield
    except PolarsError as error:
        if "os error" not in str(error):
            raise
        raise OSError(f"{path} cannot be written ({error})") from error
