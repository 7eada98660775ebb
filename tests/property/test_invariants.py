"""Properties of every run with one link and its pools, of the bounds on runs, and of built runs.

Properties that hold whatever the features are in ``test_features.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, combinations, pairwise, product
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from differential.rows import ServiceRow
from property.watched import PLAIN, Done, done, every_run, run, scenario_of
from sim.bounds.bounds import lower_bounds
from sim.bounds.loads import fewest_loads
from sim.core.slots import IN_FLIGHT
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.execute import Result, execute
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape, Trace
from sim.values.types import Outcome

BOTH_TIES = pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
SYSTEMS = ("load_on_demand", "lru", "mixtral_offloading", "hobbit", "oracle")
SHARES = (0.3, 0.7)
BUILT = list(product(SYSTEMS, SHARES, ("bundled", "synthetic")))
WAITED = ("late", "promoted", "miss")


def runs(ties: bool) -> Iterator[Done]:
    """The plain ones of the random scenarios: one link, and pools only."""
    return (done("plain", seed, ties) for seed in range(PLAIN))


def ended(one: Done, service: ServiceRow) -> int:
    """The end of a service; if the run's end cut it, the end of the run."""
    return one.timeline.makespan_ns if service.end_ns < 0 else service.end_ns


# Random scenarios


@BOTH_TIES
def test_every_byte_that_came_in_is_resident_evicted_or_still_on_its_way(ties: bool) -> None:
    evicted_somewhere = in_flight_somewhere = 0
    for one in runs(ties):
        keys = Counter(
            one.scenario.pack(key) for pool in one.scenario.pools for key in pool.initial
        )
        keys.update(row.key for row in one.timeline.transfers)
        evicted = [key for row in one.timeline.transfers for key in row.victims]
        keys.subtract(evicted)
        held = {key: state for key, state in enumerate(one.controller.state) if state <= IN_FLIGHT}
        assert +keys == Counter(held.keys())
        assert min(keys.values(), default=0) >= 0
        on_the_way = {key for key, state in held.items() if state == IN_FLIGHT}
        arrived = {row.number for row in one.timeline.services if row.end_ns >= 0}
        cut = [
            row.key for number, row in enumerate(one.timeline.transfers) if number not in arrived
        ]
        assert len(on_the_way) <= one.scenario.loader.in_flight
        assert on_the_way <= set(cut)
        evicted_somewhere += len(evicted)
        in_flight_somewhere += len(on_the_way)
    assert evicted_somewhere > 300
    assert in_flight_somewhere > 0


@BOTH_TIES
def test_times_of_transfers_and_needs_follow_their_causes(ties: bool) -> None:
    """For a transfer queued <= start <= end; for a need lookup <= ready <= end of the site.

    A need becomes ready at an arrival.
    """
    for one in runs(ties):
        ends = {gate.tick: gate.end_ns for gate in one.timeline.gates}
        transfers = one.timeline.transfers
        arrivals = {(transfers[row.number].key, row.end_ns) for row in one.timeline.services}
        for service in one.timeline.services:
            ((_, queued_ns),) = transfers[service.number].hops
            assert queued_ns <= service.start_ns <= ended(one, service) <= one.timeline.makespan_ns
        for row in one.timeline.lookups:
            assert row.lookup_ns <= row.ready_ns <= ends[row.tick]
            if row.outcome in WAITED:
                assert (row.key, row.ready_ns) in arrivals
            if row.outcome != "skip":
                assert (
                    row.ready_ns < ends[row.tick]
                    or one.scenario.expert_ns(one.scenario.unpack(row.key)[0], 1, 1) == 0
                )


@BOTH_TIES
def test_the_link_serves_one_transfer_at_a_time_and_rests_only_when_nothing_can_be_served(
    ties: bool,
) -> None:
    """A transfer that starts after a rest was queued at that very instant.

    So nothing that could have been issued was waiting.
    """
    rests = 0
    for one in runs(ties):
        for before, after in pairwise(one.timeline.services):
            assert before.number < after.number
            assert 0 <= before.end_ns <= after.start_ns
            if before.end_ns < after.start_ns:
                assert one.timeline.transfers[after.number].hops == ((0, after.start_ns),)
                rests += 1
    assert rests > 150


@BOTH_TIES
def test_counts_are_sums_over_rows(ties: bool) -> None:
    for one in runs(ties):
        outcomes = Counter(row.outcome for row in one.timeline.lookups)
        kinds = Counter(row.kind for row in one.timeline.transfers)
        counts = one.timeline.prefetch
        assert outcomes == Counter(
            Outcome(outcome).name.lower() for outcome in one.controller.lookup_outcomes
        )
        assert counts["started"] == kinds["prefetch"]
        assert kinds["demand"] == outcomes["miss"] + outcomes["promoted"]
        assert (counts["late"], counts["promoted"]) == (outcomes["late"], outcomes["promoted"])
        settled = [
            counts[name] for name in ("used", "late", "evicted_unused", "unused_at_end", "dropped")
        ]
        assert counts["started"] == sum(settled)
        never_issued = [counts[name] for name in ("promoted", "cancelled", "dropped_no_slot")]
        assert counts["queued"] == counts["started"] + sum(never_issued)


# Bounds


def requests(one: Done) -> tuple[Any, Any, Any]:
    """Ticks and keys of all needs at precision 0, in order; for each, whether its gate is whole."""
    gates = [(step, site) for step in one.steps for site in step.sites]
    whole = one.scenario.loader.replay_unit == "union"
    rows = [
        (tick, one.scenario.pack((0, site, need.expert)), step.rows == 1 and whole)
        for tick, (step, site) in enumerate(gates)
        for need in step.needs[site]
    ]
    ticks, keys, wholes = zip(*rows, strict=True)
    return np.array(ticks), np.array(keys), np.array(wholes)


def is_counted(one: Done) -> bool:
    """Whether every need is loaded into pools with slots of one size that are never exceeded."""
    scenario = one.scenario
    elsewhere = (
        one.outcomes["skip"]
        or one.outcomes["cpu"]
        or scenario.loader.staging_slots
        or scenario.site_bytes
    )
    elsewhere = elsewhere or scenario.reroute is not None
    return scenario.precisions == 1 and not elsewhere and scenario.loader.retention == "strict"


# Contracts: C117
@pytest.mark.alike
@BOTH_TIES
def test_no_run_loads_less_often_than_the_fewest_loads(ties: bool) -> None:
    """With one precision there is one size.

    Several pools together hold no more than one pool with all their slots.
    """
    seen = tight = 0
    more = (run(scenario_of("plain", seed, ties)) for seed in range(PLAIN, 100))
    for one in filter(is_counted, chain(every_run(ties), more)):
        scenario = one.scenario
        slots = sum(pool.capacity_bytes for pool in scenario.pools) // scenario.variant_bytes[0]
        initial = [scenario.pack(key) for pool in scenario.pools for key in pool.initial]
        ticks, keys, whole = requests(one)
        fewest = fewest_loads(ticks, keys, slots, initial, whole)
        loads = sum(transfer.kind != "dense" for transfer in one.timeline.transfers)
        assert fewest <= loads, one.name
        seen += 1
        tight += fewest == loads
    assert seen > 20
    assert tight > 0


def loads_by_brute_force(
    gates: list[frozenset[int]], slots: int, initial: frozenset[int], whole: bool, over: bool
) -> int:
    """The fewest loads, found by trying everything that could be resident at each gate boundary.

    All of a gate's needs are resident if it is served whole and fits. ``over``: as many as the gate
    needs may stay, whatever the slots.
    """
    fewest = dict.fromkeys(subsets(initial, slots), 0)
    for needs in gates:
        capacity = max(slots, len(needs)) if over else slots
        after: dict[frozenset[int], int] = {}
        for resident, loads in fewest.items():
            total = loads + len(needs - resident)
            for kept in subsets(resident | needs, capacity):
                if whole and len(needs) <= capacity and not needs <= kept:
                    continue
                after[kept] = min(total, after.get(kept, total))
        fewest = after
    return min(fewest.values())


def subsets(items: frozenset[int], most: int) -> Iterator[frozenset[int]]:
    for size in range(min(most, len(items)) + 1):
        yield from map(frozenset, combinations(sorted(items), size))


GATES = st.lists(st.frozensets(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=7)


@settings(max_examples=200, deadline=None)
@given(
    gates=GATES,
    slots=st.integers(0, 4),
    initial=st.frozensets(st.integers(0, 4), max_size=3),
    whole=st.booleans(),
    over=st.booleans(),
)
def test_the_fewest_loads_are_those_of_brute_force(
    gates: list[frozenset[int]], slots: int, initial: frozenset[int], whole: bool, over: bool
) -> None:
    ticks = np.array([tick for tick, needs in enumerate(gates) for _ in needs])
    items = np.array([item for needs in gates for item in needs])
    count = np.array([len(needs) for needs in gates for _ in needs]) if over else None
    found = fewest_loads(ticks, items, slots, initial, np.full(len(ticks), whole), count)
    assert found == loads_by_brute_force(gates, slots, initial, whole, over)


# Runs that are built


@pytest.fixture(scope="module")
def synthetic_trace() -> Trace:
    """A small model of eight experts, with prompts of five tokens and the widths of ``SMALL``."""
    shape = ModelShape("small", "none", 4, 8, 2, 256, 512)
    return synthesize(
        shape, tokens=24, sequences=6, prompt_tokens=5, lookahead=3, lookahead_accuracy=0.8, seed=3
    )


SMALL = (
    "trace=tiny_mixtral",  # The trace is at hand: no file is read.
    "model=tiny_mixtral",
    "model.name=small",
    "model.sites=4",
    "model.hidden=256",
    "model.expert_intermediate=512",
)


@pytest.fixture(scope="module", params=BUILT, ids=lambda p: "-".join(map(str, p)))
def built(
    request: pytest.FixtureRequest,
    configure: Callable[..., DictConfig],
    bundled_trace: Trace,
    synthetic_trace: Trace,
) -> tuple[Run, Result]:
    system, share, which = request.param
    # 70 % of the experts of half of Mixtral's layers need more memory than a real card has.
    model = ("trace.max_sequences=2", "experiment=more_memory") if which == "bundled" else SMALL
    trace = bundled_trace if which == "bundled" else synthetic_trace
    one = build(
        configure(f"system={system}", f"budget.resident_share={share}", "bounds=max", *model),
        system,
        trace,
    )
    return one, execute(one)


@pytest.mark.alike
def test_no_built_run_beats_its_lower_bound(built: tuple[Run, Result]) -> None:
    one, result = built
    bounds = lower_bounds(one.workload, one.durations, one.controller)
    assert 0 < bounds.lower_ns <= result.frames.record.makespan_ns
    assert bounds.lower_ns == max(bounds.compute_ns, bounds.link_ns)
    assert result.summary["gap"] == result.frames.record.makespan_ns / bounds.lower_ns - 1 >= 0
    if bounds.belady_loads is None:
        assert len(one.controller.geometry.precisions) > 1
    else:
        assert bounds.belady_loads <= len(one.controller.issued)


def test_the_bytes_of_a_link_are_the_sum_of_its_pieces(built: tuple[Run, Result]) -> None:
    """A piece that the run's end cut has moved its share only; others are whole variants."""
    one, result = built
    (link,) = result.summary["bytes"]
    transfers = result.frames.transfers
    assert sum(result.summary["bytes"][link].values()) == transfers["moved_bytes"].sum()
    uncut = transfers.filter(pl.col("end_ns") < result.frames.record.makespan_ns)
    sizes = [
        one.controller.geometry.variant_bytes[one.controller.geometry.precision_of(key)]
        for key in uncut["key"]
    ]
    assert uncut["moved_bytes"].to_list() == sizes
    assert len(uncut) >= len(transfers) - one.controller.loader.in_flight


# Contracts: C105
def test_what_the_end_of_a_run_cuts_has_moved_its_share_of_bytes_rounded_down(
    configure: Callable[..., DictConfig], bundled_trace: Trace
) -> None:
    """Stale prefetches are kept, so that the link is busy when the last token is done."""
    overrides = (
        "system=mixtral_offloading",
        "predictor.sites=3",
        "loader.prefetch_budget=all",
        "loader.cancel_stale=false",
        "trace.max_sequences=1",
    )
    one = build(configure(*overrides), "x", bundled_trace)
    result = execute(one)
    makespan = result.frames.record.makespan_ns
    (cut,) = result.frames.transfers.filter(pl.col("end_ns") == makespan).iter_rows(named=True)
    size = one.controller.geometry.variant_bytes[0]
    service_ns = one.durations.hop_ns(0, size)
    assert 0 < makespan - cut["start_ns"] < service_ns
    assert cut["moved_bytes"] == size * (makespan - cut["start_ns"]) // service_ns


def test_the_numbers_of_a_summary_are_sums_over_its_rows(built: tuple[Run, Result]) -> None:
    one, result = built
    summary, frames = result.summary, result.frames
    counts = dict(frames.lookups["outcome"].value_counts().iter_rows())
    assert {name: count for name, count in summary["lookups"].items() if count} == counts
    assert sum(summary["lookups"].values()) == len(one.workload.needs.tick)
    prefetches = frames.transfers.filter(pl.col("class") == "prefetch")
    assert summary["prefetch"]["started"] == len(prefetches)
    settled = dict(prefetches["outcome"].value_counts().iter_rows())
    issued = ("used", "late", "dropped", "evicted_unused", "unused_at_end")
    assert {
        name: summary["prefetch"][name] for name in issued if summary["prefetch"][name]
    } == settled
    queued = frames.decisions.filter(pl.col("kind") == "queue_prefetch")
    assert summary["prefetch"]["queued"] == len(queued)
    for name, kind in (("cancelled", "cancel"), ("dropped_no_slot", "drop_no_slot")):
        left_at_the_end = summary["prefetch"][name] - len(
            frames.decisions.filter(pl.col("kind") == kind)
        )
        assert left_at_the_end == 0 or (name == "cancelled" and 0 < left_at_the_end < 5)
    idle = sum(int(parts.sum()) for parts in frames.stalls.values())
    assert frames.record.makespan_ns - idle == round(summary["compute_busy_s"] * 1e9)
    assert frames.tokens["stall_ns"].sum() == idle
    found, missed = int(frames.tokens["hits"].sum()), int(frames.tokens["misses"].sum())
    assert found + missed == len(frames.lookups) - counts.get("skip", 0)
