"""Runs on several devices: their durations, what each must hold, and what they refuse.

docs/contracts/gpus.md is the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from sim.bounds.bounds import NONE
from sim.core.loader import COUNTED
from sim.machine.budget import all_slot_bytes
from sim.machine.devices import COPIES, SHARED, Devices, each_alone, faster
from sim.machine.devices_costs import InStep, OnLayers, OnOwners, Timed
from sim.machine.durations import Durations
from sim.machine.hardware import Hardware
from sim.machine.ledger import Ledger, check_ledger, full_ledger, kv_bytes, make_ledger
from sim.machine.model import Model
from sim.machine.precision import PRECISIONS
from sim.setup.parts import Parts
from sim.values.types import Geometry
from sim.workload.kv_room import GROWING, ONCE
from sim.workload.steps import Limits, Workload


def durations_on(hardware: Hardware, model: Model, alone: Callable[[Hardware], Durations]) -> Timed:
    """The durations of all devices of a machine; ``alone`` makes those of a machine with one."""
    devices = hardware.devices
    assert devices is not None
    machines = list(each_alone(hardware))
    if devices.has_layers:
        return OnLayers(
            [alone(machine) for machine in machines],
            devices.device_of(model),
            devices.head(model),
            devices.links == SHARED,
            lambda rows: devices.crossing_ns(model, rows),
        )
    if devices.is_dealt:
        return OnOwners(
            [alone(machine) for machine in machines],
            devices.links == SHARED,
            lambda rows: devices.crossing_ns(model, rows),
        )
    one, count = machines[0], devices.count
    part = replace(one, compute=faster(one.compute, count))
    return InStep(
        alone(part),
        alone(one if devices.split == COPIES else part),
        parts=devices.parts,
        services=devices.services,
        layers_at=tuple(map(model.layers_at, range(model.sites))),
        sum_ns=lambda rows: devices.sum_ns(model, rows),
    )


def ledger_on(
    hardware: Hardware, model: Model, limits: Limits, ledger: Ledger, by_device: Mapping[int, int]
) -> Ledger:
    """What all devices hold together, from what one device would; raise ValueError where one of
    them cannot hold its part.

    ``by_device``: the bytes of each device's pools, with layers and owners.
    """
    devices = hardware.devices
    assert devices is not None
    parts = ledgers_on(hardware, model, limits, ledger, by_device)
    for device, (part, machine) in enumerate(zip(parts, each_alone(hardware), strict=True)):
        try:
            check_ledger(part, machine, limits)
        except ValueError as error:
            which = f"device {device}" if devices.is_dealt else "each device"
            raise ValueError(f"{which} of {devices.count}: {error}") from None
    return Ledger(**{one.name: sum(getattr(p, one.name) for p in parts) for one in fields(Ledger)})


def ledgers_on(
    hardware: Hardware, model: Model, limits: Limits, ledger: Ledger, by_device: Mapping[int, int]
) -> list[Ledger]:
    """By device what it holds, as in `ledger_on`."""
    devices = hardware.devices
    assert devices is not None
    if devices.is_dealt:
        return _dealt_ledgers(hardware, devices, model, limits, ledger, by_device)
    return [_part_of(ledger, devices)] * devices.count


def holds_all(hardware: Hardware, model: Model, limits: Limits, geometry: Geometry) -> bool:
    """Whether devices hold all experts of ``geometry`` beside what else a run takes, each device
    its own.
    """
    slot_bytes = all_slot_bytes(geometry)
    by_device = dict.fromkeys(geometry.device_of, 0)
    stored = geometry.experts - geometry.null_experts
    for key, device in enumerate(geometry.device_of):
        by_device[device] += geometry.slot_bytes[key] * (geometry.expert_of(key) < stored)
    ledger = make_ledger(model, hardware, limits, slot_bytes=slot_bytes)
    try:
        ledger_on(hardware, model, limits, ledger, by_device)
    except ValueError:
        return False
    return True


def _part_of(ledger: Ledger, devices: Devices) -> Ledger:
    """What one of several equal devices holds (contract C161)."""
    count = devices.count

    def part(size: int) -> int:
        return -(-size // count)

    divided = replace(ledger, dense_bytes=part(ledger.dense_bytes), kv_bytes=part(ledger.kv_bytes))
    if devices.split == COPIES:
        return divided
    return replace(
        divided,
        slot_bytes=part(ledger.slot_bytes),
        staging_bytes=part(ledger.staging_bytes),
        overflow_bytes=part(ledger.overflow_bytes),
    )


def _dealt_ledgers(
    hardware: Hardware,
    devices: Devices,
    model: Model,
    limits: Limits,
    ledger: Ledger,
    by_device: Mapping[int, int],
) -> list[Ledger]:
    """What each device holds where layers are split (contract C160), or have owners (C172)."""
    head = devices.head(model) if devices.has_layers else 0
    blocks = [model.block_bytes(site) for site in range(model.sites)]
    head_bytes = -(-model.head_params * round(model.dense_bits * 1000) // 8000)
    rest_bytes = max(0, model.dense_bytes - sum(blocks) - head_bytes)
    found = []
    held = zip(each_alone(hardware), devices.kv_sites(model), strict=True)
    for device, (machine, sites) in enumerate(held):
        dense_bytes = sum(blocks[site] for site in sites)
        dense_bytes += head_bytes * (device == head) + rest_bytes * (device == 0)
        found.append(
            replace(
                full_ledger(ledger, machine),
                dense_bytes=dense_bytes,
                kv_bytes=kv_bytes(model, limits, sites),
                slot_bytes=by_device[device],
                draft_bytes=ledger.draft_bytes * (device == head),
            )
        )
    return found


def check_devices_parts(parts: Parts, config: Mapping[str, Any], workload: Workload) -> None:
    """Raise ValueError for parts of a run that several devices refuse (contract C163)."""
    devices, loader = parts.hardware.devices, parts.loader
    if devices is None:
        return
    drafts = parts.workload.speculation.layers_in_use
    keeps = [name for name in parts.precision.precisions if PRECISIONS[name].resident]
    refused: dict[str, tuple[bool, str]] = {
        f"bounds={config.get('bounds', NONE)}": (config.get("bounds", NONE) != NONE, "bounds=none"),
        f"loader.dense_slots={loader.dense_slots}": (
            loader.dense_slots > 0,
            "loader.dense_slots=0",
        ),
        f"workload.kv_allocation={GROWING}": (
            parts.workload.kv_allocation == GROWING,
            f"workload.kv_allocation={ONCE}",
        ),
        f"model.encoder_sites={parts.model.encoder_sites}": (
            parts.model.encoder_sites > 0,
            "a model without an encoder",
        ),
        f"precision {', '.join(keeps)}, which keeps a part of every expert resident,": (
            bool(keeps),
            "another precision",
        ),
    }
    if devices.is_dealt:
        refused |= {
            f"loader.prefetch_budget={loader.prefetch_budget}": (
                loader.prefetch_budget in COUNTED,
                "loader.prefetch_budget to a number",
            ),
            f"workload.draft_layers={drafts} on devices that differ": (
                drafts > 0 and bool(devices.others),
                "workload.draft_layers=0",
            ),
        }
    else:
        refused |= {
            "a placement that computes on the CPU": (parts.placement.uses_cpu, "placement=load"),
            f"workload.draft_layers={drafts}": (drafts > 0, "workload.draft_layers=0"),
        }
    refused["a payload that moves parts"] = (not parts.payload.whole, "payload=whole")
    refused["loader.write_back=true"] = (loader.write_back, "loader.write_back=false")
    for what, (is_so, way_out) in refused.items():
        if is_so:
            raise ValueError(
                f"{what} does not go with hardware.devices (split={devices.split}); choose"
                f" {way_out}, or set hardware.devices=null"
            )
