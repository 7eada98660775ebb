"""The operating system's page cache: which experts it keeps of those read from files.

It is part of the machine; the controller neither knows nor decides what it holds.
"""

from __future__ import annotations

from collections import OrderedDict


class PageCache:
    """An LRU cache of whole experts that holds at most ``capacity_bytes`` and begins empty.

    An expert larger than the cache is never kept. Linux ages pages in two lists and reads ahead, so
    of a cyclic stream it keeps somewhat more than this.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._bytes: OrderedDict[int, int] = OrderedDict()
        self._held = 0

    def read(self, key: int, size: int) -> bool:
        """Read ``size`` bytes of ``key``; return whether all of them were in the cache.

        If they fit the cache they are kept from now on, as the most recent.
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
