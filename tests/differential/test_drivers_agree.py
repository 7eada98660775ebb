"""The engine and the driver of real runs are two programs around one controller: they do the same on a null device."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from differential import production, reference
from differential.production import ScenarioWorkload, controller_for
from differential.reference import Readings, Reference, Timeline
from differential.scenario import Cache, Scenario, random_scenario
from real.device import NullDevice
from real.driver import drive
from sim.calls import Call, Difference, RecordedController, first_difference, replay
from sim.controller import Controller
from sim.costs import Durations
from sim.engine import simulate
from sim.record import Record

SEEDS = range(150)
CASES = tuple(product(SEEDS, (True, False)))
BOTH_TIES = pytest.mark.parametrize("ties", [True, False])


def on_the_null_device(controller: Controller, workload: ScenarioWorkload, durations: Durations) -> Record:
    return drive(controller, workload, durations, NullDevice())  # type: ignore[arg-type]


@dataclass(frozen=True)
class Run:
    timeline: Timeline
    record: Record
    calls: list[Call]


def run(scenario: Scenario, driver: production.Driver) -> Run:
    seen: list[tuple[Record, list[Call]]] = []

    def recorded(controller: Controller, workload: ScenarioWorkload, durations: Durations) -> Record:
        recording = RecordedController(controller)
        seen.append((driver(recording, workload, durations), recording.log))
        return seen[0][0]

    return Run(production.run(scenario, recorded), *seen[0])


@cache
def given(seed: int, ties: bool) -> Scenario:
    """A random scenario. The link's time is a function of bytes, so variants of equal bytes take equally long."""
    scenario = random_scenario(seed, ties)
    by_bytes = dict(zip(scenario.variant_bytes, scenario.service_ns, strict=True))
    return replace(scenario, service_ns=tuple(by_bytes[size] for size in scenario.variant_bytes))


@cache
def simulated(seed: int, ties: bool) -> Run:
    return run(given(seed, ties), simulate)  # type: ignore[arg-type]


@cache
def driven(seed: int, ties: bool) -> Run:
    return run(given(seed, ties), on_the_null_device)


def repeat(calls: list[Call], scenario: Scenario) -> Difference | None:
    return replay(calls, controller_for(scenario), ScenarioWorkload(scenario))  # type: ignore[arg-type]


@BOTH_TIES
def test_both_drivers_write_the_same_record_and_make_the_same_calls(ties: bool) -> None:
    for seed in SEEDS:
        one, other = simulated(seed, ties), driven(seed, ties)
        assert first_difference(one.calls, other.calls) is None, seed
        for column in fields(Record):
            assert getattr(one.record, column.name) == getattr(other.record, column.name), (seed, column.name)
        assert one.timeline == other.timeline, seed


@BOTH_TIES
def test_the_driver_calls_the_controller_in_the_order_of_the_page(ties: bool) -> None:
    """The reference has no polls; all its other calls must come at the same times, in the same order."""
    for seed in SEEDS:
        assert calls_without_polls(driven(seed, ties)) == list(reference.run(given(seed, ties)).calls), seed


def calls_without_polls(done: Run) -> list[tuple[int, str, int]]:
    return [
        (now, call.kind, call.argument)
        for now, call in zip(done.record.call_ns, done.calls, strict=True)
        if call.kind != "poll"
    ]


@BOTH_TIES
def test_with_interleaved_sequences_the_driver_does_as_the_reference(ties: bool) -> None:
    """A sequence then begins where another one's step, not its last, has ended."""
    for seed in SEEDS:
        scenario = interleaved(given(seed, ties), seed)
        # The checks of reference.run suppose sequences one after another.
        told = Reference(scenario, Readings()).run()
        done = run(scenario, on_the_null_device)
        assert calls_without_polls(done) == list(told.calls), seed
        stall = {part: ns for part, ns in done.timeline.stall.items() if part in told.stall}
        assert replace(done.timeline, stall=stall) == replace(told, calls=(), idle=()), seed


def interleaved(scenario: Scenario, seed: int) -> Scenario:
    """The same steps of every sequence in the same order, but the sequences' turns at random."""
    turns = np.random.default_rng(seed).permutation([step.sequence for step in scenario.steps])
    left = {sequence: [step for step in scenario.steps if step.sequence == sequence] for sequence in set(turns)}
    return replace(scenario, steps=tuple(left[sequence].pop(0) for sequence in turns))


@BOTH_TIES
def test_the_calls_of_either_driver_get_the_same_answers_from_a_fresh_controller(ties: bool) -> None:
    for seed in SEEDS:
        for done in (simulated(seed, ties), driven(seed, ties)):
            assert repeat(done.calls, given(seed, ties)) is None, seed


def test_two_answers_that_changed_places_are_found_at_the_first() -> None:
    found = 0
    for seed, ties in CASES:
        calls = list(driven(seed, ties).calls)
        pair = last_pair_of_other_answers(calls)
        if pair is None:
            continue
        a, b = pair
        calls[a], calls[b] = answered_as(calls[a], calls[b]), answered_as(calls[b], calls[a])
        difference = repeat(calls, given(seed, ties))
        assert difference is not None
        assert (difference.number, difference.expected) == (a + 1, calls[a])
        assert difference.names
        found += 1
    assert found > 200


def last_pair_of_other_answers(calls: list[Call]) -> tuple[int, int] | None:
    """The last two ends of transfers: what they answer differs, if they brought different keys."""
    ends = [index for index, call in enumerate(calls) if call.kind == "transfer_done"]
    pairs = [(a, b) for a, b in pairwise(ends) if calls[a].arrived != calls[b].arrived]
    return pairs[-1] if pairs else None


def answered_as(call: Call, other: Call) -> Call:
    return Call(*astuple(call)[:3], *astuple(other)[3:])


def test_a_dropped_call_is_found_where_it_is_missing() -> None:
    for seed, ties in CASES:
        calls = driven(seed, ties).calls
        index = seed * 7919 % (len(calls) - 1)
        difference = repeat(calls[:index] + calls[index + 1 :], given(seed, ties))
        assert difference is not None
        assert difference.number == index + 2


def test_a_dropped_gate_is_found_by_the_next_gate_though_the_numbers_close_the_gap() -> None:
    found = 0
    for seed, ties in CASES:
        calls = driven(seed, ties).calls
        gates = [index for index, call in enumerate(calls) if call.kind == "gate"]
        if len(gates) > 1:
            at = seed * 7919 % (len(gates) - 1)
            left = calls[: gates[at]] + calls[gates[at] + 1 :]
            difference = repeat([replace(call, number=n) for n, call in enumerate(left, start=1)], given(seed, ties))
            assert difference is not None
            assert gates[at] < difference.number <= gates[at + 1]
            found += 1
    assert found > 200


def test_another_cache_policy_is_found_at_the_first_other_victim() -> None:
    found: Counter[tuple[str, ...]] = Counter()
    for seed, ties in CASES:
        scenario = given(seed, ties)
        other = replace(scenario, cache=Cache("fifo" if scenario.cache.name == "lru" else "lru"))
        difference = repeat(driven(seed, ties).calls, other)
        if difference is None:
            # It never decided otherwise, so a run with it is the same run.
            assert run(other, on_the_null_device).calls == driven(seed, ties).calls
        else:
            found[difference.names] += 1
    assert set(found) == {("victims",)}
    assert found["victims",] > 100


def test_another_switch_of_the_loader_is_found() -> None:
    found: Counter[str] = Counter()
    for seed, ties in CASES:
        scenario = given(seed, ties)
        for name in ("promote", "cancel_stale", "demand_first", "low_for_high"):
            loader = replace(scenario.loader, **{name: not getattr(scenario.loader, name)})
            difference = repeat(driven(seed, ties).calls, replace(scenario, loader=loader))
            if difference is not None:
                assert difference.names or difference.why
                found[name] += 1
    assert min(found.values()) >= 10
    assert len(found) == 4
