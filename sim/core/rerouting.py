"""Needs that are served by other experts than the router chose
(contract C26).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.policies.base import FloatArray, Gate, IntArray
from sim.values.types import SKIP, Geometry, Outcome

JOINED = -2
"""In place of a wanted precision: another need of the gate brings the expert."""
REROUTE = int(Outcome.REROUTE)
THERE = (int(Outcome.HIT), int(Outcome.HIGH_FOR_LOW), int(Outcome.LOW_FOR_HIGH))


class ServedGate:
    """A gate whose needs are the experts that serve it; all else is the router's. Implements
    ``Gate``.

    A need's score is the smallest of those that it stands for; a row may name an expert twice.
    """

    def __init__(
        self,
        gate: Gate,
        keys: list[int],
        needs: list[int],
        tokens: list[int],
        instead: dict[int, int],
    ) -> None:
        """``instead``: by expert chosen, the one that serves; without what is skipped."""
        self._gate, self._instead = gate, instead
        self.site, self.keys, self.needs, self.tokens = gate.site, keys, needs, tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate, name)

    @property
    def experts(self) -> IntArray:
        chosen = self._gate.experts
        flat = [self._instead.get(expert, expert) for expert in chosen.ravel().tolist()]
        return np.array(flat, np.int64).reshape(chosen.shape)

    @property
    def scores(self) -> Sequence[float]:
        least: dict[int, float] = {}
        for expert, score in zip(self._gate.needs, self._gate.scores, strict=True):
            if expert in self._instead:
                by = self._instead[expert]
                least[by] = min(score, least.get(by, score))
        return [least[expert] for expert in self.needs]

    @property
    def weights(self) -> FloatArray:
        return self._gate.weights


@dataclass(frozen=True)
class Serving:
    """What a selector's answers mean for the ``needs`` of a gate, in need order.

    ``experts``: who serves. ``told``: at which precision, or SKIP; ``keys`` of both (-1: a skip).
    ``wanted``: the same precisions, but `JOINED` where the expert is another need's. ``tokens``:
    rows for which it is computed (0: it is not, or with another need's). ``gate``: as policies are
    told of it.
    """

    needs: Sequence[int]
    experts: Sequence[int]
    told: Sequence[int]
    keys: Sequence[int]
    wanted: Sequence[int]
    tokens: Sequence[int]
    gate: Gate

    def looked_up(
        self, admitted: Sequence[int], outcomes: Sequence[int], first: int
    ) -> tuple[list[int], list[int]]:
        """Keys and outcomes as they are written down, of needs from the ``first`` on: serving keys
        (-1: not by itself), and what was found of these.
        """
        keys, told = [], []
        for index, (key, outcome) in enumerate(zip(admitted, outcomes, strict=True), start=first):
            is_joined = self.wanted[index] == JOINED
            keys.append(self.keys[index] if is_joined else key)
            is_there = outcome in THERE and self.experts[index] != self.needs[index]
            told.append(REROUTE if is_joined or is_there else outcome)
        return keys, told


def serve(gate: Gate, answers: Sequence[int], geometry: Geometry) -> Serving:
    """Needs that one expert serves are served once, at the highest of their precisions: by that
    expert's own need, or the first of them.
    """
    precisions = len(geometry.precisions)
    needs, site = gate.needs, gate.site
    experts, told = [], []
    for expert, answer in zip(needs, answers, strict=True):
        other, precision = divmod(answer, precisions)
        experts.append(other - 1 if other > 0 else expert)
        told.append(SKIP if answer == SKIP else precision)
    served = [index for index, precision in enumerate(told) if precision != SKIP]
    # Last comes what counts: the first need of an expert, and before that the expert's own.
    carrier = {experts[index]: index for index in reversed(served)}
    carrier |= {needs[index]: index for index in served if experts[index] == needs[index]}
    tokens, asked, rows, counts = [0] * len(needs), list(told), len(gate.experts), gate.tokens
    for index in served:
        by = carrier[experts[index]]
        tokens[by] = min(rows, tokens[by] + counts[index])
        asked[by] = min(asked[by], told[index])
    told = [SKIP if p == SKIP else asked[carrier[e]] for e, p in zip(experts, told, strict=True)]
    carries = [
        p != SKIP and carrier[e] == i for i, (e, p) in enumerate(zip(experts, told, strict=True))
    ]
    wanted = [p if carries[i] or p == SKIP else JOINED for i, p in enumerate(told)]
    keys = [
        SKIP if p == SKIP else geometry.key(p, site, e) for e, p in zip(experts, told, strict=True)
    ]
    kept = [index for index, is_one in enumerate(carries) if is_one]
    as_served: Any = ServedGate(
        gate,
        [geometry.key(0, site, experts[i]) for i in kept],
        [experts[i] for i in kept],
        [tokens[i] for i in kept],
        {needs[i]: experts[i] for i in served},
    )
    return Serving(needs, experts, told, keys, wanted, tokens, as_served)
