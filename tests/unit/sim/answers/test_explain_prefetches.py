"""What is said of a prefetch where the rows of a run are made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl

from sim.answers.explain_names import Names
from sim.answers.explain_prefetches import _not_queued, prefetch_story
from sim.answers.lookahead_ranks import Forecast

MS = 1_000_000


def move(tick: int, key: int, kind: str, start_ms: int, end_ms: int, number: int = 0) -> Any:
    """Queued 2 ms before it starts."""
    return SimpleNamespace(
        number=number,
        tick=tick,
        key=key,
        kind=kind,
        queued_ns=(start_ms - 2) * MS,
        start_ns=start_ms * MS,
        end_ns=end_ms * MS,
    )


def run_of(*moves: Any, served: tuple[tuple[int, str, int], ...] = ()) -> Any:
    """Two sites of four experts; gate ``tick`` is at 10 ms by tick."""
    numbers = [one.number for one in moves]
    return SimpleNamespace(
        plane=10,
        units=5,
        sites=2,
        own_sites=2,
        experts=4,
        precision_names={0: "fp16"},
        config={},
        moves=moves,
        moves_of=lambda key: [one for one in moves if one.key == key],
        events_of=lambda key: [],
        last_gate=lambda site, tick: tick - 2,
        is_gate=lambda tick: tick >= 0,
        is_there=lambda key, tick: False,
        gate=lambda tick: (tick // 2, tick % 2, 10 * MS * tick),
        served_between=lambda link, start, end: served,
        mechanism=lambda name: "NoPrediction",
        transfers=pl.DataFrame(
            {"number": numbers, "hop": [0] * len(moves), "link": ["pcie"] * len(moves)},
            schema={"number": pl.Int64, "hop": pl.Int64, "link": pl.String},
        ),
    )


LATE = {"tick": 5, "step": 2, "site": 1, "outcome": "late", "gate_ns": 50 * MS, "expert": 3}


def test_a_late_key_without_a_prefetch_of_its_own_tells_the_last_move_before_the_gate() -> None:
    """Key 8 was moved twice before tick 5; what is issued at tick 5 itself does not count."""
    run = run_of(
        move(1, 8, "prefetch", 12, 20, 0),
        move(4, 8, "demand", 45, 53, 1),
        move(4, 7, "demand", 30, 31, 2),
        move(5, 8, "demand", 60, 70, 3),
        served=((7, "demand", MS), (2, "prefetch", 2 * MS), (3, "prefetch", MS)),
    )
    assert prefetch_story(run, Names(run, None), 8, LATE, None) == [
        "The demand waited 2.000 ms for pcie and moved from 45.000 ms to 53.000 ms; meanwhile pcie"
        " served 1 demand and 2 prefetches (4.000 ms): site 1 expert 2, site 0 expert 2, site 0"
        " expert 3. It came 3.000 ms after the gate asked."
    ]
    assert prefetch_story(run, Names(run, None), 6, LATE, None) == [], "nothing ever moved it"


def test_an_expert_that_was_on_its_way_at_a_gate_was_not_queued_again() -> None:
    """At gate 3, at 30 ms: from when it is queued until it has come."""
    forecast = Forecast(1, 1, 1, 1, (3,))
    row = {**LATE, "wanted": "fp16"}
    for start_ms, is_moving in ((33, False), (32, True), (21, True), (20, False)):
        moving = run_of(move(2, 8, "prefetch", start_ms, start_ms + 10))
        moving.decisions = pl.DataFrame({"kind": ["x"], "tick": [3], "key": [8]})
        moving.choice = lambda *words: None
        found = _not_queued(moving, Names(moving, [0, 4]), row, 3, forecast, [forecast])
        assert (found == "layer 4 (site 1) expert 3 was on its way then") == is_moving, start_ms
