"""EdgeMoE's offline side: what each expert is worth, and which may have few bits at what loss.

Losses are relative increases of perplexity over the model as it is stored. The paper measures task
accuracy.

Source: Yi et al., EdgeMoE, arXiv:2308.14352, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from real.lossy.loss import quality_of
from real.lossy.mixture import all_at
from real.lossy.recipes import by_table
from real.lossy.variants import Scheme, Variants
from real.lossy.whole import Track, Whole

WIDTHS = ("int2", "int4", "int8", "fp16")
"""The paper's set {2, 4, 8, 32}, fewest bits first; the stored weights here have 16."""
BITS = {"int2": 2, "int4": 4, "int8": 8, "fp16": 16}
CLOSE_ENOUGH = 0.01
"""The search ends when it knows the number of experts to within this share of all experts."""


@dataclass(frozen=True)
class Importance:
    """What each expert is worth.

    ``loss`` [S, E] is the relative change of perplexity when that expert alone is at the lower of
    two precisions, against all experts at the higher one.
    """

    high: str
    low: str
    loss: NDArray[np.float64]


@dataclass(frozen=True)
class Widths:
    """What the search found for a tolerated loss.

    ``table`` [S, E] is 1 where an expert is at ``low``, else 0; ``loss`` is that of the fit texts.
    """

    tolerated: float
    high: str
    low: str
    table: NDArray[np.int64]
    loss: float

    @property
    def low_share(self) -> float:
        return float(self.table.mean())

    @property
    def bits(self) -> float:
        """Bits a weight, averaged over experts."""
        return self.low_share * BITS[self.low] + (1 - self.low_share) * BITS[self.high]

    def names(self) -> list[list[str]]:
        """The table by names, as ``precision.table`` of conf/precision/per_expert.yaml wants it."""
        return [[(self.high, self.low)[code] for code in row] for row in self.table.tolist()]


def loss_of(
    whole: Whole, variants: Variants, table: NDArray[np.integer], track: Track | None = None
) -> float:
    """The relative increase of perplexity with each expert at its code in ``table`` [S, E]."""
    return quality_of(whole.losses(variants, by_table(table), track=track)).increase.value


def profile(whole: Whole, variants: Variants, track: Track | None = None) -> Importance:
    """Measure each expert's importance in a pass: it alone at code 1, the others at code 0."""
    sites, experts = len(whole.forms), whole.forms[0].layer.num_experts
    table = np.zeros((sites, experts), np.int64)
    base = loss_of(whole, variants, table, track)
    loss = np.zeros((sites, experts))
    for place in np.ndindex(sites, experts):
        table[place] = 1
        loss[place] = (1 + loss_of(whole, variants, table, track)) / (1 + base) - 1
        table[place] = 0
    return Importance(variants.precisions[0], variants.precisions[1], loss)


def least_important(
    values: NDArray[np.floating] | NDArray[np.integer], count: int
) -> NDArray[np.int64]:
    """A table with code 1 for the ``count`` smallest values, ties by site, then expert."""
    table = np.zeros(values.size, np.int64)
    table[np.argsort(values, axis=None, kind="stable")[:count]] = 1
    return table.reshape(values.shape)


def bounds_for(
    whole: Whole, tolerated: float, scheme: Scheme, track: Track | None = None
) -> tuple[str, str]:
    """The two widths to mix, (high, low).

    High is the one of fewest bits whose loss is within the tolerated loss when all experts have it;
    low is the next below, whose loss is beyond. Where even the fewest bits of all stay within it,
    both are these.
    """
    inside = WIDTHS[-1]
    for width in reversed(WIDTHS[:-1]):
        found = quality_of(
            whole.losses(Variants(whole.forms, (width,), scheme), all_at(0), track=track)
        )
        if found.increase.value > tolerated:
            return inside, width
        inside = width
    return inside, inside


def search(
    whole: Whole,
    importance: Importance,
    tolerated: float,
    scheme: Scheme,
    track: Track | None = None,
) -> Widths:
    """Bisect for how many of the least important experts may be at the lower width.

    The loss is assumed to grow with their number. Raise ValueError for a tolerated loss that is not
    above 0 and below 10.
    """
    if not 0 < tolerated < 10:
        raise ValueError(
            f"tolerated={tolerated} must be a relative loss of perplexity above 0, such as 0.05"
        )
    high, low = bounds_for(whole, tolerated, scheme, track)
    size = importance.loss.size
    if high == low:
        table = np.zeros(importance.loss.shape, np.int64)
        variants = Variants(whole.forms, (high,), scheme)
        return Widths(tolerated, high, low, table, loss_of(whole, variants, table, track))
    variants = Variants(whole.forms, (high, low), scheme)
    fits, over = 0, size  # all at high stays within the loss, all at low does not
    best = loss_of(whole, variants, least_important(importance.loss, 0), track)
    while over - fits > max(1, CLOSE_ENOUGH * size):
        middle = (fits + over) // 2
        loss = loss_of(whole, variants, least_important(importance.loss, middle), track)
        if loss <= tolerated:
            fits, best = middle, loss
        else:
            over = middle
    return Widths(tolerated, high, low, least_important(importance.loss, fits), best)
