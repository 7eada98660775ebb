"""Which precision an expert's score asks for: what HOBBIT's selector answers at every gate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.policies.base import (
    ASK,
    Choice,
    FloatArray,
    IntArray,
    PrecisionSelector,
    Resident,
    ScoreRule,
)
from sim.values.types import SKIP


class ByScore(PrecisionSelector):
    """The table of `sim.policies.precisions.ScoreThreshold`, which takes the settings: precision 0
    up to a score of ``low_above``, 1 up to ``skip_above``, and beyond it 1 or none. It stands apart,
    so that it can be machine code (`make compiled`).
    """

    low_above: float
    skip_above: float
    rule: ScoreRule
    """``_grade`` as one object: gates keep what a rule has said by the rule."""

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        rule: ScoreRule | None = self.rule  # a class from elsewhere may take it away
        graded = getattr(choice, "graded", None)
        wanted: list[int] = (
            graded(rule)[0]
            if graded is not None and rule is not None
            else self._grade(np.array(choice.scores, np.float64)).tolist()
        )
        if ASK in wanted:
            site = choice.site
            wanted = [
                self.decide(site, expert, resident) if precision == ASK else precision
                for expert, precision in zip(choice.needs, wanted, strict=True)
            ]
        return wanted

    def _grade(self, scores: FloatArray) -> IntArray:
        over_low: IntArray = (scores > self.low_above).astype(np.int8)
        over_low[scores > self.skip_above] = ASK
        return over_low

    def decide(self, site: int, expert: int, resident: Resident) -> int:
        """The last line of the table."""
        lowest = len(self.precisions) - 1
        for precision in range(lowest + 1):
            if resident.has(precision, site, expert):
                return lowest
        return SKIP
