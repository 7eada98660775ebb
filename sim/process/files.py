"""Files that people read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as JSON, a value a line."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
