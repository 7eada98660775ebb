"""Draws the statistics of one or more traces as figures, with one colour for each trace.

A figure without any table is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from capture.statistics.published import PUBLISHED
from sim.results.looks import COLOURS, looks, save

Tables = Mapping[str, pl.DataFrame]
Experts = Mapping[str, int]
Colours = Mapping[str, Any]

WEIGHTED = "corr(weight, weighted output norm)"
STYLES = {"raw": "-", "renormed": "--"}


def draw(output_dir: Path, tables: Tables, experts: Experts) -> list[Path]:
    """Write every figure for which there is a table; returns the files.

    ``experts`` has the number of experts of each trace; its order decides the colours.
    """
    colours = dict(zip(experts, cycle(COLOURS)))
    files: list[Path] = []
    with looks("stats") as plt:
        for name, (panels, needed) in FIGURES.items():
            there = [
                (panel, table)
                for panel, table in zip(panels, needed, strict=True)
                if table in tables
            ]
            if not there:
                continue
            figure, axes = plt.subplots(
                1, len(there), figsize=(4.6 * len(there), 3.6), squeeze=False
            )
            for axis, (panel, table) in zip(axes[0], there, strict=True):
                panel(axis, tables[table], experts, colours)
                axis.margins(x=0.02)
            # The legend stands below the panels: long names of traces would cover them.
            handles = {
                label: handle
                for axis in axes[0]
                for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
            }
            columns = max(1, 4 * len(there) // 3)
            figure.legend(
                handles.values(),
                handles,
                loc="outside lower center",
                ncols=columns,
                frameon=False,
                fontsize=8,
            )
            figure.set_layout_engine("constrained")
            files += save(figure, output_dir / name)
    return files


def by_trace(table: pl.DataFrame, **where: object) -> Iterator[tuple[str, pl.DataFrame]]:
    """Each trace and its rows with these values, in the table's order; traces without are left out.

    ``where`` has the values by column.
    """
    chosen = table.filter(**where) if where else table
    for (trace,), rows in chosen.group_by("trace", maintain_order=True):
        yield str(trace), rows


def over_sites(rows: pl.DataFrame, axis: str, column: str = "value") -> tuple[Any, Any, Any, Any]:
    """Values of the axis, and the mean and 10 and 90 % quantiles of a column over sites."""
    value = pl.col(column)
    of = rows.group_by(axis).agg(
        value.mean().alias("mean"),
        value.quantile(0.1).alias("low"),
        value.quantile(0.9).alias("high"),
    )
    of = of.sort(axis)
    return of[axis].to_numpy(), of["mean"].to_numpy(), of["low"].to_numpy(), of["high"].to_numpy()


def _band(
    axis: Any, points: tuple[Any, Any, Any, Any], colour: Any, label: str, **line: Any
) -> None:
    at, mean, low, high = points
    axis.plot(
        at, mean, color=colour, label=label, marker="o", markersize=2.5, linewidth=1.4, **line
    )
    axis.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)


def _printed(axis: Any, measure: str) -> None:
    """Draw a line at the published value of a measure."""
    published = PUBLISHED[measure]
    axis.axhline(
        float(published.value), color="black", linewidth=0.9, linestyle="-.", label=published.source
    )


def _popularity(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
    for trace, rows in by_trace(table):
        shares = np.stack(
            [np.sort(part["share"].to_numpy())[::-1] for part in rows.partition_by("site")]
        )
        at = (np.arange(shares.shape[1]) + 1) / shares.shape[1]
        relative = shares * experts[trace]
        low, high = np.quantile(relative, [0.1, 0.9], axis=0)
        _band(axis, (at, relative.mean(0), low, high), colours[trace], trace)
    axis.axhline(1, color="grey", linewidth=0.8, linestyle=":")
    axis.set(
        title="popularity",
        xlabel="experts by popularity, share",
        ylabel="uses over the mean",
        ylim=(0, None),
    )


def _reuse(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
    for trace, rows in by_trace(table):
        _band(axis, over_sites(rows, "lag"), colours[trace], trace)
        axis.axhline(
            rows["popularity_alone"].mean(), color=colours[trace], linewidth=0.9, linestyle="--"
        )
        axis.axhline(rows["chance"].mean(), color=colours[trace], linewidth=0.9, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set(
        title="reuse (-- popularity alone, : even draws)",
        xlabel="tokens later",
        ylabel="experts selected again",
        ylim=(0, None),
    )


def _distance(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
    for trace, rows in by_trace(table):
        curves = []
        for part in rows.partition_by("site"):
            known = part.drop_nulls("distance")
            counts = np.zeros(experts[trace])
            counts[known["distance"].to_numpy()] = known["selections"].to_numpy()
            curves.append(np.cumsum(counts) / part["selections"].to_numpy().sum())
        low, high = np.quantile(curves, [0.1, 0.9], axis=0)
        at = (np.arange(experts[trace]) + 1) / experts[trace]
        _band(axis, (at, np.mean(curves, axis=0), low, high), colours[trace], trace)
    axis.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle=":")
    axis.set(
        title="reuse distance",
        xlabel="distance below this share of the experts",
        ylabel="selections",
        ylim=(0, 1),
    )


def _unions(kind: str, what: str) -> Callable[[Any, pl.DataFrame, Experts, Colours], None]:
    def panel(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
        for trace, rows in by_trace(table, kind=kind):
            relative = rows.with_columns(
                pl.col("value") / experts[trace], pl.col("chance") / experts[trace]
            )
            _band(axis, over_sites(relative, "batch"), colours[trace], trace)
            at, chance, _, _ = over_sites(relative, "batch", "chance")
            axis.plot(at, chance, color=colours[trace], linewidth=0.9, linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set(
            title=f"unions: {what} (: even draws)",
            xlabel="tokens",
            ylabel="share of the experts needed",
            ylim=(0, 1),
        )

    return panel


def _cosine(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
    for trace, rows in by_trace(table):
        for distance, style in ((1, "-"), (2, "--"), (3, ":")):
            part = rows.filter(distance=distance)
            axis.plot(
                part["site"],
                part["value"],
                color=colours[trace],
                linestyle=style,
                linewidth=1.4,
                label=trace if distance == 1 else None,
            )
    _printed(axis, "cos of gate inputs, l and l+1")
    axis.set(
        title="cosine of gate inputs, 1 (-), 2 (--), 3 (:) sites on", xlabel="site", ylim=(None, 1)
    )


def _lookahead(
    measure: str, title: str, printed: str
) -> Callable[[Any, pl.DataFrame, Experts, Colours], None]:
    def panel(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
        for trace, rows in by_trace(table, measure=measure):
            for (norm, ahead), part in rows.group_by("norm", "ahead", maintain_order=True):
                axis.plot(
                    part["site"],
                    part["value"],
                    color=colours[trace],
                    linestyle=STYLES.get(str(norm), "-"),
                    linewidth=1.8 - 0.5 * (int(str(ahead)) - 1),
                    alpha=1.0 / int(str(ahead)) ** 0.7,
                    label=trace if (norm, ahead) == ("raw", 1) else None,
                )
            axis.axhline(rows["chance"].mean(), color=colours[trace], linewidth=0.9, linestyle=":")
        _printed(axis, printed)
        axis.set(title=title, xlabel="site (fainter: 2, 3 ahead; -- renormed)", ylim=(0, 1))

    return panel


def _prior(key: str) -> Callable[[Any, pl.DataFrame, Experts, Colours], None]:
    def panel(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
        for trace, rows in by_trace(table, key=key):
            label = trace + (" (in sample)" if rows["evaluated"][0] == "in sample" else "")
            for known, style in ((0, ":"), (1, "--"), (2, "-")):
                part = (
                    rows.filter(known=known).group_by("top").agg(pl.col("value").mean()).sort("top")
                )
                axis.plot(
                    part["top"] / experts[trace],
                    part["value"],
                    color=colours[trace],
                    linestyle=style,
                    linewidth=1.4,
                    label=label if known == 2 else None,
                )
        axis.plot([0, 1], [0, 1], color="grey", linewidth=0.7)
        axis.set(
            title=f"by {key} of 0 (:), 1 (--), 2 (-) sites before",
            xlabel="likeliest experts, share",
            ylabel="selections among them",
            ylim=(0, 1),
        )

    return panel


def _covered(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
    for trace, rows in by_trace(table):
        _band(axis, over_sites(rows, "length"), colours[trace], trace)
        at, control, _, _ = over_sites(rows, "length", "control")
        axis.plot(at, control, color=colours[trace], linewidth=1.0, linestyle=":")
    axis.axhline(0.2, color="grey", linewidth=0.7)
    axis.set_xscale("log", base=2)
    axis.set(
        title="tokens on the 20 % commonest paths (: shuffled)",
        xlabel="sites in a path",
        ylim=(0, 1),
    )


def _per_path(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
    for trace, rows in by_trace(table):
        _band(axis, over_sites(rows, "length", "tokens_per_path"), colours[trace], trace)
        control = rows.with_columns(each=pl.col("tokens") / pl.col("control_paths"))
        at, each, _, _ = over_sites(control, "length", "each")
        axis.plot(at, each, color=colours[trace], linewidth=1.0, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set(title="tokens a path (: shuffled)", xlabel="sites in a path")


def _by_site(
    title: str,
    column: str = "value",
    bottom: float | None = 0,
    printed: str | None = None,
    **where: object,
) -> Callable[[Any, pl.DataFrame, Experts, Colours], None]:
    def panel(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
        for trace, rows in by_trace(table, **where):
            axis.plot(
                rows["site"],
                rows[column],
                color=colours[trace],
                label=trace,
                marker="o",
                markersize=2.5,
            )
        if printed is not None:
            _printed(axis, printed)
        axis.set(title=title, xlabel="site", ylim=(bottom, 1))

    return panel


def _least(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
    for trace, rows in by_trace(table):
        _band(axis, over_sites(rows, "experts"), colours[trace], trace)
    axis.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle=":")
    published = PUBLISHED["selections on the least popular 30 %"]
    axis.plot(
        [0.3],
        [float(published.value)],
        color="black",
        marker="x",
        linestyle="none",
        label=published.source,
    )
    axis.set(
        title="selections on a prompt's least popular experts",
        xlabel="share of its active experts",
        ylabel="share of its selections",
        ylim=(0, 1),
    )


def _scores(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
    names = ["high", "low", "skip"]
    traces = [(trace, rows) for trace, rows in by_trace(table)]
    width = 0.8 / (len(traces) + 1)
    for place, (trace, rows) in enumerate(traces):
        means = [rows.filter(pl.col("class") == name)["value"].mean() for name in names]
        axis.bar(np.arange(3) + place * width, means, width, color=colours[trace], label=trace)
    printed = [
        PUBLISHED[name] for name in ("score <= T1 = 0.6", "T1 < score <= T2 = 0.9", "score > T2")
    ]
    axis.bar(
        np.arange(3) + len(traces) * width,
        [float(item.value) for item in printed],
        width,
        color="lightgrey",
        edgecolor="black",
        label=f"{printed[0].source}; Mixtral-8x7B",
    )
    axis.set_xticks(
        np.arange(3) + len(traces) * width / 2, ["<= 0.6: high", "<= 0.9: low", "> 0.9: skip"]
    )
    axis.set(title="selections by HOBBIT's score", ylim=(0, 1))


def _concentration(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
    for trace, rows in by_trace(table):
        _band(axis, over_sites(rows, "sparsity"), colours[trace], trace)
        at, gaussian, _, _ = over_sites(rows, "sparsity", "gaussian")
        axis.plot(at, gaussian, color="black", linewidth=1.0, linestyle=":", label="Gaussian")
    axis.set(
        title="thresholds of |x W_up|",
        xlabel="share of channels below",
        ylabel="over the largest",
        ylim=(0, 1.05),
    )


def _active(axis: Any, table: pl.DataFrame, experts: Experts, colours: Colours) -> None:
    for trace, rows in by_trace(table):
        means = (
            rows.group_by("sparsity").agg(pl.col("active", "low", "high").mean()).sort("sparsity")
        )
        points = tuple(means[name].to_numpy() for name in ("sparsity", "active", "low", "high"))
        _band(axis, (points[0], points[1], points[2], points[3]), colours[trace], trace)
        axis.plot(points[0], 1 - points[0], color="black", linewidth=1.0, linestyle=":")
    axis.set(
        title="active channels (band: 5 to 95 % of selections)",
        xlabel="sparsity fitted",
        ylim=(0, 1),
    )


FIGURES: Mapping[
    str, tuple[tuple[Callable[[Any, pl.DataFrame, Experts, Colours], None], ...], tuple[str, ...]]
] = {
    "locality": (
        (_popularity, _reuse, _distance),
        ("popularity", "reuse_by_lag", "reuse_distance"),
    ),
    "unions": (
        (_unions("sequences", "sequences at once"), _unions("window", "consecutive tokens")),
        ("unions", "unions"),
    ),
    "lookahead": (
        (
            _cosine,
            _lookahead("top1", "best forecast is selected", "p1(+1)"),
            _lookahead("topk", "top-k recall", "recall@k(+1), raw"),
        ),
        ("input_cosine", "lookahead_recall", "lookahead_recall"),
    ),
    "prior_coverage": ((_prior("first"), _prior("set")), ("prior_coverage", "prior_coverage")),
    "paths": ((_covered, _per_path), ("paths", "paths")),
    "routers": (
        (
            _by_site("entropy of the router, share of log2 E"),
            _by_site("largest probability", "top"),
        ),
        ("router_entropy", "router_entropy"),
    ),
    "least_popular": ((_least,), ("least_popular",)),
    "weights": (
        (
            _by_site(WEIGHTED, bottom=None, printed=WEIGHTED, kind="weighted"),
            _by_site("corr of shares of both", bottom=None, kind="shares"),
            _scores,
        ),
        ("weight_norms", "weight_norms", "score_shares"),
    ),
    "activations": ((_concentration, _active), ("up_concentration", "up_concentration")),
}
"""By file name: the panels of the figure, and the table that each panel needs."""
