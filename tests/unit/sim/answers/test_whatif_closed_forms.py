"""Closed forms of what-ifs, worked by hand, and where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from sim.answers import closed_forms
from sim.machine.compute import Cpu
from sim.machine.link import Link
from sim.machine.link_parts import Gather, Pages, Reads, Scattered
from sim.machine.parts import SharedMemory
from sim.study.trials import Trial


def trial_of(**summary: object) -> Trial:
    return Trial(summary, {}, pl.DataFrame(), pl.DataFrame())


def machine(**parts: object) -> Any:
    """A run whose experts of 400 parameters move 200 bytes, on a link of half its peak."""
    run = {
        "hardware": SimpleNamespace(
            link_names=("pcie",), links=(Link(4.0, 0.5, 0.0, name="pcie"),), shared_memory=None
        ),
        "controller": SimpleNamespace(
            geometry=SimpleNamespace(variant_bytes=(200, 50)),
            loader=SimpleNamespace(copies="pinned"),
        ),
        "model": SimpleNamespace(expert_params=400),
    }
    return SimpleNamespace(**(run | parts))


def link(
    computing_s: float,
    waiting_s: float = 5.0,
    names: Sequence[str] = ("pcie",),
    is_timed: bool = False,
    copies: str = "pinned",
    **parts: Any,
) -> float | None:
    """The closed form at 4 GB/s: 6 GB take 3 of the 5 s in which the link is busy, 2 s are more."""
    run = machine(workload=SimpleNamespace(is_timed=is_timed))
    run.hardware.link_names = tuple(names)
    run.hardware.links = (replace(run.hardware.links[0], **parts),)
    slower = replace(run.hardware.links[0], efficiency=0.25)
    run.hardware.unpinned = lambda: SimpleNamespace(links=(slower,))
    run.controller.loader.copies = copies
    one = trial_of(
        stall_s={"late": 4.0, "miss": waiting_s - 4.0},
        compute_busy_s=computing_s,
        link_utilisation={"pcie": 0.5},
        makespan_s=10.0,
        bytes={"pcie": {"load": 4_000_000_000, "prefetch": 2_000_000_000}},
    )
    return closed_forms.of_link(run, {"decode": one}, 4.0)


def test_the_link_is_fast_enough_where_bytes_take_what_computing_leaves() -> None:
    """8 s of computing leave 6 s for 6 GB: 1 GB/s, which is half of 2; 2.5 s leave 0.5 s."""
    assert link(8.0) == pytest.approx(2)
    assert link(2.5) == pytest.approx(24)


def test_no_link_is_fast_enough_where_overheads_alone_take_longer_than_computing() -> None:
    assert (link(2.0), link(1.5)) == (None, None)


@pytest.mark.parametrize(("more_s", "is_told"), [(0.9e-5, True), (1.1e-5, False), (-1, False)])
def test_a_link_has_a_closed_form_where_it_works_while_the_stream_waits(
    more_s: float, is_told: bool
) -> None:
    """A millionth of the makespan of 10 s may differ."""
    assert (link(8.0, 5 + more_s) is not None) == is_told


def test_a_link_that_may_wait_for_requests_has_no_closed_form() -> None:
    assert link(8.0, is_timed=True) is None


def test_two_links_have_no_closed_form() -> None:
    assert link(8.0, names=("pcie", "nvme")) is None


def test_pageable_copies_need_twice_the_peak_of_the_link() -> None:
    """At half of the bandwidth 6 GB take 6 s at 4 GB/s, and nothing of the 5 s is an overhead: 9 s of
    computing leave 10 s for them. It was told for the bandwidth of pinned memory.
    """
    assert link(9.0, copies="pageable") == pytest.approx(2.4)


@pytest.mark.parametrize(
    "parts",
    [
        {"reads": Reads(4096, 2, 80.0)},
        {"gather": Gather(4, 10.0, 80.0, 4096)},
        {"page_cache": Pages(1.0, 20.0)},
        {"scattered": Scattered("staged", 1, 10, [["staged", 1, 10, 0.5]])},
        {"wake_us": 2.0},
        {"engines": 2},
    ],
    ids=lambda parts: next(iter(parts)),
)
def test_a_link_whose_services_are_more_than_bytes_at_its_rate_has_no_closed_form(
    parts: dict[str, Any],
) -> None:
    """A host that gathers at 40 GB/s made every link too slow: "it waits longer than it computes even
    at 20000 GB/s (closed form: 396.4)".
    """
    assert link(8.0, **parts) is None


def test_copies_that_take_no_time_have_no_closed_form() -> None:
    assert link(8.0, copies="free") is None


def cpu(
    hit_ratio: float = 0,
    links: int = 1,
    with_cpu: bool = True,
    *,
    round_trip_us: float = 3,
    peak_tflops: float = 1.0,
    shared: SharedMemory | None = None,
) -> float | None:
    run = machine(
        durations=SimpleNamespace(
            hop_ns=lambda hop, size: {(0, 200): 4000}[hop, size],
            expert_ns=lambda site, variant, tokens: {(0, 0, 1): 1000}[site, variant, tokens],
        )
    )
    run.hardware.link_names = ("pcie", "nvme")[:links]
    run.hardware.cpu = Cpu(peak_tflops, 0.5, 4.0, 0.5, round_trip_us) if with_cpu else None
    run.hardware.shared_memory = shared
    at = {"computed by the CPU": trial_of(), "loaded": trial_of(hit_ratio=hit_ratio)}
    return closed_forms.of_cpu(run, at, 25.0)


def test_the_cpu_is_as_fast_as_loading_where_it_reads_in_the_time_of_both() -> None:
    """Loading and computing take 5 us, the way to the CPU 3: 200 bytes in 2 us are 0.1 GB/s."""
    assert cpu() == pytest.approx(0.2)


def test_a_cpu_has_a_closed_form_where_every_expert_comes_over_one_link() -> None:
    assert (cpu(hit_ratio=0.1), cpu(links=2), cpu(with_cpu=False)) == (None, None, None)


def test_a_cpu_that_is_slower_whatever_it_reads_has_no_closed_form() -> None:
    """A way of 5 us told a bandwidth below 0 beside "loading is faster even at 2000 GB/s", and
    arithmetic of 2 us one that the CPU was never as fast at: 800 operations at 0.4 GFLOP/s.
    """
    assert cpu(round_trip_us=5) is None
    assert cpu(peak_tflops=0.00079) is None
    assert cpu(peak_tflops=0.00081) == pytest.approx(0.2)


def test_a_memory_that_gives_less_than_the_turning_point_leaves_no_closed_form() -> None:
    """The CPU would have to read 0.1 GB/s."""
    for gives, slows, told in (
        (0.11, "as_drawn", 0.2),
        (0.09, "as_drawn", None),
        (9, "always", None),
    ):
        found = cpu(shared=SharedMemory(gives, ("cpu", "pcie"), slows))
        assert found == (told and pytest.approx(told))
    assert cpu(shared=SharedMemory(0.09, ("compute", "pcie"))) == pytest.approx(0.2)
