"""The common part of predictors that know something of a model before the run."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, FloatArray, Gate, Predictor
from sim.policies.requires import (
    Arrays,
    FitError,
    FitFile,
    Given,
    Requires,
    Sample,
    Shape,
    Track,
)
from sim.policies.row_forecast import RowForecast, check_count, count_of, likeliest


class Memo(dict[Any, Any]):
    """What a predictor has computed last, so as not to compute it again.

    It is no part of what a predictor knows: a copy begins with an empty one.
    """

    def __reduce__(self) -> tuple[type[Memo], tuple[()]]:
        return Memo, ()


class FittedPredictor(Predictor):
    """A predictor that knows the model's shape, and what was fitted, before it is asked.

    A subclass says ``kind``, the name of what is fitted, and ``parameters``, its choices that a fit
    depends on: a file of other choices is refused. ``fit`` makes the arrays, ``_take`` receives
    them, ``_predict`` forecasts, ``observe`` and ``forget`` keep what was seen.

    ``experts``: how many a row names of those with a likeliness above 0, best first (``top_k``: as
    many as the router selects, ``all``, or a number). ``artefact``: the .json file of the fit; None
    is the one that comes with the project for the trace.
    """

    learns = True
    kind: ClassVar[str]

    def __init__(self, experts: str | int = "top_k", artefact: str | None = None) -> None:
        check_count(experts)
        self.experts, self.artefact = experts, artefact
        self.shape: Shape | None = None

    @property
    def parameters(self) -> dict[str, str | int]:
        return {}

    @property
    def needs_artefact(self) -> bool:
        """Something is fitted for it; else it needs the model's shape only."""
        return True

    @property
    def reads(self) -> tuple[str, ...]:
        """What the recording must tell (`Requires.recorded`) where something is fitted."""
        return ("rows",)

    @property
    def requires(self) -> Requires:
        if not self.needs_artefact:
            return Requires()
        fit = FitFile(self.kind, self.parameters, self.artefact, self.fit)
        return Requires(recorded=self.reads, fit=fit)

    def prepare(self, given: Given) -> None:
        self.know(given.shape, given.fit.arrays if self.needs_artefact else {})

    def fit(self, sample: Sample, track: Track = iter) -> dict[str, NDArray[Any]]:
        """From rows of a trace to the arrays that ``know`` takes. Raise ValueError where the rows
        do not tell them.
        """
        raise NotImplementedError

    def know(self, shape: Shape, arrays: Arrays) -> None:
        """Take what was fitted. Raise `FitError` for arrays that are not this predictor's."""
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

    def _forecast(self, site: int, shape: Shape, likeliness: FloatArray) -> list[RowForecast]:
        """The forecast of one site from likelinesses [R, E]; an empty list where all are 0."""
        found = RowForecast(site, shape.experts + 1, *likeliest(likeliness, self.count))
        return [found] if found.needs else []


def require_array(
    arrays: Arrays, name: str, shape: Sequence[int | None], kind: str = "iu"
) -> NDArray[Any]:
    """The array ``name`` of a fit.

    Raise `FitError` unless it exists, has a type in ``kind`` (numpy's letters) and this shape
    (None: any size), and unless floats are finite and signed integers at least -1.
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
        raise FitError(
            f"array {name} of the fit is {found}, must be {wanted} of kind {kind}; fit again"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise FitError(f"array {name} of the fit has values that are not finite; fit again")
    if values.dtype.kind == "i" and values.size and values.min() < -1:
        raise FitError(
            f"array {name} of the fit has a value {values.min()}, must be -1 or more; fit again"
        )
    return values


def smallest_counts(counts: NDArray[np.integer]) -> NDArray[Any]:
    """The same counts (0 or more) in the narrowest unsigned type that holds them."""
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
