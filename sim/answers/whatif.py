"""What-ifs: how speed answers to memory, link, predictor, CPU or bits."""

from __future__ import annotations

from dataclasses import dataclass

from sim.results.labels import Labels


@dataclass(frozen=True)
class Row:
    """One simulated point. ``interval``: 95 % over sequences; ``waiting``: the share of the
    makespan.
    """

    value: float
    series: str
    tokens_per_s: float
    interval: tuple[float, float] | None
    waiting: float
    hit_ratio: float | None
    speedup: float | None = None
    speedup_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class BreakEven:
    """A point where something turns. ``value`` None: nowhere between ``low`` and ``high``;
    ``closed_form`` where the arithmetic says so, too.
    """

    what: str
    value: float | None
    low: float
    high: float
    closed_form: float | None
    told: str


@dataclass(frozen=True)
class Answer:
    """All that is printed, written and drawn."""

    question: str
    axis: str
    rows: tuple[Row, ...]
    break_even: BreakEven | None
    knee: float | None
    refused: tuple[str, ...]
    labels: tuple[tuple[str, Labels], ...]
    """Of every point, by its series."""
    is_log: bool
