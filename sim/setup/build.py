"""From a composed configuration to a run that is ready to start."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from types import NoneType
from typing import Any

from omegaconf import DictConfig

from sim.core.controller import Controller
from sim.core.loader import COUNTED
from sim.fitting.fits import profile_of
from sim.fitting.prepare import prepare, profiled
from sim.machine.budget import Budget, all_slot_bytes, held_bits, make_geometry
from sim.machine.devices import USE, device_of, route_of, with_ranking
from sim.machine.devices_costs import Timed
from sim.machine.hardware import Hardware
from sim.machine.recorded_bytes import recorded_bytes
from sim.machine.roofline import Roofline
from sim.machine.swap import paging_of
from sim.process.shared import Shared
from sim.results.run import Run
from sim.setup.counted_prefetches import counted_prefetches
from sim.setup.on_devices import check_devices_parts, durations_on
from sim.setup.own_gates import with_gates
from sim.setup.own_policies import check_answers, check_said
from sim.setup.parts import Parts, make_parts
from sim.setup.refusals import (
    FIT,
    check_changed,
    check_cpu_reach,
    check_drafts,
    check_parts,
    check_recorded,
    checked_settings,
    moves_kv,
)
from sim.setup.run_memory import check_run_memory
from sim.traces.drafts import with_draft_sites
from sim.traces.residency_log import EXPERT_BYTES_FILE
from sim.traces.trace import Trace, read_header, read_trace
from sim.values.places import ROOT
from sim.values.types import CapacityError, Geometry
from sim.values.units import GIB, us
from sim.workload.batching import is_timed
from sim.workload.kv_room import GROWING, KvRoom
from sim.workload.steps import Workload

SHARES = 10_000
"""Budgets that a search tries are shares of the experts in so many steps."""
LESS = (
    "choose fewer bits (precision=), fewer or shorter requests or contexts, or set"
    " hardware.memory_gib"
)
"""The ways out where the memory leaves too little for slots."""


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
    config = with_gates(checked_settings(cfg))
    shared = shared or Shared(0)
    parts = make_parts(config)
    check_said(parts.policies(), parts.model)
    model, hardware, selector = parts.model, parts.hardware, parts.precision
    check_changed(hardware, changed)
    trace = trace or _shared_trace(parts, shared)
    header = trace.header
    model.check_trace(header.model, header.name, header.null_experts, header.draft_sites)
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
        hardware = with_ranking(hardware, profile_of(trace).ranking)
        parts = replace(parts, hardware=hardware)
        known["devices"] = profiled(workload)
    budget = Budget(1.0) if fits else Budget(**config["budget"])
    # The selector comes first: it decides which variants there are, and so the geometry.
    known |= _prepare(parts, ("precision",), workload)
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
    known |= _prepare(parts, others, workload, geometry)
    durations = _durations(parts, geometry, held)
    if parts.loader.prefetch_budget in COUNTED:
        if hardware.links[0].slot_us:
            durations.slots = _count_slots(config, parts, workload, geometry)
        prefetches = counted_prefetches(
            parts.loader.prefetch_budget, parts.predictor.reach, workload, durations, geometry
        )
        parts = replace(parts, loader=replace(parts.loader, prefetch_budget=prefetches))
    kv_room = None
    if parts.workload.kv_allocation == GROWING:
        kv_room = KvRoom(workload, model.kv_bytes_per_token)
    try:
        controller = make_controller(geometry, parts, kv_room)
    except CapacityError as error:
        smallest = _smallest_budget(config, parts, workload, sizes)
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
            _prepare(parts, ("cache", "ram_cache"), workload, geometry)
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
    )
    if is_timed(steps.arrivals_per_s, steps.arrivals_ns):
        return make()
    # The workload holds its trace, so that no other trace can have this identity meanwhile.
    return shared.get(("workload", id(trace), *make.keywords.values()), make)


def _prepare(
    parts: Parts, sections: Sequence[str], workload: Workload, geometry: Geometry | None = None
) -> dict[str, int]:
    """Give the policies of these sections what they require.

    Return, by section, on how many of the run's sequences that rests which the policy knows.
    """
    directory, precision = trace_directory(parts.trace.path), parts.precision.constant
    policies = parts.policies()
    return {
        name: prepare(
            policies[name], name, workload, directory, geometry=geometry, precision=precision
        )
        for name in sections
    }


def make_controller(geometry: Geometry, parts: Parts, kv_room: KvRoom | None = None) -> Controller:
    """The controller of these parts; it keeps the policies. ``kv_room``: where slots shrink. Raise
    ValueError for parts that do not go together.
    """
    check_answers(parts.policies(), geometry)
    hardware, model, predictor, loader = (
        parts.hardware,
        parts.model,
        parts.predictor,
        parts.loader,
    )
    route = route_of(hardware, model)
    ram_cache = parts.ram_cache if route.ram_link is not None else None
    if hardware.ram is not None and 0 < route.ram_bytes < max(geometry.variant_bytes):
        raise ValueError(
            f"hardware.ram.capacity_gib={hardware.ram.capacity_gib:g} holds no expert of"
            f" {max(geometry.variant_bytes)} B; raise it, or set hardware.ram=null"
        )
    return Controller(
        geometry,
        predictor,
        parts.cache,
        parts.precision,
        parts.placement,
        loader,
        route=route,
        ram_cache=ram_cache,
        payload=parts.payload,
        predicts_later=hardware.predicts_later(predictor.requires.lookahead_sites)
        and not predictor.silent,
        dense_bytes=tuple(map(model.block_bytes, range(model.sites))) if loader.dense_slots else (),
        spare_bytes=kv_room.spare_bytes if kv_room else None,
        kv_bytes=tuple(map(model.site_kv_bytes, range(model.sites))) if moves_kv(parts) else (),
    )


def _count_slots(
    config: Mapping[str, Any], parts: Parts, workload: Workload, geometry: Geometry
) -> int:
    """How many slots the run will have, for what must know the time of a load before there is a
    controller; 0 where they are too few, which the controller refuses.
    """
    made = replace(make_parts(config), hardware=parts.hardware)
    _prepare(made, ("cache", "ram_cache"), workload, geometry)
    try:
        return make_controller(geometry, made).slots.count
    except CapacityError:
        return 0


def _smallest_budget(
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
            _prepare(parts, ("cache", "ram_cache"), workload, geometry)
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


def trace_directory(path: str) -> Path:
    """The folder of the trace that a configuration names.

    A relative path counts from the working directory, or else from the project.
    """
    directory = Path(path)
    return directory if directory.is_absolute() or directory.exists() else ROOT / directory


def load_trace(
    path: str,
    lookahead_sites: int,
    active_shares: bool = False,
    norm: str | None = None,
    logits: bool = False,
) -> Trace:
    """The trace at ``path``, with only those of its large columns that are asked for.

    ``lookahead_sites`` above 0 reads lookahead scores: of ``norm``, or of all norms where the trace
    lacks that one. ``active_shares`` and ``logits`` read the columns of these names. A column that
    the trace does not have is left out.
    """
    directory = trace_directory(path)
    header = read_header(directory)
    columns = []
    if lookahead_sites > 0 and header.lookahead is not None:
        columns.append(f"lookahead_{norm}" if norm in header.lookahead.norms else "lookahead")
    if active_shares and header.sparsities:
        columns.append("active_shares")
    if logits and "logits" in header.columns:
        columns.append("logits")
    return read_trace(directory, columns)
