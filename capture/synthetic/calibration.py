"""Fits a preset's knobs to its published statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from capture.synthetic.targets import STATISTICS, Gates, synthetic_gates
from sim.synthetic.gate_walk import Walk
from sim.synthetic.preset import Fit, FitRow, Target
from sim.traces.routing import RoutingRule

FIT_SEEDS = (0, 1)
FRESH_SEEDS = (101, 102, 103, 104)
SWEEPS = 8
STEPS = 7
CLOSE = 0.25
"""A target is reached within this share of its uncertainty."""
DAMPING = 0.5
"""How far a knob goes towards its solution after the first sweep.

Without damping, knobs that move the same statistics would swing.
"""


@dataclass(frozen=True)
class Stack:
    """The stack of layers that a walk is fitted for, and the size of the samples.

    A sample has ``sequences`` of ``tokens`` each.
    """

    rule: RoutingRule
    layers: int
    experts: int
    top_k: int
    sequences: int = 8
    tokens: int = 128

    def sample(self, walk: Walk, seed: int) -> Gates:
        return synthetic_gates(
            walk,
            self.rule,
            self.layers,
            self.experts,
            self.top_k,
            self.sequences,
            self.tokens,
            seed,
        )


def calibrate(
    stack: Stack,
    start: Walk,
    targets: Sequence[Target],
    advance: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Fit the knobs of ``start`` to ``targets``, as `capture.calibrate` describes.

    ``advance`` is told what is being solved, for a progress display.
    """
    trial = _Trial(stack, start)
    tied = [target for target in targets if target.knob]
    for sweep in range(SWEEPS):
        moved = False
        for target in tied:
            advance(f"sweep {sweep + 1} of at most {SWEEPS}: {target.knob} for {target.statistic}")
            moved |= _solve(trial, target, sweep)
        if not moved:
            break
    return Fit(
        trial.walk, measure(stack, trial.walk, targets, FRESH_SEEDS), stack.sequences, stack.tokens
    )


def measure(
    stack: Stack, walk: Walk, targets: Sequence[Target], seeds: Sequence[int]
) -> tuple[FitRow, ...]:
    """What a walk achieves: mean and standard deviation of each target's statistic over seeds."""
    samples = [stack.sample(walk, seed) for seed in seeds]
    found = [[STATISTICS[target.statistic](sample) for sample in samples] for target in targets]
    return tuple(
        FitRow(target, float(np.mean(values)), float(np.std(values, ddof=1)))
        for target, values in zip(targets, found, strict=True)
    )


class _Trial:
    """The walk under calibration and its samples, which are drawn again only when it changes."""

    def __init__(self, stack: Stack, walk: Walk) -> None:
        self.stack = stack
        self.walk = walk
        self._samples: list[Gates] = []

    def turn(self, knob: str, value: float) -> None:
        """Set a knob."""
        if value != getattr(self.walk, knob):
            # A knob's name and number come from the preset; `Walk` checks their range.
            self.walk = replace(self.walk, **{knob: value})  # type: ignore[arg-type]
            self._samples = []

    def miss(self, target: Target, value: float) -> float:
        """Statistic minus target, with the target's knob set to ``value``."""
        assert target.knob is not None
        self.turn(target.knob, value)
        self._samples = self._samples or [self.stack.sample(self.walk, seed) for seed in FIT_SEEDS]
        return (
            float(np.mean([STATISTICS[target.statistic](sample) for sample in self._samples]))
            - target.value
        )


def _solve(trial: _Trial, target: Target, sweep: int) -> bool:
    """Move the target's knob towards its solution; False if it need not or cannot move."""
    assert target.knob is not None
    assert target.within is not None
    before = float(getattr(trial.walk, target.knob))
    now = min(max(before, target.within[0]), target.within[1])
    miss = trial.miss(target, now)
    if abs(miss) <= CLOSE * target.uncertainty:
        return now != before
    solved = _root(trial, target, _bracket(trial, target, now, miss, sweep))
    trial.turn(target.knob, solved if not sweep else now + DAMPING * (solved - now))
    return abs(solved - before) > 1e-6


def _root(trial: _Trial, target: Target, bracket: tuple[float, float, float, float]) -> float:
    """The knob's position in the bracket at which the statistic is close to its target.

    That is the better end of the bracket if the target is not between its ends.
    """
    low, high, at_low, at_high = bracket
    if at_low * at_high > 0:
        return low if abs(at_low) < abs(at_high) else high
    guess = low
    for _ in range(STEPS):
        guess = (low * at_high - high * at_low) / (at_high - at_low)
        margin = 0.05 * (high - low)
        guess = min(max(guess, low + margin), high - margin)
        miss = trial.miss(target, guess)
        if abs(miss) <= CLOSE * target.uncertainty:
            break
        # The Illinois rule: the end that stays counts half. Where the curve bends it would
        # otherwise stay for ever.
        if miss * at_high > 0:
            high, at_high, at_low = guess, miss, at_low / 2
        else:
            low, at_low, at_high = guess, miss, at_high / 2
    return guess


def _bracket(
    trial: _Trial, target: Target, now: float, miss: float, sweep: int
) -> tuple[float, float, float, float]:
    """Two positions of a knob, with the target between them if possible, and their misses.

    After the first sweep a knob is nearly right, so its neighbourhood is tried before its whole
    range.
    """
    assert target.within is not None
    least, most = target.within
    if sweep:
        reach = (most - least) / 4**sweep
        for other in (min(most, now + reach), max(least, now - reach)):
            there = trial.miss(target, other)
            if there * miss <= 0:
                return (now, other, miss, there) if now < other else (other, now, there, miss)
    return least, most, trial.miss(target, least), trial.miss(target, most)
