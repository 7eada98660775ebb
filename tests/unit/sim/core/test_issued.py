"""Transfers that have started: what is packed, what is not, and what is read of both."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from sim.core.issued import ALIKE, PACKED, Issued
from sim.core.transfer import Transfer

NEXT_LINK = (0, 9)
"""A later hop: the link, and the call that queued it there."""


def started(number: int, *, landed: bool = True, **values: Any) -> Transfer:
    """A transfer of key 10 * number, as a controller leaves it once it has landed."""
    transfer = Transfer(10 * number, bool(values.pop("prefetch", False)), 100 + number, number + 1)
    transfer.number, transfer.waits, transfer.claimed = number, False, True
    transfer.over = landed
    for name, value in values.items():
        setattr(transfer, name, value)
    return transfer


def told(transfer: Transfer) -> dict[str, Any]:
    """All that can be read of a transfer."""
    names = [name for name in Transfer.__slots__ if name != "__dict__"]
    of_class = [name for name in vars(Transfer) if not name.startswith("_") and name not in names]
    found = {name: getattr(transfer, name) for name in (*names, *of_class)}
    return found | {"victims": tuple(transfer.victims)}


def kept(issued: Issued) -> list[int]:
    return [number for number, _ in issued.objects()]


@pytest.mark.pure
def test_a_packed_transfer_reads_as_it_did() -> None:
    issued = Issued([started(0), started(1, victims=[7])])
    before = [told(transfer) for transfer in issued]
    issued.pack()
    assert kept(issued) == []
    assert [told(transfer) for transfer in issued] == before
    assert [told(issued[number]) for number in (0, 1, -1)] == [*before, before[-1]]
    assert len(issued) == 2


ODD: list[dict[str, Any]] = [
    {"prefetch": True},
    {"dense": True},
    {"staged": True},
    {"partial": True},
    {"overtaken": True},
    {"bounced": True},
    {"feeds": 1},
    {"rest_bytes": 3},
    {"write_back": (4,)},
    {"later_hops": (NEXT_LINK,)},
    {"parent": 0},
    {"first_link": 1},
    {"victims": (4, 5)},
    {"left_bytes": 50},
]


@pytest.mark.parametrize("values", ODD, ids=str)
def test_a_transfer_of_which_there_is_more_to_tell_stays_an_object(values: dict[str, Any]) -> None:
    issued = Issued([started(0), started(1, **values), started(2)])
    one = issued[1]
    issued.pack()
    assert kept(issued) == [1]
    assert issued[1] is one


@pytest.mark.parametrize(
    "values", [{"prefetch": True}, {"write_back": (4,)}, {"victims": (4, 5)}], ids=str
)
def test_where_moves_are_simple_fewer_questions_find_the_same(values: dict[str, Any]) -> None:
    issued = Issued([started(0), started(1, **values), started(2)], moves_simply=True)
    issued.pack()
    assert kept(issued) == [1]


@pytest.mark.pure
def test_a_prefetch_is_looked_at_once_however_often_others_are_packed() -> None:
    """It is never packed. A long run starts millions, and packs thousands of times."""

    class Watched(Transfer):
        looks = 0

        @property
        def over(self) -> bool:
            self.looks += 1
            return False

        @over.setter
        def over(self, value: bool) -> None:
            pass

    prefetch, demand = Watched(0, True, 1, 1), Watched(1, False, 1, 1)
    issued = Issued([prefetch, demand])
    for _ in range(5):
        issued.pack()
    assert (prefetch.looks, demand.looks) == (1, 5)


def test_what_is_on_its_way_is_packed_once_it_has_landed() -> None:
    issued = Issued([started(0), started(1, landed=False)])
    issued.pack()
    issued.append(started(2))
    assert kept(issued) == [1, 2]
    issued[1].over = True
    issued.pack()
    assert kept(issued) == []
    assert [transfer.key for transfer in issued] == [0, 10, 20]


@pytest.mark.parametrize("pack", [Issued.pack, lambda issued: None], ids=["packed", "not"])
def test_a_column_has_the_packed_and_the_others_by_number(pack: Callable[[Issued], None]) -> None:
    issued = Issued(
        [
            started(0, victims=(7,)),
            started(1, prefetch=True, outcome=2),
            started(2, landed=False),
            started(3, dense=True, first_link=1),
            started(4),
        ]
    )
    pack(issued)
    columns = {name: issued.column(name).tolist() for name in (*PACKED, *ALIKE)}
    outcome = issued[0].outcome
    assert columns == {
        "key": [0, 10, 20, 30, 40],
        "call": [1, 2, 3, 4, 5],
        "moved_bytes": [100, 101, 102, 103, 104],
        "victim": [7, -1, -1, -1, -1],
        "first_link": [0, 0, 0, 1, 0],
        "prefetch": [0, 1, 0, 0, 0],
        "dense": [0, 0, 0, 1, 0],
        "parent": [-1] * 5,
        "outcome": [outcome, 2, outcome, outcome, outcome],
    }


def test_packing_again_and_again_keeps_the_order() -> None:
    issued, numbers = Issued(), count()
    for size in (0, 1, 3, 0, 2):
        issued.extend(started(next(numbers)) for _ in range(size))
        issued.pack()
    assert [transfer.number for transfer in issued] == list(range(6))
    assert issued.column("moved_bytes").tolist() == [100, 101, 102, 103, 104, 105]
