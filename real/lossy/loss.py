"""How far a lossy model is from the full-precision one, token by token, with intervals.

Every number is paired: both models read the same tokens, and intervals are over whole sequences
(``sim.results.intervals``). Logarithms are natural throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sim.results.intervals import mean_interval, ratio_interval, share_interval

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TokenLoss:
    """The losses in the rows of one pass, [T] each.

    - ``full``, ``lossy``: nats of the token that follows under either model; NaN where none does.
    - ``divergence``: KL(full || lossy) in nats, 0 or more.
    - ``agrees``: whether both models find the same token most likely.
    """

    full: Floats
    lossy: Floats
    divergence: Floats
    agrees: NDArray[np.bool_]

    def rows(self, chosen: NDArray[np.bool_]) -> TokenLoss:
        """The losses of the chosen rows only."""
        return TokenLoss(
            self.full[chosen], self.lossy[chosen], self.divergence[chosen], self.agrees[chosen]
        )


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval.

    Of fewer than two sequences there is no interval: ``low`` and ``high`` are None.
    """

    value: float
    low: float | None
    high: float | None

    def text(self, digits: int = 3) -> str:
        """``1.234 [1.2, 1.3]``, in general format."""
        head = f"{self.value:.{digits}g}"
        return (
            head
            if self.low is None or self.high is None
            else f"{head} [{self.low:.2g}, {self.high:.2g}]"
        )

    def times(self, factor: float) -> Estimate:
        """The same number in another unit."""
        ends = [None if end is None else factor * end for end in (self.low, self.high)]
        return Estimate(factor * self.value, *ends)

    @property
    def excludes_0(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Quality:
    """A lossy model against its full-precision one, over whole sequences.

    - ``perplexity``, ``full_perplexity``: exp of the mean nats a token.
    - ``increase``: the ratio of the two - 1, paired.
    - ``divergence``: the mean KL(full || lossy) in nats a token.
    - ``agreement``: the share of tokens whose most likely successor is the same in both.
    - ``sequences``, ``tokens``: how many the means are over.
    """

    sequences: int
    tokens: int
    full_perplexity: Estimate
    perplexity: Estimate
    increase: Estimate
    divergence: Estimate
    agreement: Estimate

    def row(self) -> dict[str, float | int | None]:
        """A flat row, for a table: ``NAME``, ``NAME_low``, ``NAME_high`` of each number."""
        flat: dict[str, float | int | None] = {"sequences": self.sequences, "tokens": self.tokens}
        for name in ("full_perplexity", "perplexity", "increase", "divergence", "agreement"):
            estimate: Estimate = getattr(self, name)
            flat |= {
                name: estimate.value,
                f"{name}_low": estimate.low,
                f"{name}_high": estimate.high,
            }
        return flat


def token_losses(full: torch.Tensor, lossy: torch.Tensor, following: Sequence[int]) -> TokenLoss:
    """The losses in each row, from the logits [T, V] of both models.

    ``following`` are the tokens that follow the rows; if they are fewer than T, the last rows have
    none. Equal logits give a divergence of exactly 0.
    """
    ours, theirs = (torch.log_softmax(logits.double(), -1) for logits in (lossy, full))
    divergence = (theirs.exp() * (theirs - ours)).sum(-1).clamp(min=0)
    known = torch.tensor(list(following), device=full.device)
    places = torch.arange(len(known), device=full.device)
    nats = [np.full(len(full), math.nan), np.full(len(full), math.nan)]
    for found, table in zip(nats, (theirs, ours), strict=True):
        found[: len(known)] = -table[places, known].cpu().numpy()
    agrees = (full.argmax(-1) == lossy.argmax(-1)).cpu().numpy()
    return TokenLoss(nats[0], nats[1], divergence.cpu().numpy(), agrees)


def quality_of(losses: Sequence[TokenLoss]) -> Quality:
    """Quality over sequences. Raise ValueError where no row has a token that follows it."""
    known = [~np.isnan(loss.full) for loss in losses]
    count = np.array([mask.sum() for mask in known], np.float64)
    rows = np.array([len(loss.divergence) for loss in losses], np.float64)
    if not count.sum():
        raise ValueError(
            "no token follows any of these rows: there is no perplexity; give longer texts"
        )
    full = np.array([loss.full[mask].sum() for loss, mask in zip(losses, known, strict=True)])
    lossy = np.array([loss.lossy[mask].sum() for loss, mask in zip(losses, known, strict=True)])
    divergence = np.array([loss.divergence.sum() for loss in losses])
    agrees = np.array([loss.agrees.sum() for loss in losses], np.float64)
    return Quality(
        len(losses),
        int(count.sum()),
        _exp_of_mean(full, count, np.exp),
        _exp_of_mean(lossy, count, np.exp),
        _exp_of_mean(lossy - full, count, np.expm1),
        estimate_of(divergence, rows, ratio_interval(divergence, rows)),
        estimate_of(agrees, rows, share_interval(agrees, rows)),
    )


def estimate_of(above: Floats, below: Floats, interval: tuple[float, float] | None) -> Estimate:
    """``sum(above) / sum(below)`` over sequences, with its interval."""
    return Estimate(float(above.sum() / below.sum()), *(interval or (None, None)))


def _exp_of_mean(above: Floats, below: Floats, shape: Callable[[Any], Any]) -> Estimate:
    """``shape`` of ``sum(above) / sum(below)``, and of both ends of its interval.

    ``shape`` must be an increasing function.
    """
    found = estimate_of(above, below, mean_interval(above, below))
    ends = [None if end is None else float(shape(end)) for end in (found.low, found.high)]
    return Estimate(float(shape(found.value)), *ends)


def difference(ours: Sequence[TokenLoss], theirs: Sequence[TokenLoss]) -> Estimate:
    """The perplexity of ``ours`` over that of ``theirs`` - 1, paired over the same sequences.

    Both are lossy.
    """
    _require_pairs(ours, theirs)
    pairs = [
        TokenLoss(b.lossy, a.lossy, a.divergence, a.agrees)
        for a, b in zip(ours, theirs, strict=True)
    ]
    return quality_of(pairs).increase


def divergence_difference(ours: Sequence[TokenLoss], theirs: Sequence[TokenLoss]) -> Estimate:
    """The KL of ``ours`` - that of ``theirs`` in nats a token, paired over the same sequences."""
    _require_pairs(ours, theirs)
    pairs = list(zip(ours, theirs, strict=True))
    gap = np.array([(a.divergence - b.divergence).sum() for a, b in pairs])
    rows = np.array([len(a.divergence) for a in ours], np.float64)
    return estimate_of(gap, rows, mean_interval(gap, rows))


def _require_pairs(ours: Sequence[TokenLoss], theirs: Sequence[TokenLoss]) -> None:
    if len(ours) != len(theirs) or any(
        len(a.lossy) != len(b.lossy) for a, b in zip(ours, theirs, strict=True)
    ):
        raise ValueError("a paired comparison needs the same rows of the same sequences")
