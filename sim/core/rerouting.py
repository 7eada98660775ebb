"""Rerouting: needs that are served by other experts than the router chose
(contracts C15 to C32, *Reroute*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.policies.base import FloatArray, Gate, IntArray
from sim.values.types import SKIP, Geometry, Outcome

JOINED = -2
"""Stands in place of a wanted precision: another need of the gate brings the expert."""
REROUTE = int(Outcome.REROUTE)
THERE = (int(Outcome.HIT), int(Outcome.HIGH_FOR_LOW), int(Outcome.LOW_FOR_HIGH))


class ServedGate:
    """A gate as policies are told of it: its needs are the experts that serve, not those that the
    router chose. Implements ``Gate``; everything else is the router's gate.

    The score of a need is the smallest of the needs that it serves. A row may name an expert twice.
    """

    def __init__(
        self,
        gate: Gate,
        keys: list[int],
        needs: list[int],
        tokens: list[int],
        instead: dict[int, int],
    ) -> None:
        """``instead``: for each expert chosen and not skipped, the expert that serves."""
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
    """What a selector's answers mean for the ``needs`` of a gate. Lists are in need order.

    - ``experts``: the expert that serves each need.
    - ``told``: the precision that it serves at, or SKIP.
    - ``keys``: the key of that expert at that precision, or -1 for a skip.
    - ``wanted``: as ``told``, but `JOINED` where another need brings the same expert.
    - ``tokens``: the rows for which the need's expert is computed. It is 0 for a skip, and for a
      need that joins another.
    - ``gate``: the gate as policies are told of it.
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
        """The keys and outcomes to write down for admitted needs, from need number ``first`` on.

        A need that joins another has the key that serves it, and the outcome REROUTE. So has a need
        whose other expert is resident. All others keep the key and the outcome of their lookup.
        """
        keys, told = [], []
        for index, (key, outcome) in enumerate(zip(admitted, outcomes, strict=True), start=first):
            is_joined = self.wanted[index] == JOINED
            keys.append(self.keys[index] if is_joined else key)
            is_there = outcome in THERE and self.experts[index] != self.needs[index]
            told.append(REROUTE if is_joined or is_there else outcome)
        return keys, told


def serve(gate: Gate, answers: Sequence[int], geometry: Geometry) -> Serving:
    """Resolve a selector's answers for a gate.

    Needs that one expert serves are served once, at the highest of their precisions. The expert's
    own need carries the others if it has one here, and the first of them in need order else.
    """
    precisions = len(geometry.precisions)
    needs, site = gate.needs, gate.site
    experts, told = [], []
    for expert, answer in zip(needs, answers, strict=True):
        other, precision = divmod(answer, precisions)
        experts.append(other - 1 if other > 0 else expert)
        told.append(SKIP if answer == SKIP else precision)
    served = [index for index, precision in enumerate(told) if precision != SKIP]
    # Later entries win: the first need of an expert over later ones, the expert's own over all.
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
