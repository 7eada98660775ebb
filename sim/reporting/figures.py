"""The figures of a report. Each draws on its axes what runs have; every axis says its unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from sim.pareto import front
from sim.reporting.runs import ReportedRun

Runs = Sequence[ReportedRun]
BINS = 60
PREFETCH_ENDS = (
    "promoted",
    "cancelled",
    "dropped_no_slot",
    "used",
    "late",
    "dropped",
    "evicted_unused",
    "unused_at_end",
)
FOUND = ("hit", "high_for_low")


def systems(axis: Any, runs: Runs) -> None:
    rates = [run.summary["decode_tokens_per_s"] or 0 for run in runs]
    axis.barh(_names(runs), rates, color="#5b7f95")
    for place, (run, rate) in enumerate(zip(runs, rates, strict=True)):
        interval = run.summary["ci95"]["decode_tokens_per_s"]
        if interval is not None:
            axis.plot(interval, [place, place], color="black", linewidth=1.5)
        axis.annotate(f" {rate:.3g}", (max([rate, *(interval or [])]), place), va="center", fontsize=8)
    axis.invert_yaxis()
    axis.set(xlabel="decode (tokens/s), 95 % interval over sequences", xlim=(0, None))
    axis.margins(x=0.15)


def stalls(axis: Any, runs: Runs) -> None:
    parts = ["compute", *(p for p in runs[0].summary["stall_s"] if any(run.summary["stall_s"].get(p) for run in runs))]
    base = np.zeros(len(runs))
    for part in parts:
        spent = np.array([
            run.summary["compute_busy_s"] if part == "compute" else run.summary["stall_s"].get(part, 0.0)
            for run in runs
        ])  # fmt: skip
        axis.barh(_names(runs), spent, left=base, label=part.replace("_", " "))
        base += spent
    axis.invert_yaxis()
    axis.set(xlabel="time of the whole run (s)")
    axis.legend(frameon=False, fontsize=8)


def latency(axis: Any, runs: Runs) -> None:
    found = _token_ms(runs)
    bins = np.histogram_bin_edges(np.concatenate([times for _, times in found]), BINS) if found else BINS
    for run, times in found:
        axis.hist(times, bins=bins, histtype="step", label=run.label)
    axis.set(xlabel="time per decoded token (ms)", ylabel="tokens")
    axis.legend(frameon=False, fontsize=8)


def latency_cdf(axis: Any, runs: Runs) -> None:
    for run, times in _token_ms(runs):
        axis.plot(np.sort(times), np.arange(1, len(times) + 1) / len(times), label=run.label)
    axis.set(xlabel="time per decoded token (ms)", ylabel="share of tokens", ylim=(0, 1))
    axis.legend(frameon=False, fontsize=8)


def hits_by_site(axis: Any, runs: Runs) -> None:
    for run, lookups in _decoded(runs):
        found = _ratio(lookups, "site")
        axis.plot(found["site"], found["ratio"], marker="o", markersize=3, label=run.label)
    axis.set(xlabel="layer (MoE site)", ylabel="hit ratio, decode", ylim=(0, 1))
    axis.legend(frameon=False, fontsize=8)


def hits_by_token(axis: Any, runs: Runs) -> None:
    for run, lookups in _decoded(runs):
        tokens = run.table("tokens")
        assert tokens is not None
        decoded = tokens.filter(pl.col("phase") == "decode").with_columns(
            index=pl.col("step").rank("ordinal").over("sequence")
        )
        found = _ratio(lookups.join(decoded.select("step", "index"), on="step"), "index")
        axis.plot(found["index"], found["ratio"], linewidth=1, label=run.label)
    axis.set(xlabel="decoded token of its sequence", ylabel="hit ratio, decode", ylim=(0, 1))
    axis.legend(frameon=False, fontsize=8)


def link_use(axis: Any, runs: Runs) -> None:
    for run in runs:
        transfers = run.table("transfers")
        if transfers is None:
            continue
        edges = np.linspace(0, run.summary["makespan_s"], BINS + 1)
        width = edges[1] - edges[0]
        for (link,), rows in transfers.filter(pl.col("end_ns").is_not_null()).group_by("link", maintain_order=True):
            start, end = rows["start_ns"].to_numpy() / 1e9, rows["end_ns"].to_numpy() / 1e9
            busy = np.array([np.clip(np.minimum(end, b) - np.maximum(start, a), 0, None).sum()
                             for a, b in pairwise(edges)])  # fmt: skip
            axis.plot(
                (edges[:-1] + edges[1:]) / 2, np.minimum(1, busy / width), linewidth=1, label=f"{run.label}: {link}"
            )
    axis.set(xlabel="time (s)", ylabel="share of the time that the link serves", ylim=(0, 1.02))
    axis.legend(frameon=False, fontsize=8)


def memory(axis: Any, runs: Runs) -> None:
    for run in runs:
        found = run.resident_change()
        if found is not None:
            # It changes with every transfer: shown is the span in each part of the time.
            at, change = found
            edges = np.linspace(at[0], at[-1], BINS + 1)
            of = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, BINS - 1)
            least, most = np.full(BINS, np.nan), np.full(BINS, np.nan)
            for part in np.unique(of):
                inside = change[of == part]
                least[part], most[part] = inside.min(), inside.max()
            axis.fill_between((edges[:-1] + edges[1:]) / 2, least, most, alpha=0.45, label=run.label)
    axis.set(xlabel="time (s)", ylabel="expert bytes on the device,\nchange since the start (GiB)")
    axis.legend(frameon=False, fontsize=8)


def prefetches(axis: Any, runs: Runs) -> None:
    base = np.zeros(len(runs))
    for end in PREFETCH_ENDS:
        count = np.array([run.summary["prefetch"][end] for run in runs], float)
        if count.any():
            started = "never started" if end in PREFETCH_ENDS[:3] else "started"
            axis.barh(_names(runs), count, left=base, label=f"{end.replace('_', ' ')} ({started})")
        base += count
    axis.invert_yaxis()
    axis.set(xlabel="prefetches queued, by what became of them")
    axis.legend(frameon=False, fontsize=8)


def pareto(axis: Any, runs: Runs) -> None:
    speed = np.array([run.summary["decode_tokens_per_s"] or 0 for run in runs], float)
    proxy = [run.summary["quality_proxy"] for run in runs]
    loss = np.array([(each["low_mass"] or 0) + (each["skip_mass"] or 0) for each in proxy])
    on_front = front(speed, loss)
    for run, x, y, is_front in zip(runs, loss, speed, on_front, strict=True):
        axis.scatter(x, y, color="#b4552d" if is_front else "0.6", zorder=2)
        axis.annotate(f" {run.label}", (x, y), fontsize=8)
    axis.set(xlabel="share of gate weight served at low precision or skipped (a proxy of what quality is lost)",
             ylabel="decode (tokens/s)", ylim=(0, None))  # fmt: skip
    axis.margins(x=0.2)


FIGURES: Mapping[str, tuple[str, Callable[[Any, Runs], None], str | None]] = {
    "systems": ("How fast is each?", systems, None),
    "stalls": ("Where does the time go?", stalls, None),
    "latency": ("How long does a token take?", latency, "tokens"),
    "latency_cdf": ("How many tokens are done by then?", latency_cdf, "tokens"),
    "hits_by_site": ("Which layers find their experts?", hits_by_site, "lookups"),
    "hits_by_token": ("Do later tokens find more?", hits_by_token, "lookups"),
    "link_use": ("How busy are the links?", link_use, "transfers"),
    "memory": ("What is on the device over time?", memory, "decisions"),
    "prefetches": ("What becomes of prefetches?", prefetches, None),
    "pareto": ("What does speed cost?", pareto, None),
}
"""By name: the question, what draws the answer, and the table that a run must have written for it."""


def _names(runs: Runs) -> list[str]:
    return [run.label for run in runs]


def _token_ms(runs: Runs) -> list[tuple[ReportedRun, Any]]:
    found = []
    for run in runs:
        tokens = run.table("tokens")
        if tokens is not None:
            decoded = tokens.filter(pl.col("phase") == "decode")
            if len(decoded):
                found.append((run, (decoded["end_ns"] - decoded["start_ns"]).to_numpy() / 1e6))
    return found


def _decoded(runs: Runs) -> list[tuple[ReportedRun, pl.DataFrame]]:
    tables = [(run, run.table("lookups")) for run in runs]
    return [(run, t.filter((pl.col("phase") == "decode") & (pl.col("outcome") != "skip")))
            for run, t in tables if t is not None]  # fmt: skip


def _ratio(lookups: pl.DataFrame, by: str) -> pl.DataFrame:
    return lookups.group_by(by).agg(ratio=pl.col("outcome").is_in(FOUND).mean()).sort(by)
