"""The pages of docs and the README are written in short sentences, and each page is in the site's
navigation once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.site import site_reference
from sim.values.places import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *(DOCS / "contracts").glob("*.md"), ROOT / "README.md"])
MOST_WORDS = 35
CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
ITEM = re.compile(r"(?:[-*>]|\d+\.)\s+(.*)")
NO_PROSE = ("|", "#", "![", "---", ":::")
END = re.compile(r"(?<=[.!?])[\"')*\]]*\s+(?=[\"'(*\[]*[A-Z0-9])")


def blocks(page: str) -> Iterator[str]:
    """Paragraphs and items of lists, each in one line; no code, tables or headings."""
    lines: list[str] = []
    for line in (*CODE.sub("\n", page).splitlines(), ""):
        text = line.strip()
        item = ITEM.match(text)
        if not text or item or text.startswith(NO_PROSE) or line.startswith("    "):
            if lines:
                yield " ".join(lines)
            lines = [item[1]] if item else []
        else:
            lines.append(text)


def sentences(block: str) -> list[str]:
    """Inline code counts as a word, and a link as its text."""
    plain = re.sub(r"`[^`]*`", "Code", block)
    return END.split(re.sub(r"\]\([^)]*\)", "]", plain))


def words(sentence: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


def too_long(page: str) -> list[str]:
    return [
        sentence
        for block in blocks(page)
        for sentence in sentences(block)
        if words(sentence) > MOST_WORDS
    ]


def in_navigation(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from in_navigation(part)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_longer_than_35_words(page: Path) -> None:
    assert too_long(page.read_text("utf-8")) == []


def test_long_sentences_are_found_in_paragraphs_and_lists_and_not_in_code_and_tables() -> None:
    long = "Word " + "word " * (MOST_WORDS - 1) + "end."
    assert too_long(f"A word. {long}") == [long]
    assert too_long(f"- {long}\n- short") == [long]
    assert too_long("word\n" * MOST_WORDS + "`code with words` end.") != []
    assert too_long("word\n" * (MOST_WORDS - 1) + "`code with words`") == []
    assert too_long(f"```\n{long}\n```\n\n| {long} |\n\n    {long}\n\n# {long}") == []


def test_every_page_is_in_the_navigation_once() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    pages |= {"contributing.md", *site_reference.PAGES}
    assert Counter(in_navigation(site["nav"])) == Counter(pages)
