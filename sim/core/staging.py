"""Staging slots: what is there for one gate, outside the pools."""

from __future__ import annotations

from collections.abc import Collection


class Staging:
    """``slots`` slots, each of the largest variant; ``holds[key]`` is 1 for what has arrived in
    one.
    """

    def __init__(self, slots: int, num_keys: int) -> None:
        self.slots = slots
        self.used = self.most_used = 0
        self.holds = bytearray(num_keys)
        self.keys: dict[int, None] = {}
        """What has arrived, first come first."""

    @property
    def is_full(self) -> bool:
        return self.used == self.slots

    def claim(self) -> None:
        self.used += 1
        self.most_used = max(self.most_used, self.used)

    def release(self) -> None:
        """Give back the slot of something that has not arrived."""
        self.used -= 1

    def put(self, key: int) -> None:
        self.holds[key] = 1
        self.keys[key] = None

    def take(self, key: int) -> None:
        """A staged key goes, and its slot is free."""
        self.holds[key] = 0
        del self.keys[key]
        self.used -= 1

    def first_but(self, pins: Collection[int]) -> int:
        """The key that arrived first of those that are not among ``pins``, or -1."""
        return next((key for key in self.keys if key not in pins), -1)

    def check(self) -> None:
        assert sum(self.holds) == len(self.keys) <= self.used <= self.slots
