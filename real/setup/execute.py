"""Runs what has been prepared on its device, and measures it as a simulated run is measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from real.cuda.host import HostRuntime
from real.driver.device import NullDevice
from real.driver.loop import Driver
from real.driver.machine import processor
from real.driver.timers import WAKE_NS
from real.host.cpu import CpuDevice
from real.setup.prepare import Prepared, Request
from real.store.work import Weights
from sim.results.frames import Frames
from sim.results.labels import Labels, labels_of
from sim.results.metrics import summarise
from sim.results.run import Run
from sim.setup.execute import bounds_asked
from sim.values.record import Record
from sim.values.types import Step
from sim.workload.steps import Schedule, Workload

LATE_SHARE = 0.01
"""A paced service is late if it exceeds its nominal time by this share and by more than WAKE_NS."""
MOST_LATE = 0.05
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Result:
    """The summary of a run without ``wall_s``, and the tables that it was drawn from."""

    summary: dict[str, Any]
    frames: Frames


class CountedWorkload:
    """The workload it is given; tells ``advance`` after each step how many are done."""

    def __init__(self, workload: Workload, advance: Advance) -> None:
        self._workload, self._advance = workload, advance
        self.num_done = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def start(self) -> CountedWorkload:
        self._schedule: Schedule = self._workload.start()
        return self

    def next(self, now_ns: int) -> Step | int | None:
        step = self._schedule.next(now_ns)
        if not isinstance(step, int):
            self.num_done += 1
            self._advance(self.num_done)
        return step


def replay_driver(prepared: Prepared, advance: Advance = lambda done: None) -> Driver:
    """A driver for a run whose routing is a trace's."""
    run = prepared.run
    workload = cast(Workload, CountedWorkload(run.workload, advance))
    return Driver(run.controller, workload, run.durations, prepared.device)


def measure(prepared: Prepared, run: Run, driver: Driver, record: Record) -> Result:
    """The tables and the summary of a run that has ended; ``run`` has the workload that was run.

    The run's setting ``bounds`` says how its lower bounds are computed, if at all. Where links or
    compute run free there are none, for they bound nominal times.
    """
    # The null device's times are nominal, so nothing is to be learnt from them.
    computed = None if isinstance(driver.device, NullDevice) else driver.stream.computed
    frames = Frames(
        run.controller, run.workload, run.durations, record, run.hardware.link_names, computed
    )
    engine = prepared.request.engine
    is_free = prepared.request.device != "null" and "free" in (engine.links, engine.compute)
    summary = summarise(run, frames, None if is_free else bounds_asked(run))
    if is_free:
        # A bound of nominal times does not bound these.
        summary |= {
            "bounds": dict.fromkeys(summary["bounds"]),
            "gap": None,
            "hardware": ran_on(prepared),
        }
    facts = _facts(prepared, run, record)
    labels = as_it_ran(run, frames, prepared.request, rounding_in(prepared.weights))
    summary["labels"] = replace(labels, machine=_stands_for(labels.machine, facts)).kinds()
    # These times were measured: no error of a simulation is theirs.
    summary["calibration"] |= {"error": None, "data_sheets": None, "ci95": None}
    return Result({**summary, "real": facts}, frames)


def rounding_in(weights: Weights | None) -> tuple[str, ...]:
    """The precisions at which a store does not give a checkpoint's own weights back.

    A stand-in has none that could be lost.
    """
    if weights is None or weights.store.header.is_stand_in:
        return ()
    header = weights.store.header
    pairs = zip(header.variants, header.lossless, strict=True)
    return tuple(variant.precision for variant, lossless in pairs if not lossless)


def as_it_ran(run: Run, frames: Frames, request: Request, rounding: Collection[str] = ()) -> Labels:
    """The labels of a run on a device; ``rounding`` as in `sim.results.labels.labels_of`.

    Where links and compute are both free, the times are this machine's own, so the label that they
    were never compared with a real machine is dropped.
    """
    engine, labels = request.engine, labels_of(run, frames.lookups, rounding)
    is_own = request.device != "null" and (engine.links, engine.compute) == ("free", "free")
    return replace(labels, machine=None) if is_own else labels


def _stands_for(machine: str | None, facts: Mapping[str, Any]) -> str | None:
    """The label of a machine for which a device stood, and whether that was too slow.

    Simulated runs of that machine have its name, too, and may stand beside this one.
    """
    if (name := facts.get("stands_for")) is None:
        return machine
    told = f"a run on device={facts['device']}, which stands for {name}"
    if _is_too_late(facts):
        told += (
            f": {facts['late_services']['share']:.0%} of services came late, do not trust its times"
        )
    return "; ".join(filter(None, (machine, told)))


def ran_on(prepared: Prepared) -> str:
    """Which machine a run's times are of: this one, a described one, or something of each."""
    engine, described = prepared.request.engine, prepared.run.hardware.name
    own = computer_of(prepared.device)
    nominal = [
        name
        for name, choice in (("links", engine.links), ("compute", engine.compute))
        if choice != "free"
    ]
    if len(nominal) == 2:
        return described
    return f"{own}, {nominal[0]} of {described}" if nominal else own


def computer_of(device: Any) -> str:
    """The computer that a device runs on: its GPU, if it drives one, and its processor."""
    own = f"{processor()}, {os.cpu_count()} cores"
    name = getattr(device, "runtime_name", HostRuntime.name)
    return own if name == HostRuntime.name else f"{name}, {own}"


def _facts(prepared: Prepared, run: Run, record: Record) -> dict[str, Any]:
    """The part ``real`` of the summary: what only a run on a device has to tell."""
    request, weights = prepared.request, prepared.weights
    facts: dict[str, Any] = {"device": request.device, "input": request.input}
    if weights is not None:
        header = weights.store.header
        facts["store"] = {
            "weights": "stand_in" if header.is_stand_in else "checkpoint",
            "bytes": header.num_bytes,
            "distinct_experts": header.distinct,
            "sha256": header.sha256,
            "precisions": {
                v.precision: {"bytes": v.num_bytes, "lossless": lossless}
                for v, lossless in zip(header.variants, header.lossless, strict=True)
            },
        }
        facts["compute_dtype"] = request.engine.dtype
    if not isinstance(prepared.device, NullDevice):
        engine = request.engine
        facts |= {
            "links": engine.links,
            "compute": engine.compute,
            "source": engine.source,
            "stands_for": (
                run.hardware.name if (engine.links, engine.compute) != ("free", "free") else None
            ),
            **_slots_of(prepared.device),
            "late_services": _late(run, record, engine.links),
            "machine": _machine(),
        }
    return facts


def _slots_of(device: Any) -> dict[str, Any]:
    """Facts about the memory of a device with slots."""
    found = {"slot_bytes": device.slots.num_bytes, "initial_load_s": round(device.load_s, 6)}
    if isinstance(device, CpuDevice):
        return {**found, "scattered_slots": device.slots.num_scattered}
    return {**found, "gpu": device.runtime_name}


def _late(run: Run, record: Record, links: str) -> dict[str, float] | None:
    """How many services there were on paced links, the share that came late, and the worst.

    Links of several engines and services that write back are left out.
    """
    if links != "paced":
        return None
    over: list[float] = []
    columns = (
        record.service_number,
        record.service_link,
        record.service_start_ns,
        record.service_end_ns,
        record.service_bytes,
    )
    for number, link, start_ns, end_ns, moved_bytes in zip(*columns, strict=True):
        simple = (
            run.controller.route.engines[link] == 1 and not run.controller.issued[number].write_back
        )
        if end_ns >= 0 and simple:
            due_ns = run.durations.hop_ns(link, moved_bytes)
            over.append(
                (end_ns - start_ns - due_ns) / 1e9 if end_ns - start_ns - due_ns > WAKE_NS else 0.0
            )
            if over[-1] <= LATE_SHARE * due_ns / 1e9:
                over[-1] = 0.0
    late = np.array(over or [0.0])
    return {"services": len(over), "share": float((late > 0).mean()), "worst_s": float(late.max())}


def lateness(facts: Mapping[str, Any]) -> str | None:
    """A warning where this machine could not keep to the times of the machine it stands for."""
    if not _is_too_late(facts):
        return None
    late = facts["late_services"]
    return (
        f"WARNING: {late['share']:.0%} of {late['services']} services came late (by up to"
        f" {late['worst_s'] * 1e3:.3g} ms): this machine is too slow or too busy to stand for"
        f" {facts['stands_for']}; its times are not to be trusted"
    )


def _is_too_late(facts: Mapping[str, Any]) -> bool:
    late: Mapping[str, float] = facts.get("late_services") or {}
    return late.get("share", 0.0) > MOST_LATE


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
    }
