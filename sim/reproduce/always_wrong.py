"""A predictor that is never right: the worst case that EdgeMoE argues about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.policies.references import StatedAccuracy


class AlwaysWrong(StatedAccuracy):
    """Names all experts of the next site that are not needed there, in an order drawn evenly."""

    def _named(
        self, rng: np.random.Generator, site: int, needs: Sequence[int], others: Sequence[int]
    ) -> list[int]:
        named: list[int] = rng.permutation(others).tolist()
        return named
