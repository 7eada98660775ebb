"""The reference where devices own experts, against examples worked by hand; production does the
same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from differential.by_hand import WAITS, gate, machine, served, stalls, token
from differential.rows import IdleRow
from differential.scenario import Devices, Host, Link, Loader, Placement, PoolSpec, Scenario
from differential.test_ref_devices import both

LOAD = Link(0, 10)
HOMES, OTHERS = (0, 2, 4, 6, 8), (1, 3, 5, 7)
"""Even experts are home's. The last unit is the place of a dense block."""


def two(*needs: int, resident: tuple[int, ...] = (), slots: int = 4, **rest: Any) -> Scenario:
    """One site, loads of 10 over a link for each device, experts of 1, messages of 3."""
    devices: dict[str, Any] = {"slower": (1, 1), "cross_ns": 3} | rest.pop("devices", {})
    one = machine(token(gate(*needs), rows=rest.pop("rows", 1)), **rest)
    pools = tuple(
        PoolSpec(
            slots,
            (0,),
            None,
            tuple((0, 0, e) for e in resident if e in mine),
            owned=frozenset((0, e) for e in mine),
        )
        for mine in (HOMES, OTHERS)
    )
    owner = tuple(expert % 2 for expert in range(8))
    where = Devices((), head=0, owner=owner, **devices)
    return replace(one, pools=pools, links=(LOAD, LOAD), devices=where)


# Contracts: C170
@pytest.mark.parametrize("wait", [*WAITS, "in_order"])
def test_home_computes_its_own_and_waits_for_the_message_of_the_other(wait: Any) -> None:
    """Dense 0..1. Home's expert 1..2. Activations there at 4, expert 4..5, its sum home at 8."""
    timeline = both(two(0, 1, resident=(0, 1), loader=Loader(wait=wait)))
    assert (timeline.makespan_ns, timeline.busy_ns) == (8, 2)
    assert timeline.idle == (IdleRow(2, 8, "cpu_join"),)


# Contracts: C170 C171
def test_what_home_waits_is_the_loads_until_the_other_could_begin() -> None:
    """The load takes 1..11 over the other's link; expert 11..12, its sum home at 15."""
    timeline = both(two(0, 1, resident=(0,)))
    assert served(timeline) == [(0, 1, 1, 11)]
    assert timeline.makespan_ns == 15
    assert timeline.idle == (IdleRow(2, 11, "transfer", 0), IdleRow(11, 15, "cpu_join"))
    assert stalls(timeline) == {"demand": 9, "cpu_join": 4}


def test_both_links_load_at_once_and_devices_compute_at_once() -> None:
    """Home 1..11 and 11..12, the other the same; its sum is home at 15. On one device: 1..21, 22."""
    timeline = both(two(0, 1))
    assert served(timeline) == [(0, 0, 1, 11), (1, 1, 1, 11)]
    assert timeline.makespan_ns == 15


def test_a_gate_without_needs_of_the_other_sends_nothing() -> None:
    timeline = both(two(0, 2, resident=(0, 2)))
    assert (timeline.makespan_ns, timeline.idle) == (3, ())


def test_an_owner_that_is_slower_takes_its_own_time() -> None:
    """Three experts there of 5 each: 4..19, home at 22."""
    resident = (0, 1, 3, 5)
    timeline = both(two(0, 1, 3, 5, resident=resident, devices={"slower": (1, 5)}))
    assert timeline.makespan_ns == 22


# Contracts: C170
def test_home_joins_the_cpu_and_the_other_device_whichever_is_last() -> None:
    """The CPU's result is there at 1 + 20; the other's at 8. Or the CPU's at 3."""
    for cpu_ns, ends_ns in ((20, 21), (2, 8)):
        placement = Placement(cpu=frozenset({(0, 2)}), cpu_ns=cpu_ns)
        timeline = both(two(0, 1, 2, resident=(0, 1), placement=placement))
        assert (timeline.makespan_ns, timeline.idle) == (
            ends_ns,
            (IdleRow(2, ends_ns, "cpu_join"),),
        )


# Contracts: C170
def test_a_wave_of_the_other_device_wakes_home() -> None:
    """The other has one slot for two rows' experts. It loads expert 1 in 1..11, computes 11..12,
    and is then given expert 3: loaded 12..22, computed 22..23, home at 26.

    If waking takes 2, it computes 13..14, which wakes home until 16, loads 14..24, and computes
    26..27: home at 30, and awake at 32.
    """
    plain = both(two(0, 1, 3, resident=(0,), slots=1, rows=2))
    assert served(plain) == [(0, 1, 1, 11), (1, 1, 12, 22)]
    assert plain.makespan_ns == 26
    assert stalls(plain) == {"demand": 19, "cpu_join": 5}
    waking = both(two(0, 1, 3, resident=(0,), slots=1, rows=2, host=Host(wake_ns=2)))
    assert served(waking) == [(0, 1, 1, 11), (1, 1, 14, 24)]
    assert waking.makespan_ns == 32
    assert [row for row in waking.idle if row.cause == "host"] == [
        IdleRow(14, 16, "host"),
        IdleRow(30, 32, "host"),
    ]
