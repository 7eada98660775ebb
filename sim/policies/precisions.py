"""Precision selectors: they name the precision at which each expert is wanted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, PrecisionSelector, Resident
from sim.policies.by_score import ByScore
from sim.policies.requires import FitError, FitFile, Given, Requires, Shape
from sim.values.types import SKIP
from sim.values.units import part_of, require_flag, require_number

QUALITY_FIT = "real quality_fit"
"""The command that measures losses and writes what follows from them as a fit."""


class Fixed(PrecisionSelector):
    """Every expert at one precision."""

    constant: int | None = 0

    def __init__(self, precision: str) -> None:
        self.precisions: tuple[str, ...] = (precision,)

    def permitted(self, score: float) -> tuple[int, ...]:
        return (0,)

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        return [0] * len(choice.needs)


class ScoreThreshold(ByScore):
    """Cheaper variants for experts that matter less.

    Let ``s`` be the share of gate weight ranked above an expert (0 for the first).

    | s | wanted |
    |---|---|
    | up to ``low_above`` | ``high`` |
    | up to ``skip_above`` | ``low`` |
    | larger | ``low`` if a copy is resident, at any precision; else the expert is skipped |

    The last line is so because HOBBIT's scorer runs on misses only. So ``high`` is wanted for
    scores up to ``low_above`` and for no others, which is what eq. 3 counts. If no thresholds are
    given, they are two ``quantiles`` of the scores of the trace's fit sequences.

    Source: Tang et al., HOBBIT, arXiv:2411.01433, section 3.2, eq. 2.
    """

    def __init__(
        self,
        high: str,
        low: str,
        low_above: float | None,
        skip_above: float | None,
        quantiles: Sequence[float] | None = None,
    ) -> None:
        self.precisions = _pair(high, low)
        self.quantiles = None if quantiles is None else tuple(quantiles)
        self.low_above, self.skip_above, self.rule = 0.0, 1.0, self._grade
        if low_above is not None and skip_above is not None:
            self._set(low_above, skip_above)
            self.quantiles = None
        elif low_above is not None or skip_above is not None:
            raise ValueError(
                f"give both precision.low_above and precision.skip_above, got {low_above} and"
                f" {skip_above}; or neither, to take them from precision.quantiles of the trace's"
                " fit split"
            )
        elif quantiles is None or len(quantiles) != 2 or not 0 <= quantiles[0] <= quantiles[1] <= 1:
            raise ValueError(
                "need two ascending precision.quantiles within 0..1 where low_above and skip_above"
                f" are not set, got {quantiles}"
            )

    @property
    def requires(self) -> Requires:
        return Requires(profile=self.quantiles is not None)

    def prepare(self, given: Given) -> None:
        if self.quantiles is not None:
            self.profile(given.profile.scores)

    def told(self, sequences: Collection[int]) -> Mapping[str, Any]:
        thresholds = {
            "low_above": self.low_above,
            "skip_above": self.skip_above,
            "from": "fit split" if self.quantiles else "given",
        }
        return {"score_thresholds": thresholds}

    def profile(self, scores: NDArray[np.floating]) -> None:
        """Take the thresholds from the scores of a model's selections, if only quantiles were
        given.
        """
        if self.quantiles is not None:
            low_above, skip_above = np.quantile(scores, self.quantiles)
            self._set(float(low_above), float(skip_above))

    def _set(self, low_above: float, skip_above: float) -> None:
        if not 0 <= low_above <= skip_above <= 1:
            raise ValueError(
                "need 0 <= low_above <= skip_above <= 1 (HOBBIT's T1 and T2), got"
                f" low_above={low_above}, skip_above={skip_above}; set precision.low_above and"
                " precision.skip_above"
            )
        self.low_above, self.skip_above = low_above, skip_above

    def permitted(self, score: float) -> tuple[int, ...]:
        if score <= self.low_above:
            return (0,)
        return (0, 1) if score <= self.skip_above else (0, 1, SKIP)


class SkipLight(PrecisionSelector):
    """One precision, and no computation of experts that weigh little, resident or not.

    An expert is skipped if the share of gate weight ranked above it exceeds ``skip_above``. Of two
    experts that is the second, if its weight is below ``1 - skip_above``. If no threshold is given,
    it is a ``quantile`` of the scores of the trace's fit sequences.

    Source: Zhong et al., AdapMoE, arXiv:2408.10284: the second expert of a token is dropped below a
    threshold.
    """

    def __init__(
        self, precision: str, skip_above: float | None, quantile: float | None = None
    ) -> None:
        self.precisions: tuple[str, ...] = (precision,)
        self.quantile = quantile if skip_above is None else None
        name, given = (
            ("skip_above", skip_above) if skip_above is not None else ("quantile", quantile)
        )
        if given is None:
            raise ValueError(
                "give precision.skip_above, or precision.quantile of the scores of the trace's fit"
                " split"
            )
        _require_share(f"precision.{name}", given)
        self.skip_above = skip_above if skip_above is not None else 1.0

    @property
    def requires(self) -> Requires:
        return Requires(profile=self.quantile is not None)

    def prepare(self, given: Given) -> None:
        if self.quantile is not None:
            self.profile(given.profile.scores)

    def profile(self, scores: NDArray[np.floating]) -> None:
        """Take the threshold from the scores of a model's selections, if only a quantile was
        given.
        """
        if self.quantile is not None:
            self.skip_above = float(np.quantile(scores, self.quantile))

    def permitted(self, score: float) -> tuple[int, ...]:
        return (SKIP,) if score > self.skip_above else (0,)

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        return [SKIP if score > self.skip_above else 0 for score in choice.scores]


class PerExpert(PrecisionSelector):
    """Each expert at a bit-width of its own, fixed before the run: only one variant of it exists.

    The widths come from ``table``, the precision of every expert [S][E]; or from ``artefact``, the
    file of a fit by measured losses; or else from the trace's fit sequences: the ``low_share``
    least used experts of the model are ``low``.

    ``held``: a higher precision at which the device's slots hold every expert. An expert is
    dequantised once, on arrival; a hit needs neither the load nor the dequantisation. None: slots
    hold experts as they are stored.

    Source: Yi et al., EdgeMoE, arXiv:2308.14352, section 3.2: the least important experts at the
    lower of two widths; section 4.2: ten experts in 180 MB, which is FP32.
    """

    fit_kind = "expert_widths"

    def __init__(
        self,
        high: str,
        low: str,
        low_share: float = 0.0,
        table: Sequence[Sequence[str]] | None = None,
        artefact: str | None = None,
        held: str | None = None,
    ) -> None:
        self.precisions, self.held = _pair(high, low), held
        _require_share("precision.low_share", low_share)
        if table is not None and artefact is not None:
            raise ValueError(
                "precision.table and precision.artefact both say which experts are low; give one of"
                " them"
            )
        self.low_share, self.artefact = low_share, artefact
        self.table: tuple[tuple[int, ...], ...] | None = None
        self.needs_uses = table is None and artefact is None
        if table is not None:
            self.table = tuple(self._read_row(site, row) for site, row in enumerate(table))

    @property
    def requires(self) -> Requires:
        fit = (
            None
            if self.artefact is None
            else FitFile(self.fit_kind, None, self.artefact, command=QUALITY_FIT)
        )
        return Requires(fit=fit, profile=self.needs_uses)

    def prepare(self, given: Given) -> None:
        if self.artefact is not None:
            self.know(given.fit.parameters, given.fit.arrays)
        if self.needs_uses:
            self.profile(given.profile.uses)
        self.check_shape(given.shape)

    def _read_row(self, site: int, row: object) -> tuple[int, ...]:
        if not isinstance(row, list | tuple) or any(name not in self.precisions for name in row):
            raise ValueError(
                f"precision.table[{site}]={row!r} must be a list of {' or '.join(self.precisions)},"
                " one an expert"
            )
        return tuple(self.precisions.index(name) for name in row)

    def know(self, parameters: Mapping[str, str | int], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what was fitted: ``low`` [S, E], 1 where an expert is low. Raise `FitError` for
        other widths.
        """
        require_widths(self.precisions, parameters)
        low = arrays.get("low")
        if (
            low is None
            or low.ndim != 2
            or low.dtype.kind not in "iu"
            or not np.isin(low, (0, 1)).all()
        ):
            raise FitError(
                "array low of the fit must be 0 or 1 for each site and expert; fit again"
            )
        self.table = tuple(tuple(map(int, row)) for row in low)

    def profile(self, uses: NDArray[np.integer]) -> None:
        """Give the low precision to the least used experts. ``uses`` [S, E]: the tokens that chose
        each; ties by site, then id.
        """
        if self.needs_uses:
            count = part_of(uses.size, self.low_share)
            low = np.zeros(uses.size, np.int64)
            low[np.argsort(uses, axis=None, kind="stable")[:count]] = 1
            self.table = tuple(tuple(map(int, row)) for row in low.reshape(uses.shape))

    def check_shape(self, model: Shape) -> None:
        """Raise ValueError unless the table is one of so many sites and experts."""
        shape = None if self.table is None else (len(self.table), {len(row) for row in self.table})
        if shape is not None and shape != (model.sites, {model.experts}):
            raise ValueError(
                f"precision.table names {shape[0]} sites of {sorted(shape[1])} experts, but the"
                f" model has {model.sites} of {model.experts}; give one row a site, one name an"
                " expert"
            )

    def permitted(self, score: float) -> tuple[int, ...]:
        return (0, 1)

    def missing(self) -> frozenset[tuple[int, int, int]]:
        return frozenset(
            (1 - p, site, expert)
            for site, row in enumerate(self.table or ())
            for expert, p in enumerate(row)
        )

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        if self.table is None:
            return [0] * len(choice.needs)
        row = self.table[choice.site]
        return [row[expert] for expert in choice.needs]


class LowForFew(PrecisionSelector):
    """At gates of several rows (prompts), low precision for the experts of the fewest rows.

    They are the last needs in need order, a share of ``low_share``, rounded down. ``artefact``: the
    file of a fit that gives this share by measured losses. At a gate of one row every expert is
    wanted at high precision.

    ``low_if_absent``: an absent expert of a gate of one row is wanted at low precision, so that a
    wrong forecast costs fewer bytes. A higher variant in flight still serves.

    Source: Fang et al., Fate, arXiv:2502.12224, sections 4.5 (popularity) and 5.3 (INT2 for a
    misprefetched expert).
    """

    fit_kind = "low_share"

    def __init__(
        self,
        high: str,
        low: str,
        low_share: float,
        low_if_absent: bool = False,
        artefact: str | None = None,
    ) -> None:
        self.precisions = _pair(high, low)
        _require_share("precision.low_share", low_share)
        require_flag("precision.low_if_absent", low_if_absent)
        self.low_share, self.low_if_absent, self.artefact = low_share, low_if_absent, artefact

    @property
    def requires(self) -> Requires:
        fit = (
            None
            if self.artefact is None
            else FitFile(self.fit_kind, None, self.artefact, command=QUALITY_FIT)
        )
        return Requires(fit=fit)

    def prepare(self, given: Given) -> None:
        if self.artefact is not None:
            self.know(given.fit.parameters, given.fit.arrays)

    def know(self, parameters: Mapping[str, str | int], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what was fitted: ``low_share`` [1]. Raise `FitError` for another pair of widths."""
        require_widths(self.precisions, parameters)
        share = arrays.get("low_share")
        if share is None or share.shape != (1,) or not 0 <= float(share[0]) <= 1:
            raise FitError("array low_share of the fit must be one share in 0..1; fit again")
        self.low_share = float(share[0])

    def permitted(self, score: float) -> tuple[int, ...]:
        return (0, 1)

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        needs = choice.needs
        if len(choice.experts) > 1:
            low = part_of(len(needs), self.low_share)
            return [0] * (len(needs) - low) + [1] * low
        # A gate has a tick, a forecast has none.
        if self.low_if_absent and hasattr(choice, "tick"):
            return [0 if resident.has(0, choice.site, expert) else 1 for expert in needs]
        return [0] * len(needs)


def require_widths(precisions: tuple[str, ...], parameters: Mapping[str, str | int]) -> None:
    """Raise `FitError` unless a fit was made for these two precisions."""
    found = (parameters.get("high"), parameters.get("low"))
    if found != precisions:
        raise FitError(
            f"it was made for {found[0]} and {found[1]}, not {precisions[0]} and {precisions[1]};"
            f" set precision.high={found[0]} precision.low={found[1]}"
        )


def _pair(high: str, low: str) -> tuple[str, ...]:
    if high == low:
        raise ValueError(f"need two different precisions, got high={high} and low={low}")
    return high, low


def _require_share(name: str, value: object) -> None:
    require_number(name, value)
    assert isinstance(value, int | float)
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value!r} must be a share in 0..1")
