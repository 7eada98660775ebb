"""What must hold of every run, whatever its policies: bytes, causality, capacity, idle time, bounds, scaling.

Nothing here says that more memory or a faster link makes a run faster: with prefetching that is not so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

from differential import production_rows
from differential.features import FEATURES, random_feature
from differential.production import ScenarioDurations, ScenarioWorkload
from differential.rows import ServiceRow, Timeline, TransferRow
from differential.scenario import Fixed, Scenario, random_scenario
from differential.timeline import check
from sim.bounds import fewest_loads, lower_bounds
from sim.build import build
from sim.controller import Controller
from sim.engine import simulate
from sim.execute import Result, execute
from sim.loader import Transfer
from sim.policies.base import Gate
from sim.record import Record
from sim.run import Run
from sim.slots import IN_FLIGHT
from sim.synthesis import synthesize
from sim.trace import ModelShape, Trace
from sim.types import Outcome

SEEDS = range(120)
BOTH_TIES = pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
SYSTEMS = ("load_on_demand", "lru", "mixtral_offloading", "hobbit", "oracle")
SHARES = (0.3, 0.7)
BUILT = list(product(SYSTEMS, SHARES, ("bundled", "synthetic")))
WAITED = ("late", "promoted", "miss")


class CheckedController(Controller):
    """The controller it is given; after every call its state is checked, and what pools hold is added up anew."""

    def __init__(self, controller: Controller, scenario: Scenario) -> None:
        self.__dict__ = controller.__dict__
        self.scenario = scenario
        self.checks = 0

    def _checked(self, answer: Any) -> Any:
        self.check()
        held = [self.scenario.unpack(key) for key, state in enumerate(self.state) if state <= IN_FLIGHT]
        for pool in self.scenario.pools:
            taken = sum(self.scenario.variant_bytes[key[0]] for key in held if pool.covers(key))
            assert taken <= pool.capacity_bytes
        self.checks += 1
        return answer

    def begin_sequence(self, sequence: int) -> None:
        self._checked(super().begin_sequence(sequence))

    def end_sequence(self, sequence: int) -> None:
        self._checked(super().end_sequence(sequence))

    def gate(self, gate: Gate) -> Any:
        return self._checked(super().gate(gate))

    def need_done(self, key: int) -> Any:
        return self._checked(super().need_done(key))

    def transfer_done(self, link: int, transfer: Transfer) -> Any:
        return self._checked(super().transfer_done(link, transfer))

    def poll(self, link: int) -> Any:
        return self._checked(super().poll(link))


@dataclass(frozen=True)
class Done:
    """A random scenario that ran through the production code, checked at every call."""

    scenario: Scenario
    timeline: Timeline
    controller: CheckedController
    record: Record


def run(scenario: Scenario) -> Done:
    seen: list[tuple[CheckedController, Record]] = []

    def checked(controller: Controller, workload: ScenarioWorkload, durations: ScenarioDurations) -> Record:
        watched = CheckedController(controller, scenario)
        seen.append((watched, simulate(watched, workload, durations)))  # type: ignore[arg-type]
        return seen[0][1]

    timeline = production_rows.run(scenario, checked)  # type: ignore[arg-type]
    return Done(scenario, timeline, *seen[0])


@cache
def done(seed: int, ties: bool) -> Done:
    return run(random_scenario(seed, ties))


def runs(ties: bool) -> Iterator[Done]:
    return (done(seed, ties) for seed in SEEDS)


def computing_ns(one: Done) -> int:
    """All work of the compute stream, from the scenario and what served each need."""
    needs = [need for step in one.scenario.steps for needs in step.needs for need in needs]
    experts = sum(
        one.scenario.expert_ns(one.scenario.unpack(row.key)[0], need.tokens)
        for row, need in zip(one.timeline.lookups, needs, strict=True)
        if row.outcome != "skip"
    )
    return experts + sum(sum(step.dense_ns) + step.tail_ns for step in one.scenario.steps)


def ended(one: Done, service: ServiceRow) -> int:
    """The end of a service, or that of the run, which cut it."""
    return one.timeline.makespan_ns if service.end_ns < 0 else service.end_ns


# ---- random scenarios ------------------------------------------------------------------------------------------------


@BOTH_TIES
def test_pools_never_hold_more_than_their_bytes_at_any_call(ties: bool) -> None:
    """``CheckedController`` asserts it; here: it did so after every call of every run."""
    for one in runs(ties):
        assert one.controller.checks == one.controller.calls == len(one.record.call_ns) > 2


@BOTH_TIES
def test_every_byte_that_came_in_is_resident_evicted_or_still_on_its_way(ties: bool) -> None:
    evicted_somewhere = in_flight_somewhere = 0
    for one in runs(ties):
        keys = Counter(one.scenario.pack(key) for pool in one.scenario.pools for key in pool.initial)
        keys.update(row.key for row in one.timeline.transfers)
        evicted = [key for row in one.timeline.transfers for key in row.victims]
        keys.subtract(evicted)
        held = {key: state for key, state in enumerate(one.controller.state) if state <= IN_FLIGHT}
        assert +keys == Counter(held.keys())
        assert min(keys.values(), default=0) >= 0
        on_the_way = {key for key, state in held.items() if state == IN_FLIGHT}
        arrived = {row.number for row in one.timeline.services if row.end_ns >= 0}
        cut = [row.key for number, row in enumerate(one.timeline.transfers) if number not in arrived]
        assert len(on_the_way) <= one.scenario.loader.in_flight
        assert on_the_way <= set(cut)
        evicted_somewhere += len(evicted)
        in_flight_somewhere += len(on_the_way)
    assert evicted_somewhere > 1000
    assert in_flight_somewhere > 0


@BOTH_TIES
def test_times_of_transfers_and_needs_follow_their_causes(ties: bool) -> None:
    """queued <= start <= end for a transfer; lookup <= ready <= end of the site for a need; ready is an arrival."""
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
                assert row.ready_ns < ends[row.tick] or one.scenario.expert_ns(one.scenario.unpack(row.key)[0], 1) == 0


@BOTH_TIES
def test_the_link_serves_one_transfer_at_a_time_and_rests_only_when_nothing_can_be_served(ties: bool) -> None:
    """A transfer that starts after a rest was queued at that very instant: nothing that could be issued was waiting."""
    rests = 0
    for one in runs(ties):
        for before, after in pairwise(one.timeline.services):
            assert before.number < after.number
            assert 0 <= before.end_ns <= after.start_ns
            if before.end_ns < after.start_ns:
                assert one.timeline.transfers[after.number].hops == ((0, after.start_ns),)
                rests += 1
    assert rests > 500


@BOTH_TIES
def test_the_parts_of_idle_time_sum_to_it_in_nanoseconds(ties: bool) -> None:
    for one in runs(ties):
        idle = sum(one.record.idle_end_ns) - sum(one.record.idle_start_ns)
        assert sum(one.timeline.stall.values()) == idle
        assert min(one.timeline.stall.values()) >= 0
        assert computing_ns(one) + idle == one.timeline.makespan_ns


@BOTH_TIES
def test_the_engine_keeps_every_invariant_that_the_reference_checks_of_itself(ties: bool) -> None:
    for one in runs(ties):
        check(one.scenario, one.timeline)


@pytest.mark.parametrize("feature", FEATURES)
def test_with_any_feature_idle_time_is_told_to_the_nanosecond_and_no_rule_of_the_timeline_is_broken(
    feature: str,
) -> None:
    for seed in range(6):
        scenario = random_feature(feature, seed, ties=bool(seed % 2))
        timeline = production_rows.run(scenario)
        assert sum(timeline.stall.values()) == timeline.makespan_ns - timeline.busy_ns
        assert min(timeline.stall.values()) >= 0
        check(scenario, timeline)


@BOTH_TIES
def test_a_run_takes_at_least_its_computing_and_its_moving_and_at_most_both(ties: bool) -> None:
    for one in runs(ties):
        moving = sum(ended(one, row) - row.start_ns for row in one.timeline.services)
        computing = computing_ns(one)
        assert max(moving, computing) <= one.timeline.makespan_ns <= moving + computing


@BOTH_TIES
def test_counts_are_sums_over_rows(ties: bool) -> None:
    for one in runs(ties):
        outcomes = Counter(row.outcome for row in one.timeline.lookups)
        kinds = Counter(row.kind for row in one.timeline.transfers)
        counts = one.timeline.prefetch
        assert outcomes == Counter(Outcome(outcome).name.lower() for outcome in one.controller.lookup_outcomes)
        assert counts["started"] == kinds["prefetch"]
        assert kinds["demand"] == outcomes["miss"] + outcomes["promoted"]
        assert (counts["late"], counts["promoted"]) == (outcomes["late"], outcomes["promoted"])
        settled = [counts[name] for name in ("used", "late", "evicted_unused", "unused_at_end", "dropped")]
        assert counts["started"] == sum(settled)
        never_issued = [counts[name] for name in ("promoted", "cancelled", "dropped_no_slot")]
        assert counts["queued"] == counts["started"] + sum(never_issued)


def test_a_machine_that_is_five_times_slower_does_the_same_in_five_times_the_time() -> None:
    def times(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(5 * value for value in values)

    for seed in SEEDS:
        scenario = random_scenario(seed, ties=bool(seed % 2))
        slow = replace(
            scenario, service_ns=times(scenario.service_ns), base_ns=times(scenario.base_ns),
            per_token_ns=times(scenario.per_token_ns),
            steps=tuple(replace(s, dense_ns=times(s.dense_ns), tail_ns=5 * s.tail_ns) for s in scenario.steps),
        )  # fmt: skip
        before, after = production_rows.run(scenario), production_rows.run(slow)
        assert scaled(before, 5) == after


def scaled(timeline: Timeline, factor: int) -> Timeline:
    """Every time and duration of a timeline times ``factor``."""

    def rows(values: tuple[Any, ...]) -> tuple[Any, ...]:
        # A service that did not end has -1, whatever the machine.
        return tuple(
            replace(row, **{name: factor * at if at >= 0 else at for name, at in vars(row).items()
                            if name.endswith("_ns")})
            for row in values
        )  # fmt: skip

    def hops(row: TransferRow) -> TransferRow:
        return replace(row, hops=tuple((link, factor * queued_ns) for link, queued_ns in row.hops))

    return replace(
        timeline, gates=rows(timeline.gates), lookups=rows(timeline.lookups), services=rows(timeline.services),
        steps=rows(timeline.steps), idle=rows(timeline.idle), transfers=tuple(map(hops, timeline.transfers)),
        makespan_ns=factor * timeline.makespan_ns, busy_ns=factor * timeline.busy_ns,
        stall={part: factor * ns for part, ns in timeline.stall.items()},
        sequence_ends=tuple((sequence, factor * ns) for sequence, ns in timeline.sequence_ends),
    )  # fmt: skip


@BOTH_TIES
def test_over_a_link_that_costs_nothing_a_run_is_free_of_io(ties: bool) -> None:
    for seed in SEEDS:
        scenario = random_scenario(seed, ties)
        one = run(replace(scenario, service_ns=(0,) * scenario.precisions))
        assert one.timeline.makespan_ns == computing_ns(one)
        assert not any(one.timeline.stall.values())


def test_with_room_for_everything_each_variant_is_loaded_once_and_nothing_is_evicted() -> None:
    for seed in SEEDS:
        scenario = random_scenario(seed, ties=bool(seed % 2))
        pools = tuple(replace(pool, capacity_bytes=10**6, initial=()) for pool in scenario.pools)
        loader = replace(scenario.loader, lookahead=0, low_for_high=False)
        timeline = production_rows.run(replace(scenario, pools=pools, selector=Fixed(0), loader=loader))
        asked = {(site, need.expert) for step in scenario.steps for site, ns in enumerate(step.needs) for need in ns}
        assert sorted(scenario.unpack(row.key)[1:] for row in timeline.transfers) == sorted(asked)
        assert not any(row.victims for row in timeline.transfers)
        assert Counter(row.outcome for row in timeline.lookups)["miss"] == len(asked)


def test_a_forecast_that_is_always_wrong_never_settles_a_prefetch_as_used() -> None:
    """The forecast names experts that no gate needs."""
    for seed in SEEDS:
        scenario = random_scenario(seed, ties=bool(seed % 2))
        unknown = scenario.experts  # one more expert, asked for by nobody
        steps = tuple(
            replace(step, forecasts=tuple(
                tuple(None if p is None else tuple(replace(f, expert=unknown) for f in p[:1]) for p in site)
                for site in step.forecasts
            ))
            for step in scenario.steps
        )  # fmt: skip
        pools = tuple(replace(pool, initial=()) for pool in scenario.pools)
        timeline = production_rows.run(replace(scenario, experts=unknown + 1, steps=steps, pools=pools))
        assert timeline.prefetch["used"] == timeline.prefetch["late"] == timeline.prefetch["promoted"] == 0


# ---- bounds ----------------------------------------------------------------------------------------------------------


def requests(scenario: Scenario) -> tuple[Any, Any]:
    """Ticks and keys of all needs at precision 0, in order."""
    rows = [
        (step_index * scenario.sites + site, scenario.pack((0, site, need.expert)))
        for step_index, step in enumerate(scenario.steps)
        for site, needs in enumerate(step.needs)
        for need in needs
    ]
    ticks, keys = zip(*rows, strict=True)
    return np.array(ticks), np.array(keys)


@BOTH_TIES
def test_no_run_loads_less_often_than_the_fewest_loads(ties: bool) -> None:
    """One size: one precision. Several pools together hold no more than one pool of their slots."""
    seen = tight = 0
    for one in runs(ties):
        scenario = one.scenario
        if scenario.precisions > 1 or any(row.outcome == "skip" for row in one.timeline.lookups):
            continue
        size = scenario.variant_bytes[0]
        slots = sum(pool.capacity_bytes for pool in scenario.pools) // size
        initial = [scenario.pack(key) for pool in scenario.pools for key in pool.initial]
        ticks, keys = requests(scenario)
        whole = np.array([scenario.steps[tick // scenario.sites].rows == 1 for tick in ticks.tolist()])
        fewest = fewest_loads(ticks, keys, slots, initial, whole)
        assert fewest <= len(one.timeline.transfers)
        seen += 1
        tight += fewest == len(one.timeline.transfers)
    assert seen > 20
    assert tight > 0


def loads_by_brute_force(
    gates: list[frozenset[int]], slots: int, initial: frozenset[int], whole: bool, over: bool
) -> int:
    """Try everything that could be resident at each gate boundary: all of a gate's needs, if it is whole and fits.

    ``over``: as many as the gate needs may stay, whatever the slots.
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


@settings(max_examples=400, deadline=None)
@given(gates=GATES, slots=st.integers(0, 4), initial=st.frozensets(st.integers(0, 4), max_size=3), whole=st.booleans(),
       over=st.booleans())  # fmt: skip
def test_the_fewest_loads_are_those_of_brute_force(
    gates: list[frozenset[int]], slots: int, initial: frozenset[int], whole: bool, over: bool
) -> None:
    ticks = np.array([tick for tick, needs in enumerate(gates) for _ in needs])
    items = np.array([item for needs in gates for item in needs])
    count = np.array([len(needs) for needs in gates for _ in needs]) if over else None
    found = fewest_loads(ticks, items, slots, initial, np.full(len(ticks), whole), count)
    assert found == loads_by_brute_force(gates, slots, initial, whole, over)


# ---- runs that are built ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def synthetic_trace() -> Trace:
    """A small model of eight experts, prompts of five tokens; hidden sizes are those of the model in ``SMALL``."""
    shape = ModelShape("small", "none", 4, 8, 2, 256, 512)
    return synthesize(shape, tokens=24, sequences=6, prompt_tokens=5, lookahead=3, lookahead_accuracy=0.8, seed=3)


SMALL = (
    "model=tiny_mixtral", "model.name=small", "model.sites=4", "model.hidden=256", "model.expert_intermediate=512",
)  # fmt: skip


@pytest.fixture(scope="module", params=BUILT, ids=lambda p: "-".join(map(str, p)))
def built(
    request: pytest.FixtureRequest, configure: Callable[..., DictConfig], bundled_trace: Trace, synthetic_trace: Trace
) -> tuple[Run, Result]:
    system, share, which = request.param
    # 70 % of Mixtral's experts need more than a real card has.
    model = ("trace.max_sequences=2", "experiment=more_memory") if which == "bundled" else SMALL
    trace = bundled_trace if which == "bundled" else synthetic_trace
    one = build(configure(f"system={system}", f"budget.resident_share={share}", *model), system, trace)
    return one, execute(one)


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
    """What the end of the run cut has moved its share only; every other piece is one variant, whole."""
    one, result = built
    (link,) = result.summary["bytes"]
    transfers = result.frames.transfers
    assert sum(result.summary["bytes"][link].values()) == transfers["moved_bytes"].sum()
    uncut = transfers.filter(pl.col("end_ns") < result.frames.record.makespan_ns)
    sizes = [one.controller.geometry.variant_bytes[one.controller.geometry.precision_of(key)] for key in uncut["key"]]
    assert uncut["moved_bytes"].to_list() == sizes
    assert len(uncut) >= len(transfers) - one.controller.loader.in_flight


def test_what_the_end_of_a_run_cuts_has_moved_its_share_of_bytes_rounded_down(
    configure: Callable[..., DictConfig], bundled_trace: Trace
) -> None:
    """Stale prefetches are kept, so that the link is busy when the last token is done."""
    overrides = ("system=mixtral_offloading", "predictor.sites=3", "loader.prefetch_budget=all",
                 "loader.cancel_stale=false", "trace.max_sequences=1")  # fmt: skip
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
    assert {name: summary["prefetch"][name] for name in issued if summary["prefetch"][name]} == settled
    queued = frames.decisions.filter(pl.col("kind") == "queue_prefetch")
    assert summary["prefetch"]["queued"] == len(queued)
    for name, kind in (("cancelled", "cancel"), ("dropped_no_slot", "drop_no_slot")):
        left_at_the_end = summary["prefetch"][name] - len(frames.decisions.filter(pl.col("kind") == kind))
        assert left_at_the_end == 0 or (name == "cancelled" and 0 < left_at_the_end < 5)
    idle = sum(int(parts.sum()) for parts in frames.stalls.values())
    assert frames.record.makespan_ns - idle == round(summary["compute_busy_s"] * 1e9)
    assert frames.tokens["stall_ns"].sum() == idle
    found, missed = int(frames.tokens["hits"].sum()), int(frames.tokens["misses"].sum())
    assert found + missed == len(frames.lookups) - counts.get("skip", 0)
