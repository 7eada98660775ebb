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
from sim.setup.configure import changes, configure, system_name
from sim.setup.execute import execute
from sim.setup.sections import make_object
from sim.values.places import CONF, ROOT

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


def test_a_file_that_starts_from_itself_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/mine.yaml").write_text("defaults: [mine]\n", encoding="utf-8")
    words = (f"hydra.searchpath=[{tmp_path}]", "cache=mine")
    with pytest.raises(ValueError, match=r"cache=mine: a file that these words choose starts from"):
        configure(*words)


def test_composing_inside_a_hydra_application_leaves_its_state_alone() -> None:
    before = GlobalHydra.instance().hydra
    mark = object()
    GlobalHydra.instance().hydra = mark  # type: ignore[assignment]
    try:
        configure("system=lru")
        assert GlobalHydra.instance().hydra is mark
    finally:
        GlobalHydra.instance().hydra = before


def of_any_keys(**values: int) -> str:
    return json.dumps(**values)  # type: ignore[arg-type]


def test_a_target_of_any_keys_says_itself_what_it_does_not_take() -> None:
    target = {"_target_": f"{__name__}.of_any_keys", "obj": 1}
    assert make_object(target) == "1"
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        make_object({**target, "colour": 2})


def test_a_run_is_named_by_its_system_and_every_mechanism_that_was_replaced() -> None:
    words = ["system=lru", "+cache.x=1", "cache@y=lfu", "~loader.z", "trace=t", "ram_cache=lru"]
    replaced = "+cache.x=1 cache@y=lfu ~loader.z ram_cache=lru"
    assert system_name("lru", words) == f"lru {replaced}"
    assert system_name(None, ["seed=1"]) == "custom"
    twice = ["cache=lfu", "precision=int4", "cache=sieve", "cache.weights.lru=1"]
    assert system_name("lru", twice) == "lru precision=int4 cache=sieve cache.weights.lru=1"


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["system=lru", "cache=lfu", "seed=1", "budget=fit"], []),
        # What the default trace's file says, and what it does not.
        (["trace.split=eval"], []),
        (["trace.split=fit"], ["trace.split=fit"]),
        (["+trace.split=eval"], ["+trace.split=eval"]),
        (["~trace.split"], ["~trace.split"]),
        (["trace.split=fit", "trace.split=eval"], []),
        (["trace.split=eval", "model=m", "trace.split=fit"], ["model=m", "trace.split=fit"]),
        (["trace.exclude=[]", "trace.split.x=eval"], ["trace.exclude=[]", "trace.split.x=eval"]),
        # A choice is told even where it is the default's, and its own file counts.
        (["trace=of_model", "trace.split=eval"], ["trace=of_model"]),
        (
            ["workload=static_4", "workload.together=1"],
            ["workload=static_4", "workload.together=1"],
        ),
        (["workload=static_4", "workload.together=4"], ["workload=static_4"]),
        (["workload.together=1"], []),
        # Of a file of one's own nothing is known.
        (["trace=mine", "trace.split=eval"], ["trace=mine", "trace.split=eval"]),
        (["devices=layers_2", "hardware=h"], ["devices=layers_2", "hardware=h"]),
    ],
)
def test_only_what_surrounds_a_system_and_is_not_so_anyway_is_a_change(
    words: list[str], changed: list[str]
) -> None:
    assert changes(words) == changed


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.filterwarnings("ignore:provider=hydra.searchpath")
def test_a_folder_of_own_files_that_is_not_there_is_refused(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    configure("system=lru", f"hydra.searchpath=[{scheme}{tmp_path}/mine,pkg://sim]")
    with pytest.raises(
        ValueError, match=rf"searchpath=.*: {tmp_path}/yours is no folder .*whole path"
    ):
        configure("system=lru", f"hydra.searchpath=[{scheme}{tmp_path}/yours]")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_of_ones_own_that_one_of_conf_hides_is_refused(scheme: str, tmp_path: Path) -> None:
    """Hydra looks in ``conf/`` first, so what was changed in a copy would change nothing."""
    shipped = CONF / "hardware" / "rtx4090_pcie4.yaml"
    own = tmp_path / "hardware" / shipped.name
    own.parent.mkdir()
    own.write_bytes(shipped.read_bytes())
    words = "system=lru", f"hydra.searchpath=[{scheme}{tmp_path}]"
    configure(*words)  # a copy that is not changed says the same
    own.write_text(shipped.read_text().replace("31.5", "3.15"), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"is not read: conf/hardware/rtx4090_pcie4\.yaml has the same"
    ):
        configure(*words)
    done = subprocess.run(
        [sys.executable, "-m", "sim", *words, f"output_dir={tmp_path}/run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {own} is not read: conf/hardware/rtx4090_pcie4.yaml")
    configure("hardware=gb10", *words)
    own.rename(own.with_name("mine.yaml"))
    assert configure("hardware=mine", *words)[0].hardware.links.pcie.peak_gb_per_s == 3.15


def test_of_two_files_of_ones_own_by_one_name_the_hidden_one_is_told(tmp_path: Path) -> None:
    """A policy ran under the name of another, with nothing that said so."""
    for folder, target in (("one", "LRU"), ("two", "FIFO")):
        (tmp_path / folder / "cache").mkdir(parents=True)
        text = f"_target_: sim.policies.{target}\n"
        (tmp_path / folder / "cache" / "mine.yaml").write_text(text, encoding="utf-8")
    found = f"hydra.searchpath=[{tmp_path}/one,{tmp_path}/two]"
    told = rf"two/cache/mine\.yaml is not read: {tmp_path}/one/cache/mine\.yaml has the same name"
    with pytest.raises(ValueError, match=told):
        configure("system=lru", "cache=mine", found)
    configure("system=lru", found)  # who does not choose it is not concerned
