"""Predictors by expert paths: how often the choices at one or two sites led to each expert of the
next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, Gate, IntArray
from sim.policies.fitted import FittedPredictor, require_array, smallest_counts
from sim.policies.requires import Arrays, FitError, Sample, Shape, Track

KEYS = ("set", "first")
COMBINATIONS = ("sum", "logs", "product")
SMOOTHING = 1.0
"""Added to each count of a product of probabilities, so that experts never seen together are
unlikely, not impossible.
"""
Codes = list[tuple[int, ...]]


class ExpertPaths(FittedPredictor):
    """Forecasts the next site by the token's choices at this site and at the one before.

    An expert's likeliness is the share of fitted rows that then chose it: among the rows with the
    same two choices; if there are none, among those with the same choice at this site; if there are
    none either, among all. At the first site of a stack only one choice is known. ``key``: a choice
    is the whole selection (``set``) or its best expert (``first``).

    Source: Yi et al., EdgeMoE, arXiv:2308.14352, section 3.3 (top-1, so both keys are its own). Not
    stated there: the back-off, and keys of several experts.
    """

    kind = "expert_paths"

    def __init__(
        self, key: str = "set", experts: str | int = "all", artefact: str | None = None
    ) -> None:
        super().__init__(experts, artefact)
        if key not in KEYS:
            raise ValueError(f"unknown predictor.key={key!r}; known: {', '.join(KEYS)}")
        self.key = key

    @property
    def parameters(self) -> dict[str, str | int]:
        return {"key": self.key}

    @property
    def reads(self) -> tuple[str, ...]:
        return ("rows", "order") if self.key == "first" else ("rows",)

    def codes(self, experts: IntArray) -> Codes:
        """The choice of each row, as a key, of a selection [R, K] in need order."""
        rows = (experts[:, :1] if self.key == "first" else np.sort(experts, axis=1)).tolist()
        return [tuple(expert for expert in row if expert >= 0) for row in rows]

    def fit(self, sample: Sample, track: Track = iter) -> dict[str, NDArray[Any]]:
        """Count what followed every key, every two keys, and every site.

        ``sets`` are the keys that occur, ``set_site`` the site of each. ``one_keys`` and
        ``two_keys`` are numbers of one key, and of two in succession. ``one_rows`` and ``two_rows``
        count the rows that had them, ``one_counts`` and ``two_counts`` those that then chose each
        expert. ``none_rows`` and ``none_counts`` are the same by site alone.
        """
        shape = sample.shape
        chosen = sample.ids[:, :, :1] if self.key == "first" else np.sort(sample.ids, axis=2)
        number = np.full(chosen.shape[:2], -1, np.int64)
        sets, set_site, total = [], [], 0
        for site in track(range(shape.sites)):
            there = np.flatnonzero(sample.visits(site))
            found, inverse = np.unique(chosen[there, site], axis=0, return_inverse=True)
            number[there, site] = total + inverse.reshape(-1)
            total += len(found)
            sets.append(found)
            set_site += [site] * len(found)
        arrays: dict[str, NDArray[Any]] = {
            "sets": np.concatenate(sets).astype(np.int16),
            "set_site": np.array(set_site, np.int16),
        }
        none = [self._followed(sample, number, site, 0) for site in range(shape.sites)]
        for name, known in (("one", 1), ("two", 2)):
            parts = [
                self._followed(sample, number, site, known) for site in range(known, shape.sites)
            ]
            arrays[f"{name}_keys"] = np.concatenate(
                [np.zeros((0, known), np.int64), *(p[0] for p in parts)]
            ).astype("i4")
            arrays[f"{name}_rows"] = smallest_counts(
                np.concatenate([np.zeros(0, np.int64), *(p[1] for p in parts)])
            )
            arrays[f"{name}_counts"] = smallest_counts(
                np.concatenate([np.zeros((0, shape.experts), np.int64), *(p[2] for p in parts)])
            )
        arrays["none_rows"] = smallest_counts(
            np.array([rows.sum() for _, rows, _ in none], np.int64)
        )
        arrays["none_counts"] = smallest_counts(
            np.array([counts.sum(axis=0) for _, _, counts in none], np.int64)
        )
        return arrays

    def _followed(
        self, sample: Sample, number: NDArray[np.int64], site: int, known: int
    ) -> tuple[NDArray[Any], ...]:
        """The keys at the ``known`` sites before ``site``, the rows that had each, and [keys, E]
        how many of them chose each expert at ``site``.
        """
        before = number[:, site - known : site]
        there = sample.visits(site) & (before >= 0).all(axis=1)
        # No path leads from one stack into the other, because no row visits both.
        if not known:
            keys, inverse = np.zeros((1, 0), np.int64), np.zeros(int(there.sum()), np.int64)
        else:
            keys, inverse = np.unique(before[there], axis=0, return_inverse=True)
        counts = np.zeros((len(keys), sample.shape.experts), np.int64)
        rows, experts = np.nonzero(sample.members(site)[there])
        np.add.at(counts, (inverse.reshape(-1)[rows], experts), 1)
        return keys, np.bincount(inverse.reshape(-1), minlength=len(keys)), counts

    def _take(self, shape: Shape, arrays: Arrays) -> None:
        sets = require_array(arrays, "sets", (None, None), "i")
        set_site = require_array(arrays, "set_site", (len(sets),), "i")
        self._number = {
            (site, *(e for e in experts if e >= 0)): number
            for number, (site, experts) in enumerate(
                zip(set_site.tolist(), sets.tolist(), strict=True)
            )
        }
        self._tables = []
        for name, known in (("two", 2), ("one", 1)):
            keys = require_array(arrays, f"{name}_keys", (None, known))
            if keys.size and not 0 <= keys.min() <= keys.max() < len(sets):
                raise FitError(
                    f"array {name}_keys of the fit names sets that are not there; fit again"
                )
            rows = require_array(arrays, f"{name}_rows", (len(keys),), "u")
            counts = require_array(arrays, f"{name}_counts", (len(keys), shape.experts), "u")
            self._tables.append(
                ({tuple(key): place for place, key in enumerate(keys.tolist())}, rows, counts)
            )
        self._none = (
            require_array(arrays, "none_rows", (shape.sites,), "u"),
            require_array(arrays, "none_counts", (shape.sites, shape.experts), "u"),
        )

    def forget(self) -> None:
        self._before: tuple[int, int, Codes] = (-1, -1, [])

    def _predict(self, gate: Gate, shape: Shape) -> Iterable[Choice]:
        if gate.site == shape.last(gate.site):
            return
        codes = self.codes(gate.experts)
        step, site, earlier = self._before
        known = (step, site) == (gate.step, gate.site - 1)
        likeliness = np.stack(
            [
                self._likeliness(gate.site, code, earlier[row] if known else None)
                for row, code in enumerate(codes)
            ]
        )
        yield from self._forecast(gate.site + 1, shape, likeliness)

    def _likeliness(
        self, site: int, code: tuple[int, ...], earlier: tuple[int, ...] | None
    ) -> NDArray[np.float64]:
        """[E]: how likely a row chooses each expert at the site after ``site``."""
        key: tuple[int | None, ...] = (self._number.get((site, *code)),)
        if earlier is not None:
            key = (self._number.get((site - 1, *earlier)), *key)
        for places, rows, counts in self._tables[2 - len(key) :]:
            place = places.get(key)
            if place is not None:
                return np.asarray(counts[place] / rows[place])
            key = key[1:]
        rows, counts = self._none
        return np.asarray(counts[site + 1] / max(int(rows[site + 1]), 1))

    def observe(self, gate: Gate) -> None:
        self._before = (gate.step, gate.site, self.codes(gate.experts))


class NextSiteConditional(FittedPredictor):
    """Forecasts the next site by how often its experts followed each expert of this site.

    Let e be the row's experts at this site, and ``P(e' | e)`` the share of the rows with e that
    then chose e'. The likeliness of e' is:

    - ``combine: sum``: ``sum over e of P(e' | e)``.
    - ``combine: logs``: the product of the same ``P(e' | e)``.
    - ``combine: product``: naive Bayes, ``P(e') * product over e of P(e | e')``.

    Both products add one to each count and are normalised to sum 1.

    Source: the expert-activation-path baseline of Fate, arXiv:2502.12224, section 5.1, after Li et
    al., Lina, ATC 2023. Neither states how several experts of a token go together.
    """

    kind = "next_site"
    learns = False

    def __init__(
        self, combine: str = "sum", experts: str | int = "top_k", artefact: str | None = None
    ) -> None:
        super().__init__(experts, artefact)
        if combine not in COMBINATIONS:
            raise ValueError(
                f"unknown predictor.combine={combine!r}; known: {', '.join(COMBINATIONS)}"
            )
        self.combine = combine

    def fit(self, sample: Sample, track: Track = iter) -> dict[str, NDArray[Any]]:
        """Count choices at neighbouring sites. ``together`` [S - 1, E, E]: rows that chose e at a
        site and e' at the next. ``rows`` [S - 1]: rows that visit both. ``before`` and ``after``
        [S - 1, E]: how many of these chose each expert at the first, and at the second.
        """
        shape = sample.shape
        together = np.zeros((shape.sites - 1, shape.experts, shape.experts), np.int64)
        before, after = (np.zeros((shape.sites - 1, shape.experts), np.int64) for _ in range(2))
        rows = np.zeros(shape.sites - 1, np.int64)
        for site in track(range(shape.sites - 1)):
            both = sample.visits(site) & sample.visits(site + 1)
            here, there = (sample.members(s)[both].astype(np.float64) for s in (site, site + 1))
            together[site] = here.T @ there
            before[site], after[site], rows[site] = here.sum(axis=0), there.sum(axis=0), both.sum()
        return {
            name: smallest_counts(counts)
            for name, counts in (
                ("together", together),
                ("before", before),
                ("after", after),
                ("rows", rows),
            )
        }

    def _take(self, shape: Shape, arrays: Arrays) -> None:
        links, experts = shape.sites - 1, shape.experts
        together = require_array(arrays, "together", (links, experts, experts), "u").astype(
            np.float64
        )
        before = require_array(arrays, "before", (links, experts), "u").astype(np.float64)
        after = require_array(arrays, "after", (links, experts), "u").astype(np.float64)
        rows = require_array(arrays, "rows", (links,), "u").astype(np.float64)
        if self.combine == "sum":
            self._of = together / np.maximum(before, 1)[:, :, None]
            return
        if self.combine == "logs":
            self._of = np.log((together + SMOOTHING) / (before + SMOOTHING * experts)[:, :, None])
            return
        self._of = np.log((together + SMOOTHING) / (after + SMOOTHING * experts)[:, None, :])
        self._prior = np.log((after + SMOOTHING) / (rows + SMOOTHING * experts)[:, None])

    def _predict(self, gate: Gate, shape: Shape) -> Iterable[Choice]:
        site = gate.site
        if site == shape.last(site):
            return
        experts = gate.experts.astype(np.int64)
        terms = np.where((experts >= 0)[:, :, None], self._of[site][experts], 0.0)
        likeliness = terms.sum(axis=1)
        if self.combine == "product":
            likeliness += self._prior[site]
        if self.combine != "sum":
            likeliness = np.exp(likeliness - likeliness.max(axis=1, keepdims=True))
            likeliness /= likeliness.sum(axis=1, keepdims=True)
        yield from self._forecast(site + 1, shape, likeliness)
