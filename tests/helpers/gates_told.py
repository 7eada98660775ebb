"""Gates with made-up contents for predictors, and random samples for fits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from sim.policies.fitted import Sample, Shape


def gate_of(
    site: int, experts: Any, *, step: int = 0, tick: int = 0, sequence: Any = 0, token: Any = -1
) -> Any:
    """A gate at a site with rows of ``experts`` in need order.

    ``sequence`` and ``token`` are one for each row, or one for all.
    """
    rows = np.array(experts, np.int64)
    return SimpleNamespace(
        site=site,
        step=step,
        tick=tick,
        experts=rows,
        row_sequence=np.broadcast_to(np.array(sequence), len(rows)),
        row_token=np.broadcast_to(np.array(token), len(rows)),
    )


def told(forecasts: Any) -> list[tuple[int, list[int]]]:
    """The site of each forecast, and the experts named there, best first."""
    return [(choice.site, list(choice.needs)) for choice in forecasts]


def random_sample(
    seed: int,
    rows: int = 60,
    sites: int = 5,
    experts: int = 6,
    top_k: int = 2,
    encoder_sites: int = 0,
) -> Sample:
    """Random rows of three sequences with five different tokens; some choices are dropped.

    In an encoder-decoder half of the rows visit each stack.
    """
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.random((rows, sites, experts)), axis=2)[:, :, :top_k]
    ids = np.where(rng.random(ids.shape) < (0.15 if top_k > 1 else 0.0), -1, ids)
    ids[:, :, 0] = np.where(ids.max(axis=2) < 0, 0, ids[:, :, 0])
    ids = np.take_along_axis(ids, np.argsort(ids < 0, axis=2, kind="stable"), axis=2)
    if encoder_sites:
        prompt = np.arange(rows) % 2 == 0
        ids[prompt, encoder_sites:] = -1
        ids[~prompt, :encoder_sites] = -1
    shape = Shape(sites, experts, top_k, encoder_sites)
    return Sample(shape, ids, rng.integers(0, 3, rows), rng.integers(0, 5, rows))
