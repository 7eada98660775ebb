"""The bytes that a run's expert slots may take, and the sizes of the variants that fill them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, product
from math import ceil
from types import MappingProxyType

from sim.machine.hardware import Hardware
from sim.machine.model import Model
from sim.machine.precision import PRECISION_BITS
from sim.values.types import Geometry
from sim.values.units import gib, part_of, require_number, require_range


@dataclass(frozen=True)
class Budget:
    """The bytes of the expert slots: a share of all experts, or an absolute number of GiB.

    ``resident_share`` (above 0, up to 1) is a share of the slots of all experts at the highest
    precision. With the same share, systems whose slots are equal get equal bytes. ``slots_gib``
    takes its place where it is given: the same bytes for systems of any precision, but never more
    than all experts take.
    """

    resident_share: float
    slots_gib: float | None = None

    def __post_init__(self) -> None:
        share, given_gib = self.resident_share, self.slots_gib
        require_number("budget.resident_share", share)
        if not 0 < share <= 1:
            raise ValueError(
                f"budget.resident_share={share} must be above 0 and at most 1: a share of all"
                " experts' bytes"
            )
        if given_gib is not None:
            require_number("budget.slots_gib", given_gib)
            if given_gib <= 0:
                raise ValueError(
                    f"budget.slots_gib={given_gib} must be above 0: GiB for expert slots; null: a"
                    " resident_share"
                )
            require_range("budget.slots_gib", given_gib, 0, 1e6, "GiB")

    def capacity_bytes(self, all_bytes: int) -> int:
        """The bytes given, where the slots of all experts take ``all_bytes``."""
        if self.slots_gib is None:
            return part_of(all_bytes, self.resident_share)
        return min(gib(self.slots_gib), all_bytes)

    def share_of(self, all_bytes: int) -> float:
        return (
            self.resident_share
            if self.slots_gib is None
            else self.capacity_bytes(all_bytes) / all_bytes
        )


def make_geometry(
    model: Model,
    precisions: tuple[str, ...],
    budget: Budget,
    missing: frozenset[tuple[int, int, int]] = frozenset(),
    stored_bytes: Sequence[int] = (),
    held_bits: float = 0.0,
    recorded: Mapping[str, Sequence[int]] = MappingProxyType({}),
    device_of: tuple[int, ...] = (),
) -> Geometry:
    """The experts of a run: their variants, with sizes, and the bytes of the slots.

    - ``missing``: (precision, site, expert) of variants that do not exist.
    - ``stored_bytes``: by precision, the bytes of an expert in a real store. They replace the
      model's nominal sizes, and slots hold experts as they are stored.
    - ``held_bits``: slots hold experts at no fewer bits a weight than this (`held_bits`).
    - ``recorded``: by precision, the bytes of an expert by site. They replace the nominal sizes
      where there are no ``stored_bytes``.
    - ``device_of``: by key of a precision, the device that has it, where there are several.
    """
    nominal = tuple(stored_bytes) or tuple(
        model.expert_bytes(precision) for precision in precisions
    )
    by_site = [(size,) * model.sites for size in nominal]
    if not stored_bytes:
        by_site = [
            tuple(recorded.get(name, sizes))
            for name, sizes in zip(precisions, by_site, strict=True)
        ]
    sizes = tuple(map(max, by_site))
    bits = tuple(PRECISION_BITS[precision] for precision in precisions)
    held: tuple[int, ...] = ()
    if not stored_bytes and held_bits > min(bits):
        # Dequantised experts have the same bits a weight, whatever they were stored in.
        written = [
            ceil(size * max(1.0, held_bits / of)) for size, of in zip(nominal, bits, strict=True)
        ]
        held = tuple(map(max, written, sizes))
    everything = sum(by_site[0]) if not held else model.sites * held[0]
    capacity = budget.capacity_bytes(model.stored_experts * everything)
    units = model.experts + 1
    null = product(
        range(len(precisions)), range(model.sites), range(model.stored_experts, model.experts)
    )
    known = len(precisions), model.sites, model.experts
    for variant in missing:
        if (
            not isinstance(variant, tuple)
            or len(variant) != 3
            or any(not 0 <= one < n for one, n in zip(variant, known, strict=True))
        ):
            raise ValueError(
                f"precision: `missing` names {variant}; it must be (precision, site, expert), below"
                f" {known}"
            )
    keys = frozenset(
        (p * model.sites + site) * units + expert for p, site, expert in chain(missing, null)
    )
    differ = any(len(set(of)) > 1 for of in by_site)
    return Geometry(
        model.sites,
        model.experts,
        model.top_k,
        precisions,
        bits,
        sizes,
        capacity,
        tuple(by_site) if differ else None,
        missing=keys,
        null_experts=model.null_experts,
        held_bytes=held,
        layers=tuple(total - 1 for total in accumulate(map(model.layers_at, range(model.sites)))),
        device_of=device_of,
    )


def all_slot_bytes(geometry: Geometry) -> int:
    """The bytes of slots for every stored expert at the highest precision."""
    by_site = geometry.slot_bytes[: geometry.plane : geometry.units]
    return (geometry.experts - geometry.null_experts) * sum(by_site)


def held_bits(held: str | None, hardware: Hardware) -> float:
    """The least bits a weight at which the device's slots hold experts: what the system dequantises
    them to (``held``, a precision), or what a link writes them out at; 0 where they are held as
    they are stored.
    """
    if held is not None and held not in PRECISION_BITS:
        raise ValueError(
            f"unknown precision.held={held!r}; known: {', '.join(PRECISION_BITS)}, or null"
        )
    unpacked = [link.unpack.bits for link in hardware.links if link.unpack is not None]
    return max([0.0 if held is None else PRECISION_BITS[held], *unpacked])
