"""Swapped memory, page by page (docs/contracts/pages.md)."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import TypeAlias

from differential.ref_memory import Asked
from differential.scenario import Key, Scenario, Step, Swap

Item: TypeAlias = "Key | str"
REST = "the dense weights of no site"


class SwappedMemory:
    """A list of the pages in memory, the one first that was touched the longest ago."""

    def __init__(self, scenario: Scenario, swap: Swap) -> None:
        self.scenario, self.swap = scenario, swap
        self.room = swap.room_bytes // swap.page_bytes
        self.resident: list[tuple[Item, int]] = []
        self.pages_of: dict[Item, int] = {}
        self.unpaid_ns = 0
        self.touch(REST, swap.rest_bytes)
        for site, size in enumerate(swap.dense_bytes):
            self.touch(self.block(site), size)
        at_start = [key for pool in scenario.pools for key in pool.initial]
        for key in sorted(at_start, key=scenario.pack):
            self.touch(key, scenario.slot(key))
        self.unpaid_ns = 0

    def block(self, site: int) -> Key:
        return (0, site, self.scenario.experts)

    def gate(self, step: Step, site: int) -> None:
        if site == step.sites[0]:
            self.touch(REST, self.swap.rest_bytes)
        self.touch(self.block(site), self.swap.dense_bytes[site])

    def admit(self, admitted: Iterable[Asked], there: set[Key]) -> None:
        """`there`: the variants that are on the device after this call's lookups."""
        for item in list(self.pages_of):
            if isinstance(item, tuple) and item[2] < self.scenario.experts and item not in there:
                self.resident = [page for page in self.resident if page[0] != item]
                del self.pages_of[item]
        for one in admitted:
            if one.outcome not in ("skip", "cpu") and not one.joins:
                self.touch(one.key, self.scenario.slot(one.key))

    def touch(self, item: Item, size: int) -> None:
        pages = [(item, number) for number in range(ceil(size / self.swap.page_bytes))]
        if item in self.pages_of:
            lacking = [page for page in pages if page not in self.resident]
            self.unpaid_ns += self.swap.in_ns * len(lacking)
        self.pages_of[item] = len(pages)
        self.resident = [page for page in self.resident if page[0] != item] + pages
        while len(self.resident) > self.room:
            self.resident.pop(0)
            self.unpaid_ns += self.swap.out_ns

    def pay(self) -> int:
        due, self.unpaid_ns = self.unpaid_ns, 0
        return due
