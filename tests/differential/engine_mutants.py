"""Defects that can be planted in the engine: in its links, steps, compute stream and contention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.engine.contest import Contest, Draw
from sim.engine.engine import Engine
from sim.engine.lanes import LanedLink
from sim.engine.links import Link, SharedLink
from sim.engine.owners import OwnedEngine, Owner
from sim.engine.pages import PageLedger
from sim.engine.stream import Stream
from sim.machine.contention import FIRST_LINK, WHOLE, Contention
from sim.machine.devices_costs import OnLayers
from sim.machine.lanes import Lanes
from sim.workload.batching import Batcher, Part

Patch = pytest.MonkeyPatch


# ---- links


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


def lanes_of_any_pace(patch: Patch) -> None:
    """A lane alone reaches the link's whole rate."""
    made = LanedLink.__init__

    def mutant(self: LanedLink, machine: Any, index: int, durations: Any, lanes: Lanes) -> None:
        made(self, machine, index, durations, replace(lanes, pace=WHOLE))

    patch.setattr(LanedLink, "__init__", mutant)


def lanes_that_never_sleep(patch: Patch) -> None:
    """A lane that stood idle begins as fast as one that did not."""
    made = LanedLink.__init__

    def mutant(self: LanedLink, machine: Any, index: int, durations: Any, lanes: Lanes) -> None:
        made(self, machine, index, durations, replace(lanes, wake_ns=0))

    patch.setattr(LanedLink, "__init__", mutant)


def reads_in_order_of_experts(patch: Patch) -> None:
    """All projections of an expert are read before the next expert's."""
    take = LanedLink._take

    def mutant(self: LanedLink, transfer: Transfer) -> None:
        self._batch_of = (-1, False)
        take(self, transfer)

    patch.setattr(LanedLink, "_take", mutant)


def nothing_has_come(patch: Patch) -> None:
    """A gate waits anew for what has come of a late prefetch."""
    needs = Stream._in_projections

    def mutant(self: Stream, *given: Any) -> list[Any]:
        come, self.come = self.come, {}
        found = needs(self, *given)
        self.come = come
        return found

    patch.setattr(Stream, "_in_projections", mutant)


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
        needed, serving.is_needed = serving.is_needed, not serving.prefetch
        answer = cut(self, link)
        serving.is_needed = needed
        return answer

    patch.setattr(Controller, "cut", mutant)


def dense_behind_prefetches(patch: Patch) -> None:
    stream = Controller._stream_dense

    def mutant(self: Controller, site: int) -> None:
        stream(self, site)
        self._prefetches[0].append(self._demands[0].pop())

    patch.setattr(Controller, "_stream_dense", mutant)


# ---- predictions, steps and the stream


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
                yield turn.read(min(self.prefill_chunk or turn.prompt_left, turn.prompt_left))
            elif self.prefill_chunk is not None and self.batching == "continuous":
                yield turn.decode()

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
            self._free_ns = now + self._waking_ns(0)
        wake(self, now, cause)

    patch.setattr(Engine, "_wake", mutant)


# ---- who holds up whom


def links_left_alone(patch: Patch) -> None:
    """Nothing but the memory slows a link."""
    init: Callable[..., None] = Contention.__init__

    def mutant(self: Contention, links: int, kept: Any, *rest: Any) -> None:
        init(self, links, {pair: of for pair, of in kept.items() if pair[0] < FIRST_LINK}, *rest)

    patch.setattr(Contention, "__init__", mutant)


def compute_left_alone(patch: Patch) -> None:
    """Nothing but the memory slows the compute stream and the CPU."""
    init: Callable[..., None] = Contention.__init__

    def mutant(self: Contention, links: int, kept: Any, *rest: Any) -> None:
        init(self, links, {pair: of for pair, of in kept.items() if pair[0] >= FIRST_LINK}, *rest)

    patch.setattr(Contention, "__init__", mutant)


def only_the_worst_rival(patch: Patch) -> None:
    """Beside several rivals a party goes as beside the one that slows it most."""

    def mutant(self: Contention, party: int, at_work: int) -> int:
        kept = [
            of for (one, rival), of in self._kept.items() if one == party and at_work >> rival & 1
        ]
        pace, memory = min(kept, default=WHOLE), self._memory_bytes_per_s
        asked = sum(
            min(rate, memory) for other, rate in self._draws.items() if at_work >> other & 1
        )
        draws, whole = self._draws.get(party, 0), 1
        if draws > memory:
            pace, whole = pace * memory, whole * draws
        if draws and asked > memory:
            pace, whole = pace * memory, whole * asked
        return max(1, pace // whole)

    patch.setattr(Contention, "_pace", mutant)


def latencies_draw(patch: Patch) -> None:
    """All of a service and of a CPU's need is work."""
    begin: Callable[..., Draw] = Contest.begin

    def mutant(
        self: Contest, party: int, now: int, latency_ns: int, work_ns: int, *rest: Any
    ) -> Draw:
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
    patch.setattr("sim.engine.contest.Counter", lambda parties: dict.fromkeys(parties, 1))


def chunks_by_the_clock(patch: Patch) -> None:
    """A chunk ends when it would end if nobody held it up."""

    def mutant(contest: Contest, draw: Draw, now: int) -> int:
        return now - draw.begins_ns

    patch.setattr(Contest, "done_ns", mutant)


# ---- several devices


def nothing_crosses(patch: Patch) -> None:
    """Activations are on the next device at once."""
    init: Callable[..., None] = OnLayers.__init__

    def mutant(self: OnLayers, *parts: Any) -> None:
        init(self, *parts[:-1], lambda rows: 0)

    patch.setattr(OnLayers, "__init__", mutant)


def work_on_the_first(patch: Patch) -> None:
    """Experts take the time of the first device."""

    def mutant(self: OnLayers, precision: int, site: int, tokens: int, rows: int) -> int:
        return self._alone[0].expert_ns(precision, site, tokens, rows)

    patch.setattr(OnLayers, "expert_ns", mutant)


def head_with_last(patch: Patch) -> None:
    """The head is on the last site's device."""
    init: Callable[..., None] = OnLayers.__init__

    def mutant(self: OnLayers, alone: Any, device_of: Any, head: int, *rest: Any) -> None:
        init(self, alone, device_of, device_of[-1], *rest)

    patch.setattr(OnLayers, "__init__", mutant)


# ---- experts by owner


def home_never_woken(patch: Patch) -> None:
    """A wave of another device does not end home's idle interval."""

    def mutant(self: OwnedEngine, other: Owner, key: int, now: int) -> None:
        self._release(key, now)
        self._end_site_if_done(now)

    patch.setattr(OwnedEngine, "release_of", mutant)


def activations_at_once(patch: Patch) -> None:
    """A device may begin when its needs are admitted; only results take a message."""
    ask: Callable[..., None] = Owner.ask

    def mutant(self: Owner, *parts: Any) -> None:
        ask(self, *parts[:-1], 0)

    patch.setattr(Owner, "ask", mutant)


def loads_untold(patch: Patch) -> None:
    """All that home waits for another device is that device's computing."""
    wait: Callable[..., None] = OwnedEngine._wait_for

    def mutant(self: OwnedEngine, other: Owner, until_ns: int) -> None:
        other.begun_ns = -1
        wait(self, other, until_ns)

    patch.setattr(OwnedEngine, "_wait_for", mutant)


def others_never_sleep(patch: Patch) -> None:
    """Only home takes time to wake."""
    wake: Callable[..., None] = Owner._wake

    def mutant(self: Owner, now: int, cause: int) -> None:
        has_slept = now > self._free_ns
        wake(self, now, cause)
        if has_slept:
            self._free_ns = now

    patch.setattr(Owner, "_wake", mutant)


def newest_pages_first(patch: Patch) -> None:
    """What is touched goes to the other end: it is the first to be swapped out."""
    touch = PageLedger._touch

    def mutant(self: PageLedger, item: int, size: int) -> None:
        touch(self, item, size)
        if item in self._in:
            self._in = {item: self._in.pop(item)} | self._in

    patch.setattr(PageLedger, "_touch", mutant)


def pages_kept(patch: Patch) -> None:
    """An evicted variant's pages are found again when it is loaded."""

    def mutant(self: PageLedger, keys: Iterable[int]) -> None:
        for key in keys:
            self._touch(key, self._slot_bytes[key])

    patch.setattr(PageLedger, "admit", mutant)
