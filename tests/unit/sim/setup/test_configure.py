"""Configurations composed from Python are those of the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute
from sim.setup.sections import make_object

OVERRIDES = (
    "system=hobbit",
    "precision=fp16",
    "cache=lfu",
    "budget.resident_share=0.25",
    "trace.max_sequences=1",
)


@pytest.mark.thorough
def test_a_run_from_python_has_the_summary_of_the_command_line(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "sim", *OVERRIDES, "outputs=summary", f"output_dir={tmp_path}/run"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=120,
    )
    printed = json.loads((tmp_path / "run" / "summary.json").read_text())
    ours = execute(build(*configure(*OVERRIDES))).summary
    assert ours["system"] == "hobbit precision=fp16 cache=lfu"
    assert printed["overrides"] == ["trace.max_sequences=1"]
    assert {**printed, "wall_s": None, "overrides": []} == {
        **json.loads(json.dumps(ours)),
        "wall_s": None,
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("system=nonesuch", "In 'config': Could not find 'system/nonesuch'"),
        ("cache=", "In 'config': Could not find 'cache/'"),
        ("cache.x=1", "Could not override 'cache.x'. To append to your config use +cache.x=1"),
        ("cache.shares=[0.5", "no viable alternative at input '[0.5'"),
        ("lru", "Error parsing override 'lru' missing EQUAL at '<EOF>'"),
        ("experiment=[nonesuch]", "In 'config': Could not load 'experiment/nonesuch'."),
    ],
)
def test_what_hydra_refuses_is_told_in_one_line(words: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        configure(words)


def test_composing_inside_a_hydra_application_leaves_its_state_alone() -> None:
    before = GlobalHydra.instance().hydra
    mark = object()
    GlobalHydra.instance().hydra = mark  # type: ignore[assignment]
    try:
        configure("system=lru")
        assert GlobalHydra.instance().hydra is mark
    finally:
        GlobalHydra.instance().hydra = before


def test_a_target_of_any_keys_says_itself_what_it_does_not_take() -> None:
    assert make_object({"_target_": "json.dumps", "obj": 1}) == "1"
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        make_object({"_target_": "json.dumps", "obj": 1, "colour": 2})
