"""Durations that are given outright."""

from __future__ import annotations

from sim.machine.durations import FixedDurations, least_hop_ns
from sim.values.types import HostCosts, Step

STEP = Step(0, 0, 1, (0,), 1, True, (), ())


def test_fixed_durations_are_what_was_given() -> None:
    fixed = FixedDurations((1, 2), 3, (10, 5), {8: 80, 2: 20}, (4, 0), cpu_ns=7, prediction_ns=9)
    assert (list(fixed.dense_ns(STEP)), fixed.tail_ns(STEP)) == ([1, 2], 3)
    assert (fixed.expert_ns(0, 0, 1), fixed.expert_ns(0, 1, 3), fixed.expert_ns(1, 0, 3)) == (
        14,
        22,
        5,
    )
    assert (fixed.hop_ns(0, 8), fixed.hop_ns(0, 2), fixed.latency_ns(0)) == (80, 20, 0)
    assert (fixed.cpu_ns(0, 0, 1), fixed.prediction_ns, fixed.host) == (7, 9, HostCosts())
    assert FixedDurations((1,), 0, (10,), {}).expert_ns(0, 0, 9) == 10


def test_fixed_durations_of_several_links_are_by_link() -> None:
    fixed = FixedDurations(
        (1,), 0, (10,), ({8: 80}, {8: 800}), latency_ns=(0, 30), host=HostCosts(sync_ns=2)
    )
    assert (fixed.hop_ns(0, 8), fixed.hop_ns(1, 8), fixed.latency_ns(1), fixed.host.sync_ns) == (
        80,
        800,
        30,
        2,
    )


def test_a_service_takes_the_least_of_a_read_and_of_what_the_page_cache_may_keep() -> None:
    class Paged(FixedDurations):
        def page_cache_bytes(self, link: int) -> int:
            return 50 if link else 0

        def kept_ns(self, link: int, moved_bytes: int) -> int:
            return 5 * moved_bytes

    hops = [{1: 7, 2: 9}] * 2
    for made, times in (
        (FixedDurations([1], 1, [1], hops), [7, 9, 7, 9]),
        (Paged([1], 1, [1], hops), [7, 9, 5, 9]),
    ):
        assert [least_hop_ns(made, link, size) for link in (0, 1) for size in (1, 2)] == times
