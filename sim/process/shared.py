"""A cache of what several runs of one process share, such as traces, which no run changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Shared:
    """Keeps the ``most`` values used last, each under its key; ``most=0`` keeps nothing."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._kept: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value kept under ``key``, else ``make()``, which is kept from then on."""
        found: T = self._kept.pop(key) if key in self._kept else make()
        self._kept[key] = found
        while len(self._kept) > self._most:
            self._kept.pop(next(iter(self._kept)))
        return found
