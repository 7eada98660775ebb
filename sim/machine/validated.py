"""How far a machine's simulated times were from measured ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, median

from sim.values.units import require_number, require_range

MOST_PERCENT = 1.995
"""From this factor on an error is told as a factor, below it in per cent."""


@dataclass(frozen=True)
class Validated:
    """The errors of time per token on one machine, over runs that had no part in its figures.

    Errors are factors, at least 1: of predicted over measured time, or of measured over predicted.
    So one error holds for times and for tokens a second alike.

    - ``runs``: how many runs were compared; ``systems``: how many different systems they were of.
    - ``median_factor``, ``worst_factor``: the median error, and the largest.
    - ``log_error``: the root of the mean square of the errors' logarithms. An error that all runs
      share counts as an error: nothing is subtracted.
    - ``only``: what all those runs had that another run may not have, such as all experts on the
      device; empty where nothing is.
    """

    runs: int
    systems: int
    median_factor: float
    worst_factor: float
    log_error: float
    only: str = ""

    def __post_init__(self) -> None:
        for name in ("runs", "systems"):
            require_number(f"hardware.validated.{name}", getattr(self, name), minimum=1, whole=True)
        if self.systems > self.runs:
            raise ValueError(
                f"hardware.validated.systems={self.systems} exceeds its runs={self.runs}"
            )
        for name in ("median_factor", "worst_factor"):
            require_range(f"hardware.validated.{name}", getattr(self, name), 1, 1e6, "times")
        require_range("hardware.validated.log_error", self.log_error, 0, 20, "a logarithm")
        if not isinstance(self.only, str):
            raise ValueError(f"hardware.validated.only={self.only!r} must be text")

    @property
    def short(self) -> str:
        """``33 %, 18 runs``."""
        return f"{_told(self.worst_factor)}, {self.runs} run{'s' * (self.runs != 1)}"

    def __str__(self) -> str:
        """``tokens/s are within 33 % of 18 measured runs on this machine (median 3.2 %)``."""
        runs = f"{self.runs} measured run{'s' * (self.runs != 1)}"
        middle = f" (median {_told(self.median_factor)})" if self.runs > 1 else ""
        told = f"tokens/s are within {_told(self.worst_factor)} of {runs} on this machine{middle}"
        return f"{told} with {self.only}" if self.only else told


def _told(factor: float) -> str:
    """An error in words: per cent, or how many times."""
    if factor < MOST_PERCENT:
        return f"{100 * (factor - 1):.2g} %"
    return f"{factor:.2g} times"


def validated(pairs: Iterable[tuple[str, float, float]]) -> Validated:
    """The errors of runs, given as (system, predicted time, measured time).

    Raise ValueError where there is no run, or a time is not above 0.
    """
    told = list(pairs)
    if not told or min(min(one[1:]) for one in told) <= 0:
        raise ValueError(f"errors need runs with times above 0, got {told}")
    logs = [abs(log(predicted / measured)) for _, predicted, measured in told]
    return Validated(
        len(told),
        len({system for system, *_ in told}),
        exp(median(logs)),
        exp(max(logs)),
        sqrt(fmean(one * one for one in logs)),
    )
