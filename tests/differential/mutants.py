"""Defects that can be planted in the decision core, and loaders with wrong switches.

A mutant changes public names where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sim.core import controller
from sim.core.controller import Controller
from sim.core.ram import RamTier
from sim.core.rerouting import Serving, serve
from sim.core.slots import ABSENT, RESIDENT, UNUSED, Slots
from sim.core.transfer import Transfer
from sim.policies.base import Gate
from sim.policies.recency import LRU
from sim.values.types import Cause, Geometry, Outcome
from sim.workload.batching import Batcher

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Answer = tuple[list[int], dict[int, Transfer] | None]
FOUND_RESIDENT = (Outcome.HIT, Outcome.HIGH_FOR_LOW, Outcome.LOW_FOR_HIGH)


def nothing(patch: Patch) -> None:
    """No defect."""


# ---- switches and constants


def switched(**switches: Any) -> Plant:
    """Every controller gets a loader with other switches than it was given."""

    def plant(patch: Patch) -> None:
        init: Callable[..., None] = Controller.__init__

        def mutant(self: Controller, *parts: Any, **options: Any) -> None:
            init(self, *parts[:-1], replace(parts[-1], **switches), **options)

        patch.setattr(Controller, "__init__", mutant)

    return plant


def batched(**choices: Any) -> Plant:
    """Steps are composed by other rules than asked for."""

    def plant(patch: Patch) -> None:
        init: Callable[..., None] = Batcher.__init__
        names = (
            "requests",
            "batching",
            "together",
            "prefill_chunk",
            "separate_prompts",
            "speculation",
            "tiers",
        )

        def mutant(self: Batcher, *parts: Any) -> None:
            init(self, **dict(zip(names, parts, strict=True)) | choices)

        patch.setattr(Batcher, "__init__", mutant)

    return plant


def replaced(owner: Any, name: str, value: Any) -> Plant:
    return lambda patch: patch.setattr(owner, name, value, raising=False)


def one_size(geometry: Geometry) -> list[int]:
    """The key bytes of models whose sites are all alike."""
    return [geometry.variant_bytes[key // geometry.plane] for key in range(geometry.num_keys)]


def always(value: Any) -> property:
    """An attribute that stays as it is, whatever is written to it."""
    return property(lambda self: value, lambda self, new: None)


# ---- reroutes


def served_otherwise(change: Callable[[Serving, Gate], dict[str, Any]]) -> Plant:
    """Of what the selector's answers mean something is another."""

    def mutant(gate: Gate, answers: Sequence[int], geometry: Geometry) -> Serving:
        serving = serve(gate, answers, geometry)
        return replace(serving, **change(serving, gate))

    return replaced(controller, "serve", mutant)


def own_rows(serving: Serving, gate: Gate) -> dict[str, Any]:
    """An expert is computed for the rows of one need, though others join it."""
    return {"tokens": [rows and own for rows, own in zip(serving.tokens, gate.tokens, strict=True)]}


def nobody_joins(serving: Serving, gate: Gate) -> dict[str, Any]:
    """What is needed twice is asked for twice."""
    return {"wanted": serving.told, "tokens": gate.tokens}


# ---- slots


def slots_never_back(patch: Patch) -> None:
    """What a pool has given up stays lost."""
    lend, least = Slots.lend, dict[int, int]()

    def mutant(slots: Slots, spare_bytes: int) -> None:
        least[id(slots)] = min(least.get(id(slots), spare_bytes), spare_bytes)
        lend(slots, least[id(slots)])

    patch.setattr(Slots, "lend", mutant)


def needs_of_before_protected(patch: Patch) -> None:
    """A pool shrinks while the needs of the step before are still pinned."""

    def mutant(self: Controller, step: int, spare_bytes: int) -> None:
        self._step = step
        self.slots.lend(spare_bytes)
        self._trim(self._pools)
        self._let_go()

    patch.setattr(Controller, "_begin_step", mutant)


def room_of_the_step_before(patch: Patch) -> None:
    """Room is made for the keys and values of the step before."""
    begin = Controller._begin_step

    def mutant(self: Controller, step: int, spare_bytes: int) -> None:
        assert self.spare_bytes
        begin(self, step, self.spare_bytes(max(0, step - 1)))

    patch.setattr(Controller, "_begin_step", mutant)


def forecasts_first_to_shrink(patch: Patch) -> None:
    """What is forecast gives way as if it were not."""
    excess = Slots.excess

    def mutant(slots: Slots, pools: Iterable[int]) -> list[int]:
        blocked, slots.blocked = slots.blocked, slots.pinned
        gone = excess(slots, pools)
        slots.blocked = blocked
        return gone

    patch.setattr(Slots, "excess", mutant)


def pools_shrink_alike(patch: Patch) -> None:
    """Every pool has the same part of what keys and values leave."""

    def mutant(slots: Slots, spare_bytes: int) -> list[int]:
        return [own + spare_bytes // len(slots.capacity_bytes) for own in slots.capacity_bytes]

    patch.setattr(Slots, "rooms", mutant)


def pins_ignored(patch: Patch) -> None:
    """What a gate needs, and what is there, may be evicted."""
    claim = Slots.claim

    def mutant(slots: Slots, key: int, must: bool) -> Sequence[int] | None:
        blocked, pinned = slots.blocked, slots.pinned
        there = [state <= UNUSED for state in slots.state]
        slots.pinned = bytearray(p and not t for p, t in zip(pinned, there, strict=True))
        slots.blocked = bytearray(
            b and not (p and t) for b, p, t in zip(blocked, pinned, there, strict=True)
        )
        victims = claim(slots, key, must)
        slots.blocked, slots.pinned = blocked, pinned
        return victims

    patch.setattr(Slots, "claim", mutant)


def masks_ignored(patch: Patch) -> None:
    """A prefetch evicts what is forecast."""
    claim = Slots.claim

    def mutant(slots: Slots, key: int, must: bool) -> Sequence[int] | None:
        blocked, slots.blocked = slots.blocked, slots.pinned
        victims = claim(slots, key, must)
        slots.blocked = blocked
        return victims

    patch.setattr(Slots, "claim", mutant)


def claimed_at_queueing(patch: Patch) -> None:
    """A slot is claimed, and its victims evicted, when the transfer is queued."""
    queue = Controller._queue

    def mutant(self: Controller, key: int, prefetch: bool, moved_bytes: int) -> Transfer:
        transfer = queue(self, key, prefetch, moved_bytes)
        self._claim(transfer, 0)
        return transfer

    patch.setattr(Controller, "_queue", mutant)
    patch.setattr(Controller, "_moves_simply", always(False))


def promotion_lost(patch: Patch) -> None:
    """A need that finds a prefetch waiting waits for it in its place among the prefetches."""

    def mutant(self: Controller, transfer: Transfer) -> Transfer:
        transfer.is_needed = True
        return transfer

    patch.setattr(Controller, "_promote", mutant)


def is_demand(transfer: Transfer) -> bool:
    return not transfer.prefetch


def forget(transfer: Transfer, value: bool) -> None:
    """What is written is lost."""


def ram_pins_ignored(patch: Patch) -> None:
    """What a transfer has found in RAM may be evicted before it has been read."""
    take_in = RamTier.take_in

    def mutant(self: RamTier, key: int, must: bool, call: int) -> bool:
        pinned = self.pinned
        self.pinned = bytearray(
            p and state != RESIDENT for p, state in zip(pinned, self.state, strict=True)
        )
        self.blocked = self.pinned
        taken = take_in(self, key, must, call)
        self.pinned = self.blocked = pinned
        return taken

    patch.setattr(RamTier, "take_in", mutant)


def high_serves_no_low(patch: Patch) -> None:
    """Resident keys of precision 0 are hidden from a gate whose need wants precision 1."""
    answer = Controller.gate

    def mutant(self: Controller, gate: Gate) -> Answer:
        constant = self.selector.constant
        wanted = (
            [constant] * len(gate.needs)
            if constant is not None
            else self.selector.select(gate, self)
        )
        keys = [
            self.geometry.key(0, gate.site, e)
            for e, p in zip(gate.needs, wanted, strict=True)
            if p == 1
        ]
        hidden = {key: self.state[key] for key in keys if self.state[key] <= UNUSED}
        for key in hidden:
            self.state[key] = ABSENT
        outcomes = answer(self, gate)
        for key, state in hidden.items():
            self.state[key] = state
        return outcomes

    patch.setattr(Controller, "gate", mutant)


def recency_at_arrival(patch: Patch) -> None:
    """A missed key enters LRU's order when it arrives, not when it is asked for."""
    ask = LRU.on_requests

    def mutant(
        self: LRU, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        there = [index for index, outcome in enumerate(outcomes) if outcome in FOUND_RESIDENT]
        ask(
            self,
            [keys[i] for i in there],
            [wanted[i] for i in there],
            [outcomes[i] for i in there],
            gate,
        )

    insert = LRU.on_insert
    patch.setattr(LRU, "on_requests", mutant)
    patch.setattr(LRU, "on_insert", lambda self, key, cause: insert(self, key, Cause.PREFETCH))


def waves_admitted_early(patch: Patch) -> None:
    """Admission counts with one slot more than there is."""
    for name in ("gate", "need_done"):
        answer = getattr(Controller, name)

        def mutant(
            self: Controller, argument: Any, answer: Callable[..., Answer] = answer
        ) -> Answer:
            slots, capacity = self.slots, self.slots.room_bytes
            slots.room_bytes = tuple(size + max(self.geometry.variant_bytes) for size in capacity)
            outcomes = answer(self, argument)
            slots.room_bytes = capacity
            return outcomes

        patch.setattr(Controller, name, mutant)


def two_at_a_time(patch: Patch) -> None:
    """``replay_unit: access`` lets a second need in beside the first."""

    def write(self: Controller, value: bool) -> None:
        self.__dict__["one"] = value

    one = property(lambda self: self.__dict__["one"] and len(self.protection.pins) > 1, write)
    patch.setattr(Controller, "_one_at_a_time", one, raising=False)


def policies_not_told(patch: Patch) -> None:
    """What the CPU computed, or nobody, stays in the order of the cache policy."""
    leave = Controller._leave
    patch.setattr(
        Controller,
        "_leave",
        lambda self, key: leave(self, key) if self.staging.holds[key] else None,
    )


# ---- staging and partial moves


def exchange_moves_bytes(patch: Patch) -> None:
    """What is staged and needed is loaded once more, into the pool."""

    def mutant(self: Controller, key: int) -> None:
        if self.cache.admits_all:
            self.staging.take(key)
            self._queue(key, False, self.geometry.bytes_of(key))

    patch.setattr(Controller, "_exchange", mutant)


def staged_variants_kept(patch: Patch) -> None:
    """What is staged stays until somebody needs its slot."""
    drop = Controller._drop_staged
    patch.setattr(
        Controller,
        "_drop_staged",
        lambda self, key: drop(self, key) if self.staging.is_full else None,
    )


def partial_moves_hit_later(patch: Patch) -> None:
    """What was moved in part stays staged after its gate, as if it were all there."""
    leave = Controller._leave

    def mutant(self: Controller, key: int) -> None:
        if self.staging.holds[key] and self._transfer_of[key].partial:
            self.cache.on_evict(key)
        else:
            leave(self, key)

    patch.setattr(Controller, "_leave", mutant)


def everybody_enters(patch: Patch) -> None:
    """What is offered enters the pool though the policy does not admit it."""
    offer = Controller._offer

    def mutant(self: Controller, key: int) -> bool:
        self.cache.admit = lambda key, victims: True  # type: ignore[method-assign]
        return offer(self, key)

    patch.setattr(Controller, "_offer", mutant)


def offered_while_pinned(patch: Patch) -> None:
    """What was served from staging is offered to its pool while its gate's needs are still
    pinned.
    """
    tidy = Controller._tidy

    def mutant(self: Controller) -> None:
        for key in [
            key for key in self._outside if self.staging.holds[key] and self.state[key] == RESIDENT
        ]:
            if self._offer(key):
                self._outside.remove(key)
        self._offer = lambda key: False  # type: ignore[method-assign]
        tidy(self)
        del self._offer

    patch.setattr(Controller, "_tidy", mutant)
