"""The ranks of a need in the lookahead scores of earlier sites, from the trace of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from sim.results.run_log import RunLog
from sim.traces.forecasts import FORECAST_DTYPES
from sim.traces.trace import DECODE, Trace


@dataclass(frozen=True)
class Forecast:
    """The forecast of a need's expert by the site ``ahead`` sites before the need's site.

    - ``rank``: the best rank that any row's scores gave the expert, 1 for the highest. None where
      the trace keeps only what a prompt's rows are forecast to choose together.
    - ``rows``: how many rows of the step are forecast.
    - ``chosen_by``: for how many of these the rule of the need's site selects the expert.
    - ``experts``: all experts that are selected for any row.
    """

    ahead: int
    rank: int | None
    rows: int
    chosen_by: int
    experts: tuple[int, ...]


def rows_of_step(run: RunLog, trace: Trace, step: int) -> list[int]:
    """The token-rows of a step, as indices into the trace.

    They are, of each of its sequences, the rows after its last position in an earlier step. Of
    drafts that were wrong the row is read, and no position is told; steps that draft are no part.
    """
    tokens, to = run.tokens, pl.col("position")
    if "drafts" in tokens.columns:
        tokens = tokens.filter(pl.col("phase") != "draft")
        wrong = 1 + pl.col("drafts") - pl.col("new_tokens")
        to += pl.when(pl.col("new_tokens") > 0).then(wrong).otherwise(0)
    last = (
        tokens.filter(pl.col("step") <= step)
        .group_by("sequence")
        .agg(
            to.filter(pl.col("step") == step).max().alias("to"),
            pl.col("position").filter(pl.col("step") < step).max().alias("after"),
        )
    )
    rows: list[int] = []
    for sequence, to, after in last.drop_nulls("to").select("sequence", "to", "after").iter_rows():
        mine = (trace.sequence == sequence) & (trace.position <= to) & trace.valid
        if after is not None:
            mine &= trace.position > after
        rows += np.flatnonzero(mine).tolist()
    return sorted(rows)


def forecasts(run: RunLog, trace: Trace, step: int, site: int, expert: int) -> list[Forecast]:
    """The forecasts of a need from each distance with scores, nearest first; [] without any."""
    header, norm = trace.header, run.choice("workload", "lookahead_norm", "raw")
    scores = trace.lookahead.get(norm)
    rule = header.sites[site].rule
    if scores is None or rule is None:
        return []
    rows = rows_of_step(run, trace, step)
    first = header.encoder_sites if site >= header.encoder_sites else 0
    found = []
    whole = _whole_prompts(run, trace, rows)
    for ahead in range(1, min(scores.shape[2], site - first) + 1):
        here = scores[rows, site - ahead, ahead - 1]
        here = here[np.isfinite(here).all(axis=1)]
        place = (pl.col("site") == site - ahead) & (pl.col("ahead") == ahead)
        cells = whole.filter(place & (pl.col("expert") >= 0))
        together = int(whole.filter(place)["tokens"].sum()) // header.model.top_k
        if not len(here) and not together:
            continue
        selected = rule.route(here, header.model.top_k)[0]
        chosen = int((selected == expert).any(axis=1).sum())
        rank = (
            1 + int((here > here[:, expert : expert + 1]).sum(axis=1).min()) if len(here) else None
        )
        found.append(
            Forecast(
                ahead,
                rank,
                len(here) + together,
                chosen + int(cells.filter(pl.col("expert") == expert)["tokens"].sum()),
                tuple(sorted({*selected[selected >= 0].tolist(), *cells["expert"].to_list()})),
            )
        )
    return found


def _whole_prompts(run: RunLog, trace: Trace, rows: Sequence[int]) -> pl.DataFrame:
    """The cells of the prompts of which ``rows`` hold all tokens.

    None, where the run read prompts in parts.
    """
    frame = trace.prompt_forecasts.get(
        run.choice("workload", "lookahead_norm", "raw"), pl.DataFrame(schema=FORECAST_DTYPES)
    )
    if run.choice("workload", "prefill_chunk") is not None:
        return frame.clear()
    own = np.array(rows, np.int64)
    own = own[trace.phase[own] != DECODE]
    prompts = np.flatnonzero(
        trace.valid & (trace.phase != DECODE) & np.isin(trace.sequence, trace.sequence[own])
    )
    whole = np.setdiff1d(trace.sequence[own], trace.sequence[np.setdiff1d(prompts, own)])
    return frame.filter(pl.col("sequence").is_in(whole.tolist()))
