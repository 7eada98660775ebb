"""Runs whose drafts offload their experts: every cache, the files they leave, whose gates, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from omegaconf import DictConfig

from helpers.usual import usual
from sim.audit.__main__ import audit
from sim.audit.files import RunFiles
from sim.results.forecasts import count_forecasts, nearest_forecasts
from sim.results.latency import with_drafting
from sim.results.run import Run
from sim.screening.frontier import curve_of, walked
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.drafts import STANDS_IN, with_draft_sites
from sim.traces.header_text import parse_header
from sim.traces.trace import Trace
from sim.verbs.names import names

Configure = Callable[..., DictConfig]
SHORT = ("trace.max_sequences=2", "workload.decode_tokens=20", "hardware.memory_gib=128")
OFFLOADED = "workload.draft_experts=offloaded"
REFUSE = ("belady_bypass", "llama_cpp_class_lru", "llama_cpp_lru", "n_cpu_moe", "popular")
"""Caches that leave some variants to staging."""


def run_of(configure: Configure, trace: Trace, *words: str) -> Run:
    """Four drafts a step (mtp_4), unless the words name another workload."""
    groups = [word for word in words if word.split("=")[0] in ("system", "workload", "hardware")]
    if not any(word.startswith("workload=") for word in words):
        groups.append("workload=mtp_4")
    others = [word for word in words if word not in groups]
    return build(configure("system=lru", *groups, *SHORT, *others), "lru", trace)


def files_of(run: Run) -> RunFiles:
    result = execute(run)
    summary = json.loads(json.dumps({**result.summary, "wall_s": 0.0}))
    return RunFiles(summary, json.loads(json.dumps(run.config)), **result.frames.tables())


# Contracts: C184
@pytest.mark.parametrize("layers", [1, 2])
def test_with_all_experts_resident_drafts_take_what_they_take_as_dense_work(
    layers: int, configure: Configure, bundled_trace: Trace
) -> None:
    words = ("budget.resident_share=1.0", f"workload.draft_layers={layers}", "bounds=none")
    there, offloaded = (
        files_of(run_of(configure, bundled_trace, *words, experts))
        for experts in ("workload.draft_experts=on_device", OFFLOADED)
    )
    for key in ("makespan_s", "decode_tokens_per_s", "ttft_s", "itl_s", "tpot_s", "latency_s"):
        assert there.summary[key] == offloaded.summary[key], key
    assert offloaded.summary["drafts"]["hit_ratio"] == 1
    assert offloaded.summary["drafts"]["time_s"] > 0
    told = dict(offloaded.summary["drafts"])
    del told["hit_ratio"], told["time_s"]
    assert told == there.summary["drafts"]


# Contracts: C186
def test_the_hits_of_every_budget_are_those_of_a_run_that_drafts(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = (OFFLOADED, "model=tiny_mixtral", "hardware=paced_cpu", "workload.draft_accepted=0.5")
    ran = files_of(run_of(configure, bundled_trace, *words)).summary
    fresh = run_of(configure, bundled_trace, *words)
    whole = run_of(configure, bundled_trace, *words, "budget.resident_share=1.0")
    point = walked(fresh.controller, fresh.workload)
    assert ran["hit_ratio"] != ran["drafts"]["hit_ratio"]
    assert point.hit_ratio == ran["hit_ratio"]
    assert curve_of(whole.controller, whole.workload).at(point.slots).hit_ratio == ran["hit_ratio"]


# Contracts: C109, C186
def test_forecasts_of_drafts_are_not_among_those_of_decoded_tokens(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = (OFFLOADED, "workload.draft_layers=2", "predictor=activation_matrix_empty")
    run = run_of(configure, bundled_trace, *words)
    predictor = run.controller.predictor
    forecast = [step for step, *_ in nearest_forecasts(run.workload, predictor, run.workload.steps)]
    decoded = sum(step.decode and not step.drafting for step in forecast)
    assert any(step.drafting for step in forecast)
    assert count_forecasts(run.workload, predictor)[0].gates == decoded > 0


# Contracts: C184, C186
@pytest.mark.alike
@pytest.mark.parametrize("cache", usual(names("cache"), names("cache")[::3]))
def test_with_every_cache_the_audit_finds_what_the_summary_says(
    cache: str, configure: Configure, bundled_trace: Trace
) -> None:
    staging = ("loader.staging_slots=8",) if cache in REFUSE else ()
    words = (OFFLOADED, f"cache={cache}", "budget.resident_share=0.4", "bounds=max", *staging)
    run = run_of(configure, bundled_trace, *words)
    files = files_of(run)
    run.controller.check()
    assert not audit(files).differences
    assert files.summary["gap"] >= 0
    assert 0 <= files.summary["drafts"]["hit_ratio"] <= 1


# Contracts: C184, C186
@pytest.mark.alike
@pytest.mark.parametrize(
    "words",
    [
        ("workload=continuous_4", "workload.draft_tokens=2", "trace.max_sequences=5"),
        ("workload=static_4", "workload.draft_tokens=3", "workload.draft_accepted=0.5"),
        ("workload=continuous_4", "workload.arrivals_per_s=0.3", "workload.draft_tokens=2"),
        ("workload=continuous_4", "workload.prefill_chunk=8", "workload.draft_tokens=1"),
        ("workload.kv_allocation=growing",),
        ("system=hobbit", "cache=lfu"),
        ("predictor=gate_lookahead_2",),
        ("workload.draft_layers=2",),
    ],
    ids=" ".join,
)
def test_the_audit_finds_the_times_of_every_kind_of_run(
    words: tuple[str, ...], configure: Configure, bundled_trace: Trace
) -> None:
    layers = () if any("draft_layers" in word for word in words) else ("workload.draft_layers=1",)
    wanted = (*words, OFFLOADED, *layers, "budget.resident_share=0.4")
    run = run_of(configure, bundled_trace, *wanted)
    files = files_of(run)
    run.controller.check()
    assert not audit(files).differences
    assert set(files.lookups["phase"]) == {"prefill", "decode", "draft"}
    assert files.tokens.filter(pl.col("phase") == "draft")["new_tokens"].sum() == 0


# Contracts: C186
def test_a_step_that_checks_begins_when_its_first_draft_did() -> None:
    tokens = pl.DataFrame(
        {
            "step": [0, 1, 2, 2, 3, 3, 4],
            "phase": ["prefill", "draft", "draft", "draft", "decode", "decode", "decode"],
            "start_ns": [0, 10, 20, 20, 30, 30, 40],
        }
    )
    assert with_drafting(tokens).rows() == [
        (0, "prefill", 0),
        (3, "decode", 10),
        (3, "decode", 10),
        (4, "decode", 40),
    ]


# Contracts: C185
def test_a_draft_needs_what_the_last_layer_chose_of_the_token_before_it(
    configure: Configure, bundled_trace: Trace
) -> None:
    run = run_of(configure, bundled_trace, OFFLOADED, "budget.resident_share=0.4")
    assert run.trace.header.draft_sites == run.model.draft_sites == 1
    last, gate, seen = run.workload.sites - 2, run.workload.gate(), 0
    before: list[int] = []
    for step in run.workload.steps:
        rows = run.workload.row[step.start : step.stop].tolist()
        if not step.drafting:
            assert step.sites == tuple(range(last + 1))
            # The drafts read the row that the step begins with, and those after it.
            assert before == rows[: len(before)]
            assert len(before) == len(step.drafters)
            before = []
            continue
        assert step.sites == (last + 1,)
        gate.open(step)
        gate.visit(last + 1)
        before += rows
        assert sorted(gate.needs) == sorted(bundled_trace.ids[rows[0], last].tolist())
        seen += 1
    assert seen > 10
    label = execute(run).summary["labels"]["synthetic"]
    assert "gates of draft layers stand in: those of model.layers.15.mlp" in label


# Contracts: C185
def test_recorded_draft_layers_are_taken_and_left_out_where_nobody_drafts(
    configure: Configure, bundled_trace: Trace
) -> None:
    two = with_draft_sites(bundled_trace, 2)
    told = {name: of for name, of in two.header.provenance.items() if name != STANDS_IN}
    ids = two.ids.copy()
    ids[:, -2] = (ids[:, -2] + 1) % two.header.model.experts
    recorded = replace(two, ids=ids, header=replace(two.header, provenance=told))
    assert parse_header(recorded.header.to_json()) == recorded.header
    run = run_of(configure, recorded, OFFLOADED, "budget.resident_share=0.4")
    assert STANDS_IN not in run.trace.header.provenance
    assert np.array_equal(run.trace.ids, ids[:, :-1])
    plain = run_of(configure, recorded, "workload=sequential")
    assert plain.trace.header.draft_sites == 0
    assert np.array_equal(plain.trace.ids, bundled_trace.ids)
    # Of three only the third stands in.
    words = ("workload.draft_layers=3", OFFLOADED, "budget.resident_share=0.4")
    three = run_of(configure, recorded, *words).trace
    assert np.array_equal(three.ids[:, :-1], ids)
    assert np.array_equal(three.ids[:, -1], bundled_trace.ids[:, -1])
    assert STANDS_IN in three.header.provenance


# Contracts: C185
def test_nothing_is_forecast_for_a_stand_in(bundled_trace: Trace) -> None:
    scores = np.ones((*bundled_trace.ids.shape[:2], 2, bundled_trace.header.model.experts))
    told = replace(bundled_trace, lookahead={"raw": scores.astype(np.float32)})
    found = with_draft_sites(told, 1).lookahead["raw"]
    assert np.isnan(found[:, -1]).all()
    assert (found[:, :-1] == 1).all()
    assert (told.lookahead["raw"] == 1).all()


# Contracts: C186
def test_draft_layers_take_memory_as_layers_of_the_model(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = ("budget.resident_share=0.4", "workload.draft_layers=2")
    there = run_of(configure, bundled_trace, *words)
    offloaded = run_of(configure, bundled_trace, *words, OFFLOADED)
    model = there.model
    more = offloaded.ledger
    assert more.draft_bytes == 0
    blocks = 2 * model.block_bytes(model.sites - 1)
    assert abs(more.dense_bytes - there.ledger.dense_bytes - blocks) <= 2
    assert more.kv_bytes * model.sites == there.ledger.kv_bytes * (model.sites + 2)
    slots = there.controller.geometry.capacity_bytes / model.sites
    assert offloaded.controller.geometry.capacity_bytes == pytest.approx(slots * (model.sites + 2))
    # The model's own label is that of its own layers.
    assert offloaded.model.transplant == there.model.transplant


# Contracts: C186
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("workload.draft_layers=0",), "such drafts have no experts; set workload.draft_layers=1"),
        (
            ("workload.draft_experts=gone",),
            "unknown workload.draft_experts=gone; allowed: on_device",
        ),
        (("loader.dense_slots=2",), "does not go with loader.dense_slots=2; leave that out"),
        (
            ("system=moe_infinity",),
            "predictor ActivationMatching .nothing is fitted on a draft layer.; leave",
        ),
        (("devices=layers_2", "bounds=none"), "does not go with hardware.devices"),
    ],
)
def test_what_drafts_with_offloaded_experts_refuse(
    words: tuple[str, ...], told: str, configure: Configure, bundled_trace: Trace
) -> None:
    experts = () if any("draft_experts" in word for word in words) else (OFFLOADED,)
    with pytest.raises(ValueError, match=told):
        run_of(configure, bundled_trace, *experts, "budget.resident_share=0.4", *words)
