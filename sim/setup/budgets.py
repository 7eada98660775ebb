"""Searches for a budget: the largest that the memory holds, the smallest that the parts can work with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from types import NoneType
from typing import Any

from sim.core.controller import Controller
from sim.machine.budget import Budget, all_slot_bytes
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


def trial_controller(
    config: Mapping[str, Any], made: Parts, workload: Workload, geometry: Geometry
) -> Controller:
    """The controller that a run of these parts would have with the slots of ``geometry``.

    Its policies are fresh, so that those of ``made`` remember nothing of a trial. Raise
    `CapacityError` where the slots are too few.
    """
    parts = replace(make_parts(config), hardware=made.hardware)
    prepare_parts(parts, ("cache", "ram_cache"), workload, geometry)
    return make_controller(geometry, parts)


def fitting_budget(
    config: Mapping[str, Any],
    made: Parts,
    workload: Workload,
    geometry_of: Callable[[Budget], Geometry],
) -> Budget:
    """The largest share of the experts, to four decimals, that the run's device holds in memory,
    beside all else that the run takes. What may be swapped is no memory.

    Raise ValueError where not even the smallest share that the parts can work with fits.
    """

    in_memory = replace(made.hardware, swap=None)
    drafts = made.workload.speculation.layers_in_use

    def refusal(share: float) -> ValueError | None:
        try:
            controller = trial_controller(config, made, workload, geometry_of(Budget(share)))
            check_run_memory(made.model, in_memory, workload.limits, controller, drafts, workload)
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
                f" many are refused: {_what(refusal(next_share))}"
            )
        raise ValueError(
            f"budget=fit: nothing fits: {told}; {LESS}, cache.scope or loader.staging_slots"
        )
    return Budget(share)


def _what(error: ValueError | None) -> str:
    """What a refusal says, without its ways out."""
    return str(error).partition("; ")[0]


def smallest_budget(
    config: Mapping[str, Any],
    made: Parts,
    workload: Workload,
    geometry_of: Callable[[Budget], Geometry],
) -> str:
    """The end of a refusal for want of room: the smallest budget that works, to four decimals.

    Empty where no budget works.
    """

    def works(share: float) -> bool:
        try:
            trial_controller(config, made, workload, geometry_of(Budget(share)))
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
    everything = all_slot_bytes(geometry_of(Budget(1.0)))
    return f"; budget.slots_gib={ceil(share * everything / GIB * 10_000) / 10_000:g} works"
