"""Drives and gathers: closed forms against a step-by-step simulation, and by hand."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import pytest

from sim.machine.link import Link
from sim.machine.link_parts import Gather, Pages, Reads, Scattered
from sim.machine.page_cache import PageCache

GB = 1e9


def read_course(reads: Reads, moved_bytes: int, bytes_per_s: float) -> float:
    """The time of reads, simulated one by one.

    A read is asked for when the one ``queue_depth`` before it is done; all are passed on in order
    over one channel.
    """
    done: list[float] = []
    left = moved_bytes
    while left > 0:
        size = min(left, reads.block_bytes)
        asked = done[-reads.queue_depth] if len(done) >= reads.queue_depth else 0.0
        ready = asked + (reads.latency_us + reads.fault_us) / 1e6
        done.append(max(ready, done[-1] if done else 0.0) + size / bytes_per_s)
        left -= size
    return done[-1] if done else 0.0


def gather_course(gather: Gather, moved_bytes: int, bytes_per_s: float) -> float:
    """The time of a gather, simulated piece by piece.

    Pieces are gathered one after another; each is copied when it is gathered and the copy before it
    is done.
    """
    gathered = copied = 0.0
    left = moved_bytes
    while left > 0:
        size = min(left, gather.piece_bytes)
        gathered += size / gather.bytes_per_s
        copied = max(gathered, copied) + size / bytes_per_s
        left -= size
    return copied


# Contracts: C65
@pytest.mark.parametrize("seed", range(4))
def test_reads_take_what_their_course_takes(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(300):
        reads = Reads(
            draw.choice((512, 4096, 131_072)),
            draw.choice((1, 2, 3, 8, 32)),
            draw.choice((0.0, 5.0, 80.0)),
            fault_us=draw.choice((0.0, 1.5)),
        )
        size, rate = (
            draw.randint(0, 40 * reads.block_bytes),
            draw.choice((0.05, 0.5, 3.0, 12.0)) * GB,
        )
        assert reads.time_s(size, rate) == pytest.approx(read_course(reads, size, rate), rel=1e-12)


# Contracts: C65
@pytest.mark.parametrize("seed", range(4))
def test_a_gather_and_its_copies_take_what_their_course_takes(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(300):
        gather = Gather(
            draw.randint(1, 8),
            draw.choice((0.5, 3.0, 9.0)),
            draw.choice((4.0, 40.0, 200.0)),
            draw.choice((1, 1_000, 65_536)),
        )
        size, rate = draw.randint(0, 30 * gather.piece_bytes), draw.choice((0.5, 3.0, 25.0)) * GB
        assert gather.time_s(size, rate) == pytest.approx(
            gather_course(gather, size, rate), rel=1e-12
        )


def test_one_read_at_a_time_waits_for_each() -> None:
    """1 MiB in 8 blocks of 128 KiB at 1 GB/s, with 80 us each: 8 x (80 + 131.072) us.

    Eight reads at once wait only once.
    """
    assert Reads(131_072, 1, 80.0).time_s(1 << 20, GB) == pytest.approx(8 * (80 + 131.072) / 1e6)
    assert Reads(131_072, 8, 80.0).time_s(1 << 20, GB) == pytest.approx((80 + 8 * 131.072) / 1e6)


def test_a_page_fault_adds_to_each_of_its_reads() -> None:
    """With a readahead of 128 KiB there are 8 faults, which take 10 us each more than reads."""
    quick, faulting = Reads(131_072, 1, 80.0), Reads(131_072, 1, 80.0, fault_us=10.0)
    assert faulting.time_s(1 << 20, GB) - quick.time_s(1 << 20, GB) == pytest.approx(80e-6)


def test_scattered_blocks_are_passed_on_at_their_own_rate() -> None:
    scattered = Reads(4096, 64, 0.0, scattered=True, scattered_gb_per_s=0.5)
    assert scattered.time_s(4096 * 1000, 3 * GB) == pytest.approx(4096 * 1000 / 0.5e9)
    assert Reads(4096, 64, 0.0, scattered_gb_per_s=0.5).time_s(4096 * 1000, GB) == pytest.approx(
        4.096e-3
    )
    assert scattered.time_s(4096 * 1000, 0.1 * GB) == pytest.approx(4.096e6 / 1e8), (
        "never above the link itself"
    )


def test_threads_gather_at_most_half_of_what_the_memory_can_do() -> None:
    """Four threads of 6 GB/s would gather 24 GB/s.

    The memory has 40 GB/s; each byte is read and written, so 20 are left.
    """
    assert Gather(4, 6.0, 200.0, 1).bytes_per_s == 24e9
    assert Gather(4, 6.0, 40.0, 1).bytes_per_s == 20e9


def test_whichever_stage_is_slower_sets_the_pace() -> None:
    """100 MB in pieces of 1 MB, gathered at 2 GB/s or at 100, and copied at 25 GB/s."""
    assert Gather(1, 2.0, 100.0, 10**6).time_s(10**8, 25 * GB) == pytest.approx(50e-3 + 1e6 / 25e9)
    assert Gather(20, 5.0, 200.0, 10**6).time_s(10**8, 25 * GB) == pytest.approx(4e-3 + 1e6 / 100e9)


# On a link


def link(**changes: Any) -> Link:
    """A link that reaches 5 GB/s, with an overhead of 6 us."""
    values: dict[str, Any] = {
        "peak_gb_per_s": 10.0,
        "efficiency": 0.5,
        "overhead_us": 6.0,
        "name": "pcie",
    }
    return Link(**(values | changes))


def test_each_copy_of_a_service_has_its_own_cost() -> None:
    """For three tensors: 6 us, three times 5 us, and 1 MB at 5 GB/s."""
    assert link(per_call_us=5.0, calls=3).hop_ns(10**6) == 6_000 + 15_000 + 200_000
    assert link(per_call_us=5.0, calls=3).latency_ns == 21_000


# Contracts: C64
def test_a_service_takes_as_many_copies_as_its_bytes_need() -> None:
    """With at most 300,000 B a copy, 1 MB takes four; 900,000 B take the link's own three."""
    one = link(per_call_us=5.0, calls=3, call_bytes=300_000)
    assert one.hop_ns(10**6) == 6_000 + 20_000 + 200_000
    assert one.hop_ns(900_000) == 6_000 + 15_000 + 180_000


def test_a_link_from_a_drive_adds_its_overhead_to_the_reads() -> None:
    """Two blocks of 4096 B at 5 GB/s, one at a time, 10 us each."""
    reads = Reads(4096, 1, 10.0)
    assert link(reads=reads).hop_ns(8192) == 6_000 + round(2 * (10_000 + 4096 / 5))


def test_nothing_is_read_in_no_time_and_one_byte_after_its_latency() -> None:
    reads = Reads(4096, 2, 10.0)
    assert (reads.time_s(0, GB), reads.time_s(1, GB)) == (0.0, 10e-6 + 1 / GB)


def test_a_link_with_a_gather_is_a_line_of_two_stages() -> None:
    gather = Gather(1, 2.0, 100.0, 10**6)
    assert link(gather=gather).hop_ns(10**8) == 6_000 + 50_000_000 + 200_000


def test_without_these_a_link_is_what_it_was() -> None:
    assert [link().hop_ns(size) for size in (0, 1, 5, 12, 10**9)] == [
        6000,
        6000,
        6001,
        6002,
        200_006_000,
    ]


# Contracts: C141
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_call_us": -1}, r"hardware\.links\.pcie\.per_call_us=-1 must be"),
        ({"calls": 0}, r"hardware\.links\.pcie\.calls=0 must be a whole number >= 1"),
        ({"reads": 4096}, r"hardware\.links\.pcie\.reads=4096 must be null or a section"),
        ({"reads": Reads(4096, 1, 0.0), "gather": Gather(1, 1.0, 1.0, 1)}, r"has reads and gather"),
        (
            {"reads": Reads(4096, 1, 0.0), "engines": 2},
            r"engines=2 does not go with reads, gather or call_bytes",
        ),
        (
            {"call_bytes": 1, "engines": 2},
            r"engines=2 does not go with reads, gather or call_bytes",
        ),
        (
            {"page_cache": Pages(1, 20), "engines": 2},
            r"^hardware\.links\.pcie\.page_cache does not go with engines=2, head_bytes=0; set"
            r" engines=1 and head_bytes=0, or page_cache=null$",
        ),
        (
            {"page_cache": Pages(1, 20), "head_bytes": 7},
            r"page_cache does not go with engines=1, head_bytes=7; set",
        ),
    ],
)
def test_a_link_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        link(**changes)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Reads(100, 1, 0.0), r"reads\.block_bytes=100 must be a whole number >= 512"),
        (lambda: Reads(4096, 0, 0.0), r"reads\.queue_depth=0 must be"),
        (lambda: Reads(4096, 1, -1.0), r"reads\.latency_us=-1\.0 must be"),
        (
            lambda: Reads(4096, 1, 0.0, scattered=True),
            r"scattered=True needs reads\.scattered_gb_per_s",
        ),
        (lambda: Gather(0, 1.0, 1.0, 1), r"gather\.threads=0 must be"),
        (
            lambda: Gather(1, 0.0, 1.0, 1),
            r"gather\.gb_per_s_per_thread=0\.0 must be .*; give 10\*\*9",
        ),
        (lambda: Gather(1, 1.0, 1.0, 0), r"gather\.piece_bytes=0 must be"),
    ],
)
def test_a_part_that_cannot_be_is_refused_by_the_name_of_its_figure(
    build: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_what_the_page_cache_keeps_is_read_at_its_rate_behind_its_overhead() -> None:
    assert Pages(capacity_gib=1, gb_per_s=20).kept_ns(20_000) == 1_000
    assert Pages(capacity_gib=1, gb_per_s=20, overhead_us=1.5).kept_ns(20_000) == 2_500


def test_the_page_cache_drops_what_was_read_longest_ago() -> None:
    """Ten bytes. A part that is read again as a whole has been kept in part only."""
    cache = PageCache(10)
    assert [cache.read(key, 4) for key in (1, 2, 1)] == [False, False, True]
    assert not cache.read(3, 3), "2 goes, which was read before 1"
    assert [cache.read(key, size) for key, size in ((1, 4), (3, 3), (2, 3))] == [True, True, False]
    assert [cache.read(3, 4), cache.read(2, 3)] == [False, True], "1 has made room"
    assert [cache.read(3, 3), cache.read(3, 4)] == [True, True], "a part asks for no less of it"
    assert not cache.read(4, 11)
    assert not cache.read(4, 11), "what is larger than the cache is never kept"


RATES = [
    ["staged", 1, 1_000, 1.0],
    ["staged", 1, 100_000, 5.0],
    ["staged", 4, 1_000, 2.0],
    ["zero_copy", 1, 1_000, 40.0],
]


@pytest.mark.parametrize(
    ("form", "threads", "piece", "gb_per_s"),
    [
        ("staged", 1, 10_000, 3.0),  # half of the way from 1,000 to 100,000 by the logarithm
        ("staged", 1, 1_000, 1.0),
        ("staged", 1, 10, 1.0),
        ("staged", 1, 10**7, 5.0),
        ("staged", 4, 50_000, 2.0),
        ("zero_copy", 1, 50_000, 40.0),
    ],
)
def test_scattered_rows_come_at_the_rate_of_their_form_threads_and_piece(
    form: str, threads: int, piece: int, gb_per_s: float
) -> None:
    scattered = Scattered(form, threads, piece, RATES)
    assert scattered.bytes_per_s == pytest.approx(gb_per_s * GB)
    assert scattered.time_ns(6_000_000) == pytest.approx(6_000_000 / gb_per_s, abs=1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("mapped", 1, 10, RATES), "scattered.form='mapped'; allowed: staged, zero_copy"),
        (("staged", 2, 10, RATES), "staged with threads=2 was not measured; there are staged with"),
        (("staged", 1, 0, RATES), "scattered.piece_bytes=0"),
        (("staged", 1, 10, [["staged", 1, 10]]), r"each must be \[form, threads, bytes of a piece"),
        (("staged", 1, 10, [["staged", 1, 10, -1.0]]), "scattered.rates=-1.0 must be from"),
    ],
)
def test_rates_of_scattered_rows_that_cannot_be_are_refused(
    arguments: tuple[Any, ...], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        Scattered(*arguments)


def test_a_link_of_which_only_its_speed_is_told_is_a_plain_one() -> None:
    """One engine and one call a transfer; half the speed to memory that is not pinned; no parts."""
    told = {f.name: getattr(Link(10.0, 0.5, 6.0), f.name) for f in fields(Link)}
    assert {name: value for name, value in told.items() if value} == {
        "peak_gb_per_s": 10.0,
        "efficiency": 0.5,
        "overhead_us": 6.0,
        "engines": 1,
        "pageable": 0.5,
        "calls": 1,
        "unit": "variant",
    }
