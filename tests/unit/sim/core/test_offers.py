"""What was served from staging is offered to its pool when its gate is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.core.slots import RESIDENT
from sim.policies.base import Choice, Gate
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.policies.recency import LRU
from sim.values.types import Geometry, Outcome

GEOMETRY = Geometry(2, 4, 1, ("fp16",), (16.0,), (4,), 8)
"""Keys 0 to 3 of site 0 and 5 to 8 of site 1; room for two, which 0 and 1 have at first."""


class Asks(LRU):
    """LRU that is asked before anything enters its pool, and lets everything in."""

    admits_all = False

    def admit(self, key: int, victims: Sequence[int]) -> bool:
        return True


class Foresees(NoPrediction):
    """Forecasts key 2 at the gates of site 1."""

    silent = False

    def predict(self, gate: Gate) -> Iterator[Choice]:
        if gate.site == 1:
            choice: Any = SimpleNamespace(site=0, needs=[2], keys=[2], tokens=[1], scores=[0.0])
            yield choice


def gate(site: int, *keys: int) -> Any:
    return SimpleNamespace(
        site=site,
        keys=list(keys),
        needs=[key - 5 * site for key in keys],
        tokens=[1] * len(keys),
        scores=[0.0] * len(keys),
        experts=[[]],
        tick=0,
        token=1,
        step=0,
    )


def test_a_late_prefetch_that_has_arrived_in_its_pool_makes_room_when_its_gate_is_over() -> None:
    """2 is on its way into the pool, in 0's place, when 3, 2 and 1 are asked for. 3 is staged.

    At the next gate 3 is offered. Neither 2 nor 1 is pinned any more, and 2 is the less recent.
    """
    one = Controller(
        GEOMETRY,
        Foresees(),
        Asks(initial="ascending"),
        Fixed("fp16"),
        Load(),
        Loader(staging_slots=3),
    )
    one.gate(gate(1))
    prefetch = one.poll(0)
    assert prefetch is not None
    outcomes, _ = one.gate(gate(0, 3, 2, 1))
    assert outcomes == [Outcome.MISS, Outcome.LATE, Outcome.HIT]
    _, demand = one.transfer_done(0, prefetch)
    assert demand is not None
    one.transfer_done(0, demand)
    one.check()
    one.gate(gate(1))
    assert [key for key in range(4) if one.state[key] == RESIDENT] == [1, 3]
    one.check()
