"""Why a need was not prefetched in time, where the rows of a run are made by hand.

There are four sites of four experts. Gate ``tick`` is at 10 ms by tick, of step ``tick`` // 4. The
key that is asked about is 13, expert 3 of site 2, needed at tick 6, at 60 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from sim.answers.explain_names import Names
from sim.answers.explain_prefetches import prefetch_story
from sim.answers.lookahead_ranks import Forecast
from sim.results.run_log import Event, Move

MS = 1_000_000
KEY, TICK = 13, 6


def move(
    tick: int, start_ms: int, end_ms: int, kind: str = "prefetch", key: int = KEY, call: int = 0
) -> Move:
    """Queued 2 ms before it starts."""
    times = (start_ms - 2) * MS, start_ms * MS, end_ms * MS
    return Move(0, key, kind, tick, call, None, *times, "pcie", "used")


def event(kind: str, call: int, tick: int) -> Event:
    return Event(kind, call, tick)


def run_of(
    *moves: Move,
    events: Sequence[Event] = (),
    served: Sequence[tuple[int, str, int]] = (),
    queued: Sequence[tuple[int, int]] = (),
    there: Sequence[int] = (),
    events_of: dict[int, list[Event]] | None = None,
    names: dict[int, str] | None = None,
    predictor: str = "GateLookahead",
    **choices: Any,
) -> Any:
    """``queued``: the keys that were queued, each after its tick; ``there`` are keys."""
    of_key = {KEY: list(events), **(events_of or {})}
    return SimpleNamespace(
        plane=20,
        units=5,
        sites=4,
        own_sites=4,
        experts=4,
        precision_names=names or {0: "fp16"},
        config={},
        moves=list(moves),
        moves_of=lambda key: [one for one in moves if one.key == key],
        events_of=lambda key: of_key.get(key, []),
        last_gate=lambda site, tick: tick - 4,
        is_gate=lambda tick: tick >= 0,
        is_there=lambda key, tick: key in there,
        gate=lambda tick: (tick // 4, tick % 4, 10 * MS * tick),
        ticks_of_step=lambda step: [4 * step, 4 * step + 1, 4 * step + 2],
        served_between=lambda link, start, end: list(served),
        mechanism=lambda name: predictor,
        choice=lambda section, name, default=None: choices.get(name, default),
        transfers=pl.DataFrame({"number": [0, 0], "hop": [1, 0], "link": ["nvlink", "pcie"]}),
        decisions=pl.DataFrame(
            [{"kind": "queue_prefetch", "tick": tick, "key": key} for tick, key in queued]
            + [{"kind": "issue", "tick": 5, "key": 14}]
        ),
        lookups=pl.DataFrame(
            {"step": [1, 1, 1, 0, 0], "site": [0, 1, 2, 0, 2], "tick": [4, 5, 6, 0, 2]}
        ),
    )


def story(
    run: Any,
    outcome: str,
    foreseen: Sequence[Forecast] | None = (),
    tick: int = TICK,
    phase: str = "decode",
) -> list[str]:
    row = {
        "tick": tick,
        "step": tick // 4,
        "site": tick % 4,
        "expert": 3,
        "outcome": outcome,
        "phase": phase,
        "wanted": "fp16",
        "gate_ns": 10 * tick * MS,
    }
    return prefetch_story(run, Names(run, None), KEY, row, foreseen)


QUEUED = event("queue_prefetch", 3, 4)
AHEAD_2 = "A prefetch was queued at tick 4 (step 1, site 0), 2 sites ahead"
NOTHING = "pcie served nothing meanwhile"


@pytest.mark.parametrize(
    ("outcome", "events", "told"),
    [
        # Of what is queued for an earlier gate of the site, at or after this gate, nothing counts.
        ("late", [event("queue_prefetch", 1, 1)], []),
        ("late", [event("queue_prefetch", 1, 6)], []),
        (
            "miss",
            [event("queue_prefetch", 1, 2), QUEUED, event("cancel", 4, 5)],
            [
                f"{AHEAD_2}, and cancelled at tick 5 (step 1, site 1) (a gate overtook it); {NOTHING}."
            ],
        ),
        (
            "miss",
            [event("queue_prefetch", 1, 2)],
            [
                "A prefetch was queued at tick 2 (step 0, site 2), 4 gates ahead, and nothing more is"
                f" told of it; {NOTHING}."
            ],
        ),
        (
            "promoted",
            [event("queue_prefetch", 4, 5), event("issue", 5, 6)],
            [
                "A prefetch was queued at tick 5 (step 1, site 1), 1 site ahead, and had not started"
                f" 10.000 ms later, when it became a demand; {NOTHING}."
            ],
        ),
        # What was given up before it was queued, or after the gate, is not told.
        (
            "miss",
            [event("cancel", 2, 4), QUEUED, event("cancel", 9, 7)],
            [f"{AHEAD_2}, and nothing more is told of it; {NOTHING}."],
        ),
        (
            "miss",
            [QUEUED, event("drop_no_slot", 3, 4), event("cancel", 5, 5)],
            [
                f"{AHEAD_2}, and dropped after tick 4 (step 1, site 0): everything that could have"
                " made room was pinned or forecast."
            ],
        ),
        (
            "miss",
            [QUEUED, event("cancel", 4, 6)],
            [
                f"{AHEAD_2}, and cancelled at tick 6 (step 1, site 2) (its site's gate did not ask for"
                f" this variant); {NOTHING}."
            ],
        ),
    ],
)
def test_what_became_of_a_queued_prefetch(
    outcome: str, events: list[Event], told: list[str]
) -> None:
    run = run_of(move(1, 1, 2, "demand", key=1), events=events)
    assert story(run, outcome) == told


def test_a_prefetch_waits_for_the_link_of_its_own_key_or_site() -> None:
    """Key 1 comes over one device's link, those of site 2 over another's."""
    run = run_of(move(1, 1, 2, "demand", key=1), events=[QUEUED, event("cancel", 4, 5)])
    run.transfers = pl.DataFrame({"number": [0, 1], "hop": [0, 0], "link": ["pcie", "pcie_1"]})
    assert "; pcie served nothing" in story(run, "miss")[0]
    run.moves.append(replace(move(7, 80, 90, "demand", key=12), number=1))
    assert "; pcie_1 served nothing" in story(run, "miss")[0]


def test_a_newer_forecast_cancels_where_it_replaces_the_queue_and_no_link_is_named_without_moves() -> (
    None
):
    run = run_of(events=[QUEUED, event("cancel", 4, 6)], queue="replace")
    assert story(run, "miss") == [
        f"{AHEAD_2}, and cancelled at tick 6 (step 1, site 2) (a newer forecast replaced the queue); "
        " served nothing meanwhile."
    ]


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "end"),
    [
        (45, 61, ". It came 1.000 ms after the gate asked."),
        (45, 60, ". It came 0.000 ms before the gate asked."),
        (45, 52, ". It came 8.000 ms before the gate asked."),
    ],
)
def test_an_issued_prefetch_tells_its_waiting_and_when_it_came(
    start_ms: int, end_ms: int, end: str
) -> None:
    """Its own move is the one of the call that issued it."""
    run = run_of(
        move(2, 20, 30, call=1),
        move(4, start_ms, end_ms, call=5),
        events=[QUEUED, event("issue", 5, 4), event("issue", 6, 5)],
        served=[(1, "demand", MS), (2, "dense", MS), (2, "dense", 2 * MS)],
    )
    assert story(run, "late") == [
        f"{AHEAD_2}. The prefetch waited 2.000 ms for pcie and moved from 45.000 ms to"
        f" {end_ms}.000 ms; meanwhile pcie served 1 demand and 2 dense blocks (4.000 ms): site 0"
        f" expert 1, site 0 expert 2, site 0 expert 2{end}"
    ]


def test_a_demand_that_was_issued_for_a_queued_key_is_no_prefetch_of_it() -> None:
    run = run_of(
        move(6, 62, 70, "demand", call=5),
        events=[QUEUED, event("issue", 5, 6), event("cancel", 4, 5)],
    )
    assert story(run, "miss") == [
        f"{AHEAD_2}, and cancelled at tick 5 (step 1, site 1) (a gate overtook it); {NOTHING}.",
        f"The demand waited 2.000 ms for pcie and took 8.000 ms; {NOTHING}.",
    ]


def test_the_first_demand_from_the_gate_on_is_told_and_one_that_did_not_wait_in_short() -> None:
    at_once = Move(0, KEY, "demand", 6, 0, None, 60 * MS, 60 * MS, 63 * MS, "pcie", "used")
    run = run_of(
        move(5, 1, 2, "demand"),
        move(6, 61, 62),
        at_once,
        move(7, 80, 90, "demand"),
        predictor="NoPrediction",
    )
    assert story(run, "miss") == [
        "The demand waited 0.000 ms for pcie and took 3.000 ms.",
        "No prefetch was queued: the run has no predictor.",
    ]
    assert story(run, "hit") == []


NONE = "No prefetch was queued"


def test_a_predictor_that_looks_past_a_steps_end_is_not_said_to_stay_inside_of_one() -> None:
    """At tick 2, site 2, a prefetch for site 0 is queued: for the next step's first gate."""
    told = "No prefetch was queued for it in this step; what ExpectedNeeds forecast no row tells."
    around = run_of(predictor="ExpectedNeeds", queued=[(2, 1)])
    assert story(around, "miss", tick=4) == [told]
    inside = run_of(predictor="ExpectedNeeds", queued=[(2, 16)])
    assert "lookahead stays inside a step" in story(inside, "miss", tick=4)[0]


def test_where_nothing_comes_in_time_no_prefetch_of_the_whole_run_is_queued() -> None:
    run = run_of(predictor="ExpectedNeeds", prefetch_budget="in_time")
    assert story(run, "miss") == [
        f"{NONE} in the whole run, whose loader.prefetch_budget is in_time."
    ]


@pytest.mark.parametrize("outcome", ["miss", "cpu", "skip"])
@pytest.mark.parametrize(
    ("more", "ways", "told"),
    [
        (
            {},
            {"tick": 4},
            f"{NONE}: its gate is the step's first, and lookahead stays inside a step.",
        ),
        (
            {"prompts": False},
            {"phase": "prefill"},
            f"{NONE}: the system forecasts decoded tokens only.",
        ),
        (
            {"prompts": False},
            {},
            f"{NONE}; the trace has no lookahead scores for this gate, so what GateLookahead forecast is not told.",
        ),
        (
            {"prompts": True},
            {"phase": "prefill"},
            f"{NONE}; the trace has no lookahead scores for this gate, so what GateLookahead"
            " forecast is not told.",
        ),
        (
            {},
            {"foreseen": None},
            f"{NONE}; the trace cannot be read, so what GateLookahead forecast is not told.",
        ),
        (
            {"predictor": "Markov"},
            {},
            f"{NONE} for it in this step; what Markov forecast no row tells.",
        ),
        (
            {"predictor": "ConfidentLookahead"},
            {},
            f"{NONE}; the trace has no lookahead scores for this gate, so what ConfidentLookahead"
            " forecast is not told.",
        ),
    ],
)
def test_without_ranks_the_reason_is_the_predictors(
    outcome: str, more: dict[str, Any], ways: dict[str, Any], told: str
) -> None:
    assert story(run_of(**more), outcome, **{"foreseen": (), **ways}) == [told]


def forecast(ahead: int, chosen_by: int = 1, rank: int | None = 1, rows: int = 1) -> Forecast:
    return Forecast(ahead, rank, rows, chosen_by, (3,))


@pytest.mark.parametrize(
    ("forecasts", "told"),
    [
        (
            [forecast(1, 0, 3)],
            "1 site before (site 1) the lookahead ranked it 3 of 4, outside the 2 forecast.",
        ),
        (
            [forecast(2, 0, 4, 7), forecast(3, 0)],
            "2 sites before (site 0) the lookahead ranked it 4 of 4 at best (of 7 tokens), outside the"
            " 2 forecast.",
        ),
        (
            [forecast(1, 0, None, 7)],
            "1 site before (site 1) none of the prompt's 7 tokens named it, outside the 2 forecast.",
        ),
        (
            [forecast(1, 5, None, 7)],
            "1 site before (site 1) 5 of the prompt's 7 tokens named it, among those forecast, but no"
            " row tells why (the selector may have left it out).",
        ),
    ],
)
def test_ranks_up_to_the_depth_are_told(forecasts: list[Forecast], told: str) -> None:
    run = run_of(sites=2, top_k=2)
    assert story(run, "miss", forecasts) == [f"{NONE} for it in this step. {told}"]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (run_of(there=[13]), "site 2 expert 3 was there then"),
        (
            run_of(there=[33], names={0: "fp16", 1: "int4"}),
            "site 2 expert 3 int4 was there then",
        ),
        (run_of(there=[33]), "no row tells why (the selector may have left it out)"),
        (run_of(move(4, 52, 53)), "site 2 expert 3 was on its way then"),
        (run_of(move(4, 53, 54)), "no row tells why (the selector may have left it out)"),
        (
            run_of(
                events_of={33: [event("queue_prefetch", 1, 1), event("queue_prefetch", 2, 5)]},
                names={0: "fp16", 1: "int4"},
            ),
            "site 2 expert 3 int4 was queued, at tick 5 (step 1, site 1), where fp16 is wanted now",
        ),
        (
            run_of(events_of={33: [event("queue_prefetch", 1, 1)]}, names={0: "fp16", 1: "int4"}),
            "no row tells why (the selector may have left it out)",
        ),
        (
            run_of(events_of={33: [event("queue_prefetch", 1, 2)]}, names={0: "fp16", 1: "int4"}),
            "site 2 expert 3 int4 was queued, at tick 2 (step 0, site 2), where fp16 is wanted now",
        ),
        (
            run_of(queued=[(5, 10), (5, 6), (5, 2), (4, 1)], depth="first_missing"),
            "the walk had stopped at a nearer site, where site 1 expert 1 was missing",
        ),
        (
            run_of(queued=[(5, 10), (5, 16)], prefetch_budget=2),
            "the budget of 2 was used up (site 2 expert 0, site 3 expert 1)",
        ),
        (
            run_of(queued=[(5, 10)], prefetch_budget=2),
            "no row tells why (the selector may have left it out)",
        ),
        (run_of(prefetch_budget=0), "the budget is 0"),
        (
            run_of(queued=[(5, 6)], prefetch_budget=None),
            "no row tells why (the selector may have left it out)",
        ),
    ],
)
def test_what_was_forecast_one_site_before_was_not_queued_for_a_reason(run: Any, why: str) -> None:
    assert story(run, "miss", [forecast(1)]) == [
        f"{NONE} for it in this step. 1 site before (site 1) the lookahead ranked it 1 of 4, among"
        f" those forecast, but {why}."
    ]


@pytest.mark.parametrize(
    ("moving", "stopped"),
    [
        (move(4, 42, 43, key=7), True),
        (move(3, 39, 41, key=7), True),
        (move(3, 39, 40, key=7), False),
        (move(4, 43, 44, key=7), False),
        (move(4, 42, 43, key=2), False),
        (move(4, 42, 43, key=12), False),
        (move(4, 42, 43, key=27), False),
    ],
    ids=[
        "from when queued",
        "until it came",
        "has come",
        "not yet",
        "here",
        "there",
        "other plane",
    ],
)
def test_a_walk_stops_at_what_is_on_its_way_to_a_site_between(moving: Move, stopped: bool) -> None:
    """At gate 4, at 40 ms, of site 0; the only site between is 1, of keys 5 to 8."""
    found = story(run_of(moving, depth="first_missing"), "miss", [forecast(2)])
    why = (
        "the walk had stopped at a nearer site, where site 1 expert 2 was still on its way"
        if stopped
        else "no row tells why (the selector may have left it out)"
    )
    assert found[0].endswith(f" those forecast, but {why}.")
