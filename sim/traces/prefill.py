"""Prompts kept as counts: how many of their tokens chose each expert, with what weight in all.

Where the header says ``prefill: counts``, ``routes.parquet`` has decoded rows only.
``prefill_counts.parquet`` has a row for each step, sequence, site and expert that at least one
token of a prompt chose. Expert -1 counts choices that were dropped or null.

Read back, a prompt has as many rows as tokens, dealt so that they have these counts. So unions,
tokens by expert and their weights are those of the recording. *Which* row chose which expert is not
recorded: nothing may be computed from single rows of such a prompt, from its rows at several sites,
or from part of it.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.traces.header import COUNTS_FILE, Header
from sim.traces.rows import DECODE, Float32s, Trace
from sim.values.fields import HEADER_FILE, TraceError

COUNT_DTYPES: dict[str, Any] = {
    "step": pl.Int32,
    "sequence": pl.Int32,
    "phase": pl.UInt8,
    "position": pl.Int32,
    "site": pl.Int16,
    "expert": pl.Int16,
    "tokens": pl.Int32,
    "weight": pl.Float32,
}
"""The columns of ``prefill_counts.parquet``.

``position`` is that of the prompt's first token in the step. ``tokens`` is how many of its tokens
in the step chose the expert, ``weight`` the sum of their gate weights for it.
"""
GROUP = ("step", "sequence", "phase", "position")
PER_ROW = ("step", "phase", "sequence", "position", "token", "valid", "ids", "weights")

Array = NDArray[Any]


def decoded_part(trace: Trace) -> Trace:
    """``trace`` with its decoded rows only: those that ``routes.parquet`` holds."""
    return _rows(trace, np.flatnonzero(trace.phase == DECODE))


def count_prompts(trace: Trace) -> pl.DataFrame:
    """The table ``prefill_counts.parquet`` of a trace's prompts, by step, sequence, site, expert.

    Valid rows are counted. Raise `TraceError` unless the positions of a prompt's rows in a step
    count up by 1.
    """
    rows = np.flatnonzero((trace.phase != DECODE) & trace.valid)
    rows = rows[np.lexsort((trace.position[rows], trace.sequence[rows], trace.step[rows]))]
    step, sequence, position = trace.step[rows], trace.sequence[rows], trace.position[rows]
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (np.diff(step) != 0) | (np.diff(sequence) != 0)
    if (np.diff(position)[~begins[1:]] != 1).any():
        rule = "must count up by 1 inside a prompt whose tokens are counted"
        raise TraceError(
            HEADER_FILE, "prefill", "counts", rule, "keep the rows of its prompts (prefill=rows)"
        )
    first, group = rows[begins], np.cumsum(begins) - 1
    sites, experts = trace.ids.shape[1], trace.header.model.experts
    ids = trace.ids[rows].astype(np.int64)
    # Dropped choices count as the last expert, so that the others ascend without a break.
    expert = np.where(ids < 0, experts, ids)
    cell = (group[:, None, None] * sites + np.arange(sites)[:, None]) * (experts + 1) + expert
    cells, inverse, tokens = np.unique(cell, return_inverse=True, return_counts=True)
    weight = np.bincount(
        inverse.ravel(), trace.weights[rows].ravel().astype(np.float64), len(cells)
    )
    chosen = cells % (experts + 1)
    place = cells // (experts + 1)
    of_group = first[place // sites]
    columns = {name: getattr(trace, name)[of_group] for name in GROUP}
    columns |= {"site": place % sites, "expert": np.where(chosen == experts, -1, chosen)}
    columns |= {"tokens": tokens, "weight": weight}
    return pl.DataFrame(columns, schema=COUNT_DTYPES)


def deal_prompts(trace: Trace, counts: pl.DataFrame) -> Trace:
    """``trace`` with its prompts' rows, dealt from ``counts``.

    An expert's tokens are consecutive rows, going on at the first row after the last, so that no
    row chooses an expert twice. Raise `TraceError` where the counts do not fit the trace.
    """
    if (trace.phase != DECODE).any():
        raise TraceError(HEADER_FILE, "prefill", "counts", "must have decoded rows only beside it")
    if counts.is_empty():
        nothing = np.zeros(0, np.int64)
        _check_totals(trace.header, nothing, nothing)
        return trace
    columns = {name: counts[name].to_numpy() for name in COUNT_DTYPES}
    starts = _checked_groups(trace.header, columns)
    top_k, sites = trace.header.model.top_k, trace.header.model.sites
    parts: dict[str, list[Array]] = {name: [] for name in PER_ROW}
    for begin, end in zip(starts, [*starts[1:], counts.height], strict=True):
        tokens = columns["tokens"][begin:end]
        visited = np.unique(columns["site"][begin:end])
        num_rows = int(tokens.sum()) // (top_k * len(visited))
        mean = (columns["weight"][begin:end] / tokens).astype(np.float32)

        def dealt(
            values: Array,
            tokens: Array = tokens,
            shape: tuple[int, ...] = (len(visited), top_k, num_rows),
        ) -> Array:
            return np.repeat(values, tokens).reshape(shape).transpose(2, 0, 1)

        ids = np.full((num_rows, sites, top_k), -1, np.int16)
        weights = np.zeros(ids.shape, np.float32)
        ids[:, visited], weights[:, visited] = dealt(columns["expert"][begin:end]), dealt(mean)
        for name in ("step", "phase", "sequence"):
            parts[name].append(np.full(num_rows, columns[name][begin]))
        parts["position"].append(columns["position"][begin] + np.arange(num_rows, dtype=np.int32))
        parts["token"].append(np.full(num_rows, -1, np.int32))
        parts["valid"].append(np.ones(num_rows, np.bool_))
        parts["ids"].append(ids)
        parts["weights"].append(weights)
    return _joined(trace, parts)


def _checked_groups(header: Header, columns: dict[str, Array]) -> list[int]:
    """The indices at which a new group begins: what one step has of one prompt.

    ``columns`` have a row or more. Counts that no rows can have are refused here, before any row is
    made.
    """
    model, tokens, expert, site = (
        header.model,
        columns["tokens"],
        columns["expert"],
        columns["site"],
    )

    def refuse(name: str, wrong: Array, rule: str) -> None:
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise TraceError(COUNTS_FILE, f"{name}[{place}]", columns[name][place].item(), rule)

    known = np.array([item.sequence for item in header.sequences], np.int64)
    refuse("sequence", ~np.isin(columns["sequence"], known), f"must be in {HEADER_FILE}")
    refuse("phase", columns["phase"] == DECODE, "must not be 1: decoded rows are no prompt")
    refuse("position", columns["position"] < 0, "must be >= 0")
    refuse("site", (site < 0) | (site >= model.sites), f"must lie in 0..{model.sites - 1}")
    refuse(
        "expert", (expert < -1) | (expert >= model.experts), f"must lie in -1..{model.experts - 1}"
    )
    refuse("tokens", tokens < 1, "must be at least 1")
    weight = columns["weight"]
    refuse(
        "weight",
        ~np.isfinite(weight) | (weight < 0) | ((expert < 0) & (weight != 0)),
        "must be >= 0, of -1 be 0",
    )
    last = np.where(expert < 0, model.experts, expert)
    order = (columns["step"], columns["sequence"], site, last)
    back = np.zeros(len(tokens), np.bool_)
    tied = np.ones(len(tokens) - 1, np.bool_)
    for values in order:
        step = np.diff(values.astype(np.int64))
        back[1:] |= tied & (step < 0)
        tied &= step == 0
    back[1:] |= tied
    refuse("site", back, "must stand in the order of step, sequence, site and expert, each once")
    begins = np.ones(len(tokens), np.bool_)
    begins[1:] = np.logical_or.reduce([np.diff(columns[name]) != 0 for name in GROUP])
    starts = np.flatnonzero(begins)
    new_site = begins.copy()
    new_site[1:] |= np.diff(site) != 0
    cells = np.flatnonzero(new_site)
    totals = np.add.reduceat(tokens.astype(np.int64), cells)
    group = np.cumsum(begins) - 1
    rows_of = totals // model.top_k
    whole = rows_of[np.searchsorted(cells, starts)]
    wrong = np.zeros(len(tokens), np.bool_)
    wrong[cells] = (totals % model.top_k != 0) | (rows_of != whole[group[cells]])
    refuse(
        "tokens",
        wrong,
        f"must sum to {model.top_k} choices of every token, at each site of the step",
    )
    refuse(
        "tokens",
        (expert >= 0) & (tokens > whole[group]),
        "must be at most the step's tokens",
    )
    _check_totals(header, columns["sequence"][starts], whole)
    return [int(start) for start in starts]


def _check_totals(header: Header, sequence: Array, rows: Array) -> None:
    for item in header.sequences:
        found = int(rows[sequence == item.sequence].sum())
        if found != item.prompt_tokens:
            rule = f"must be {found}, the tokens of {COUNTS_FILE}"
            raise TraceError(
                HEADER_FILE, f"prompt_tokens of sequence {item.sequence}", item.prompt_tokens, rule
            )


def _joined(trace: Trace, parts: dict[str, list[Array]]) -> Trace:
    """Decoded and dealt rows in order of step; other columns than `PER_ROW` are NaN in prompts."""
    columns: dict[str, Any] = {}
    for name in PER_ROW:
        own = getattr(trace, name)
        columns[name] = np.concatenate([*parts[name], own]).astype(own.dtype)
    order = np.argsort(columns["step"], kind="stable")
    added = len(order) - len(trace.step)

    def wide(values: Float32s) -> Float32s:
        return np.concatenate([np.full((added, *values.shape[1:]), np.nan, np.float32), values])[
            order
        ]

    for name in ("logits", "expert_norms", "active_shares"):
        values = getattr(trace, name)
        columns[name] = None if values is None else wide(values)
    columns = {
        name: values[order] if name in PER_ROW else values for name, values in columns.items()
    }
    return replace(
        trace, **columns, lookahead={norm: wide(scores) for norm, scores in trace.lookahead.items()}
    )


def _rows(trace: Trace, rows: Array) -> Trace:
    columns: dict[str, Any] = {
        name: value[rows] for name, value in vars(trace).items() if isinstance(value, np.ndarray)
    }
    return replace(
        trace, **columns, lookahead={norm: scores[rows] for norm, scores in trace.lookahead.items()}
    )
