"""The examples in docstrings and documentation say what the program says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from sim.values.places import ROOT

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("sim", "capture", "real")
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
PAGES = sorted(
    path
    for folder in (".", "docs")
    for path in (ROOT / folder).glob("*.md")
    if ">>> " in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert results.attempted
    assert not results.failed


@pytest.mark.alike
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_hold(page: Path) -> None:
    results = doctest.testfile(str(page), module_relative=False, optionflags=OPTIONS)
    assert results.attempted
    assert not results.failed
