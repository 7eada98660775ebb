"""A predictor that learns, while it runs, which experts a later site asks for: from tables of what
followed what, by weights that it learns as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, Gate
from sim.policies.fitted import FittedPredictor, Memo
from sim.policies.requires import Arrays, Shape
from sim.policies.row_forecast import RowForecast
from sim.values.units import require_number, require_range

Floats = NDArray[np.float64]
LEAST = 0.01
"""What is added to a share of late visits, so that its logarithm is finite."""
SEEN = 0.1
"""How many visits each expert of a site counts before the first, at top-k of them."""
LAYERS = 4
"""From how many sites a forecast reads what they chose: the gate's own and those before it."""
FIRST_WEIGHTS = (0.0, 0.5, 0.5, 0.2)
"""The weights before the first gate, by `_Told.features`."""
TINY = 1e-300
"""The least that a product of lifts counts as, so that its logarithm is finite."""


@dataclass(frozen=True)
class _Told:
    """What was known of a site when its visit was forecast.

    - ``row`` [K]: what the gate chose that forecasts it.
    - ``rows`` [(1 + LAYERS) * K]: rows of the site's tables. They are of the experts that the site
      itself chose last, and of those that the gate's site and the sites before it did.
    - ``features`` [4, E]: 1; the logarithms of the late share, of the share of all visits, and of
      the product of the lifts.
    - ``likely`` [E]: how likely the visit asks for each expert.
    - ``forecast``: the experts that are named, if any.
    """

    row: NDArray[np.int64]
    rows: NDArray[np.int64]
    features: Floats
    likely: Floats
    forecast: RowForecast | None


class ExpectedNeeds(FittedPredictor):
    """Forecasts the next ``sites_ahead`` sites: every expert that is at least ``times_chance`` times
    as likely to be asked for as an expert by chance (docs/contracts/needs.md). Each site is forecast
    once, at the gate ``sites_ahead`` before its own, and named again until then.

    The likeliness is ``1 / (1 + exp(-sum of weight * feature))``. The features are tables of what
    was asked for after what, and shares of visits that asked for the expert; the weights are learned
    from each forecast's error. Nothing is fitted beforehand, and nothing is forgotten.

    After the last site the stack begins again: its first sites are forecast for the next token.
    A visit is a gate with one token of each sequence. At a prompt nothing is forecast, and only the
    late shares learn.

    ``half_life_visits``: so many visits ago a use counts half in the late share. ``prior_visits``:
    visits of chance that a table begins with. ``rate``: how much a weight moves at first.

    Source: this project's own search (docs/policy_search.md).
    """

    kind = "expected_needs"
    prompts = False

    def __init__(
        self,
        sites_ahead: int = 5,
        times_chance: float = 1.0,
        half_life_visits: float = 8.0,
        prior_visits: float = 3.0,
        rate: float = 0.1,
    ) -> None:
        super().__init__("all")
        require_number("predictor.sites_ahead", sites_ahead, minimum=1, whole=True)
        require_number("predictor.times_chance", times_chance)
        require_range("predictor.rate", rate, 0, 1, "a share")
        require_number("predictor.half_life_visits", half_life_visits, minimum=0.1)
        require_number("predictor.prior_visits", prior_visits, minimum=0.1)
        self.reach = self.sites_ahead = sites_ahead
        self.times_chance, self.rate = times_chance, rate
        self.half_life_visits, self.prior_visits = half_life_visits, prior_visits

    @property
    def needs_artefact(self) -> bool:
        return False

    def _take(self, shape: Shape, arrays: Arrays) -> None:
        pass

    def forget(self) -> None:
        assert self.shape is not None
        sites, experts, top_k = self.shape.sites, self.shape.experts, self.shape.top_k
        first = self.shape.encoder_sites
        # At most once through the stack: by site, the sites that are forecast there, the nearest
        # first, and those of which it is read what they chose.
        ahead = range(1, min(self.sites_ahead, sites - first) + 1)
        self._ahead = [self._sites(site, ahead) for site in range(sites)]
        self._reads = [
            np.array([self._ahead[site][-1], *self._sites(site, range(0, -LAYERS, -1))])
            for site in range(sites)
        ]
        self._least = self.times_chance * top_k / experts
        self._decay = 0.5 ** (1 / self.half_life_visits)
        self._late = np.zeros((sites, experts))
        self._total, self._visits = (
            np.full((sites, experts), SEEN * top_k),
            [SEEN * experts] * sites,
        )
        # Of each source a row for each expert: how often it chose the expert, and what the site
        # then asked for. The last row of a source is for what it did not choose; it stays 0.
        rows = (1 + LAYERS) * (experts + 1)
        self._times, self._followed = np.zeros((sites, rows)), np.zeros((sites, rows, experts))
        self._places = np.arange(0, rows, experts + 1)[:, None]
        self._asked = np.full((sites, top_k), experts)
        self._weights, self._squares = np.array(FIRST_WEIGHTS), np.zeros(len(FIRST_WEIGHTS))
        self._told: list[_Told | None] = [None] * sites
        self._memo = Memo()

    def _sites(self, site: int, steps: range) -> list[int]:
        """The sites so many gates after this one; after the last site the first comes."""
        assert self.shape is not None
        first = self.shape.encoder_sites
        return [first + (site - first + step) % (self.shape.sites - first) for step in steps]

    # ---- forecasts

    def _predict(self, gate: Gate, shape: Shape) -> Iterable[Choice]:
        now = self._tell(gate, shape)
        if now is None:
            return ()
        nearer = [self._told[site] for site in self._ahead[gate.site][:-1]]
        return [told.forecast for told in (*nearer, now) if told and told.forecast]

    def _tell(self, gate: Gate, shape: Shape) -> _Told | None:
        """What is known of the target at this gate; None at a prompt and in an encoder."""
        if gate.site < shape.encoder_sites or _positions(gate) != 1:
            return None
        if self._memo.get("tick") != gate.tick:
            self._memo.update(tick=gate.tick, told=self._told_of(gate, shape))
        found: _Told = self._memo["told"]
        return found

    def _told_of(self, gate: Gate, shape: Shape) -> _Told:
        site = gate.site
        target = self._ahead[site][-1]
        asked = self._asked[self._reads[site]]
        asked[1] = row = _row(gate, shape)
        if target == site:
            asked[0] = row
        rows = (asked + self._places).ravel()
        features = np.empty((len(FIRST_WEIGHTS), shape.experts))
        base = np.divide(self._total[target], self._visits[target], out=features[2])
        features[0] = 1
        np.add(self._late[target], LEAST, out=features[1])
        np.maximum(self._lifts(target, rows, base), TINY, out=features[3])
        np.log(features[1:], out=features[1:])
        likely: Floats = 1 / (1 + np.exp(-(self._weights @ features)))
        return _Told(row, rows, features, likely, self._named(target, likely))

    def _lifts(self, site: int, rows: NDArray[np.int64], base: Floats) -> Floats:
        """[E]: how much more often than ever each expert was asked for after what was chosen; the
        product over all that was.
        """
        prior = self.prior_visits
        times = (self._times[site][rows] + prior)[:, None]
        lifts = (self._followed[site][rows] + prior * base) / (times * base)
        product: Floats = lifts.prod(axis=0)
        return product

    def _named(self, site: int, likely: Floats) -> RowForecast | None:
        named = np.flatnonzero(likely >= self._least)
        if not len(named):
            return None
        named = named[np.argsort(-likely[named], kind="stable")]
        return RowForecast(site, len(likely) + 1, named[None], likely[None, named])

    # ---- what is learned

    def observe(self, gate: Gate) -> None:
        shape = self.shape
        assert shape is not None
        site, positions = gate.site, _positions(gate)
        told, before = self._tell(gate, shape), self._told[site]
        decay, asked, late = self._decay**positions, list(gate.needs), self._late[site]
        late *= decay
        self._told[site] = None
        if told is None:
            late[asked] += (1 - decay) * np.minimum(np.array(gate.tokens) / positions, 1)
            self._asked[site] = shape.experts
            return
        late[asked] += 1 - decay
        if before is not None:
            self._learn(before, asked)
            self._count(site, before.rows, asked)
        self._total[site][asked] += 1
        self._visits[site] += 1
        self._asked[site] = told.row
        self._told[self._ahead[site][-1]] = told

    def _learn(self, told: _Told, asked: list[int]) -> None:
        error = -told.likely
        error[asked] += 1
        slope = told.features @ error
        self._squares += slope * slope
        self._weights += self.rate * slope / np.sqrt(self._squares + 1)

    def _count(self, site: int, rows: NDArray[np.int64], asked: list[int]) -> None:
        times, followed, experts = self._times[site], self._followed[site], len(self._late[site])
        times[rows] += 1
        followed[rows[:, None], asked] += 1
        times[experts :: experts + 1] = 0
        followed[experts :: experts + 1] = 0


def _row(gate: Gate, shape: Shape) -> NDArray[np.int64]:
    """The first top-k experts that the gate asks for, in need order, filled up with E."""
    row = np.full(shape.top_k, shape.experts)
    asked = gate.needs[: shape.top_k]
    row[: len(asked)] = asked
    return row


def _positions(gate: Gate) -> float:
    """How many tokens of each sequence a gate has, on average."""
    rows = len(gate.experts)
    return 1.0 if rows == 1 else rows / len(set(gate.row_sequence.tolist()))
