"""Staging slots: room on the device, outside the pools, for variants that serve one gate."""

from __future__ import annotations

from collections.abc import Collection


class Staging:
    """``slots`` slots, each of the largest variant.

    ``used`` counts the slots that are claimed or filled, ``most_used`` the most there ever were.
    ``holds[key]`` is 1 for a key that has arrived.
    """

    def __init__(self, slots: int, num_keys: int) -> None:
        self.slots = slots
        self.used = self.most_used = 0
        self.holds = bytearray(num_keys)
        self.keys: dict[int, None] = {}
        """The keys that have arrived, in order of arrival."""

    @property
    def is_full(self) -> bool:
        return self.used == self.slots

    def claim(self) -> None:
        self.used += 1
        self.most_used = max(self.most_used, self.used)

    def release(self) -> None:
        """Give back a claimed slot whose transfer has not arrived."""
        self.used -= 1

    def put(self, key: int) -> None:
        self.holds[key] = 1
        self.keys[key] = None

    def take(self, key: int) -> None:
        """Remove a staged key and free its slot."""
        self.holds[key] = 0
        del self.keys[key]
        self.used -= 1

    def first_but(self, pins: Collection[int]) -> int:
        """The staged key that arrived first and is not among ``pins``, or -1."""
        return next((key for key in self.keys if key not in pins), -1)

    def check(self) -> None:
        assert sum(self.holds) == len(self.keys) <= self.used <= self.slots
