"""Predictors that are told the run's needs. They serve bounds and what-ifs, and are no systems."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sim.policies.base import Choice, Gate, Predictor
from sim.policies.requires import FutureNeeds, Given, Requires
from sim.policies.row_forecast import RowForecast


class _Foreseeing(Predictor):
    _future: FutureNeeds | None = None

    @property
    def requires(self) -> Requires:
        return Requires(future=True)

    def prepare(self, given: Given) -> None:
        self.foresee_needs(given.future)

    def foresee_needs(self, future: FutureNeeds) -> None:
        """Take the run's needs; called once, before the run."""
        self._future = future

    def afresh(self) -> _Foreseeing:
        """Itself: it remembers nothing of the gates."""
        return self

    def _later(self, gate: Gate, sites: int | None) -> Iterable[int]:
        """The ticks of the gates to come in this step, of at most so many sites."""
        future = self._known()
        tick = gate.tick + 1
        while tick < len(future.step) and future.step[tick] == future.step[gate.tick]:
            if sites is not None and tick > gate.tick + sites:
                return
            yield tick
            tick += 1

    def _known(self) -> FutureNeeds:
        if self._future is None:
            raise RuntimeError(
                f"{type(self).__name__} needs the run's needs; call foresee_needs(future) before it"
            )
        return self._future


class Foreseen(_Foreseeing):
    """Forecasts the needs of the next ``sites`` sites of the step (None: of all) without an error.

    Source: exact by construction for one site in Hwang et al., Pre-gated MoE, arXiv:2308.12066,
    whose gates choose for the next block.
    """

    def __init__(self, sites: int | None = None) -> None:
        _check_sites(sites)
        self.sites = sites

    def predict(self, gate: Gate) -> Iterable[Choice]:
        future = self._known()
        for tick in self._later(gate, self.sites):
            yield _pooled(future.site[tick], future.units, future.needs[tick], future.weights[tick])


class StatedAccuracy(_Foreseeing):
    """A forecast of the next ``sites`` sites with a stated accuracy, for what-ifs.

    At a site with recall r and precision p:

    - Each need is named with probability r, independently of the others.
    - For n needs that are named, ``n * (1 - p) / p`` other experts are named, rounded up with the
      probability of the fraction. So the mean precision is p; it is higher where there are too few
      other experts. If no need is named, nothing is.
    - Likelinesses are drawn uniformly, and so is the order.

    ``recall`` (0 to 1) and ``precision`` (above 0 to 1) are numbers, or lists with a number for
    each site (that of the first site is unused). Draws depend only on ``seed``, the gate and the
    site, so they are the same for every system.
    """

    def __init__(
        self,
        recall: float | Sequence[float],
        precision: float | Sequence[float],
        sites: int = 1,
        seed: int = 0,
    ) -> None:
        _check_sites(sites)
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise ValueError(f"predictor.seed={seed!r} must be a whole number >= 0")
        self.recall, self.precision = (
            _rates("recall", recall, 0.0),
            _rates("precision", precision, 1e-6),
        )
        self.sites, self.seed = sites, seed

    def foresee_needs(self, future: FutureNeeds) -> None:
        wanted = max(future.site) + 1
        for name, rates in (("recall", self.recall), ("precision", self.precision)):
            if len(rates) not in (1, wanted):
                raise ValueError(
                    f"predictor.{name} has {len(rates)} values, but the model has {wanted} sites;"
                    " give one number, or one for each site"
                )
        super().foresee_needs(future)

    def predict(self, gate: Gate) -> Iterable[Choice]:
        future = self._known()
        for tick in self._later(gate, self.sites):
            site = future.site[tick]
            named = self._drawn(gate.tick, site, future.needs[tick], future.units - 1)
            if named:
                draws, experts = zip(*named, strict=True)
                yield _pooled(site, future.units, experts, [-draw for draw in draws])

    def _drawn(
        self, tick: int, site: int, needs: Sequence[int], num_experts: int
    ) -> list[tuple[float, int]]:
        """The experts that are named, as (minus the likeliness, expert), in ascending order."""
        rng = np.random.default_rng([self.seed, tick, site])
        others = sorted(set(range(num_experts)) - set(needs))
        named = self._named(rng, site, needs, others)
        return sorted(zip((-(1 - rng.random(len(named)))).tolist(), named, strict=True))

    def _named(
        self, rng: np.random.Generator, site: int, needs: Sequence[int], others: Sequence[int]
    ) -> list[int]:
        """The experts that are named, of those that are needed and of the others."""
        recall, precision = (
            self.recall[site % len(self.recall)],
            self.precision[site % len(self.precision)],
        )
        right = [
            expert
            for expert, draw in zip(needs, rng.random(len(needs)), strict=True)
            if draw < recall
        ]
        wrong = min(int(len(right) * (1 - precision) / precision + rng.random()), len(others))
        return [*right, *rng.permutation(others)[:wrong].tolist()]


def _pooled(site: int, units: int, experts: Sequence[int], weights: Sequence[float]) -> RowForecast:
    """A forecast of one row: experts best first, with their likelinesses."""
    return RowForecast(site, units, np.array([experts], np.int64), np.array([weights], np.float64))


def _check_sites(sites: int | None) -> None:
    if sites is not None and (not isinstance(sites, int) or isinstance(sites, bool) or sites < 1):
        raise ValueError(
            f"predictor.sites={sites!r} must be a whole number >= 1, or null for all later sites"
        )


def _rates(name: str, value: float | Sequence[float], least: float) -> tuple[float, ...]:
    rates: Sequence[object] = (value,) if isinstance(value, int | float | str) else tuple(value)
    known = [
        r
        for r in rates
        if isinstance(r, int | float) and not isinstance(r, bool) and least <= r <= 1
    ]
    if not known or len(known) < len(rates):
        raise ValueError(
            f"predictor.{name}={value!r} must be a number from {least:g} to 1, or a list of such"
            " numbers"
        )
    return tuple(float(rate) for rate in known)
