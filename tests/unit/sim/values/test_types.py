"""Keys and bytes of a geometry, valid routes, and plain values at their limits."""

from __future__ import annotations

from typing import Any

import pytest

from sim.values.types import (
    REROUTE,
    SKIP,
    Cause,
    Event,
    Found,
    Geometry,
    HostCosts,
    Outcome,
    Place,
    PrefetchOutcome,
    Route,
    Step,
    rerouted,
)

TWO = Geometry(3, 4, 2, ("fp16", "int4"), (16.0, 4.0), (8, 2), 100)
"""Three sites of four experts: 5 units a site, 15 keys for each precision."""


def test_keys_go_by_precision_then_site_then_unit_and_the_last_unit_is_the_dense_block() -> None:
    assert (TWO.units, TWO.plane, TWO.num_keys) == (5, 15, 30)
    assert [TWO.key(0, 0, 0), TWO.key(0, 2, 3), TWO.key(0, 2, 4), TWO.key(1, 0, 0)] == [
        0,
        13,
        14,
        15,
    ]


def test_a_key_gives_back_what_it_was_made_of() -> None:
    keys = [(p, s, u) for p in range(2) for s in range(3) for u in range(5)]
    assert [TWO.key(*parts) for parts in keys] == list(range(30))
    assert [(TWO.precision_of(k), TWO.site_of(k), TWO.expert_of(k)) for k in range(30)] == keys


def test_a_variants_bytes_are_those_of_its_precision_and_may_differ_from_site_to_site() -> None:
    assert [TWO.bytes_of(key) for key in (0, 13, 15, 28)] == [8, 8, 2, 2]
    sized = Geometry(3, 4, 2, ("fp16", "int4"), (16.0, 4.0), (8, 2), 100, ((4, 8, 6), (1, 2, 2)))
    assert [sized.bytes_of(sized.key(p, s, 0)) for p in range(2) for s in range(3)] == [
        4,
        8,
        6,
        1,
        2,
        2,
    ]
    for geometry in (TWO, sized):
        assert list(geometry.key_bytes) == [geometry.bytes_of(key) for key in range(30)]


def test_the_bytes_of_a_variant_are_its_largest_sites() -> None:
    with pytest.raises(
        ValueError, match=r"variant_bytes \(8, 2\) must be the largest of site_bytes, by precision"
    ):
        Geometry(3, 4, 2, ("fp16", "int4"), (16.0, 4.0), (8, 2), 100, ((4, 8, 6), (1, 1, 1)))


def test_a_key_has_a_name_for_messages() -> None:
    assert TWO.name_of(28) == "site 2 expert 3 int4"


def test_a_route_without_words_is_one_link_of_one_engine() -> None:
    route = Route()
    assert (route.links, route.engines, route.head_bytes, route.ram_link) == (1, (1,), (0,), None)
    assert (route.ram_bytes, route.link_of) == (0, ())


@pytest.mark.parametrize(
    ("words", "links"),
    [
        ({"engines": (2, 1), "head_bytes": (0, 4096)}, 2),
        ({"engines": (1, 1, 3), "head_bytes": (0, 1, 0), "ram_link": 2, "ram_bytes": 9}, 3),
    ],
)
def test_links_may_have_engines_or_cut_through_and_ram_lies_at_one_of_the_outer_ones(
    words: dict[str, Any], links: int
) -> None:
    assert Route(**words).links == links


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"engines": (), "head_bytes": ()},
            "a route needs engines >= 1 and head_bytes for each link",
        ),
        ({"engines": (0,)}, "a route needs engines >= 1 and head_bytes for each link"),
        ({"engines": (1, 1)}, "a route needs engines >= 1 and head_bytes for each link"),
        (
            {"head_bytes": (1,)},
            r"head_bytes must be >= 0, and 0 for link 0, which ends at the device: \(1,\)",
        ),
        ({"engines": (1, 1), "head_bytes": (0, -1)}, r"head_bytes must be >= 0, and 0 for link 0"),
        (
            {"engines": (1, 2), "head_bytes": (0, 1)},
            "link 1 has 2 engines: cut-through needs one; set its engines to 1, or its",
        ),
        ({"ram_link": 0}, "ram_link=0 must be a link from 1 to 0"),
        (
            {"engines": (1, 1), "head_bytes": (0, 0), "ram_link": 2},
            "ram_link=2 must be a link from 1 to 1",
        ),
    ],
)
def test_a_route_that_cannot_be_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Route(**words)


def test_a_step_has_the_rows_from_its_start_to_its_stop() -> None:
    assert Step(0, 4, 9, (1,), 9, False, (1,), ()).rows == 5


def test_host_time_is_nothing_unless_it_is_said() -> None:
    assert not any(vars(HostCosts()).values())


def test_a_hit_is_nothing_so_that_any_of_several_outcomes_means_that_something_is_no_plain_hit() -> (
    None
):
    assert not Outcome.HIT
    assert all(outcome for outcome in Outcome if outcome is not Outcome.HIT)


@pytest.mark.parametrize(
    "wrong",
    [{"link_of": (0, 0)}, {"link_of": (0, 2)}, {"ram_link": 1}, {"head_bytes": (0, 1)}],
    ids=str,
)
def test_links_of_several_devices_end_at_one_each(wrong: dict[str, Any]) -> None:
    of_two: dict[str, Any] = {"engines": (1, 1), "head_bytes": (0, 0), "link_of": (0, 1, 1)}
    assert Route(**of_two).links == 2
    with pytest.raises(
        ValueError,
        match=r"^links of several devices each end at one, without RAM tier and cut-through, got"
        r" Route\(",
    ):
        Route(**(of_two | wrong))


def test_waking_takes_longer_after_a_longer_wait_in_straight_lines_rounded_down() -> None:
    assert [HostCosts(wake_ns=7).waking_ns(idle) for idle in (0, 10**9)] == [7, 7]
    costs = HostCosts(wake_ns=7, wakes=((10, 100), (20, 205), (40, 5)))
    waits = {0: 100, 9: 100, 10: 100, 11: 110, 19: 194, 20: 205, 25: 155, 40: 5, 41: 5}
    assert {wait: costs.waking_ns(wait) for wait in waits} == waits
    assert HostCosts(wakes=((10, 100),)).waking_ns(11) == 100


def test_a_load_costs_the_host_its_time_and_its_bytes_at_their_rate() -> None:
    assert HostCosts(load_ns=5).loading_ns(10**9) == 5
    assert HostCosts(load_ns=5, load_bytes_per_s=2e9).loading_ns(11) == 5 + 6  # 5.5, to the even
    assert HostCosts(load_bytes_per_s=2e9).loading_ns(0) == 0


def test_enumerations_have_the_numbers_that_files_have() -> None:
    for kind, names in (
        (Outcome, "HIT HIGH_FOR_LOW LOW_FOR_HIGH LATE PROMOTED MISS CPU SKIP REROUTE"),
        (
            PrefetchOutcome,
            "USED LATE DROPPED EVICTED_UNUSED UNUSED_AT_END PROMOTED CANCELLED DROPPED_NO_SLOT",
        ),
        (Event, "QUEUE_PREFETCH CANCEL DROP_NO_SLOT ISSUE EVICT"),
        (Cause, "DEMAND PREFETCH INITIAL"),
        (Place, "LOAD CPU SKIP"),
    ):
        assert {one.name: int(one) for one in kind} == {
            name: number for number, name in enumerate(names.split())
        }
    assert (SKIP, REROUTE, rerouted(0, 0, 3), rerouted(4, 2, 3)) == (-1, -2, 3, 17)


def test_tokens_that_need_not_be_read_are_those_that_any_tier_holds() -> None:
    assert (Found().tokens, Found(1, 20, 300, 4_000).tokens) == (0, 321)


def test_a_route_begins_at_ram_one_link_inside_it_and_ends_at_each_device() -> None:
    one = Route((1, 1, 1), (0, 0, 0), ram_link=2)
    assert (Route().out_of_ram, one.out_of_ram, one.ends) == (0, 1, 1)
    assert Route((1, 1), (0, 0), link_of=(1, 0)).ends == 2


def test_keys_without_layers_slots_or_devices_of_their_own_have_the_usual_ones() -> None:
    assert ([TWO.layer_of(2), TWO.on_device(29), TWO.num_keys], TWO.missing) == ([2, 0, 30], set())
    assert TWO.key_bytes == TWO.slot_bytes == (8,) * 15 + (2,) * 15
    assert TWO.slot_sizes == (8, 2)
    own = Geometry(
        3,
        4,
        2,
        ("fp16", "int4"),
        (16.0, 4.0),
        (8, 2),
        100,
        ((8, 7, 6), (2, 1, 1)),
        held_bytes=(8, 4),
        layers=(1, 3, 5),
        device_of=(0,) * 14 + (1,),
    )
    assert own.key_bytes == (8,) * 5 + (7,) * 5 + (6,) * 5 + (2,) * 5 + (1,) * 10
    assert (own.slot_bytes, own.slot_sizes) == ((8,) * 15 + (4,) * 15, (8, 4))
    assert [own.layer_of(site) for site in range(3)] == [1, 3, 5]
    assert [own.on_device(key) for key in (13, 14, 28, 29)] == [0, 1, 0, 1]
    with pytest.raises(
        ValueError, match=r"^held_bytes \(8, 1\) must be no less than variant_bytes"
    ):
        Geometry(3, 4, 2, ("fp16", "int4"), (16.0, 4.0), (8, 2), 100, held_bytes=(8, 1))


def test_a_step_says_nothing_of_drafts_unless_it_is_told() -> None:
    one = Step(0, 4, 9, (1,), 9, False, (1,), ())
    assert (one.sites, one.drafters, one.kept, one.found, one.drafting) == ((), (), (), None, False)
