"""Proven lower bounds on a run's time, and the fewest loads that any cache makes.

docs/bounds.md explains what the bounds mean and why they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.bounds.loads import fewest_loads
from sim.bounds.problem import (
    Permitted,
    kept_outside,
    loads_all,
    most_slot_bytes,
    problem_of,
    resident_bytes,
    stays_until_next,
    work_of,
)
from sim.bounds.relaxation import relaxed_ns
from sim.core.controller import Controller
from sim.core.slots import Slots
from sim.machine.durations import Durations, least_hop_ns
from sim.policies.base import IntArray
from sim.workload.steps import Needs, Workload

NONE, MAX, RELAXATION = "none", "max", "relaxation"
METHODS = (NONE, MAX, RELAXATION)
"""Values of the setting ``bounds``. The first one computes none, which takes no time."""


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of a run; ``lower_ns`` is the largest of the bounds on its time.

    ``relaxed_ns`` is None where the relaxation was not asked for. ``belady_loads`` is None where
    Belady's rule does not apply, and ``why_no_belady`` then says why.
    """

    compute_ns: int
    link_ns: int
    belady_loads: int | None
    why_no_belady: str | None
    relaxed_ns: int | None = None

    @property
    def lower_ns(self) -> int:
        return max(self.compute_ns, self.link_ns, self.relaxed_ns or 0)

    @property
    def method(self) -> str:
        return MAX if self.relaxed_ns is None else RELAXATION


def lower_bounds(
    workload: Workload, durations: Durations, controller: Controller, method: str = MAX
) -> Bounds:
    """Bounds for every cache, prefetch and schedule with this run's switches.

    They hold whatever variants and places it chooses.

    - Compute: dense work, tails, host time, and each need at its cheapest permitted variant, which
      is 0 where it may be skipped, rerouted or computed on the CPU.
    - Each link: the needs that only a load of the highest precision may serve. They are loaded as
      few times as any cache of the same bytes and initial contents allows (``fewest_loads``). The
      bytes are those of the device, and of a managed tier inside the link. Needs that a lower
      precision, a skip, another expert, the CPU or a part of the bytes may serve count nothing.
      Over link 0 streamed dense blocks are added.

    ``method`` is ``max`` for the larger of these, or ``relaxation`` to bound compute and each link
    jointly as well (``sim.bounds.relaxation``), which takes a few seconds.
    """
    needs, slots, loader = workload.needs, controller.slots, controller.loader
    geometry = slots.geometry
    permitted = _permitted(controller, needs)
    must_load = permitted.of(lambda answers: answers == (0,)).astype(np.bool_)
    if not (loads_all(controller) and controller.payload.whole):
        must_load[:] = False
    item = workload.gate_site[needs.tick] * geometry.units + needs.expert
    held = set(slots.initial)
    first_keys = [geometry.key(0, site, 0) for site in range(geometry.sites)]
    least_bytes, least_slot = (
        min(map(geometry.bytes_of, first_keys)),
        min(geometry.slot_bytes[key] for key in first_keys),
    )
    # The whole budget, not the pools that this cache makes of it: the bound is for every cache.
    high_slots = most_slot_bytes(workload, controller) // least_slot + loader.staging_slots
    whole = stays_until_next(workload, controller)
    # The most items that overflowing pools may hold at the gate after each need's gate.
    most = np.append(resident_bytes(workload, controller), 0)[needs.tick + 1] // least_slot
    over = most if loader.overflows else np.zeros_like(most)
    requests = needs.tick[must_load], item[must_load]

    def fewest(link: int) -> int:
        """The fewest loads over ``link``."""
        room, there = kept_outside(controller, link)
        more = room // least_bytes
        return fewest_loads(
            *requests, high_slots + more, held | there, whole[must_load], over[must_load] + more
        )

    why = _why_no_belady(controller, permitted)
    asked = permitted.of(lambda answers: max(answers) >= 0).astype(np.bool_)
    belady = (
        None if why else _fewest_by_pool(needs.tick[asked], item[asked], slots, held, whole[asked])
    )
    # A dense block gives up its slot at its own gate. So every gate needs a load of its block,
    # except those whose blocks are there at the start.
    blocks = (
        (workload.num_gates - loader.dense_slots, min(controller.dense_bytes))
        if loader.dense_slots
        else (0, 0)
    )
    links, engines = range(controller.route.links), controller.route.engines
    link_ns = max(
        _link_ns(
            durations,
            link,
            engines[link],
            ((fewest(link), least_bytes), (0, 0) if link else blocks),
        )
        for link in links
    )
    work = work_of(workload, durations, controller, permitted)
    relaxed = None
    if method == RELAXATION:
        # A link that is no slower than link 0 hardly ever gives a larger bound.
        slow = [
            link
            for link in links
            if not link
            or least_hop_ns(durations, link, least_bytes) > least_hop_ns(durations, 0, least_bytes)
        ]
        relaxed = max(
            relaxed_ns(problem_of(workload, durations, controller, work, permitted, link))
            for link in slow
        )
    return Bounds(int(work.compute_ns.sum()), link_ns, belady, why, relaxed)


def _link_ns(
    durations: Durations, link: int, engines: int, transfers: Sequence[tuple[int, int]]
) -> int:
    """The least time that a link takes for ``transfers``, given as pairs (count, bytes of each).

    The transfers' bytes share one bandwidth, after the latency of the first one. Each engine serves
    one transfer at a time. Both give a bound, and the larger one counts.
    """
    needed = [
        (count, least_hop_ns(durations, link, size)) for count, size in transfers if count > 0
    ]
    if not needed:
        return 0
    latency, occupied = durations.latency_ns(link), sum(count * hop_ns for count, hop_ns in needed)
    drawn = sum(count * (hop_ns - latency) for count, hop_ns in needed)
    return occupied if engines == 1 else max(latency + drawn, -(-occupied // engines))


def _why_no_belady(controller: Controller, permitted: Permitted) -> str | None:
    """Why Belady's rule does not give the fewest loads here; None where it does."""
    geometry, loader = controller.geometry, controller.loader
    if len(geometry.precisions) > 1 or geometry.site_bytes is not None:
        return "variants of several sizes"
    if not loads_all(controller):
        return "needs that may be computed elsewhere or not at all"
    if controller.selector.reroutes:
        return "needs that other experts may serve"
    if any(min(answers) < 0 <= max(answers) for answers in permitted.answers):
        return "needs that are left out where they are absent"
    if not controller.payload.whole:
        return "accesses that move parts of a variant"
    if loader.staging_slots or loader.retention != "strict":
        return "variants held outside the pools"
    if controller.spare_bytes is not None:
        return "slots that shrink as keys and values grow"
    return None


def _fewest_by_pool(
    tick: IntArray, item: IntArray, slots: Slots, held: set[int], whole: NDArray[np.bool_]
) -> int:
    """The fewest loads with this division into pools: ``fewest_loads`` summed over the pools."""
    pool = np.array(slots.pool_of, np.int64)[item]
    total = 0
    for number, capacity in enumerate(slots.capacity_bytes):
        mine = pool == number
        fit = capacity // slots.geometry.slot_sizes[0]
        total += fewest_loads(tick[mine], item[mine], fit, held, whole[mine])
    return total


def _permitted(controller: Controller, needs: Needs) -> Permitted:
    """What may be answered to each need."""
    selector, last = controller.selector, len(controller.geometry.precisions) - 1

    def serving(answers: tuple[int, ...]) -> tuple[int, ...]:
        if max(answers) < 0:
            return answers  # nothing serves what is left out anyway
        # A resident variant of higher precision serves, too; one of lower precision only with
        # low_for_high.
        lowest = last if controller.loader.low_for_high else max(answers)
        return (*range(lowest + 1), *(answer for answer in answers if answer < 0))

    if selector.constant is not None:
        return Permitted([serving((selector.constant,))], np.zeros(len(needs.tick), np.int64))
    scores, back = np.unique(needs.score, return_inverse=True)
    found = [serving(selector.permitted(score)) for score in scores.tolist()]
    # Scores are many, answers few.
    number = {answers: index for index, answers in enumerate(dict.fromkeys(found))}
    return Permitted(list(number), np.array([number[answers] for answers in found])[back])
