"""A predictor by similarity: the past request whose activations resemble the running one's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, Gate
from sim.policies.fitted import FittedPredictor, require_array, smallest_counts
from sim.policies.requires import Arrays, Sample, Shape, Track
from sim.policies.row_forecast import RowForecast
from sim.values.units import require_flag

COMPARISONS = ("whole", "later")
COLLECTIONS = ("fitted", "empty")
FADINGS = {"paper": 0, "code": 1}
"""The distance in sites is divided by the number of sites and so many more."""
EPSILON = 1e-8
"""MoE-Infinity's code adds it to every ratio. So experts that the match never chose come last, by
site and id.
"""


class ActivationMatching(FittedPredictor):
    """Forecasts experts of all later sites by their share of the activations in the most similar
    past request.

    A request's *activation matrix* [S, E] counts its tokens by site and expert, prompt and this
    gate included. The distance of two matrices is ``1 - mean over sites of the cosine of their
    rows`` (cosine 0 where a row is empty). The match is the nearest matrix of the collection, of
    several the first. ``compare: whole`` takes all sites, ``later`` only those after this gate's.

    An expert's likeliness is ``(its share of the match's row + EPSILON) * (1 - distance in sites /
    D)``, with D = S (``fading: paper``) or S + 1 (``code``). With ``collection: empty`` there is no
    match and every share is 0, so the nearest site comes first, its experts by id. ``own_site``:
    experts of the gate's own site are named, too, at distance 0.

    ``best`` experts of all later sites are named (None: all), those of the highest likeliness, ties
    by site, then id. They come site by site, nearest first, as forecasts must. MoE-Infinity has one
    queue by likeliness across sites: ``loader.prefetch_order=likeliest``. Each sequence of a step
    has its own matrix and match, and its forecast is one row.

    Source: Xue et al., MoE-Infinity, arXiv:2401.14361 (matrix, distance, priority); its code of
    June 2024 (EfficientMoE/MoE-Infinity@5e096b4) compares later rows only, fades by S + 1, queues
    the experts of the layer that has just routed before all others, and ships without a collection.
    """

    kind = "activation_matrices"

    def __init__(
        self,
        collection: str = "fitted",
        compare: str = "whole",
        best: int | None = None,
        artefact: str | None = None,
        fading: str = "paper",
        own_site: bool = False,
    ) -> None:
        super().__init__("all", artefact)
        require_flag("predictor.own_site", own_site)
        for name, value, known in (
            ("collection", collection, COLLECTIONS),
            ("compare", compare, COMPARISONS),
            ("fading", fading, tuple(FADINGS)),
        ):
            if value not in known:
                raise ValueError(f"unknown predictor.{name}={value!r}; known: {', '.join(known)}")
        if best is not None and (not isinstance(best, int) or isinstance(best, bool) or best < 1):
            raise ValueError(
                f"predictor.best={best!r} must be a whole number >= 1, or null for all experts"
            )
        self.collection, self.compare, self.best = collection, compare, best
        self.own_site, self._more = own_site, FADINGS[fading]

    @property
    def needs_artefact(self) -> bool:
        return self.collection == "fitted"

    def fit(self, sample: Sample, track: Track = iter) -> dict[str, NDArray[Any]]:
        """``matrices`` [C, S, E]: the matrix of each sequence, in the order of their numbers."""
        shape = sample.shape
        numbers, request = np.unique(sample.sequence, return_inverse=True)
        matrices = np.zeros((len(numbers), shape.sites, shape.experts), np.int64)
        for site in track(range(shape.sites)):
            rows, experts = np.nonzero(sample.members(site))
            np.add.at(matrices[:, site], (request[rows], experts), 1)
        return {"matrices": smallest_counts(matrices)}

    def _take(self, shape: Shape, arrays: Arrays) -> None:
        if not self.needs_artefact:
            self._ratios = self._units = np.zeros((0, shape.sites, shape.experts))
            return
        counts = require_array(arrays, "matrices", (None, shape.sites, shape.experts), "u").astype(
            np.float64
        )
        self._ratios = counts / np.maximum(counts.sum(axis=2, keepdims=True), 1)
        self._units = _unit_rows(counts)

    def forget(self) -> None:
        self._running: dict[int, NDArray[np.int64]] = {}

    def _predict(self, gate: Gate, shape: Shape) -> Iterable[Choice]:
        last, first = shape.last(gate.site), gate.site + (not self.own_site)
        if first > last:
            return
        count = last + 1 - first
        fading = 1 - np.arange(first - gate.site, last + 1 - gate.site) / (shape.sites + self._more)
        likeliness = np.empty((0, count, shape.experts))
        for sequence, counts in self._here(gate, shape).items():
            matrix = self._running.get(
                sequence, np.zeros((shape.sites, shape.experts), np.int64)
            ).copy()
            matrix[gate.site] += counts
            share = self._shares(matrix, gate.site)[first : last + 1]
            likeliness = np.concatenate([likeliness, ((share + EPSILON) * fading[:, None])[None]])
        named = self._named(likeliness)
        for ahead in range(count):
            found = self._site_forecast(
                first + ahead, shape, np.where(named[:, ahead], likeliness[:, ahead], 0.0)
            )
            if found.needs:
                yield found

    def _site_forecast(
        self, site: int, shape: Shape, likeliness: NDArray[np.float64]
    ) -> RowForecast:
        order = np.argsort(-likeliness, axis=1, kind="stable")
        weights = np.take_along_axis(likeliness, order, axis=1)
        return RowForecast(site, shape.experts + 1, np.where(weights > 0, order, -1), weights)

    def _named(self, likeliness: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which entries of [Q sequences, later sites, E] each sequence names."""
        flat = likeliness.reshape(len(likeliness), -1)
        named = np.zeros(flat.shape, np.bool_)
        best = np.argsort(-flat, axis=1, kind="stable")[:, : self.best]
        np.put_along_axis(named, best, True, axis=1)
        return named.reshape(likeliness.shape)

    def _shares(self, matrix: NDArray[np.int64], site: int) -> NDArray[np.float64]:
        """[S, E]: the shares of the match of ``matrix``, as compared at ``site``; 0 without a
        collection.
        """
        if not len(self._ratios):
            return np.zeros(matrix.shape)
        from_site = site + 1 if self.compare == "later" else 0
        rows = slice(from_site, None)
        cosine = np.einsum(
            "cse,se->c", self._units[:, rows], _unit_rows(matrix[rows].astype(np.float64))
        )
        # Rounded, so that equal matrices tie in whatever order the sum was added.
        return np.asarray(self._ratios[int(np.argmax(np.round(cosine, 12)))])

    def observe(self, gate: Gate) -> None:
        assert self.shape is not None
        for sequence, counts in self._here(gate, self.shape).items():
            if sequence not in self._running:
                self._running[sequence] = np.zeros((self.shape.sites, self.shape.experts), np.int64)
            self._running[sequence][gate.site] += counts

    def _here(self, gate: Gate, shape: Shape) -> dict[int, NDArray[np.int64]]:
        """By sequence, how many of its rows chose each expert at this gate: [E]."""
        counts: dict[int, NDArray[np.int64]] = {}
        for sequence, experts in zip(
            gate.row_sequence.tolist(), gate.experts.tolist(), strict=True
        ):
            mine = counts.setdefault(sequence, np.zeros(shape.experts, np.int64))
            for expert in experts:
                if expert >= 0:
                    mine[expert] += 1
        return counts


def _unit_rows(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows scaled to length 1; empty rows stay 0."""
    norm = np.sqrt((counts**2).sum(axis=-1, keepdims=True))
    return np.asarray(counts / np.where(norm > 0, norm, 1.0))
