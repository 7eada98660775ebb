"""Memory that may be over its capacity for a while: what the operating system swaps, at what cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sim.machine.ledger import Ledger
from sim.machine.model import Model
from sim.machine.parts import Swap
from sim.values.units import us


@dataclass(frozen=True)
class Paging:
    """``Swap`` for one run: ``room_bytes`` are what its weights have of the device's memory.

    ``dense_bytes`` are by site, and ``rest_bytes`` those of no site. Times are of a page.
    """

    page_bytes: int
    room_bytes: int
    dense_bytes: tuple[int, ...]
    rest_bytes: int
    in_ns: int
    out_ns: int


@runtime_checkable
class SwappedDurations(Protocol):
    """Durations of a run whose weights may be swapped."""

    paging: Paging | None


def paging_of(swap: Swap, memory_bytes: int, model: Model, ledger: Ledger) -> Paging:
    """What a run's weights have that this ledger is of.

    Raise ValueError where everything else leaves them nothing.
    """
    slot_bytes = ledger.slot_bytes + ledger.staging_bytes + ledger.overflow_bytes
    weights = ledger.dense_bytes + slot_bytes
    room = memory_bytes - (ledger.total_bytes - weights)
    if room <= 0:
        raise ValueError(
            f"hardware.swap: keys and values, activations and reserve take {-room} B more than the"
            f" device's {memory_bytes} B, and only weights are swapped; set hardware.memory_gib, or"
            " run shorter requests"
        )
    blocks = tuple(map(model.block_bytes, range(model.sites)))
    rest = model.dense_bytes - sum(blocks)
    page = round(swap.page_kib * 1024)
    return Paging(page, room, blocks, rest, us(swap.in_us), us(swap.out_us))
