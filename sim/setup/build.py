"""From a composed configuration to a run that is ready to start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from omegaconf import DictConfig

from sim.core.controller import Controller
from sim.core.loader import COUNTED
from sim.fitting.fits import profile_of
from sim.fitting.prepare import profiled
from sim.machine.budget import Budget, all_slot_bytes
from sim.machine.devices import USE, with_ranking
from sim.machine.devices_costs import Timed
from sim.machine.hardware import Hardware
from sim.machine.ledger import Ledger
from sim.machine.replayed_gates import check_gates
from sim.machine.roofline import Roofline
from sim.machine.swap import paging_of
from sim.process.shared import Shared
from sim.results.run import Run
from sim.setup.budgets import fitting_budget, smallest_budget, trial_controller
from sim.setup.control import make_controller, prepare_parts
from sim.setup.counted_prefetches import counted_prefetches
from sim.setup.on_devices import check_devices_parts, durations_on
from sim.setup.own_errors import with_own_errors
from sim.setup.own_gates import with_gates
from sim.setup.own_said import check_said
from sim.setup.parts import Parts, make_parts, with_layer_staged
from sim.setup.refusals import (
    FIT,
    check_changed,
    check_cpu_reach,
    check_drafts,
    check_parts,
    check_ram_cache,
    check_recorded,
    checked_settings,
)
from sim.setup.run_memory import check_run_memory
from sim.setup.sizing import sizing_of
from sim.setup.traces import load_trace
from sim.traces.drafts import with_draft_sites
from sim.traces.residency_log import EXPERT_BYTES_FILE
from sim.traces.trace import Trace
from sim.values.types import CapacityError, Geometry
from sim.values.units import us
from sim.verbs.names import chosen_part
from sim.workload.batching import is_timed
from sim.workload.kv_room import GROWING, KvRoom
from sim.workload.steps import Workload

AFTER_SIZES = ("predictor", "placement", "payload", "cache", "ram_cache")
"""The policies that are prepared when the sizes of experts are known."""


def build(
    cfg: DictConfig | Mapping[str, Any],
    system: str,
    trace: Trace | None = None,
    shared: Shared | None = None,
    stored_bytes: Sequence[int] = (),
    changed: Sequence[str] = (),
) -> Run:
    """A fresh run of a composed configuration, or of the plain values of one.

    ``system`` is the run's name. ``trace``: the run's trace, where the caller has read it already
    (with the columns that the run needs) and named one in ``cfg``. ``shared`` keeps traces and
    workloads for the next run. ``stored_bytes``: the bytes of an expert at each precision in a real
    store; they replace the model's nominal sizes. ``changed``: overrides that the run's labels name.

    Raise ValueError, saying what does not fit what; ``TraceError`` and ``CapacityError`` are among
    them.
    """
    config = with_layer_staged(with_own_errors(with_gates(checked_settings(cfg))))
    parts, shared = make_parts(config), shared or Shared(0)
    check_said(parts.policies(), parts.model)
    check_changed(parts.hardware, changed)
    check_ram_cache(system, parts.hardware)
    trace = _trace_of(parts, trace or _shared_trace(parts, shared), shared)
    workload = _checked_workload(config, parts, trace, shared, is_real=bool(stored_bytes))
    if stored_bytes:  # A real engine's staging holds whole experts.
        parts = replace(parts, loader=replace(parts.loader, staging_holds="experts"))
    parts, known = _with_ranking(parts, workload)
    # The selector comes first: it decides which variants there are, and so the geometry.
    known |= prepare_parts(parts, ("precision",), workload)
    sizing = sizing_of(parts, trace.header, stored_bytes)
    if config["budget"] == FIT:
        budget = fitting_budget(config, parts, workload, sizing.geometry)
        config["budget"] = {"resident_share": budget.resident_share, "slots_gib": None}
    budget = Budget(**config["budget"])
    geometry = sizing.geometry(budget)
    known |= prepare_parts(parts, AFTER_SIZES, workload, geometry, chosen_part(system, "predictor"))
    durations = _durations(parts, geometry, sizing.held_bits)
    if parts.loader.prefetch_budget in COUNTED:
        parts = _with_counted_prefetches(config, parts, workload, geometry, durations)
    kv_room = None
    if parts.workload.kv_allocation == GROWING:
        kv_room = KvRoom(workload, parts.model.kv_bytes_by_window())
    try:
        controller = make_controller(geometry, parts, kv_room)
    except CapacityError as error:
        smallest = smallest_budget(config, parts, workload, sizing.geometry)
        raise CapacityError(f"{error}{smallest}") from error
    check_cpu_reach(parts, geometry)
    ledger = check_run_memory(
        parts.model,
        parts.hardware,
        workload.limits,
        controller,
        parts.workload.speculation.layers_in_use,
        workload,
    )
    _complete(durations, parts, controller, ledger)
    return Run(
        system=system,
        model=parts.model,
        hardware=parts.hardware,
        trace=trace,
        workload=workload,
        controller=controller,
        durations=durations,
        ledger=ledger,
        resident_share=budget.share_of(all_slot_bytes(geometry)),
        seed=config["seed"],
        config=config,
        fitted_on=known["predictor"],
        changed=tuple(changed),
        recorded_bytes=sizing.recorded,
        kv_room=kv_room,
        known=max(known.values()),
    )


def _checked_workload(
    config: Mapping[str, Any], parts: Parts, trace: Trace, shared: Shared, *, is_real: bool
) -> Workload:
    """The steps of the run, which its parts can take. Raise ValueError for others."""
    tells_bytes = EXPERT_BYTES_FILE in trace.header.files and parts.model.transplant is None
    check_drafts(parts, tells_bytes=tells_bytes, is_real=is_real)
    workload = _shared_workload(parts, trace, shared)
    check_parts(parts, workload)
    check_recorded(config, parts.precision.constant, workload)
    check_devices_parts(parts, config, workload)
    return workload


def _with_ranking(parts: Parts, workload: Workload) -> tuple[Parts, dict[str, int]]:
    """The parts, whose machine knows which experts are used most if its devices own them by that;
    and on how many of the run's sequences this rests, under the name of the section.
    """
    devices = parts.hardware.devices
    if devices is None or devices.order != USE:
        return parts, {}
    ranking = profile_of(workload.trace, workload.exclude).ranking
    parts = replace(parts, hardware=with_ranking(parts.hardware, ranking))
    return parts, {"devices": profiled(workload)}


def _with_counted_prefetches(
    config: Mapping[str, Any],
    parts: Parts,
    workload: Workload,
    geometry: Geometry,
    durations: Timed,
) -> Parts:
    """The parts, whose loader's budget of prefetches is a number in place of a word for one."""
    if parts.hardware.links[0].slot_us:
        try:
            # The time of a load depends on how many slots there are.
            durations.slots = trial_controller(config, parts, workload, geometry).slots.count
        except CapacityError:
            durations.slots = 0  # The controller will refuse so few, and say so.
    count = counted_prefetches(
        parts.loader.prefetch_budget, parts.predictor.reach, workload, durations, geometry
    )
    return replace(parts, loader=replace(parts.loader, prefetch_budget=count))


def _complete(durations: Timed, parts: Parts, controller: Controller, ledger: Ledger) -> None:
    """Tell the durations what only the controller and the ledger know."""
    durations.slots = controller.slots.count
    hardware = parts.hardware
    if hardware.swap is not None and isinstance(durations, Roofline):
        durations.paging = paging_of(hardware.swap, hardware.memory_bytes, parts.model, ledger)


def _durations(parts: Parts, geometry: Geometry, held: float) -> Timed:
    """How long each operation takes on the run's machine.

    ``held``: the least bits a weight that the device's slots hold.
    """
    if parts.hardware.devices is not None:
        alone = partial(_durations_alone, parts, geometry, held)
        return durations_on(parts.hardware, parts.model, alone)
    return _durations_alone(parts, geometry, held, parts.hardware)


def _durations_alone(parts: Parts, geometry: Geometry, held: float, hardware: Hardware) -> Roofline:
    """How long each operation takes on a machine with one device."""
    model, is_pageable = parts.model, parts.loader.copies == "pageable"
    reached = hardware.unpinned() if is_pageable else hardware
    return Roofline(
        model,
        reached.driven_by(parts.kernels).together(parts.placement.uses_cpu),
        parts.precision.precisions,
        geometry.site_bytes,
        kernels=parts.kernels,
        active_share=parts.payload.active_share,
        decision_ns=us(parts.placement.decision_us(model.experts)),
        free_copies=parts.loader.copies == "free",
        forecast_sites=parts.of_trace().lookahead_sites,
        held_bits=held,
        moves_in_part=parts.payload.partial,
        draft_layers=parts.workload.speculation.layers_in_use,
    )


def _shared_trace(parts: Parts, shared: Shared) -> Trace:
    required = parts.of_trace()
    wanted = (
        parts.trace.path,
        required.lookahead_sites,
        required.active_shares,
        parts.workload.lookahead_norm,
        required.preferences,
    )
    return shared.get(("trace", *wanted), lambda: load_trace(*wanted))


def _trace_of(parts: Parts, trace: Trace, shared: Shared) -> Trace:
    """The trace as the model sees it, whose drafts may visit sites, too. Raise ValueError where it
    is of another shape.
    """
    header, layers = trace.header, parts.model.draft_sites
    check_gates(parts.model, header.model, header.name, header.null_experts, header.draft_sites)
    if header.draft_sites == layers:
        return trace
    # The pair holds the trace, so that no other trace can have its identity meanwhile.
    _, found = shared.get(
        ("drafts", id(trace), layers), lambda: (trace, with_draft_sites(trace, layers))
    )
    return found


def _shared_workload(parts: Parts, trace: Trace, shared: Shared) -> Workload:
    """The steps of a run. Steps that depend on the run's time are made anew for each run, others
    are shared.
    """
    choice, steps = parts.trace, parts.workload
    make = partial(
        Workload,
        trace,
        split=choice.split,
        batching=steps.batching,
        together=steps.together,
        prefill_chunk=steps.prefill_chunk,
        arrivals_per_s=steps.arrivals_per_s,
        arrival_seed=steps.arrival_seed,
        arrivals=steps.arrivals_ns,
        lookahead=parts.of_trace().lookahead_sites,
        norm=steps.lookahead_norm,
        exclude=tuple(choice.exclude),
        max_sequences=choice.max_sequences,
        lengths=steps.lengths,
        speculation=steps.speculation,
        blocks=tuple(one.blocks for one in steps.told),
        tiers=steps.tiers(parts.model.kv_bytes_per_token),
        windows=parts.model.windows,
    )
    if is_timed(steps.arrivals_per_s, steps.arrivals_ns):
        return make()
    # The workload holds its trace, so that no other trace can have this identity meanwhile.
    return shared.get(("workload", id(trace), *make.keywords.values()), make)
