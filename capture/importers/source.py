"""What the formats share: refusals, arguments, digests, and weights whose ties keep their rank."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.trace import Trace, TraceError

Item = TypeVar("Item")
Track = Callable[[Sequence[Item], str], Iterable[Item]]
"""Goes through a sequence and shows how far it is; the text says what is being done."""


class ImportFailure(ValueError):
    """An argument or a file that cannot be imported; the message says what, and what would do."""


@dataclass(frozen=True)
class Imported:
    """A trace, and further files of its directory by name: what the columns of a trace have no place for."""

    trace: Trace
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Refuse:
    """Raise `TraceError` about a field of ``file`` if it is wrong."""

    file: str
    remedy: str = "restore the file, or import another one"

    def __call__(self, name: str, wrong: bool | np.bool_, value: object, rule: str, remedy: str | None = None) -> None:
        if wrong:
            raise TraceError(self.file, name, value, rule, remedy or self.remedy)

    def where(self, name: str, wrong: NDArray[np.bool_], values: NDArray[Any], rule: str) -> None:
        """The same for the first of many values."""
        if wrong.any():
            place = tuple(int(index) for index in np.argwhere(wrong)[0])
            self(f"{name}{list(place)}", True, values[place].item(), rule)


def untracked(items: Sequence[Item], text: str) -> Iterable[Item]:
    """A `Track` that shows nothing."""
    return items


def count(key: str, text: str) -> int:
    """The argument ``key`` as a whole number of 1 or more."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise ImportFailure(f"{key}={text} must be a whole number of 1 or more")
    return int(text)


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def in_rank_order(weights: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Weights that nowhere rise along the last axis, each then below the one before.

    Rounding has made some equal, and order by weight would lose their rank. What is taken off is a unit in the last
    place of float32, less than a thousandth of what float16 rounds.
    """
    shares = weights.astype(np.float32)
    for rank in range(1, shares.shape[-1]):
        shares[..., rank] = np.minimum(shares[..., rank], np.nextafter(shares[..., rank - 1], np.float32(0)))
    return shares
