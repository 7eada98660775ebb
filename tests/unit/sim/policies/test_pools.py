"""How bytes become pools, slot by slot, and what is in them at the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sim.core.slots import RESIDENT, Slots
from sim.policies.recency import LRU
from sim.values.types import CapacityError, Geometry, PoolPlan


def geometry(
    capacity_bytes: int,
    variant_bytes: tuple[int, ...] = (4, 1),
    sites: int = 2,
    experts: int = 2,
    site_bytes: tuple[tuple[int, ...], ...] | None = None,
) -> Geometry:
    names = ("fp16", "int4")[: len(variant_bytes)]
    return Geometry(
        sites,
        experts,
        1,
        names,
        (16.0, 4.0)[: len(names)],
        variant_bytes,
        capacity_bytes,
        site_bytes,
    )


def plan(
    capacity_bytes: int, *, scope: str = "global", shares: Sequence[float] = (), **rest: Any
) -> PoolPlan:
    return LRU(scope, shares).pools(geometry(capacity_bytes, **rest))


def test_a_global_pool_holds_everything() -> None:
    whole = plan(10)
    assert whole.capacity_bytes == (10,)
    assert list(whole.pool_of) == [0] * 12


# Contracts: C84
@pytest.mark.parametrize(
    ("capacity_bytes", "slots"),
    [
        (24, (2, 2, 2)),
        (28, (3, 2, 2)),
        (32, (3, 3, 2)),
        (35, (3, 3, 2)),
        (36, (3, 3, 3)),
        (11, (1, 1, 0)),
    ],
)
def test_sites_get_equal_slots_and_left_over_ones_go_to_the_first(
    capacity_bytes: int, slots: tuple[int, ...]
) -> None:
    """Slots have the size of the largest variant, 4 B; less than a slot is left unused."""
    per_site = plan(capacity_bytes, scope="site", sites=3)
    assert per_site.capacity_bytes == tuple(4 * count for count in slots)


def test_a_key_of_any_precision_lives_in_the_pool_of_its_site() -> None:
    """Keys are (precision * 2 sites + site) * 3 units + unit."""
    assert list(plan(16, scope="site").pool_of) == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]


# Contracts: C84
@pytest.mark.parametrize(
    ("capacity_bytes", "shares", "pools"),
    [
        (100, (0.8, 0.2), (80, 20)),
        (100, (3, 1), (75, 25)),
        (99, (0.5, 0.5), (49, 50)),
        (10, (1, 2, 7), (3, 7)),
    ],
)
def test_precisions_get_their_shares_and_the_last_one_the_rest(
    capacity_bytes: int, shares: tuple[float, ...], pools: tuple[int, ...]
) -> None:
    """The third share of the last case names a precision that is not in play: 1 : 2 of 10 B."""
    divided = plan(capacity_bytes, scope="precision", shares=shares)
    assert divided.capacity_bytes == pools
    assert sum(divided.capacity_bytes) == capacity_bytes
    assert list(divided.pool_of) == [0] * 6 + [1] * 6


def test_a_single_precision_gets_all_bytes_whatever_its_share() -> None:
    assert plan(100, scope="precision", shares=(0.8, 0.2), variant_bytes=(4,)).capacity_bytes == (
        100,
    )


def test_too_few_shares_are_refused_with_the_precisions_in_play() -> None:
    with pytest.raises(
        ValueError,
        match=r"cache shares \[0.8\] name 1 pools, but the precisions in play are fp16, int4",
    ):
        plan(100, scope="precision", shares=(0.8,))


# Contracts: C145
def test_a_layout_is_a_size_of_slot_and_gets_its_part_of_the_bytes() -> None:
    """Sites 0 and 2 have slots of 4 B, site 1 of 2 B; so 8 : 2 of 20 B, rounded down."""
    sizes = ((4, 2, 4),)
    one = {"sites": 3, "variant_bytes": (4,), "site_bytes": sizes, "scope": "layout"}
    divided = plan(22, **one)
    assert list(divided.pool_of) == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert divided.capacity_bytes == (17, 4), "22 * 8 / 10 and 22 * 2 / 10"
    assert divided.initial == (0, 1, 3, 4, 6, 7)
    assert plan(20, scope="layout").capacity_bytes == (16, 4), "two precisions, 4 B and 1 B"
    assert plan(20, scope="layout", variant_bytes=(4,)).capacity_bytes == (20,)


# Contracts: C145
def test_sites_with_a_quota_have_pools_of_their_own_beside_the_shared_ones() -> None:
    """Site 1 is whole: 2 slots of 4 B. Sites 0 and 2 share the other 12 B."""
    shape = geometry(20, variant_bytes=(4,), sites=3)
    divided = LRU("layout", quotas=[0, 2, 0], initial="empty").pools(shape)
    assert divided.capacity_bytes == (8, 12)
    assert list(divided.pool_of) == [1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert divided.initial == (3, 4), "what is whole is there, though the cache is cold"
    assert LRU("layout", quotas=[0, 2, 0]).pools(shape).initial == (3, 4, 0, 1, 6)
    assert LRU("layout", quotas=[0, 1, 0], initial="empty").pools(shape).initial == ()
    every = LRU("layout", quotas=[2, 2, 1]).pools(shape)
    assert every.capacity_bytes == (8, 8, 4)


# Contracts: C85
@pytest.mark.parametrize(
    ("capacity_bytes", "initial"),
    [(10, (0, 1)), (3, ()), (4, (0,)), (16, (0, 1, 3, 4)), (18, (0, 1, 3, 4))],
)
def test_a_global_pool_is_filled_by_site_then_expert_at_the_highest_precision(
    capacity_bytes: int, initial: tuple[int, ...]
) -> None:
    """High variants take 4 B: keys 0, 1 (site 0) and 3, 4 (site 1).

    No low variant fills what is left over.
    """
    assert plan(capacity_bytes).initial == initial


# Contracts: C85
def test_a_low_pool_is_filled_with_what_the_high_one_does_not_hold() -> None:
    """8 B high hold site 0's two experts (keys 0, 1).

    2 B low hold site 1's two (keys 9, 10), not site 0's (6, 7).
    """
    assert plan(10, scope="precision", shares=(0.8, 0.2)).initial == (0, 1, 9, 10)


def test_every_sites_pool_is_filled_with_its_own_experts() -> None:
    assert plan(12, scope="site").initial == (0, 1, 3)


def test_an_empty_start_holds_nothing() -> None:
    assert LRU(initial="empty").pools(geometry(16)).initial == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scope": "layer"}, "unknown cache scope 'layer'; known: global, precision, site"),
        ({"initial": "warm"}, "unknown initial cache 'warm'; known: ascending, popular, empty"),
        (
            {"shares": (0.5, 0.5)},
            r"shares go with scope=precision, got scope=global shares=\[0.5, 0.5\];"
            r" with scope=global set cache.shares=\[\]$",
        ),
        (
            {"scope": "precision"},
            r"shares go with scope=precision, got scope=precision shares=\[\]",
        ),
        (
            {"scope": "precision", "shares": (1.0, 0.0)},
            r"shares must be numbers > 0, got \[1.0, 0.0\]",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LRU(**arguments)


# Slots: claims in bytes


def slots(capacity_bytes: int, at_once: int = 1, overflows: bool = False, **rest: Any) -> Slots:
    return Slots(geometry(capacity_bytes, **rest), LRU(), at_once, overflows)


def claim(held: Slots, key: int, *, must: bool) -> list[int] | None:
    victims = held.claim(key, must)
    return None if victims is None else list(victims)


def test_slots_start_with_the_initial_keys_and_their_bytes_taken() -> None:
    held = slots(10)
    assert [key for key, state in enumerate(held.state) if state == RESIDENT] == [0, 1]
    assert (held.free_bytes, held.peak_bytes) == ([2], 8)
    held.check()


# Contracts: C33
def test_a_claim_takes_free_bytes_first_and_evicts_in_the_policys_order_what_is_lacking() -> None:
    """0 and 1 hold 8 of 10 B.

    For a low variant (1 B) there is room. For a high one (4 B) then 3 B are lacking, so 0 goes, the
    oldest.
    """
    held = slots(10)
    assert claim(held, 6, must=False) == []
    assert held.free_bytes == [1]
    assert claim(held, 3, must=False) == [0]
    assert (held.free_bytes, held.peak_bytes) == ([1], 9)


def test_a_claim_of_several_victims_takes_no_more_than_it_needs() -> None:
    """Site 0's two experts of 2 B and one of site 1's, of 4 B, fill 8 B.

    4 B more take both small ones.
    """
    held = slots(8, variant_bytes=(4,), site_bytes=((2, 4),))  # keys 0, 1, 3
    assert held.initial == (0, 1, 3)
    assert claim(held, 4, must=True) == [0, 1]
    assert held.free_bytes == [0]


# Contracts: C23
def test_a_prefetch_takes_nothing_masked_a_demand_does_so_last_and_neither_takes_what_is_pinned() -> (
    None
):
    held = slots(12)  # keys 0, 1, 3
    held.blocked[0] = 1  # masked
    held.blocked[1] = held.pinned[1] = 1
    assert claim(held, 4, must=False) == [3]
    held = slots(8, variant_bytes=(4,), site_bytes=((2, 4),))  # keys 0, 1, 3
    held.blocked[0] = 1
    held.blocked[3] = held.pinned[3] = 1
    assert claim(held, 4, must=False) is None
    assert held.free_bytes == [0]
    assert held.could_claim(4)
    assert claim(held, 4, must=True) == [1, 0]
    held = slots(12)
    for key in (0, 1, 3):
        held.blocked[key] = held.pinned[key] = 1
    assert not held.could_claim(4)
    assert claim(held, 4, must=True) is None


# Contracts: C16
def test_what_must_come_in_overflows_where_that_is_allowed_and_what_is_too_much_is_named() -> None:
    """0, 1 and 3 fill 12 B, and 4 comes on top.

    Then the oldest that is neither pinned nor masked goes first.
    """
    held = slots(12, overflows=True)
    assert claim(held, 4, must=True) == []
    assert (held.free_bytes, held.peak_bytes) == ([-4], 16)
    held.blocked[0] = 1
    assert held.excess([0]) == [1]
    held.blocked[1] = held.pinned[1] = held.blocked[3] = held.pinned[3] = 1
    assert held.excess([0]) == [0]
    assert claim(slots(12, overflows=True), 4, must=False) == [0], "a prefetch does not overflow"


def test_a_claim_that_is_given_back_leaves_its_bytes_free() -> None:
    held = slots(16)
    assert claim(held, 6, must=False) == [0]
    held.release(6)
    assert held.free_bytes == [4]


# Contracts: C24
def test_a_pool_that_cannot_hold_one_tokens_needs_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        CapacityError,
        match=r"pool 0 holds 3 B, but one token may need 1 experts of 4 B = 4 B there; "
        r"raise budget.resident_share",
    ):
        slots(3)
    with pytest.raises(CapacityError, match="one token may need 2 experts of 4 B = 8 B"):
        slots(7, at_once=2)


# Contracts: C145
def test_a_site_is_whole_when_its_pool_holds_all_experts_that_have_weights() -> None:
    """The third expert has none. Site 1 has slots for the other two, site 0 for one of them."""
    shape = Geometry(2, 3, 1, ("fp16",), (16.0,), (4,), 12, null_experts=1)
    made = LRU("layout", quotas=[1, 2], initial="empty").pools(shape)
    assert made.initial == (4, 5), "four units a site: 0 to 3, and 4 to 7"
