"""The dense blocks of a replay that streams them: their slots, and the bytes that are moved there.

The controller decides which block goes where. A layer's block takes the slot of the block
``dense_slots`` layers before it, once that layer's gate has passed. The contents are random bytes
in a model's place: they really move, but nothing reads them.
"""

from __future__ import annotations

import numpy as np

from real.store.reading import Bytes
from sim.core.controller import Controller


class DenseBlocks:
    """``loader.dense_slots`` slots, each of the largest block's size."""

    def __init__(self, controller: Controller) -> None:
        self._geometry, self._count = controller.geometry, controller.loader.dense_slots
        largest = max(controller.dense_bytes)
        self._home = np.random.default_rng(0).integers(256, size=largest, dtype=np.uint8)
        self._slots = np.zeros((self._count, largest), np.uint8)
        self._slot_of = {site: site for site in range(self._count)}
        for site in range(self._count):
            np.copyto(self._slots[site], self._home)

    @property
    def num_bytes(self) -> int:
        return self._slots.size

    def has(self, key: int) -> bool:
        """Whether a key is a dense block's."""
        return self._geometry.expert_of(key) == self._geometry.experts

    def place(self, key: int) -> None:
        """Give a block that begins to come the slot of the block that has passed."""
        site = self._geometry.site_of(key)
        self._slot_of[site] = self._slot_of.pop((site - self._count) % self._geometry.sites)
        self._slots[self._slot_of[site]] = 0

    def copy(self, key: int, begin: int, count: int) -> None:
        """Copy bytes ``begin .. begin + count`` of a block from where it rests into its slot."""
        np.copyto(self.at(key)[begin : begin + count], self._home[begin : begin + count])

    def at(self, key: int) -> Bytes:
        """The slot of a block that is there, or on its way."""
        slot: Bytes = self._slots[self._slot_of[self._geometry.site_of(key)]]
        return slot

    def check(self, key: int, num_bytes: int) -> None:
        """Assert that the first ``num_bytes`` of a block are in its slot. For tests."""
        assert (self.at(key)[:num_bytes] == self._home[:num_bytes]).all(), self._geometry.name_of(
            key
        )
