"""Files that people read."""

from __future__ import annotations

from pathlib import Path

from sim.process.files import write_json


def test_a_json_file_has_a_value_a_line_and_ends_with_a_line(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [1, None], "b": "c"})
    told = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert told == '{\n "a": [\n  1,\n  null\n ],\n "b": "c"\n}\n'
