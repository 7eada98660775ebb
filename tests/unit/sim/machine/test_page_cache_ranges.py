"""What the page cache keeps, read by read."""

from __future__ import annotations

from sim.machine.lanes import Lanes, in_projections, in_proportion
from sim.machine.page_cache import PageCache


def test_the_least_recent_goes_until_the_rest_fits() -> None:
    cache = PageCache(10)
    reads = [
        (1, 4, False),  # 1
        (2, 6, False),  # 1 2, full to the last byte
        (1, 4, True),  # 2 1
        (3, 1, False),  # 1 3: 2 went
        (1, 4, True),
        (3, 1, True),
        (2, 6, False),  # 3 2: 1 went
        (3, 1, True),
        (1, 3, False),  # 2 3 1, full again
        (2, 6, True),
    ]
    assert [cache.read(key, size) for key, size, _ in reads] == [kept for *_, kept in reads]


def test_a_part_is_kept_of_what_was_read_in_part_and_never_shrinks() -> None:
    cache = PageCache(10)
    assert [cache.read(1, size) for size in (4, 7, 4, 7)] == [False, False, True, True]
    assert [cache.read(key, 3) for key in (2, 1, 3)] == [False, True, False]
    # 1 still has 7 bytes, with 3 of the last one: 2 went.
    assert [cache.read(1, 7), cache.read(2, 3)] == [True, False]


def test_what_is_larger_than_the_cache_is_not_kept_and_sends_nobody_away() -> None:
    cache = PageCache(10)
    assert [cache.read(*one) for one in ((1, 10), (2, 11), (2, 11), (1, 10))] == [
        False,
        False,
        False,
        True,
    ]
    # What has grown too large is forgotten, and its room is free.
    assert [cache.read(*one) for one in ((1, 11), (2, 10), (2, 10))] == [False, False, True]


def test_an_engine_copies_at_its_rate_and_a_variant_is_cut_as_its_projections_are() -> None:
    assert Lanes().copy_ns(10**9) == 0
    assert Lanes(copy_bytes_per_s=2e9).copy_ns(3) == 2  # 1.5 ns, to the even one
    assert Lanes(copy_bytes_per_s=2e9).copy_ns(10) == 5
    assert in_projections((4, 4, 6), 6) == (4, 2, 0)
    assert in_projections((4, 4), 9) == (4, 5)
    assert in_projections((4,), 9) == (9,)
    assert in_proportion(7, (1, 1)) == (3, 4)
    assert in_proportion(0, (1, 2)) == (0, 0)
