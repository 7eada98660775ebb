"""Texts that are kept beside the tests of `tests/golden`, and compared with what is made now.

Numbers may differ by rounding; all else is equal, letter by letter.
``python -m pytest tests/golden --anew`` writes the kept texts anew; read what changed before you
commit it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

KEPT = Path(__file__).parent.parent / "golden"
NUMBER = re.compile(r"(?<![\w#.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
"""No part of a name or of a colour."""
ROUNDING = 1e-5
"""Numbers are kept to six digits."""


def check(place: str, now: str, anew: bool) -> None:
    """Assert that ``now`` is what is kept at ``place``, or with ``anew`` write it there."""
    path = KEPT / place
    if anew:
        path.parent.mkdir(exist_ok=True)
        path.write_text(now, encoding="utf-8")
        return
    kept = path.read_text(encoding="utf-8")
    assert NUMBER.sub("1", now).splitlines() == NUMBER.sub("1", kept).splitlines(), place
    for line, old in zip(now.splitlines(), kept.splitlines(), strict=True):
        found, expected = ([float(one) for one in NUMBER.findall(text)] for text in (line, old))
        assert found == pytest.approx(expected, rel=ROUNDING, abs=1e-9), f"{place}: {line}"
