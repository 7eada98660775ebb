"""Summaries of whole runs: every switch is reported, and sums agree with the tables.

No run beats its bound.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import polars as pl
import pytest
from omegaconf import DictConfig

from sim.audit.__main__ import NO_RULE, audit
from sim.audit.files import RunFiles
from sim.core.loader import Loader
from sim.results.run import Run
from sim.results.stalls import STALL_PARTS
from sim.setup.build import build
from sim.setup.execute import Result, execute
from sim.traces.trace import Trace

Configure = Callable[..., DictConfig]
HOST = (
    "hardware.host.sync_us=20 hardware.host.issue_us=5 hardware.host.wake_us=30"
    " hardware.host.post_us=10"
)
TOGETHER = "workload.batching=continuous workload.together=2"
RUNS = {
    "as it comes": "system=hobbit",
    "a drive and a RAM tier": "system=mixtral_offloading hardware=rtx4090_nvme",
    "a RAM tier without cut-through": (
        "system=lru hardware=rtx4090_nvme hardware.links.nvme.head_bytes=0 ram_cache=lfu"
    ),
    "unified memory": "system=hobbit hardware=jetson_agx_orin budget.resident_share=0.3",
    "three engines": "system=mixtral_offloading hardware.links.pcie.engines=3 loader.in_flight=2",
    "chunks": "system=hobbit loader.chunk_bytes=33554432",
    "staging": (
        "system=mixtral_offloading loader.destination=staging loader.staging_slots=4"
        " hardware.memory_gib=48"
    ),
    "write-back": "system=mixtral_offloading loader.write_back=true",
    "the CPU": "system=lru placement=absent_on_cpu",
    "the CPU for single tokens": (
        f"system=hobbit placement=absent_on_cpu placement.up_to_tokens=1 {TOGETHER}"
    ),
    "streamed layers": "system=lru loader.dense_slots=2",
    "host time": f"system=hobbit {HOST}",
    "late forecasts": "system=mixtral_offloading hardware.prediction_us=200",
    "a pool that overflows": "system=lru loader.retention=after_batch hardware.memory_gib=48",
    "pools that overflow": (
        "system=lru cache=lru_per_site loader.retention=after_batch hardware.memory_gib=48"
    ),
    "one need at a time": "system=lru loader.replay_unit=access loader.wait=in_order",
    "together": f"system=mixtral_offloading {TOGETHER}",
    "chunks of prompts": f"system=hobbit {TOGETHER} workload.prefill_chunk=8",
    "arrivals": f"system=lru {TOGETHER} workload.arrivals_per_s=0.05 {HOST}",
    "a burst": f"system=lru {TOGETHER} workload.arrivals_s=[0,0]",
    "drafts": "system=lru workload=mtp_4 hardware.memory_gib=48",
    "drafts of several": (
        f"system=hobbit {TOGETHER} workload.prefill_chunk=8 workload.draft_tokens=2"
        " workload.draft_accepted=0.6"
    ),
    "groups": "system=hobbit workload.batching=static workload.together=2",
}


@pytest.fixture(scope="module", params=RUNS.values(), ids=RUNS)
def ran(
    request: pytest.FixtureRequest, configure: Configure, bundled_trace: Trace
) -> tuple[Run, Result]:
    words = (
        "trace.max_sequences=2",
        "budget.resident_share=0.4",
        "bounds=max",
        *request.param.split(),
    )
    run = build(configure(*words), "x", bundled_trace)
    return run, execute(run)


# Contracts: C115
@pytest.mark.alike
def test_no_run_beats_its_bound(ran: tuple[Run, Result]) -> None:
    summary = ran[1].summary
    bounds = summary["bounds"]
    assert 0 < bounds["lower_s"] == max(bounds["compute_s"], bounds["link_s"])
    assert summary["gap"] >= 0
    assert (bounds["belady_loads"] is None) == (bounds["why_no_belady"] is not None)


@pytest.mark.alike
def test_the_summary_is_what_the_tables_say(ran: tuple[Run, Result]) -> None:
    run, result = ran
    summary, config = (json.loads(json.dumps(told)) for told in (result.summary, run.config))
    found = audit(RunFiles(summary, config, **result.frames.tables()))
    assert [str(difference) for difference in found.differences] == []
    assert NO_RULE not in found.not_recomputed


# Contracts: C103
@pytest.mark.alike
def test_busy_and_idle_time_make_up_the_makespan(ran: tuple[Run, Result]) -> None:
    _, result = ran
    frames = result.frames
    assert tuple(result.summary["stall_s"]) == STALL_PARTS
    assert all(int(ns.min(initial=0)) >= 0 for ns in frames.stalls.values())
    step_ns = (
        frames.tokens.unique("step")
        .select(pl.col("compute_ns").sum() + pl.col("stall_ns").sum())
        .item()
    )
    steps, since = frames.tokens.unique("step").sort("step"), frames.first_arrival_ns
    between = sum(steps["start_ns"].to_list()) - sum([since, *steps["end_ns"].to_list()[:-1]])
    assert step_ns + between == frames.makespan_ns
    assert frames.tokens["compute_ns"].min() > 0
    inside = steps["stall_ns"].sum()
    assert inside + between == sum(int(ns.sum()) for ns in frames.stalls.values())


# Contracts: C103
@pytest.mark.alike
def test_a_summary_is_json_and_reports_every_switch(ran: tuple[Run, Result]) -> None:
    run, result = ran
    contracts = result.summary["contracts"]
    assert json.loads(json.dumps(result.summary, allow_nan=False))
    for switch in fields(Loader):
        assert contracts[switch.name] == getattr(run.controller.loader, switch.name)
    assert contracts["batching"] == run.workload.batching
    assert contracts["together"] == run.workload.together
    assert contracts["prefill_chunk"] == run.workload.prefill_chunk
    assert (contracts["arrivals"] is not None) == run.workload.is_timed


def test_bytes_and_time_are_told_by_link(ran: tuple[Run, Result]) -> None:
    run, result = ran
    summary, transfers = result.summary, result.frames.transfers
    assert (
        list(summary["bytes"]) == list(summary["link_utilisation"]) == list(run.hardware.link_names)
    )
    for link, by_class in summary["bytes"].items():
        of_link = transfers.filter(pl.col("link") == link)
        for kind in ("demand", "prefetch", "dense"):
            assert by_class[kind] == of_link.filter(pl.col("class") == kind)["moved_bytes"].sum()
        assert 0 <= summary["link_utilisation"][link] <= 1
    assert sum(by_class["activation"] for by_class in summary["bytes"].values()) == 0


# Contracts: C51
def test_prefetches_that_were_started_have_one_outcome_each(ran: tuple[Run, Result]) -> None:
    counts = ran[1].summary["prefetch"]
    started = ("used", "late", "dropped", "evicted_unused", "unused_at_end")
    assert counts["started"] == sum(counts[name] for name in started)
    assert counts["queued"] == counts["started"] + sum(
        counts[n] for n in ("promoted", "cancelled", "dropped_no_slot")
    )


def test_only_decoded_rows_draft_and_give_new_tokens(ran: tuple[Run, Result]) -> None:
    tokens = ran[1].frames.tokens
    for name in {"drafts", "new_tokens"} & set(tokens.columns):
        assert tokens.filter(pl.col("phase") == "prefill")[name].sum() == 0
        assert tokens.filter(pl.col("phase") == "decode")[name].sum() > 0


def test_a_sequence_is_as_far_as_all_the_tokens_that_it_was_given(ran: tuple[Run, Result]) -> None:
    """A draft that was not kept takes no position."""
    tokens = ran[1].frames.tokens
    if "new_tokens" not in tokens.columns:
        return
    for _, of_one in tokens.group_by("sequence", maintain_order=True):
        prompt = of_one.filter(pl.col("phase") == "prefill")["position"].max()
        decoded = of_one.filter(pl.col("phase") == "decode")
        assert isinstance(prompt, int)
        expected = (prompt + decoded["new_tokens"].cum_sum()).to_list()
        assert decoded["position"].to_list() == expected
        # A step keeps one token more than it keeps drafts.
        assert (decoded["new_tokens"] <= decoded["drafts"] + 1).all()


# Contracts: C111
def test_what_a_tier_held_at_its_fullest_fits_it(ran: tuple[Run, Result]) -> None:
    run, result = ran
    peak = result.summary["peak_bytes"]
    assert peak["device"] <= run.ledger.total_bytes <= run.hardware.memory_bytes
    assert peak["staging"] <= run.ledger.staging_bytes
    assert peak["ram"] <= run.hardware.route.ram_bytes
    capacity = run.controller.slots.capacity_bytes
    if len(capacity) == 1:
        assert run.controller.slots.peak_bytes - capacity[0] <= run.ledger.overflow_bytes


# Contracts: C111
def test_a_ram_tier_reports_what_it_was_asked_for(ran: tuple[Run, Result]) -> None:
    run, result = ran
    ram = result.summary["ram"]
    assert (ram is None) == (run.hardware.ram is None)
    if ram is not None:
        assert 0 < ram["hits"] <= ram["lookups"]
        assert ram["hit_ratio"] == ram["hits"] / ram["lookups"]
        assert ram["capacity_bytes"] == run.hardware.route.ram_bytes


# What a run shows


def summary_of(configure: Configure, trace: Trace, words: str) -> dict[str, Any]:
    base = ("trace.max_sequences=2", "budget.resident_share=0.4")
    return execute(build(configure(*base, *words.split()), "x", trace)).summary


def test_each_cause_of_waiting_shows_where_it_must(
    configure: Configure, bundled_trace: Trace
) -> None:
    expected = {
        "system=lru hardware=rtx4090_nvme": "storage",
        "system=lru placement=absent_on_cpu": "cpu_join",
        "system=lru loader.dense_slots=1": "dense",
        f"system=lru {HOST}": "host",
        f"system=lru {TOGETHER} workload.arrivals_per_s=0.01": "no_request",
        "system=mixtral_offloading": "late_prefetch",
    }
    for words, part in expected.items():
        assert summary_of(configure, bundled_trace, words)["stall_s"][part] > 0, words
        if part != "late_prefetch":
            assert summary_of(configure, bundled_trace, "system=lru")["stall_s"][part] == 0, part


def test_write_back_and_streamed_layers_have_bytes_of_their_own(
    configure: Configure, bundled_trace: Trace
) -> None:
    found = summary_of(configure, bundled_trace, "system=lru loader.write_back=true")["bytes"][
        "pcie"
    ]
    assert found["write_back"] == found["demand"], "each load evicts one of its size"
    streamed = summary_of(configure, bundled_trace, "system=lru loader.dense_slots=2")["bytes"][
        "pcie"
    ]
    assert streamed["dense"] > 0


@pytest.mark.thorough
def test_forecasts_of_several_rows_are_measured_as_unions(
    configure: Configure, bundled_trace: Trace
) -> None:
    alone = summary_of(configure, bundled_trace, "system=mixtral_offloading")["prediction"]
    together = summary_of(configure, bundled_trace, f"system=mixtral_offloading {TOGETHER}")[
        "prediction"
    ]
    assert together.pop("fitted_on") == 0
    assert together.pop("prefill") is None
    assert together.pop("prompts") == "not forecast by the system"
    for name, value in together.items():
        assert 0 < value <= 1, name
    assert together["recall_at_issued"] > alone["recall_at_issued"], (
        "unions of two rows overlap more"
    )


# Contracts: C108
@pytest.mark.thorough
def test_what_loads_before_the_run_takes_every_link_it_crosses(
    configure: Configure, bundled_trace: Trace
) -> None:
    """RAM's 24 GiB also hold the device's experts, so these come from there."""
    near = build(
        configure("system=lru", "budget.resident_share=0.4", "trace.max_sequences=1"),
        "x",
        bundled_trace,
    )
    far = build(
        configure(
            "system=lru",
            "budget.resident_share=0.4",
            "trace.max_sequences=1",
            "hardware=rtx4090_nvme",
        ),
        "x",
        bundled_trace,
    )
    loads = {run.hardware.name: execute(run).summary["load_s"] for run in (near, far)}
    ram = far.controller.ram
    assert ram is not None
    hop = far.durations.hop_ns
    on_the_way = hop(1, far.ledger.dense_bytes) + sum(
        hop(1, ram.key_bytes[key]) for key in ram.initial
    )
    missing = [key for key in far.controller.slots.initial if key not in set(ram.initial)]
    on_the_way += sum(hop(1, ram.key_bytes[key]) for key in missing)
    assert loads["rtx4090_nvme"] == pytest.approx(loads["rtx4090_pcie4"] + on_the_way / 1e9)
