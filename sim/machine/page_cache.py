"""What the operating system keeps of files that were read: part of the machine, never a
decision.
"""

from __future__ import annotations

from collections import OrderedDict


class PageCache:
    """Whole experts, least recently read first, at most ``capacity_bytes`` of them; empty at the
    start.

    An expert larger than the cache is never kept. Linux ages pages in two lists and reads ahead;
    what it keeps of a cyclic stream is therefore somewhat more than this.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._bytes: OrderedDict[int, int] = OrderedDict()
        self._held = 0

    def read(self, key: int, size: int) -> bool:
        """Read ``key``, of ``size`` bytes; whether all of it was kept. It is, and is the most
        recent, from now on.
        """
        kept = self._bytes.pop(key, 0)
        self._held -= kept
        if size <= self.capacity_bytes:
            self._bytes[key] = max(kept, size)
            self._held += self._bytes[key]
            while self._held > self.capacity_bytes:
                _, dropped = self._bytes.popitem(last=False)
                self._held -= dropped
        return kept >= size
