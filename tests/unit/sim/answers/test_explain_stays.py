"""What is said of a key's stays on the device, where the rows of a run are made by hand.

There are two sites of four experts. Gate ``tick`` is at 10 ms by tick, of step ``tick`` // 2. The
key that is asked about is 8, expert 3 of site 1; the need is at tick 6, at 60 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from sim.answers.explain_names import Names
from sim.answers.explain_residency import _kept, _may_have_left, residency_story
from sim.results.run_log import Event, Move, Stay

MS = 1_000_000
KEY = 8
CHOICES: dict[str, Any] = {"demand_evicts": "masked", "destination": "pool", "staging_slots": 0}
MECHANISMS = {"cache": "LRU", "payload": "Whole"}


def move(
    tick: int, end_ms: int, kind: str = "demand", outcome: str = "used", key: int = KEY
) -> Move:
    call = 10 * tick
    return Move(0, key, kind, tick, call, None, 0, 0, end_ms * MS, "pcie", outcome)


def gone(tick: int, other: int | None = None) -> Event:
    return Event("evicted", 10 * tick, tick, other)


def run_of(
    *stays: Stay,
    uses: Sequence[int] = (),
    there: bool = False,
    others: Sequence[Move] = (),
    needs: Sequence[int] = (),
    waves: bool = False,
    trims: bool = False,
    evicted: Sequence[tuple[int, int]] = (),
    **choices: Any,
) -> Any:
    """``evicted`` are calls and the keys that went with them."""
    given = {**CHOICES, **choices}
    mechanisms = {name: choices.get(name, of) for name, of in MECHANISMS.items()}
    return SimpleNamespace(
        plane=10,
        units=5,
        sites=2,
        own_sites=2,
        experts=4,
        precision_names={0: "fp16"},
        config={},
        stays_of=lambda key: list(stays),
        is_there=lambda key, tick: there,
        uses_of=lambda key: list(uses),
        moves_of=lambda key: [one for one in others if one.key == key],
        admitted_by=lambda tick, call: list(needs),
        has_waves=lambda tick: waves,
        trims_at=lambda call: trims,
        is_gate=lambda tick: tick >= 0,
        gate=lambda tick: (tick // 2, tick % 2, 10 * MS * tick),
        choice=lambda section, name, default=None: given.get(name, default),
        mechanism=mechanisms.__getitem__,
        decisions=pl.DataFrame(
            [{"call": call, "victim": key, "tick": call // 10} for call, key in evicted],
            schema={"call": pl.Int64, "victim": pl.Int64, "tick": pl.Int64},
        ),
    )


def story(run: Any, outcome: str, wanted: str | None = "fp16", tick: int = 6) -> list[str]:
    row = {"tick": tick, "outcome": outcome, "wanted": wanted, "gate_ns": 10 * tick * MS}
    return residency_story(run, Names(run, None), KEY, row)


START = Stay(None, None)
CAME = (
    "It had come as a demand over pcie, issued after tick 2 (step 1, site 0), arrived at 25.000 ms,"
    " 35.000 ms before this gate"
)
NOT_KEPT = (
    "Site 1 expert 3 had last come by a demand issued after tick 2 (step 1, site 0), and was served"
    " from staging: LRU did not keep it."
)
NEVER = (
    "Site 1 expert 3 had never been there: it was not resident at the start, and nothing moved it."
)


@pytest.mark.parametrize(
    ("stays", "outcome", "more", "told"),
    [
        ([], "hit", {}, []),
        ([START], "hit", {}, ["It was there from the start, and had not been evicted."]),
        ([START, Stay(move(2, 25), None)], "hit", {}, [f"{CAME}."]),
        (
            [Stay(move(2, 25), None)],
            "low_for_high",
            {"uses": [1, 2, 6]},
            [f"{CAME}, and was used at 1 gate since."],
        ),
        (
            [Stay(move(2, 25), None)],
            "high_for_low",
            {"uses": [2, 5]},
            [f"{CAME}, and was used at 2 gates since."],
        ),
        ([Stay(move(2, 25), None), Stay(move(6, 70), None)], "hit", {}, [f"{CAME}."]),
        # Of what comes for the need itself nothing was there before.
        ([Stay(move(6, 70), None)], "hit", {}, []),
        ([], "miss", {}, [NEVER]),
        ([], "late", {}, []),
        ([], "promoted", {}, []),
        ([Stay(move(2, 60), None)], "miss", {}, [NOT_KEPT]),
        ([Stay(move(2, 61), None)], "miss", {}, []),
        ([Stay(move(2, 60), None)], "late", {}, []),
        ([Stay(move(2, 60), None), Stay(move(5, 70), None)], "late", {}, [NOT_KEPT]),
        # A prefetch that has not started has no stay: what came before is another one.
        ([Stay(move(2, 60), None)], "promoted", {}, [NOT_KEPT]),
        ([START], "miss", {}, []),
        # Left out or sent elsewhere by a selector.
        ([], "reroute", {}, []),
        ([], "skip", {"wanted": None}, []),
        ([], "skip", {"wanted": "int4"}, [NEVER]),
        ([Stay(move(2, 25), None)], "reroute", {"there": True}, [f"{CAME}."]),
        (
            [Stay(move(2, 25), None)],
            "skip",
            {"there": True, "wanted": None},
            [f"A copy was there all the same. {CAME}."],
        ),
        ([Stay(move(2, 25), None)], "skip", {"there": True, "wanted": "int4"}, [NOT_KEPT]),
        ([Stay(move(2, 25), None)], "cpu", {"there": True, "wanted": None}, [NOT_KEPT]),
        ([Stay(move(2, 25), None)], "reroute", {}, [NOT_KEPT]),
        (
            [Stay(move(2, 25), None)],
            "reroute",
            {"there": True, "staging_slots": 1, "payload": "Bands"},
            [],
        ),
    ],
)
def test_what_became_of_a_key_before_its_gate(
    stays: list[Stay], outcome: str, more: dict[str, Any], told: list[str]
) -> None:
    wanted = more.get("wanted", "fp16")
    assert story(run_of(*stays, **more), outcome, wanted) == told


@pytest.mark.parametrize("outcome", ["late", "skip"])
def test_what_was_on_its_way_at_a_gate_is_not_what_was_there_before(outcome: str) -> None:
    """A late prefetch that was evicted later stood as the last stay, 'not used', before its gate."""
    on_its_way = Stay(move(5, 65, "prefetch", "late"), gone(9))
    assert story(run_of(on_its_way), outcome, "int4") == []
    (told,) = story(run_of(Stay(move(2, 25), gone(4)), on_its_way), outcome, "int4")
    assert told.startswith("Site 1 expert 3 was last there since 25.000 ms, by a demand issued")
    assert "until tick 4" in told


@pytest.mark.parametrize(
    ("came", "choices", "may"),
    [
        (None, {"staging_slots": 2}, False),
        (move(2, 25), {"staging_slots": 0, "payload": "Bands"}, False),
        (move(2, 25), {"staging_slots": 2}, False),
        (move(2, 25), {"staging_slots": 2, "payload": "Bands"}, True),
        (move(2, 25), {"staging_slots": 2, "demand_evicts": "unmasked"}, True),
        (move(2, 25), {"staging_slots": 2, "cache": "Belady"}, True),
        (move(2, 25), {"staging_slots": 2, "cache": "Popular"}, True),
        (move(2, 25, "prefetch"), {"staging_slots": 2, "cache": "Belady"}, False),
        (move(2, 25, "prefetch"), {"staging_slots": 2, "destination": "staging"}, True),
        (move(2, 25, "prefetch", "dropped"), {"staging_slots": 2}, True),
    ],
)
def test_what_came_may_have_left_from_staging_unseen(
    came: Move | None, choices: dict[str, Any], may: bool
) -> None:
    assert _may_have_left(run_of(**choices), came) is may


FORECAST_LAST = "LRU ranked it lowest of what was not pinned, what was forecast coming last."
FREE = "LRU ranked it lowest of what was neither pinned nor forecast."


@pytest.mark.parametrize(
    ("came", "tick", "uses", "told"),
    [
        (None, 6, [], "from the start, not used"),
        (None, 6, [0, 4, 5, 7], "from the start, last used at tick 4 (step 2, site 0)"),
        (None, 4, [0, 3, 4], "from the start, last used at tick 3 (step 1, site 1)"),
        (
            move(2, 25),
            6,
            [1],
            "since 25.000 ms, by a demand issued after tick 2 (step 1, site 0), not used",
        ),
        (
            move(2, 25),
            6,
            [1, 2],
            "since 25.000 ms, by a demand issued after tick 2 (step 1, site 0), last used at tick 2"
            " (step 1, site 0)",
        ),
    ],
)
def test_the_last_stay_tells_how_it_came_and_its_last_use(
    came: Move | None, tick: int, uses: list[int], told: str
) -> None:
    run = run_of(Stay(came, gone(4)), uses=uses)
    assert story(run, "miss", tick=tick) == [
        f"Site 1 expert 3 was last there {told}, until tick 4 (step 2, site 0). It was evicted; no"
        f" row tells for whom: {FORECAST_LAST}"
    ]


@pytest.mark.parametrize(
    ("other", "more", "told"),
    [
        (
            None,
            {"trims": True},
            f"It was evicted to trim the pool to its capacity: {FORECAST_LAST}",
        ),
        (None, {"demand_evicts": "unmasked"}, f"It was evicted; no row tells for whom: {FREE}"),
        (3, {}, f"It was evicted for a transfer of site 0 expert 3: {FORECAST_LAST}"),
        # The move of tick 5 comes after it went.
        (
            3,
            {
                "others": [
                    move(2, 9, "demand", key=3),
                    move(4, 9, "prefetch", key=3),
                    move(5, 9, "dense", key=3),
                ]
            },
            f"It was evicted for a prefetch of site 0 expert 3: {FREE}",
        ),
        (
            3,
            {
                "others": [move(4, 9, key=3)],
                "needs": [3, 1],
                "evicted": [(40, 2), (46, 6)],
                "there": True,
            },
            f"It was evicted for a demand of site 0 expert 3: {FORECAST_LAST} Pinned then, as that"
            " gate's needs: site 0 expert 3, site 0 expert 1. Of what it kept then, the first to go"
            " was site 1 expert 1, at tick 4 (step 2, site 0).",
        ),
        (
            3,
            {"needs": [3, 1], "waves": True},
            f"It was evicted for a transfer of site 0 expert 3: {FORECAST_LAST} Pinned then, as"
            " that gate's needs, each until it was computed: site 0 expert 3, site 0 expert 1.",
        ),
    ],
)
def test_an_eviction_tells_for_whom_what_was_pinned_and_who_went_next(
    other: int | None, more: dict[str, Any], told: str
) -> None:
    found = story(run_of(Stay(None, gone(4, other)), **more), "miss")
    head = (
        "Site 1 expert 3 was last there from the start, not used, until tick 4 (step 2, site 0). "
    )
    assert found == [head + told]


def test_before_the_first_gate_nothing_was_pinned_and_nobody_knows_who_was_there() -> None:
    run = run_of(Stay(None, gone(-1, 3)), needs=[1], evicted=[(50, 6)], there=True)
    assert story(run, "miss") == [
        "Site 1 expert 3 was last there from the start, not used, until the start. It was evicted"
        f" for a transfer of site 0 expert 3: {FORECAST_LAST}"
    ]


@pytest.mark.parametrize(
    ("scope", "found"), [(None, (12, 6)), ("precision", (4, 7)), ("site", (6, 8))]
)
def test_the_next_to_go_is_of_the_same_pool_and_was_neither_it_nor_pinned(
    scope: str | None, found: tuple[int, int]
) -> None:
    """Keys 0 to 9 are of one precision, 5 to 9 of one site of it."""
    evicted = [(40, 2), (50, KEY), (51, 3), (52, 1), (60, 12), (70, 4), (80, 6)]
    run = run_of(evicted=evicted, there=True, scope=scope)
    assert _kept(run, KEY, gone(4, 3), [1]) == found
    absent = run_of(evicted=evicted, there=False, scope=scope)
    assert _kept(absent, KEY, gone(4, 3), [1]) is None


@pytest.mark.parametrize(("others", "found"), [(63, (2, 9)), (64, None)])
def test_sixty_four_later_evictions_are_looked_through(
    others: int, found: tuple[int, int] | None
) -> None:
    run = run_of(evicted=[*[(50, KEY)] * others, (90, 2)], there=True)
    assert _kept(run, KEY, gone(4), []) == found
