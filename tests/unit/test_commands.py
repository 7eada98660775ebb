"""Every module that can be typed ends alike: it gives all its words on, and its status back."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.values.places import ROOT

GUARD = 'if __name__ == "__main__":\n'
CALLS = (
    "    sys.exit(main(sys.argv[1:]))\n",
    "    sys.exit(main())\n",
    "    main()\n",
    "    sys.exit(_tell_all())\n",
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
