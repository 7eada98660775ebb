"""Every module that can be typed ends alike: it gives all its words on, and its status back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sim.values.places import ROOT

GUARD = 'if __name__ == "__main__":\n'
CALLS = (
    "    sys.exit(main(sys.argv[1:]))\n",
    "    sys.exit(main())\n",
    "    main()\n",
    "    sys.exit(_command())\n",
)
TYPED = sorted(
    path
    for package in ("sim", "capture", "real")
    for path in (ROOT / package).rglob("*.py")
    if GUARD in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize(
    "path", TYPED, ids=lambda path: ".".join(path.relative_to(ROOT).with_suffix("").parts)
)
def test_a_command_gives_its_words_on_and_leaves_with_its_status(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    last = text[text.index(GUARD) + len(GUARD) :].splitlines(keepends=True)[-1]
    assert last in CALLS
    if (
        "def main(words: Sequence[str]) ->" in text
        or "def main(arguments: Sequence[str]) ->" in text
    ):
        assert last == CALLS[0]


@pytest.mark.thorough
def test_folders_are_printed_as_they_are_named() -> None:
    """Rich takes ``[x]`` in what it prints for markup, and leaves it out."""
    wrong = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for package in ("sim", "capture", "real")
        for path in (ROOT / package).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "print"
        and "files: " in ast.unparse(call)
        and not any(word.arg == "markup" for word in call.keywords)
    ]
    assert wrong == []


@pytest.mark.thorough
def test_tables_are_read_from_folders_as_they_are_named() -> None:
    """Polars takes ``[x]`` in a path for a pattern, and finds no file."""
    wrong = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for package in ("sim", "capture", "real")
        for path in (ROOT / package).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("pl.read_parquet", "pl.scan_parquet")
        and "BytesIO" not in ast.unparse(call)
        and not any(word.arg == "glob" for word in call.keywords)
    ]
    assert wrong == []
