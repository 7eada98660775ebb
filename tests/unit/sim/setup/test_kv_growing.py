"""Runs whose slots shrink as keys and values grow: every cache, the files they leave, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest
from omegaconf import DictConfig

from helpers.usual import usual
from sim.answers.comparison import check_comparable, conditions_of
from sim.audit.__main__ import audit
from sim.audit.files import RunFiles
from sim.results.run import Run
from sim.screening.frontier import require_slots
from sim.screening.moves import ScreenError
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.trace import Trace
from sim.verbs.names import names

Configure = Callable[..., DictConfig]
LARGE = ("++model.kv_bits=80000", "hardware.memory_gib=128", "workload.kv_allocation=growing")
"""Keys and values of a token take almost as much as an expert."""
SHORT = ("trace.max_sequences=2", "workload.decode_tokens=30", "budget.resident_share=0.4")
REFUSE = ("belady_bypass", "llama_cpp_class_lru", "llama_cpp_lru", "n_cpu_moe", "popular")
"""Caches that leave some variants to staging."""


def run_of(configure: Configure, trace: Trace, *words: str) -> Run:
    groups = [word for word in words if word.split("=")[0] in ("system", "workload", "hardware")]
    others = [word for word in words if word not in groups]
    chosen = configure("system=lru", *groups, *SHORT, *LARGE, *others)
    return build(chosen, "lru", trace)


def files_of(run: Run) -> RunFiles:
    result = execute(run)
    summary = json.loads(json.dumps({**result.summary, "wall_s": 0.0}))
    return RunFiles(summary, json.loads(json.dumps(run.config)), **result.frames.tables())


# Contracts: C174, C175
@pytest.mark.alike
@pytest.mark.parametrize("cache", usual(names("cache"), names("cache")[::3]))
def test_with_every_cache_slots_shrink_and_the_audit_finds_what_the_summary_says(
    cache: str, configure: Configure, bundled_trace: Trace
) -> None:
    words = ("loader.staging_slots=8",) if cache in REFUSE else ()
    run = run_of(configure, bundled_trace, f"cache={cache}", "bounds=max", *words)
    files = files_of(run)
    run.controller.check()
    assert not audit(files).differences
    growing, ledger = files.summary["budget"]["growing"], files.ledger
    assert ledger is not None
    assert growing["least_bytes"] <= files.summary["budget"]["device_bytes"]
    assert growing["most_bytes"] == ledger["slot_bytes"].max() > growing["least_bytes"]
    assert ledger["slots"].max() > ledger["slots"].min()
    assert (ledger["slot_bytes"] + ledger["kv_bytes"]).max() <= (
        growing["least_bytes"] + run.ledger.kv_bytes
    )
    assert files.summary["gap"] >= 0


# Contracts: C174, C175
@pytest.mark.alike
@pytest.mark.parametrize(
    "words",
    [
        ("workload=continuous_4", "trace.max_sequences=5"),
        ("workload=static_4", "trace.max_sequences=5", "loader.retention=after_batch"),
        ("workload=recorded", "workload.decode_tokens=null"),
        ("workload=continuous_4", "workload.arrivals_per_s=0.3", "trace.max_sequences=5"),
        ("workload.draft_tokens=2", "workload.draft_accepted=0.5"),
        ("workload=continuous_4", "workload.context_tokens=200", "workload.draft_tokens=1"),
        ("system=hobbit", "cache=lfu"),
        ("hardware=rtx4090_nvme", "hardware.memory_gib=256"),
    ],
    ids=" ".join,
)
def test_the_audit_finds_the_tokens_of_every_kind_of_run(
    words: tuple[str, ...], configure: Configure, bundled_trace: Trace
) -> None:
    run = run_of(configure, bundled_trace, "hardware.memory_gib=256", *words)
    files = files_of(run)
    run.controller.check()
    assert not audit(files).differences
    assert files.ledger is not None
    assert files.ledger["tokens"].max() <= run.workload.limits.tokens


# Contracts: C174
def test_more_slots_meanwhile_load_less_and_no_step_has_fewer_than_the_plan(
    configure: Configure, bundled_trace: Trace
) -> None:
    growing = files_of(run_of(configure, bundled_trace))
    once = files_of(run_of(configure, bundled_trace, "workload.kv_allocation=once"))
    assert growing.summary["budget"]["growing"]["trimmed"] > 0
    assert growing.summary["decode_tokens_per_s"] > once.summary["decode_tokens_per_s"]
    assert growing.summary["budget"]["slots"] == once.summary["budget"]["slots"]
    assert once.ledger is None
    assert "growing" not in once.summary["budget"]


# Contracts: C175
@pytest.mark.parametrize("column", ["tokens", "kv_bytes", "slot_bytes"])
def test_the_audit_finds_a_ledger_that_was_changed(
    column: str, configure: Configure, bundled_trace: Trace
) -> None:
    files = files_of(run_of(configure, bundled_trace))
    assert files.ledger is not None
    more = 2 * pl.col(column).max()
    wrong = files.ledger.with_columns(
        pl.when(pl.col("step") == 3).then(more).otherwise(column).alias(column)
    )
    assert not audit(files).differences
    (found,) = audit(replace(files, ledger=wrong)).differences
    assert found.rule.key == "budget.growing.least_bytes"


# Contracts: C174, C175
def test_the_bound_counts_the_most_slots(configure: Configure, bundled_trace: Trace) -> None:
    """Most steps have more slots than the plan, so less is proven than of the plan alone."""
    words = ("cache=belady", "bounds=relaxation")
    summary = files_of(run_of(configure, bundled_trace, *words)).summary
    bounds = summary["bounds"]
    assert bounds["lower_s"] <= summary["makespan_s"]
    fewer = (*words, "workload.kv_allocation=once")
    of_plan = files_of(run_of(configure, bundled_trace, *fewer)).summary["bounds"]
    assert bounds["lower_s"] < of_plan["lower_s"]
    assert bounds["belady_loads"] is None
    assert "shrink" in bounds["why_no_belady"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("loader.write_back=true",), r"write_back=True does not go with slots that shrink"),
        (("devices=layers_2",), r"kv_allocation=growing does not go with hardware\.devices"),
        (
            ("workload.kv_allocation=paged",),
            r"unknown workload\.kv_allocation=paged; allowed: once",
        ),
    ],
)
def test_what_does_not_go_with_slots_that_shrink_is_refused_by_name(
    words: tuple[str, ...], message: str, configure: Configure, bundled_trace: Trace
) -> None:
    with pytest.raises(ValueError, match=message):
        run_of(configure, bundled_trace, *words)


# Contracts: C174
def test_a_curve_over_slots_is_refused_and_a_comparison_with_slots_allocated_once_is_not(
    configure: Configure, bundled_trace: Trace
) -> None:
    growing = run_of(configure, bundled_trace)
    once = run_of(configure, bundled_trace, "workload.kv_allocation=once")
    require_slots(once.controller)
    with pytest.raises(ScreenError, match=r"workload\.kv_allocation=growing: a number of slots"):
        require_slots(growing.controller)
    check_comparable(("a", "b"), conditions_of(growing), conditions_of(once))
