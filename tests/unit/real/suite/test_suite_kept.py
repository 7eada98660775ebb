"""Files of a suite that were damaged are told by file and key, before a machine is made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from real.suite.kept import FACTS, memory_gib, of_suite, replays, rows_of_suite
from real.suite.prediction import noise_of

DONE = {"cell": "lru 0.25", "result": {"tpot_s": {"mean": 0.5}}}
LEFT = {"cell": "floe zero_copy 0.4", "status": "failed"}


def written(folder: Path, name: str, content: Any) -> Path:
    place = folder / "suite" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return folder


def test_whole_files_are_read_as_they_are_and_absent_ones_have_no_rows(tmp_path: Path) -> None:
    assert replays(tmp_path) == []
    assert noise_of(tmp_path) == 0
    assert memory_gib(tmp_path) is None
    assert replays(written(tmp_path, "replay.json", {"rows": [DONE, LEFT]})) == [DONE, LEFT]
    written(tmp_path, "validation/validation.json", {"cases": [{"noise": 0.1}, {"noise": 0.25}]})
    assert noise_of(tmp_path) == 0.25
    assert memory_gib(written(tmp_path, "hardware/a.yaml", "memory_gib: 24\n")) == 24
    facts = {"gpu": "a", "processor": "b", "date": "c", "gather": []}
    assert of_suite(written(tmp_path, "facts.json", facts), "facts.json", FACTS) == facts


@pytest.mark.parametrize(
    ("name", "content", "read", "told"),
    [
        ("replay.json", "{", replays, "replay.json is no JSON ("),
        ("replay.json", [], replays, "replay.json lacks rows"),
        ("replay.json", {"rows": {}}, replays, "replay.json has rows={}, which must be a list"),
        ("replay.json", {"rows": [DONE, 3]}, replays, "replay.json: rows 1 lacks cell"),
        ("replay.json", {"rows": [{"cell": "lru"}]}, replays, "must be a system and a share"),
        ("replay.json", {"rows": [{"cell": "lru 7"}]}, replays, "must be a system and a share"),
        ("replay.json", {"rows": [{"cell": "lru 0.5"}]}, replays, "lru 0.5 lacks status"),
        (
            "replay.json",
            {"rows": [{**DONE, "result": {"tpot_s": {"mean": None}}}]},
            replays,
            "lru 0.25 has result.tpot_s.mean=null, which must be a number above 0",
        ),
        ("validation/validation.json", {"cases": [{"noise": "x"}]}, noise_of, "cases 0 has noise"),
        ("hardware/a.yaml", "x: [", memory_gib, "a.yaml has no memory_gib ("),
        ("hardware/a.yaml", "- 1", memory_gib, "a.yaml has no memory_gib ("),
    ],
)
def test_a_file_that_was_changed_is_told_with_the_key(
    name: str, content: Any, read: Callable[[Path], Any], told: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, name, content)
    with pytest.raises(ValueError, match=re.escape(told)) as refused:
        read(folder)
    assert str(refused.value).startswith(f"{tmp_path}/suite/{name}")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_needed_and_not_there_is_told_with_what_leaves_it(tmp_path: Path) -> None:
    told = (
        rf"^{tmp_path}/suite/facts.json cannot be read \(No such file or directory\): name a folder"
    )
    with pytest.raises(ValueError, match=told):
        of_suite(tmp_path, "facts.json", FACTS)
    assert rows_of_suite(tmp_path, "facts.json", "gather", {}) == []
