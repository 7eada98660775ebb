"""Transfers without a whole run: what the short way of issuing asks, and what it gives up."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from sim.core.transfer import Transfer
from sim.core.transfers import Transfers


class Link:
    """Two pools: keys 0 to 2 are of pool 0, of 4, 2 and 9 bytes; key 3 is of pool 1, of 4 bytes."""

    _is_full_for, _and_full_for = Transfers._is_full_for, Transfers._and_full_for
    issue = Transfers._issue_simply

    def __init__(self, demands: list[int], prefetches: list[int], has_room: list[int]) -> None:
        self.queues = [
            tuple(
                deque(Transfer(key, prefetch, 1, 0) for key in keys)
                for keys, prefetch in ((demands, False), (prefetches, True))
            )
        ]
        self.slots = SimpleNamespace(pool_of=[0, 0, 0, 1], slot_bytes=[4, 2, 9, 4])
        self.asked: list[int] = []
        self.dropped: list[int] = []
        self.given_up, self.calls, self._writes_back = 0, 7, False
        self.state, self.issued, self.events = [0] * 4, list[Any](), list[int]()
        self.protection = SimpleNamespace(
            claim=lambda key, must: self.asked.append(key) or ([] if key in has_room else None)  # type: ignore[func-returns-value]
        )

    def _give_up(self, transfer: Transfer, why: int) -> None:
        self.dropped.append(transfer.key)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("demands", "prefetches", "has_room", "asked", "dropped", "issued"),
    [
        # No slot of 4 bytes: none of 9 in the same pool, and that is not asked.
        ([], [0, 2, 3], [3], [0, 3], [0, 2], 3),
        ([], [0, 1, 3], [1], [0, 1], [0], 1),
        ([], [0, 0, 2], [], [0], [0, 0, 2], None),
        # Both pools are full, and each is asked once.
        ([], [0, 3, 0, 3], [], [0, 3], [0, 3, 0, 3], None),
        # What is needed waits for its slot, and nothing passes it.
        ([2], [3], [3], [2], [], None),
        ([2], [3], [2, 3], [2], [], 2),
    ],
)
def test_a_prefetch_is_given_up_unasked_only_where_its_pool_was_full_for_no_more_bytes(
    demands: list[int],
    prefetches: list[int],
    has_room: list[int],
    asked: list[int],
    dropped: list[int],
    issued: int | None,
) -> None:
    link: Any = Link(demands, prefetches, has_room)
    found = link.issue()
    assert (link.asked, link.dropped, link.given_up) == (asked, dropped, len(dropped))
    assert (found and found.key) == issued
    assert [transfer.key for transfer in link.issued] == ([] if issued is None else [issued])
    assert sum(map(len, link.queues[0])) == len(demands + prefetches) - len(dropped) - (
        issued is not None
    )


class Line(Link):
    """The long way. Keys 3 and 4 are of one pool, but 3 lands in staging."""

    issue = Transfers._issue  # type: ignore[assignment]

    def __init__(self, queue: list[tuple[int, bool]], has_room: list[int]) -> None:
        super().__init__([], [], has_room)
        one = deque(Transfer(key, prefetch, 1, 0) for key, prefetch in queue)
        self.queues = [(one, one)]  # type: ignore[assignment]
        self.slots = SimpleNamespace(pool_of=[0, 0, 0, 1, 1], slot_bytes=[4, 2, 9, 4, 4])
        self.has_room = has_room

    def _claim(self, transfer: Transfer, link: int) -> bool:
        self.asked.append(transfer.key)
        return transfer.is_needed or transfer.key in self.has_room

    def _asks_pool(self, transfer: Transfer, link: int) -> bool:
        return transfer.key != 3

    def _start(self, transfer: Transfer, link: int) -> Transfer:
        return transfer


@pytest.mark.pure
@pytest.mark.parametrize(
    ("queue", "has_room", "asked", "issued"),
    [
        ([(0, True), (2, True), (4, True)], [4], [0, 4], 4),
        # Staging was full: that says nothing of the pool, and a full pool nothing of staging.
        ([(3, True), (4, True)], [4], [3, 4], 4),
        ([(4, True), (3, True)], [3], [4, 3], 3),
        # A demand takes what no prefetch may take.
        ([(0, True), (0, False)], [], [0, 0], 0),
    ],
)
def test_the_long_way_asks_a_pool_that_was_full_for_demands_alone(
    queue: list[tuple[int, bool]], has_room: list[int], asked: list[int], issued: int
) -> None:
    line: Any = Line(queue, has_room)
    assert line.issue(0).key == issued
    assert line.asked == asked
