"""How many lookups find their expert, and how many loads there are, at every number of slots.

LRU has the stack property: what n slots hold, n + 1 slots hold, too. So each lookup has one least
number of slots with which it is a hit, and one pass over the gates finds it for all lookups
(Mattson et al., IBM Systems Journal 9(2), 1970). Two things differ from the textbook, and both
follow the simulator:

- A gate is one event. All of its needs are looked up in what was there before it, and none of them
  makes room for another (contracts C15 and C35). So a pool must hold the largest union.
- Pools are full at the start. A key that nobody has asked for lies below all that somebody did, and
  of such keys the first of the initial order goes first. A larger pool starts with more of them.

Other policies are walked without a clock, once for each number of slots (`sim.screening.moves`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.bounds.loads import fewest_loads
from sim.bounds.problem import stays_until_next
from sim.core.controller import Controller
from sim.results.hits import ALWAYS, IF_ABSENT, SKIPS, skip_codes
from sim.screening.moves import ScreenError, first_pass, require_screenable
from sim.values.types import Outcome
from sim.workload.steps import Workload

Ints = NDArray[np.int64]
NEVER = 1 << 40
"""More slots than any pool has: no number of slots makes the lookup a hit."""


@dataclass(frozen=True, eq=False)
class Requests:
    """The lookups of a run in order: the gate of each, its key, and whether a step decoded it.

    What the selector leaves out whatever the device holds is asked for by nobody (contract C107).
    """

    tick: Ints
    key: Ints
    is_decode: NDArray[np.bool_]

    @property
    def largest_union(self) -> int:
        """The most needs of one gate."""
        return int(np.bincount(self.tick).max())


@dataclass(frozen=True)
class Point:
    """A policy with some number of ``slots`` for all pools together.

    ``hits`` and ``asked`` are of decode steps, ``loads`` of the whole run.
    """

    slots: int
    hits: int
    asked: int
    loads: int

    @property
    def hit_ratio(self) -> float | None:
        """The ``hit_ratio`` of a run's summary; None where nothing is decoded."""
        return self.hits / self.asked if self.asked else None


def requests_of(controller: Controller, workload: Workload) -> Requests:
    """What a run will look up, at its one precision."""
    needs, geometry = workload.needs, controller.geometry
    asked = _is_asked(controller, workload)
    tick, expert = needs.tick[asked].astype(np.int64), needs.expert[asked]
    is_decode = np.array([one.gives_tokens for one in workload.steps], np.bool_)
    key = workload.gate_site[tick].astype(np.int64) * geometry.units + expert
    return Requests(tick, key, is_decode[workload.gate_step[tick]])


def _is_asked(controller: Controller, workload: Workload) -> NDArray[np.bool_]:
    """By need, whether its selector does not leave it out anyway.

    Raise ScreenError for one that leaves out what is absent: how many needs load depends on that.
    """
    selector, needs = controller.selector, workload.needs
    if selector.constant is not None:
        return np.ones(len(needs.tick), np.bool_)
    codes = skip_codes(selector, needs.score)
    if (codes == SKIPS.index(IF_ABSENT)).any():
        raise ScreenError(
            "precision: a selector that leaves out what is absent loads less than it asks for;"
            " choose another (moelab study budget.resident_share=.. runs this one)"
        )
    asked: NDArray[np.bool_] = codes != SKIPS.index(ALWAYS)
    return asked


def require_slots(controller: Controller) -> None:
    """Raise ScreenError where a number of slots does not say how many experts they hold."""
    geometry = controller.geometry
    if len(geometry.precisions) > 1:
        names = ", ".join(geometry.precisions)
        raise ScreenError(
            f"precision: slots of {names} have several sizes; choose one precision"
            f" (precision={geometry.precisions[0]})"
        )
    if geometry.site_bytes is not None:
        raise ScreenError(
            "model: experts of several sizes share these slots; choose a model whose layers are"
            " stored alike (moelab study budget.resident_share=.. runs this one)"
        )
    if controller.spare_bytes is not None:
        raise ScreenError(
            "workload.kv_allocation=growing: a number of slots is not the same at each step; set it"
            " to once (moelab study budget.resident_share=.. runs this one)"
        )


def why_not_at_once(controller: Controller) -> str | None:
    """Why one pass does not tell a run's hits at every number of slots; None where it does."""
    cache, loader = controller.cache, controller.loader
    if not cache.keeps_the_most_recent:
        return "it does not keep what was asked for last"
    if loader.retention != "strict" or loader.staging_slots:
        return "experts are held outside the pools"
    if len(controller.slots.capacity_bytes) not in (1, controller.geometry.sites):
        return "its pools do not divide the slots evenly"
    return None


def least_slots(requests: Requests, initial: Sequence[int], num_keys: int) -> Ints:
    """By lookup, the least number of slots of one LRU pool with which it is a hit, else `NEVER`.

    ``initial`` are the keys that fill the pool at the start, in order, as far as it has slots. The
    answer holds from the largest union on.
    """
    found = np.full(len(requests.key), NEVER, np.int64)
    place = np.full(num_keys, -1, np.int64)
    place[list(initial)] = np.arange(len(initial))
    asked_at = np.full(num_keys, -1, np.int64)  # when each key was asked for last
    was_asked = np.zeros(len(initial), np.bool_)  # by place in the initial order
    distinct = 0
    for begin, end in _gates(requests.tick):
        keys = requests.key[begin:end]
        last = asked_at[keys]
        above = (asked_at[None, :] > last[:, None]).sum(1)
        found[begin:end] = np.where(last >= 0, above + 1, NEVER)
        for at in np.flatnonzero(last < 0).tolist():
            found[begin + at] = _untouched(int(place[keys[at]]), distinct, was_asked)
        distinct += int((last < 0).sum())
        asked_at[keys] = np.arange(begin, end)
        was_asked[place[keys][place[keys] >= 0]] = True
    return found


def _untouched(place: int, distinct: int, was_asked: NDArray[np.bool_]) -> int:
    """The least number of slots that still hold an initial key that nobody asked for, after
    ``distinct`` keys were asked for.

    With n slots it lies below these keys and below the initial keys between it and the n-th that
    nobody asked for. So it is there where at least ``distinct - place`` of those between were asked
    for.
    """
    if place < 0:
        return NEVER
    more = distinct - place
    if more <= 0:
        return place + 1
    asked = np.flatnonzero(was_asked[place + 1 :])
    return place + 2 + int(asked[more - 1]) if more <= len(asked) else NEVER


def _gates(tick: Ints) -> Iterator[tuple[int, int]]:
    """Where the lookups of each gate begin and end."""
    first = np.flatnonzero(np.diff(tick, prepend=-1))
    return zip(first.tolist(), [*first[1:].tolist(), len(tick)], strict=True)


@dataclass(frozen=True, eq=False)
class Curve:
    """The hits of a run at every number of slots from ``least`` to ``most``, from one pass."""

    least: int
    most: int
    slots: Ints
    requests: Requests

    def at(self, slots: int) -> Point:
        """The point of a number of slots; raise ValueError outside of the range."""
        if not self.least <= slots <= self.most:
            raise ValueError(f"{slots} slots are not between {self.least} and {self.most}")
        is_hit = self.slots <= slots
        decoded = self.requests.is_decode
        return Point(
            slots,
            int((is_hit & decoded).sum()),
            int(decoded.sum()),
            int(len(is_hit) - is_hit.sum()),
        )


def curve_of(controller: Controller, workload: Workload) -> Curve:
    """Every capacity of a run that was built with all experts resident, by one pass over its gates.

    With a pool a site the slots are shared out as the cache does it. Raise ScreenError where one
    pass cannot tell.
    """
    require_screenable(controller, workload.is_timed)
    require_slots(controller)
    if why := why_not_at_once(controller):
        raise ScreenError(f"cache: one pass tells no other capacity's hits, because {why}")
    requests = requests_of(controller, workload)
    slots, sites = controller.slots, controller.geometry.sites
    pools = len(slots.capacity_bytes)
    pool = np.array(slots.pool_of, np.int64)[requests.key]
    least, total = np.zeros(pools, np.int64), np.zeros(len(requests.key), np.int64)
    for number in range(pools):
        mine = pool == number
        own = Requests(requests.tick[mine], requests.key[mine], requests.is_decode[mine])
        initial = [key for key in slots.initial if slots.pool_of[key] == number]
        found = least_slots(own, initial, controller.geometry.num_keys)
        least[number] = own.largest_union if len(own.key) else 0
        total[mine] = found if pools == 1 else np.minimum(_of_all(found, number, sites), NEVER)
    smallest = (
        int(least[0])
        if pools == 1
        else int(max(_of_all(least, np.arange(pools), sites).max(), sites))
    )
    return Curve(smallest, slots.count, total, requests)


def _of_all(own: Ints, site: int | Ints, sites: int) -> Ints:
    """The least slots of all sites with which a site gets its ``own`` (`sim.policies.quotas`).

    >>> _of_all(np.array([1, 2, 2]), np.array([0, 0, 2]), 3).tolist()
    [1, 4, 6]
    """
    return (own - 1) * sites + site + 1


def walked(controller: Controller, workload: Workload) -> Point:
    """The point of a run at its own budget, walked without a clock by its own policies.

    Raise ScreenError where that is not exact.
    """
    require_screenable(controller, workload.is_timed)
    first_pass(controller, workload)
    outcome = np.frombuffer(bytes(controller.lookup_outcomes), np.uint8)
    outcome = outcome[_is_asked(controller, workload)]
    requests = requests_of(controller, workload)
    is_hit = np.isin(outcome, (int(Outcome.HIT), int(Outcome.HIGH_FOR_LOW)))
    return Point(
        controller.slots.count,
        int((is_hit & requests.is_decode).sum()),
        int(requests.is_decode.sum()),
        int((~is_hit).sum()),
    )


def least_loads(controller: Controller, workload: Workload, requests: Requests) -> int | None:
    """The fewest loads that any cache of this run's slots makes, prefetched or not, with its
    initial contents; None where more than the slots may hold experts for longer.
    """
    loader, slots = controller.loader, controller.slots
    if loader.retention != "strict":
        return None
    stays = stays_until_next(workload, controller)[_is_asked(controller, workload)]
    room = slots.count + loader.staging_slots
    return fewest_loads(requests.tick, requests.key, room, slots.initial, stays)
