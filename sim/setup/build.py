"""From a composed configuration to a run that is ready to start."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from omegaconf import DictConfig

from sim.core.controller import Controller
from sim.fitting.prepare import prepare_payload, prepare_predictor, prepare_selector
from sim.machine.budget import Budget, all_slot_bytes, held_bits, make_geometry
from sim.machine.costs import Durations, Ledger, Roofline, check_memory, overflow_bytes
from sim.machine.hardware import Hardware
from sim.machine.model import Model
from sim.machine.recorded_bytes import recorded_bytes
from sim.policies.belady import Foreseeing
from sim.policies.lookahead import transfers_within
from sim.policies.placements import CpuByCost
from sim.policies.precisions import PerExpert
from sim.policies.predictors import NoPrediction
from sim.policies.profile import Profile
from sim.process.shared import Shared
from sim.results.run import Run
from sim.setup.parts import Parts, make_parts
from sim.setup.refusals import check_parts, check_recorded, checked_settings
from sim.traces.trace import Trace, read_header, read_trace
from sim.values.places import ROOT
from sim.values.types import CapacityError, Geometry
from sim.values.units import GIB, us
from sim.workload.batching import NO_ARRIVALS, is_timed
from sim.workload.steps import Limits, Workload

_FIT_SCORES: WeakKeyDictionary[Trace, np.ndarray[tuple[int], np.dtype[np.float64]]] = (
    WeakKeyDictionary()
)
_FIT_PROFILES: WeakKeyDictionary[Trace, Profile] = WeakKeyDictionary()
"""What many runs of one trace would measure again."""
LONGEST_DECISION_S = 3600.0
"""Host time after a gate above which a setting is taken for a slip."""


def build(
    cfg: DictConfig | Mapping[str, Any],
    system: str,
    trace: Trace | None = None,
    shared: Shared | None = None,
    stored_bytes: Sequence[int] = (),
    changed: Sequence[str] = (),
) -> Run:
    """A fresh run of a composed configuration, or of the plain values of one.

    ``trace`` saves reading it again where it is at hand (with the columns that the run needs);
    ``shared`` keeps traces and workloads for the next run. ``stored_bytes``: what an expert takes
    at each precision where it is really stored, in place of the model's nominal sizes. ``changed``:
    overrides that the run's labels name. Raise ValueError (``TraceError`` and ``CapacityError``
    among them), saying what does not fit what.
    """
    config = checked_settings(cfg)
    shared = shared or Shared(0)
    parts = make_parts(config)
    model, hardware, choice = parts.model, parts.hardware, parts.trace
    trace = trace or _shared_trace(parts, shared)
    model.check_trace(trace.header.model, trace.header.name, trace.header.null_experts)
    workload = _shared_workload(parts, trace, shared)
    fitted_on = prepare_predictor(parts.predictor, workload, trace_directory(choice.path))
    check_parts(parts, workload)
    check_recorded(config, parts.precision.constant, workload)
    selector, budget = parts.precision, Budget(**config["budget"])
    prepare_selector(selector, workload)
    profile_selector(selector, trace)
    held = 0.0 if stored_bytes else held_bits(selector, hardware)
    recorded = (
        None if stored_bytes else recorded_bytes(trace_directory(choice.path), trace.header, model)
    )
    sizes = recorded.sizes() if recorded else {}
    geometry = make_geometry(
        model, selector.precisions, budget, missing_variants(selector), stored_bytes, held, sizes
    )
    parts.payload.prepare(geometry, trace.header.sparsities)
    prepare_payload(parts.payload, workload)
    inform_caches(parts, workload, geometry)
    reached = hardware.unpinned() if parts.loader.copies == "pageable" else hardware
    durations = Roofline(
        model,
        reached.together(parts.placement.uses_cpu),
        selector.precisions,
        geometry.site_bytes,
        active_share=parts.payload.active_share,
        decision_ns=_decision_ns(parts.placement, model),
        free_copies=parts.loader.copies == "free",
        forecast_sites=parts.predictor.lookahead_sites,
        held_bits=held,
    )
    if parts.loader.prefetch_budget == "within_layer":
        prefetches = prefetches_within_layer(workload, durations, geometry)
        parts = replace(parts, loader=replace(parts.loader, prefetch_budget=prefetches))
    try:
        controller = make_controller(geometry, parts)
    except CapacityError as error:
        smallest = _smallest_budget(config, model, selector.precisions, workload, sizes)
        raise CapacityError(f"{error}{smallest}") from error
    ledger = check_run_memory(model, hardware, workload.limits, controller)
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
        fitted_on,
        tuple(changed),
        recorded,
    )


def prefetches_within_layer(workload: Workload, durations: Durations, geometry: Geometry) -> int:
    """How many experts the link to the device moves while a decoded token's layer is computed, on
    average of the run's; at least one token's needs. Raise ValueError where the steps depend on
    time.
    """
    if workload.is_timed:
        raise ValueError(
            "loader.prefetch_budget=within_layer is a mean of steps that do not depend on time; "
            f"{NO_ARRIVALS}, or loader.prefetch_budget to a number"
        )
    decode = [step for step in workload.steps if step.decode] or workload.steps
    dense_ns = [durations.dense_ns(step)[site] for step in decode for site in step.sites]
    sites = range(geometry.sites)
    expert_ns = sum(durations.expert_ns(0, site, 1) for site in sites) // len(sites)
    layer_ns = sum(dense_ns) // len(dense_ns) + geometry.top_k * expert_ns
    return transfers_within(
        layer_ns, max(1, durations.hop_ns(0, geometry.variant_bytes[0])), geometry.top_k
    )


def _shared_trace(parts: Parts, shared: Shared) -> Trace:
    wanted: tuple[str, int, bool, str, bool] = (
        parts.trace.path,
        parts.predictor.lookahead_sites,
        parts.payload.needs_shares,
        parts.workload.lookahead_norm,
        getattr(parts.precision, "needs_preferences", False),
    )
    return shared.get(("trace", *wanted), lambda: load_trace(*wanted))


def _shared_workload(parts: Parts, trace: Trace, shared: Shared) -> Workload:
    """The steps of a run; what depends on the run's time is made anew for each."""
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
        lookahead=parts.predictor.lookahead_sites,
        norm=steps.lookahead_norm,
        exclude=tuple(choice.exclude),
        max_sequences=choice.max_sequences,
        lengths=steps.lengths,
    )
    if is_timed(steps.arrivals_per_s, steps.arrivals_ns):
        return make()
    # The workload holds its trace, so that no other trace can have this identity meanwhile.
    return shared.get(("workload", id(trace), *make.keywords.values()), make)


def _decision_ns(placement: Any, model: Model) -> int:
    """Host time of a placement after every gate, on top of the machine's own."""
    each_us = placement.us_per_assignment if isinstance(placement, CpuByCost) else 0.0
    if not each_us:
        return 0
    seconds = each_us * 2.0**model.experts / 1e6
    if seconds > LONGEST_DECISION_S:
        raise ValueError(
            f"placement.us_per_assignment={each_us:g}: 2^{model.experts} assignments take"
            f" {seconds:.2g} s after every gate; set it to 0 (the decision needs no enumeration)"
        )
    return us(each_us * 2**model.experts)


def inform_caches(parts: Parts, workload: Workload, geometry: Geometry) -> None:
    """Give the caches what they must know beforehand, if anything: the run's requests, the fit
    sequences' choices.
    """
    if isinstance(parts.cache, Foreseeing):
        precision = parts.precision.constant
        assert precision is not None
        parts.cache.foresee(_key_schedule(workload, geometry, precision))
    for cache in (parts.cache, parts.ram_cache):
        if getattr(cache, "needs_profile", False):
            cache.profile(fit_profile(workload.trace))  # type: ignore[attr-defined]


def make_controller(geometry: Geometry, parts: Parts) -> Controller:
    """The controller of these parts, which it keeps. Raise ValueError for what does not go
    together.
    """
    hardware, model, predictor, loader = (
        parts.hardware,
        parts.model,
        parts.predictor,
        parts.loader,
    )
    route = hardware.route
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
        predicts_later=hardware.predicts_later(predictor.lookahead_sites)
        and not isinstance(predictor, NoPrediction),
        dense_bytes=tuple(map(model.block_bytes, range(model.sites))) if loader.dense_slots else (),
    )


def _smallest_budget(
    config: Mapping[str, Any],
    model: Model,
    precisions: tuple[str, ...],
    workload: Workload,
    sizes: Mapping[str, Sequence[int]],
) -> str:
    """What to add to a refusal for want of room: the smallest budget that works, to four places,
    if any does.
    """
    made = make_parts(config)
    held = held_bits(made.precision, made.hardware)
    everything = all_slot_bytes(
        make_geometry(model, precisions, Budget(1.0), held_bits=held, recorded=sizes)
    )

    def works(share: float) -> bool:
        try:
            parts = make_parts(config)
            geometry = make_geometry(
                model, precisions, Budget(share), held_bits=held, recorded=sizes
            )
            inform_caches(parts, workload, geometry)
            make_controller(geometry, parts)
        except ValueError:
            return False
        return True

    steps = range(1, 10_001)
    place = bisect_left(steps, True, key=lambda step: works(step / 10_000))
    if place == len(steps):
        return ""
    share = steps[place] / 10_000
    if config["budget"].get("slots_gib") is None:
        return f"; the smallest budget.resident_share that works is {share:g}"
    return f"; budget.slots_gib={ceil(share * everything / GIB * 10_000) / 10_000:g} works"


def check_run_memory(
    model: Model, hardware: Hardware, limits: Limits, controller: Controller
) -> Ledger:
    """The ledger of a run. Raise ValueError if the device does not hold it."""
    loader, capacity = controller.loader, controller.slots.capacity_bytes
    largest = max(controller.geometry.slot_sizes)
    over = 0
    if loader.retention == "after_batch":
        union = min(model.stored_experts, limits.rows * model.top_k) * largest
        issued = controller.route.engines[0] * loader.in_flight * largest
        over = overflow_bytes(
            union, sum(capacity) if loader.slot_claim == "queue" else issued, min(capacity)
        )
    return check_memory(
        model,
        hardware,
        limits,
        slot_bytes=sum(capacity),
        staging_bytes=loader.staging_slots * largest,
        overflow_bytes=over,
        dense_slots=loader.dense_slots,
        parts_bytes=model.sites
        * model.stored_experts
        * sum(model.resident_bytes(p) for p in controller.geometry.precisions),
    )


def trace_directory(path: str) -> Path:
    """Where a trace lies that the configuration names: relative to the working directory, or to
    the project.
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
    """The trace at ``path``, with its lookahead scores where a predictor needs them (of one
    ``norm``, or of all that it has), and its active shares and logits if asked, as far as it has
    them.
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


def profile_selector(selector: Any, trace: Trace) -> None:
    """Give a selector what it takes from the trace's fit split, if anything."""
    if isinstance(selector, PerExpert):
        if selector.needs_uses:
            selector.profile(fit_profile(trace).uses)
    elif (
        getattr(selector, "quantiles", None) is not None
        or getattr(selector, "quantile", None) is not None
    ):
        selector.profile(fit_scores(trace))


def fit_scores(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """HOBBIT's eq. 2 score of every decode selection of the trace's fit split, flat."""
    if trace not in _FIT_SCORES:
        workload = Workload(trace, split="fit", batching="sequential")
        decode = np.array([step.start for step in workload.steps if step.decode], dtype=np.int64)
        chosen = workload.chosen[0][decode] >= 0
        _FIT_SCORES[trace] = np.asarray(workload.scores[decode][chosen], dtype=np.float64)
        _FIT_SCORES[trace].setflags(write=False)
    return _FIT_SCORES[trace]


def missing_variants(selector: Any) -> frozenset[tuple[int, int, int]]:
    """(precision, site, expert) of variants that are stored nowhere."""
    if not isinstance(selector, PerExpert) or selector.table is None:
        return frozenset()
    return frozenset(
        (1 - p, site, expert)
        for site, row in enumerate(selector.table)
        for expert, p in enumerate(row)
    )


def fit_profile(trace: Trace) -> Profile:
    """What the trace's fit sequences chose. Raise ValueError if it has none."""
    if trace not in _FIT_PROFILES:
        _FIT_PROFILES[trace] = _profile(trace)
    return _FIT_PROFILES[trace]


def _profile(trace: Trace) -> Profile:
    try:
        workload = Workload(trace, split="fit", batching="sequential")
    except ValueError as error:
        raise ValueError(
            f"this cache is fitted on the fit sequences of a trace; {error}"
        ) from error
    chosen, experts = workload.chosen[0], trace.header.model.experts
    uses = [
        np.bincount(of_site[of_site >= 0], minlength=experts) for of_site in chosen.swapaxes(0, 1)
    ]
    decode = [step.start for step in workload.steps if step.decode]
    return Profile(np.stack(uses), chosen[decode], trace.header.encoder_sites)


def _key_schedule(workload: Workload, geometry: Geometry, precision: int) -> list[list[int]]:
    """The keys that each gate needs, in need order."""
    gates = zip(workload.gate_site.tolist(), workload.experts_by_gate(), strict=True)
    return [[geometry.key(precision, site, expert) for expert in needs] for site, needs in gates]
