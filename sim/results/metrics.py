"""Computes the summary of a run, for both drivers: each key has its line here.

Formulas of several lines are in the modules beside this one: hits, latency, forecasts, stalls. What only
some runs have is in `sections`.

docs/contracts/outputs.md defines the metrics in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import polars as pl

from sim.bounds.bounds import Bounds
from sim.policies.requires import name_of
from sim.results.believed import calibration_section, decode_parts
from sim.results.bounded import bounds_section
from sim.results.forecasts import prediction
from sim.results.frames import LOOKUP_OUTCOMES, Frames, compute_busy_ns, idle_ns
from sim.results.hits import asked, hit_ratio, hit_ratio_by_precision, is_found, miss_penalty
from sim.results.intervals import ratio_intervals, share_interval
from sim.results.labels import labels_of
from sim.results.latency import (
    Floats,
    by_batch,
    prefill_time,
    request_times,
    sum_by_sequence,
)
from sim.results.pipelined import pipelined_section
from sim.results.prefixes import prefixes_section, tiers_told
from sim.results.run import Run
from sim.results.sections import (
    drafts_section,
    growing_section,
    paging_section,
    slowed_section,
)
from sim.traces.trace import Header, trace_sha256
from sim.values.types import Geometry, PrefetchOutcome
from sim.values.units import seconds
from sim.values.version import VERSION
from sim.workload.speculation import OFFLOADED

SCHEMA = 1
UNSAID = {
    "context_tokens": None,
    "draft_tokens": 0,
    "draft_accepted": 1.0,
    "draft_seed": 0,
    "draft_layers": 0,
}
"""What a run's contracts say where its configuration says nothing of context and drafts."""


def summarise(run: Run, frames: Frames, bounds: Bounds | None) -> dict[str, Any]:
    """The summary of a run as one JSON-ready dictionary, without ``wall_s``.

    Without ``bounds`` theirs are null, and their method says how to have them.
    Seconds are whole ns / 1e9; sizes are in bytes, never in GB or GiB. Raise RuntimeError if busy
    and idle time do not add up to the makespan.
    """
    makespan, stalls, busy = frames.makespan_ns, idle_ns(frames), compute_busy_ns(frames)
    if busy + sum(stalls.values()) != makespan:
        raise RuntimeError(
            f"busy {busy} ns + idle {sum(stalls.values())} ns != makespan {makespan} ns"
        )
    decode = frames.needs.filter(pl.col("phase") == "decode")
    prefill = frames.needs.select("skips", "outcome").filter(frames.needs["phase"] == "prefill")
    geometry, prefetch = run.controller.geometry, _prefetch(frames)
    lookups = dict(zip(LOOKUP_OUTCOMES, _outcome_counts(frames.needs), strict=True))
    return {
        "schema": SCHEMA,
        "system": run.system,
        "model": run.model.name,
        "hardware": run.hardware.title,
        "preset": run.hardware.preset,
        "workload": run.workload.batching,
        "seed": run.seed,
        "version": VERSION,
        "trace": _trace(run),
        "labels": labels_of(run, frames.needs).kinds(),
        "overrides": list(run.changed),
        "budget": {**_budget(run), **growing_section(frames)},
        "storage_bytes": _all_bytes(geometry),
        "load_s": seconds(_load_ns(run)),
        **request_times(frames),
        "drafts": drafts_section(frames),
        **prefixes_section(run, stalls["dense"]),
        "compute_busy_s": seconds(busy),
        "stall_s": {part: seconds(ns) for part, ns in stalls.items()},
        "slowed_s": slowed_section(run, frames),
        **paging_section(run, frames),
        **pipelined_section(run, frames),
        "lookups": lookups,
        "hit_ratio": hit_ratio(decode),
        "hit_ratio_prefill": hit_ratio(prefill),
        "hit_ratio_by_precision": hit_ratio_by_precision(decode, geometry.precisions),
        "miss_penalty": miss_penalty(decode, geometry.precisions, geometry.bits),
        "union_over_capacity": _union_over_capacity(run),
        "prefetch": prefetch,
        "prediction": prediction(
            run.workload, run.controller.predictor, lookups, prefetch["used"], run.fitted_on
        ),
        "ram": _ram(run),
        "bytes": frames.traffic.bytes_by_link(run.hardware.devices),
        "link_utilisation": {
            link: ns / makespan if makespan else 0.0
            for link, ns in frames.traffic.busy_ns().items()
        },
        "peak_bytes": _peak_bytes(run),
        "quality_proxy": _quality(decode, geometry),
        "bounds": bounds_section(bounds, run.workload.is_timed),
        "gap": makespan / bounds.lower_ns - 1 if bounds and bounds.lower_ns else None,
        "calibration": calibration_section(run, frames),
        "contracts": _contracts(run),
        "ci95": _intervals(frames, decode),
    }


def _trace(run: Run) -> dict[str, Any]:
    header, chosen = run.trace.header, run.workload.sequences
    return {
        "name": header.name,
        "sha256": trace_sha256(header),
        "sequences": len(chosen),
        "numbers": sorted(s.sequence for s in chosen),
        "prefill_tokens": sum(s.prompt_tokens for s in chosen),
        "decode_tokens": sum(s.decode_tokens for s in chosen),
        "source": header.source,
        "gates": run.model.transplant or header.model.name,
        "split": run.workload.split,
        "findings": _findings(header, {item.sequence for item in chosen}),
        "expert_bytes": _expert_bytes(run),
    }


def _expert_bytes(run: Run) -> dict[str, Any] | None:
    """The recorded bytes of the trace's experts, and whether the run takes them.

    None where the trace has none.
    """
    found = run.recorded_bytes
    if found is None:
        return None
    note = found.told(run.controller.geometry.precisions)
    return {
        "stored_as": found.stored_as,
        "least": min(found.by_site),
        "most": max(found.by_site),
        "taken": note is None,
        "note": note,
    }


def _findings(header: Header, sequences: set[int]) -> list[str] | None:
    """The serious findings that concern one of these sequences, or the whole trace.

    None where the trace was never checked.
    """
    if header.findings is None:
        return None
    texts = []
    for item in header.findings:
        mine = len(sequences.intersection(item.sequences))
        where = f" (here: {mine} of {len(sequences)} sequences)" if item.sequences else ""
        if item.serious and (mine or not item.sequences):
            texts.append(f"{item.check}: {item.text}{where}")
    return texts


def _budget(run: Run) -> dict[str, Any]:
    slots, geometry = run.controller.slots, run.controller.geometry
    device_bytes = sum(slots.capacity_bytes)
    pools: dict[int, set[int]] = {}
    for key, pool in enumerate(slots.pool_of):
        pools.setdefault(pool, set()).add(key // geometry.plane)
    per_precision = dict.fromkeys(geometry.precisions, 0)
    for pool, precisions in pools.items():
        best = min(precisions)
        per_precision[geometry.precisions[best]] += (
            slots.capacity_bytes[pool] // geometry.slot_sizes[best]
        )
    return {
        "device_bytes": device_bytes,
        "allowed_bytes": geometry.capacity_bytes,
        "slots": per_precision,
        "slot_bytes": dict(zip(geometry.precisions, geometry.slot_sizes, strict=True)),
        "initial_bytes": sum(slots.slot_bytes[key] for key in slots.initial),
        "resident_share": run.resident_share,
    }


def _all_bytes(geometry: Geometry) -> int:
    """The bytes of every expert at every precision in play."""
    stored = geometry.experts - geometry.null_experts
    keys = (
        geometry.key(p, site, expert)
        for p in range(len(geometry.precisions))
        for site in range(geometry.sites)
        for expert in range(stored)
    )
    return sum(map(geometry.bytes_of, keys))


def _load_ns(run: Run) -> int:
    """The time of a cold start, with nothing overlapped.

    Transfers follow each other, and each crosses one link after another:

    1. the dense weights;
    2. the RAM tier's initial contents;
    3. the device's initial contents, from RAM where that holds them.

    Of several devices each has its contents over its own link, and the first one the dense weights
    of all. Devices that all do the same have equal parts of these.
    """
    slots, ram, hop_ns = run.controller.slots, run.controller.ram, run.durations.hop_ns
    devices, dense_bytes = run.hardware.devices, run.ledger.dense_bytes
    if devices is not None:
        # Each copy's device has its part; slices divide whatever moves.
        dense_bytes = -(-dense_bytes // devices.copies)
    if link_of := run.controller.route.link_of:
        plane = run.controller.geometry.plane
        sizes = ((link_of[key % plane], slots.key_bytes[key]) for key in slots.initial)
        return hop_ns(0, dense_bytes) + sum(hop_ns(*size) for size in sizes)
    links = range(run.controller.route.links)
    total = sum(hop_ns(link, dense_bytes) for link in links)
    if ram is not None:
        total += sum(
            hop_ns(link, ram.key_bytes[key])
            for key in ram.initial
            for link in links
            if link >= ram.link
        )
    in_ram = set(ram.initial) if ram is not None else set()
    for key in slots.initial:
        last = ram.link if ram is not None and key in in_ram else len(links)
        total += sum(hop_ns(link, slots.key_bytes[key]) for link in links[:last])
    return total


def _ram(run: Run) -> dict[str, Any] | None:
    """Capacity, lookups and hits of the managed RAM tier; None where the machine has none."""
    ram = run.controller.ram
    if ram is None:
        return None
    return {
        "capacity_bytes": sum(ram.capacity_bytes),
        "lookups": ram.lookups,
        "hits": ram.hits,
        "hit_ratio": ram.hits / ram.lookups if ram.lookups else None,
    }


def _peak_bytes(run: Run) -> dict[str, int]:
    """The most bytes that each tier held; for the device what is set aside, staging included."""
    controller, ledger = run.controller, run.ledger
    # slots.peak_bytes adds up each pool at its fullest, which are different times. The ledger
    # limits how far all pools together can be over their capacity.
    over = max(0, controller.slots.peak_bytes - sum(controller.slots.capacity_bytes))
    return {
        "device": ledger.total_bytes - max(0, ledger.overflow_bytes - over),
        "ram": controller.ram.peak_bytes if controller.ram is not None else 0,
        "staging": controller.staging.most_used * max(controller.geometry.slot_sizes),
    }


def _outcome_counts(lookups: pl.DataFrame) -> list[int]:
    counts = dict(lookups["outcome"].value_counts().iter_rows())
    return [int(counts.get(name, 0)) for name in LOOKUP_OUTCOMES]


def _union_over_capacity(run: Run) -> dict[str, float] | None:
    """The bytes of gates' unions at the highest precision, over those of all expert slots; None
    without slots.
    """
    capacity_bytes = sum(run.controller.slots.capacity_bytes)
    if not capacity_bytes:
        return None
    geometry, workload = run.controller.geometry, run.workload
    count = np.bincount(workload.needs.tick, minlength=workload.num_gates)
    of_site = np.array(
        [geometry.slot_bytes[geometry.key(0, site, 0)] for site in range(geometry.sites)]
    )
    ratio = count * of_site[workload.gate_site] / capacity_bytes
    return {"mean": float(ratio.mean()), "p95": float(np.percentile(ratio, 95))}


def _prefetch(frames: Frames) -> dict[str, int]:
    """The numbers of prefetches by outcome, and their ``wasted_bytes``.

    These are the bytes that prefetches which no lookup found moved over the link to the device.
    """
    c = frames.controller
    found = c.prefetch_counts
    counts = {outcome.name.lower(): found[outcome] for outcome in PrefetchOutcome}
    return {
        "queued": c.num_prefetches_queued,
        "started": int(c.issued.column("prefetch").sum()),
        **counts,
        "wasted_bytes": frames.traffic.wasted_bytes(),
    }


def _quality(lookups: pl.DataFrame, geometry: Geometry) -> dict[str, float | None]:
    """The shares of needs, and of gate weight, that were not served in full.

    That is: served below the highest precision, not at all, or by another expert.
    """
    total, mass = len(lookups), float(lookups["weight"].sum())
    is_skipped = pl.col("outcome") == "skip"
    kinds = {
        "low": lookups.filter(pl.col("served").is_in(geometry.precisions[1:])),
        "skip": lookups.filter(is_skipped),
        "reroute": lookups.filter(
            ~is_skipped & (pl.col("key") % geometry.units != pl.col("expert"))
        ),
    }
    if not total or not mass:
        return {f"{kind}_{what}": None for what in ("share", "mass") for kind in kinds}
    shares: dict[str, float | None] = {
        f"{kind}_share": len(rows) / total for kind, rows in kinds.items()
    }
    return shares | {
        f"{kind}_mass": float(rows["weight"].sum()) / mass for kind, rows in kinds.items()
    }


def _contracts(run: Run) -> dict[str, Any]:
    """Every switch on which numbers of this run depend."""
    controller, workload, told = run.controller, run.workload, run.config["workload"]
    loader = controller.loader
    contracts: dict[str, Any] = {
        **{switch.name: getattr(loader, switch.name) for switch in fields(loader)},
        "batching": workload.batching,
        "together": workload.together,
        "prefill_chunk": workload.prefill_chunk,
        "arrivals": _arrivals(told) if workload.is_timed else None,
        **{name: unset if told.get(name) is None else told[name] for name, unset in UNSAID.items()},
        **({"draft_experts": OFFLOADED} if workload.speculation.sites else {}),
        **tiers_told(run),
        "waves": sum(count > 0 for count in controller.wave_calls[1::2]),
        "loop": "open",
        "initial_cache": controller.cache.initial,
        "carry_over": "cache contents stay between sequences",
        "warmup_tokens": 0,
    }
    numbers, taken = [item.sequence for item in workload.sequences], {*contracts}
    told_by = {section: policy.told(numbers) for section, policy in run.policies.items()}
    counts = Counter(name for own in told_by.values() for name in own)
    for section, own in told_by.items():
        if not taken.isdisjoint(own):
            raise ValueError(
                f"{name_of(run.policies[section])}: `told` has {', '.join(sorted(taken & {*own}))},"
                " which the summary's contracts say of the run: choose other names"
            )
        # One class may serve two sections: both tiers, say.
        contracts |= {
            name if counts[name] == 1 else f"{section}.{name}": value for name, value in own.items()
        }
    return contracts


def _arrivals(told: Mapping[str, Any]) -> dict[str, Any]:
    """How arrivals were made: drawn at a rate, or given."""
    if (requests := told.get("requests")) is not None:
        return {"requests": requests if isinstance(requests, str) else len(requests)}
    if told["arrivals_per_s"] is None:
        return {"given_s": told["arrivals_s"]}
    return {"per_s": told["arrivals_per_s"], "seed": told["arrival_seed"]}


def _intervals(frames: Frames, decode: pl.DataFrame) -> dict[str, tuple[float, float] | None]:
    sequences = frames.sequences
    one = by_batch(frames, np.ones(len(sequences)))
    latency = (sequences["end_ns"] - sequences["arrival_ns"]).to_numpy().astype(np.float64)
    ttft = (sequences["first_token_ns"] - sequences["arrival_ns"]).to_numpy().astype(np.float64)
    counted, found = _hits_by_sequence(frames, decode)
    prompts = sequences["prompt_tokens"].to_numpy().astype(np.float64)
    return ratio_intervals(
        decode_parts(frames)
        | {
            "ttft_s": (by_batch(frames, ttft / 1e9), one),
            "latency_s": (by_batch(frames, latency / 1e9), one),
            "prefill_tokens_per_s": (by_batch(frames, prompts * 1e9), prefill_time(frames)),
        }
    ) | {"hit_ratio": share_interval(by_batch(frames, found), by_batch(frames, counted))}


def _hits_by_sequence(frames: Frames, decode: pl.DataFrame) -> tuple[Floats, Floats]:
    """The ``decode`` lookups asked for, and the hits among them, by sequence.

    Lookups of a step are shared equally among its sequences.
    """
    per_step = asked(decode).group_by("step").agg(asked=pl.len(), found=is_found().sum())
    shared = frames.tokens.select("step", "sequence", share=1 / pl.len().over("step")).join(
        per_step, on="step", maintain_order="left"
    )
    counted, found = (
        sum_by_sequence(frames, shared["sequence"], shared[name] * shared["share"])
        for name in ("asked", "found")
    )
    return counted, found
