"""How far the times of machines were from measured ones where only data sheets told their figures."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from sim.machine.validated import Validated

PRESETS = ("roofline", "paper")
"""The presets of machines whose figures are those of data sheets, or of what a paper tells."""


@dataclass(frozen=True)
class SheetErrors:
    """The errors of time per token on all machines that were compared so.

    A machine's error is the root mean square of its runs' errors, as in `Validated`.

    - ``machines``: how many cards, phones and CPUs there are; two cards of a kind are one.
    - ``middle_factor``: the median machine's error, as a factor, at least 1.
    - ``log_error``: the root mean square of the machines' errors, as a logarithm.
    """

    machines: int
    middle_factor: float
    log_error: float

    def __str__(self) -> str:
        """``29 machines from data sheets were off by 1.3 times in the middle``."""
        return (
            f"{self.machines} machines from data sheets were off by {self.middle_factor:.2g} times"
            " in the middle"
        )


KEPT = SheetErrors(machines=29, middle_factor=1.3, log_error=0.47)
"""Those of ``real/results/pairs.csv``; ``moelab fidelity`` tells where they are others."""


def of_preset(preset: str) -> SheetErrors | None:
    """The errors that a machine of this preset shares; None where somebody measured the machine."""
    return KEPT if preset in PRESETS else None


def believed(own: Validated | None, shared: SheetErrors | None) -> tuple[float, float] | None:
    """The error to expect of a machine's next run, and its degrees of freedom; None if nobody knows.

    Systems of a machine and machines of data sheets count alike: squares are averaged over all of
    them, and all of them are degrees (docs/metrics.md, "How sure").
    """
    known = [(own.systems, own.log_error)] if own else []
    known += [(shared.machines, shared.log_error)] if shared else []
    freedom = sum(of for of, _ in known)
    if not freedom:
        return None
    return sqrt(sum(of * error * error for of, error in known) / freedom), freedom
