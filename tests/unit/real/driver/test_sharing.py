"""Engines that share a link: cases worked by hand, and random ones against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from real.driver.sharing import Sharing


def test_one_engine_has_the_link_to_itself() -> None:
    sharing = Sharing(1)
    sharing.begin(0, 5, latency_ns=2, work_ns=10)
    assert sharing.end_ns(0) == 17


def test_a_latency_draws_no_bandwidth() -> None:
    """The first is alone until 10; both share until 24, when the second has 3 left to do."""
    sharing = Sharing(2)
    sharing.begin(0, 0, latency_ns=3, work_ns=14)
    sharing.begin(1, 0, latency_ns=10, work_ns=10)
    assert sharing.end_ns(0) == 24
    sharing.end(0, 24)
    assert sharing.end_ns(1) == 27


def test_a_service_ends_at_the_first_whole_ns_at_which_nothing_is_left() -> None:
    """Of three that share, 2 ns of work take 6 ns; then the third has 1 of its 3 ns left."""
    sharing = Sharing(3)
    for engine, work_ns in enumerate((2, 2, 3)):
        sharing.begin(engine, 0, 0, work_ns)
    assert [sharing.end_ns(engine) for engine in range(3)] == [6, 6, 9]
    sharing.end(0, 6)
    sharing.end(1, 6)
    assert sharing.end_ns(2) == 7


def test_what_remains_of_others_is_kept_exactly() -> None:
    """Shared by two until 3: half a ns of the second's 2 is left, so it ends at 4, not sooner."""
    sharing = Sharing(2)
    sharing.begin(0, 0, 0, 1)
    sharing.begin(1, 0, 0, 2)
    sharing.settle(1)
    assert sharing.end_ns(0) == 2
    sharing.end(0, 3)
    assert sharing.end_ns(1) == 4


def test_a_service_without_work_ends_with_its_latency() -> None:
    sharing = Sharing(2)
    sharing.begin(0, 0, 4, 0)
    sharing.begin(1, 0, 0, 9)
    assert sharing.end_ns(0) == 4


@pytest.mark.parametrize("seed", range(50))
def test_random_services_end_when_fractions_say_so(seed: int) -> None:
    rng = np.random.default_rng(seed)
    engines = int(rng.integers(1, 6))
    jobs = [tuple(int(n) for n in rng.integers(0, (30, 5, 40))) for _ in range(engines)]
    sharing = Sharing(engines)
    for engine, (begin_ns, _, _) in sorted(enumerate(jobs), key=lambda job: job[1][0]):
        sharing.begin(engine, begin_ns, *jobs[engine][1:])
    assert ends_of(sharing, set(range(engines))) == ends_by_fractions(jobs)


def ends_of(sharing: Sharing, left: set[int]) -> dict[int, int]:
    ends = {}
    while left:
        engine = min(left, key=lambda e: (sharing.end_ns(e), e))
        ends[engine] = sharing.end_ns(engine)
        sharing.end(engine, ends[engine])
        left.remove(engine)
    return ends


def ends_by_fractions(jobs: list[tuple[int, ...]]) -> dict[int, int]:
    """The ends of services, computed ns by ns in fractions.

    All services have begun by 30; ``Sharing`` is asked only then.
    """
    left = {engine: Fraction(work_ns) for engine, (_, _, work_ns) in enumerate(jobs)}
    ends: dict[int, int] = {}
    begun = max(begin_ns for begin_ns, _, _ in jobs)
    now = 0
    while len(ends) < len(jobs):
        active = [
            e
            for e, (begin_ns, latency_ns, _) in enumerate(jobs)
            if e not in ends and begin_ns + latency_ns <= now
        ]
        if now >= begun:
            ends |= {engine: now for engine in active if left[engine] <= 0}
            active = [engine for engine in active if engine not in ends]
        for engine in active:
            left[engine] = max(Fraction(0), left[engine] - Fraction(1, len(active)))
        now += 1
    return ends
