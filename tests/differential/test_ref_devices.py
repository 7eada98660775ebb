"""The reference with several devices, against examples worked by hand; production does the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from differential import production_rows
from differential.by_hand import foresee, gate, machine, served, stalls, token
from differential.reference import run
from differential.rows import Timeline
from differential.scenario import Devices, Link, Loader, PoolSpec, Scenario
from differential.test_engine_against_reference import first_difference

LOAD = Link(0, 10)
STEP = token(gate(0), gate(1), ahead={0: (foresee(1),)})


def two(*, shared: bool = False, of: tuple[int, ...] = (0, 1), **rest: Any) -> Scenario:
    """Two sites with one need each, both absent; the second is forecast at the first's gate."""
    one = machine(STEP, capacity=2, loader=Loader(lookahead=1))
    values: dict[str, Any] = {"slower": (1, 1), "head": 1} | rest
    sites = {device: tuple(s for s, d in enumerate(of) if d == device) for device in (0, 1)}
    pools = tuple(PoolSpec(2, (0,), sites=mine) for mine in sites.values())
    links = (LOAD,) if shared else (LOAD, LOAD)
    return replace(one, pools=pools, links=links, devices=Devices(of, shared=shared, **values))


def both(scenario: Scenario) -> Timeline:
    """The timeline of the reference, where production has the same."""
    timeline = run(scenario)
    assert first_difference(production_rows.run(scenario), timeline) is None
    return timeline


# Contracts: C158
def test_a_prefetch_for_another_device_does_not_wait_for_this_devices_link() -> None:
    """Dense 0..1, then both load 1..11, each over its own link. Expert 11..12, dense 12..13, the
    second need is there: 13..14. Over one link the second load takes 11..21: 22.
    """
    apart = both(two())
    assert served(apart) == [(0, 0, 1, 11), (1, 1, 1, 11)]
    assert (apart.makespan_ns, stalls(apart)) == (14, {"demand": 10})
    together = both(two(shared=True))
    assert served(together) == [(0, 0, 1, 11), (1, 0, 11, 21)]
    assert (together.makespan_ns, stalls(together)) == (22, {"demand": 10, "late_prefetch": 8})


# Contracts: C158
@pytest.mark.parametrize(
    ("slots", "second", "makespan_ns"),
    [
        pytest.param(2, (1, 1, 1, 11), 14, id="both at once"),
        pytest.param(1, (1, 1, 13, 23), 24, id="the second one when the first is given up"),
    ],
)
def test_staging_slots_of_all_devices_are_counted_once(
    slots: int, second: tuple[int, ...], makespan_ns: int
) -> None:
    """No device has slots. Both loads take 10 ns as above; a need leaves staging at the next gate,
    at 13. The second expert takes 1 ns.
    """
    scenario = two()
    scenario = replace(
        scenario,
        pools=tuple(replace(pool, capacity_bytes=0) for pool in scenario.pools),
        loader=replace(scenario.loader, staging_slots=slots),
    )
    timeline = both(scenario)
    assert served(timeline) == [(0, 0, 1, 11), second]
    assert timeline.makespan_ns == makespan_ns


# Contracts: C159
@pytest.mark.parametrize(
    ("rest", "makespan_ns", "busy_ns"),
    [
        pytest.param({}, 14, 4, id="nothing to cross"),
        pytest.param({"cross_ns": 5, "cross_row_ns": 2}, 21, 11, id="to the second site"),
        pytest.param({"cross_ns": 7, "head": 0}, 28, 18, id="and back to the head"),
        pytest.param({"slower": (1, 3)}, 18, 8, id="the second device is slower"),
    ],
)
def test_a_step_crosses_where_the_device_changes(
    rest: dict[str, Any], makespan_ns: int, busy_ns: int
) -> None:
    """Dense 1, load 10, expert 1; cross 7; dense 1, expert 1; the tail takes 0, and 7 to cross.

    The slower device takes 3 for its dense work and 3 for its expert: 4 more.
    """
    timeline = both(two(**rest))
    assert (timeline.makespan_ns, timeline.busy_ns) == (makespan_ns, busy_ns)


def test_one_device_with_every_site_is_a_machine_with_one_device() -> None:
    one = machine(STEP, capacity=4, loader=Loader(lookahead=1))
    where = two(shared=True, of=(0, 0), head=0, cross_ns=9)
    where = replace(where, pools=(PoolSpec(4, (0,)),))
    assert both(where).services == run(one).services
