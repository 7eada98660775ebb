"""A predictor that is never right: the worst case that EdgeMoE argues about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.policies.references import StatedAccuracy


class AlwaysWrong(StatedAccuracy):
    """Names all experts of the next site that are not needed there, in an order drawn evenly."""

    def _drawn(
        self, tick: int, site: int, needs: Sequence[int], num_experts: int
    ) -> list[tuple[float, int]]:
        rng = np.random.default_rng([self.seed, tick, site])
        others = sorted(set(range(num_experts)) - set(needs))
        named = rng.permutation(others).tolist()
        return sorted(zip((-(1 - rng.random(len(named)))).tolist(), named, strict=True))
