"""Forecasts of prompts: which experts the rows of a prompt are forecast to choose together.

A trace keeps the lookahead scores of decoded rows one by one. Of a prompt it may keep cells instead
(contracts C98 to C100), in a file for each norm: how many rows are forecast to choose an
expert. Cells are exact for the union of a whole prompt. `deal` makes rows with the same unions, but
*which* row is forecast to choose which expert is dealt, not recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.traces.header import Header, forecasts_file
from sim.traces.routing import RoutingRule, shares_above
from sim.traces.rows import DECODE, Trace
from sim.values.fields import TraceError

FORECAST_DTYPES: dict[str, Any] = {
    "step": pl.Int32,
    "sequence": pl.Int32,
    "site": pl.Int16,
    "ahead": pl.Int16,
    "expert": pl.Int16,
    "tokens": pl.Int32,
    "weight": pl.Float32,
    "score": pl.Float32,
}
"""The columns of a table of cells.

``tokens`` is how many rows are forecast at ``site`` to choose ``expert`` at ``site + ahead``;
expert -1 stands for the null experts. ``weight`` is the sum of these rows' gate weights for it, 0
or more. ``score`` is the smallest of their scores for it (HOBBIT eq. 2), 0 to 1.
"""
PLACE = ("step", "sequence", "site", "ahead")

Array = NDArray[Any]


@dataclass(frozen=True)
class DealtForecasts:
    """The forecasts of a prompt's rows, all [R, S, J, K]: by row, site, distance and rank.

    Where nothing is forecast, ``experts`` is -1 and ``weights`` and ``scores`` are 0.
    """

    experts: Array
    weights: Array
    scores: Array


def forecast_cells(
    rules: Sequence[RoutingRule | None],
    top_k: int,
    step: Array,
    sequence: Array,
    scores: NDArray[np.float32],
) -> pl.DataFrame:
    """The cells of prompts, from the lookahead ``scores`` [R, S, J, E] of all their rows.

    ``step`` and ``sequence`` are those of each row [R]. The target site's rule in ``rules`` selects
    from a row's scores, which are NaN where there are none. At a site and distance where one row of
    a prompt has no scores, or the target has no rule, that prompt gets no cells.
    """
    rows = prompt_rows(step, sequence, np.arange(len(step)))
    order = np.concatenate([np.zeros(0, np.int64), *rows.values()])
    group = np.repeat(np.arange(len(rows)), [len(part) for part in rows.values()])
    parts = [
        _cells_at(rules[site + ahead], top_k, group, scores[order, site, ahead - 1], site, ahead)
        for site in range(scores.shape[1])
        for ahead in range(1, scores.shape[2] + 1)
        if site + ahead < len(rules)
    ]
    cells = pl.concat([part for part in parts if part is not None] or [pl.DataFrame(schema=_CELLS)])
    pairs = np.array(list(rows), np.int64).reshape(-1, 2)[cells["group"].to_numpy()]
    named = cells.with_columns(step=pl.Series(pairs[:, 0]), sequence=pl.Series(pairs[:, 1]))
    last = pl.when(pl.col("expert") < 0).then(1 << 16).otherwise(pl.col("expert"))
    return named.sort(*PLACE, last).select(
        pl.col(name).cast(dtype) for name, dtype in FORECAST_DTYPES.items()
    )


_CELLS: dict[str, Any] = {
    "group": pl.Int64,
    "site": pl.Int64,
    "ahead": pl.Int64,
    "expert": pl.Int64,
    "tokens": pl.Int64,
    "weight": pl.Float64,
    "score": pl.Float64,
}


def _cells_at(
    rule: RoutingRule | None,
    top_k: int,
    group: Array,
    scores: NDArray[np.float32],
    site: int,
    ahead: int,
) -> pl.DataFrame | None:
    """The cells of one ``site`` and distance ``ahead``; None where nothing is forecast there.

    ``group`` is the number of each row's prompt, ascending.
    """
    known = np.isfinite(scores).all(-1)
    known &= ~np.isin(group, group[~known])
    if rule is None or not known.any():
        return None
    experts, weights = rule.route(scores[known], top_k)
    wide = experts.shape[-1] * [group[known]]
    num = scores.shape[-1] + 1
    cell = (
        np.stack(wide, -1) * num + (experts.astype(np.int64) + num) % num
    )  # expert -1 becomes the last cell of its prompt
    found, inverse, tokens = np.unique(cell, return_inverse=True, return_counts=True)
    inverse = inverse.ravel()
    chosen = np.where(found % num == num - 1, -1, found % num)
    lowest = np.full(len(found), np.inf)
    np.minimum.at(lowest, inverse, shares_above(weights).ravel())
    sums = np.bincount(inverse, weights.ravel().astype(np.float64), len(found))
    return pl.DataFrame(
        {
            "group": found // num,
            "site": np.full(len(found), site),
            "ahead": np.full(len(found), ahead),
            "expert": chosen,
            "tokens": tokens,
            "weight": np.where(chosen < 0, 0.0, sums),
            "score": np.where(chosen < 0, 0.0, np.minimum(lowest, 1.0)),
        },
        schema=_CELLS,
    )


def read_forecasts(root: Path, norm: str, header: Header) -> pl.DataFrame:
    """Read the cells of one norm from a file that the header lists.

    Raise `TraceError` where the file is no such table.
    """
    name, model = forecasts_file(norm), header.model
    depth = 0 if header.lookahead is None else header.lookahead.depth
    most = sum(item.prompt_tokens for item in header.sequences) * model.sites * depth * model.top_k
    try:
        if (
            found := dict(pl.scan_parquet(root / name, glob=False).collect_schema())
        ) != FORECAST_DTYPES:
            raise TraceError(name, "columns", str(found), f"must be {FORECAST_DTYPES}")
        # A parquet file of a few bytes can claim any number of rows.
        if (
            rows := pl.scan_parquet(root / name, glob=False).select(pl.len()).collect().item()
        ) > most:
            raise TraceError(
                name, "rows", rows, f"must be at most {most}, the forecasts of all prompts"
            )
        return pl.read_parquet(root / name, glob=False)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise TraceError(
            name, "content", str(error), "must be a parquet file that polars reads"
        ) from None


def check_forecasts(trace: Trace) -> None:
    """Raise `TraceError` unless the cells of every norm are those of this trace's prompts."""
    for norm, frame in trace.prompt_forecasts.items():
        _Check(trace, norm, frame).run()


class _Check:
    """The rules of one norm's cells."""

    def __init__(self, trace: Trace, norm: str, frame: pl.DataFrame) -> None:
        self._trace, self._norm, self._file = trace, norm, forecasts_file(norm)
        ahead = trace.header.lookahead
        if ahead is None or norm not in ahead.norms:
            raise TraceError(self._file, "norm", norm, "must be one of the trace's lookahead")
        if dict(frame.schema) != FORECAST_DTYPES:
            raise TraceError(
                self._file, "columns", str(dict(frame.schema)), f"must be {FORECAST_DTYPES}"
            )
        if any(frame[name].null_count() for name in FORECAST_DTYPES):
            raise TraceError(self._file, "content", "null", "must hold no null")
        self._depth = ahead.depth
        self._columns = {name: frame[name].to_numpy() for name in FORECAST_DTYPES}

    def run(self) -> None:
        self._check_values()
        self._check_order()
        self._check_sums()

    def _refuse(self, name: str, wrong: Array, rule: str) -> None:
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise TraceError(
                self._file, f"{name}[{place}]", self._columns[name][place].item(), rule
            )

    def _check_values(self) -> None:
        header, columns = self._trace.header, self._columns
        model, end = header.model, header.encoder_sites or header.model.sites
        site, ahead, expert = (
            columns[name].astype(np.int64) for name in ("site", "ahead", "expert")
        )
        self._refuse("ahead", (ahead < 1) | (ahead > self._depth), f"must lie in 1..{self._depth}")
        rule = f"must lie in 0..{end - 1}, the sites that prompts visit, with the site ahead of it"
        self._refuse("site", (site < 0) | (site + ahead >= end), rule)
        self._refuse(
            "expert",
            (expert < -1) | (expert >= model.experts),
            f"must lie in -1..{model.experts - 1}",
        )
        self._refuse("tokens", columns["tokens"] < 1, "must be at least 1")
        for name, most in (("weight", np.inf), ("score", 1.0)):
            values = columns[name]
            wrong = (
                ~np.isfinite(values)
                | (values < 0)
                | (values > most)
                | ((expert < 0) & (values != 0))
            )
            self._refuse(
                name,
                wrong,
                f"must be 0 or more{'' if most > 1 else ' and at most 1'}, and 0 of expert -1",
            )

    def _check_order(self) -> None:
        columns = self._columns
        last = np.where(columns["expert"] < 0, self._trace.header.model.experts, columns["expert"])
        back = np.zeros(len(last), np.bool_)
        tied = np.ones(max(len(last) - 1, 0), np.bool_)
        for values in (*(columns[name] for name in PLACE), last):
            step = np.diff(values.astype(np.int64))
            back[1:] |= tied & (step < 0)
            tied &= step == 0
        back[1:] |= tied
        self._refuse(
            "step",
            back,
            "must stand in the order of step, sequence, site, ahead and expert, each once",
        )

    def _check_sums(self) -> None:
        """Refuse cells that no rows can have.

        Every row of a prompt is forecast to choose ``top_k`` experts at each place, each once.
        """
        trace, columns, top_k = self._trace, self._columns, self._trace.header.model.top_k
        rows = prompt_rows(
            trace.step, trace.sequence, np.flatnonzero(trace.valid & (trace.phase != DECODE))
        )
        pairs = zip(columns["step"].tolist(), columns["sequence"].tolist(), strict=True)
        count = np.array([len(rows.get(pair, ())) for pair in pairs], np.int64)
        self._refuse(
            "step", count == 0, "must be a step of a prompt of this sequence, with its sequence"
        )
        tokens, expert = columns["tokens"].astype(np.int64), columns["expert"]
        starts = _starts(columns)
        totals = np.add.reduceat(tokens, starts) if len(starts) else tokens
        wrong = np.zeros(len(tokens), np.bool_)
        wrong[starts] = totals != top_k * count[starts]
        rule = f"must sum to {top_k} for each of the prompt's tokens in the step"
        self._refuse("tokens", wrong, rule)
        self._refuse(
            "tokens",
            (expert >= 0) & (tokens > count),
            "must be at most the prompt's tokens in the step",
        )
        if (scores := trace.lookahead.get(self._norm)) is not None:
            told = [
                rows[pair]
                for pair in dict.fromkeys(
                    zip(*(columns[n].tolist() for n in PLACE[:2]), strict=True)
                )
            ]
            known = bool(told) and bool((~np.isnan(scores[np.concatenate(told)])).any())
            if known:
                rule = "must be absent where rows of prompts have lookahead of their own"
                raise TraceError(self._file, "step", "recorded twice", rule)


def prompt_rows(step: Array, sequence: Array, rows: Array) -> dict[tuple[int, int], Array]:
    """``rows`` grouped by (step, sequence), ascending; both arrays are indexed by row."""
    order = rows[np.lexsort((sequence[rows], step[rows]))]
    if not len(order):
        return {}
    cuts = np.flatnonzero((np.diff(step[order]) != 0) | (np.diff(sequence[order]) != 0)) + 1
    return {(int(step[part[0]]), int(sequence[part[0]])): part for part in np.split(order, cuts)}


def deal(
    frame: pl.DataFrame, sites: int, depth: int, top_k: int
) -> Mapping[tuple[int, int], DealtForecasts]:
    """Rows that have the cells of ``frame`` up to ``depth`` sites ahead, by (step, sequence).

    An expert's tokens are consecutive rows, going on at the first row after the last, so that no
    row names an expert twice. Each of these rows has the expert's mean weight and smallest score.
    """
    kept = frame.filter(pl.col("ahead") <= depth)
    if kept.is_empty():
        return {}
    columns = {name: kept[name].to_numpy() for name in FORECAST_DTYPES}
    starts = _starts(columns)
    mean = (columns["weight"] / columns["tokens"]).astype(np.float32)
    step, sequence = columns["step"][starts], columns["sequence"][starts]
    begins = np.flatnonzero((np.diff(step, prepend=-1) != 0) | (np.diff(sequence, prepend=-1) != 0))
    cuts = [*starts[begins].tolist(), len(mean)]
    dealt: dict[tuple[int, int], DealtForecasts] = {}
    for places, cells in zip(np.split(starts, begins[1:]), pairwise(cuts), strict=True):
        # All places of a prompt have the same number of tokens: top_k for each of its rows.
        cell = np.repeat(np.arange(*cells), columns["tokens"][slice(*cells)])
        num_rows = len(cell) // (len(places) * top_k)
        shape = (num_rows, sites, depth, top_k)
        experts = np.full(shape, -1, np.int16)
        rows = DealtForecasts(experts, np.zeros(shape, np.float32), np.zeros(shape, np.float64))
        dealt[int(columns["step"][cells[0]]), int(columns["sequence"][cells[0]])] = rows
        at = np.s_[:, columns["site"][places], columns["ahead"][places] - 1]
        for whole, values in (
            (rows.experts, columns["expert"]),
            (rows.weights, mean),
            (rows.scores, columns["score"]),
        ):
            whole[at] = values[cell].reshape(len(places), top_k, num_rows).transpose(2, 0, 1)
    return dealt


def _starts(columns: Mapping[str, Array]) -> Array:
    """The indices at which a new (step, sequence, site, ahead) begins."""
    begins = np.ones(len(columns["step"]), np.bool_)
    begins[1:] = np.logical_or.reduce([np.diff(columns[name]) != 0 for name in PLACE])
    return np.flatnonzero(begins)
