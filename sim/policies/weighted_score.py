"""HOBBIT's cache, which evicts by a sum of four terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sim.policies.quotas import Quotas
from sim.policies.weighted_terms import WeightedTerms
from sim.values.units import MOST


class WeightedScore(WeightedTerms):
    """Lowest ``p`` first, ties lowest key first.

    ``p = ((w_lru*R + w_lfu*F) + w_lhu*H) / T + w_fld * (1 - ((l_t - l_i + L) mod L) / L)``.

    Of an expert, whatever its precision: R is the token of its last use, F its token uses, H its
    token uses at high precision, all in this sequence; l_t is its site. T is the number of tokens
    so far, l_i the site of the last gate, L the number of sites. With only one weight above 0 the
    score is one of HOBBIT's terms: LRU, LFU, LHU (least used at high precision) or FLD (farthest
    site).

    Source: Tang et al., HOBBIT, arXiv:2411.01433, section 3.4, eq. 3.
    """

    TERMS = ("lru", "lfu", "lhu", "fld")

    def __init__(
        self,
        weights: Mapping[str, float] | str,
        scope: str = "precision",
        shares: Sequence[float] = (0.8, 0.2),
        initial: str = "ascending",
        quotas: Quotas | Sequence[int] = (),
    ) -> None:
        super().__init__(scope, shares, initial, quotas)
        if isinstance(weights, str):
            terms = ",".join(f"{term}:0.25" for term in self.TERMS)
            raise ValueError(
                f"cache.weights={weights} must name each of {', '.join(self.TERMS)}: in quotes, as a"
                f" shell takes braces apart, 'cache.weights={{{terms}}}'"
            )
        numbers = [
            w for w in weights.values() if isinstance(w, int | float) and not isinstance(w, bool)
        ]
        numbers = [w for w in numbers if 0 <= w <= MOST]
        if set(weights) != set(self.TERMS) or len(numbers) != len(self.TERMS):
            raise ValueError(
                f"cache.weights need {', '.join(self.TERMS)}, each a number >= 0 and at most"
                f" {MOST:g}; got {dict(weights)}"
            )
        self.weights = tuple(float(weights[term]) for term in self.TERMS)
