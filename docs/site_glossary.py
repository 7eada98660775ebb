"""Words of the glossary: a place of its own for each, and a link to it where a page first has it."""

from __future__ import annotations

import re
from collections.abc import Iterator

ROW = re.compile(r"^\| ([^|]+?) \|", re.MULTILINE)
SKIPPED = re.compile(
    r"^```.*?^```$|^#.*?$|^\|.*?$|^ {4}.*?$|^:::.*?$|^---$|<!--.*?-->|`[^`\n]*`|!?\[[^\]]*\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
"""Code, headings, tables, comments and links: what is left alone."""


def words_of(row: str) -> list[str]:
    """The words that a row of the glossary explains."""
    return [word.strip() for word in row.split(",")]


def terms(glossary: str) -> dict[str, str]:
    """The place of each word of the glossary; longer words first."""
    rows = [row for row in ROW.findall(glossary) if row not in ("word", "---")]
    found = {word: anchor(row) for row in rows for word in words_of(row)}
    return dict(sorted(found.items(), key=lambda item: (-len(item[0]), item[0])))


def anchor(row: str) -> str:
    """The name of the place of a row: its first word."""
    return "word-" + re.sub(r"\W+", "-", words_of(row)[0].lower())


def anchored(glossary: str) -> str:
    """The page with a place before each word."""

    def placed(row: re.Match[str]) -> str:
        if row[1] in ("word", "---"):
            return row[0]
        return f'| <a id="{anchor(row[1])}"></a>{row[1]} |'

    return ROW.sub(placed, glossary)


def linked(page: str, glossary: str, target: str) -> str:
    """The page with a link at the first use of each word, in prose only."""
    left = terms(glossary)
    any_term = re.compile(rf"\b({'|'.join(map(re.escape, left))})s?\b", re.IGNORECASE)
    used: set[str] = set()

    def link(word: re.Match[str]) -> str:
        place = left[word[1].lower()]
        if place in used:
            return word[0]
        used.add(place)
        return f"[{word[0]}]({target}#{place})"

    return "".join(
        any_term.sub(link, part) if is_prose else part for is_prose, part in _parts(page)
    )


def _parts(page: str) -> Iterator[tuple[bool, str]]:
    """A page in pieces, with whether each is prose."""
    end = 0
    for found in SKIPPED.finditer(page):
        yield True, page[end : found.start()]
        yield False, found[0]
        end = found.end()
    yield True, page[end:]
