"""The engine and the driver of real runs do the same on a null device.

They are two programs around one controller. Every feature of docs/contracts is tested, alone and
mixed. Records are compared with ``==``, calls one by one, and each log is repeated by a fresh
controller. The order of calls is also the reference's, which shares no code with either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from differential import reference
from differential.features import FEATURES, random_feature, random_mixture
from differential.production import ScenarioDurations, ScenarioWorkload, controller_for
from differential.scenario import Cache, Scenario, random_scenario
from real.driver.device import NullDevice
from real.driver.loop import drive
from sim.core.controller import Controller
from sim.engine.simulate import simulate
from sim.machine.durations import Durations
from sim.results.calls import Call, RecordedController, RecordedWorkload
from sim.results.replay import Difference, first_difference, replay
from sim.values.record import Record
from sim.workload.steps import Workload

Case = tuple[str, int, bool]
"""Kind of scenario, seed, and whether its times are so small that much happens at one instant."""

KINDS = ("plain", *FEATURES, "mixture")
SEEDS = dict.fromkeys(FEATURES, 3) | {"plain": 10, "chunks": 12, "mixture": 12}
PLAIN: list[Case] = [("plain", seed, ties) for seed in range(40) for ties in (True, False)]
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


def cases(kind: str) -> Iterator[Case]:
    return ((kind, seed, ties) for seed in range(SEEDS[kind]) for ties in (True, False))


@cache
def given(kind: str, seed: int, ties: bool) -> Scenario:
    if kind == "plain":
        return random_scenario(seed, ties)
    return random_mixture(seed, ties) if kind == "mixture" else random_feature(kind, seed, ties)


def on_the_null_device(
    controller: Controller, workload: ScenarioWorkload, durations: Durations
) -> Record:
    return drive(controller, workload, durations, NullDevice())  # type: ignore[arg-type]


@dataclass(frozen=True)
class Run:
    record: Record
    calls: list[Call]
    asked_ns: list[int]


def run(scenario: Scenario, driver: Callable[[Controller, Workload, Durations], Record]) -> Run:
    controller, workload = RecordedController(controller_for(scenario)), ScenarioWorkload(scenario)
    steps = RecordedWorkload(workload)  # type: ignore[arg-type]
    record = driver(controller, steps, ScenarioDurations(scenario, workload))  # type: ignore[arg-type]
    controller.check()
    return Run(record, controller.log, steps.asked_ns)


@cache
def simulated(case: Case) -> Run:
    return run(given(*case), simulate)


@cache
def driven(case: Case) -> Run:
    return run(given(*case), on_the_null_device)  # type: ignore[arg-type]


def repeat(done: Run, scenario: Scenario, calls: list[Call] | None = None) -> Difference | None:
    """The first call, if any, that a fresh controller answers otherwise."""
    workload = ScenarioWorkload(scenario)
    return replay(
        done.calls if calls is None else calls, controller_for(scenario), workload, done.asked_ns
    )  # type: ignore[arg-type]


# Contracts: C12
@pytest.mark.alike
@ALL_KINDS
def test_both_drivers_write_the_same_record_and_make_the_same_calls(kind: str) -> None:
    for case in cases(kind):
        one, other = simulated(case), driven(case)
        assert first_difference(one.calls, other.calls) is None, case
        for column in fields(Record):
            assert getattr(one.record, column.name) == getattr(other.record, column.name), (
                case,
                column.name,
            )
        assert one.asked_ns == other.asked_ns, case


# Contracts: C13, C14
@pytest.mark.alike
@ALL_KINDS
def test_the_driver_calls_the_controller_in_the_order_of_the_page(kind: str) -> None:
    """The reference has no polls; all its other calls must come at the same times, in the same
    order.
    """
    for case in cases(kind):
        done = driven(case)
        assert without_polls(done.record, done.calls) == list(reference.run(given(*case)).calls), (
            case
        )


def without_polls(record: Record, calls: list[Call]) -> list[tuple[int, str, int]]:
    return [
        (now, call.kind, call.argument)
        for now, call in zip(record.call_ns, calls, strict=True)
        if call.kind != "poll"
    ]


# Contracts: C10
@pytest.mark.alike
@ALL_KINDS
def test_the_calls_of_either_driver_get_the_same_answers_from_a_fresh_controller(kind: str) -> None:
    for case in cases(kind):
        for done in (simulated(case), driven(case)):
            assert repeat(done, given(*case)) is None, case


# Contracts: C11
def test_the_features_make_every_call_there_is() -> None:
    made = Counter(
        call.kind for kind in KINDS for case in cases(kind) for call in driven(case).calls
    )
    rare = {kind: count for kind, count in made.items() if count < 30}
    assert len(made) == 10
    assert not rare


# ---- a log that is wrong is found to be


def test_two_answers_that_changed_places_are_found_at_the_first() -> None:
    found = 0
    for case in PLAIN:
        calls = list(driven(case).calls)
        pair = last_pair_of_other_answers(calls)
        if pair is None:
            continue
        a, b = pair
        calls[a], calls[b] = answered_as(calls[a], calls[b]), answered_as(calls[b], calls[a])
        difference = repeat(driven(case), given(*case), calls)
        assert difference is not None
        assert (difference.number, difference.expected) == (a + 1, calls[a])
        assert difference.names
        found += 1
    assert found > 50


def last_pair_of_other_answers(calls: list[Call]) -> tuple[int, int] | None:
    """The last two ends of transfers: what they answer differs, if they brought different keys."""
    ends = [index for index, call in enumerate(calls) if call.kind == "transfer_done"]
    pairs = [(a, b) for a, b in pairwise(ends) if calls[a].arrived != calls[b].arrived]
    return pairs[-1] if pairs else None


def answered_as(call: Call, other: Call) -> Call:
    asked = len(("number", *call.asked))
    return Call(*astuple(call)[:asked], *astuple(other)[asked:])


def test_a_dropped_call_is_found_where_it_is_missing() -> None:
    for case in PLAIN:
        calls = driven(case).calls
        index = case[1] * 7919 % (len(calls) - 1)
        difference = repeat(driven(case), given(*case), calls[:index] + calls[index + 1 :])
        assert difference is not None
        assert difference.number == index + 2


def test_a_dropped_gate_is_found_by_the_next_gate_though_the_numbers_close_the_gap() -> None:
    found = 0
    for case in PLAIN:
        calls = driven(case).calls
        gates = [index for index, call in enumerate(calls) if call.kind == "gate"]
        if len(gates) > 1:
            at = case[1] * 7919 % (len(gates) - 1)
            left = calls[: gates[at]] + calls[gates[at] + 1 :]
            renumbered = [replace(call, number=number) for number, call in enumerate(left, start=1)]
            difference = repeat(driven(case), given(*case), renumbered)
            assert difference is not None
            assert gates[at] < difference.number <= gates[at + 1]
            found += 1
    assert found > 50


def test_another_cache_policy_is_found_at_the_first_other_victim() -> None:
    found: Counter[tuple[str, ...]] = Counter()
    for case in PLAIN:
        scenario = given(*case)
        other = replace(scenario, cache=Cache("fifo" if scenario.cache.name == "lru" else "lru"))
        difference = repeat(driven(case), other)
        if difference is None:
            # It never decided otherwise, so a run with it is the same run.
            assert run(other, on_the_null_device).calls == driven(case).calls  # type: ignore[arg-type]
        else:
            found[difference.names] += 1
    assert set(found) == {("victims", "evicted")}
    assert found["victims", "evicted"] > 25


def test_another_switch_of_the_loader_is_found() -> None:
    found: Counter[str] = Counter()
    for case in PLAIN:
        scenario = given(*case)
        for name in ("cancel_stale", "demand_first", "low_for_high"):
            change: dict[str, Any] = {name: not getattr(scenario.loader, name)}
            loader = replace(scenario.loader, **change)
            difference = repeat(driven(case), replace(scenario, loader=loader))
            if difference is not None:
                assert difference.names or difference.why
                found[name] += 1
    assert min(found.values()) >= 1
    assert len(found) == 3
