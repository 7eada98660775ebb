"""Every number of a summary, defined once. Both drivers' runs are measured here (docs/design.md section 10)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.bounds import Bounds
from sim.frames import LOOKUP_OUTCOMES, Frames, compute_busy_ns, idle_ns
from sim.intervals import ratio_intervals
from sim.policies.pools import Pooled
from sim.policies.precisions import ScoreThreshold
from sim.run import Run
from sim.trace import trace_sha256
from sim.types import PrefetchOutcome
from sim.units import seconds

SCHEMA = 1
VERSION = version("moe-offload-lab")
FOUND_RESIDENT = ("hit", "high_for_low")
Floats = NDArray[np.float64]


def summarise(run: Run, frames: Frames, bounds: Bounds) -> dict[str, Any]:
    """The run as one JSON-ready dictionary, without ``wall_s``. Seconds are whole ns / 1e9; GB and GiB appear nowhere.

    Raise RuntimeError if busy and idle time do not add up to the makespan.
    """
    makespan, stalls, busy = frames.record.makespan_ns, idle_ns(frames), compute_busy_ns(frames)
    if busy + sum(stalls.values()) != makespan:
        raise RuntimeError(f"busy {busy} ns + idle {sum(stalls.values())} ns != makespan {makespan} ns")
    decode = frames.lookups.filter(pl.col("step").is_in(_decode_steps(run)))
    prefill = frames.lookups.filter(~pl.col("step").is_in(_decode_steps(run)))
    geometry = run.controller.geometry
    return {
        "schema": SCHEMA,
        "system": run.system,
        "model": run.model.name,
        "hardware": run.hardware.name,
        "preset": run.hardware.preset,
        "workload": run.workload.batching,
        "seed": run.seed,
        "version": VERSION,
        "trace": _trace(run),
        "budget": _budget(run),
        "storage_bytes": run.model.sites * run.model.experts * sum(geometry.variant_bytes),
        "load_s": seconds(_load_ns(run)),
        **_times(frames, makespan),
        "compute_busy_s": seconds(busy),
        "stall_s": {part: seconds(ns) for part, ns in stalls.items()},
        "lookups": dict(zip(LOOKUP_OUTCOMES, _outcome_counts(frames.lookups), strict=True)),
        "hit_ratio": hit_ratio(decode),
        "hit_ratio_prefill": hit_ratio(prefill),
        "hit_ratio_by_precision": {p: hit_ratio(decode.filter(pl.col("wanted") == p)) for p in geometry.precisions},
        "miss_penalty": _miss_penalty(decode, geometry.precisions, geometry.bits),
        "union_over_capacity": _union_over_capacity(run),
        "prefetch": _prefetch(frames),
        "prediction": _prediction(run, frames),
        "bytes": {frames.link_name: _bytes(frames.transfers)},
        "link_utilisation": {frames.link_name: _utilisation(frames, makespan)},
        "peak_bytes": {"device": run.ledger.total_bytes},
        "quality_proxy": _quality(decode, geometry.precisions),
        "bounds": {
            "compute_s": seconds(bounds.compute_ns),
            "link_s": seconds(bounds.link_ns),
            "lower_s": seconds(bounds.lower_ns),
            "method": "max",
            "belady_loads": bounds.belady_loads,
            "why_no_belady": bounds.why_no_belady,
            "oracle_s": None,
        },
        "gap": makespan / bounds.lower_ns - 1 if bounds.lower_ns else None,
        "calibration": {"id": f"{run.hardware.name}/{run.hardware.preset}", "validated": run.hardware.validated,
                        "error": None},
        "contracts": _contracts(run),
        "ci95": _intervals(run, frames),
    }  # fmt: skip


def hit_ratio(lookups: pl.DataFrame) -> float | None:
    """(hit + high_for_low) / (lookups - skip); None where nothing was looked up."""
    asked = lookups.filter(pl.col("outcome") != "skip")
    return float(asked["outcome"].is_in(FOUND_RESIDENT).sum()) / len(asked) if len(asked) else None


def _decode_steps(run: Run) -> list[int]:
    return [step.index for step in run.workload.steps if step.decode]


def _trace(run: Run) -> dict[str, Any]:
    header, chosen = run.trace.header, run.workload.sequences
    return {
        "name": header.name,
        "sha256": trace_sha256(header),
        "sequences": len(chosen),
        "prefill_tokens": sum(s.prompt_tokens for s in chosen),
        "decode_tokens": sum(s.decode_tokens for s in chosen),
        "source": header.source,
        "gates": run.model.transplant or header.model.name,
        "split": run.workload.split,
    }


def _budget(run: Run) -> dict[str, Any]:
    slots, geometry = run.controller.slots, run.controller.geometry
    device_bytes = sum(slots.capacity_bytes)
    pools: dict[int, set[int]] = {}
    for key, pool in enumerate(slots.pool_of):
        pools.setdefault(pool, set()).add(key // geometry.plane)
    per_precision = dict.fromkeys(geometry.precisions, 0)
    for pool, precisions in pools.items():
        best = min(precisions)
        per_precision[geometry.precisions[best]] += slots.capacity_bytes[pool] // geometry.variant_bytes[best]
    return {"device_bytes": device_bytes, "slots": per_precision, "resident_share": run.resident_share}


def _load_ns(run: Run) -> int:
    """Cold start: the dense weights in one transfer, then each expert that is resident at the start."""
    slots = run.controller.slots
    experts = sum(run.durations.transfer_ns(slots.key_bytes[key]) for key in slots.initial)
    return run.durations.transfer_ns(run.model.dense_bytes) + experts


def _times(frames: Frames, makespan: int) -> dict[str, Any]:
    sequences, tokens = frames.sequences, frames.tokens
    decode = tokens.filter(pl.col("phase") == "decode")
    produced = decode.filter(~pl.col("end_ns").is_in(sequences["first_token_ns"].implode()))
    ttft = (sequences["first_token_ns"] - sequences["arrival_ns"]).to_numpy()
    per_token, count = decode_time_and_tokens(frames)
    tpot = per_token[count > 0] / count[count > 0]
    prefill_ns = int((tokens["end_ns"] - tokens["start_ns"]).sum()) - int((decode["end_ns"] - decode["start_ns"]).sum())
    return {
        "makespan_s": seconds(makespan),
        "ttft_s": _spread(ttft, (50, 95)),
        "tpot_s": _spread(tpot, (50, 95, 99)),
        "itl_s": _spread((produced["end_ns"] - produced["start_ns"]).to_numpy(), (50, 95, 99)),
        "latency_s": _spread((sequences["end_ns"] - sequences["arrival_ns"]).to_numpy(), (50, 95)),
        "prefill_tokens_per_s": _rate(int(sequences["prompt_tokens"].sum()), prefill_ns),
        "decode_tokens_per_s": _rate(int(count.sum()), int(per_token.sum())),
    }


def decode_time_and_tokens(frames: Frames) -> tuple[Floats, Floats]:
    """By sequence: ns from its first token to its end, and the tokens after the first."""
    sequences = frames.sequences
    last = frames.tokens.join(sequences.select("sequence", "first_token_ns"), on="sequence", maintain_order="left")
    later = last.filter(pl.col("end_ns") > pl.col("first_token_ns")).group_by("sequence").len()
    count = sequences.join(later, on="sequence", how="left", maintain_order="left")["len"].fill_null(0)
    return ((sequences["end_ns"] - sequences["first_token_ns"]).to_numpy().astype(np.float64),
            count.to_numpy().astype(np.float64))  # fmt: skip


def _spread(values_ns: NDArray[Any], percentiles: Sequence[int]) -> dict[str, float | None]:
    if not len(values_ns):
        return {"mean": None, **{f"p{p}": None for p in percentiles}}
    return {"mean": float(values_ns.mean()) / 1e9,
            **{f"p{p}": float(np.percentile(values_ns, p)) / 1e9 for p in percentiles}}  # fmt: skip


def _rate(count: int, time_ns: int) -> float | None:
    return count / seconds(time_ns) if count and time_ns else None


def _outcome_counts(lookups: pl.DataFrame) -> list[int]:
    counts = dict(lookups["outcome"].value_counts().iter_rows())
    return [int(counts.get(name, 0)) for name in LOOKUP_OUTCOMES]


def _miss_penalty(lookups: pl.DataFrame, precisions: Sequence[str], bits: Sequence[float]) -> float | None:
    """HOBBIT section 3.4: a miss costs its bits over the highest precision's, per lookup that is not skipped."""
    asked = lookups.filter(pl.col("outcome") != "skip")
    if not len(asked):
        return None
    cost = pl.col("wanted").replace_strict({p: b / bits[0] for p, b in zip(precisions, bits, strict=True)})
    return float(asked.filter(pl.col("outcome").is_in(["miss", "promoted"])).select(cost.sum()).item()) / len(asked)


def _union_over_capacity(run: Run) -> dict[str, float]:
    """Bytes of each gate's union, at the highest precision, over the bytes of all expert slots."""
    count = np.bincount(run.workload.needs.tick, minlength=len(run.workload.steps) * run.workload.sites)
    ratio = count * run.controller.geometry.variant_bytes[0] / sum(run.controller.slots.capacity_bytes)
    return {"mean": float(ratio.mean()), "p95": float(np.percentile(ratio, 95))}


def _prefetch(frames: Frames) -> dict[str, int]:
    c = frames.controller
    counts = {outcome.name.lower(): c.prefetch_counts[outcome] for outcome in PrefetchOutcome}
    wasted = frames.transfers.filter(pl.col("outcome").is_in(["evicted_unused", "unused_at_end", "dropped"]))
    return {"queued": c.num_prefetches_queued, "started": sum(t.prefetch for t in c.issued), **counts,
            "wasted_bytes": int(wasted["moved_bytes"].sum())}  # fmt: skip


def _prediction(run: Run, frames: Frames) -> dict[str, float | None]:
    """How good the nearest forecast of each decode gate was, whether or not anything was moved for it.

    ``top1``: its best expert is needed. ``recall_at_issued``: needs that it named. ``precision``: named that are
    needed. ``exact_set``: both sets are equal. ``timely_recall``: of the needs that were not there for want of a
    prefetch, the share that a prefetch had brought in time.
    """
    names = ("top1", "recall_at_issued", "precision", "exact_set", "timely_recall")
    workload = run.workload
    if not workload.depth:
        return dict.fromkeys(names)
    forecast = workload.forecasts[0][:, :-1, 0]  # made at site s for site s + 1
    actual = workload.chosen[0][:, 1:]
    known = (forecast >= 0).any(axis=-1)
    forecast, actual = forecast[known], actual[known]
    if not len(forecast):
        return dict.fromkeys(names)
    same = (forecast[:, :, None] == actual[:, None, :]) & (forecast[:, :, None] >= 0)
    named, needed = (forecast >= 0).sum(), (actual >= 0).sum()
    hits = same.any(axis=2)
    counts, prefetched = (
        dict(zip(LOOKUP_OUTCOMES, _outcome_counts(frames.lookups), strict=True)),
        _prefetch(frames)["used"],
    )
    absent = prefetched + counts["late"] + counts["promoted"] + counts["miss"]
    return {
        "top1": float(hits[:, 0].mean()),
        "recall_at_issued": float(hits.sum() / needed),
        "precision": float(hits.sum() / named),
        "exact_set": float((hits.sum(1) == np.maximum((forecast >= 0).sum(1), (actual >= 0).sum(1))).mean()),
        "timely_recall": prefetched / absent if absent else None,
    }


def _bytes(transfers: pl.DataFrame) -> dict[str, int]:
    moved = dict(transfers.group_by("class").agg(pl.col("moved_bytes").sum()).iter_rows())
    return {name: int(moved.get(name, 0)) for name in ("demand", "prefetch", "dense", "write_back", "activation")}


def _utilisation(frames: Frames, makespan: int) -> float:
    served = int((frames.transfers["end_ns"] - frames.transfers["start_ns"]).sum())
    return served / makespan if makespan else 0.0


def _quality(lookups: pl.DataFrame, precisions: Sequence[str]) -> dict[str, float | None]:
    """Share of needs, and of gate weight, served below the highest precision or not at all."""
    total, mass = len(lookups), float(lookups["weight"].sum())
    low = lookups.filter(pl.col("served").is_in(precisions[1:]))
    skipped = lookups.filter(pl.col("outcome") == "skip")
    if not total or not mass:
        return dict.fromkeys(("low_share", "skip_share", "low_mass", "skip_mass"))
    return {"low_share": len(low) / total, "skip_share": len(skipped) / total,
            "low_mass": float(low["weight"].sum()) / mass,
            "skip_mass": float(skipped["weight"].sum()) / mass}  # fmt: skip


def _contracts(run: Run) -> dict[str, Any]:
    loader, cache, selector = run.controller.loader, run.controller.cache, run.controller.selector
    contracts: dict[str, Any] = {
        **{name: getattr(loader, name) for name in ("replay_unit", "slot_claim", "wait", "retention", "in_flight",
        "depth",
                                                    "queue", "promote", "cancel_stale", "demand_first", "destination",
                                                    "prefetch_budget", "low_for_high")},
        "batching": run.workload.batching,
        "waves": len(run.controller.wave_calls) // 2,
        "loop": "open",
        "initial_cache": cache.initial if isinstance(cache, Pooled) else "own",
        "carry_over": "cache contents stay between sequences",
        "warmup_tokens": 0,
    }  # fmt: skip
    if isinstance(selector, ScoreThreshold):
        contracts["score_thresholds"] = {"low_above": selector.low_above, "skip_above": selector.skip_above,
                                         "from": "fit split" if selector.quantiles else "given"}  # fmt: skip
    return contracts


def _intervals(run: Run, frames: Frames) -> dict[str, tuple[float, float] | None]:
    sequences = frames.sequences
    one = np.ones(len(sequences))
    decode_ns, tokens = decode_time_and_tokens(frames)
    tpot = np.divide(decode_ns, tokens, out=np.zeros_like(decode_ns), where=tokens > 0)
    ttft = (sequences["first_token_ns"] - sequences["arrival_ns"]).to_numpy().astype(np.float64)
    latency = (sequences["end_ns"] - sequences["arrival_ns"]).to_numpy().astype(np.float64)
    asked, found = _hits_by_sequence(run, frames)
    prompts = sequences["prompt_tokens"].to_numpy().astype(np.float64)
    return ratio_intervals({
        "decode_tokens_per_s": (tokens * 1e9, decode_ns),
        "tpot_s": (tpot / 1e9, (tokens > 0).astype(np.float64)),
        "ttft_s": (ttft / 1e9, one),
        "latency_s": (latency / 1e9, one),
        "prefill_tokens_per_s": (prompts * 1e9, ttft * (prompts > 0)),
        "hit_ratio": (found, asked),
    }, run.seed)  # fmt: skip


def _hits_by_sequence(run: Run, frames: Frames) -> tuple[Floats, Floats]:
    """Decode lookups that were not skipped, and those found resident, by sequence (a batch's count for its first)."""
    first = {step.index: step.sequences[0] for step in run.workload.steps if step.decode}
    owner = pl.DataFrame({"step": list(first), "sequence": list(first.values())}, schema_overrides={"step": pl.Int64})
    kept = frames.lookups.filter(pl.col("outcome") != "skip").group_by("step")
    per_step = kept.agg(asked=pl.len(), found=pl.col("outcome").is_in(FOUND_RESIDENT).sum()).join(owner, on="step")
    totals = per_step.group_by("sequence").agg(pl.col("asked").sum(), pl.col("found").sum())
    joined = (
        frames.sequences.select("sequence").join(totals, on="sequence", how="left", maintain_order="left").fill_null(0)
    )
    return joined["asked"].to_numpy().astype(np.float64), joined["found"].to_numpy().astype(np.float64)
