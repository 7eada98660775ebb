"""Rows of quality.json are of the shape that a measurement writes, or are told by row and key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sim.pareto import main
from sim.results.kept_quality import LATER, ROW, read_qualities

WHOLE: dict[str, Any] = {
    **dict.fromkeys(("system", "trace", "model", "hardware", "loop"), "x"),
    "resident_share": 0.5,
    "decode_tokens_per_s": 2.0,
    "decode_tokens_per_s_low": None,
    "decode_tokens_per_s_high": None,
    **{f"{of}{end}": 0.1 for of in ("divergence", "increase") for end in ("", "_low", "_high")},
    "labels": {},
    "work": {},
}


def written(folder: Path, *rows: Any, **more: Any) -> Path:
    (folder / "quality.json").write_text(json.dumps({"rows": rows, **more}), encoding="utf-8")
    return folder


def test_whole_rows_are_read_as_they_are(tmp_path: Path) -> None:
    unknown = {**WHOLE, "divergence": float("nan"), "divergence_low": None}
    found = read_qualities(written(tmp_path, WHOLE, unknown, schema=1))
    assert json.dumps(found) == json.dumps([WHOLE, unknown])
    early = {key: value for key, value in WHOLE.items() if key not in LATER}
    assert read_qualities(written(tmp_path, early)) == [early]


@pytest.mark.parametrize("key", ROW)
def test_a_key_that_lacks_or_is_of_another_kind_is_told(key: str, tmp_path: Path) -> None:
    at = re.escape(f"{tmp_path}/quality.json: row 1")
    lacking = {name: value for name, value in WHOLE.items() if name != key}
    with pytest.raises(ValueError, match=f"^{at} lacks {key}: it was changed"):
        read_qualities(written(tmp_path, WHOLE, lacking))
    with pytest.raises(ValueError, match=rf"^{at} has {key}=\[\], which must be "):
        read_qualities(written(tmp_path, WHOLE, {**WHOLE, key: []}))


@pytest.mark.parametrize("key", LATER)
def test_what_earlier_versions_lack_is_checked_where_it_is(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"row 0 has {key}=3, which must be values by name"):
        read_qualities(written(tmp_path, {**WHOLE, key: 3}))


@pytest.mark.parametrize(
    "text", ["", "[1]", "{}", '{"rows": 3}', '{"rows": []}', "[" * 99_999, "\xff"]
)
def test_a_file_that_no_measurement_wrote_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quality.json").write_text(text, encoding="latin-1")
    assert main([str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"pareto: {tmp_path}/quality.json ")
    assert told.count("\n") == 1


def test_a_row_that_is_no_section_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"row 0 lacks system: it was changed"):
        read_qualities(written(tmp_path, "x"))
