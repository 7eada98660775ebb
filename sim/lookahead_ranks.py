"""Where a need stood in the lookahead scores of the sites before it, from the trace that a run replayed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from sim.run_log import RunLog
from sim.trace import Trace


@dataclass(frozen=True)
class Forecast:
    """What the site ``ahead`` sites before a need's forecast of it, row by row of the step.

    ``rank``: the best that any row's scores gave the expert, 1 for the highest; ``rows``: how many rows have scores;
    ``chosen_by``: of those, whose the site's own rule selects it. ``experts``: all that are selected.
    """

    ahead: int
    rank: int
    rows: int
    chosen_by: int
    experts: tuple[int, ...]


def rows_of_step(run: RunLog, trace: Trace, step: int) -> list[int]:
    """The token-rows of a step: of each of its sequences, what follows its last position in an earlier step."""
    last = run.tokens.filter(pl.col("step") <= step).group_by("sequence").agg(
        pl.col("position").filter(pl.col("step") == step).max().alias("to"),
        pl.col("position").filter(pl.col("step") < step).max().alias("after"),
    )  # fmt: skip
    rows: list[int] = []
    for sequence, to, after in last.drop_nulls("to").select("sequence", "to", "after").iter_rows():
        mine = (trace.sequence == sequence) & (trace.position <= to) & trace.valid
        if after is not None:
            mine &= trace.position > after
        rows += np.flatnonzero(mine).tolist()
    return sorted(rows)


def forecasts(run: RunLog, trace: Trace, step: int, site: int, expert: int) -> list[Forecast]:
    """Of each distance that the trace has scores for, nearest first; [] where it has none."""
    header, norm = trace.header, run.choice("workload", "lookahead_norm", "raw")
    scores = trace.lookahead.get(norm)
    rule = header.sites[site].rule
    if scores is None or rule is None:
        return []
    rows = rows_of_step(run, trace, step)
    first = header.encoder_sites if site >= header.encoder_sites else 0
    found = []
    for ahead in range(1, min(scores.shape[2], site - first) + 1):
        here = scores[rows, site - ahead, ahead - 1]
        here = here[np.isfinite(here).all(axis=1)]
        if not len(here):
            continue
        selected = rule.route(here, header.model.top_k)[0]
        rank = 1 + (here > here[:, expert : expert + 1]).sum(axis=1)
        found.append(Forecast(ahead, int(rank.min()), len(here), int((selected == expert).any(axis=1).sum()),
                              tuple(sorted(set(selected[selected >= 0].tolist())))))  # fmt: skip
    return found
