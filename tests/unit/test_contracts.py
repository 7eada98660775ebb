"""The contracts of docs are numbered, and tests cite the numbers.

A test that holds a contract says so in a comment above it or in its docstring: ``Contracts: C12``.
"""

from __future__ import annotations

import re

from sim.values.places import ROOT

PAGES = sorted([ROOT / "docs" / "design.md", *(ROOT / "docs" / "contracts").glob("*.md")])
PAGES_TEXT = {path.stem: path.read_text("utf-8") for path in PAGES}
HEAD = re.compile(r"^### C(\d+)\. \S", re.MULTILINE)
NUMBER = re.compile(r"\bC(\d+)\b")
CITED_IN = ("sim", "capture", "real", "conf", "docs", "tests")
KINDS = {".py", ".yaml", ".md"}
CITATION = re.compile(r"\b[Cc]ontracts?:? C\d+(?:(?:,| and| to|,\s*and)\s+C\d+)*")
"""``contract C12``, ``contracts C12, C13``, ``Contracts: C12 to C14``."""


def numbers_of(text: str) -> set[int]:
    """Numbers that a text cites.

    >>> sorted(numbers_of("Contracts: C3, C4"))
    [3, 4]
    """
    return {int(n) for cited in CITATION.findall(text) for n in NUMBER.findall(cited)}


def unwrapped(text: str) -> str:
    """A text whose comments and docstrings may be wrapped, in one line."""
    return re.sub(r"\s*\n\s*(?:#\s*)?", " ", text)


def stated() -> list[int]:
    """The numbers of all contracts, page by page in the order of the table on the design page."""
    order = re.findall(r"\]\(contracts/(\w+)\.md\)", PAGES_TEXT["design"])
    names = ["design", *dict.fromkeys(order)]
    assert sorted(names) == sorted(PAGES_TEXT), "every page of contracts stands in the table once"
    return [int(number) for name in names for number in HEAD.findall(PAGES_TEXT[name])]


def test_contracts_are_numbered_in_order_from_1() -> None:
    assert stated() == list(range(1, len(stated()) + 1))


def test_the_table_of_pages_names_the_numbers_of_each() -> None:
    rows = re.findall(
        r"\]\(contracts/(\w+)\.md\) \|[^|]*\| C(\d+) to C(\d+) \|", PAGES_TEXT["design"]
    )
    assert len(rows) == len(PAGES) - 1
    for name, first, last in rows:
        numbers = [int(number) for number in HEAD.findall(PAGES_TEXT[name])]
        assert (numbers[0], numbers[-1]) == (int(first), int(last)), name


def test_every_contract_is_cited_by_a_test_or_says_that_it_has_none() -> None:
    cited: set[int] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name != "test_contracts.py":
            cited |= numbers_of(unwrapped(path.read_text("utf-8")))
    untested = {
        int(block[0])
        for text in PAGES_TEXT.values()
        for block in re.findall(r"^### C(\d+)\.(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
        if "No test yet." in block[1]
    }
    assert set(stated()) - cited == untested


def test_nobody_cites_a_contract_that_there_is_not() -> None:
    known = set(stated())
    wrong = {
        str(path.relative_to(ROOT)): sorted(unknown)
        for folder in CITED_IN
        for path in (ROOT / folder).rglob("*")
        if path.suffix in KINDS and path.name != "test_contracts.py"
        if (unknown := numbers_of(unwrapped(path.read_text("utf-8"))) - known)
    }
    assert not wrong


def test_references_between_contracts_are_to_contracts_that_there_are() -> None:
    known = set(stated())
    for name, text in PAGES_TEXT.items():
        assert {int(number) for number in NUMBER.findall(text)} <= known, name
