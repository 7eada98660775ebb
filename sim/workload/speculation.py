"""Speculative decoding: how many drafted tokens a step checks, and which of them are kept.

A cheap drafter guesses the next tokens of a sequence. One step of the model then checks them all:
it reads the rows of the next token and of the drafts together. Drafts up to the first wrong one are
kept, and with them one token more, which the model itself says. The definitions are contracts C151 and C184.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from sim.values.units import require_number, require_range

ON_DEVICE, OFFLOADED = "on_device", "offloaded"
DRAFT_EXPERTS = (ON_DEVICE, OFFLOADED)
MOST_DRAFTS = 10_000


@dataclass(frozen=True)
class Speculation:
    """How the sequences of a run draft tokens.

    - ``tokens``: the most drafts that a step checks for one sequence; 0: no speculation.
    - ``accepted``: how often drafts are right. A number is the chance of each draft whose
      predecessors were right. A sequence has, for each place of a draft, the share of steps that
      keep it, as engines log it; such shares never rise.
    - ``seed``: what the outcomes are drawn from. They belong to tokens, so that runs of other
      systems, and of other depths, meet the same outcomes.
    - ``layers``: through how many layers like the model's last one a draft runs. 0: drafts cost
      nothing (looked up in the text).
    - ``experts``: where the experts of these layers are. ``on_device``: they stay there.
      ``offloaded``: they are offloaded like all others, and a draft is a step (contract C184).

    Raise ValueError for numbers out of range, or too few shares.
    """

    tokens: int = 0
    accepted: float | tuple[float, ...] = 1.0
    seed: int = 0
    layers: int = 0
    experts: str = ON_DEVICE
    _chances: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_number("workload.draft_tokens", self.tokens, maximum=MOST_DRAFTS, whole=True)
        require_number("workload.draft_seed", self.seed, maximum=inf, whole=True)
        require_number("workload.draft_layers", self.layers, whole=True)
        if self.experts not in DRAFT_EXPERTS:
            raise ValueError(
                f"unknown workload.draft_experts={self.experts}; allowed: {', '.join(DRAFT_EXPERTS)}"
            )
        if self.experts == OFFLOADED and self.tokens and not self.layers:
            raise ValueError(
                "workload.draft_experts=offloaded with workload.draft_layers=0: such drafts have no"
                " experts; set workload.draft_layers=1, or workload.draft_experts=on_device"
            )
        object.__setattr__(self, "_chances", self._chances_of(self.accepted))

    def _chances_of(self, accepted: float | tuple[float, ...]) -> tuple[float, ...]:
        name = "workload.draft_accepted"
        if not isinstance(accepted, tuple):
            require_range(name, accepted, 0, 1, "a share")
            return (float(accepted),) * self.tokens
        shares = accepted
        for index, share in enumerate(shares):
            require_range(f"{name}[{index}]", share, 0, 1, "a share")
        if len(shares) < self.tokens:
            raise ValueError(
                f"{name} has {len(shares)} shares for workload.draft_tokens={self.tokens}; give the"
                " share of each place, or one number for all"
            )
        if rising := [pair for pair in pairwise(shares) if pair[0] < pair[1]]:
            raise ValueError(
                f"{name}={list(shares)} rises from {rising[0][0]} to {rising[0][1]}: a draft is"
                " kept only with those before it; give the share of all steps that keep each place"
            )
        before = (1.0, *shares)
        return tuple(
            share / earlier if earlier else 0.0
            for share, earlier in zip(shares[: self.tokens], before, strict=False)
        )

    @property
    def layers_in_use(self) -> int:
        """Through how many layers with experts that stay on the device a draft runs."""
        return self.layers if self.tokens and self.experts == ON_DEVICE else 0

    @property
    def sites(self) -> int:
        """Through how many layers with offloaded experts a draft runs."""
        return self.layers if self.tokens and self.experts == OFFLOADED else 0

    @property
    def is_certain(self) -> bool:
        """Whether there are drafts, and each of them is right."""
        return self.tokens > 0 and min(self._chances) == 1

    @property
    def expected_tokens(self) -> float:
        """The mean number of tokens that a step gives which checks all drafts."""
        kept, sum_of = 1.0, 1.0
        for chance in self._chances:
            kept *= chance
            sum_of += kept
        return sum_of

    def outcomes(self, sequence: int, count: int) -> tuple[float, ...]:
        """The draws of a sequence's first ``count`` decoded tokens, in [0, 1)."""
        draw = random.Random(f"{self.seed} {sequence}")
        return tuple(draw.random() for _ in range(count))

    def kept(self, draws: Sequence[float]) -> int:
        """How many drafts are kept, of those whose tokens have these ``draws``, in order."""
        for index, (draw, chance) in enumerate(zip(draws, self._chances, strict=False)):
            if draw >= chance:
                return index
        return min(len(draws), self.tokens)


NO_DRAFTS = Speculation()
