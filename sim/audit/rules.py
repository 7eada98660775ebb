"""The rules of the audit: what the files give for a key of the summary, and whether it agrees."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Value = float | int | str | bool | list[int] | None
NS_PER_S = 10**9
TOLERANCE = 1e-9
"""The relative difference allowed, because two ways to add floats differ in their last bits."""


@dataclass(frozen=True)
class Between:
    """A number from ``low`` to ``high``, both included, where the files tell no more."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low!r} to {self.high!r}"


@dataclass(frozen=True)
class Holds:
    """An interval (low, high) that holds ``value``."""

    value: float

    def __str__(self) -> str:
        return f"an interval that holds {self.value!r}"


@dataclass(frozen=True)
class Rule:
    """The dotted ``key`` must have the value ``expected``; ``text`` says why, in words."""

    key: str
    expected: Value | Between | Holds
    text: str


@dataclass(frozen=True)
class Left:
    """``key`` and all keys below it are not recomputed, for this ``reason``."""

    key: str
    reason: str


def flat(summary: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a summary with its dotted key; a list is one value."""
    for name, value in summary.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{key}.")
        else:
            yield key, value


def agrees(found: Any, expected: Value | Between | Holds) -> bool:
    """Whether a value of the summary is what a rule expects."""
    if isinstance(expected, Holds):
        return _holds(found, expected.value)
    if isinstance(expected, Between):
        return is_number(found) and _at_most(expected.low, found) and _at_most(found, expected.high)
    if is_number(found) and is_number(expected):
        return found == expected or math.isclose(found, expected, rel_tol=TOLERANCE)  # type: ignore[arg-type]
    return type(found) is type(expected) and found == expected


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at_most(low: float, high: float) -> bool:
    return low <= high or math.isclose(low, high, rel_tol=TOLERANCE)


def _holds(interval: Any, value: float) -> bool:
    is_pair = (
        isinstance(interval, Sequence) and len(interval) == 2 and all(map(is_number, interval))
    )
    return is_pair and _at_most(interval[0], value) and _at_most(value, interval[1])


# ---- sums that several rules need


def ratio(above: float, below: float) -> float | None:
    """``above / below``, None where ``below`` is 0."""
    return above / below if below else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value at ``share * (n - 1)`` of the n sorted values, interpolated; None without any."""
    if not values:
        return None
    ordered, place = sorted(values), share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
