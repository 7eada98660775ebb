"""Tables of times measured on a machine, which take the place of its formulas."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sim.values.units import require_number, us

Points = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Measured:
    """Tables of points (argument, microseconds).

    | table | time of | argument |
    |---|---|---|
    | expert_us, by precision | one expert | its rows |
    | copy_us, by name of the link | one service | its bytes |
    | dense_us | a layer without its experts, for one row | the tokens of its context |

    Times are interpolated linearly, and extrapolated beyond the last two points. Below the first
    point its time holds. ``model`` names the model whose experts and layers were measured ("" where
    none were).
    """

    model: str = ""
    expert_us: Mapping[str, Points] = field(default_factory=dict)
    dense_us: Points = ()
    copy_us: Mapping[str, Points] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tables = {f"expert_us.{name}": points for name, points in self.expert_us.items()}
        tables |= {f"copy_us.{name}": points for name, points in self.copy_us.items()}
        tables |= {"dense_us": self.dense_us} if self.dense_us else {}
        for name, points in tables.items():
            _check(f"hardware.measured.{name}", points)
        if (self.expert_us or self.dense_us) and not self.model:
            raise ValueError(
                "hardware.measured.model must name the model whose expert_us and dense_us these are"
            )

    def check_model(self, name: str) -> None:
        """Raise ValueError if experts or layers were measured of another model than ``name``."""
        if (self.expert_us or self.dense_us) and name != self.model:
            raise ValueError(
                f"hardware.measured holds times of model {self.model}, not of {name}; choose that"
                " model, or set hardware.measured.expert_us={} and hardware.measured.dense_us=[]"
            )


def _check(name: str, points: Points) -> None:
    shaped = isinstance(points, list | tuple) and all(
        isinstance(p, list | tuple) and len(p) == 2 for p in points
    )
    if not points or not shaped:
        raise ValueError(f"{name}={points!r} must be a list of [argument, microseconds]")
    for argument, time_us in points:
        require_number(name, argument)
        require_number(name, time_us)
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
