"""The chooser of engines, and that nobody below it knows it."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

import pytest

from differential.features import random_feature
from differential.production import ScenarioDurations, ScenarioWorkload, controller_for
from sim.engine.clock import Clock
from sim.engine.contended import ContendedEngine
from sim.engine.engine import Engine
from sim.engine.simulate import make_engine, simulate
from sim.values.places import ROOT

MODULES = sorted([*(ROOT / "sim/core").glob("*.py"), *(ROOT / "sim/engine").glob("*.py")])


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported(path: Path) -> set[str]:
    """Modules of the core and the engine that a file imports, wherever the import stands."""
    found = {
        node.module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    return found & {module_of(other) for other in MODULES}


@pytest.mark.parametrize(("name", "kind"), [("rivals", ContendedEngine), ("chunks", Engine)])
def test_parties_that_slow_each_other_down_have_an_engine_of_their_own(
    name: str, kind: type[Engine]
) -> None:
    scenario = random_feature(name, 0, ties=False)
    workload = ScenarioWorkload(scenario)
    durations = ScenarioDurations(scenario, workload)
    assert type(make_engine(Clock(), controller_for(scenario), workload, durations)) is kind  # type: ignore[arg-type]


@pytest.mark.parametrize("was_on", [True, False])
def test_a_run_leaves_garbage_collection_as_it_was(was_on: bool) -> None:
    scenario = random_feature("chunks", 0, ties=False)
    workload = ScenarioWorkload(scenario)
    seen: list[bool] = []
    if not was_on:
        gc.disable()
    try:
        simulate(
            controller_for(scenario),
            workload,  # type: ignore[arg-type]
            ScenarioDurations(scenario, workload),  # type: ignore[arg-type]
            lambda step: seen.append(gc.isenabled()),
        )
        assert gc.isenabled() == was_on
    finally:
        gc.enable()
    assert seen
    assert not any(seen)


def test_what_a_long_run_has_made_counts_as_old_and_what_somebody_froze_stays_frozen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sim.process.uncollected.LONG_RUN", 0)
    scenario = random_feature("chunks", 0, ties=False)
    workload = ScenarioWorkload(scenario)

    def generation_of_the_record() -> int:
        record = simulate(
            controller_for(scenario),
            workload,  # type: ignore[arg-type]
            ScenarioDurations(scenario, workload),  # type: ignore[arg-type]
        )
        (found,) = (
            nth for nth in range(3) if any(one is record for one in gc.get_objects(generation=nth))
        )
        return found

    gc.unfreeze()
    try:
        assert generation_of_the_record() == 2
        assert gc.get_freeze_count() == 0
    finally:
        gc.collect()
        gc.freeze()  # as `conftest` has it
    assert generation_of_the_record() < 2
    assert gc.get_freeze_count() > 0


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_the_core_and_the_engine_import_at_the_top_of_a_file(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert all(node in tree.body for node in late)


def test_their_imports_make_no_circle() -> None:
    left = {module_of(path): imported(path) for path in MODULES}
    while left:
        leaves = {name for name, names in left.items() if not names & left.keys()}
        assert leaves, f"a circle among {sorted(left)}"
        left = {name: names for name, names in left.items() if name not in leaves}
