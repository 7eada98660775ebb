"""The first pass of screening: the controller walks the steps without a clock, and the pass keeps
what every gate moves and computes.

It holds for every machine, because without prefetches time decides nothing: at every gate the link
is idle, at its site's end every need has arrived, and one link serves transfers in order. So the
order of the controller's calls, and with it every decision, is the same on all machines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.values.types import SKIP, Outcome, Place, Step
from sim.workload.batching import NO_ARRIVALS
from sim.workload.steps import Workload

NOT_COMPUTED = int(Outcome.SKIP)
EXACT_ONLY = "screening is exact only where decisions do not depend on time."


class ScreenError(ValueError):
    """A setting makes decisions depend on time, or times depend on more than this estimator
    knows.
    """


@dataclass(frozen=True)
class GateWork:
    """What a gate computes and moves.

    ``needs``: (precision, site, tokens, index of its transfer or -1) of each need that is computed,
    in need order. ``transfers``: the bytes of each service, in the order of the link; victims that
    a service writes back come first, each with its own bytes. ``rows``: those of its step.
    """

    needs: tuple[tuple[int, int, int, int], ...]
    transfers: tuple[tuple[int, ...], ...]
    rows: int = 0


@dataclass(frozen=True, eq=False)
class Moves:
    """What the first pass keeps of a run.

    ``kinds`` are the distinct works of its gates; ``kind`` [gates] says which of them each gate
    has, by tick. ``first_gate`` [steps] is the tick of each step's first gate.
    """

    kinds: tuple[GateWork, ...]
    kind: NDArray[np.int64]
    first_gate: NDArray[np.int64]
    steps: Sequence[Step]
    controller: Controller


def require_screenable(controller: Controller, is_timed: bool) -> None:
    """Raise ScreenError, naming the switch and the way out, where screening would not be exact.

    ``is_timed``: whether the run was given arrivals.
    """
    loader, route = controller.loader, controller.route
    prefetches = not controller.predictor.silent and loader.prefetch_budget != 0
    refused = (
        (is_timed, f"arrivals: which sequences run together depends on time; {NO_ARRIVALS}"),
        (
            prefetches,
            (
                "predictor: what has arrived of a prefetch at a gate, and so what is evicted,"
                " depends on time; set predictor=none or loader.prefetch_budget=0"
            ),
        ),
        (
            controller.predicts_later,
            (
                "hardware.prediction_us: forecasts that come later mask keys at a time of their "
                "own; set it to 0 or predictor=none"
            ),
        ),
        (
            route.links > 1,
            "hardware.links: a route of several links is not screened; choose a machine with one",
        ),
        (
            max(route.engines) > 1,
            "hardware.links: engines that share a link are not screened; set engines=1",
        ),
        (
            controller.placement.constant != Place.LOAD,
            "placement: the CPU's results come at a time of their own; set placement=load",
        ),
        (
            controller.selector.reroutes,
            "precision: a selector that reroutes is not screened; choose another",
        ),
        (
            loader.chunk_bytes is not None,
            "loader.chunk_bytes: without prefetches nothing gives way; set it to null",
        ),
        (
            loader.dense_slots > 0,
            (
                "loader.dense_slots: streamed dense blocks are still moving at the next gate; set"
                " it to 0"
            ),
        ),
        (
            bool(controller.kv_bytes),
            (
                "workload.kv_ram_gib and kv_disk_gib: keys and values move beside experts; set them"
                " to 0"
            ),
        ),
        (
            loader.replay_unit == "access",
            (
                "loader.replay_unit=access admits a need when the one before is computed; "
                "set replay_unit=union"
            ),
        ),
    )
    for is_so, why in refused:
        if is_so:
            raise ScreenError(f"{EXACT_ONLY} {why}; moelab run runs it")


def first_pass(controller: Controller, workload: Workload) -> Moves:
    """Walk all steps of a run. ``controller`` then holds its decisions. Raise ScreenError for a
    union that is served in waves.
    """
    gate, schedule = workload.gate(), workload.start()
    places: dict[GateWork, int] = {}
    kind: list[int] = []
    first_gate: list[int] = []
    steps: list[Step] = []
    while isinstance(step := schedule.next(0), Step):
        for sequence in step.begins:
            controller.begin_sequence(sequence)
        gate.open(step)
        first_gate.append(len(kind))
        steps.append(step)
        for site in step.sites:
            gate.visit(site)
            work = _pass_gate(controller, gate, step.rows)
            kind.append(places.setdefault(work, len(places)))
        for sequence in step.ends:
            controller.end_sequence(sequence)
    controller.finish()
    return Moves(
        tuple(places), np.array(kind, np.int64), np.array(first_gate, np.int64), steps, controller
    )


def _pass_gate(controller: Controller, gate: Any, step_rows: int) -> GateWork:
    outcomes, waits = controller.gate(gate)
    if controller.waiting:
        raise ScreenError(
            f"{EXACT_ONLY} At step {gate.step}, site {gate.site} the union of {len(gate.needs)}"
            " experts does not fit its pool and is served in waves; raise budget.resident_share or"
            " slots_gib, or set workload.prefill_chunk; moelab run runs it"
        )
    admitted, tokens = list(controller.admitted), gate.tokens
    services, order = _drain(controller)
    units, sites = controller.geometry.units, controller.geometry.sites
    needs = []
    for key, outcome, rows in zip(admitted, outcomes, tokens, strict=True):
        if key != SKIP and outcome != NOT_COMPUTED:
            precision, site = divmod(key // units, sites)
            awaited = waits is not None and key in waits
            needs.append((precision, site, rows, order[key] if awaited else -1))
    return GateWork(tuple(needs), tuple(services), step_rows)


def _drain(controller: Controller) -> tuple[list[tuple[int, ...]], dict[int, int]]:
    """Serve everything that waits on the link, with nothing else going on.

    Return the bytes of each service, and by key the index of its service.
    """
    services: list[tuple[int, ...]] = []
    order: dict[int, int] = {}
    issued: deque[Transfer] = deque()
    key_bytes = controller.slots.key_bytes
    while any(controller.queues[0]) and len(issued) < controller.loader.in_flight:
        transfer = controller.poll(0)
        if transfer is None:
            break
        issued.append(transfer)
    while issued:
        transfer = issued.popleft()
        services.append(
            (*(key_bytes[victim] for victim in transfer.write_back), transfer.left_bytes)
        )
        order[transfer.key] = len(services) - 1
        _, following = controller.transfer_done(0, transfer)
        if following is not None:
            issued.append(following)
    return services, order
