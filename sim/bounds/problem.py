"""States a run as the problem that the relaxation bounds: what it must do, whatever is decided.

That is the work of each interval between gates, and what each gate must find on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from sim.bounds.relaxation import NEVER, Ints, Problem, Requests
from sim.core.controller import Controller
from sim.machine.durations import Durations, least_hop_ns
from sim.values.types import Geometry, Place
from sim.workload.steps import Workload


@dataclass(frozen=True)
class Permitted:
    """What may be answered to each need; many needs have the same answers.

    ``answers`` [A]: every precision that may serve, and a negative answer (SKIP, REROUTE) where a
    need may do without. ``kind`` [needs] is the index of each need's answers.
    """

    answers: Sequence[tuple[int, ...]]
    kind: Ints

    def of(self, value: Callable[[tuple[int, ...]], int]) -> Ints:
        """``value`` of the answers of each need."""
        found: Ints = np.array([value(answers) for answers in self.answers], np.int64)[self.kind]
        return found


@dataclass(frozen=True)
class Work:
    """The compute stream's work by interval [N + 1], in ns: before the first gate, after each gate.

    ``after_ns`` is the part that must come after the last arrival of the needs of the interval's
    gate. It is all of the work where the gate has no needs.
    """

    compute_ns: Ints
    after_ns: Ints


def loads_all(controller: Controller) -> bool:
    """Whether every need is computed on the device."""
    return controller.placement.constant == Place.LOAD


def work_of(
    workload: Workload, durations: Durations, controller: Controller, permitted: Permitted
) -> Work:
    """The least work of each interval.

    It consists of dense work, tails, host time, and each need at its cheapest permitted variant,
    which is 0 where the need may be skipped, rerouted or computed on the CPU.
    """
    gates, host = workload.num_gates, durations.host
    compute, after = np.zeros(gates + 1, np.int64), np.zeros(gates + 1, np.int64)
    gate = 0
    for step in workload.steps:
        dense, last = durations.dense_ns(step), len(step.sites)
        before = [dense[site] + host.sync_ns for site in step.sites]
        after[gate : gate + last] += before
        after[gate + 1 : gate + last + 1] += host.post_ns
        after[gate + last] += durations.tail_ns(step)
        gate += last
    compute += after
    compute[1:] += host.issue_ns
    if not loads_all(controller):
        return Work(compute, compute)
    needs = workload.needs
    cost = _cheapest_ns(workload, durations, permitted)
    np.add.at(compute, needs.tick + 1, cost)
    has_needs = np.zeros(gates + 1, np.bool_)
    has_needs[needs.tick + 1] = True
    least = np.full(gates + 1, cost.max(initial=0))
    np.minimum.at(least, needs.tick + 1, cost)
    if controller.loader.wait == "by_projection":
        # All but the last projection of a need may be computed before it has come whole.
        least[:] = 0
    return Work(compute, np.where(has_needs, after + least, compute))


def _cheapest_ns(workload: Workload, durations: Durations, permitted: Permitted) -> Ints:
    needs, sites = workload.needs, int(workload.gate_site.max(initial=0)) + 1
    of_step = np.array([step.rows for step in workload.steps], np.int64)
    rows, sizes = of_step[workload.gate_step[needs.tick]], int(of_step.max(initial=0)) + 1
    kinds, back = np.unique(
        ((needs.tokens * sizes + rows) * sites + workload.gate_site[needs.tick])
        * len(permitted.answers)
        + permitted.kind,
        return_inverse=True,
    )
    costs = np.empty(len(kinds), np.int64)
    for index, code in enumerate(kinds.tolist()):
        at, kind = divmod(code, len(permitted.answers))
        (both, site), answers = divmod(at, sites), permitted.answers[kind]
        tokens, step_rows = divmod(both, sizes)
        costs[index] = min(
            0 if p < 0 else durations.expert_ns(p, site, tokens, step_rows) for p in answers
        )
    cost: Ints = costs[back]
    return cost


def stays_until_next(workload: Workload, controller: Controller) -> NDArray[np.bool_]:
    """By need, whether it is certain to stay on the device from its gate to the next gate.

    A gate of one token is not served in waves, because any pool must hold what one token needs
    (with staging it need not). Pools that may overflow hold every gate's needs until the next gate.
    """
    needs, loader = workload.needs, controller.loader
    count = np.bincount(needs.tick, minlength=workload.num_gates)[needs.tick]
    is_whole = (count <= controller.geometry.top_k) | loader.overflows
    found: NDArray[np.bool_] = is_whole & (
        loader.replay_unit == "union" and not loader.staging_slots
    )
    return found


def most_slot_bytes(workload: Workload, controller: Controller) -> int:
    """The most bytes of slots that any step has: they may shrink (contract C174)."""
    spare = controller.spare_bytes
    lent = max(spare(step.index) for step in workload.steps) if spare is not None else 0
    return controller.geometry.capacity_bytes + lent


def resident_bytes(workload: Workload, controller: Controller) -> Ints:
    """By gate [N], the most bytes that can be resident just before it, staging slots included.

    Overflowing pools are trimmed by then to what the last gate pinned. With several pools the
    others may be full besides.
    """
    geometry, loader = controller.geometry, controller.loader
    largest, unit = max(geometry.slot_sizes), _unit_bytes(geometry)
    budget = most_slot_bytes(workload, controller) // unit * unit + loader.staging_slots * largest
    gates = workload.num_gates
    if not loader.overflows:
        return np.full(gates, budget)
    asked = np.bincount(workload.needs.tick, minlength=gates)
    is_one_pool = len(controller.slots.capacity_bytes) == 1
    if loader.retention == "until_next_visit" and not is_one_pool:
        asked = _last_asked(asked, workload.gate_site)
    pinned = np.append(0, asked)[:gates] * largest
    found: Ints = np.maximum(budget, pinned) if is_one_pool else pinned + budget
    return found


def _last_asked(asked: Ints, site: Ints) -> Ints:
    """By gate, what the last gate of each site up to it has asked for, over all sites
    (contract C181). ``asked`` and ``site`` are by gate.
    """
    change = asked.astype(np.int64)
    for one in np.unique(site):
        at = np.flatnonzero(site == one)
        change[at[1:]] -= asked[at[:-1]]
    found: Ints = np.cumsum(change)
    return found


def _arriving_bytes(controller: Controller) -> int:
    """The most bytes that may be on their way beside the residents, where pools overflow.

    Elsewhere what is on its way has claimed its place among ``resident_bytes``: 0.
    """
    geometry, loader = controller.geometry, controller.loader
    if not loader.overflows:
        return 0
    pools = len(controller.slots.capacity_bytes) if loader.retention == "until_next_visit" else 1
    return pools * controller.route.engines[0] * loader.in_flight * max(geometry.slot_sizes)


def _unit_bytes(geometry: Geometry) -> int:
    """The greatest common divisor of all slots' sizes."""
    if geometry.held_bytes:
        return gcd(*geometry.held_bytes)
    return gcd(
        *geometry.variant_bytes, *(size for sizes in geometry.site_bytes or () for size in sizes)
    )


def _as_moved(geometry: Geometry, held: Ints) -> Ints:
    """The most bytes that variants filling ``held`` bytes of slots may have moved, rounded down."""
    pairs = zip(geometry.variant_bytes, geometry.slot_sizes, strict=True)
    most: Ints = np.max([held * moved // slot for moved, slot in pairs], axis=0)
    return most if geometry.held_bytes else held


def problem_of(
    workload: Workload,
    durations: Durations,
    controller: Controller,
    work: Work,
    permitted: Permitted,
    link: int = 0,
) -> Problem:
    """The run as the relaxation sees it, on one ``link``.

    Needs make no requests where they may be served by parts of a variant, on the CPU, or not at
    all.
    """
    parts = _dense_blocks(workload, durations, controller, link)
    if loads_all(controller) and controller.payload.whole:
        parts += _layers(workload, durations, controller, permitted, link)
    columns = (
        np.concatenate(column)
        for column in zip(*(vars(part).values() for part in parts), strict=True)
    )
    held = resident_bytes(workload, controller) + _arriving_bytes(controller)
    capacity = _as_moved(controller.geometry, held) + kept_outside(controller, link)[0]
    passes = link not in (0, controller.route.ram_link)
    return Problem(work.compute_ns, work.after_ns, capacity, Requests(*columns), passes)


def kept_outside(controller: Controller, link: int) -> tuple[int, frozenset[int]]:
    """The bytes of a managed RAM tier inside ``link``, and the keys in it at the start.

    What such a tier holds need not come over the link. Without a tier there: 0 and no keys.
    """
    ram = controller.ram
    if ram is None or link < ram.link:
        return 0, frozenset()
    return sum(ram.capacity_bytes), frozenset(ram.initial)


def _layers(
    workload: Workload,
    durations: Durations,
    controller: Controller,
    permitted: Permitted,
    link: int,
) -> list[Requests]:
    """The requests for each layer of bytes, lowest precision first.

    A layer has the bytes of a precision beyond those of the lower ones. It is requested by the
    needs that must have this precision or a higher one.
    """
    geometry, needs = controller.geometry, workload.needs
    lowest = permitted.of(lambda answers: NEVER if min(answers) < 0 else max(answers))
    site = workload.gate_site[needs.tick]
    item = site * geometry.units + needs.expert
    tick: Ints = needs.tick.astype(np.int64)
    stays = stays_until_next(workload, controller)
    sizes, times = _least_sizes(durations, controller, link)
    initial = {*controller.slots.initial, *kept_outside(controller, link)[1]}
    found = []
    for precision in reversed(range(len(geometry.precisions))):
        chosen = np.flatnonzero((lowest != NEVER) & (lowest <= precision))
        there = {key % geometry.plane for key in initial if key // geometry.plane <= precision}
        of = site[chosen]
        found.append(
            Requests(
                tick[chosen],
                sizes[precision, of] - sizes[precision + 1, of],
                times[precision, of] - times[precision + 1, of],
                _kept_from(tick[chosen], item[chosen], stays[chosen], there),
                stays[chosen],
            )
        )
    return found


def _least_sizes(durations: Durations, controller: Controller, link: int) -> tuple[Ints, Ints]:
    """The least bytes and link times of a variant of at least each precision, [P + 1, S] each.

    The last row is 0. Link time is the time during which the link can serve nothing else: several
    engines overlap their latencies. With chunks each cut may save a ns by rounding down.
    """
    geometry, loader = controller.geometry, controller.loader
    shape = (len(geometry.precisions) + 1, geometry.sites)
    sizes, times = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for precision in range(len(geometry.precisions)):
        for site in range(geometry.sites):
            size = geometry.bytes_of(geometry.key(precision, site, 0))
            sizes[precision, site], times[precision, site] = (
                size,
                link_time_ns(durations, controller, size, link),
            )
            if loader.chunk_bytes is not None:
                times[precision, site] -= min(
                    times[precision, site], -(-size // loader.chunk_bytes)
                )
    lowest_last = np.s_[:-1]
    sizes[lowest_last] = np.minimum.accumulate(sizes[lowest_last], axis=0)
    times[lowest_last] = np.minimum.accumulate(times[lowest_last], axis=0)
    return sizes, times


def link_time_ns(durations: Durations, controller: Controller, size: int, link: int = 0) -> int:
    """The time during which ``size`` bytes keep a link from serving anything else.

    With several engines latencies are hidden behind other transfers.
    """
    hidden = durations.latency_ns(link) if controller.route.engines[link] > 1 else 0
    return least_hop_ns(durations, link, size) - hidden


def _kept_from(gate: Ints, item: Ints, stays: NDArray[np.bool_], there: set[int]) -> Ints:
    """``Requests.kept_from`` by request: the first gate before which keeping it takes room."""
    found = np.full(len(gate), NEVER)
    last: dict[int, int] = dict.fromkeys(there, 0)
    for index, (tick, what, held) in enumerate(
        zip(gate.tolist(), item.tolist(), stays.tolist(), strict=True)
    ):
        found[index] = last.get(what, NEVER)
        # An item pinned until the next gate is counted there by the request that pins it.
        last[what] = tick + 2 if held else tick + 1
    return found


def _dense_blocks(
    workload: Workload, durations: Durations, controller: Controller, link: int
) -> list[Requests]:
    """The requests for streamed dense blocks, over link 0: one for every gate but the first ones.

    The blocks of the first gates are there at the start. Blocks have slots of their own, so these
    requests take no bytes.
    """
    first, gates = 0 if link else controller.loader.dense_slots, workload.num_gates
    gate = np.arange(first or gates, gates, dtype=np.int64)
    none = np.zeros(len(gate), np.int64)
    load_ns = link_time_ns(durations, controller, min(controller.dense_bytes)) if first else 0
    return [Requests(gate, none, none + load_ns, none + NEVER, np.zeros(len(gate), np.bool_))]
