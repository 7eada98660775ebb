"""Predictors: which experts of later sites will be needed. Each kind has a module beside this
one.
"""

from __future__ import annotations

from collections.abc import Iterable

from sim.policies.base import Choice, Gate, Predictor
from sim.policies.lookahead import GateLookahead

__all__ = ["GateLookahead", "NoPrediction"]


class NoPrediction(Predictor):
    """Nothing is forecast."""

    silent = True

    def predict(self, gate: Gate) -> Iterable[Choice]:
        return ()

    def afresh(self) -> NoPrediction:
        """There is nothing to forget."""
        return self
