"""Drives whose reads the operating system caches: by hand, and the engine against the reference."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from omegaconf import DictConfig

from differential import production_rows, reference
from differential.features import random_feature
from differential.scenario import Scenario
from differential.test_engine_against_reference import first_difference
from sim.machine.page_cache import PageCache
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.trace import Trace

Configure = Callable[..., DictConfig]


def with_pages(scenario: Scenario, seed: int) -> Scenario:
    """Some of its links keep what they read: from less than one variant to a good many."""
    draw = random.Random(seed)
    largest = max(scenario.variant_bytes)
    links = tuple(
        (
            replace(
                link,
                page_cache_bytes=draw.randint(1, 12 * largest),
                kept_ns=draw.randint(1, 1 + link.ns_per_byte),
            )
            if link.head_bytes == 0 and draw.random() < 0.8
            else link
        )
        for link in scenario.links
    )
    return replace(scenario, links=links)


def linked(seed: int, ties: bool) -> Scenario:
    """One, two or three links, a managed RAM tier, partial moves, experts on the CPU."""
    kind = ("host", "two_hops", "three_hops", "ram_tier", "partial", "cpu")[seed % 6]
    return with_pages(random_feature(kind, seed, ties), seed)


# Contracts: C65
@pytest.mark.alike
@pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
@pytest.mark.parametrize("chunk", range(2))
def test_the_engine_reads_what_the_reference_reads(chunk: int, ties: bool) -> None:
    kept = 0
    for seed in range(20 * chunk, 20 * chunk + 20):
        scenario = linked(seed, ties)
        got, expected = production_rows.run(scenario), reference.run(scenario)
        difference = first_difference(got, expected)
        assert difference is None, f"linked({seed}, ties={ties}): {difference}"
        without = replace(
            scenario, links=tuple(replace(link, page_cache_bytes=0) for link in scenario.links)
        )
        kept += got.makespan_ns != production_rows.run(without).makespan_ns
    assert kept, "in some of them a page is read again"


def test_what_was_read_last_is_kept_as_far_as_it_fits() -> None:
    """Room for 10: a, b of 4, then a again; c takes the place of b, the least recent."""
    pages = PageCache(10)
    assert [pages.read(key, 4) for key in (1, 2, 1, 3, 2)] == [False, False, True, False, False]
    assert [pages.read(key, 4) for key in (3, 1)] == [True, False]


def test_what_is_larger_than_the_cache_leaves_it_as_it_is() -> None:
    pages = PageCache(10)
    assert [pages.read(1, 6), pages.read(2, 11), pages.read(1, 6), pages.read(2, 11)] == [
        False,
        False,
        True,
        False,
    ]


def test_a_part_that_was_read_is_not_the_whole() -> None:
    pages = PageCache(10)
    assert [pages.read(1, 3), pages.read(1, 5), pages.read(1, 4), pages.read(1, 5)] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("seed", range(3))
def test_any_course_of_reads_is_that_of_a_plain_list(seed: int) -> None:
    draw = random.Random(seed)
    room = draw.randint(5, 60)
    pages, plain = PageCache(room), []
    for _ in range(2_000):
        key = draw.randint(0, 12)
        size = 1 + key * 7 % 11
        assert pages.read(key, size) == ((key, size) in plain)
        plain = [page for page in plain if page[0] != key] + ([(key, size)] if size <= room else [])
        while sum(page[1] for page in plain) > room:
            plain.pop(0)


# ---- a run

DRIVE = (
    "system=load_on_demand",
    "bounds=max",
    "hardware=jetson_agx_orin",
    "hardware.memory_gib=128",
    "trace.max_sequences=1",
    "budget.resident_share=0.2",
)
PAGES = "{_target_: sim.machine.Pages, capacity_gib: 100, gb_per_s: 20}"


def summary(configure: Configure, trace: Trace, *words: str) -> dict[str, Any]:
    return execute(build(configure(*DRIVE, *words), "x", trace)).summary


def test_a_page_cache_that_holds_the_model_reads_each_expert_once(
    configure: Configure, bundled_trace: Trace
) -> None:
    """Loads on demand, nothing kept on the device: all but the first read of each of 128 experts
    come from memory, and no run is faster than the bound.
    """
    cold = summary(configure, bundled_trace)
    warm = summary(configure, bundled_trace, f"+hardware.links.nvme.page_cache={PAGES}")
    loads = cold["lookups"]["miss"]
    assert warm["lookups"]["miss"] == loads > 1_000
    expert = 352_321_536
    saved_s = (loads - 128) * (expert / (7e9 * 0.43) + 80e-6 - expert / 20e9)
    assert cold["makespan_s"] - warm["makespan_s"] == pytest.approx(saved_s, rel=0.02)
    assert warm["bounds"]["lower_s"] <= warm["makespan_s"]


# Contracts: C141
def test_a_page_cache_and_chunks_are_refused_together(
    configure: Configure, bundled_trace: Trace
) -> None:
    words = (f"+hardware.links.nvme.page_cache={PAGES}", "loader.chunk_bytes=1048576")
    with pytest.raises(
        ValueError, match=r"chunk_bytes=1048576 does not go with hardware\.links\.nvme\.page_cache"
    ):
        summary(configure, bundled_trace, *words)
