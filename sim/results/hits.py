"""The rules of hit ratios: which lookups count, and which of them are hits.

Both rules are defined here only (contract C107). A need is *asked for* unless its
selector leaves it out whatever the device holds. So whether a need counts depends on its score
alone. A need that is left out because its expert is absent was asked for and is no hit. So were
needs that the CPU computes or that another expert serves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.policies.base import PrecisionSelector
from sim.values.types import SKIP

FOUND_RESIDENT = ("hit", "high_for_low")
MISSED = ("miss", "promoted")
NEVER, IF_ABSENT, ALWAYS = SKIPS = ("never", "if_absent", "always")
"""Values of the column ``skips`` of ``lookups``: when a need's selector leaves it out."""


def skip_codes(selector: PrecisionSelector, scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """When ``selector`` leaves out needs of these ``scores``, each as an index of `SKIPS`."""
    if selector.constant is not None:
        return np.zeros(len(scores), np.int64)
    known, back = np.unique(scores, return_inverse=True)
    return np.array([_skip_code(selector.permitted(score)) for score in known.tolist()], np.int64)[
        back
    ]


def _skip_code(answers: tuple[int, ...]) -> int:
    if SKIP not in answers:
        return SKIPS.index(NEVER)
    return SKIPS.index(ALWAYS if set(answers) == {SKIP} else IF_ABSENT)


def asked(lookups: pl.DataFrame) -> pl.DataFrame:
    """The rows of ``lookups`` that count in a hit ratio."""
    counts = lookups["skips"] != ALWAYS
    return lookups if counts.all() else lookups.filter(counts)  # mostly all: a copy less


def is_found() -> pl.Expr:
    """Whether a lookup found its variant, or a higher one, on the device."""
    return pl.col("outcome").is_in(FOUND_RESIDENT)


def is_missed() -> pl.Expr:
    """Whether a demand was queued for a lookup."""
    return pl.col("outcome").is_in(MISSED)


def hit_ratio(lookups: pl.DataFrame) -> float | None:
    """(hit + high_for_low) / lookups asked for; None where nothing was asked for."""
    counted = asked(lookups)
    return float(counted.select(is_found().sum()).item()) / len(counted) if len(counted) else None


def hit_ratio_by_precision(
    lookups: pl.DataFrame, precisions: Sequence[str]
) -> dict[str, float | None]:
    """The hit ratio of the needs wanted at each precision.

    A need that is left out where its expert is absent is wanted at whatever precision is there. So
    it counts at none, unless there is only one precision.
    """
    if len(precisions) == 1:
        return {precisions[0]: hit_ratio(lookups)}
    fixed = lookups.filter(pl.col("skips") == NEVER)
    return {
        precision: hit_ratio(fixed.filter(pl.col("wanted") == precision))
        for precision in precisions
    }


def miss_penalty(
    lookups: pl.DataFrame, precisions: Sequence[str], bits: Sequence[float]
) -> float | None:
    """The mean cost of a lookup asked for, where a miss costs its share of the highest bits.

    A hit costs 0; a miss costs the ``bits`` of the wanted precision over those of the highest one
    (HOBBIT section 3.4). None where nothing was asked for.
    """
    counted = asked(lookups)
    if not len(counted):
        return None
    cost = pl.col("wanted").replace_strict(
        {p: b / bits[0] for p, b in zip(precisions, bits, strict=True)}
    )
    return float(counted.filter(is_missed()).select(cost.sum()).item()) / len(counted)
