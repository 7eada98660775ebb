"""The pieces of the suite: what each is, where its code is, and how long it may take.

This module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from real.suite.context import Context


@dataclass(frozen=True)
class Piece:
    """A piece of the suite; ``place`` is ``module:function``.

    It may take ``seconds``, and is left out where fewer than ``least_s`` are left.
    """

    name: str
    what: str
    place: str
    seconds: float
    least_s: float = 10.0

    def load(self) -> Callable[[Context], None]:
        module, _, name = self.place.partition(":")
        function: Callable[[Context], None] = getattr(import_module(module), name)
        return function


PIECES = (
    Piece("probe", "links, launches, host costs, FloE's gather", "real.suite.speed:probe", 60),
    Piece("verify", "every kernel against fp64", "real.suite.speed:verify", 90),
    Piece(
        "kernels", "every kernel's speed beside a measured copy", "real.suite.speed:kernels", 120
    ),
    Piece("stores", "files of experts for the runs", "real.suite.runs:stores", 75),
    Piece("calibrate", "the machine as a hardware file", "real.suite.calibration:calibrate", 75),
    Piece("copies", "loads inside the engine beside the link's peak", "real.suite.runs:copies", 40),
    Piece("engine", "the engine beside a bare loop", "real.suite.engine:engine", 90),
    Piece("replay", "systems x budgets on forced routing", "real.suite.runs:replay", 120),
    Piece("live", "models whose own gates decide", "real.suite.runs:live", 45),
    Piece("validation", "the simulator beside the device", "real.suite.runs:validation", 90),
)
"""The pieces in order. Their limits come to more than eight minutes: not all need all of theirs."""
REPORT = Piece("report", "all of it as one page", "real.suite.report:report", 20, 1.0)


def piece_of(name: str) -> Piece:
    """The piece of that name. Raise ValueError for a name that is none."""
    for piece in (*PIECES, REPORT):
        if piece.name == name:
            return piece
    raise ValueError(f"{name} is no piece; known: {', '.join(piece.name for piece in PIECES)}")
