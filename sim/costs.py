"""Durations: what a step's dense work and an expert's computation cost, in whole ns, and the time of a transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sim.workload import Step


class Durations(Protocol):
    """What a driver needs to know about time on this machine for this model."""

    def dense_ns(self, step: Step) -> Sequence[int]:
        """The work before each site's gate, [S]."""

    def tail_ns(self, step: Step) -> int:
        """The work after the last site."""

    def expert_ns(self, precision: int, tokens: int) -> int:
        """Computing one expert for ``tokens`` rows."""

    def transfer_ns(self, moved_bytes: int) -> int:
        """One transfer's service on the link."""


class FixedDurations:
    """Durations given outright: for worked examples and tests. ``per_token_ns`` is added for every row of an expert."""

    def __init__(self, dense_ns: Sequence[int], tail_ns: int, expert_ns: Sequence[int], transfer_ns: dict[int, int],
                 per_token_ns: Sequence[int] | None = None) -> None:  # fmt: skip
        self._dense, self._tail, self._expert, self._transfer = dense_ns, tail_ns, expert_ns, transfer_ns
        self._per_token = per_token_ns or [0] * len(expert_ns)

    def dense_ns(self, step: Step) -> Sequence[int]:
        return self._dense

    def tail_ns(self, step: Step) -> int:
        return self._tail

    def expert_ns(self, precision: int, tokens: int) -> int:
        return self._expert[precision] + self._per_token[precision] * tokens

    def transfer_ns(self, moved_bytes: int) -> int:
        return self._transfer[moved_bytes]
