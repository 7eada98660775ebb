"""Precision selectors: at how many bits an expert is wanted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import Choice, Resident
from sim.types import SKIP


class Fixed:
    """Every expert at one precision."""

    constant: int | None = 0

    def __init__(self, precision: str) -> None:
        self.precisions: tuple[str, ...] = (precision,)

    def permitted(self, score: float) -> tuple[int, ...]:
        return (0,)

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        return [0] * len(choice.needs)


class ScoreThreshold:
    """Cheaper variants for experts that matter less.

    With ``s`` the share of gate weight ranked above an expert (0 for the first): ``s <= low_above`` wants ``high``,
    ``s <= skip_above`` wants ``low``, a larger ``s`` skips the expert, unless a copy is resident, which is then used
    (the scorer runs on misses only). Thresholds that are not given are the two ``quantiles`` of the scores it is
    profiled on.

    Source: Tang et al., HOBBIT, arXiv:2411.01433, section 3.2, eq. 2.
    """

    constant: int | None = None

    def __init__(self, high: str, low: str, low_above: float | None, skip_above: float | None,
                 quantiles: Sequence[float] | None = None) -> None:  # fmt: skip
        if high == low:
            raise ValueError(f"need two different precisions, got high={high} and low={low}")
        self.precisions: tuple[str, ...] = (high, low)
        self.quantiles = None if quantiles is None else tuple(quantiles)
        self.low_above, self.skip_above = 0.0, 1.0
        if low_above is not None and skip_above is not None:
            self._set(low_above, skip_above)
            self.quantiles = None
        elif low_above is not None or skip_above is not None:
            raise ValueError(
                f"give both precision.low_above and precision.skip_above, got {low_above} and {skip_above}; or "
                f"neither, to take them from precision.quantiles of the trace's fit split"
            )
        elif quantiles is None or len(quantiles) != 2 or not 0 <= quantiles[0] <= quantiles[1] <= 1:
            raise ValueError(
                f"need two ascending precision.quantiles within 0..1 where low_above and skip_above are not set, "
                f"got {quantiles}"
            )

    def profile(self, scores: NDArray[np.floating]) -> None:
        """Take the thresholds from the scores of a model's selections, where only quantiles were given."""
        if self.quantiles is not None:
            low_above, skip_above = np.quantile(scores, self.quantiles)
            self._set(float(low_above), float(skip_above))

    def _set(self, low_above: float, skip_above: float) -> None:
        if not 0 <= low_above <= skip_above <= 1:
            raise ValueError(
                f"need 0 <= low_above <= skip_above <= 1 (HOBBIT's T1 and T2), got low_above={low_above}, "
                f"skip_above={skip_above}; set precision.low_above and precision.skip_above"
            )
        self.low_above, self.skip_above = low_above, skip_above

    def permitted(self, score: float) -> tuple[int, ...]:
        if score <= self.low_above:
            return (0,)
        return (0, 1) if score <= self.skip_above else (0, 1, SKIP)

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        return [self._one(score, choice.site, expert, resident)
                for score, expert in zip(choice.scores, choice.needs, strict=True)]  # fmt: skip

    def _one(self, score: float, site: int, expert: int, resident: Resident) -> int:
        if score <= self.low_above:
            return 0
        if score <= self.skip_above:
            return 1
        for precision in range(len(self.precisions)):
            if resident.has(precision, site, expert):
                return precision
        return SKIP
