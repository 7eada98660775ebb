"""Keys and values that come back over the links of experts, worked by hand (contract C178).

The first request reads a prompt of 3 rows, in blocks of one; the second has two of them in common.
Dense work takes 20 ns a site, a need 4 ns, and what is found outside the device comes over a link
of 5 ns and 1 ns a byte. Both simulators must give these times.
"""

from __future__ import annotations

from dataclasses import replace

from differential import production_rows, reference
from differential.by_hand import served
from differential.rows import Timeline
from differential.scenario import Batching, Link, Loader, PoolSpec, Request, Row, Scenario
from differential.test_engine_against_reference import first_difference

SECOND_NS = 1000
"""When the second request comes. All that the first one did is over."""


def row(expert: int) -> Row:
    return Row((((expert, 1.0),),) * 2, ((None,), (None,)))


def scenario(tiers: tuple[int, int, int], expert: int = 0, links: int = 1) -> Scenario:
    """``expert``: the one that the second request needs; only 0 is there. 50 B each."""
    return Scenario(
        sites=2,
        experts=2,
        variant_bytes=(50,),
        service_ns=(55,),
        base_ns=(4,),
        per_token_ns=(0,),
        pools=(PoolSpec(200, (0,), None, ((0, 0, 0), (0, 1, 0))),),
        steps=(),
        loader=Loader(wait="wait_all"),
        links=(Link(5, 1),) * links,
        requests=(
            Request((row(0),) * 3, (), 0, (1, 2, 3)),
            Request((row(expert),) * 3, (), SECOND_NS, (1, 2, 4)),
        ),
        batching=Batching("static", 1, dense_ns=(20, 20), block_tokens=1, tiers=tiers),
        kv_bytes=(10, 30),
    )


def run(asked: Scenario) -> Timeline:
    timeline = production_rows.run(asked)
    assert first_difference(timeline, reference.run(asked)) is None
    return timeline


def since(timeline: Timeline) -> list[tuple[int, int]]:
    """Gates and ends of the second request's sites, from its arrival on."""
    return [(one.gate_ns - SECOND_NS, one.end_ns - SECOND_NS) for one in timeline.gates[2:]]


def test_what_is_on_the_device_takes_no_time() -> None:
    timeline = run(scenario((2, 0, 0)))
    assert since(timeline) == [(20, 24), (44, 48)]
    assert not timeline.transfers


def test_a_site_waits_for_its_own_keys_and_values_only() -> None:
    """2 tokens: 20 and 60 B. Served to 25 and to 90: site 0 waits 25, site 1 from 49 to 90."""
    timeline = run(scenario((0, 2, 0)))
    assert since(timeline) == [(45, 49), (110, 114)]
    assert timeline.stall["dense"] == 25 + 41
    assert [(one.moved_bytes, one.kind) for one in timeline.transfers] == [
        (20, "dense"),
        (60, "dense"),
    ]


def test_an_expert_waits_behind_the_keys_and_values_of_a_later_site() -> None:
    """It is asked for at 45, served from 90 to 145, and computed to 149. Site 1 has its own one."""
    asked = scenario((0, 2, 0), expert=1)
    pool = replace(asked.pools[0], initial=((0, 0, 0), (0, 1, 1), (0, 1, 0)))
    timeline = run(replace(asked, pools=(pool,)))
    assert since(timeline) == [(45, 149), (169, 173)]
    assert timeline.stall["behind_demand"] == 45
    assert timeline.stall["demand"] == 55


def test_what_is_on_disk_takes_both_links_and_what_is_in_ram_one() -> None:
    """RAM holds block 1, the disk both. RAM: 10 and 30 B, to 15 and 50 on link 0. Disk: to 15 and 50
    on link 1; site 0's then takes link 0 from 50 to 65, and site 1's from 65 to 100.
    """
    timeline = run(scenario((0, 1, 2), links=2))
    second = [
        (link, start - SECOND_NS, end - SECOND_NS) for _, link, start, end in served(timeline)
    ]
    assert sorted(second) == [
        (0, 0, 15),
        (0, 15, 50),
        (0, 50, 65),
        (0, 65, 100),
        (1, 0, 15),
        (1, 15, 50),
    ]
    assert since(timeline) == [(85, 89), (120, 124)]
