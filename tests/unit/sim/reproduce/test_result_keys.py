"""What the key of a kept result covers.

A change that matters is never missed; one that does not matter costs no run.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from sim.reproduce import keys
from sim.reproduce.arms import Arm, Job, composed
from sim.reproduce.experiments import Runner
from sim.reproduce.keys import narrow_key
from sim.reproduce.roles import load_paper
from sim.study.cells import make_cell
from sim.study.plan import Plan
from sim.values import code as codes
from sim.values.code import Code
from sim.values.places import ROOT

FILES = {
    "house/__init__.py": '"""A house."""\n',
    "house/run.py": (
        "from house import floor\nimport house.far.door\n\ndef go():\n    from .cellar import"
        " wine\n"
    ),
    "house/floor.py": "HEIGHT = 3  # in m\n",
    "house/cellar.py": "wine = 1\n",
    "house/far/__init__.py": "",
    "house/far/door.py": "from ..garden import tree\n",
    "house/garden.py": "tree = 2\n",
    "house/attic.py": "dust = 1\n",
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_module_reaches_what_it_imports_at_any_remove_in_functions_and_by_relative_names(
    house: Path,
) -> None:
    assert Code(house).reached(["house.run"]) == {
        "house",
        "house.run",
        "house.floor",
        "house.far",
        "house.far.door",
        "house.garden",
        "house.cellar",
    }
    with pytest.raises(ValueError, match=r"no modules below .*: house\.roof"):
        Code(house).reached(["house.roof"])


# Contracts: C138
@pytest.mark.parametrize(
    "name", ["house/floor.py", "house/garden.py", "house/cellar.py", "house/far/__init__.py"]
)
def test_a_change_of_code_that_is_reached_changes_the_digest(house: Path, name: str) -> None:
    before = Code(house).digest("house.run")
    (house / name).write_text(FILES[name] + "\nmore = 1\n")
    assert Code(house).digest("house.run") != before


def test_comments_docstrings_layout_and_what_is_not_reached_do_not_count(house: Path) -> None:
    before = Code(house).digest("house.run")
    (house / "house/floor.py").write_text(
        '"""How high."""\nHEIGHT = (\n    3\n)\n"""In metres."""\n'
    )
    (house / "house/attic.py").write_text("dust = 2\n")
    (house / "house/run.py").write_text(
        FILES["house/run.py"].replace("def go():", 'def go():\n    """Go."""')
    )
    assert Code(house).digest("house.run") == before


def leaves(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    return [place for name, value in items for place in leaves(value, (*path, name))] or [path]


# Contracts: C138
def test_every_value_of_a_configuration_is_in_the_key_but_where_things_lie() -> None:
    config = make_cell(
        Plan("x", base=("system=hobbit", "model=mixtral_8x7b", "trace.path=/a")), {}
    ).config

    def key(
        one: dict[str, Any], trace: str = "t", timing: object = None, fit: str | None = None
    ) -> str:
        return narrow_key("sim.reproduce.measured", one, trace, timing, fit)

    free = {("output_dir",), ("outputs",), ("bounds",), ("timeline_steps",), ("trace", "path")}
    for place in leaves(config):
        if "_target_" in place:
            continue
        changed = deepcopy(config)
        node = changed
        for name in place[:-1]:
            node = node[name]
        node[place[-1]] = "another"
        assert (key(changed) == key(config)) == (place in free), place
    other_class = deepcopy(config)
    other_class["cache"]["_target_"] = "sim.reproduce.always_wrong.AlwaysWrong"
    others = [key(other_class), key(config, trace="u"), key(config, timing=1), key(config, fit="f")]
    assert len({key(config), *others}) == 5


BARE = """
import importlib, sys, types

class Bare(types.ModuleType):
    def __getattr__(self, name):
        if name not in self.EXPORTS:
            raise AttributeError(name)
        return getattr(importlib.import_module(self.EXPORTS[name]), name)

for package, exports in json.loads(sys.argv[1]).items():
    sys.modules[package] = bare = Bare(package)
    bare.EXPORTS, bare.__path__ = exports, [package.replace(".", "/")]
"""
"""Packages that only export names load a module when it is asked for, not all of them."""


def test_all_code_that_a_run_loads_is_in_its_key(tmp_path: Path) -> None:
    """The key covers every module of the project that python has loaded after a run."""
    paper = load_paper("hobbit")
    trace = Runner(tmp_path, 1).trace_dir(paper, "tiny_mixtral")
    words = (
        "model=tiny_gates_half_mixtral",
        "system=hobbit",
        "hardware=rtx4090_hobbit",
        "trace.max_sequences=1",
        "workload.decode_tokens=2",
        "predictor=always_wrong",
        "predictor.recall=0.5",
    )
    config, fit = composed(Job(Arm(words, "tiny_mixtral"), trace, "", {}, None))
    assert fit is None
    program = (
        f"import json, sys{BARE}from pathlib import Path\nfrom sim.reproduce.measured import measure\n"
        f"measure(json.loads({json.dumps(config)!r}), Path({str(trace)!r}),"
        " None)\nprint(json.dumps([name for name in sys.modules if name.split('.')[0] in ('sim',"
        " 'capture', 'real')]))"
    )
    exports = {
        name: codes.OWN.exports(name) for name in ("sim.policies", "sim.machine", "sim.core")
    }
    assert all(exports.values())
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(exports)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(json.loads(done.stdout)) - exports.keys()
    assert {"sim.engine.engine", "sim.reproduce.always_wrong"} <= loaded
    assert loaded <= codes.OWN.reached(["sim.reproduce.measured", *codes.target_modules(config)])


def test_what_composes_to_the_same_run_is_not_run_again_and_a_lost_result_is(
    tmp_path: Path,
) -> None:
    paper = load_paper("hobbit")
    paper = replace(paper, traces={"tiny_mixtral": paper.traces["tiny_mixtral"]})
    arm = Arm(
        (
            "model=tiny_gates_half_mixtral",
            "system=lru",
            "trace.max_sequences=1",
            "workload.decode_tokens=2",
        ),
        "tiny_mixtral",
    )
    same = Arm((*arm.words, "cache=lru"), "tiny_mixtral")

    def runs(one: Arm) -> tuple[int, Any]:
        runner = Runner(tmp_path, processes=1)
        found = runner.results(paper, [one], lambda done, total: None)[one]
        return runner.started, found

    started, first = runs(arm)
    assert (started, runs(arm), runs(same)) == (1, (0, first), (0, first))
    rmtree(tmp_path / "known")
    assert runs(arm) == (0, first), "composed anew, and found"
    rmtree(tmp_path / "runs")
    assert runs(arm) == (1, first)


# ---- by hand


def test_a_digest_is_of_parts_in_order_and_one_of_files_of_names_sizes_and_bytes(
    tmp_path: Path,
) -> None:
    """The first 24 digits of the sha256 of ``[1, {"a": 2, "b": 1}]``."""
    told = b'[1, {"a": 2, "b": 1}]'
    assert codes.digest(1, {"b": 1, "a": 2}) == hashlib.sha256(told).hexdigest()[:24]
    (tmp_path / "b").write_bytes(b"xyz")
    (tmp_path / "a").write_bytes(b"")
    found = codes.files_digest([tmp_path / "b", tmp_path / "a"])
    assert found == hashlib.sha256(b"a 0 b 3 xyz").hexdigest()[:24]
    assert re.fullmatch(r"python 3\.\d+ numpy [\d.]+ polars [\d.]+ simpy [\d.]+", codes.versions())
    assert codes.versions().startswith(f"python {sys.version_info[0]}.{sys.version_info[1]} ")


EXPORTS = {
    "shop/__init__.py": (
        '"""A shop."""\nfrom shop.bread import Loaf, Roll\nfrom shop.tea import Tea\n'
        '__all__ = ["Loaf"]\n'
    ),
    "shop/bread.py": "import os\nimport shop.flour as flour\nLoaf = Roll = 1\n",
    "shop/flour.py": "",
    "shop/tea.py": "Tea = 1\n",
    "busy/__init__.py": "from shop.tea import Tea\nx = 1\n",
    "near/__init__.py": "from .own import One\n",
    "near/own.py": "from shop import Tea\nOne = 1\n",
    "till.py": "from shop import Loaf\nfrom busy import Tea\n",
}


def test_a_package_that_only_exports_leads_to_the_modules_behind_its_names(tmp_path: Path) -> None:
    for name, text in EXPORTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code = Code(tmp_path)
    assert code.exports("shop") == {"Loaf": "shop.bread", "Roll": "shop.bread", "Tea": "shop.tea"}
    for name in ("busy", "near", "till", "shop.bread", "nowhere"):
        assert code.exports(name) == {}, name
    assert code.reached(["till"]) == {"till", "shop.bread", "shop.flour", "busy", "shop.tea"}
    assert code.reached(["near.own"]) == {"near", "near.own", "shop.tea"}
    assert {name: code.module_of(name) for name in ("shop.Roll", "shop.tea.Tea", "busy.Tea")} == {
        "shop.Roll": "shop.bread",
        "shop.tea.Tea": "shop.tea",
        "busy.Tea": "busy",
    }
    assert (code.module_of("shop.tea"), code.module_of("shop.other")) == ("shop.tea", "shop")
    assert (code.has("shop.any.thing"), code.has("till"), code.has("os.path")) == (
        True,
        True,
        False,
    )
    parts = [(name, code.own_digest(name)) for name in ("busy", "near")]
    assert code.digest("near", "busy") != code.digest("near")
    assert len({digest for _, digest in parts}) == 2


def test_classes_are_found_at_any_depth_and_those_of_others_by_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_somebody.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    config = {
        "_target_": "sim.policies.LRU",
        "a": [{"_target_": "of_somebody.Cache"}, ({"_target_": "gone.away.Cache"}, 3)],
        "b": {"c": {"_target_": "builtins.dict"}, "d": "sim.x"},
    }
    names = {"sim.policies.LRU", "of_somebody.Cache", "gone.away.Cache", "builtins.dict"}
    assert codes.targets(config) == names
    assert codes.target_modules(config) == {"sim.policies.recency"}
    found = codes.foreign_files(config)
    assert found == [tmp_path / "of_somebody.py"], "what is built in or gone has no file to read"


def test_a_class_of_somebodys_package_brings_the_modules_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "of_a_group/__init__.py": "from of_a_group.inner.cache import Cache\n",
        "of_a_group/inner/cache.py": "import numpy\nfrom ..score import worth\nimport beside_it\n",
        "of_a_group/score.py": "worth = 1\n",
        "of_a_group/other.py": "",
        "beside_it.py": "",
        "not_reached.py": "",
        "without_init/deep.py": "class Cache: ...\n",
        "of_a_slip.py": "class Cache(\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def found(target: str) -> set[str]:
        paths = codes.foreign_files({"cache": {"_target_": target}})
        return {str(path.relative_to(tmp_path)) for path in paths}

    reached = {"of_a_group/inner/cache.py", "of_a_group/score.py", "beside_it.py"}
    assert found("of_a_group.Cache") == reached
    assert found("of_a_group.inner.cache.Cache") == reached
    assert found("without_init.deep.Cache") == {"without_init/deep.py"}
    assert found("of_a_slip.Cache") == {"of_a_slip.py"}, "its run says what is wrong with it"


def test_the_wide_key_is_of_words_trace_timing_fits_and_all_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "wide_sources", lambda: "all")
    assert keys.wide_key(("a=1",), "t", None, ["f"]) == codes.digest(
        ["a=1"], "t", None, ["f"], "all"
    )


def test_sources_are_all_of_the_simulator_and_of_this_package_what_its_runs_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(codes.OWN, "own_digest", lambda name: name)
    monkeypatch.setattr(codes.OWN, "reached", set)
    monkeypatch.setattr(keys, "digest", lambda *parts: told.append(parts) or "digest")
    monkeypatch.setattr(keys, "files_digest", lambda files: sorted(path.name for path in files))
    assert keys.wide_sources.__wrapped__() == "digest"
    ((versions, code, files),) = told
    assert versions == codes.versions()
    names = [name for name, _ in code]
    assert [digest for _, digest in code] == names == sorted(names)
    assert {"sim.engine.engine", "sim.report"} <= {*names}
    reached = {"sim.reproduce.arms", "sim.reproduce.always_wrong"}
    assert {name for name in names if name.startswith("sim.reproduce.")} == reached
    assert "lru.yaml" in files
