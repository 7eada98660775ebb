"""Prefetches of a ranked forecast while they wait: one list of keys, most of which nobody ever asks for.

MoE-Infinity forecasts the experts of all later sites at every gate, likeliest first, and replaces
the whole queue at the next one (``queue: replace``, ``prefetch_order: likeliest``). Of two thousand
prefetches a handful starts. So a key waits here as a number, and is *made* a transfer only when it
may start, or when a gate of its site comes. The rows that tell of it are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.core.transfer import Transfer

REST: Final = Transfer(-1, True, 0, 0)
"""Stands in the queue, and in the lists of sites, for all prefetches of a `Ranked` that are not made."""
REST.cancelled = True
NONE: NDArray[np.int64] = np.empty(0, np.int64)


class Ranked:
    """Keys that were queued by one ``call``, the next to start first, with the site of each.

    ``place``: how many of them have left. ``made``: the transfers of those that were made.
    """

    __slots__ = ("_sites", "call", "keys", "made", "place")

    def __init__(
        self, keys: Sequence[int] = (), sites: NDArray[np.int64] = NONE, call: int = 0
    ) -> None:
        self.keys, self._sites, self.call, self.place = keys, sites, call, 0
        self.made: dict[int, Transfer] = {}

    @property
    def is_left(self) -> bool:
        """Whether any key is left, if only one that has been cancelled."""
        return self.place < len(self.keys)

    def unmade_of(self, site: int) -> list[int]:
        """The keys of a site that wait unmade, in order."""
        (places,) = (self._sites[self.place :] == site).nonzero()
        found = [self.keys[place] for place in (places + self.place).tolist()]
        return [key for key in found if key not in self.made]

    def left(self) -> list[int]:
        """The keys that wait, in order."""
        gone = {key for key, transfer in self.made.items() if transfer.cancelled}
        return [key for key in self.keys[self.place :] if key not in gone]

    def skip_cancelled(self) -> bool:
        """Leave out what is cancelled before the next key: whether there is a next key."""
        while self.is_left:
            made = self.made.get(self.keys[self.place])
            if made is None or not made.cancelled:
                return True
            self.place += 1
        return False

    def take(self) -> int:
        """The next key, which leaves; -1 if there is none."""
        if not self.skip_cancelled():
            return -1
        self.place += 1
        return self.keys[self.place - 1]

    def take_while(self, is_taken: Callable[[int], bool]) -> list[int]:
        """The next keys, as long as they are unmade and the question is answered with yes: they leave."""
        taken, keys, made = list[int](), self.keys, self.made
        for place in range(self.place, len(keys)):
            key = keys[place]
            transfer = made.get(key)
            if transfer is None and is_taken(key):
                taken.append(key)
            elif transfer is None or not transfer.cancelled:
                self.place = place
                return taken
        self.place = len(keys)
        return taken
