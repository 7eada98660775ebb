"""What a report's figures say: fronts among runs of one precision, names apart, means over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgba

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from sim.answers.python import run as simulated
from sim.reporting import figures
from sim.reporting.figures import BINS, means_between, pareto, stalls, systems, token_bins
from sim.reporting.runs import ReportedRun, read_runs
from sim.results.latency import decode_time_and_tokens
from sim.results.looks import COLOURS
from sim.setup.execute import execute
from sim.study.trials import prepared

FRONT = to_rgba(COLOURS[1])


def run(label: str, precision: str, speed: float, low_mass: float, **labels: str) -> ReportedRun:
    return ReportedRun(
        label,
        Path("unused"),
        {
            "labels": labels,
            "overrides": [],
            "decode_tokens_per_s": speed,
            "budget": {"slots": {precision: 4, "int2": 0}},
            "quality_proxy": {"low_mass": low_mass, "skip_mass": 0.0},
        },
    )


@pytest.fixture
def axis() -> Any:
    figure, found = plt.subplots()
    yield found
    plt.close(figure)


# Contracts: C136
def test_a_run_in_four_bits_throughout_does_not_beat_one_that_loses_nothing(axis: Any) -> None:
    pareto(
        axis,
        [
            run("lru", "fp16", 4.0, 0.0),
            run("slow", "fp16", 3.0, 0.1),
            run("fate", "int4", 17.0, 0.0),
        ],
    )
    full, low = axis.collections
    assert (full.get_label(), low.get_label()) == ("fp16 at best", "int4 at best")
    assert [tuple(colour) == FRONT for colour in full.get_facecolors()] == [True, False]
    assert [tuple(colour) == FRONT for colour in low.get_facecolors()] == [True]


def test_what_knows_the_future_is_on_no_front_and_beats_nobody(axis: Any) -> None:
    oracle = run("oracle", "fp16", 9.0, 0.0, knows_future="knows the future (Belady)")
    pareto(axis, [run("lru", "fp16", 4.0, 0.0), oracle])
    (found,) = axis.collections
    assert [tuple(colour) == FRONT for colour in found.get_facecolors()] == [True, False]


def test_names_of_points_that_coincide_do_not(axis: Any) -> None:
    pareto(
        axis, [run("a", "fp16", 4.0, 0.0), run("b", "fp16", 4.001, 0.0), run("c", "fp16", 9.0, 0.2)]
    )
    axis.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axis.texts]
    assert len(boxes) == 3
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_all_points_lie_inside_the_frame_and_no_share_is_negative(axis: Any) -> None:
    pareto(axis, [run("slow", "fp16", 4.0, 0.0), run("fast", "fp16", 9.0, 0.2)])
    axis.figure.canvas.draw()
    frame = axis.get_window_extent()
    for text in axis.texts:
        box = text.get_window_extent()
        assert frame.y0 < box.y0 < box.y1 < frame.y1
    assert min(axis.get_xticks()) == 0
    assert axis.get_xlim()[0] < 0, "room for what is at 0"


def test_a_rate_stands_clear_of_its_interval_and_bars_of_the_frame(axis: Any) -> None:
    summary = {
        "decode_tokens_per_s": 5.0,
        "ci95": {"decode_tokens_per_s": (4.0, 6.0)},
        "compute_busy_s": 2.0,
        "stall_s": {"demand": 3.0},
    }
    one = ReportedRun("a", Path("unused"), summary)
    systems(axis, [one])
    axis.figure.canvas.draw()
    assert axis.texts[0].get_window_extent().x0 > axis.transData.transform((6.0, 0))[0] + 2
    stalls(axis, [one])
    assert axis.get_xlim()[1] > 5.0


def test_latencies_of_several_runs_are_counted_in_the_same_bins(
    axis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run with a wide spread would look as if it had more tokens."""
    fast, slow = np.linspace(1, 2, 40), np.linspace(1, 9, 40)
    runs = [run("fast", "fp16", 4.0, 0.0), run("slow", "fp16", 1.0, 0.0)]
    times = list(zip(runs, (fast, slow), strict=True))
    monkeypatch.setattr(figures, "_token_ms", lambda runs: times)
    figures.latency(axis, runs)
    edges = [sorted({x for x, _ in patch.get_xy()}) for patch in axis.patches]
    assert edges[0] == edges[1] == pytest.approx(token_bins([fast, slow]).tolist())


def test_times_that_come_in_steps_are_no_comb() -> None:
    drawn = np.random.default_rng(0)
    stepped, other = 14.0 * drawn.poisson(12, 300), drawn.normal(170, 20, 300)
    edges = token_bins([stepped, other])

    def gaps(edges: Any) -> int:
        """Empty bins between the 10th and the 90th percentile."""
        low, high = np.searchsorted(edges, np.percentile(stepped, [10, 90]))
        return int((np.histogram(stepped, edges)[0][low : high - 1] == 0).sum())

    assert gaps(np.linspace(edges[0], edges[-1], BINS + 1)) > 5
    assert gaps(edges) == 0
    assert edges[0] == min(stepped.min(), other.min())
    assert edges[-1] == max(stepped.max(), other.max())
    assert (np.diff(token_bins([np.full(5, 3.0)])) > 0).all()


@dataclass
class Steps:
    """A value that changes at random times, and its mean over a span by brute force.

    Values are in thousandths.
    """

    seed: int
    at: Any = field(init=False)
    values: Any = field(init=False)

    def __post_init__(self) -> None:
        drawn = np.random.default_rng(self.seed)
        self.at = np.sort(drawn.integers(0, 4000, 12)) / 1000
        self.at[0] = 0.0
        self.values = drawn.normal(size=12)

    def mean(self, start: float, end: float) -> float:
        moments = np.arange(round(start * 1000), round(end * 1000)) / 1000
        return float(np.mean([self.values[self.at <= moment + 1e-9][-1] for moment in moments]))


@pytest.mark.parametrize("seed", range(3))
def test_a_mean_over_time_is_that_of_every_moment(seed: int) -> None:
    steps, edges = Steps(seed), np.array([0.0, 0.5, 2.0, 4.0])
    found = means_between(steps.at, steps.values, edges)
    assert found == pytest.approx([steps.mean(a, b) for a, b in pairwise(edges)])


@pytest.mark.parametrize(
    "words",
    [
        ("system=hobbit",),
        ("system=hobbit", "hardware.links.pcie.engines=2"),
        ("system=edgemoe", "budget.resident_share=0.6", "hardware.memory_gib=64"),
        ("system=lru", "budget.resident_share=0.2", "workload.arrivals_s=[100]"),
    ],
    ids=["one engine", "two engines at once", "services that give way", "a request that is late"],
)
def test_a_link_is_as_busy_over_time_as_the_summary_says_of_all_of_it(
    words: tuple[str, ...], axis: Any, tmp_path: Path
) -> None:
    system, *others = words
    of_one = ("trace.max_sequences=1", "workload.decode_tokens=8")
    simulated(system.removeprefix("system="), *others, *of_one).write(tmp_path / "run")
    (shown,) = read_runs([tmp_path / "run"])
    figures.link_use(axis, [shown])
    (line,) = axis.get_lines()
    use = shown.summary["link_utilisation"]["pcie"]
    assert float(np.mean(line.get_ydata())) == pytest.approx(use, rel=1e-9)


def test_a_latency_has_the_drafts_of_its_step_and_all_make_the_time_of_decoding(
    axis: Any,
) -> None:
    words = ("system=lru", "workload=mtp_4", "workload.draft_experts=offloaded")
    shares = ("budget.resident_share=0.3", "trace.max_sequences=1", "workload.decode_tokens=8")
    frames = execute(prepared((*words, *shares))).frames
    assert (frames.tokens["phase"] == "draft").any()
    shown: Any = SimpleNamespace(label="a", table=lambda name: getattr(frames, name))
    figures.latency_cdf(axis, [shown])
    (line,) = axis.get_lines()
    total_ms = decode_time_and_tokens(frames)[0].sum() / 1e6
    assert np.sum(line.get_xdata()) == pytest.approx(total_ms)
