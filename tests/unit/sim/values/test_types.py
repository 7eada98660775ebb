"""Keys and bytes of a geometry, valid routes, and plain values at their limits."""

from __future__ import annotations

from typing import Any

import pytest

from sim.values.types import Geometry, HostCosts, Outcome, Route, Step

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
        ({"engines": (1, 2), "head_bytes": (0, 1)}, "link 1 has 2 engines: cut-through needs one"),
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
