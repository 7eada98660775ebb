"""The import table of contracts C1, C2, by parsing every file and by what a fresh
interpreter loads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from copy import deepcopy
from typing import Any

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.independence import IndependenceContract
from importlinter.contracts.layers import LayersContract
from importlinter.contracts.protected import ProtectedContract
from importlinter.domain.contract import Contract

from sim.values.places import ROOT

PACKAGES = ("sim", "capture", "real")
KINDS: dict[str, type[Any]] = {
    "layers": LayersContract,
    "forbidden": ForbiddenContract,
    "protected": ProtectedContract,
    "independence": IndependenceContract,
}
WRONG = {
    "real > capture > sim": [("sim.setup.build", "real.driver.loop"), ("capture.lint", "real")],
    "the layers of sim": [
        ("sim.engine.engine", "sim.results.metrics"),
        ("sim.values.units", "sim.process.shared"),
        ("sim.machine.hardware", "sim.workload.steps"),
        ("sim.results.frames", "sim.setup.build"),
        ("sim.answers.whatif", "sim.audit.rules"),
    ],
    "the layers of capture": [("capture.models.discover", "capture.recording.plan")],
    "the layers of real": [("real.store.store", "real.live.live")],
    "sim needs no torch": [("sim.study.worker", "torch"), ("sim.fit", "transformers")],
    "policies and the decision core only decide": [
        ("sim.core.controller", "time"),
        ("sim.policies.recency", "random"),
        ("sim.core.slots", "simpy"),
        ("sim.policies.base", "pandas"),
        ("sim.core.claims", "sim.machine.model"),
        ("sim.policies.recency", "sim.traces.trace"),
        # At one remove, too.
        ("sim.values.units", "datetime"),
    ],
    "configurations are composed from setup upwards": [("sim.results.frames", "hydra")],
    "simpy is the engine's": [("sim.results.frames", "simpy"), ("real.lossy.replay", "simpy")],
    "the audit of a run shares no code with what made it": [
        ("sim.audit.rules", "sim.values.units"),
        ("sim.audit.times", "sim.compare"),
        ("sim.audit.files", "capture.models.discover"),
    ],
    "the two drivers do not know each other": [("real.driver.loop", "sim.engine.stream")],
    "a device's clock is real": [("real.driver.threads", "simpy"), ("real.host.cpu", "sim.engine")],
    "nobody imports a command": [
        ("sim.study.worker", "sim.compare"),
        ("real.validation.cases", "sim.report"),
        ("capture.stats", "capture.lint"),
        ("real.suite.runs", "real.__main__"),
        ("sim.study.worker", "sim.study.__main__"),
    ],
}
"""Imports that each contract must refuse: who imports, and what."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        *PACKAGES,
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )


def contracts() -> dict[str, Contract]:
    """By name, as ``lint-imports`` makes them."""
    told = read_configuration(str(ROOT / "pyproject.toml"))
    return {
        one["name"]: KINDS[one["type"]](one["name"], told["session_options"], one)
        for one in told["contracts_options"]
    }


def is_kept(contract: Contract, graph: grimp.ImportGraph) -> bool:
    kept: bool = contract.check(deepcopy(graph), verbose=False).kept
    return kept


@pytest.mark.parametrize("name", contracts())
def test_every_contract_is_kept(name: str, graph: grimp.ImportGraph) -> None:
    assert is_kept(contracts()[name], graph), "lint-imports tells who imports what"


@pytest.mark.parametrize(
    ("name", "importer", "imported"),
    [(name, *pair) for name, pairs in WRONG.items() for pair in pairs],
    ids=lambda value: str(value).replace(" ", "_"),
)
def test_a_contract_refuses_a_wrong_import(
    name: str, importer: str, imported: str, graph: grimp.ImportGraph
) -> None:
    wrong = deepcopy(graph)
    assert importer in wrong.modules
    if imported not in wrong.modules:
        assert imported.split(".")[0] not in PACKAGES
        wrong.add_module(imported, is_squashed=True)
    assert not wrong.direct_import_exists(importer=importer, imported=imported)
    wrong.add_import(importer=importer, imported=imported, line_number=1, line_contents="planted")
    assert not is_kept(contracts()[name], wrong)


def test_every_contract_has_been_seen_to_refuse() -> None:
    assert set(WRONG) == set(contracts())


def test_every_folder_is_in_a_layer_and_every_file_beside_them_is_a_protected_command() -> None:
    """What a contract does not name, it does not hold."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    options: list[dict[str, Any]] = told["tool"]["importlinter"]["contracts"]
    protected = {
        name
        for one in options
        if one["name"] == "nobody imports a command"
        for name in one["protected_modules"]
    }
    for package in PACKAGES:
        root = ROOT / package
        (layers,) = (one["layers"] for one in options if one.get("containers") == [package])
        named = {name.strip() for layer in layers for name in layer.split("|")}
        assert named == {path.parent.name for path in root.glob("*/__init__.py")}
        commands = {path.stem for path in root.glob("*.py")} - {"__init__"}
        names = {name.removeprefix(f"{package}.") for name in protected if name.startswith(package)}
        assert names - {"*.__main__"} == commands
    inner = {path.relative_to(ROOT).parts[0] for path in ROOT.glob("[scr]*/*/__main__.py")}
    assert {name.split(".")[0] for name in protected if ".*." in name} == inner


# ---- what importing costs


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after a statement."""
    code = (
        f"import json, sys; {statement}; print(json.dumps(sorted({{name.split('.')[0] for name in"
        " sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.alike
@pytest.mark.parametrize(
    ("statement", "never"),
    [
        ("import sim", {"torch", "pandas", "matplotlib", "polars", "numpy", "simpy", "hydra"}),
        (
            "import sim.moelab; sim.moelab.main(['--help'])",
            {"torch", "pandas", "matplotlib", "polars", "numpy", "simpy", "hydra"},
        ),
        ("from sim import run, compare", {"torch", "transformers", "matplotlib", "pandas"}),
        (
            "import sim.policies, sim.policies.pools, sim.core.controller",
            {"simpy", "hydra", "omegaconf", "polars", "pandas", "torch", "matplotlib", "rich"},
        ),
        ("import sim.engine.engine", {"torch", "hydra", "omegaconf", "matplotlib", "pandas"}),
        (
            "import sim.setup.build, sim.setup.execute, sim.results.outputs, sim.__main__",
            {"torch", "transformers", "matplotlib", "pandas"},
        ),
        (
            "import real.driver.loop, real.driver.device",
            {"simpy", "torch", "hydra", "matplotlib", "pandas"},
        ),
        (
            "import real.__main__, real.setup.prepare",
            {"transformers", "matplotlib", "pandas"},
        ),
    ],
    ids=[
        "sim",
        "help of the console script",
        "run and compare",
        "policies and controller",
        "engine",
        "main",
        "real.driver.loop",
        "a replay on a device",
    ],
)
def test_a_fresh_interpreter_loads_no_more_than_it_must(statement: str, never: set[str]) -> None:
    assert loaded_by(statement).isdisjoint(never)


def test_the_formatter_decides_everywhere() -> None:
    """No file asks it to look away; the words are put together so that this one does not, either."""
    asked = tuple(f"fmt: {word}" for word in ("skip", "off"))
    folders = (*PACKAGES, "tests", "notebooks")
    files = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in (".py", ".ipynb")]
    assert len(files) > 500
    told = [
        str(path.relative_to(ROOT))
        for path in files
        if any(words in path.read_text(encoding="utf-8") for words in asked)
    ]
    assert not told
