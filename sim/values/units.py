"""All unit conversions of the project, and the checks of numbers with units.

Inside the program time is in int nanoseconds and sizes are in int bytes. GB is 10**9 bytes, GiB is
2**30 bytes; every name and output says which of the two it means.
"""

from fractions import Fraction
from math import ceil, floor

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
GB = 1_000_000_000
GIB = 1 << 30
MIB = 1 << 20
MOST = 1e15
"""The largest number that a configuration may have where nothing lower is said. What is computed of
numbers up to it, in floats or in 64 bits, does not overflow.
"""


def us(value: float) -> int:
    """Microseconds to whole nanoseconds."""
    return round(value * NS_PER_US)


def ms(value: float) -> int:
    """Milliseconds to whole nanoseconds."""
    return round(value * NS_PER_MS)


def gib(value: float) -> int:
    """GiB (2**30 bytes) to whole bytes."""
    return round(value * GIB)


def as_written(share: float) -> Fraction:
    """The exact value of ``share`` as written: 0.575 is 575 / 1000.

    The float itself is a binary fraction a little below that.
    """
    return Fraction(repr(float(share)))


def part_of(whole: int, share: float | Fraction, *, up: bool = False) -> int:
    """``share`` of a count or of bytes, rounded down (with ``up``: up).

    It is exact: 0.575 of 1,440 is 828, where floats would make it 827.
    """
    part = whole * (share if isinstance(share, Fraction) else as_written(share))
    return ceil(part) if up else floor(part)


def gb_per_s(value: float) -> float:
    """GB/s (10**9 bytes a second) to bytes a second."""
    return value * GB


def tflops(value: float) -> float:
    """TFLOP/s to floating-point operations a second."""
    return value * 1e12


def seconds(value_ns: int) -> float:
    """Whole nanoseconds to seconds, for output only."""
    return value_ns / NS_PER_S


def require_flag(name: str, value: object) -> None:
    """Raise ValueError unless ``value`` is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be true or false")


def require_number(
    name: str,
    value: object,
    *,
    minimum: float = 0.0,
    maximum: float = MOST,
    whole: bool = False,
) -> None:
    """Raise ValueError unless ``value`` is a finite number from ``minimum`` to ``maximum``.

    With ``whole`` it must be a whole number. Seeds have no maximum (`inf`): nothing is computed of
    them.
    """
    kind = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(
            f"{name}={value!r} must be {kind} in the unit of its name, without a suffix"
        )
    assert isinstance(value, int | float)
    if not minimum <= value < float("inf"):
        raise ValueError(f"{name}={value!r} must be {kind} >= {minimum:g}")
    if value > maximum:
        raise ValueError(f"{name}={value!r} must be {kind} from {minimum:g} to {maximum:g}")


def require_range(name: str, value: object, low: float, high: float, unit: str) -> None:
    """Raise ValueError, naming the ``unit``, unless ``value`` is from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        require_number(name, value)
    assert isinstance(value, int | float)
    if not low <= value <= high:
        raise ValueError(f"{name}={value!r} must be from {low:g} to {high:g}; give {unit}")
