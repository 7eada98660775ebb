"""Defects that can be planted in the production code. A mutant changes public names where it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sim import controller
from sim.batching import Batcher, Part
from sim.contention import Contention
from sim.contest import Contest, Draw
from sim.controller import Controller
from sim.engine import Engine
from sim.links import Link, SharedLink
from sim.loader import Transfer
from sim.policies.base import Gate
from sim.policies.caches import LRU
from sim.ram import RamTier
from sim.rerouting import Serving, serve
from sim.slots import ABSENT, RESIDENT, UNUSED, Slots
from sim.types import Cause, Geometry, Outcome

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Answer = tuple[list[int], dict[int, Transfer] | None]
FOUND_RESIDENT = (Outcome.HIT, Outcome.HIGH_FOR_LOW, Outcome.LOW_FOR_HIGH)


def nothing(patch: Patch) -> None:
    """No defect."""


# ---- switches and constants ------------------------------------------------------------------------------------------


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
        names = ("requests", "batching", "together", "prefill_chunk", "separate_prompts")

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


# ---- reroutes --------------------------------------------------------------------------------------------------------


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


# ---- slots -----------------------------------------------------------------------------------------------------------


def pins_ignored(patch: Patch) -> None:
    """What a gate needs, and what is there, may be evicted."""
    claim = Slots.claim

    def mutant(slots: Slots, key: int, must: bool) -> Sequence[int] | None:
        blocked, pinned = slots.blocked, slots.pinned
        there = [state <= UNUSED for state in slots.state]
        slots.pinned = bytearray(p and not t for p, t in zip(pinned, there, strict=True))
        slots.blocked = bytearray(b and not (p and t) for b, p, t in zip(blocked, pinned, there, strict=True))
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


def ram_pins_ignored(patch: Patch) -> None:
    """What a transfer has found in RAM may be evicted before it has been read."""
    take_in = RamTier.take_in

    def mutant(self: RamTier, key: int, must: bool, call: int) -> bool:
        pinned = self.pinned
        self.pinned = bytearray(p and state != RESIDENT for p, state in zip(pinned, self.state, strict=True))
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
        wanted = [constant] * len(gate.needs) if constant is not None else self.selector.select(gate, self)
        keys = [self.geometry.key(0, gate.site, e) for e, p in zip(gate.needs, wanted, strict=True) if p == 1]
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

    def mutant(self: LRU, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate) -> None:
        there = [index for index, outcome in enumerate(outcomes) if outcome in FOUND_RESIDENT]
        ask(self, [keys[i] for i in there], [wanted[i] for i in there], [outcomes[i] for i in there], gate)

    insert = LRU.on_insert
    patch.setattr(LRU, "on_requests", mutant)
    patch.setattr(LRU, "on_insert", lambda self, key, cause: insert(self, key, Cause.PREFETCH))


def waves_admitted_early(patch: Patch) -> None:
    """Admission counts with one slot more than there is."""
    for name in ("gate", "need_done"):
        answer = getattr(Controller, name)

        def mutant(self: Controller, argument: Any, answer: Callable[..., Answer] = answer) -> Answer:
            slots, capacity = self.slots, self.slots.capacity_bytes
            slots.capacity_bytes = tuple(size + max(self.geometry.variant_bytes) for size in capacity)
            outcomes = answer(self, argument)
            slots.capacity_bytes = capacity
            return outcomes

        patch.setattr(Controller, name, mutant)


def two_at_a_time(patch: Patch) -> None:
    """``replay_unit: access`` lets a second need in beside the first."""

    def write(self: Controller, value: bool) -> None:
        self.__dict__["one"] = value

    one = property(lambda self: self.__dict__["one"] and len(self._pins) > 1, write)
    patch.setattr(Controller, "_one_at_a_time", one, raising=False)


def policies_not_told(patch: Patch) -> None:
    """What the CPU computed, or nobody, stays in the order of the cache policy."""
    leave = Controller._leave
    patch.setattr(Controller, "_leave", lambda self, key: leave(self, key) if self.staging.holds[key] else None)


# ---- staging and partial moves ---------------------------------------------------------------------------------------


def exchange_moves_bytes(patch: Patch) -> None:
    """What is staged and admitted is loaded once more, into the pool."""

    def mutant(self: Controller, key: int) -> None:
        if self.cache.admits_all or self.cache.admit(key, Cause.PREFETCH):
            self.staging.take(key)
            self._queue(key, False, self.geometry.bytes_of(key))

    patch.setattr(Controller, "_exchange", mutant)


def staged_variants_kept(patch: Patch) -> None:
    """What is staged stays until somebody needs its slot."""
    drop = Controller._drop_staged
    patch.setattr(Controller, "_drop_staged", lambda self, key: drop(self, key) if self.staging.is_full else None)


def partial_moves_hit_later(patch: Patch) -> None:
    """What was moved in part stays staged after its gate, as if it were all there."""
    leave = Controller._leave

    def mutant(self: Controller, key: int) -> None:
        if self.staging.holds[key] and self._transfer_of[key].partial:
            self.cache.on_evict(key)
        else:
            leave(self, key)

    patch.setattr(Controller, "_leave", mutant)


def refused_demands_enter(patch: Patch) -> None:
    """A demand goes into the pool though the policy does not admit it."""
    lands = Controller._lands_in_staging
    mutant = lambda self, transfer: (transfer.prefetch or transfer.staged) and lands(self, transfer)  # noqa: E731
    patch.setattr(Controller, "_lands_in_staging", mutant)


# ---- links -----------------------------------------------------------------------------------------------------------


class Full(list[Any]):
    """As many engines as there are seem to draw bandwidth, if one does."""

    engines = 0

    def __len__(self) -> int:
        return self.engines if super().__len__() else 0


def half_rate_alone(patch: Patch) -> None:
    """An engine has its share of the link, and no more where the others stand idle."""
    drawing = SharedLink._drawing

    def mutant(self: SharedLink, now: int) -> list[Any]:
        full = Full(drawing(self, now))
        full.engines = self._engines
        return full

    patch.setattr(SharedLink, "_drawing", mutant)


def head_of_a_slow_link(patch: Patch) -> None:
    """A head is handed on at once, though the next link will starve."""

    def mutant(self: Link, transfer: Transfer) -> int:
        head = self.controller.route.head_bytes[self.index]
        return self._durations.hop_ns(self.index, min(head, transfer.left_bytes))

    patch.setattr(Link, "_head_ns", mutant)


def stored_and_forwarded(patch: Patch) -> None:
    """A head means nothing: the next link begins when this one has ended."""

    def mutant(self: Controller, link: int, transfer: Transfer) -> None:
        self.calls += 1

    patch.setattr(Controller, "head_done", mutant)


def hops_behind_prefetches(patch: Patch) -> None:
    """A demand's later hops stand with the prefetches."""
    queue = Controller._queue_again

    def mutant(self: Controller, transfer: Transfer, link: int) -> None:
        queue(self, transfer, link)
        if not transfer.prefetch:
            self._prefetches[link].append(self._demands[link].pop())

    patch.setattr(Controller, "_queue_again", mutant)


def late_prefetches_give_way(patch: Patch) -> None:
    """A prefetch in service is cut though a need waits for it."""
    cut = Controller.cut

    def mutant(self: Controller, link: int) -> bool:
        serving = self._on_link[link][0] if self._on_link[link] else Transfer(-1, False, 0, 0)
        awaited, serving.awaited = serving.awaited, False
        answer = cut(self, link)
        serving.awaited = awaited
        return answer

    patch.setattr(Controller, "cut", mutant)


def dense_behind_prefetches(patch: Patch) -> None:
    stream = Controller._stream_dense

    def mutant(self: Controller, site: int) -> None:
        stream(self, site)
        self._prefetches[0].append(self._demands[0].pop())

    patch.setattr(Controller, "_stream_dense", mutant)


# ---- predictions, steps and the stream -------------------------------------------------------------------------------


def predictions_at_once(patch: Patch) -> None:
    """A prediction takes effect at its gate, however long it takes."""
    init: Callable[..., None] = Controller.__init__

    def mutant(self: Controller, *parts: Any, **options: Any) -> None:
        init(self, *parts, **options | {"predicts_later": False})

    patch.setattr(Controller, "__init__", mutant)


def predictions_of_the_past(patch: Patch) -> None:
    """A prediction takes effect for sites that have had their gate, too."""
    ready = Controller.prediction_ready

    def mutant(self: Controller, tick: int) -> None:
        self._gate_call_of = [0] * self.geometry.sites
        ready(self, tick)

    patch.setattr(Controller, "prediction_ready", mutant)


def arrivals_after_composing(patch: Patch) -> None:
    """What arrives at the instant at which a step is composed is not in it."""
    following = Batcher.next

    def mutant(self: Batcher, now_ns: int) -> tuple[Part, ...] | int | None:
        found = following(self, now_ns - 1)
        return following(self, now_ns) if isinstance(found, int) and found <= now_ns else found

    patch.setattr(Batcher, "next", mutant)


def chunks_for_each_prompt(patch: Patch) -> None:
    """``prefill_chunk`` is the room of one prompt, not of the step."""

    def mutant(self: Batcher, running: Sequence[Any]) -> Iterator[Part]:
        for turn in running:
            if turn.prompt_left > 0:
                yield turn.take(min(self.prefill_chunk or turn.prompt_left, turn.prompt_left), False)
            elif self.prefill_chunk is not None and self.batching == "continuous":
                yield turn.take(1, True)

    patch.setattr(Batcher, "_prefill", mutant)


def sequences_not_told(patch: Patch) -> None:
    def mutant(self: Controller, sequence: int) -> None:
        self.calls += 1

    patch.setattr(Controller, "begin_sequence", mutant)


def waking_from_no_sleep(patch: Patch) -> None:
    """The host takes its time to go on though the stream did not stand idle."""
    wake = Engine._wake

    def mutant(self: Engine, now: int, cause: int) -> None:
        if now == self._free_ns:
            self._free_ns = now + self._wake_ns
        wake(self, now, cause)

    patch.setattr(Engine, "_wake", mutant)


# ---- who holds up whom -----------------------------------------------------------------------------------------------


def links_left_alone(patch: Patch) -> None:
    """Only the memory is shared."""
    init: Callable[..., None] = Contention.__init__

    def mutant(self: Contention, overlapped: Sequence[float], *rest: Any) -> None:
        init(self, [1.0] * len(overlapped), *rest)

    patch.setattr(Contention, "__init__", mutant)


def latencies_draw(patch: Patch) -> None:
    """All of a service and of a CPU's need is work."""
    begin: Callable[..., Draw] = Contest.begin

    def mutant(self: Contest, party: int, now: int, latency_ns: int, work_ns: int, *rest: Any) -> Draw:
        return begin(self, party, now, 0, latency_ns + work_ns, *rest)

    patch.setattr(Contest, "begin", mutant)


def paces_kept(patch: Patch) -> None:
    """Who has begun goes on as it began."""
    paces: Callable[..., None] = Contest._set_paces

    def mutant(self: Contest, now: int) -> None:
        everybody = self._draws
        self._draws = {draw: None for draw in everybody if not draw.pace}
        paces(self, now)
        self._draws = everybody

    patch.setattr(Contest, "_set_paces", mutant)


def every_engine_alone(patch: Patch) -> None:
    """An engine has all of its link's pace, whoever serves beside it."""
    patch.setattr("sim.contest.Counter", lambda parties: dict.fromkeys(parties, 1))


def chunks_by_the_clock(patch: Patch) -> None:
    """A chunk ends when it would end if nobody held it up."""

    def mutant(contest: Contest, draw: Draw, now: int) -> int:
        return now - draw.begins_ns

    patch.setattr(Contest, "done_ns", mutant)
