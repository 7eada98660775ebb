"""The import table of contracts C1, C2, by parsing every file and by what a fresh
interpreter loads.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.values.places import ROOT

# units, types <- policies, routing, model, hardware, trace <- controller, workload, metrics <-
# engine | real.driver.loop <- build, __main__. A module may import its own layer and those below.
# The page names the ends of each layer; what stands beside them (costs, slots, loader, ..) is
# placed here by what it is made of.
LAYERS = (
    {"units", "types", "record", "version", "interrupts"},
    {
        "policies",
        "routing",
        "model",
        "hardware",
        "trace",
        "trace_fields",
        "trace_header",
        "trace_rows",
        "trace_prefill",
        "trace_forecasts",
        "trace_checks",
        "trace_storage",
        "trace_parts",
        "residency_log",
        "recorded_bytes",
        "lengths",
        "workload_choice",
        "link_parts",
        "measured",
        "page_cache",
        "contention",
        "hardware_parts",
        "model_config",
        "budget",
        "loader",
        "costs",
        "slots",
        "ram",
        "staging",
        "batching",
        "choices",
        "rerouting",
    },
    {
        "claims",
        "transfers",
        "prefetches",
        "controller",
        "workload",
        "gates",
        "metrics",
        "hits",
        "calls",
        "frames",
        "transfer_frames",
        "latency",
        "forecasts",
        "gate_inputs",
        "labels",
        "fitting",
        "refusals",
        "stalls",
        "bounds",
        "intervals",
        "timeline",
        "synthesis",
        "outputs",
        "run",
        "shared",
        "run_log",
        "lookahead_ranks",
        "explain_words",
        "paired",
        "bound_problem",
        "relaxation",
        "breakeven",
    },
    {
        "alarms",
        "contest",
        "contended",
        "contended_links",
        "links",
        "stream",
        "engine",
        "real.driver.loop",
        "real.driver.device",
        "real.driver.links",
        "real.driver.needs",
        "real.driver.paced",
        "real.driver.sharing",
        "real.driver.threads",
        "real.driver.timers",
        "real.kernels",
        "real.driver.machine",
    },
    {
        "real.store.experts",
        "real.store.store",
        "real.store.stand_in",
        "real.store.reading",
        "real.store.slots",
        "real.driver.settings",
        "real.store.neurons",
        "real.store.room",
        "real.store.checkpoint",
        "real.store.weightless",
        "real.store.work",
        "real.host.dense_blocks",
        "real.host.cpu",
        "real.host.computing_null",
        "real.live.asked",
        "real.live.eyes",
        "real.live.live",
        "real.live.batch",
        "real.live.channels",
        "real.live.workload",
        "real.cuda",
    },
)
TOP = {
    "sim.study.trials",
    "sim.answers.comparison",
    "sim.compare",
    "sim.whatif",
    "sim.answers.whatif_figure",
    "sim.answers.whatif_questions",
    "sim",
    "sim.fit",
    "sim.setup.build",
    "sim.setup.sections",
    "sim.process.orphans",
    "sim.setup.configure",
    "sim.setup.execute",
    "sim.demo",
    "sim.check",
    "sim.audit",
    "sim.checking.cache_replay",
    "sim.checking.cache_walk",
    "sim.checking.exchanged_lookups",
    "sim.checking.lookup_order",
    "sim.checking.fault_search",
    "sim.checking.fault_words",
    "sim.calibrate",
    "sim.reproduce",
    "sim.reproduce.__main__",
    "sim.reproduce.checks",
    "sim.reproduce.arms",
    "sim.reproduce.durations",
    "sim.reproduce.experiments",
    "sim.reproduce.keys",
    "sim.reproduce.measured",
    "sim.reproduce.identities",
    "sim.reproduce.kernels",
    "sim.reproduce.measures",
    "sim.reproduce.phone",
    "sim.reproduce.recorded",
    "sim.reproduce.report",
    "sim.reproduce.roles",
    "sim.reproduce.rules",
    "sim.reproduce.storage",
    "sim.reproduce.verdicts",
    "sim.reproduce.wrong",
    "sim.explain",
    "sim.models",
    "sim.setup.catalogue",
    "sim.__main__",
    "real",
    "real.driver.recording",
    "real.validation.conformance",
    "sim.pareto",
    "sim.study",
    "sim.screen",
    "sim.screening",
    "sim.report",
    "sim.reporting",
    "real.probe",
    "real.lossy",
    "real.quality",
    "real.quality_figures",
    "real.quality_front",
    "real.quality_fit",
    "real.closed_loop",
    "sim.setup.command",
    "real.__main__",
    "real.setup.devices",
    "real.setup.prepare",
    "real.setup.execute",
    "real.live.run",
    "real.validate",
    "real.validation",
    "real.suite",
    "real.calibrate",
    "real.calibration",
}
"""What may import anything, and is imported by nothing below."""
NEVER_IN_SIM = {"torch", "transformers", "capture", "real"}
CLOCKED = (
    "sim.engine.clock",
    "sim.engine.contended",
    "sim.engine.contended_links",
    "sim.engine.contest",
    "sim.engine.engine",
    "sim.engine.links",
    "sim.engine.stream",
)
"""Who knows simpy's clock."""
CORE = (
    "claims",
    "controller",
    "loader",
    "policies",
    "prefetches",
    "ram",
    "slots",
    "staging",
    "transfers",
    "types",
    "units",
)
NEVER_IN_CORE = {
    "simpy",
    "hydra",
    "omegaconf",
    "time",
    "datetime",
    "random",
    "polars",
    "pandas",
    "matplotlib",
    "rich",
}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    """``sim/policies/base.py`` is ``sim.policies.base``."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module
            yield from (
                f"{node.module}.{alias.name}" if node.module == "sim" else node.module
                for alias in node.names
            )


def layer_of(module: str) -> int | None:
    """Which row of the table a module stands in; None for the top (build, __main__ and what only
    they import).
    """
    parts = module.split(".")
    name = parts[1] if len(parts) > 1 and parts[0] == "sim" else ".".join(parts[:2])
    return next((number for number, layer in enumerate(LAYERS) if name in layer), None)


def is_top(module: str) -> bool:
    """Whether it is named in ``TOP``, or lies in a package that is."""
    return module in TOP or ".".join(module.split(".")[:2]) in TOP - {"sim", "real"}


# Contracts: C1
@pytest.mark.parametrize("path", [*files("sim"), *files("real")], ids=module_of)
def test_a_module_imports_its_own_layer_and_those_below(path: Path) -> None:
    own = layer_of(module_of(path))
    if own is None:
        return
    for name in imports(path):
        if name.startswith(("sim.", "real.")):
            other = layer_of(".".join(name.split(".")[:2]))
            assert other is not None, (
                f"{module_of(path)} imports {name}, which stands above every layer"
            )
            assert other <= own, f"{module_of(path)} (layer {own}) imports {name} (layer {other})"


@pytest.mark.parametrize("path", [*files("sim"), *files("real")], ids=module_of)
def test_every_module_has_its_place_in_the_table(path: Path) -> None:
    assert (layer_of(module_of(path)) is None) == is_top(module_of(path))


# Contracts: C2
@pytest.mark.parametrize("path", files("sim"), ids=module_of)
def test_sim_imports_neither_torch_nor_what_needs_it(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)}.isdisjoint(NEVER_IN_SIM)


# Contracts: C2
@pytest.mark.parametrize(
    "path",
    [path for path in files("sim") if f"{module_of(path)}..".split(".")[1] in CORE],
    ids=module_of,
)
def test_policies_and_controller_see_no_clock_no_configuration_and_no_chance(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)}.isdisjoint(NEVER_IN_CORE)


# Contracts: C2
@pytest.mark.parametrize("path", files("sim/audit"), ids=module_of)
def test_the_audit_of_a_run_shares_no_code_with_what_made_it(path: Path) -> None:
    assert all(
        name.startswith("sim.audit")
        for name in imports(path)
        if name.split(".")[0] in ("sim", "real")
    )
    allowed = {"numpy", "scipy", "polars", "omegaconf", "yaml", "sim"} | sys.stdlib_module_names
    assert {name.split(".")[0] for name in imports(path)} <= allowed, (
        "only what a plain install has"
    )


@pytest.mark.parametrize("path", files("sim"), ids=module_of)
def test_simpy_is_the_engines_alone_and_hydra_the_top_modules(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    if "simpy" in roots:
        assert module_of(path) in CLOCKED
    if "hydra" in roots:
        assert layer_of(module_of(path)) is None


@pytest.mark.parametrize("path", files("sim"), ids=module_of)
def test_the_two_drivers_do_not_know_each_other(path: Path) -> None:
    names = set(imports(path))
    if (
        module_of(path) not in ("sim.engine.engine", "sim.engine.contended")
        and layer_of(module_of(path)) is not None
    ):
        assert "sim.engine.engine" not in names


# Contracts: C2
@pytest.mark.parametrize("path", files("real"), ids=module_of)
def test_the_real_driver_knows_nothing_of_the_simulated_clock(path: Path) -> None:
    if not is_top(module_of(path)):
        assert set(imports(path)).isdisjoint({"simpy", *CLOCKED})


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
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("statement", "never"),
    [
        ("import sim", {"torch", "pandas", "matplotlib", "polars", "numpy", "simpy", "hydra"}),
        (
            (
                "import sim.policies, sim.policies.caches, sim.policies.pools,"
                " sim.policies.precisions, sim.policies.predictors, sim.policies.placements,"
                " sim.core.controller"
            ),
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
    ],
    ids=["sim", "policies and controller", "engine", "main", "real.driver.loop"],
)
def test_a_fresh_interpreter_loads_no_more_than_it_must(statement: str, never: set[str]) -> None:
    assert loaded_by(statement).isdisjoint(never)


def test_the_parser_of_imports_sees_every_form(tmp_path: Path) -> None:
    source = "import a.b, c\nfrom d.e import f\nfrom sim import engine\ndef g():\n    import h\n"
    (tmp_path / "x.py").write_text(source, encoding="utf-8")
    assert sorted(imports(tmp_path / "x.py")) == ["a.b", "c", "d.e", "h", "sim.engine.engine"]
