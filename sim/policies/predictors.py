"""Predictors: which experts of later sites will be needed."""

from __future__ import annotations

from collections.abc import Iterable

from sim.policies.base import Choice, Gate


class NoPrediction:
    """Nothing is forecast."""

    lookahead_sites = 0
    learns = False

    def predict(self, gate: Gate) -> Iterable[Choice]:
        return ()

    def observe(self, gate: Gate) -> None:
        pass


class GateLookahead:
    """The routers of the next ``sites`` sites, fed with this site's gate input.

    Forecasts come nearest site first and end where the trace has none (after the last site, in prefill). Whether the
    walk stops at the first site that lacks an expert is the loader's ``depth``.

    Source: Eliseev and Mazur, arXiv:2312.17238, speculative loading; Tang et al., HOBBIT, arXiv:2411.01433, sec. 3.3.
    """

    learns = False

    def __init__(self, sites: int) -> None:
        if not isinstance(sites, int) or isinstance(sites, bool) or sites < 1:
            raise ValueError(f"predictor.sites={sites!r} must be a whole number >= 1; or choose predictor=none")
        self.lookahead_sites = sites

    def predict(self, gate: Gate) -> Iterable[Choice]:
        return gate.forecasts(self.lookahead_sites)

    def observe(self, gate: Gate) -> None:
        pass
