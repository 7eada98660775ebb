"""A device whose threads really copy bytes at nominal times, and which computes nothing.

Loaders copy from one arena of host memory into another. A computation sleeps for its nominal time.
"""

from __future__ import annotations

import numpy as np

from real.driver.device import Service
from real.driver.threads import ThreadedDevice


class PacedDevice(ThreadedDevice):
    """A machine whose bandwidths and compute times are the run's durations.

    ``arena_bytes`` is the size of each of the two arenas; an access beyond the end wraps around.
    """

    def __init__(
        self, arena_bytes: int = 16 << 20, piece_bytes: int = 1 << 20, patience_s: float = 30.0
    ) -> None:
        if not 1 <= piece_bytes <= arena_bytes:
            raise ValueError(
                f"piece_bytes={piece_bytes} must be from 1 to arena_bytes={arena_bytes}"
            )
        super().__init__(piece_bytes, patience_s)
        self.source = np.random.default_rng(0).integers(256, size=arena_bytes, dtype=np.uint8)
        self.slots = np.zeros(arena_bytes, np.uint8)

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        self._sleep(self.now_ns() + nominal_ns)

    def _copy(self, service: Service, done: int, count: int) -> None:
        """Copy some bytes of a variant into its slot, a piece at a time."""
        arena = len(self.source)
        at = (service.key * self._piece_bytes + done) % arena
        while count > 0:
            piece = min(count, self._piece_bytes, arena - at)
            np.copyto(self.slots[at : at + piece], self.source[at : at + piece])
            at, count = (at + piece) % arena, count - piece
