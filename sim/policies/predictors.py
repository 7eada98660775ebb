"""The predictor that forecasts nothing. Other kinds of predictors have modules beside this one."""

from __future__ import annotations

from collections.abc import Iterable

from sim.policies.base import Choice, Gate, Predictor
from sim.policies.lookahead import GateLookahead

__all__ = ["GateLookahead", "NoPrediction"]


class NoPrediction(Predictor):
    """Nothing is forecast."""

    silent = True
    reach = 0

    def predict(self, gate: Gate) -> Iterable[Choice]:
        return ()

    def afresh(self) -> NoPrediction:
        """Itself: it remembers nothing of the gates."""
        return self
