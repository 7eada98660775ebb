"""What follows from the papers' mechanisms by arithmetic alone, without any tuned number.

Oracle: the arithmetic, stated at each test.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.bundled import Configure
from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.policies.recency import LRU
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.trace import Trace
from sim.values.types import Geometry, Outcome

MIXTRAL_EXPERT = 352_321_536
SHORT = ("trace.max_sequences=1", "hardware.memory_gib=96")


@cache
def ran(configure: Configure, *words: str) -> tuple[Run, dict[str, Any]]:
    run = build(configure(*words, *SHORT), "x")
    return run, execute(run).summary


def moved(summary: dict[str, Any], *kinds: str) -> int:
    """Bytes that moved over the link to the device."""
    return sum(summary["bytes"]["pcie"][kind] for kind in kinds)


def test_of_two_experts_the_first_always_scores_zero(
    configure: Configure, bundled_trace: Trace
) -> None:
    """HOBBIT eq. 2: nothing is ranked above the first, so half of all scores are 0.

    The second's score is at least a half.
    """
    workload = build(configure("system=lru", *SHORT), "x", bundled_trace).workload
    scores = workload.scores
    assert np.count_nonzero(scores == 0) == scores.size // 2
    assert scores[scores > 0].min() >= 0.5


def test_a_low_precision_miss_costs_a_quarter(configure: Configure) -> None:
    """HOBBIT section 3.4: 4 bits of 16.

    Without a cache every token of one layer misses one high and one low expert.
    """
    _, summary = ran(
        configure,
        "system=load_on_demand",
        "precision=score_threshold",
        "precision.low_above=0",
        "precision.skip_above=1",
    )
    assert summary["miss_penalty"] == pytest.approx((1 + 1 / 4) / 2)


def test_loading_on_demand_does_not_know_the_budget(configure: Configure) -> None:
    """Fate section 5.2.3: nothing is kept, so the budget does not matter."""
    little, much = (
        ran(configure, "system=load_on_demand", f"budget.resident_share={share}")[1]
        for share in (0.1, 0.9)
    )
    assert little["makespan_s"] == much["makespan_s"]


SLOW = ("hardware.links.pcie.peak_gb_per_s=3",)
STAGED = ("loader.destination=staging", "loader.staging_slots=4")


def test_wrong_prefetches_make_a_slow_link_slower(configure: Configure) -> None:
    """Fate section 5.2.2: without a cache EAP loses to loading on demand.

    A copy in flight has to finish.
    """
    _, on_demand = ran(configure, "system=load_on_demand", *SLOW)
    _, eap = ran(configure, "system=load_on_demand", "predictor=next_site", *STAGED, *SLOW)
    assert eap["prefetch"]["dropped"] > 0
    assert eap["makespan_s"] > on_demand["makespan_s"]


@pytest.mark.parametrize(
    "words",
    [("system=pregated_moe",), ("system=load_on_demand", "predictor=gate_lookahead_1", *STAGED)],
)
def test_a_prefetch_gains_no_more_than_the_window_it_hides_in(
    configure: Configure, words: tuple[str, ...]
) -> None:
    """Loads take the link L in all, computing takes W: one after the other W + L.

    No prefetch makes a run end before its loads do, so it gains at most (W + L) / L = 1 + W / L.
    """
    run, on_demand = ran(configure, "system=load_on_demand")
    _, ahead = ran(configure, *words)
    load_s = on_demand["lookups"]["miss"] * run.durations.hop_ns(0, MIXTRAL_EXPERT) / 1e9
    window_s = on_demand["compute_busy_s"]
    # In prompts that do not fit, loads for one wave run beside the computation of the wave before.
    assert window_s + load_s * 0.99 <= on_demand["makespan_s"] <= window_s + load_s
    assert on_demand["makespan_s"] / ahead["makespan_s"] <= 1 + window_s / load_s


@pytest.mark.parametrize("system", ["transformers", "deepspeed_inference", "deepspeed_mii"])
def test_a_framework_that_streams_layers_moves_every_expert_at_every_gate(
    configure: Configure, system: str
) -> None:
    """Eight experts of 352 MB a layer move, whatever is chosen."""
    run, summary = ran(configure, f"system={system}")
    assert moved(summary, "demand", "prefetch") == run.workload.num_gates * 8 * MIXTRAL_EXPERT
    assert moved(summary, "dense") > 0


def test_transformers_versions_differ_four_times_in_what_a_token_moves(
    configure: Configure,
) -> None:
    """One version calls all of eight experts, another the two chosen.

    So a decoded token's layers move 8 / 2 as much.
    """
    every, chosen = (
        execute_transfers(configure, *words)
        for words in (("system=transformers",), ("system=transformers", "payload=whole"))
    )
    assert every == 4 * chosen


def execute_transfers(configure: Configure, *words: str) -> int:
    """Bytes that demands moved for decoded tokens."""
    run = build(configure(*words, *SHORT), "x")
    result = execute(run)
    prompt = len([step for step in run.workload.steps if not step.decode]) * run.model.sites
    demands = [t for t in run.controller.issued if not t.prefetch and not t.dense]
    first = run.controller.gate_calls[prompt]
    assert result.summary["schema"] == 1
    return sum(t.moved_bytes for t in demands if t.call >= first)


def test_pageable_memory_halves_the_bandwidth(configure: Configure) -> None:
    pinned, pageable = (
        build(configure("system=lru", f"loader.copies={copies}", *SHORT), "x").durations
        for copies in ("pinned", "pageable")
    )
    latency = pinned.latency_ns(0)
    assert pageable.hop_ns(0, MIXTRAL_EXPERT) - latency == pytest.approx(
        2 * (pinned.hop_ns(0, MIXTRAL_EXPERT) - latency)
    )


@pytest.mark.parametrize("system", ["infinite_link", "io_free", "resident_int2"])
def test_what_waits_for_no_copy_is_compute_alone(configure: Configure, system: str) -> None:
    """The stream is never idle, and nothing could be faster."""
    _, summary = ran(configure, f"system={system}", "bounds=max")
    assert summary["makespan_s"] == summary["compute_busy_s"]
    assert summary["bounds"]["lower_s"] == summary["makespan_s"]
    assert (moved(summary, "demand") == 0) == (system == "resident_int2")


def test_floes_up_projections_are_in_the_ledger(configure: Configure, bundled_trace: Trace) -> None:
    """16 layers of 8 experts, 18.35 MB each: 2.5 bits for each of 4096 x 14336 weights."""
    run = build(configure("system=floe", *SHORT), "x", bundled_trace)
    assert run.ledger.parts_bytes == 16 * 8 * 18_350_080


def test_layers_that_draft_are_in_the_ledger_with_all_their_experts(
    configure: Configure, bundled_trace: Trace
) -> None:
    """Each is as large as Mixtral's last layer: eight experts, four projections of attention with
    a quarter of the heads for keys and values, a gate and two norms.
    """
    block = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 8 * 4096 + 2 * 4096)
    for layers in (1, 3):
        more = ("workload=mtp_4", f"workload.draft_layers={layers}")
        run = build(configure("system=lru", *SHORT, *more), "x", bundled_trace)
        assert run.ledger.draft_bytes == layers * (8 * MIXTRAL_EXPERT + block)


def test_one_token_reads_of_floes_experts_what_is_active_and_the_up_projection(
    configure: Configure, bundled_trace: Trace
) -> None:
    """One token reads 23.5 MB + 18.35 MB at 0.9 x 1008 GB/s, with three launches of 4 us.

    Several tokens read all of gate and down.
    """
    durations = build(configure("system=floe", *SHORT), "x", bundled_trace).durations
    per_s = 1008e9 * 0.9
    assert durations.expert_ns(0, 0, 1) == pytest.approx(
        (23_488_102 + 18_350_080) / per_s * 1e9 + 12_000, abs=2
    )
    assert durations.expert_ns(0, 0, 2) == pytest.approx(
        (234_881_024 + 18_350_080) / per_s * 1e9 + 12_000, abs=2
    )


def test_fiddlers_host_pays_for_every_assignment(
    configure: Configure, bundled_trace: Trace
) -> None:
    """It pays 2^8 times 1 us after every gate.

    For 48 experts that would take years, which is refused.
    """
    words = ("system=fiddler", "placement=cpu_by_cost_enumerated", *SHORT)
    run = build(configure(*words), "x", bundled_trace)
    assert run.durations.host.issue_ns == 256_000
    assert (
        build(configure("system=fiddler", *SHORT), "x", bundled_trace).durations.host.issue_ns == 0
    )


def test_edgemoe_starts_with_no_variant_that_does_not_exist(
    configure: Configure, bundled_trace: Trace
) -> None:
    """Each expert is stored at one width.

    What is resident is there at its own width, and no lookup finds a better one.
    """
    run, summary = ran(configure, "system=edgemoe", "budget.resident_share=0.9")
    table = run.controller.selector.table  # type: ignore[attr-defined]
    geometry = run.controller.geometry
    assert sum(sum(row) for row in table) == int(0.38 * 128)
    held = run.controller.slots.initial
    assert {geometry.precision_of(key) for key in held} == {0, 1}
    for key in held:
        assert table[geometry.site_of(key)][geometry.expert_of(key)] == geometry.precision_of(key)
    assert summary["lookups"]["high_for_low"] == 0


def test_a_prompts_experts_are_computed_resident_first_then_most_popular_first() -> None:
    """Fate section 4.3, Figure 6: 2 and 4 are resident, 3, 1 and 5 are loaded by popularity.

    The order is 2, 4, 3, 1, 5.
    """
    geometry = Geometry(1, 6, 5, ("fp16",), (16.0,), (10,), 50)
    controller = Controller(
        geometry,
        NoPrediction(),
        LRU(initial="empty"),
        Fixed("fp16"),
        Load(),
        Loader(wait="as_ready"),
    )

    def prompt(rows_by_expert: dict[int, int]) -> Any:
        needs = sorted(rows_by_expert, key=lambda expert: (-rows_by_expert[expert], expert))
        return SimpleNamespace(
            tick=0,
            step=0,
            site=0,
            token=9,
            needs=needs,
            keys=needs,
            scores=[0.0] * len(needs),
            tokens=[rows_by_expert[expert] for expert in needs],
        )

    _, waits = controller.gate(prompt({2: 1, 4: 1}))
    transfer = controller.poll(0)
    while transfer is not None:
        _, transfer = controller.transfer_done(0, transfer)
    assert list(waits or ()) == [2, 4]
    outcomes, waits = controller.gate(prompt({3: 9, 2: 7, 1: 5, 4: 3, 5: 1}))
    there = [
        expert
        for expert, outcome in zip((3, 2, 1, 4, 5), outcomes, strict=True)
        if outcome == Outcome.HIT
    ]
    arriving, transfer = [], controller.poll(0)
    while transfer is not None:
        key, transfer = controller.transfer_done(0, transfer)
        arriving.append(key)
    assert there + arriving == [2, 4, 3, 1, 5]
