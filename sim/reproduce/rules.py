"""The rules by which a simulated number agrees with a published one.

Every rule is one function; docs/papers.md has the rules in words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isclose, log
from typing import Any

from sim.reproduce.roles import Claim

LARGEST = 0.22
"""The most that ``|log(simulated / published)|`` of a speed-up may be: 25 %."""
SMALLEST = 0.02
"""What ``|log(simulated / published)|`` of a speed-up near 1 may be in any case."""
ODDS = 1.25
TIMES = 0.20
KERNELS = 0.08


@dataclass(frozen=True)
class Value:
    """A simulated number, ``point``.

    ``points`` are the values that it was averaged from, or the ends of a range. ``intervals`` are
    the paired 95 % intervals of the points, where there are any. ``holds`` says whether an ordering
    is the published one; ``point`` is then a ratio that shows it.
    """

    point: float
    points: tuple[float, ...] = ()
    intervals: tuple[tuple[float, float], ...] = ()
    holds: bool | None = None


def published(claim: Claim) -> tuple[float, ...]:
    """The claim's number, or the two ends of its range, with per cent as a share."""
    if claim.value is None:
        return ()
    ends = claim.value if isinstance(claim.value, tuple) else (claim.value,)
    factor = 0.01 if claim.unit.startswith("%") else claim.scale if claim.rule else 1.0
    return tuple(end * factor for end in ends)


def at_most(found: float, most: float) -> bool:
    """Whether it is; the last bits of a float must not decide."""
    return found <= most * (1 + 1e-12)


def same_sign(simulated: float, target: float) -> bool:
    """Whether both are above 1 or both below; with a target of 1 any number is right."""
    return target == 1 or (simulated - 1) * (target - 1) > 0


def speedup_agrees(simulated: float, target: float) -> bool:
    """Whether the sign is the same and ``|log(simulated / target)|`` is small enough.

    It may be at most ``min(0.22, max(0.5 |log target|, 0.02))``.
    """
    allowed = min(LARGEST, max(0.5 * abs(log(target)), SMALLEST))
    return (
        simulated > 0
        and same_sign(simulated, target)
        and at_most(abs(log(simulated / target)), allowed)
    )


def odds(share: float) -> float:
    return share / (1 - share) if share < 1 else float("inf")


def odds_agree(simulated: float, target: float) -> bool:
    return simulated > 0 and at_most(max(simulated / target, target / simulated), ODDS)


def near(simulated: float, target: float, allowed: float) -> bool:
    return at_most(abs(simulated / target - 1), allowed)


def _speedup(value: Value, target: Sequence[float], bound: str | None) -> bool:
    if bound == "above" and value.point > target[0]:
        return True
    return speedup_agrees(value.point, target[0])


def _each_end(
    agrees: Callable[[float, float], bool],
) -> Callable[[Value, Sequence[float], str | None], bool]:
    """A rule for published ranges: the lowest and the highest point must agree with the two ends.

    A single point must lie between the ends, or agree with one of them.
    """

    def judge(value: Value, target: Sequence[float], bound: str | None) -> bool:
        low, high = target[0], target[-1]
        points = value.points or (value.point,)
        if len(points) > 1:
            return agrees(min(points), low) and agrees(max(points), high)
        return low <= points[0] <= high or agrees(points[0], low) or agrees(points[0], high)

    return judge


def _speedups(value: Value, target: Sequence[float], bound: str | None) -> bool:
    return len(value.points) == len(target) and all(map(speedup_agrees, value.points, target))


def _reduction(value: Value, target: Sequence[float], bound: str | None) -> bool:
    """Whether the value is within half of the published effect, and no interval contains 0."""
    if not value.intervals or any(low <= 0 <= high for low, high in value.intervals):
        return False
    ends = (value.point,) if len(target) == 1 else (min(value.points), max(value.points))
    return all(at_most(abs(end - aim), aim / 2) for end, aim in zip(ends, target, strict=True))


def _within(value: Value, target: Sequence[float], bound: str | None) -> bool:
    if len(target) == 1:
        return near(value.point, target[0], TIMES)
    return target[0] <= value.point <= target[1]


JUDGES: dict[str, Callable[[Value, Sequence[float], str | None], bool]] = {
    "speedup": _speedup,
    "speedup_range": _each_end(speedup_agrees),
    "speedups": _speedups,
    "slightly_below": lambda value, target, bound: 1 - SMALLEST <= value.point < 1,
    "share": lambda value, target, bound: odds_agree(odds(value.point), odds(target[0])),
    "odds": lambda value, target, bound: odds_agree(value.point, target[0]),
    "reduction": _reduction,
    "time": lambda value, target, bound: near(value.point, target[0], TIMES),
    "rate": lambda value, target, bound: near(value.point, target[0], TIMES),
    "kernel": lambda value, target, bound: near(value.point, target[0], KERNELS),
    "order": lambda value, target, bound: value.holds is True,
    "within": _within,
}


def agrees(claim: Claim, value: Value) -> bool:
    """Whether ``value`` is what ``claim`` says, by its rule."""
    assert claim.rule is not None
    return JUDGES[claim.rule](value, published(claim), claim.bound)


def has_published_sign(claim: Claim, value: Value) -> bool | None:
    """Whether a speed-up or a reduction goes the published way, or an order is the published one.

    None for claims with other rules.
    """
    target, points = published(claim), value.points or (value.point,)
    if claim.rule == "order":
        return value.holds is True
    if claim.rule in ("speedup", "speedup_range", "speedups"):
        return all(same_sign(point, target[0]) for point in points)
    if claim.rule == "slightly_below":
        return value.point < 1
    if claim.rule == "reduction":
        return all(point > 0 for point in points)
    return None


# ---- identities


def matches(claim: Claim, computed: Any) -> bool:
    """Whether an arithmetic's result is the printed number.

    It must be that number when rounded or cut off at the printed digits. With ``claim.bound`` it
    must lie above, below, or inside the range; with ``claim.about`` within so many per cent.
    """
    given = computed if isinstance(computed, tuple) else (computed,)
    assert claim.value is not None
    printed: tuple[float, ...] = claim.value if isinstance(claim.value, tuple) else (claim.value,)
    if claim.bound == "range":
        return bool(printed[0] <= given[0] <= printed[1])
    return len(given) == len(printed) and all(
        _matches_one(claim, one / claim.scale, float(aim), digits(aim))
        for one, aim in zip(given, printed, strict=True)
    )


def digits(printed: float | int | None) -> int:
    """How many decimals a printed number has.

    >>> digits(87), digits(13.0), digits(0.464)
    (0, 1, 3)
    """
    return 0 if isinstance(printed, int) else len(repr(printed).partition(".")[2])


def _matches_one(claim: Claim, computed: float, printed: float, decimals: int) -> bool:
    if claim.about:
        inside = near(computed, printed, claim.about / 100)
        return inside and (claim.bound != "below" or computed <= printed)
    if claim.bound == "above":
        return computed > printed
    if claim.bound == "below":
        return at_most(computed, printed)
    unit = 10.0**decimals
    # The last bits of a float must not decide between 86.4 and 86.5.
    scaled = round(computed * unit, 6)
    return any(
        isclose(way / unit, printed, rel_tol=1e-9)
        for way in (floor(scaled), floor(scaled + 0.5), ceil(scaled - 0.5))
    )
