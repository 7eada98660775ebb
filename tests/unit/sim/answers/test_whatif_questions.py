"""Turning points by arithmetic, from summaries whose figures are worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.answers.whatif_questions import QUESTIONS


def trial(**summary: Any) -> Any:
    return SimpleNamespace(summary=summary)


def machine(*links: str, cpu: Any = None) -> Any:
    """Links of 80 % of their peaks; an expert of 8 MB takes 1.5 ms on one, and 0.5 ms of compute."""
    hardware = SimpleNamespace(
        link_names=links, links=[SimpleNamespace(efficiency=0.8)] * len(links), cpu=cpu
    )
    return SimpleNamespace(
        hardware=hardware,
        controller=SimpleNamespace(geometry=SimpleNamespace(variant_bytes=[8_000_000, 1])),
        durations=SimpleNamespace(
            hop_ns=lambda link, size: 1_500_000 if (link, size) == (0, 8_000_000) else 0,
            expert_ns=lambda *at: 500_000 if at == (0, 0, 1) else 0,
        ),
    )


CPU = SimpleNamespace(round_trip_us=1000.0, memory_efficiency=0.8)


def on_link(stall_s: float = 11.0, compute_s: float = 5.0) -> Any:
    """80 GB in 11 of 20 s: at a peak of 10 GB/s 10 s are theirs, and 1 s is overhead."""
    return trial(
        stall_s={"demand": 1.0, "prefetch": stall_s - 1},
        link_utilisation={"pcie": 0.55, "nvme": 0.9},
        makespan_s=20.0,
        compute_busy_s=compute_s,
        bytes={"pcie": {"demand": 50e9, "prefetch": 30e9}, "nvme": {"demand": 1.0}},
    )


@pytest.mark.parametrize(
    ("links", "of", "peak"),
    [
        (("pcie",), on_link(), 25.0),  # 4 s are left for 80 GB: 20 GB/s, which are 80 %
        (("pcie",), on_link(compute_s=1.0), None),  # overheads alone take as long
        (("pcie",), on_link(stall_s=10.9), None),  # something overlaps
        (("pcie", "nvme"), on_link(), None),
    ],
)
def test_the_peak_at_which_waiting_equals_computing(
    links: tuple[str, ...], of: Any, peak: float | None
) -> None:
    found = QUESTIONS["link"].closed_form(machine(*links), {"decode": of}, 10.0)
    assert found == (peak and pytest.approx(peak, rel=1e-9))


@pytest.mark.parametrize(
    ("links", "cpu", "hits", "peak"),
    [
        (("pcie",), CPU, 0, 10.0),  # 8 MB in 1.5 + 0.5 - 1 ms: 8 GB/s, which are 80 %
        (("pcie",), CPU, 0.1, None),
        (("pcie",), None, 0, None),
        (("pcie", "nvme"), CPU, 0, None),
    ],
)
def test_the_memory_bandwidth_at_which_the_cpu_is_as_fast_as_loading(
    links: tuple[str, ...], cpu: Any, hits: float, peak: float | None
) -> None:
    at = {"computed by the CPU": trial(hit_ratio=0.5), "loaded": trial(hit_ratio=hits)}
    found = QUESTIONS["cpu"].closed_form(machine(*links, cpu=cpu), at, 50.0)
    assert found == (peak and pytest.approx(peak, rel=1e-9))


def test_the_link_that_is_varied_is_the_first_and_what_turns_is_waiting_less_computing() -> None:
    question = QUESTIONS["link"]
    words = question.words(31.5, machine("pcie", "nvme"))
    assert words == {"decode": ("hardware.links.pcie.peak_gb_per_s=31.5",)}
    for name in ("link", "memory"):
        difference = QUESTIONS[name].difference
        assert difference is not None
        assert difference({"decode": on_link()}) == pytest.approx(6.0)
    assert question.closed_form is not QUESTIONS["memory"].closed_form
    assert QUESTIONS["memory"].closed_form(machine("pcie"), {"decode": on_link()}, 0.5) is None


def test_the_first_series_turns_where_it_is_no_slower_than_the_second() -> None:
    at = {"x": trial(decode_tokens_per_s=3.0), "y": trial(decode_tokens_per_s=5.0)}
    for name in ("cpu", "predictor"):
        difference = QUESTIONS[name].difference
        assert difference is not None
        assert difference(at) == 2.0
