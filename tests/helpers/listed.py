"""What a folder has in it."""

from __future__ import annotations

from pathlib import Path


def names(folder: Path) -> list[str]:
    """All files and folders below one, by their paths in it, sorted."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
