"""What bounds take as the least of work and of transfers, from figures by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.bounds import problem
from sim.bounds.bounds import Bounds
from sim.bounds.problem import work_of
from sim.bounds.relaxation import NEVER, Problem, Requests, _solved, relaxed_ns
from sim.values.types import SKIP, Geometry, Place

NONE = np.zeros(0, np.int64)


@pytest.mark.parametrize(
    ("wait", "after"), [("all", [11, 63, 40, 10]), ("by_projection", [11, 23, 33, 10])]
)
def test_of_a_need_that_is_computed_as_it_comes_nothing_must_follow_its_arrival(
    wait: str, after: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three gates: dense work of 10, 20 and 30, a tail of 5; needs of 100 and 40 at the first gate,
    of 7 at the second, and none at the last.
    """
    monkeypatch.setattr(problem, "_cheapest_ns", lambda *words: np.array([100, 40, 7]))
    workload: Any = SimpleNamespace(
        num_gates=3,
        steps=[SimpleNamespace(sites=(0, 1)), SimpleNamespace(sites=(2,))],
        needs=SimpleNamespace(tick=np.array([0, 0, 1])),
    )
    durations: Any = SimpleNamespace(
        host=SimpleNamespace(sync_ns=1, post_ns=2, issue_ns=3),
        dense_ns=lambda step: [10, 20, 30],
        tail_ns=lambda step: 0 if step.sites == (0, 1) else 5,
    )
    controller: Any = SimpleNamespace(
        placement=SimpleNamespace(constant=Place.LOAD), loader=SimpleNamespace(wait=wait)
    )
    found = work_of(workload, durations, controller, Any)  # type: ignore[arg-type]
    assert found.compute_ns.tolist() == [11, 166, 43, 10]
    assert found.after_ns.tolist() == after


@pytest.mark.parametrize(
    ("chunk", "times"), [(None, [40, 8, 0]), (30, [36, 7, 0]), (1, [0, 0, 0]), (100, [39, 7, 0])]
)
def test_each_chunk_may_save_a_nanosecond_of_a_transfer(
    chunk: int | None, times: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 bytes four chunks of 30 are made, of 20 bytes one."""
    monkeypatch.setattr(
        problem, "link_time_ns", lambda durations, controller, size, link: size * 2 // 5
    )
    geometry = SimpleNamespace(
        precisions=("high", "low"),
        sites=1,
        key=lambda precision, site, expert: precision,
        bytes_of=[100, 20].__getitem__,
    )
    controller: Any = SimpleNamespace(geometry=geometry, loader=SimpleNamespace(chunk_bytes=chunk))
    sizes, found = problem._least_sizes(None, controller, 0)  # type: ignore[arg-type]
    assert sizes[:, 0].tolist() == [100, 20, 0]
    assert found[:, 0].tolist() == times


def test_without_anything_to_load_the_bound_is_all_computing_and_is_worked_out_once() -> None:
    def made(*compute_ns: int) -> Problem:
        kept = Requests(NONE, NONE, NONE, NONE, NONE.astype(bool))
        return Problem(np.array(compute_ns), np.zeros(3, np.int64), np.full(2, 9), kept)

    _solved.cache_clear()
    assert [relaxed_ns(made(5, 7, 11)) for _ in range(3)] == [23] * 3
    assert (_solved.cache_info().hits, _solved.cache_info().misses) == (2, 1)
    assert relaxed_ns(made(5, 7, 12)) == 24
    one = np.array([1])
    free = replace(made(5, 7, 11), requests=Requests(one, one, one * 0, one, one > 0))
    assert relaxed_ns(free) == 23, "what takes no time waits for nothing"


SLOTS_OF_10 = Geometry(2, 3, 1, ("fp16",), (16.0,), (10,), 47)


def machine(
    pools: int = 1,
    retention: str = "strict",
    staging_slots: int = 0,
    lent: tuple[int, ...] = (),
    **rest: Any,
) -> Any:
    """A controller with 47 B of slots of 10 B, over a link with two engines."""
    loader = SimpleNamespace(
        retention=retention,
        overflows=retention != "strict",
        staging_slots=staging_slots,
        in_flight=4,
        replay_unit=rest.pop("replay_unit", "union"),
        dense_slots=rest.pop("dense_slots", 0),
    )
    return SimpleNamespace(
        geometry=SLOTS_OF_10,
        loader=loader,
        route=SimpleNamespace(engines=(2, 1), links=2),
        slots=SimpleNamespace(capacity_bytes=(47 // pools,) * pools),
        spare_bytes=lent.__getitem__ if lent else None,
        **rest,
    )


FIVE_GATES: Any = SimpleNamespace(
    num_gates=5,
    steps=[SimpleNamespace(index=0), SimpleNamespace(index=1)],
    gate_site=np.array([0, 1, 0, 1, 0]),
    needs=SimpleNamespace(tick=np.repeat(np.arange(5), (3, 6, 1, 0, 2))),
)
"""Gates at two sites in turn, of 3, 6, 1, 0 and 2 needs."""


@pytest.mark.parametrize(
    ("settings", "resident"),
    [
        ({}, [40] * 5),
        ({"staging_slots": 2}, [60] * 5),
        # The most that a step is lent counts in all: 47 + 13 B.
        ({"lent": (13, 2)}, [60] * 5),
        # What the gate before has asked for stays, in so many slots, where that is more.
        ({"retention": "after_batch"}, [40, 40, 60, 40, 40]),
        ({"retention": "after_batch", "pools": 2}, [40, 70, 100, 50, 40]),
        # Beside that what the other site's last gate has asked for: 3, 9, 7, 1.
        ({"retention": "until_next_visit", "pools": 2}, [40, 70, 130, 110, 50]),
        ({"retention": "until_next_visit"}, [40, 40, 60, 40, 40]),
    ],
    ids=str,
)
def test_what_may_be_resident_before_each_gate(
    settings: dict[str, Any], resident: list[int]
) -> None:
    assert problem.resident_bytes(FIVE_GATES, machine(**settings)).tolist() == resident


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"pools": 3}, 0),
        # Two engines of link 0 with four transfers each, of 10 B.
        ({"pools": 3, "retention": "after_batch"}, 80),
        ({"pools": 3, "retention": "until_next_visit"}, 240),
    ],
    ids=str,
)
def test_what_may_be_on_its_way_beside_that(settings: dict[str, Any], most: int) -> None:
    assert problem._arriving_bytes(machine(**settings)) == most


@pytest.mark.parametrize(
    ("link", "capacity", "passes"),
    [(0, [280, 310, 370, 350, 290], False), (1, [330, 360, 420, 400, 340], True)],
)
def test_room_is_for_what_is_resident_on_its_way_and_in_a_tier_inside_the_link(
    link: int, capacity: list[int], passes: bool
) -> None:
    """40 B of slots beside what both sites asked for last; 240 B on their way; a tier of 50 B."""
    controller = machine(
        pools=3,
        retention="until_next_visit",
        ram=SimpleNamespace(link=1, capacity_bytes=(20, 30), initial=[]),
        placement=SimpleNamespace(constant=Place.CPU),
    )
    controller.route.ram_link = 2
    compute, after = np.arange(6), np.arange(6) // 2
    nobody: Any = None
    work = problem.Work(compute, after)
    found = problem.problem_of(FIVE_GATES, nobody, controller, work, nobody, link)
    assert found.capacity_bytes.tolist() == capacity
    assert (found.passes, len(found.requests.gate)) == (passes, 0)
    assert (found.compute_ns.tolist(), found.after_ns.tolist()) == ([*range(6)], [0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize(
    ("settings", "stay"),
    [
        ({}, [False, False, True, False]),
        ({"retention": "after_batch"}, [True, True, True, True]),
        ({"retention": "after_batch", "staging_slots": 1}, [False] * 4),
        ({"replay_unit": "access"}, [False] * 4),
    ],
    ids=str,
)
def test_which_needs_stay_until_the_next_gate(settings: dict[str, Any], stay: list[bool]) -> None:
    """Gates of 3, 6, 1 and 2 needs, of which one is a token's."""
    found = problem.stays_until_next(FIVE_GATES, machine(**settings))
    assert found[[0, 3, 9, 10]].tolist() == stay


def test_what_is_kept_takes_room_from_the_gate_after_the_one_that_pins_it() -> None:
    """A (1) was there at the start; it is pinned at gate 0, not at gate 2. B (2) comes at gate 1."""
    gate, item = np.array([0, 1, 2, 3, 3]), np.array([1, 2, 1, 1, 2])
    stays = np.array([True, False, False, True, True])
    found = problem._kept_from(gate, item, stays, {1})
    assert found.tolist() == [0, NEVER, 2, 3, 2]


@pytest.mark.parametrize(
    ("link", "dense_slots", "gates", "load_ns"),
    # Of 50 B, the smaller block, at 2 ns a byte and 7 ns before; two engines hide these.
    [(0, 2, [2, 3, 4], 100), (0, 5, [], 0), (0, 0, [], 0), (1, 2, [], 0)],
)
def test_each_gate_but_the_first_asks_for_its_dense_block(
    link: int, dense_slots: int, gates: list[int], load_ns: int
) -> None:
    durations: Any = SimpleNamespace(
        latency_ns=lambda link: 7, hop_ns=lambda link, size: 7 + 2 * size, lanes=lambda link: None
    )
    controller = machine(dense_slots=dense_slots, dense_bytes=(70, 50))
    (found,) = problem._dense_blocks(FIVE_GATES, durations, controller, link)
    count = len(gates)
    assert {name: column.tolist() for name, column in vars(found).items()} == {
        "gate": gates,
        "bytes": [0] * count,
        "load_ns": [load_ns] * count,
        "kept_from": [NEVER] * count,
        "holds": [False] * count,
    }


@pytest.mark.parametrize(("link", "expected"), [(0, (0, frozenset())), (1, (50, {3, 4}))])
def test_a_managed_tier_counts_inside_its_link_alone(link: int, expected: Any) -> None:
    ram = SimpleNamespace(link=1, capacity_bytes=(20, 30), initial=[3, 4])
    assert problem.kept_outside(machine(ram=ram), link) == expected
    assert problem.kept_outside(machine(ram=None), link) == (0, frozenset())


@pytest.mark.parametrize(
    ("bounds", "lower_ns", "method"),
    [
        (Bounds(5, 3, None, "why"), 5, "max"),
        (Bounds(3, 5, 0, None), 5, "max"),
        (Bounds(3, 5, 0, None, 7), 7, "relaxation"),
        (Bounds(3, 5, 0, None, 0), 5, "relaxation"),
    ],
)
def test_the_largest_bound_counts_and_names_how_it_was_found(
    bounds: Bounds, lower_ns: int, method: str
) -> None:
    assert (bounds.lower_ns, bounds.method) == (lower_ns, method)


def test_bytes_of_slots_that_hold_more_than_moves_bound_fewer_bytes_moved() -> None:
    """Slots of 12 B hold variants of 8 B and 2 B: 30 B of slots hold 20 B of the larger."""
    shape = Geometry(1, 2, 1, ("fp16", "int4"), (16.0, 4.0), (8, 2), 60)
    held = np.array([30, 13])
    assert problem._as_moved(replace(shape, held_bytes=(12, 12)), held).tolist() == [20, 8]
    assert problem._as_moved(shape, held).tolist() == [30, 13]


def test_a_layer_is_what_a_precision_has_beyond_the_lower_one() -> None:
    """Variants of 10 B and 4 B, at 2 ns a byte. Gates 0 and 3 need expert 1 at high precision, gate
    1 at any, gate 2 may skip it. Its low variant was there at the start; a token's needs stay.
    """
    shape = Geometry(1, 3, 1, ("fp16", "int4"), (16.0, 4.0), (10, 4), 60)
    controller = machine(ram=None)
    controller.geometry, controller.loader.chunk_bytes = shape, None
    controller.slots.initial = [shape.key(1, 0, 1)]
    workload: Any = SimpleNamespace(
        num_gates=4,
        gate_site=np.zeros(4, np.int64),
        needs=SimpleNamespace(tick=np.arange(4), expert=np.ones(4, np.int64)),
    )
    durations: Any = SimpleNamespace(
        latency_ns=lambda link: 7, hop_ns=lambda link, size: 7 + 2 * size, lanes=lambda link: None
    )
    permitted = problem.Permitted([(0,), (0, 1), (0, 1, SKIP)], np.array([0, 1, 2, 0]))
    low, high = problem._layers(workload, durations, controller, permitted, 0)
    assert {name: column.tolist() for name, column in vars(low).items()} == {
        "gate": [0, 1, 3],
        "bytes": [4] * 3,
        "load_ns": [8] * 3,
        "kept_from": [0, 2, 3],
        "holds": [True] * 3,
    }
    assert {name: column.tolist() for name, column in vars(high).items()} == {
        "gate": [0, 3],
        "bytes": [6] * 2,
        "load_ns": [12] * 2,
        "kept_from": [NEVER, 2],
        "holds": [True] * 2,
    }


def test_only_where_engines_work_at_once_are_latencies_hidden() -> None:
    """50 B take 7 and 100 ns; of two engines of link 0 one waits while the other copies."""
    durations: Any = SimpleNamespace(
        latency_ns=lambda link: 7, hop_ns=lambda link, size: 7 + 2 * size, lanes=lambda link: None
    )
    found = [problem.link_time_ns(durations, machine(), 50, link) for link in (0, 1)]
    assert found == [100, 107]
