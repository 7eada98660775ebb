"""The documentation site's view of the repository: the README is its first page, notebooks and
the generated reference are pages too, and words of the glossary are links.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from site_glossary import anchored, linked  # noqa: E402
from site_reference import PAGES  # noqa: E402


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
    for name, text in generated().items():
        files.append(File.generated(config, name, content=text))
    return files


@cache
def generated() -> dict[str, str]:
    """Pages that do not lie in ``docs/``, by name. They are made once, however often the site is."""
    return {
        "contributing.md": from_root("CONTRIBUTING.md"),
        **{name: make() for name, make in PAGES.items()},
    }


def from_root(name: str) -> str:
    """A page of the repository's root, with its links as they are on the site."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/", "](", text).replace("](CONTRIBUTING.md)", "](contributing.md)")


def on_page_read_source(page: Any, config: Any) -> str | None:
    """The first page is the README, whose links start at the repository's root."""
    return from_root("README.md") if page.file.src_uri == "index.md" else None


def on_page_markdown(text: str, page: Any, config: Any, files: Files) -> str:
    """Each word of the glossary is a link where a page first has it."""
    name = page.file.src_uri
    if name.endswith(".ipynb"):
        return text
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    if name == "glossary.md":
        return anchored(text)
    return linked(text, glossary, "../" * name.count("/") + "glossary.md")
