"""Draws the figures of a report: one function each, which draws runs on the axes it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

import numpy as np
import polars as pl

from sim.reporting.runs import GIB, ReportedRun
from sim.results.fronts import front
from sim.results.hits import asked, is_found
from sim.results.kept import PREFETCH_ENDS
from sim.results.latency import with_drafting
from sim.results.looks import COLOURS, MARKERS

Runs = Sequence[ReportedRun]
BINS = 60
LOST = ("low_mass", "skip_mass", "reroute_mass")
"""The parts of ``quality_proxy`` that make a run's loss, by gate weight."""
NAME_POINTS = 9.0
"""The height of a name in a figure, in points."""


def systems(axis: Any, runs: Runs) -> None:
    rates = [run.summary["decode_tokens_per_s"] or 0 for run in runs]
    axis.barh(_names(runs), rates, color=COLOURS[0])
    for place, (run, rate) in enumerate(zip(runs, rates, strict=True)):
        interval = run.summary["ci95"]["decode_tokens_per_s"]
        if interval is not None:
            axis.plot(interval, [place, place], color="black")
        axis.annotate(
            f"{rate:.3g}",
            (max([rate, *(interval or [])]), place),
            xytext=(4, 0),
            va="center",
            fontsize=8,
            textcoords="offset points",
        )
    axis.invert_yaxis()
    axis.set(xlabel="decode (tokens/s), 95 % interval over the trace's sequences", xlim=(0, None))
    axis.margins(x=0.15)


def stalls(axis: Any, runs: Runs) -> None:
    parts = [
        "compute",
        *(
            p
            for p in runs[0].summary["stall_s"]
            if any(run.summary["stall_s"].get(p) for run in runs)
        ),
    ]
    base = np.zeros(len(runs))
    for part in parts:
        spent = np.array(
            [
                (
                    run.summary["compute_busy_s"]
                    if part == "compute"
                    else run.summary["stall_s"].get(part, 0.0)
                )
                for run in runs
            ]
        )
        axis.barh(_names(runs), spent, left=base, label=part.replace("_", " "))
        base += spent
    axis.invert_yaxis()
    axis.set(xlabel="time of the whole run (s)", xlim=_beyond(base))
    _legend(axis)


def latency(axis: Any, runs: Runs) -> None:
    found = _token_ms(runs)
    every = [times for _, times in found]
    for run, times in found:
        axis.hist(times, bins=token_bins(every), histtype="step", label=run.label)
    axis.set(xlabel="time per decoded token (ms)", ylabel="tokens")
    _legend(axis)


def latency_cdf(axis: Any, runs: Runs) -> None:
    for run, times in _token_ms(runs):
        axis.plot(np.sort(times), np.arange(1, len(times) + 1) / len(times), label=run.label)
    axis.set(xlabel="time per decoded token (ms)", ylabel="share of tokens", ylim=(0, 1))
    _legend(axis)


def hits_by_site(axis: Any, runs: Runs) -> None:
    for run, lookups in _decoded(runs):
        found = _ratio(lookups, "site")
        axis.plot(found["site"], found["ratio"], marker="o", markersize=3, label=run.label)
    axis.set(xlabel="layer (MoE site)", ylabel="hit ratio, decode", ylim=(0, 1))
    _legend(axis)


def hits_by_token(axis: Any, runs: Runs) -> None:
    for run, lookups in _decoded(runs):
        tokens = run.table("tokens")
        assert tokens is not None
        if "new_tokens" not in tokens.columns:
            tokens = tokens.with_columns(new_tokens=pl.lit(1, pl.Int64))
        # A step that checks drafts gives several tokens, and stands at the first of them.
        last = pl.col("new_tokens").cum_sum().over("sequence", order_by="step")
        decoded = tokens.filter(pl.col("phase") == "decode").with_columns(
            index=last - pl.col("new_tokens") + 1
        )
        found = _ratio(lookups.join(decoded.select("step", "index"), on="step"), "index")
        axis.plot(found["index"], found["ratio"], linewidth=1, label=run.label)
    axis.set(xlabel="decoded token of its sequence", ylabel="hit ratio, decode", ylim=(0, 1))
    _legend(axis)


def link_use(axis: Any, runs: Runs) -> None:
    for run in runs:
        transfers = run.table("transfers")
        if transfers is None:
            continue
        edges, middles = _parts_of(run)
        width = edges[1] - edges[0]
        for (link,), rows in transfers.filter(pl.col("end_ns").is_not_null()).group_by(
            "link", maintain_order=True
        ):
            start, end = apart(rows["start_ns"].to_numpy() / 1e9, rows["end_ns"].to_numpy() / 1e9)
            busy = np.array(
                [
                    np.clip(np.minimum(end, b) - np.maximum(start, a), 0, None).sum()
                    for a, b in pairwise(edges)
                ]
            )
            axis.plot(middles, busy / width, linewidth=1, label=f"{run.label}: {link}")
    axis.set(xlabel="time (s)", ylabel="share of the time that the link serves", ylim=(0, 1.02))
    _legend(axis)


def memory(axis: Any, runs: Runs) -> None:
    most = max(run.summary["budget"]["device_bytes"] for run in runs) / GIB
    for run in runs:
        found = run.resident_gib()
        if found is not None:
            # The value changes with every transfer, so its mean over each interval is shown.
            edges, middles = _parts_of(run)
            means = means_between(*found, edges)
            # Pools may hold more than their plan: a batch, or what keys and values leave.
            most = max(most, float(means.max()))
            axis.plot(middles, means, label=run.label)
        elif run.is_staged:
            axis.plot([], [], " ", label=f"{run.label}: not told (staging)")
    axis.set(
        xlabel="time (s)", ylabel="experts in the device's slots (GiB), mean", ylim=(0, 1.08 * most)
    )
    _legend(axis)


def prefetches(axis: Any, runs: Runs) -> None:
    base = np.zeros(len(runs))
    for end in PREFETCH_ENDS:
        count = np.array([run.summary["prefetch"][end] for run in runs], float)
        if count.any():
            started = "never started" if end in PREFETCH_ENDS[:3] else "started"
            axis.barh(_names(runs), count, left=base, label=f"{end.replace('_', ' ')} ({started})")
        base += count
    axis.invert_yaxis()
    axis.set(xlabel="prefetches queued, by what became of them", xlim=_beyond(base))
    _legend(axis)


def pareto(axis: Any, runs: Runs) -> None:
    speed = np.array([run.summary["decode_tokens_per_s"] or 0 for run in runs], float)
    proxy = [run.summary["quality_proxy"] for run in runs]
    loss = np.array([sum(each.get(name) or 0 for name in LOST) for each in proxy])
    # A loss is relative to a run's own highest precision, so only runs that share that precision
    # can beat each other.
    classes = list(dict.fromkeys(run.highest_precision for run in runs))
    for precision, marker in zip(classes, cycle(MARKERS), strict=False):
        inside = [i for i, run in enumerate(runs) if run.highest_precision == precision]
        # A run that knows the future, or does what no machine can, is no system and beats nobody.
        on_front = front(
            speed[inside],
            np.where([runs[i].labels.is_system for i in inside], loss[inside], np.nan),
        )
        colours = [COLOURS[1] if is_front else "0.6" for is_front in on_front]
        axis.scatter(
            loss[inside],
            speed[inside],
            c=colours,
            marker=marker,
            zorder=2,
            label=f"{precision} at best",
        )
    axis.set(
        xlabel=(
            "share of gate weight served below the run's highest precision, by others or not at all"
            " (a proxy of loss)"
        ),
        ylabel="decode (tokens/s)",
        ylim=(0, 1.12 * (speed.max() or 1)),
    )
    axis.margins(x=0.2)
    # The margin left of 0 makes room for names, but gets no ticks: shares are never negative.
    limits = axis.get_xlim()
    axis.set_xticks([tick for tick in axis.get_xticks() if 0 <= tick <= limits[1]])
    axis.set_xlim(limits)
    names = [
        run.label if run.labels.is_system else f"{run.label} (a bound, no system)" for run in runs
    ]
    _name_points(axis, loss, speed, names)
    _legend(axis)


def _name_points(axis: Any, x: Any, y: Any, names: Sequence[str]) -> None:
    """Write names right of their points; where points are near, one above the other."""
    bottom = -np.inf
    for i in np.argsort(y, kind="stable"):
        at = axis.transData.transform((x[i], y[i]))[1] * 72 / axis.figure.dpi
        bottom = max(at, bottom + NAME_POINTS)
        axis.annotate(
            names[i],
            (x[i], y[i]),
            xytext=(6, bottom - at),
            textcoords="offset points",
            fontsize=8,
            va="center",
        )


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
"""By name of the figure: its question, the function that draws it, and the table that it needs."""


def apart(start: Any, end: Any) -> tuple[Any, Any]:
    """The starts and ends of intervals, each without what an earlier one covers: several engines
    of a link serve at once, and a service that gives way has others in it.

    >>> apart(np.array([4.0, 0.0, 1.0]), np.array([5.0, 3.0, 2.0]))
    (array([0., 3., 4.]), array([3., 3., 5.]))
    """
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(end[order])
    return np.maximum(start[order], np.append(0.0, reach)[: len(order)]), reach


def means_between(at: Any, values: Any, edges: Any) -> Any:
    """The means over time, between neighbouring ``edges``, of a value that changes in steps.

    The value is ``values[i]`` from ``at[i]`` on; ``at`` is ascending.

    >>> means_between(np.array([0.0, 1.0, 3.0]), np.array([2.0, 4.0, 8.0]), np.array([0.0, 2.0, 4.0]))
    array([3., 6.])
    """
    at = np.append(at, max(edges[-1], at[-1]))
    area = np.append(0.0, np.cumsum(values * np.diff(at)))
    return np.diff(np.interp(edges, at, area)) / np.diff(edges)


def token_bins(times: Sequence[Any]) -> Any:
    """The edges of equal bins for the times of several runs, `BINS` bins at most.

    A bin is as wide as the run with the widest spread needs (Freedman and Diaconis). Times come in
    multiples of a load, which narrower bins would show as a comb.
    """
    every = np.concatenate(times)
    width = max(float(np.diff(np.histogram_bin_edges(one, "fd")[:2])[0]) for one in times)
    count = int(np.clip(np.ceil(np.ptp(every) / width), 1, BINS))
    return np.linspace(every.min(), max(every.max(), every.min() + width / BINS), count + 1)


def _parts_of(run: ReportedRun) -> tuple[Any, Any]:
    """The edges of `BINS` equal parts of a run, in the time of its tables, and their middles since
    the first request.
    """
    edges = np.linspace(0, run.summary["makespan_s"], BINS + 1)
    return run.begun_s + edges, (edges[:-1] + edges[1:]) / 2


def _beyond(ends: Any) -> tuple[float, float]:
    """The limits of an axis of bars with these ``ends``: the longest does not touch the frame."""
    return 0.0, 1.03 * (float(max(ends)) or 1.0)


def _legend(axis: Any) -> None:
    """Put a legend beside the axes, where it hides nothing."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _names(runs: Runs) -> list[str]:
    return [run.label for run in runs]


def _token_ms(runs: Runs) -> list[tuple[ReportedRun, Any]]:
    found = []
    for run in runs:
        tokens = run.table("tokens")
        if tokens is not None:
            # The drafts of a step are a part of its tokens' time, as in the summary's `itl_s`.
            decoded = with_drafting(tokens).filter(pl.col("phase") == "decode")
            if len(decoded):
                found.append((run, (decoded["end_ns"] - decoded["start_ns"]).to_numpy() / 1e6))
    return found


def _decoded(runs: Runs) -> list[tuple[ReportedRun, pl.DataFrame]]:
    """The decode lookups of each run that count in a hit ratio.

    Raise ValueError for a run of an older version, which does not say which of them count.
    """
    found = []
    for run in runs:
        lookups = run.table("lookups")
        if lookups is None:
            continue
        if "skips" not in lookups.columns:
            raise ValueError(
                f"{run.directory}/lookups.parquet has no column skips: an earlier version wrote it;"
                " run again"
            )
        found.append((run, asked(lookups.filter(pl.col("phase") == "decode"))))
    return found


def _ratio(lookups: pl.DataFrame, by: str) -> pl.DataFrame:
    return lookups.group_by(by).agg(ratio=is_found().mean()).sort(by)
