"""Prefetches of a ranked forecast while they wait: arrays of keys, most of which nobody ever asks for.

MoE-Infinity forecasts the experts of all later sites at every gate, likeliest first, and replaces
the whole queue at the next one (``queue: replace``, ``prefetch_order: likeliest``). Of thousands of
prefetches a handful starts. So a key waits here as a number, and is *made* a transfer only when it
may start, or when a gate of its site asks for it. The rows that tell of it are the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.core.transfer import Transfer

REST: Final = Transfer(-1, True, 0, 0)
"""Stands in the queue, and in the lists of sites, for all prefetches of a `Ranked` that are not made."""
REST.cancelled = True
Ints = NDArray[np.integer]
NONE: NDArray[np.int32] = np.empty(0, np.int32)


class Ranked:
    """Keys that were queued by one ``call``, the next to start first, with the site of each.

    A *place* is an index of ``keys``. ``place`` is that of the next one: all before it have left.
    ``made``: by place, the transfers of those that were made.
    """

    __slots__ = ("_sites", "_unmade", "call", "keys", "made", "place")

    def __init__(self, keys: Ints = NONE, sites: Ints = NONE, call: int = 0) -> None:
        self.keys, self._sites, self.call, self.place = keys, sites, call, 0
        self.made: dict[int, Transfer] = {}
        # By place, whether it waits unmade. What is neither this nor made has been cancelled.
        self._unmade = np.ones(len(keys), np.bool_)

    @property
    def is_left(self) -> bool:
        """Whether any key is left, if only one that has been cancelled."""
        return self.place < len(self.keys)

    @property
    def rest(self) -> Ints:
        """The keys that are left, in order, with those that have been cancelled."""
        return self.keys[self.place :]

    def unmade_of(self, site: int) -> NDArray[np.intp]:
        """The places of a site whose keys wait unmade, in order."""
        rest = slice(self.place, None)
        (found,) = (self._unmade[rest] & (self._sites[rest] == site)).nonzero()
        places: NDArray[np.intp] = found + self.place
        return places

    def unmade_place(self, key: int) -> int:
        """Where a key waits unmade; -1 if it does not."""
        (found,) = (self._unmade[self.place :] & (self.rest == key)).nonzero()
        return self.place + int(found[0]) if len(found) else -1

    def make(self, place: int, transfer: Transfer) -> None:
        """The key at a place is this transfer from now on."""
        self.made[place], self._unmade[place] = transfer, False

    def cancel(self, places: Ints) -> None:
        """The keys at these places, which wait unmade, are no longer wanted."""
        self._unmade[places] = False

    def left(self) -> Ints:
        """The keys that wait, made or not, in order."""
        waits = self._unmade[self.place :]
        return self.rest[waits | self._made_and_waiting() if self.made else waits]

    def _made_and_waiting(self) -> NDArray[np.bool_]:
        """Of those that are left, which have been made and not been cancelled since."""
        found = np.zeros(len(self.keys) - self.place, np.bool_)
        for place, transfer in self.made.items():
            if place >= self.place and not transfer.cancelled:
                found[place - self.place] = True
        return found

    def skip_cancelled(self) -> bool:
        """Leave out what is cancelled before the next key: whether there is a next key."""
        while self.is_left:
            if self._unmade[self.place]:
                return True
            made = self.made.get(self.place)
            if made is not None and not made.cancelled:
                return True
            self.place += 1
        return False

    def take(self) -> int:
        """The place of the next key, which leaves; -1 if there is none."""
        if not self.skip_cancelled():
            return -1
        self.place += 1
        return self.place - 1

    def take_while(self, is_taken: NDArray[np.bool_]) -> Ints:
        """The next keys, as long as they are unmade and to be taken: they leave.

        ``is_taken`` says it of each of the `rest`.
        """
        unmade = self._unmade[self.place :]
        stops = unmade & ~is_taken
        if self.made:
            stops |= self._made_and_waiting()
        count = int(stops.argmax()) if stops.any() else len(stops)
        taken = self.rest[:count][unmade[:count]]
        self.place += count
        return taken


NOBODY: Final = Ranked()
"""No key waits."""
