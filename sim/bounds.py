"""What no system can beat: proven lower bounds on a run's time, and the fewest loads of any cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from sim.costs import Durations
from sim.policies.base import IntArray, PrecisionSelector
from sim.slots import Slots
from sim.types import SKIP
from sim.workload import Needs, Workload


@dataclass(frozen=True)
class Bounds:
    """``lower_ns = max(compute_ns, link_ns)``; ``why_no_belady`` says why ``belady_loads`` is None, where it is."""

    compute_ns: int
    link_ns: int
    belady_loads: int | None
    why_no_belady: str | None

    @property
    def lower_ns(self) -> int:
        return max(self.compute_ns, self.link_ns)


def lower_bounds(workload: Workload, durations: Durations, selector: PrecisionSelector, slots: Slots) -> Bounds:
    """Bounds for every choice of cache, prefetch and loader, and every variant that the selector may choose.

    Compute: dense work, tails, and each need at its cheapest permitted variant. Link: needs that must be served at the
    highest precision, loaded as few times as any cache of the same bytes and the same initial contents allows
    (``fewest_loads``); a need that a lower precision or a skip may serve counts nothing.
    """
    geometry, needs = slots.geometry, workload.needs
    permitted = _permitted(selector, needs)
    must_be_high = np.array([answers == (0,) for answers in permitted], np.bool_)
    item = needs.tick % geometry.sites * geometry.units + needs.expert
    held = {key for key in slots.initial if key < geometry.plane}
    # The budget, not what this cache makes of it: the bound is for every cache.
    high_slots = geometry.capacity_bytes // geometry.variant_bytes[0]
    # A gate of one token is never served in waves: any pool must hold what one token needs.
    count = np.bincount(needs.tick)
    whole = count[needs.tick] <= geometry.top_k
    loads = fewest_loads(needs.tick[must_be_high], item[must_be_high], high_slots, held, whole[must_be_high])
    belady: int | None = None
    why: str | None = "variants of several sizes"
    if len(geometry.precisions) == 1:
        belady, why = _fewest_by_pool(needs, item, slots, held, whole), None
    return Bounds(_compute_ns(workload, durations, permitted), loads * durations.transfer_ns(geometry.variant_bytes[0]),
                  belady, why)  # fmt: skip


def fewest_loads(tick: IntArray, item: IntArray, slots: int, initial: Iterable[int],
                 whole: NDArray[np.bool_] | None = None) -> int:  # fmt: skip
    """The fewest loads, prefetched or on demand, that serve all requests with ``slots`` equal slots.

    Keeping an item from one request to the next saves a load and takes a slot at every gate boundary in between; the
    most such intervals that fit are found by dropping, whenever too many overlap, those that end last (Belady's rule).
    At its own gate's boundary an item takes a slot anyway where ``whole`` is set for its request: such a gate's needs
    are pinned together until the next gate. Elsewhere (unions served in waves) nothing is known to stay, and only what
    is kept counts. Valid below every run: its residents at a boundary never exceed the slots, and each need that was
    not resident at its gate's boundary is loaded at least once.
    """
    next_use: dict[int, int] = {}
    upcoming: list[int] = [0] * len(item)
    ticks, items = tick.tolist(), item.tolist()
    for index in range(len(items) - 1, -1, -1):
        upcoming[index] = next_use.get(items[index], -1)
        next_use[items[index]] = ticks[index]
    kept: dict[int, int] = {}
    ends: list[tuple[int, int]] = []

    def keep(what: int, until: int) -> None:
        kept[what] = until
        heappush(ends, (-until, what))

    def trim(pinned: frozenset[int]) -> None:
        held_back = []
        free = slots - len(pinned) + sum(what in kept for what in pinned)
        while len(kept) > free:
            end, what = heappop(ends)
            if kept.get(what) != -end:
                continue
            if what in pinned:
                held_back.append((end, what))
            else:
                del kept[what]
        for entry in held_back:
            heappush(ends, entry)

    for what in initial:
        if what in next_use:
            keep(what, next_use[what])
    trim(frozenset())
    loads = 0
    index = 0
    while index < len(items):
        gate = index
        while index < len(items) and ticks[index] == ticks[gate]:
            if kept.pop(items[index], None) is None:
                loads += 1
            index += 1
        for at in range(gate, index):
            if upcoming[at] >= 0:
                keep(items[at], upcoming[at])
        pinned = frozenset(items[gate:index]) if whole is not None and whole[gate] else frozenset()
        trim(pinned if len(pinned) <= slots else frozenset())
    return loads


def _fewest_by_pool(needs: Needs, item: IntArray, slots: Slots, held: set[int], whole: NDArray[np.bool_]) -> int:
    """The same, each pool on its own: what Belady's cache would load with this division of the slots."""
    pool_of = np.array(slots.pool_of, np.int64)
    pool = pool_of[item]
    total = 0
    for number, capacity in enumerate(slots.capacity_bytes):
        mine = pool == number
        own = {key for key in held if pool_of[key] == number}
        fit = capacity // slots.geometry.variant_bytes[0]
        total += fewest_loads(needs.tick[mine], item[mine], fit, own, whole[mine])
    return total


def _permitted(selector: PrecisionSelector, needs: Needs) -> list[tuple[int, ...]]:
    if selector.constant is not None:
        return [(selector.constant,)] * len(needs.tick)
    scores, back = np.unique(needs.score, return_inverse=True)
    answers = [selector.permitted(score) for score in scores.tolist()]
    return [answers[index] for index in back.tolist()]


def _compute_ns(workload: Workload, durations: Durations, permitted: list[tuple[int, ...]]) -> int:
    total = sum(sum(durations.dense_ns(step)) + durations.tail_ns(step) for step in workload.steps)
    cheapest: dict[tuple[tuple[int, ...], int], int] = {}
    for answers, tokens in zip(permitted, workload.needs.tokens.tolist(), strict=True):
        if (answers, tokens) not in cheapest:
            costs = (0 if p == SKIP else durations.expert_ns(p, tokens) for p in answers)
            cheapest[answers, tokens] = min(costs)
        total += cheapest[answers, tokens]
    return total
