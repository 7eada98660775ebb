"""Walks a log's gates through a cache policy, with at most one fault of the engine put in.

A walk finds the same as a `Replay`, but without clock or transfers. It is so fast that thousands of
faults can be tried: the walk of a fault begins at a checkpoint before the fault, and ends at the
first flag that differs from the log's. A *batch* is what one gate asks for.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np

from sim.checking.cache_replay import (
    LOADER_OPTIONS,
    Contract,
    Replay,
    Replayer,
    as_geometry,
    deviations,
    make_cache,
)
from sim.core.loader import Loader
from sim.core.slots import ABSENT, RESIDENT, Slots
from sim.policies.base import CachePolicy
from sim.traces.residency_log import ResidencyLog
from sim.values.types import Cause, Outcome, Step
from sim.workload.gates import StepGate

VICTIM, UNREFRESHED, LOST, PINNED, BUDGET = (
    "victim",
    "unrefreshed",
    "lost",
    "pinned",
    "budget",
)
HIT, MISS = int(Outcome.HIT), int(Outcome.MISS)
WAVES = "faults are looked for where every batch fits the budget"
STRIDE = 1000
"""About how many needs lie between two checkpoints."""


@dataclass(frozen=True)
class Fault:
    """One deviation from the contract, in the batch of gate ``tick``.

    | kind | what went wrong |
    |---|---|
    | victim | ``key`` was evicted instead of ``other`` (key -1: the victim after ``other``) |
    | unrefreshed | ``key`` was there and asked for, but the policy was not told |
    | lost | ``key`` was dropped at the batch's end |
    | pinned | ``other`` was never evicted from then on |
    | budget | ``change_bytes`` more were allowed from the batch's end on |
    """

    kind: str
    tick: int
    key: int = -1
    other: int = -1
    change_bytes: int = 0


@dataclass(frozen=True)
class Difference:
    """A need whose logged flag differs from the walk; ``found`` is whether the walk found it."""

    tick: int
    key: int
    found: bool


class _NoRoom(ValueError):
    """A batch does not fit the budget: ``key`` of gate ``tick`` finds no place."""

    def __init__(self, tick: int, key: int) -> None:
        super().__init__(WAVES)
        self.tick, self.key = tick, key


class _Choosing:
    """A policy's victims, with the changes of a fault.

    The key ``first`` comes first while it is there; the keys ``spared`` and ``pinned`` are left out
    (-1: none).
    """

    def __init__(self, policy: CachePolicy, slots: Slots) -> None:
        self.policy, self.slots = policy, slots
        self.pools, self.on_insert = policy.pools, policy.on_insert
        self.first = self.spared = self.pinned = -1

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        first, slots = self.first, self.slots
        is_of_pool = first >= 0 and slots.pool_of[first] == pool
        if is_of_pool and slots.state[first] == RESIDENT and not blocked[first]:
            yield first
        for key in self.policy.victims(pool, incoming, blocked):
            if key not in (self.first, self.spared, self.pinned):
                yield key

    def first_victim(self, pool: int, incoming: int, blocked: bytearray) -> int:
        return next(self.victims(pool, incoming, blocked), -1)


class CacheWalk:
    """The walk of one log under one contract, with or without a fault.

    ``evictions`` are those of the contract without fault: (tick of the batch, key), in order. Raise
    ValueError where batches are no whole gates, or where the policy may refuse what was loaded.
    """

    def __init__(
        self, replayer: Replayer, contract: Contract, budget_bytes: int, replay: Replay
    ) -> None:
        options = {name: value for name, value in contract.options if name in LOADER_OPTIONS}
        loader = Loader(**options)  # type: ignore[arg-type]
        self.policy: CachePolicy = make_cache(contract)
        if loader.replay_unit != "union" or not self.policy.admits_all:
            raise ValueError(
                "faults are looked for where batches are looked up whole, and all is admitted"
            )
        self.replayer, self.workload = replayer, replayer.workload
        self._overflows = loader.overflows
        self._trims_visited = loader.retention == "until_next_visit"
        self._slots = Slots(
            as_geometry(replayer.log, budget_bytes), self.policy, 1, self._overflows
        )
        self.pools, self.pool_of = self._slots.capacity_bytes, self._slots.pool_of
        self.wrong = deviations(replayer.log, replay)
        """The lookups whose flag differs from what the contract finds."""
        self._take_gates()
        self.walked = 0
        """How many needs all walks together have visited so far."""
        self.evictions: list[tuple[int, int]] = []
        self._choosing = self._slots.cache = _Choosing(self.policy, self._slots)  # type: ignore[assignment]
        self._pins: Sequence[int] = ()
        self._checkpoints: list[bytes] = []
        self._held: list[bytes] = []
        self._wide_gates: dict[int, StepGate] = {}
        self._joined: int | None = None
        self.found: list[list[bool]] = [flags for _, flags in self._walk(0, None)]
        told = replay.resident[self._first_lookup].tolist()
        if [flag for flags in self.found for flag in flags] != told:
            raise ValueError(WAVES)
        self._compare()

    def of(self, log: ResidencyLog, replay: Replay) -> CacheWalk:
        """This walk for another log with the same lookups but other flags or bytes read."""
        other = copy(self)
        other.replayer = copy(self.replayer)
        other.replayer.log = log
        other.wrong = deviations(log, replay)
        other._compare()
        return other

    def _compare(self) -> None:
        """Split the log's flags by gate, and note at which gates they differ from the walk."""
        flags = iter(self.replayer.log.resident[self._first_lookup].tolist())
        self.logged: list[list[bool]] = [list(islice(flags, len(keys))) for keys in self.keys]
        """By gate and need, the flag of the need's first lookup in the batch."""
        wrong = [found != logged for found, logged in zip(self.found, self.logged, strict=True)]
        self._next_wrong = np.append(np.flatnonzero(wrong), len(wrong))

    def _take_gates(self) -> None:
        workload, log = self.workload, self.replayer.log
        needs, units = workload.needs, self.replayer.units
        cuts = np.searchsorted(needs.tick, np.arange(workload.num_gates + 1)).tolist()
        keys = (workload.gate_site[needs.tick] * units + needs.expert).tolist()
        self.keys: list[list[int]] = [keys[a:b] for a, b in pairwise(cuts)]
        """The keys that each gate asks for, in need order."""
        cells = needs.tick * units + needs.expert
        asked = self.replayer.tick * units + log.expert
        order = np.argsort(asked, kind="stable")
        self._first_lookup = order[np.searchsorted(asked[order], cells)]
        self._steps: list[Step] = [workload.steps[step] for step in workload.gate_step.tolist()]
        self._sites: list[int] = workload.gate_site.tolist()
        before = np.array(cuts[:-1]) // STRIDE
        self._starts: list[int] = np.flatnonzero(np.diff(before, prepend=-1)).tolist()
        """The gates that have a checkpoint before them."""
        self._is_start = dict(zip(self._starts, range(len(self._starts)), strict=True))

    def lookup(self, tick: int, key: int) -> int:
        """The first lookup of the log that asks for ``key`` in a batch."""
        place = sum(len(keys) for keys in self.keys[:tick]) + self.keys[tick].index(key)
        return int(self._first_lookup[place])

    def differences(self) -> Iterator[Difference]:
        """The differences between the log and the contract without a fault, in order."""
        for tick, (found, logged) in enumerate(zip(self.found, self.logged, strict=True)):
            if found != logged:
                for key, there, said in zip(self.keys[tick], found, logged, strict=True):
                    if there != said:
                        yield Difference(tick, key, there)

    def first_difference(self, fault: Fault) -> Difference | None:
        """The first difference between the log and the contract with ``fault``, from its gate on.

        None where the fault explains every flag from there on. A cache that finds no place for an
        expert, because of the fault, differs there.
        """
        try:
            for tick, found in self._walk(fault.tick, fault):
                if found != self.logged[tick]:
                    return self._difference(tick, found)
        except _NoRoom as full:
            return Difference(full.tick, full.key, False)
        if self._joined is not None:
            tick = int(self._next_wrong[np.searchsorted(self._next_wrong, self._joined)])
            if tick < len(self.keys):
                return self._difference(tick, self.found[tick])
        return None

    def _difference(self, tick: int, found: Sequence[bool]) -> Difference:
        place = next(i for i, there in enumerate(found) if there != self.logged[tick][i])
        return Difference(tick, self.keys[tick][place], found[place])

    def _walk(self, start: int, fault: Fault | None) -> Iterator[tuple[int, list[bool]]]:
        """Yield each gate from ``start`` on, and for each of its needs whether it was found.

        The walk ends with the log, or at a checkpoint where the cache is the same as without the
        fault. ``_joined`` is then that gate, and all later gates find what they find without it.
        """
        first, self._joined = 0, None
        if fault is not None:
            place = bisect_right(self._starts, start) - 1
            first = self._starts[place]
            self._slots, self.policy, self._choosing, self._pins = pickle.loads(
                self._checkpoints[place]
            )
        step, gate = None, None
        for tick in range(first, len(self.keys)):
            if tick in self._is_start:
                if fault is None:
                    # Pickled twice, because a state that was read from a pickle may be written in
                    # other bytes than the original, and checkpoints are compared by their bytes.
                    self._checkpoints.append(
                        pickle.dumps(pickle.loads(self._state()), pickle.HIGHEST_PROTOCOL)
                    )
                    self._held.append(bytes(self._slots.state))
                elif tick > fault.tick + 1 and self._is_as_without(self._is_start[tick]):
                    self._joined = tick
                    return
            self._end_batch(tick - 1, fault)
            if self._steps[tick] is not step:
                self._change_sequences(
                    step if tick > first else self._steps[tick - 1] if tick else None,
                    self._steps[tick],
                )
                step = self._steps[tick]
                gate = self._open(step)
            assert gate is not None
            gate.tick = tick - 1
            gate.visit(self._sites[tick])
            found = self._visit(tick, gate, fault)
            if tick >= start:
                yield tick, found

    def _state(self) -> bytes:
        return pickle.dumps(
            (self._slots, self.policy, self._choosing, self._pins), pickle.HIGHEST_PROTOCOL
        )

    def _is_as_without(self, place: int) -> bool:
        """Whether cache and policy are in the same state as at a checkpoint without a fault."""
        return (
            bytes(self._slots.state) == self._held[place]
            and self._state() == self._checkpoints[place]
        )

    def _open(self, step: Step) -> StepGate:
        """A gate opened at ``step``; kept for steps of several rows, whose unions take long."""
        gate = self._wide_gates.get(step.index)
        if gate is None:
            gate = self.workload.gate()
            gate.open(step)
            if step.rows > 1:
                self._wide_gates[step.index] = gate
        return gate

    def _change_sequences(self, before: Step | None, now: Step) -> None:
        if before is now:
            return
        for sequence in before.ends if before is not None else ():
            self.policy.on_sequence(sequence, False)
        for sequence in now.begins:
            self.policy.on_sequence(sequence, True)

    def _end_batch(self, tick: int, fault: Fault | None) -> None:
        """End a batch: apply what a fault does there, then trim the pools as the contract says."""
        slots = self._slots
        if fault is not None and fault.tick == tick:
            if fault.kind == LOST and slots.state[fault.key] == RESIDENT:
                self._evict(fault.key)
            elif fault.kind == BUDGET:
                slots.free_bytes[0] += fault.change_bytes
        is_cut = fault is not None and fault.kind == BUDGET and fault.tick == tick
        if (self._overflows or is_cut) and min(slots.free_bytes) < 0:
            visited = {slots.pool_of[key] for key in self.keys[tick]}
            pools = sorted(visited) if self._trims_visited else range(len(self.pools))
            for victim in slots.excess(pools):
                self._evict(victim)
                if fault is None:
                    self.evictions.append((tick, victim))
        self._choosing.first = self._choosing.spared = -1

    def _visit(self, tick: int, gate: StepGate, fault: Fault | None) -> list[bool]:
        slots, policy, keys = self._slots, self.policy, self.keys[tick]
        self.walked += len(keys)
        told = keys
        if fault is not None and fault.tick == tick:
            self._begin(fault)
            if fault.kind == UNREFRESHED:
                told = [key for key in keys if key != fault.key]
        pinned, blocked, state = slots.pinned, slots.blocked, slots.state
        for key in self._pins:
            pinned[key] = blocked[key] = 0
        for key in keys:
            pinned[key] = blocked[key] = 1
        self._pins = keys
        policy.on_requests(
            told, [0] * len(told), [MISS if state[key] else HIT for key in told], gate
        )
        found = [not state[key] for key in keys]
        for key in [key for key in keys if state[key]]:
            victims = slots.claim(key, True)
            if victims is None:
                raise _NoRoom(tick, key)
            for victim in victims:
                self._evict(victim, released=True)
                if fault is None:
                    self.evictions.append((tick, victim))
            state[key] = RESIDENT
            policy.on_insert(key, Cause.DEMAND)
        return found

    def _begin(self, fault: Fault) -> None:
        """Put the fault into effect for this batch."""
        if fault.kind == VICTIM:
            self._choosing.first, self._choosing.spared = fault.key, fault.other
        elif fault.kind == PINNED:
            self._choosing.pinned = fault.other

    def _evict(self, key: int, released: bool = False) -> None:
        if not released:
            self._slots.release(key)
        self._slots.state[key] = ABSENT
        self.policy.on_evict(key)
