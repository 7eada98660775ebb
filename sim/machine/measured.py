"""Tables of times measured on a machine, which take the place of its formulas."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from sim.machine.precision import PRECISIONS
from sim.values.units import require_number, require_range, us

LONGEST_US = 1e9
"""The longest time that a table may have: a quarter of an hour."""
Points = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Measured:
    """Tables of points (argument, microseconds).

    | table | time of | argument |
    |---|---|---|
    | expert_us, by precision | one expert of ``expert_params`` parameters | its rows |
    | dense_us | a layer of ``dense_params`` without its experts, for one row | its context's tokens |
    | copy_us, by name of the link | one service | its bytes |

    Times are interpolated linearly, and extrapolated beyond the last two points; there the formula
    is the least that an expert or a layer takes. Below the first point its time holds. An expert or
    layer of another size takes ``fixed_us`` of these times all the same, and the rest in proportion
    to its parameters. A precision that was not measured takes the times of the measured one whose
    moved weights have the nearest number of bits.
    """

    expert_params: float = 0.0
    dense_params: float = 0.0
    fixed_us: float = 0.0
    expert_us: Mapping[str, Points] = field(default_factory=dict)
    dense_us: Points = ()
    copy_us: Mapping[str, Points] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tables = {f"expert_us.{name}": points for name, points in self.expert_us.items()}
        tables |= {f"copy_us.{name}": points for name, points in self.copy_us.items()}
        tables |= {} if self.dense_us in ((), []) else {"dense_us": self.dense_us}
        for name, points in tables.items():
            check_points(f"hardware.measured.{name}", points)
        for name in self.expert_us:
            _require_known(name)
        require_range("hardware.measured.fixed_us", self.fixed_us, 0, 1e7, "microseconds")
        for what, table in (("expert", self.expert_us), ("dense", self.dense_us)):
            if table:
                require_range(
                    f"hardware.measured.{what}_params",
                    getattr(self, f"{what}_params"),
                    1,
                    1e13,
                    f"parameters of what {what}_us are the times of",
                )

    @property
    def parties(self) -> set[str]:
        """The links, and ``compute``, that have tables."""
        return {*self.copy_us, *(["compute"] if self.expert_us or self.dense_us else [])}

    def stands_for(self, precision: str) -> str | None:
        """The measured precision whose times ``precision`` takes; None where none was measured.

        Of two that are equally near the one of more bits counts, and of these the first by name.
        """
        if precision in self.expert_us or not self.expert_us:
            return precision if self.expert_us else None
        bits = PRECISIONS[precision].gate
        return min(
            self.expert_us,
            key=lambda name: (
                abs(PRECISIONS[name].gate - bits),
                -PRECISIONS[name].gate,
                name,
            ),
        )

    def expert_ns(self, precision: str, params: float, rows: int) -> int:
        """An expert of so many parameters; ``precision`` is a measured one."""
        return self._scaled(time_ns(self.expert_us[precision], rows), params / self.expert_params)

    def dense_ns(self, params: float, context: int) -> int:
        """A layer of so many parameters without its experts, for one row."""
        return self._scaled(time_ns(self.dense_us, context), params / self.dense_params)

    def _scaled(self, measured_ns: int, ratio: float) -> int:
        fixed_ns = min(measured_ns, us(self.fixed_us))
        return fixed_ns + round((measured_ns - fixed_ns) * ratio)

    def with_slower_copies(self, link: str, share: float, latency_us: float) -> Measured:
        """These tables where a link has a share of its bandwidth: what its services take beyond the
        latency takes ``1 / share`` times as long.
        """
        if link not in self.copy_us:
            return self
        slower = [
            [size, took + max(0.0, took - latency_us) * (1 / share - 1)]
            for size, took in self.copy_us[link]
        ]
        return replace(self, copy_us={**self.copy_us, link: slower})

    def told(self, precisions: Iterable[str]) -> str | None:
        """What a reader must know of these precisions; None where all were measured."""
        lent = [
            f"{name} takes the times of {self.stands_for(name)}"
            for name in precisions
            if self.expert_us and name not in self.expert_us
        ]
        return f"not measured there: {', '.join(lent)}" if lent else None


def _require_known(name: str) -> None:
    if name not in PRECISIONS:
        raise ValueError(
            f"hardware.measured.expert_us.{name}: unknown precision; known: {', '.join(PRECISIONS)}"
        )


def check_points(name: str, points: Points) -> None:
    """Raise ValueError, naming the table, unless its points are numbers by ascending argument."""
    shaped = isinstance(points, list | tuple) and all(
        isinstance(p, list | tuple) and len(p) == 2 for p in points
    )
    if not points or not shaped:
        raise ValueError(f"{name}={points!r} must be a list of [argument, microseconds]")
    for argument, time_us in points:
        require_number(name, argument)
        require_range(name, time_us, 0, LONGEST_US, "microseconds")
    arguments = [point[0] for point in points]
    if any(b <= a for a, b in pairwise(arguments)):
        raise ValueError(f"{name}: the arguments {arguments} must ascend")


def time_ns(points: Points, argument: float) -> int:
    """The time in a table at ``argument``, in whole ns; never below 0."""
    if len(points) == 1 or argument <= points[0][0]:
        return us(points[0][1])
    at = min(bisect_right([point[0] for point in points], argument), len(points) - 1)
    (x0, y0), (x1, y1) = points[at - 1], points[at]
    return max(0, us(y0 + (y1 - y0) * (argument - x0) / (x1 - x0)))
