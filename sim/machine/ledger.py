"""The ledger: the device memory that a run takes, part by part, in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from sim.machine.hardware import Hardware
from sim.machine.model import Model
from sim.values.units import GIB, gib


class StepLimits(Protocol):
    """The most that the steps of a run need (`sim.workload.steps.Limits`).

    ``tokens`` are those of all sequences that run at once, ``rows`` those of one step, and
    ``kept_tokens`` those that are held to be reused. ``kv_bytes`` are the most that keys and values
    take, of so many bytes a token in the layers with each window (0: without one).
    """

    @property
    def tokens(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def kept_tokens(self) -> int: ...
    def kv_bytes(self, by_window: Mapping[int, int]) -> int: ...


@dataclass(frozen=True)
class Ledger:
    """The bytes that must fit on the device at once, part by part.

    - ``dense_bytes``: all dense weights. Where the blocks of sites are streamed: the slots for
      them, and all other dense weights.
    - ``overflow_bytes``: what pools may hold over their capacity (the loader's ``retention``).
    - ``parts_bytes``: what of every expert stays on the device whatever the slots hold (FloE's up
      projections).
    - ``draft_bytes``: the layers that draft tokens, with all their experts.
    - ``prefix_bytes``: keys and values that are held to be reused.
    - ``page_cache_bytes``: the page cache, where the device's memory is the host's.
    """

    dense_bytes: int
    kv_bytes: int
    activation_bytes: int
    slot_bytes: int
    staging_bytes: int
    overflow_bytes: int
    reserved_bytes: int
    parts_bytes: int
    draft_bytes: int
    prefix_bytes: int
    page_cache_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return sum(vars(self).values())


def make_ledger(
    model: Model,
    hardware: Hardware,
    limits: StepLimits,
    *,
    slot_bytes: int,
    staging_bytes: int = 0,
    overflow_bytes: int = 0,
    parts_bytes: int = 0,
    draft_bytes: int = 0,
    dense_slots: int = 0,
) -> Ledger:
    """The most device memory that a run takes, part by part, on a machine with one device.

    ``dense_slots`` is 0 where dense weights are resident, else the number of slots that dense
    blocks are streamed through.
    """
    blocks = [model.block_bytes(site) for site in range(model.sites)] if dense_slots else []
    caches = [link.page_cache for link in hardware.links if hardware.is_unified]
    return Ledger(
        dense_bytes=model.dense_bytes - sum(blocks) + dense_slots * max(blocks, default=0),
        kv_bytes=kv_bytes(model, limits),
        activation_bytes=limits.rows
        * 2
        * (4 * model.hidden + 2 * model.top_k * model.expert_intermediate),
        slot_bytes=slot_bytes,
        staging_bytes=staging_bytes,
        overflow_bytes=overflow_bytes,
        reserved_bytes=gib(hardware.reserved_gib),
        parts_bytes=parts_bytes,
        draft_bytes=draft_bytes,
        prefix_bytes=limits.kept_tokens * model.kv_bytes_per_token,
        page_cache_bytes=sum(gib(cache.capacity_gib) for cache in caches if cache is not None),
    )


def kv_bytes(model: Model, limits: StepLimits, sites: Iterable[int] | None = None) -> int:
    """The most bytes of keys and values of ``sites``, or of all."""
    return limits.kv_bytes(model.kv_bytes_by_window(sites))


def full_ledger(ledger: Ledger, hardware: Hardware) -> Ledger:
    """The ledger with what ``hardware`` sets aside."""
    return replace(ledger, reserved_bytes=gib(hardware.reserved_gib))


def check_ledger(ledger: Ledger, hardware: Hardware, limits: StepLimits) -> None:
    """Raise ValueError, naming each part, if the sum exceeds the device's memory and its swap."""
    swap_gib = hardware.swap.gib if hardware.swap is not None else 0
    over = ledger.total_bytes - hardware.memory_bytes - gib(swap_gib)
    slot_bytes = ledger.slot_bytes
    if over > 0:
        parts = ", ".join(
            f"{name.removesuffix('_bytes')} {size / GIB:.2f}"
            for name, size in vars(ledger).items()
            if size
        )
        room = max(0.0, (slot_bytes - over) / GIB)
        free = hardware.memory_bytes - (ledger.total_bytes - ledger.kv_bytes - slot_bytes)
        if ledger.kv_bytes > free >= 0:
            raise ValueError(
                f"the key-value cache of {limits.tokens} tokens takes {ledger.kv_bytes / GIB:.2f}"
                f" GiB, but hardware.memory_gib={hardware.memory_gib:g} has {free / GIB:.2f} GiB"
                f" left for it without any slots ({parts} GiB); run fewer or shorter requests at"
                " once (workload.together, workload.prompt_tokens, workload.decode_tokens), with a"
                " shorter context (workload.context_tokens), or set hardware.memory_gib"
            )
        needs = (
            f"the device holds {hardware.memory_gib + swap_gib:g} GiB, but the run needs"
            f" {ledger.total_bytes / GIB:.2f} GiB ({parts} GiB)"
        )
        if free + gib(swap_gib) < 0:
            raise ValueError(
                f"{needs}: no budget of slots makes it fit; set hardware.memory_gib, or make the"
                " other parts smaller (++model.dense_bits=, loader.staging_slots)"
            )
        other = (
            ""
            if room
            else (
                " and run fewer or shorter requests at once (workload.together,"
                " workload.decode_tokens)"
            )
        )
        fit = ", or say budget=fit (with flags= a larger --n-cpu-moe)" if room else ""
        raise ValueError(
            f"{needs}; lower budget.resident_share or slots_gib ({room:.2f} GiB of slots fit)"
            f"{fit}{other}, or set hardware.memory_gib"
        )


def overflow_bytes(union_bytes: int, arriving_bytes: int, pool_bytes: int) -> int:
    """The most bytes that pools hold over their capacity with ``retention: after_batch``.

    A gate's union comes in on top of what the pools still hold then. That may include the previous
    union, which is still pinned when the pools are trimmed. It counts as far as it does not fit the
    smallest pool (``pool_bytes``) beside what is then arriving (``arriving_bytes``).
    """
    return union_bytes + min(union_bytes, max(0, union_bytes + arriving_bytes - pool_bytes))
