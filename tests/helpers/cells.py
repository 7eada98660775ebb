"""Traces that keep forecasts of prompts as cells, made from traces that keep them row by row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.traces.forecasts import forecast_cells
from sim.traces.trace import DECODE, Trace


def prompts_of(trace: Trace) -> np.ndarray:
    return np.flatnonzero(trace.valid & (trace.phase != DECODE))


def with_random_scores(trace: Trace, seed: int = 1) -> Trace:
    """The trace with random lookahead scores in every real row of its prompts.

    The model must have no encoder.
    """
    rng, rows = np.random.default_rng(seed), prompts_of(trace)
    lookahead = {norm: scores.copy() for norm, scores in trace.lookahead.items()}
    for scores in lookahead.values():
        sites = scores.shape[1]
        for ahead in range(1, scores.shape[2] + 1):
            shape = (len(rows), sites - ahead, scores.shape[3])
            scores[rows, : sites - ahead, ahead - 1] = rng.integers(-99, 99, shape) / 16
    return replace(trace, lookahead=lookahead)


def with_cells(trace: Trace) -> Trace:
    """The trace with the scores of its prompts replaced by cells."""
    rows, header = prompts_of(trace), trace.header
    rules = [site.rule for site in header.sites]
    frames, lookahead = {}, {}
    for norm, scores in trace.lookahead.items():
        frames[norm] = forecast_cells(
            rules, header.model.top_k, trace.step[rows], trace.sequence[rows], scores[rows]
        )
        lookahead[norm] = scores.copy()
        lookahead[norm][rows] = np.nan
    return replace(trace, lookahead=lookahead, prompt_forecasts=frames)
