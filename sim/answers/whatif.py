"""The answer to a what-if: how speed depends on memory, link, predictor, CPU, bits or context."""

from __future__ import annotations

from dataclasses import dataclass

from sim.results.labels import Labels


@dataclass(frozen=True)
class Row:
    """One simulated point of a curve.

    ``value`` is what is varied. ``interval`` is the 95 % interval of the speed over sequences,
    ``waiting`` the share that is idle of the time with something to do. ``speedup`` is over the last
    series, None of that one itself, and where that one cannot run. ``slots_a_layer``: how many
    experts at the highest precision the device's slots hold, over the layers with experts.
    """

    value: float
    series: str
    tokens_per_s: float
    interval: tuple[float, float] | None
    waiting: float
    hit_ratio: float | None
    speedup: float | None
    speedup_interval: tuple[float, float] | None
    slots_a_layer: float


@dataclass(frozen=True)
class BreakEven:
    """The value at which something turns, which ``what`` names.

    ``value`` is None where it does not turn between ``low`` and ``high``. ``closed_form`` is the
    value by arithmetic alone, where there is one. ``told`` says it in words.
    """

    what: str
    value: float | None
    low: float
    high: float
    closed_form: float | None
    told: str


@dataclass(frozen=True)
class Growth:
    """A conversation that grows from ``first`` to ``last`` tokens, with keys and values of ``series``.

    ``first_slots`` and ``last_slots`` are slots a layer that these contexts leave. Slots shrink from
    the one to the other, or are allocated once, for the last. The speeds are means over the
    conversation (contract C176).
    """

    series: str
    first: float
    last: float
    first_slots: float
    last_slots: float
    shrinking_tokens_per_s: float
    once_tokens_per_s: float


@dataclass(frozen=True)
class Answer:
    """An answer: all that is printed, written and drawn."""

    question: str
    axis: str
    rows: tuple[Row, ...]
    break_even: BreakEven | None
    knee: float | None
    refused: tuple[str, ...]
    labels: tuple[tuple[str, Labels], ...]
    """The labels of every point, under the name of its series."""
    is_log: bool
    target: BreakEven | None = None
    """What the asked number of tokens a second needs, where one was asked for."""
    top_k: int = 0
    """How many experts a token needs at each layer."""
    about: str = ""
    """Model, machine and bytes for experts, of what the question does not vary."""
    growth: tuple[Growth, ...] = ()
    """Of a question about context: slots that shrink beside slots allocated once."""
