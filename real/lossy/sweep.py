"""A motivating figure, measured: curves of quality, and whether the paper's order holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from real.lossy.loss import (
    Estimate,
    Quality,
    TokenLoss,
    difference,
    divergence_difference,
    quality_of,
)

SMALL = (
    "a small model with a byte-level vocabulary of 2,048: sizes of effects are its own, only orders"
    " are compared"
)


@dataclass(frozen=True)
class Point:
    """One setting: ``x`` on its ``curve``, and the losses of every text."""

    curve: str
    x: float
    losses: Sequence[TokenLoss]

    @cached_property
    def quality(self) -> Quality:
        return quality_of(self.losses)


@dataclass(frozen=True)
class Order:
    """A paper's claim that, at each of ``at``, the curve ``better`` loses less than ``worse``."""

    claim: str
    better: str
    worse: str
    at: tuple[float, ...]


@dataclass(frozen=True)
class Verdict:
    """What became of a claim, at each place of it and paired.

    ``perplexity``: that of ``better`` over that of ``worse`` - 1. ``divergence``: the difference of
    their KL to the full-precision model, in nats a token.
    """

    order: Order
    perplexity: tuple[Estimate, ...]
    divergence: tuple[Estimate, ...]

    @property
    def text(self) -> str:
        """In how many places the claim holds, by either measure."""
        return f"by perplexity {verdict_of(self.perplexity)}; by KL {verdict_of(self.divergence)}"


def verdict_of(differences: Sequence[Estimate]) -> str:
    """``holds at all 3``, ``the other way round at all 3``, or at how many places which."""
    holds = sum(d.excludes_0 and d.value < 0 for d in differences)
    fails = sum(d.excludes_0 and d.value > 0 for d in differences)
    count = len(differences)
    if count in (holds, fails):
        return f"{'holds' if holds else 'the other way round'} at all {count}"
    open_places = count - holds - fails
    parts = (
        (holds, "it holds"),
        (fails, "it is the other way round"),
        (open_places, "cannot be told"),
    )
    return ", ".join(f"{words} at {number}" for number, words in parts if number) + f" of {count}"


@dataclass(frozen=True)
class Sweep:
    """A figure's points, the claims of its paper, and what a reader must know.

    ``axis`` names x. ``grid``: a map [rows][columns] beside the curves, for a figure that is one.
    """

    figure: str
    title: str
    source: str
    axis: str
    points: Sequence[Point]
    orders: Sequence[Order] = ()
    notes: Sequence[str] = ()
    grid: Sequence[Sequence[float]] = field(default_factory=tuple)
    grid_label: str = ""

    def at(self, curve: str, x: float) -> Point:
        """The point of a curve at x. Raise KeyError where there is none."""
        for point in self.points:
            if point.curve == curve and abs(point.x - x) < 1e-9:
                return point
        raise KeyError(f"{self.figure} has no point of {curve} at {x}")

    @cached_property
    def verdicts(self) -> list[Verdict]:
        return [
            Verdict(
                order,
                *(
                    tuple(
                        measure(self.at(order.better, x).losses, self.at(order.worse, x).losses)
                        for x in order.at
                    )
                    for measure in (difference, divergence_difference)
                ),
            )
            for order in self.orders
        ]

    @cached_property
    def frame(self) -> pl.DataFrame:
        """A table with one row for each point."""
        return pl.DataFrame([{"curve": p.curve, "x": p.x, **p.quality.row()} for p in self.points])
