"""Runs of an overview, made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.results.labels import Labels
from sim.results.overview import Done
from sim.values.units import GIB

TIMES = np.array([1.0, 2.0, 1.5, 1.1]) * 1e9
LOST = {"lossy": "lossy (experts skipped)"}
BOUNDED = {"knows_future": "knows the future (Belady)"}


def run(
    system: str,
    speed: float,
    share: float = 0.25,
    words: str = "",
    ends: tuple[float, float] | None = (0.0, 0.0),
    **other: Any,
) -> Done:
    """A run that decodes ``speed`` times as fast as one token a second.

    ``ends`` is its interval, None for none; without it the ends are a tenth of the speed away.
    """
    kinds = Labels(**other.pop("labels", {})).kinds()
    interval = [0.9 * speed, 1.1 * speed] if ends == (0.0, 0.0) else ends and list(ends)
    summary = {
        "system": system,
        "model": "m",
        "hardware": "h",
        "workload": "sequential",
        "trace": {"name": "t", "split": "eval", "sequences": 4, **other},
        "contracts": {"batching": "recorded"},
        "budget": {"resident_share": share, "allowed_bytes": int(share * 40 * GIB)},
        "decode_tokens_per_s": speed,
        "ci95": {"decode_tokens_per_s": interval},
        "stall_s": {"demand": 2.1, "host": 0.9},
        "makespan_s": 4.0,
        "hit_ratio": 0.5,
        "labels": kinds,
        "overrides": [],
    }
    return Done(summary, tuple(words.split()), TIMES / speed)
