"""A predictor by similarity: the past request whose activations resemble the running one's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, Gate
from sim.policies.fitted import FittedPredictor, Memo, require_array, smallest_counts
from sim.policies.requires import Arrays, Sample, Shape, Track
from sim.policies.row_forecast import Forecasts, forecasts_of, likeliest
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

    @property
    def reads(self) -> tuple[str, ...]:
        return ("rows", "sequences")

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
        self._fading = 1 - np.arange(shape.sites) / (shape.sites + self._more)
        if not self.needs_artefact:
            # Without a collection every share is 0.
            self._ratios = np.zeros((1, shape.sites, shape.experts))
            self._units = np.zeros((shape.sites, 1, shape.experts))
            return
        counts = require_array(arrays, "matrices", (None, shape.sites, shape.experts), "u").astype(
            np.float64
        )
        self._ratios = counts / np.maximum(counts.sum(axis=2, keepdims=True), 1)
        # By site [S, C, E], each row of the collection scaled to length 1; empty rows stay 0.
        norm = np.sqrt((counts**2).sum(axis=2, keepdims=True))
        units = counts / np.where(norm > 0, norm, 1.0)
        self._units = np.ascontiguousarray(units.swapaxes(0, 1))

    def forget(self) -> None:
        self._running: dict[int, NDArray[np.int64]] = {}
        # Of each running matrix, the cosines [S, C] with the rows of the collection.
        self._cosines: dict[int, NDArray[np.float64]] = {}
        # The cosines of the last row that was compared, by its site and contents.
        self._compared = Memo()
        # The last forecasts, by site and matches.
        self._known = Memo()
        # What the sequences of the last gate chose, by its tick: it is observed after its forecast.
        self._chosen = Memo()

    def _predict(self, gate: Gate, shape: Shape) -> Iterable[Choice]:
        site = gate.site
        if site + (not self.own_site) > shape.last(site):
            return ()
        here = self._here(gate, shape)
        matches = [self._match(sequence, site, counts) for sequence, counts in here.items()]
        found: Forecasts | None = self._known.get((site, *matches))
        if found is None:
            if len(self._known) >= shape.sites:
                self._known.clear()
            found = self._known[(site, *matches)] = self._later(site, matches, shape)
        return found

    def _later(self, site: int, matches: Sequence[int], shape: Shape) -> Forecasts:
        """What these matches forecast at ``site``: one row for each of them."""
        first, last = site + (not self.own_site), shape.last(site)
        fading = self._fading[first - site : last + 1 - site, None]
        likeliness = (self._ratios[matches, first : last + 1] + EPSILON) * fading
        if self.best is not None:
            likeliness = np.where(self._named(likeliness), likeliness, 0.0)
        ranked = likeliest(likeliness.swapaxes(0, 1), shape.experts)
        found = forecasts_of(range(first, last + 1), shape.experts + 1, *ranked)
        return Forecasts(forecast for forecast in found if forecast.needs)

    def _named(self, likeliness: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which entries of [Q sequences, later sites, E] each sequence names."""
        flat = likeliness.reshape(len(likeliness), -1)
        named = np.zeros(flat.shape, np.bool_)
        best = np.argsort(-flat, axis=1, kind="stable")[:, : self.best]
        np.put_along_axis(named, best, True, axis=1)
        return named.reshape(likeliness.shape)

    def _match(self, sequence: int, site: int, counts: NDArray[np.int64]) -> int:
        """The match of a sequence's matrix, with the ``counts`` of a gate at ``site``, as compared
        there.
        """
        if not self.needs_artefact:
            return 0
        cosines, from_site = self._cosines_of(sequence), site + 1
        if self.compare == "whole":
            # Only this site's row has changed since the last gate.
            cosines, from_site = cosines.copy(), 0
            running = self._running.get(sequence)
            row = counts if running is None else running[site] + counts
            cosines[site] = self._cosine(site, row)
        # Rounded, so that equal matrices tie in whatever order the sum was added.
        return int(np.rint(np.add.reduce(cosines[from_site:]) * 1e12).argmax())

    def _cosines_of(self, sequence: int) -> NDArray[np.float64]:
        found = self._cosines.get(sequence)
        return np.zeros(self._units.shape[:2]) if found is None else found

    def _cosine(self, site: int, row: NDArray[np.int64]) -> NDArray[np.float64]:
        """[C]: the cosines of a row of counts with the collection's rows of a site."""
        # A gate is observed after its forecast, with the same row.
        same = site, row.tobytes()
        found: NDArray[np.float64] | None = self._compared.get(same)
        if found is None:
            wide = row.astype(np.float64)
            norm = math.sqrt(wide @ wide)
            found = self._units[site] @ (wide / norm if norm else wide)
            self._compared.clear()
            self._compared[same] = found
        return found

    def observe(self, gate: Gate) -> None:
        assert self.shape is not None
        site = gate.site
        for sequence, counts in self._here(gate, self.shape).items():
            if sequence not in self._running:
                self._running[sequence] = np.zeros((self.shape.sites, self.shape.experts), np.int64)
                self._cosines[sequence] = self._cosines_of(sequence)
            row = self._running[sequence][site]
            row += counts
            self._cosines[sequence][site] = self._cosine(site, row)

    def _here(self, gate: Gate, shape: Shape) -> dict[int, NDArray[np.int64]]:
        """By sequence, how many of its rows chose each expert at this gate: [E]."""
        kept: tuple[Gate, dict[int, NDArray[np.int64]]] | None = self._chosen.get(gate.tick)
        if kept is None or kept[0] is not gate:
            self._chosen.clear()
            kept = self._chosen[gate.tick] = gate, self._counted(gate, shape)
        return kept[1]

    def _counted(self, gate: Gate, shape: Shape) -> dict[int, NDArray[np.int64]]:
        chosen, sequences = gate.experts, gate.row_sequence
        if len(chosen) == 1:
            counts = np.zeros(shape.experts, np.int64)
            for expert in chosen[0].tolist():
                if expert >= 0:
                    counts[expert] += 1
            return {int(sequences[0]): counts}
        return {
            sequence: np.bincount(
                (mine := chosen[sequences == sequence])[mine >= 0], minlength=shape.experts
            )
            for sequence in dict.fromkeys(sequences.tolist())
        }
