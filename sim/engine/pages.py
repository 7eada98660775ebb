"""The pages of a run's weights: which of them are in memory, and which are swapped out.

It is part of the machine; the controller neither knows nor decides it (contract C182).
"""

from __future__ import annotations

from collections.abc import Iterable

from sim.core.controller import Controller
from sim.core.slots import UNUSED
from sim.machine.durations import Durations
from sim.machine.swap import Paging, SwappedDurations
from sim.values.types import Step

REST = -1
"""The dense weights that belong to no site; else a block, or an expert, goes by its key."""


class PageLedger:
    """Of each item of weights, the pages in memory and those swapped out."""

    def __init__(self, paging: Paging, controller: Controller) -> None:
        self._paging, self._geometry, self._state = paging, controller.geometry, controller.state
        self._slot_bytes, self._spare_bytes = controller.slots.slot_bytes, controller.spare_bytes
        self._most = paging.room_bytes // paging.page_bytes
        self._in: dict[int, int] = {}
        """Pages in memory by item, the one first that was touched the longest ago."""
        self._out: dict[int, int] = {}
        self._used = 0
        self._came = self._went = 0
        self.came = self.went = 0
        """The pages of the whole run, without those that its beginning needs."""
        self._touch(REST, paging.rest_bytes)
        geometry = self._geometry
        for site in range(geometry.sites):
            self._touch_block(site)
        for key in sorted(controller.slots.initial):
            self._touch(key, self._slot_bytes[key])
        self._came = self._went = 0

    def visit(self, site: int, step: Step) -> None:
        """A gate's dense work reads its block; the first of a step all that is of no site, too.

        Then weights also have what keys and values leave until they grow (contract C174).
        """
        if site == step.sites[0]:
            spare = self._spare_bytes(step.index) if self._spare_bytes is not None else 0
            self._most = (self._paging.room_bytes + spare) // self._paging.page_bytes
            self._touch(REST, self._paging.rest_bytes)
        self._touch_block(site)

    def admit(self, keys: Iterable[int]) -> None:
        """The needs that one call admitted, in need order: those that the device computes."""
        state, experts = self._state, self._geometry.experts
        units = self._geometry.units
        for held in (self._in, self._out):
            for item in [i for i in held if i >= 0 and i % units < experts and state[i] > UNUSED]:
                self._used -= self._in.pop(item, 0)
                self._out.pop(item, None)
        for key in keys:
            self._touch(key, self._slot_bytes[key])

    def bill_ns(self) -> int:
        """What the pages take that came and went since this was last asked."""
        cost = self._came * self._paging.in_ns + self._went * self._paging.out_ns
        self.came += self._came
        self.went += self._went
        self._came = self._went = 0
        return cost

    def _touch_block(self, site: int) -> None:
        block = self._geometry.key(0, site, self._geometry.experts)
        self._touch(block, self._paging.dense_bytes[site])

    def _touch(self, item: int, size: int) -> None:
        """Read an item: what is swapped out comes back, what is new is taken; then the oldest go."""
        here, away = self._in.pop(item, None), self._out.pop(item, 0)
        if here is None and not away:
            here, away = -(-size // self._paging.page_bytes), 0
            self._used += here
        self._in[item] = (here or 0) + away
        self._used += away
        self._came += away
        while self._used > self._most:
            oldest = next(iter(self._in))
            goes = min(self._in[oldest], self._used - self._most)
            self._in[oldest] -= goes
            if not self._in[oldest]:
                del self._in[oldest]
            self._out[oldest] = self._out.get(oldest, 0) + goes
            self._used -= goes
            self._went += goes


def make_pages(durations: Durations, controller: Controller) -> PageLedger | None:
    """The pages of a run's weights; None where they are not swapped."""
    if not isinstance(durations, SwappedDurations) or durations.paging is None:
        return None
    return PageLedger(durations.paging, controller)
