"""Which precision an expert's score asks for: what HOBBIT's selector answers at every gate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.policies.base import Choice, FloatArray, IntArray, PrecisionSelector, Resident, ScoreRule
from sim.values.types import SKIP

LEAST = 2
"""The grade of a score above both of HOBBIT's thresholds; smaller grades are precisions."""


class ByScore(PrecisionSelector):
    """The table of `sim.policies.precisions.ScoreThreshold`, which takes the settings: precision 0
    up to a score of ``low_above``, 1 up to ``skip_above``, and beyond it 1 or none. It stands apart,
    so that it can be machine code (`make compiled`).
    """

    low_above: float
    skip_above: float
    _rule: ScoreRule
    """``_grade`` as one object: gates keep what a rule has said by the rule."""

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        # Choices of a trace are graded for the whole run at once.
        grades = getattr(choice, "grades", None)
        wanted: Sequence[int] = (
            grades(self._rule)
            if grades is not None
            else self._grade(np.array(choice.scores, np.float64)).tolist()
        )
        if LEAST in wanted:
            site = choice.site
            wanted = [
                self._of_least(site, expert, resident) if grade == LEAST else grade
                for expert, grade in zip(choice.needs, wanted, strict=True)
            ]
        return wanted

    def _grade(self, scores: FloatArray) -> IntArray:
        """The lines of the table by number: precisions, and LEAST."""
        over_low: IntArray = (scores > self.low_above).astype(np.uint8)
        return over_low + (scores > self.skip_above)

    def _of_least(self, site: int, expert: int, resident: Resident) -> int:
        lowest = len(self.precisions) - 1
        is_there = any(resident.has(precision, site, expert) for precision in range(lowest + 1))
        return lowest if is_there else SKIP
