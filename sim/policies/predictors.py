"""Predictors: which experts of later sites will be needed. Each kind has a module beside this
one.
"""

from __future__ import annotations

from collections.abc import Iterable

from sim.policies.base import Choice, Gate
from sim.policies.lookahead import GateLookahead

__all__ = ["GateLookahead", "NoPrediction"]


class NoPrediction:
    """Nothing is forecast."""

    lookahead_sites = 0
    learns = False

    def predict(self, gate: Gate) -> Iterable[Choice]:
        return ()

    def observe(self, gate: Gate) -> None:
        pass

    def afresh(self) -> NoPrediction:
        """There is nothing to forget."""
        return self
