"""The documentation site's view of the repository: the README is its first page, notebooks are
pages too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> Files:
    """Notebooks stand beside ``docs/`` in the repository, below it on the site."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(
            File(
                f"notebooks/{path.name}",
                str(ROOT),
                config["site_dir"],
                config["use_directory_urls"],
            )
        )
    return files


def on_page_read_source(page: Any, config: Any) -> str | None:
    """The first page is the README, whose links start at the repository's root."""
    if page.file.src_uri != "index.md":
        return None
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/", "](", text)
