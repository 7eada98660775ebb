"""From a composed configuration to a run that is ready to start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from omegaconf import DictConfig

from sim.core.loader import COUNTED
from sim.fitting.fits import profile_of
from sim.fitting.prepare import profiled
from sim.machine.budget import Budget, all_slot_bytes, held_bits, make_geometry
from sim.machine.devices import USE, device_of, with_ranking
from sim.machine.devices_costs import Timed
from sim.machine.hardware import Hardware
from sim.machine.recorded_bytes import recorded_bytes
from sim.machine.replayed_gates import check_gates
from sim.machine.roofline import Roofline
from sim.machine.swap import paging_of
from sim.process.shared import Shared
from sim.results.run import Run
from sim.setup.budgets import count_slots, fitting_budget, smallest_budget
from sim.setup.control import make_controller, prepare_parts
from sim.setup.counted_prefetches import counted_prefetches
from sim.setup.on_devices import check_devices_parts, durations_on
from sim.setup.own_errors import with_own_errors
from sim.setup.own_gates import with_gates
from sim.setup.own_policies import check_said
from sim.setup.parts import Parts, make_parts
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
from sim.setup.traces import load_trace, trace_directory
from sim.traces.drafts import with_draft_sites
from sim.traces.residency_log import EXPERT_BYTES_FILE
from sim.traces.trace import Trace
from sim.values.types import CapacityError, Geometry
from sim.values.units import us
from sim.workload.batching import is_timed
from sim.workload.kv_room import GROWING, KvRoom
from sim.workload.steps import Workload


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
    config = with_own_errors(with_gates(checked_settings(cfg)))
    shared = shared or Shared(0)
    parts = make_parts(config)
    check_said(parts.policies(), parts.model)
    model, hardware, selector = parts.model, parts.hardware, parts.precision
    check_changed(hardware, changed)
    check_ram_cache(system, hardware)
    trace = trace or _shared_trace(parts, shared)
    header = trace.header
    check_gates(model, header.model, header.name, header.null_experts, header.draft_sites)
    if header.draft_sites != model.draft_sites:
        trace = _with_drafts(trace, model.draft_sites, shared)
    tells_bytes = EXPERT_BYTES_FILE in header.files and model.transplant is None
    check_drafts(parts, tells_bytes=tells_bytes, is_real=bool(stored_bytes))
    workload = _shared_workload(parts, trace, shared)
    check_parts(parts, workload)
    check_recorded(config, selector.constant, workload)
    check_devices_parts(parts, config, workload)
    fits, known = config["budget"] == FIT, dict[str, int]()
    if hardware.devices is not None and hardware.devices.order == USE:
        hardware = with_ranking(hardware, profile_of(trace, workload.exclude).ranking)
        parts = replace(parts, hardware=hardware)
        known["devices"] = profiled(workload)
    budget = Budget(1.0) if fits else Budget(**config["budget"])
    # The selector comes first: it decides which variants there are, and so the geometry.
    known |= prepare_parts(parts, ("precision",), workload)
    held = 0.0 if stored_bytes else held_bits(selector.held, hardware)
    directory = trace_directory(parts.trace.path)
    recorded = None if stored_bytes else recorded_bytes(directory, header, model)
    sizes = recorded.sizes() if recorded else {}
    geometry_of = partial(
        make_geometry,
        model,
        selector.precisions,
        missing=selector.missing(),
        stored_bytes=stored_bytes,
        held_bits=held,
        recorded=sizes,
        device_of=device_of(hardware, model),
    )
    geometry = geometry_of(budget=budget)
    if fits:
        budget = fitting_budget(config, hardware, geometry_of, workload)
        config["budget"] = {"resident_share": budget.resident_share, "slots_gib": None}
        geometry = geometry_of(budget=budget)
    others = ("predictor", "placement", "payload", "cache", "ram_cache")
    known |= prepare_parts(parts, others, workload, geometry)
    durations = _durations(parts, geometry, held)
    if parts.loader.prefetch_budget in COUNTED:
        if hardware.links[0].slot_us:
            durations.slots = count_slots(config, parts, workload, geometry)
        prefetches = counted_prefetches(
            parts.loader.prefetch_budget, parts.predictor.reach, workload, durations, geometry
        )
        parts = replace(parts, loader=replace(parts.loader, prefetch_budget=prefetches))
    kv_room = None
    if parts.workload.kv_allocation == GROWING:
        kv_room = KvRoom(workload, model.kv_bytes_by_window())
    try:
        controller = make_controller(geometry, parts, kv_room)
    except CapacityError as error:
        smallest = smallest_budget(config, parts, workload, sizes)
        raise CapacityError(f"{error}{smallest}") from error
    check_cpu_reach(parts, geometry)
    durations.slots = controller.slots.count
    drafts = parts.workload.speculation.layers_in_use
    ledger = check_run_memory(model, hardware, workload.limits, controller, drafts, workload)
    if hardware.swap is not None and isinstance(durations, Roofline):
        durations.paging = paging_of(hardware.swap, hardware.memory_bytes, model, ledger)
    share = budget.share_of(all_slot_bytes(geometry))
    return Run(
        system,
        model,
        hardware,
        trace,
        workload,
        controller,
        durations,
        ledger,
        share,
        config["seed"],
        config,
        known["predictor"],
        tuple(changed),
        recorded,
        kv_room,
        max(known.values()),
    )


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
    loader, model = parts.loader, parts.model
    reached = hardware.unpinned() if loader.copies == "pageable" else hardware
    return Roofline(
        model,
        reached.together(parts.placement.uses_cpu),
        parts.precision.precisions,
        geometry.site_bytes,
        active_share=parts.payload.active_share,
        decision_ns=us(parts.placement.decision_us(model.experts)),
        free_copies=loader.copies == "free",
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


def _with_drafts(trace: Trace, layers: int, shared: Shared) -> Trace:
    """The trace as a run sees it whose drafts visit so many sites."""
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
