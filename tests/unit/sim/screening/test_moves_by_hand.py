"""What screening refuses, and what it keeps and times of a gate, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.policies.recency import LRU
from sim.screening import frontier
from sim.screening.frontier import (
    NEVER,
    Point,
    curve_of,
    least_loads,
    requests_of,
    require_slots,
    walked,
)
from sim.screening.moves import (
    GateWork,
    Moves,
    ScreenError,
    _drain,
    _pass_gate,
    first_pass,
    require_screenable,
)
from sim.screening.times import Machines, Times, _work_ns, roofline_kind, second_pass
from sim.values.types import SKIP, Outcome, Place, Step

# ---- what is refused


def controller(**changes: Any) -> Any:
    """A controller that is screened."""
    loader = {
        "prefetch_budget": 3,
        "chunk_bytes": None,
        "dense_slots": 0,
        "replay_unit": "union",
        "retention": "strict",
        "staging_slots": 0,
    }
    values: dict[str, Any] = {
        "predictor": SimpleNamespace(silent=changes.pop("silent", True)),
        "loader": SimpleNamespace(**loader | changes.pop("loader", {})),
        "route": SimpleNamespace(
            links=changes.pop("links", 1), engines=changes.pop("engines", (1,))
        ),
        "predicts_later": False,
        "placement": SimpleNamespace(constant=changes.pop("constant", Place.LOAD)),
        "selector": SimpleNamespace(constant=0, reroutes=changes.pop("reroutes", False)),
        "kv_bytes": 0,
    }
    return SimpleNamespace(**values | changes)


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({}, None),
        ({"silent": False, "loader": {"prefetch_budget": 0}}, None),
        ({"silent": False}, "predictor: "),
        ({"silent": False, "loader": {"prefetch_budget": None}}, "predictor: "),
        ({"predicts_later": True}, "hardware.prediction_us: "),
        ({"links": 2}, "hardware.links: a route of several links"),
        ({"engines": (1, 2)}, "hardware.links: engines"),
        ({"constant": None}, "placement: "),
        ({"reroutes": True}, "precision: "),
        ({"loader": {"chunk_bytes": 0}}, "loader.chunk_bytes: "),
        ({"loader": {"dense_slots": 1}}, "loader.dense_slots: "),
        ({"kv_bytes": 1}, "workload.kv_ram_gib and kv_disk_gib: "),
        ({"loader": {"replay_unit": "access"}}, "loader.replay_unit=access "),
    ],
)
def test_each_switch_that_makes_time_decide_is_refused_by_its_name(
    changes: dict[str, Any], begins: str | None
) -> None:
    if begins is None:
        require_screenable(controller(**changes), False)
        return
    with pytest.raises(ScreenError) as refused:
        require_screenable(controller(**changes), False)
    told = str(refused.value)
    assert told.startswith(
        f"screening is exact only where decisions do not depend on time. {begins}"
    )
    assert told.endswith("; moelab run runs it")


def test_arrivals_are_refused() -> None:
    with pytest.raises(ScreenError, match=r"on time\. arrivals: which sequences run together"):
        require_screenable(controller(), True)


def test_a_number_of_slots_is_of_one_precision_and_of_every_step() -> None:
    geometry = SimpleNamespace(precisions=("fp16", "int4"), site_bytes=None)
    one = SimpleNamespace(precisions=("fp16",), site_bytes=None)
    with pytest.raises(ScreenError) as refused:
        require_slots(controller(geometry=geometry, spare_bytes=None))
    assert str(refused.value) == (
        "precision: slots of fp16, int4 have several sizes; choose one precision (precision=fp16)"
    )
    with pytest.raises(ScreenError, match=r"^workload\.kv_allocation=growing: "):
        require_slots(controller(geometry=one, spare_bytes=lambda step: 0))


# ---- the first pass


def transfer(key: int, left: int, *victims: int) -> Any:
    return SimpleNamespace(key=key, left_bytes=left, write_back=victims)


def linked(in_flight: int, *first: Any, after: tuple[Any, ...] = ()) -> Any:
    """A controller whose link has ``first`` to poll, and ``after`` as each service ends."""
    polled, following, calls = [*first], [*after], list[Any]()

    def poll(link: int) -> Any:
        calls.append(("poll", link))
        return polled.pop(0) if polled else None

    def done(link: int, one: Any) -> Any:
        calls.append(("done", link, one.key))
        return 0, following.pop(0) if following else None

    return SimpleNamespace(
        queues=[[[], [1]], [[], []]],
        loader=SimpleNamespace(in_flight=in_flight),
        poll=poll,
        transfer_done=done,
        slots=SimpleNamespace(key_bytes=[10, 11, 12, 13, 14, 15]),
        geometry=SimpleNamespace(units=3, sites=2),
        calls=calls,
    )


def test_the_link_serves_what_waits_in_order_and_victims_that_are_written_back_first() -> None:
    one = linked(2, transfer(4, 9), transfer(1, 8, 2, 5), transfer(3, 7), after=(transfer(0, 6),))
    assert _drain(one) == ([(9,), (12, 15, 8), (6,)], {4: 0, 1: 1, 0: 2})
    dones = [("done", 0, key) for key in (4, 1, 0)]
    assert one.calls == [("poll", 0), ("poll", 0), *dones]
    idle = linked(2)
    assert _drain(idle) == ([], {})
    assert idle.calls == [("poll", 0)]
    empty = linked(2, transfer(4, 9))
    empty.queues[0] = [[], []]
    assert (_drain(empty), empty.calls) == (([], {}), [])


def test_a_gate_computes_what_it_did_not_skip_and_awaits_what_is_on_its_way() -> None:
    """Keys of site 1 at two precisions: 3 to 5 and 9 to 11."""
    found = linked(4, transfer(4, 9), transfer(9, 8))
    gate: Any = SimpleNamespace(tokens=[1, 2, 3, 4, 5], step=7, site=1, needs=[0] * 5)
    outcomes = [Outcome.HIT, Outcome.MISS, Outcome.MISS, Outcome.SKIP, Outcome.MISS]
    found.admitted, found.waiting = [3, 4, 9, 5, SKIP], False
    found.gate = lambda gate: (outcomes, {4})
    assert _pass_gate(found, gate, 0) == GateWork(
        ((0, 1, 1, -1), (0, 1, 2, 0), (1, 1, 3, -1)), ((9,), (8,))
    )
    found.gate = lambda gate: (outcomes[:1], None)
    gate.tokens, found.admitted = [6], [3]
    assert _pass_gate(found, gate, 9) == GateWork(((0, 1, 6, -1),), (), 9)
    found.waiting = True
    with pytest.raises(ScreenError, match=r"At step 7, site 1 the union of 5 experts does not fit"):
        _pass_gate(found, gate, 0)


def step(*sites: int, begins: tuple[int, ...] = (), ends: tuple[int, ...] = ()) -> Any:
    found: Any = object.__new__(Step)
    values = {"sites": sites, "begins": begins, "ends": ends, "start": 2, "stop": 9}
    for name, value in values.items():
        object.__setattr__(found, name, value)
    return found


def test_equal_gates_are_one_work_and_sequences_begin_and_end_with_their_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    steps = [step(0, 1, begins=(3,)), step(1, begins=(5,), ends=(3, 5))]
    waiting = [*steps, None]
    gate = SimpleNamespace(
        open=lambda step: told.append("open"), visit=lambda site: setattr(gate, "site", site)
    )
    workload: Any = SimpleNamespace(
        gate=lambda: gate,
        start=lambda: SimpleNamespace(
            next=lambda now: told.append(("next", now)) or waiting.pop(0)
        ),
    )
    walks: Any = SimpleNamespace(
        begin_sequence=lambda one: told.append(("begins", one)),
        end_sequence=lambda one: told.append(("ends", one)),
        finish=lambda: told.append("finish"),
    )
    works = [GateWork((), ((site,),), 7) for site in range(2)]
    monkeypatch.setattr(
        "sim.screening.moves._pass_gate",
        lambda all_of, gate, rows: replace(works[gate.site], rows=rows),
    )
    found = first_pass(walks, workload)
    assert (found.kinds, found.kind.tolist()) == ((works[0], works[1]), [0, 1, 1])
    assert (found.first_gate.tolist(), found.steps, found.controller) == ([0, 2], steps, walks)
    assert told == [
        ("next", 0),
        ("begins", 3),
        "open",
        ("next", 0),
        ("begins", 5),
        "open",
        ("ends", 3),
        ("ends", 5),
        ("next", 0),
        "finish",
    ]


# ---- the second pass


def machine(factor: int = 1, wakes: tuple[Any, ...] = ()) -> Any:
    """10 ns a byte, 20 ns a row and 1 ns for each row of the step, times ``factor``."""
    host = SimpleNamespace(
        sync_ns=1, issue_ns=2, wake_ns=3, post_ns=4, wakes=wakes, waking_ns=lambda idle: idle // 2
    )
    asked: list[Any] = []
    return SimpleNamespace(
        host=host,
        asked=asked,
        hop_ns=lambda link, size: asked.append((link, size)) or 10 * size * factor,
        expert_ns=lambda precision, site, tokens, rows: (
            asked.append((precision, site, tokens, rows))
            or (20 * tokens + precision + rows) * factor
        ),
        dense_ns=lambda step: asked.append("dense") or [100, 200, 400],
        tail_ns=lambda step: 5 * factor,
    )


WORK = GateWork(((0, 1, 2, -1), (0, 1, 1, 1), (0, 1, 3, 0)), ((5,), (7, 1)))
"""Needs of 40, 20 and 60 ns; the third's transfer arrives at 50 and the second's at 130."""


@pytest.mark.parametrize(
    ("wait", "one", "other"),
    [
        # 2 + 40; awake at 133, + 20; then 60 more. Twice the times: 82; 263 + 40; + 120.
        ("in_order", 213, 423),
        # 42; awake at 53, + 60; awake at 133, + 20. Twice: 82; 103 + 120; 263 + 40.
        ("as_ready", 153, 303),
        # Awake at 133, and all of it. Twice: 263 and 240.
        ("wait_all", 253, 503),
    ],
)
def test_a_gate_takes_what_its_needs_take_and_wait_for(wait: str, one: int, other: int) -> None:
    machines = Machines([machine(), machine(2)], roofline_kind)
    assert _work_ns(WORK, machines, wait).tolist() == [one, other]
    resident = GateWork(((1, 0, 1, -1),), ())
    assert _work_ns(resident, machines, wait).tolist() == [23, 44]
    assert _work_ns(replace(resident, rows=5), machines, wait).tolist() == [28, 54]


def test_a_stream_wakes_only_where_it_waited_and_longer_after_longer_waits() -> None:
    free, arrived = np.array([10, 10, 10]), np.array([9, 10, 11])
    same = Machines([machine()] * 3, roofline_kind)
    assert same.until(free, arrived).tolist() == [10, 10, 11 + 3]
    longer = Machines([machine(), machine(wakes=((0, 1),)), machine()], roofline_kind)
    assert longer.until(free, np.array([12, 18, 30])).tolist() == [13, 22, 40]


def test_each_machine_is_asked_once_for_each_duration_and_a_step_has_host_time_for_each_site() -> (
    None
):
    asked = machine()
    machines = Machines([asked], lambda step: step.sites)
    for _ in range(2):
        assert machines.service_ns((5, 7)).tolist() == [120]
        assert machines.expert_ns(1, 0, 2).tolist() == [41]
        # 100 + 400, the tail, and twice 1 + 4.
        assert machines.step_ns(step(0, 2)).tolist() == [515]
    assert asked.asked == [(0, 5), (0, 7), (1, 0, 2, 0), "dense"]


def test_steps_follow_each_other_and_have_the_works_of_their_gates() -> None:
    """23 and 213 ns of gates; 310 + 5 and 200 + 5 + 5 of the steps themselves."""
    walks: Any = SimpleNamespace(loader=SimpleNamespace(wait="in_order"))
    kinds = (GateWork(((1, 0, 1, -1),), ()), WORK)
    steps = [step(0, 1), step(1)]
    moves = Moves(kinds, np.array([0, 1, 1]), np.array([0, 2]), steps, walks)
    found = second_pass(moves, [machine(), machine(2)], lambda step: step.sites)
    first, second = 300 + 5 + 10 + 23 + 213, 200 + 5 + 5 + 213
    slow, slower = 300 + 10 + 10 + 44 + 423, 200 + 10 + 5 + 423
    assert found.step_end_ns.tolist() == [[first, slow], [first + second, slow + slower]]
    assert found.makespan_ns.tolist() == [first + second, slow + slower]
    assert found.step_start_ns.tolist() == [[0, 0], [first, slow]]
    assert Times(np.array([[7]])).step_start_ns.tolist() == [[0]]


# ---- curves


WORKLOAD: Any = SimpleNamespace(
    is_timed=False,
    needs=SimpleNamespace(
        tick=np.array([0, 1, 1, 2, 3], np.int32), expert=np.array([0, 0, 1, 1, 0], np.int16)
    ),
    gate_site=np.array([0, 1, 0, 1]),
    gate_step=np.array([0, 0, 1, 1]),
    steps=[SimpleNamespace(gives_tokens=False), SimpleNamespace(gives_tokens=True)],
)
"""Two steps of two sites: keys 0; 3 and 4; then, decoded, 1; 3."""


def pooled(pools: int, **changes: Any) -> Any:
    """Two sites of two experts and a dense block, all experts resident."""
    return controller(
        cache=LRU(),
        geometry=SimpleNamespace(
            sites=2, units=3, num_keys=6, precisions=("fp16",), site_bytes=None
        ),
        spare_bytes=None,
        slots=SimpleNamespace(
            capacity_bytes=(1,) * pools,
            pool_of=[0, 0, 0, 1, 1, 1] if pools == 2 else [0] * 6,
            initial=[0, 1, 3, 4],
            count=4,
        ),
        **changes,
    )


def test_what_a_run_looks_up_has_its_keys_and_whether_a_step_decoded_it() -> None:
    found = requests_of(pooled(1), WORKLOAD)
    assert found.tick.tolist() == [0, 1, 1, 2, 3]
    assert found.key.tolist() == [0, 3, 4, 1, 3]
    assert found.is_decode.tolist() == [False] * 3 + [True] * 2
    assert found.largest_union == 2


def test_a_pool_a_site_shares_the_slots_out_and_one_pool_has_them_all() -> None:
    """A pool a site: of its own slots 1 and 2; 1, 2 and 2. So of all slots 1 and 3; 2, 4 and 4.

    One pool: 0 is the first of the initial ones. 3 and 4 are third and fourth, with one distinct
    key before them. 1 is second, but three other keys were asked for: two of those behind it, too.
    3 has 1 and 4 above it.
    """
    site = curve_of(pooled(2), WORKLOAD)
    assert (site.least, site.most, site.slots.tolist()) == (4, 4, [1, 2, 4, 3, 4])
    assert site.at(4) == Point(4, 2, 2, 0)
    assert site.at(4).hit_ratio == 1.0
    assert Point(4, 0, 0, 0).hit_ratio is None
    one = curve_of(pooled(1), WORKLOAD)
    assert (one.least, one.most, one.slots.tolist()) == (2, 4, [1, 3, 4, 4, 3])
    assert [one.at(slots) for slots in (2, 3, 4)] == [
        Point(2, 0, 2, 4),
        Point(3, 1, 2, 2),
        Point(4, 2, 2, 0),
    ]
    empty = pooled(1)
    empty.slots.initial = []
    assert curve_of(empty, WORKLOAD).slots.tolist() == [NEVER] * 4 + [3]
    with pytest.raises(
        ScreenError, match=r"^cache: one pass tells no other capacity's hits, becau"
    ):
        curve_of(pooled(1, loader={"staging_slots": 1}), WORKLOAD)


def test_a_walk_counts_hits_of_decode_steps_and_all_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = [Outcome.MISS, Outcome.HIT, Outcome.MISS, Outcome.HIGH_FOR_LOW, Outcome.MISS]
    one = pooled(1, lookup_outcomes=bytearray(map(int, outcomes)))
    monkeypatch.setattr(frontier, "first_pass", lambda *told: None)
    assert walked(one, WORKLOAD) == Point(4, 1, 2, 3)


def test_the_fewest_loads_are_of_the_slots_and_staging_with_the_first_contents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stays = np.array([True, False, True, True, False])
    monkeypatch.setattr(frontier, "stays_until_next", lambda workload, controller: stays)
    monkeypatch.setattr(frontier, "fewest_loads", lambda *told: told[2:])
    one = pooled(1, loader={"staging_slots": 3})
    found: Any = least_loads(one, WORKLOAD, requests_of(one, WORKLOAD))
    assert (*found[:2], found[2].tolist()) == (4 + 3, [0, 1, 3, 4], stays.tolist())
