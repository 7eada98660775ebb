"""Reads the rows of ``quality.json`` back: what `moelab quality` and its front measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.results.kept import ABOVE_0, NUMBER, TABLE, TEXT, Kind, Shape, check_shape

FILE = "quality.json"
LOSS = Kind("a number or null", lambda value: value is None or type(value) in (int, float))
"""A loss may be NaN: the model's answer was none."""
ROW: Shape = {
    **dict.fromkeys(("system", "trace", "model", "hardware", "loop"), TEXT),
    "resident_share": ABOVE_0,
    "decode_tokens_per_s": ABOVE_0,
    "decode_tokens_per_s_low": NUMBER.or_null(),
    "decode_tokens_per_s_high": NUMBER.or_null(),
    **{f"{of}{end}": LOSS for of in ("divergence", "increase") for end in ("", "_low", "_high")},
}
LATER: Shape = {"labels": TABLE, "work": TABLE}
"""Keys that earlier versions did not write."""


def read_qualities(folder: Path) -> list[Mapping[str, Any]]:
    """The rows of the file in ``folder``. Raise ValueError, with file, row and key, for what no
    measurement wrote.
    """
    place = folder / FILE
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{place} is no JSON ({error}); run again") from None
    rows = found.get("rows") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{place} has no rows: moelab quality did not write it, or it was changed")
    for number, row in enumerate(rows):
        later = {key: kind for key, kind in LATER.items() if isinstance(row, dict) and key in row}
        check_shape(row, {**ROW, **later}, f"{place}: row {number}")
    return rows
