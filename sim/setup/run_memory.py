"""What a run takes of each device's memory, and what it leaves (contracts C82, C160 and C172)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.core.controller import Controller
from sim.machine.devices import each_alone
from sim.machine.hardware import Hardware
from sim.machine.ledger import Ledger, check_ledger, make_ledger, overflow_bytes
from sim.machine.model import Model
from sim.results.run import Run
from sim.setup.on_devices import ledger_on, ledgers_on
from sim.workload.steps import Limits, Workload


def check_run_memory(
    model: Model,
    hardware: Hardware,
    limits: Limits,
    controller: Controller,
    draft_layers: int,
    workload: Workload | None = None,
) -> Ledger:
    """The bytes that a run takes on the device, by use. Raise ValueError if they exceed its
    memory.

    ``workload``: where it is given, and its steps do not depend on time, what pools keep over their
    capacity is that of its gates (contract C181); else that of the widest step at every site.
    """
    ledger = _ledger_alone(model, hardware, limits, controller, draft_layers, workload)
    if hardware.devices is None:
        check_ledger(ledger, hardware, limits)
        return ledger
    return ledger_on(hardware, model, limits, ledger, controller.slots.bytes_by_device())


@dataclass(frozen=True)
class Room:
    """What one device leaves to keys and values, beside all else of a run but its slots.

    ``sites``: those whose keys and values it holds; ``parts``: in how many equal parts these are on
    different devices.
    """

    bytes: int
    sites: tuple[int, ...]
    parts: int = 1


def left_bytes(run: Run) -> tuple[int, ...]:
    """By device, the memory that a run leaves."""
    return tuple(machine.memory_bytes - part.total_bytes for machine, part in _by_device(run))


def rooms_for_kv(run: Run) -> tuple[Room, ...]:
    """What each device that holds keys and values leaves to them."""
    devices, everywhere = run.hardware.devices, tuple(range(run.model.sites))
    held, parts = [everywhere], 1
    if devices is not None:
        held = devices.kv_sites(run.model)
        parts = 1 if devices.is_dealt else devices.count
    return tuple(
        Room(
            machine.memory_bytes - part.total_bytes + part.kv_bytes + part.slot_bytes, sites, parts
        )
        for (machine, part), sites in zip(_by_device(run), held, strict=True)
        if sites
    )


def _by_device(run: Run) -> list[tuple[Hardware, Ledger]]:
    """Each device's machine, and what the run takes of it."""
    drafts, limits = run.workload.speculation.layers_in_use, run.workload.limits
    ledger = _ledger_alone(run.model, run.hardware, limits, run.controller, drafts, run.workload)
    if run.hardware.devices is None:
        return [(run.hardware, ledger)]
    by_device = run.controller.slots.bytes_by_device()
    parts = ledgers_on(run.hardware, run.model, limits, ledger, by_device)
    return list(zip(each_alone(run.hardware), parts, strict=True))


def _ledger_alone(
    model: Model,
    hardware: Hardware,
    limits: Limits,
    controller: Controller,
    draft_layers: int,
    workload: Workload | None,
) -> Ledger:
    """What one device would hold that has everything."""
    loader, slots = controller.loader, controller.slots
    capacity = slots.capacity_bytes
    largest = max(controller.geometry.slot_sizes)
    over = 0
    if loader.overflows:
        union = min(model.stored_experts, limits.rows * model.top_k) * largest
        issued = controller.route.engines[0] * loader.in_flight * largest
        if loader.retention == "until_next_visit" and len(capacity) > 1:
            asked = _asked_bytes(controller, workload) or [union] * controller.geometry.sites
            beside = 0 if controller.predictor.silent else issued
            over += sum(max(0, size + beside - min(capacity)) for size in asked)
            union = max(asked)
        over += overflow_bytes(union, issued, min(capacity))
    sizes = {
        "slot_bytes": sum(capacity),
        "staging_bytes": loader.staging_slots * _staged_bytes(model, controller),
        "overflow_bytes": over,
        "dense_slots": loader.dense_slots,
        "parts_bytes": model.sites
        * model.stored_experts
        * sum(model.resident_bytes(p) for p in controller.geometry.precisions),
        "draft_bytes": draft_layers
        * (model.block_bytes(model.sites - 1) + model.stored_experts * largest),
    }
    return make_ledger(model, hardware, limits, **sizes)


def _staged_bytes(model: Model, controller: Controller) -> int:
    """The bytes of a staging slot: of the largest variant, or of its largest projection."""
    geometry = controller.geometry
    if controller.loader.staging_holds == "experts":
        return max(geometry.slot_sizes)
    return max(max(model.projection_bytes(name)) for name in geometry.precisions)


def _asked_bytes(controller: Controller, workload: Workload | None) -> list[int] | None:
    """By site, the most bytes that one gate asks for; None where steps depend on time."""
    if workload is None or workload.is_timed:
        return None
    count = np.bincount(workload.needs.tick, minlength=workload.num_gates)
    most = np.zeros(controller.geometry.sites, np.int64)
    np.maximum.at(most, workload.gate_site, count)
    return [int(needs) * max(controller.geometry.slot_sizes) for needs in most]
