"""Searches for a budget: the largest that the memory holds, the smallest that the parts can work with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from types import NoneType
from typing import Any

from sim.machine.budget import Budget, all_slot_bytes, held_bits, make_geometry
from sim.machine.devices import device_of
from sim.machine.hardware import Hardware
from sim.setup.control import make_controller, prepare_parts
from sim.setup.parts import Parts, make_parts
from sim.setup.run_memory import check_run_memory
from sim.values.types import CapacityError, Geometry
from sim.values.units import GIB
from sim.workload.steps import Workload

SHARES = 10_000
"""Budgets that a search tries are shares of the experts in so many steps."""
LESS = (
    "choose fewer bits (precision=), fewer or shorter requests or contexts, or set"
    " hardware.memory_gib"
)
"""The ways out where the memory leaves too little for slots."""


def fitting_budget(
    config: Mapping[str, Any],
    hardware: Hardware,
    geometry_of: Callable[..., Geometry],
    workload: Workload,
) -> Budget:
    """The largest share of the experts, to four decimals, that the run's device holds in memory,
    beside all else that the run takes. What may be swapped is no memory.

    Raise ValueError where not even the smallest share that the parts can work with fits.
    """

    in_memory = replace(hardware, swap=None)

    def refusal(share: float) -> ValueError | None:
        try:
            parts = replace(make_parts(config), hardware=hardware)
            geometry = geometry_of(budget=Budget(share))
            prepare_parts(parts, ("cache", "ram_cache"), workload, geometry)
            controller = make_controller(geometry, parts)
            check_run_memory(
                parts.model,
                in_memory,
                workload.limits,
                controller,
                parts.workload.speculation.layers_in_use,
                workload,
            )
        except ValueError as error:
            return error
        return None

    # Too few bytes for the parts, then shares that fit, then too many for the memory.
    steps = range(1, SHARES + 1)
    above = bisect_left(
        steps,
        True,
        key=lambda step: not isinstance(refusal(step / SHARES), CapacityError | NoneType),
    )
    share = steps[above - 1] / SHARES
    if above == 0:
        # The ways out of a refusal begin with a smaller budget, which there is not.
        raise ValueError(f"budget=fit: nothing fits: {_what(refusal(steps[0] / SHARES))}; {LESS}")
    if (few := refusal(share)) is not None:
        told = _what(few)
        if above < SHARES:
            next_share = steps[above] / SHARES
            told = (
                f"less than {100 * next_share:g} % of the expert bytes are too few: {told}, and so"
                f" many are too many: {_what(refusal(next_share))}"
            )
        raise ValueError(
            f"budget=fit: nothing fits: {told}; {LESS}, cache.scope or loader.staging_slots"
        )
    return Budget(share)


def _what(error: ValueError | None) -> str:
    """What a refusal says, without its ways out."""
    return str(error).partition("; ")[0]


def count_slots(
    config: Mapping[str, Any], parts: Parts, workload: Workload, geometry: Geometry
) -> int:
    """How many slots the run will have, for what must know the time of a load before there is a
    controller; 0 where they are too few, which the controller refuses.
    """
    made = replace(make_parts(config), hardware=parts.hardware)
    prepare_parts(made, ("cache", "ram_cache"), workload, geometry)
    try:
        return make_controller(geometry, made).slots.count
    except CapacityError:
        return 0


def smallest_budget(
    config: Mapping[str, Any],
    made: Parts,
    workload: Workload,
    sizes: Mapping[str, Sequence[int]],
) -> str:
    """The end of a refusal for want of room: the smallest budget that works, to four decimals.

    Empty where no budget works.
    """
    model, precisions = made.model, made.precision.precisions
    held = held_bits(made.precision.held, made.hardware)
    everything = all_slot_bytes(
        make_geometry(model, precisions, Budget(1.0), held_bits=held, recorded=sizes)
    )

    def works(share: float) -> bool:
        try:
            parts = replace(make_parts(config), hardware=made.hardware)
            geometry = make_geometry(
                model,
                precisions,
                Budget(share),
                held_bits=held,
                recorded=sizes,
                device_of=device_of(made.hardware, model),
            )
            prepare_parts(parts, ("cache", "ram_cache"), workload, geometry)
            make_controller(geometry, parts)
        except ValueError:
            return False
        return True

    steps = range(1, SHARES + 1)
    place = bisect_left(steps, True, key=lambda step: works(step / SHARES))
    if place == len(steps):
        return ""
    share = steps[place] / SHARES
    if config["budget"].get("slots_gib") is None:
        return f"; the smallest budget.resident_share that works is {share:g}"
    return f"; budget.slots_gib={ceil(share * everything / GIB * 10_000) / 10_000:g} works"
