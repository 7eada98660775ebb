"""What predictors have in common that know something of a model beforehand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, FloatArray, Gate, IntArray
from sim.policies.row_forecast import RowForecast, check_count, count_of, likeliest

Arrays = Mapping[str, NDArray[Any]]
Track = Callable[[Iterable[int]], Iterable[int]]
"""Shows how far a fit is: gives back what it is given."""


@dataclass(frozen=True)
class Shape:
    """Sites and experts of a model. The first ``encoder_sites`` sites are an encoder's, visited
    by prompts alone.
    """

    sites: int
    experts: int
    top_k: int
    encoder_sites: int = 0

    def last(self, site: int) -> int:
        """The last site of the stack that ``site`` is in: no forecast goes beyond it."""
        return (self.encoder_sites if site < self.encoder_sites else self.sites) - 1


@dataclass(frozen=True)
class Sample:
    """N token-rows to fit on: ``ids`` [N, S, K] in need order (-1: dropped, or a site that the row
    does not visit), ``sequence`` [N], ``token`` [N] (-1: unknown).
    """

    shape: Shape
    ids: IntArray
    sequence: IntArray
    token: IntArray

    def members(self, site: int) -> NDArray[np.bool_]:
        """[N, E]: who chose whom at a site."""
        member = np.zeros((len(self.ids), self.shape.experts + 1), np.bool_)
        member[np.arange(len(self.ids))[:, None], self.ids[:, site]] = (
            True  # -1 falls into the column behind
        )
        return member[:, :-1]

    def visits(self, site: int) -> NDArray[np.bool_]:
        """[N]: who chose somebody at a site."""
        return np.asarray((self.ids[:, site] >= 0).any(axis=1))


class FittedPredictor:
    """A predictor that must be told what was fitted (``know``) before it is asked.

    ``kind`` names what is fitted; ``parameters`` those of its choices that a fit depends on: an
    artefact of others does not serve. ``experts``: how many a row names of those with a likeliness
    above 0, best first (``top_k``: as many as the router selects, ``all``, or a number).
    """

    lookahead_sites = 0
    learns = True
    kind: ClassVar[str]

    def __init__(self, experts: str | int = "top_k", artefact: str | None = None) -> None:
        check_count(experts)
        if artefact is not None and (not isinstance(artefact, str) or not artefact):
            raise ValueError(
                f"predictor.artefact={artefact!r} must be the .json file of a fit, or null"
            )
        self.experts, self.artefact = experts, artefact
        self.shape: Shape | None = None

    @property
    def parameters(self) -> dict[str, str | int]:
        return {}

    @property
    def needs_artefact(self) -> bool:
        return True

    def fit(self, sample: Sample, track: Track = iter) -> dict[str, NDArray[Any]]:
        """What ``know`` takes, from the rows of a trace. Raise ValueError where they do not tell
        it.
        """
        raise NotImplementedError

    def know(self, shape: Shape, arrays: Arrays) -> None:
        """Take what was fitted. Raise ValueError for arrays that are not this predictor's."""
        self.shape = shape
        self.count = count_of(self.experts, shape.top_k, shape.experts)
        self.forget()
        self._take(shape, arrays)

    def _take(self, shape: Shape, arrays: Arrays) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        """Forget the gates seen so far, not what was fitted."""

    def afresh(self) -> FittedPredictor:
        """The same predictor before its first gate; what was fitted is shared."""
        other = copy.copy(self)
        other.forget()
        return other

    def predict(self, gate: Gate) -> Iterable[Choice]:
        if self.shape is None:
            raise RuntimeError(
                f"{type(self).__name__} has not been told what was fitted; call know(shape, arrays)"
            )
        return self._predict(gate, self.shape)

    def _predict(self, gate: Gate, shape: Shape) -> Iterable[Choice]:
        raise NotImplementedError

    def observe(self, gate: Gate) -> None:
        pass

    def _forecast(self, site: int, shape: Shape, likeliness: FloatArray) -> list[RowForecast]:
        """The forecast of one site from [R, E], or none where nothing is likely."""
        found = RowForecast(site, shape.experts + 1, *likeliest(likeliness, self.count))
        return [found] if found.needs else []


def require_array(
    arrays: Arrays, name: str, shape: Sequence[int | None], kind: str = "iu"
) -> NDArray[Any]:
    """An array of a fit. Raise ValueError unless it is there, of a type in ``kind`` and of that
    shape (None: any), and its floats finite.
    """
    values = arrays.get(name)
    fits = (
        values is not None
        and values.dtype.kind in kind
        and values.ndim == len(shape)
        and all(
            want is None or have == want for have, want in zip(values.shape, shape, strict=True)
        )
    )
    if values is None or not fits:
        found = "absent" if values is None else f"{values.dtype} {list(values.shape)}"
        wanted = ["any" if size is None else size for size in shape]
        raise ValueError(
            f"array {name} of the fit is {found}, must be {wanted} of kind {kind}; fit again"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(f"array {name} of the fit has values that are not finite; fit again")
    if values.dtype.kind == "i" and values.size and values.min() < -1:
        raise ValueError(
            f"array {name} of the fit has a value {values.min()}, must be -1 or more; fit again"
        )
    return values


def smallest_counts(counts: NDArray[np.integer]) -> NDArray[Any]:
    """The same counts (0 or more) in the narrowest unsigned type that holds them."""
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
