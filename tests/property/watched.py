"""Random scenarios of every feature, run once under watch.

After every call of the controller its state is checked. Every question to a policy is asked twice.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from differential import production_rows
from differential.features import FEATURES, PREFIXES, random_feature, random_mixture
from differential.production import ScenarioDurations, ScenarioWorkload
from differential.rows import LookupRow, Timeline
from differential.scenario import Need, Scenario, Step, random_scenario
from sim.core.controller import Controller
from sim.core.slots import IN_FLIGHT, RESIDENT, UNUSED, Slots
from sim.engine.simulate import simulate
from sim.policies.base import CachePolicy
from sim.results.calls import KINDS
from sim.values.record import Record
from sim.values.types import REROUTE, SKIP, Cause, Place

MIXTURES, PLAIN, PREFIX_RUNS = 30, 40, 6
"""How many scenarios of these kinds, with ties and without; each feature has one more."""


class WatchedCache:
    """Watches a cache policy: what it is told, and that its questions do not change it.

    ``told`` are the keys that it was told had come in and not that they had gone. If all is well,
    these are what its tier holds. ``came`` and ``went`` count these events for each key.
    """

    def __init__(self, policy: CachePolicy) -> None:
        self.policy, self.told, self.asked, self.offered = policy, set[int](), 0, 0
        self.requested: set[int] = set()
        self.came: Counter[int] = Counter()
        self.went: Counter[int] = Counter()
        self._victims, self._admit = policy.victims, policy.admit
        self._first_victim = policy.first_victim
        self._on_insert, self._on_evict, self._on_requests = (
            policy.on_insert,
            policy.on_evict,
            policy.on_requests,
        )
        self.pool_of: Sequence[int] = ()
        # The policy was told the pools' initial contents before this watch began.
        for name in ("victims", "first_victim", "admit", "on_insert", "on_evict", "on_requests"):
            setattr(policy, name, getattr(self, name))

    def _unchanged(self, question: Callable[[], Any]) -> Any:
        """The answer to a question, which is asked twice and must not change the policy."""
        before = self._state()
        answer, again = question(), question()
        assert self._state() == before, "a question changed the policy"
        assert answer == again
        self.asked += 1
        return answer

    def _state(self) -> bytes:
        return pickle.dumps(
            {name: value for name, value in vars(self.policy).items() if not callable(value)}
        )

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        order = self._unchanged(lambda: list(self._victims(pool, incoming, blocked)))
        assert len(set(order)) == len(order), "a victim is offered once"
        may_go = {key for key in self.told if self.pool_of[key] == pool and not blocked[key]}
        assert set(order) == may_go, "victims are what is resident in the pool and not blocked"
        self.offered += len(order)
        return iter(order)

    def first_victim(self, pool: int, incoming: int, blocked: bytearray) -> int:
        first = next(self.victims(pool, incoming, blocked), -1)
        answer: int = self._unchanged(lambda: self._first_victim(pool, incoming, blocked))
        assert answer == first, "the first victim is the first of all"
        return first

    def admit(self, key: int, victims: Sequence[int]) -> bool:
        assert key not in self.told, "what is there does not come in again"
        assert {*victims} <= self.told, "what would have to go is there"
        answer = self._unchanged(lambda: self._admit(key, victims))
        assert answer in (True, False)
        assert answer or not self.policy.admits_all
        return bool(answer)

    def on_insert(self, key: int, cause: Cause) -> None:
        assert key not in self.told, "what is there does not come in again"
        self.told.add(key)
        self.came[key] += 1
        assert self._on_insert(key, cause) is None

    def on_evict(self, key: int) -> None:
        assert key in self.told or key in self.requested, "what goes has come, or was asked for"
        self.went[key] += key in self.told
        self.told.discard(key)
        assert self._on_evict(key) is None

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Any
    ) -> None:
        assert len(keys) == len(wanted) == len(outcomes)
        assert len(set(keys)) == len(keys)
        self.requested.update(keys)
        assert self._on_requests(keys, wanted, outcomes, gate) is None


class Watch:
    """Checks after every call: the controller's invariants, its policies' views, pins and room.

    ``hops`` are those that have ended or were cut: (call, link, transfer's number, bytes cut off).
    """

    def __init__(self, controller: Controller, scenario: Scenario) -> None:
        self.controller, self.scenario, self.checks = controller, scenario, 0
        self.hops: list[tuple[str, int, int, int]] = []
        self.called: Counter[str] = Counter()
        self.arrived: set[int] = set()
        self.caches = [self._watched(controller.slots)]
        if controller.ram is not None:
            self.caches.append(self._watched(controller.ram))
        self._pinned: set[int] = set()
        self._in_use: set[int] = set()
        self._watch_questions()
        for name in KINDS:
            setattr(controller, name, self._after(name, getattr(controller, name)))

    def _watched(self, slots: Slots) -> WatchedCache:
        watched = WatchedCache(slots.cache)
        watched.pool_of, watched.told = slots.pool_of, set(slots.initial)
        return watched

    def _after(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            self._note(name, args)
            answer = call(*args)
            self.check(new_pins=name == "gate")
            if name == "end_sequence":
                self._check_trimmed()
            return answer

        return called

    def _note(self, name: str, args: tuple[Any, ...]) -> None:
        self.called[name] += 1
        if name in ("transfer_done", "chunk_done"):
            link, transfer, *cut_bytes = args
            self.hops.append((name, link, transfer.number, sum(cut_bytes)))
            if (name, link) == ("transfer_done", 0):
                self.arrived.add(transfer.number)

    def _watch_questions(self) -> None:
        selector, placement, payload = (
            self.controller.selector,
            self.controller.placement,
            self.controller.payload,
        )
        select, place, moved_bytes = selector.select, placement.place, payload.moved_bytes
        missing_bytes = payload.missing_bytes

        def selecting(choice: Any, resident: Any) -> Sequence[int]:
            answers = [*select(choice, resident)]
            assert answers == [*select(choice, resident)]
            for answer, score in zip(answers, choice.scores, strict=True):
                sent = answer >= len(selector.precisions)
                assert not sent or (selector.reroutes and hasattr(choice, "tick"))
                permitted = selector.permitted(score)
                assert (
                    REROUTE if sent else answer
                ) in permitted or self.scenario.selector.low_above < 0  # type: ignore[union-attr]
                assert answer >= SKIP
            return answers

        def placing(gate: Any, keys: Sequence[int], resident: Any, queued: Any) -> Sequence[int]:
            answers = [*place(gate, keys, resident, queued)]
            assert answers == [*place(gate, keys, resident, queued)]
            assert len(answers) == len(keys)
            assert set(answers) <= set(Place)
            return answers

        def moving(key: int, choice: Any, index: int) -> int:
            answer = moved_bytes(key, choice, index)
            assert (
                1
                <= answer
                == moved_bytes(key, choice, index)
                <= self.controller.slots.key_bytes[key]
            )
            return answer

        def missing(key: int, gate: Any, index: int, moved_bytes: int) -> int:
            answer = missing_bytes(key, gate, index, moved_bytes)
            assert 0 <= answer == missing_bytes(key, gate, index, moved_bytes)
            assert moved_bytes + answer <= max(moved_bytes, self.controller.slots.key_bytes[key])
            return answer

        selector.select, placement.place = selecting, placing  # type: ignore[method-assign]
        payload.moved_bytes, payload.missing_bytes = moving, missing  # type: ignore[method-assign]

    # After a call

    def check(self, new_pins: bool) -> None:
        self.checks += 1
        self.controller.check()
        self._check_device()
        self._check_pins(new_pins)
        self._check_staging()
        if self.controller.ram is not None:
            self._check_ram()

    def _check_device(self) -> None:
        """The policy was told what is resident; that and what has a claim must fit the pools."""
        controller, scenario = self.controller, self.scenario
        staged = controller.staging.holds
        held = {
            key
            for key, state in enumerate(controller.state)
            if state <= UNUSED and not staged[key] and controller.expert_of(key) < scenario.experts
        }
        assert held == self.caches[0].told
        if scenario.loader.retention == "after_batch":
            return
        queued = (
            transfer for queues in controller.queues for queue in queues for transfer in queue
        )
        on_the_way = {
            id(t): t for t in (*controller.issued, *queued) if t.number not in self.arrived
        }
        coming = [
            t.key
            for t in on_the_way.values()
            if t.claimed and not (t.cancelled or t.staged or t.dense)
        ]
        assert not held & {*coming}
        self._check_room(scenario.pools, [*held, *coming], scenario.slot)

    def _check_trimmed(self) -> None:
        """With ``retention: after_batch``, what exceeds a pool is pinned or still on its way."""
        there, pins = (
            [self.scenario.unpack(key) for key in self.caches[0].told],
            {*self.controller.protection.pins},
        )
        for pool in self.scenario.pools:
            held = [key for key in there if pool.covers(key)]
            fits = sum(map(self.scenario.slot, held)) <= pool.capacity_bytes
            assert fits or all(self.scenario.pack(key) in pins for key in held)

    def _check_room(
        self, pools: Sequence[Any], keys: Sequence[int], size: Callable[[Any], int]
    ) -> None:
        unpacked = [self.scenario.unpack(key) for key in keys]
        for pool in pools:
            assert sum(size(key) for key in unpacked if pool.covers(key)) <= pool.capacity_bytes

    def _check_pins(self, new_pins: bool) -> None:
        """A variant that is pinned and resident must stay."""
        controller = self.controller
        there = {key for key in controller.protection.pins if controller.state[key] <= UNUSED}
        if not new_pins:
            assert self._pinned & {*controller.protection.pins} <= there
        self._pinned = there

    def _check_staging(self) -> None:
        controller, staging = self.controller, self.controller.staging
        staged = [key for key, held in enumerate(staging.holds) if held]
        assert len(staged) <= staging.used <= staging.slots == self.scenario.loader.staging_slots
        # The rest of a partial move goes into the same slot.
        assert all(
            controller.state[key] <= UNUSED or controller._transfer_of[key].parent >= 0
            for key in staged
        )

    def _check_ram(self) -> None:
        """The RAM tier's policy was told what is resident there.

        What a transfer asked for must stay until the transfer is over.
        """
        ram = self.controller.ram
        assert ram is not None
        assert self.scenario.ram is not None
        there = {key for key, state in enumerate(ram.state) if state == RESIDENT}
        assert there == self.caches[1].told
        coming = [key for key, state in enumerate(ram.state) if state == IN_FLIGHT]
        self._check_room(self.scenario.ram.pools, [*there, *coming], self.scenario.size)
        in_use = {key for key in there if ram.pinned[key]}
        assert {key for key in self._in_use if ram.pinned[key]} <= there
        self._in_use = in_use


@dataclass(frozen=True)
class Done:
    """A scenario that ran through the production code, perhaps watched at every call."""

    name: str
    scenario: Scenario
    timeline: Timeline
    controller: Controller
    record: Record
    steps: tuple[Step, ...]
    """The steps in the order in which they ran, as the scenario describes them."""
    watching: Watch | None

    @property
    def watch(self) -> Watch:
        assert self.watching is not None
        return self.watching

    @property
    def computing_ns(self) -> int:
        """All work of the compute stream, from the steps and from what served each need.

        An expert counts once a gate.
        """
        experts, rows = 0, iter(self.timeline.lookups)
        for step in self.steps:
            for site in step.sites:
                served: dict[int, list[tuple[LookupRow, Need]]] = {}
                for need in step.needs[site]:
                    row = next(rows)
                    if row.key != SKIP:
                        served.setdefault(self.scenario.unpack(row.key)[2], []).append((row, need))
                for expert, group in served.items():
                    own = [row for row, need in group if need.expert == expert]
                    row = [*own, group[0][0]][0]
                    tokens = min(step.rows, sum(need.tokens for _, need in group))
                    if row.outcome not in ("skip", "cpu"):
                        precision = self.scenario.unpack(row.key)[0]
                        experts += self.scenario.expert_ns(precision, tokens, step.rows)
        return experts + sum(
            sum(step.dense_ns[s] for s in step.sites) + step.tail_ns for step in self.steps
        )

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(row.outcome for row in self.timeline.lookups)


def run(scenario: Scenario, name: str = "", watched: bool = False) -> Done:
    seen: list[Any] = []

    def driven(
        controller: Controller, workload: ScenarioWorkload, durations: ScenarioDurations
    ) -> Record:
        watch = Watch(controller, scenario) if watched else None
        record = simulate(controller, workload, durations)  # type: ignore[arg-type]
        seen.extend((controller, record, tuple(workload.told), watch))
        return record

    timeline = production_rows.run(scenario, driven)  # type: ignore[arg-type]
    return Done(name, scenario, timeline, *seen)


def names() -> list[tuple[str, int]]:
    """Kind and seed of every scenario; scenarios with the same seed have the same base."""
    features = list(zip(FEATURES, range(len(FEATURES)), strict=True))
    return [
        *features,
        *((PREFIXES, seed) for seed in range(PREFIX_RUNS)),
        *(("mixture", seed) for seed in range(MIXTURES)),
        *(("plain", seed) for seed in range(PLAIN)),
    ]


@cache
def scenario_of(name: str, seed: int, ties: bool) -> Scenario:
    if name == "plain":
        return random_scenario(seed, ties)
    return random_mixture(seed, ties) if name == "mixture" else random_feature(name, seed, ties)


@cache
def done(name: str, seed: int, ties: bool) -> Done:
    return run(scenario_of(name, seed, ties), f"{name} {seed}", watched=True)


def every_run(ties: bool) -> Iterator[Done]:
    return (done(name, seed, ties) for name, seed in names())
