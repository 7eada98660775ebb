"""Runs made inside a larger question: composed from words, built on traces that are read once, measured in short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import polars as pl
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from sim.build import build, load_trace
from sim.configure import configure
from sim.execute import execute
from sim.run import Run
from sim.trace import Trace


@dataclass(frozen=True)
class Trial:
    """One run's summary and configuration, and its tables of tokens and sequences. Small enough to send around."""

    summary: dict[str, Any]
    config: dict[str, Any]
    tokens: pl.DataFrame
    sequences: pl.DataFrame


def prepared(words: Sequence[str]) -> Run:
    """A fresh run of these overrides. Raise ValueError for what cannot run, and for what hydra refuses."""
    try:
        cfg, system = configure("outputs=summary", *words)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).strip()) from None
    return build(cfg, system, _trace(str(cfg.trace.path)))


def trial(words: Sequence[str]) -> Trial:
    """Simulate the run of these overrides."""
    run = prepared(words)
    result = execute(run)
    return Trial(result.summary, run.config, result.frames.tokens, result.frames.sequences)


@lru_cache(maxsize=2)
def _trace(path: str) -> Trace:
    """A trace with all that any part may need of it."""
    return load_trace(path, lookahead_sites=1, active_shares=True)
