"""All statistics of a trace: as tables, and summed up in a few numbers beside published values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from capture.statistics.gates import (
    input_cosine,
    lookahead_recall,
    router_entropy,
    score_shares,
    up_concentration,
    weight_norms,
)
from capture.statistics.paths import PATH_SHARE, paths, prior_coverage
from capture.statistics.published import PUBLISHED, Published
from capture.statistics.reuse import (
    gini,
    least_popular,
    popularity,
    reuse_by_lag,
    reuse_distance,
    unions,
)
from capture.statistics.sample import Sample, Unavailable, take
from sim.policies.requires import RECORDED
from sim.traces.trace import Header, Trace

Compute = Callable[[Sample], pl.DataFrame]


def computations(seed: int) -> dict[str, tuple[str | None, Compute]]:
    """By statistic: the phase of its rows (None: the phase asked for), and its function."""
    return {
        "popularity": (None, popularity),
        "reuse_by_lag": (None, reuse_by_lag),
        "reuse_distance": (None, reuse_distance),
        "unions": (None, unions),
        "input_cosine": (None, input_cosine),
        "lookahead_recall": (None, lookahead_recall),
        "prior_coverage": (None, prior_coverage),
        "paths": (None, partial(paths, seed=seed)),
        "router_entropy": (None, router_entropy),
        "least_popular": ("prompt", least_popular),
        "weight_norms": (None, weight_norms),
        "score_shares": (None, score_shares),
        "up_concentration": (None, up_concentration),
    }


STATISTICS = tuple(computations(0))
READS: Mapping[str, Collection[str]] = {
    "reuse_by_lag": ("rows", "sequences"),
    "reuse_distance": ("rows", "sequences"),
    "unions": ("rows", "sequences"),
    "prior_coverage": ("rows", "order"),
    "paths": ("rows", "order"),
    "least_popular": ("sequences",),
    "weight_norms": ("rows", "weights"),
    "score_shares": ("rows", "weights"),
}
"""What a statistic reads that a recording may have left out, in the words of `Header.lacks`."""


@dataclass(frozen=True)
class Report:
    """The statistics of one trace.

    ``tables`` are by statistic; ``missing`` says why the others are not there. ``experts`` counts
    a site's experts that a row can select, ``tokens`` the rows.
    """

    name: str
    experts: int
    tokens: int
    tables: Mapping[str, pl.DataFrame]
    missing: Mapping[str, str]


@dataclass(frozen=True)
class Headline:
    """One number of a statistic, a mean over sites.

    ``chance`` is the value for evenly drawn experts, or for a Gaussian.
    """

    statistic: str
    measure: str
    value: float
    chance: float | None = None

    @property
    def published(self) -> Published | None:
        return PUBLISHED.get(self.measure)


def report(
    trace: Trace,
    directory: Path | None = None,
    *,
    phase: str = "decode",
    exclude: Collection[str] = (),
    only: Sequence[str] = STATISTICS,
    seed: int = 0,
    before: Callable[[str], None] = lambda name: None,
) -> Report:
    """The statistics named ``only``, of the trace's rows of a phase.

    Sequences with a flag of ``exclude`` are left out. ``before`` is called with each statistic's
    name, for a progress bar. A statistic that cannot be computed is in ``missing``, with the
    reason. Raise `Unavailable` if there are no such rows at all.
    """
    sample = take(trace, phase, exclude, directory)
    tables, missing = {}, {}
    for name, (own_phase, compute) in computations(seed).items():
        if name not in only:
            continue
        before(name)
        try:
            check_recorded(name, trace.header)
            own = (
                sample if own_phase in (None, phase) else take(trace, own_phase, exclude, directory)
            )
            tables[name] = compute(own)
        except Unavailable as reason:
            missing[name] = str(reason)
    return Report(trace.header.name, sample.num_experts, len(sample.ids), tables, missing)


def check_recorded(statistic: str, header: Header) -> None:
    """Raise `Unavailable` where the recording left out what the statistic reads (contract C92)."""
    told = {"weights": "gate weights", **RECORDED}
    for word in READS.get(statistic, ()):
        if word in header.lacks:
            raise Unavailable(f"the recording does not tell {told[word]}")


def headlines(of: Report) -> list[Headline]:
    """A few numbers of each statistic, in the order of `STATISTICS`."""
    rows = []
    for name, table in of.tables.items():
        for measure, value, chance in HEADLINES[name](table, of.experts):
            # None is the mean of no rows, such as cosines of sites of which no two are neighbours.
            if value is not None:
                rows.append(
                    Headline(name, measure, float(value), None if chance is None else float(chance))
                )
    return rows


Numbers = Iterator[tuple[str, Any, Any]]


def _mean(table: pl.DataFrame, column: str = "value", **where: object) -> Any:
    """Mean of a column over the rows with these values in these columns; None without rows."""
    return table.filter(**where)[column].mean() if where else table[column].mean()


def _popularity(table: pl.DataFrame, experts: int) -> Numbers:
    shares = [part["share"].to_numpy() for part in table.partition_by("site")]
    yield (
        "most popular expert over the mean",
        sum(share.max() * experts for share in shares) / len(shares),
        1.0,
    )
    yield "Gini of popularity", sum(map(gini, shares)) / len(shares), 0.0


def _reuse(table: pl.DataFrame, experts: int) -> Numbers:
    for lag in (1, 8, 64):
        rows = table.filter(lag=lag)
        if len(rows):
            yield f"experts reused at lag {lag}", rows["value"].mean(), rows["chance"].mean()
    if len(table):
        yield (
            "experts reused, by popularity alone",
            table.unique("site", keep="first", maintain_order=True)["popularity_alone"].mean(),
            None,
        )


def _distance(table: pl.DataFrame, experts: int) -> Numbers:
    total = table.group_by("site").agg(pl.col("selections").sum().alias("all"))
    for share in (0.25, 0.5):
        near = (
            table.filter(pl.col("distance") < share * experts)
            .group_by("site")
            .agg(pl.col("selections").sum())
        )
        joined = total.join(near, on="site", how="left").fill_null(0)
        value = (joined["selections"] / joined["all"]).mean()
        yield f"reuse distance below {share:.0%} of the experts", value, None


def _unions(table: pl.DataFrame, experts: int) -> Numbers:
    for kind, what in (("sequences", "sequences at once"), ("window", "consecutive tokens")):
        for batch in (4, 16):
            rows = table.filter(kind=kind, batch=batch)
            if len(rows):
                yield (
                    f"experts needed by {batch} {what}",
                    rows["value"].mean(),
                    rows["chance"].mean(),
                )


def _cosine(table: pl.DataFrame, experts: int) -> Numbers:
    yield "cos of gate inputs, l and l+1", _mean(table, distance=1), None


def _lookahead(table: pl.DataFrame, experts: int) -> Numbers:
    position = table["position"][0]
    # The position is named only where it is not the gate's own input, as in papers.
    where = "" if position == "gate_in" else f", from {position}"
    for norm in table["norm"].unique(maintain_order=True):
        best = table.filter(norm=norm)
        if norm == "raw":
            for ahead in best["ahead"].unique(maintain_order=True):
                rows = best.filter(measure="top1", ahead=ahead)
                yield f"p1(+{ahead}){where}", rows["value"].mean(), rows["chance"].mean()
        rows = best.filter(measure="topk", ahead=1)
        yield f"recall@k(+1), {norm}{where}", rows["value"].mean(), rows["chance"].mean()
        rows = best.filter(measure="quarter", ahead=1)
        if norm == "raw" and len(rows):
            yield f"recall@E/4(+1){where}", rows["value"].mean(), rows["chance"].mean()


def _prior(table: pl.DataFrame, experts: int) -> Numbers:
    best = table.filter(key="first", top=1)
    for known, layers in ((0, "no layer"), (1, "1 layer"), (2, "2 layers")):
        rows = best.filter(known=known)
        selected = (rows["value"] * rows["choices"]).mean()
        yield (
            f"likeliest expert is selected, {layers} known",
            selected,
            _mean(rows, "choices") / experts,
        )
    quarter = max(1, round(experts / 4))
    for known, layers in ((0, "no layer"), (2, "2 layers")):
        rows = table.filter(key="first", top=quarter, known=known)
        yield (
            f"selections in the likeliest quarter, {layers} known",
            rows["value"].mean(),
            quarter / experts,
        )


def _paths(table: pl.DataFrame, experts: int) -> Numbers:
    whole = table.filter(site=table["site"].min())
    whole = whole.filter(length=whole["length"].max())
    yield (
        f"{PATH_SHARE:.0%} of the whole paths cover".replace("%", " %"),
        whole["value"][0],
        whole["control"][0],
    )
    yield (
        "tokens a whole path",
        whole["tokens_per_path"][0],
        whole["tokens"][0] / whole["control_paths"][0],
    )
    short = table.filter(length=3)
    if len(short):
        yield "20 % of the paths of 3 layers cover", short["value"].mean(), short["control"].mean()


def _entropy(table: pl.DataFrame, experts: int) -> Numbers:
    yield "entropy of the router, share of log2 E", _mean(table), 1.0
    first, last = table["value"][0], table["value"][-1]
    if last:
        yield "entropy of the first layer over the last", first / last, None


def _least(table: pl.DataFrame, experts: int) -> Numbers:
    yield (
        "selections on the least popular 30 %",
        table.filter(pl.col("experts").is_close(0.3))["value"].mean(),
        0.3,
    )


def _norms(table: pl.DataFrame, experts: int) -> Numbers:
    for kind, measure in (
        ("weighted", "corr(weight, weighted output norm)"),
        ("shares", "corr(share of weight, of output norm)"),
        ("output", "corr(weight, output norm)"),
    ):
        if len(table.filter(kind=kind)):
            yield measure, _mean(table, kind=kind), None


def _scores(table: pl.DataFrame, experts: int) -> Numbers:
    for name, measure in (
        ("high", "score <= T1 = 0.6"),
        ("low", "T1 < score <= T2 = 0.9"),
        ("skip", "score > T2"),
    ):
        yield measure, _mean(table.filter(pl.col("class") == name)), None


def _up(table: pl.DataFrame, experts: int) -> Numbers:
    if (
        len(rows := table.filter(pl.col("sparsity").is_close(0.5)))
        and table["sparsity"].max() == 0.9
    ):
        yield (
            "median of |x W_up| over its 90 % quantile",
            rows["value"].mean(),
            rows["gaussian"].mean(),
        )
    for sparsity in table["sparsity"].unique(maintain_order=True):
        rows = table.filter(sparsity=sparsity)
        yield f"active channels at a sparsity of {sparsity:g}", rows["active"].mean(), 1 - sparsity


HEADLINES: Mapping[str, Callable[[pl.DataFrame, int], Numbers]] = {
    "popularity": _popularity,
    "reuse_by_lag": _reuse,
    "reuse_distance": _distance,
    "unions": _unions,
    "input_cosine": _cosine,
    "lookahead_recall": _lookahead,
    "prior_coverage": _prior,
    "paths": _paths,
    "router_entropy": _entropy,
    "least_popular": _least,
    "weight_norms": _norms,
    "score_shares": _scores,
    "up_concentration": _up,
}


def merged(reports: Mapping[str, Report]) -> dict[str, pl.DataFrame]:
    """The tables of several traces, joined into one for each statistic with a column ``trace``.

    The table ``summary`` has every headline.
    """
    tables = {}
    for name in STATISTICS:
        parts = [
            table.select(pl.lit(trace).alias("trace"), pl.all())
            for trace, report in reports.items()
            if (table := report.tables.get(name)) is not None
        ]
        if parts:
            tables[name] = pl.concat(parts, how="vertical_relaxed")
    rows = [
        {
            "trace": trace,
            "statistic": row.statistic,
            "measure": row.measure,
            "value": row.value,
            "chance": row.chance,
            "published": None if row.published is None else row.published.value,
            "source": None if row.published is None else row.published.source,
        }
        for trace, report in reports.items()
        for row in headlines(report)
    ]
    # Sorted by statistic: the first trace may lack some.
    rows.sort(key=lambda row: STATISTICS.index(str(row["statistic"])))
    text = dict.fromkeys(("trace", "statistic", "measure", "published", "source"), pl.String)
    schema = {
        name: text.get(name, pl.Float64)
        for name in ("trace", "statistic", "measure", "value", "chance", "published", "source")
    }
    return {"summary": pl.DataFrame(rows, schema=schema), **tables}
