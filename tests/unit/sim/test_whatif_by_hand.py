"""A whole answer to a what-if, from trials made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim import whatif
from sim.answers.whatif import Answer, BreakEven, Row
from sim.machine.link import Link
from sim.results.labels import Labels
from sim.values.units import GIB
from sim.whatif import answer

GIVEN = ["model=m"]
RUN = SimpleNamespace(
    model=SimpleNamespace(name="m", top_k=2),
    hardware=SimpleNamespace(
        title="2 x h", link_names=["pcie"], links=(Link(4.0, 0.5, 0.0, name="pcie"),)
    ),
    controller=SimpleNamespace(
        geometry=SimpleNamespace(precisions=("fp16", "int4"), capacity_bytes=4),
        slots=SimpleNamespace(capacity_bytes=(1, 1)),
    ),
    ledger=SimpleNamespace(slot_bytes=3 * GIB // 2),
    workload=SimpleNamespace(is_timed=False),
    resident_share=0.25,
)
ABOUT = "m on 2 x h, experts at fp16, int4, 1.5 GiB of slots (12.5 % of the expert bytes), unless varied"


class Pool:
    """Ends each trial at once with the speed that ``speed`` gives its words; None: refused."""

    def __init__(self, speed: Callable[[Sequence[str]], float | None]) -> None:
        self.speed, self.asked = speed, list[tuple[str, ...]]()

    def submit(self, function: Any, words: tuple[str, ...], place: Path | None) -> Any:
        self.asked.append(words)
        future: Future[Any] = Future()
        speed = self.speed(words)
        if speed is None:
            future.set_exception(ValueError("no room"))
            return future
        summary = {
            "decode_tokens_per_s": speed,
            "ci95": {"decode_tokens_per_s": (speed - 1, speed + 1)},
            "stall_s": {"demand": 1.0, "host": 2.0, "no_request": 6.0},
            "makespan_s": 10.0,
            "compute_busy_s": 1.0,
            "hit_ratio": 0.5,
            "labels": {},
            "overrides": [words[-1]],
            "link_utilisation": {"pcie": 0.0},
        }
        future.set_result(SimpleNamespace(summary=summary))
        return future


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif, "prepared", lambda words: RUN)
    monkeypatch.setattr(whatif, "slots_a_layer", lambda one: 7.0)
    times = np.array([1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(
        whatif,
        "decode_time_and_tokens",
        lambda one: (times / one.summary["decode_tokens_per_s"], None),
    )


def row(value: float, speed: float, series: str = "decode", **of: Any) -> Row:
    more = {"speedup": None, "speedup_interval": None, **of}
    return Row(value, series, speed, (speed - 1, speed + 1), 0.75, 0.5, **more, slots_a_layer=7.0)


def of_word(words: Sequence[str], key: str) -> float:
    (value,) = (word.partition("=")[2] for word in words if word.startswith(f"{key}="))
    return float(value)


def test_memory_has_a_knee_and_what_cannot_run_is_left_out() -> None:
    """At a half of the bytes there are 5/6 of the speed, farthest above the straight line."""
    speeds = {0.25: 10.0, 0.5: 20.0, 0.75: 22.0, 1.0: 22.0}
    pool: Any = Pool(lambda words: speeds.get(of_word(words, "budget.resident_share")))
    found = answer("memory", GIVEN, [0.1, 0.25, 0.5, 0.75, 1.0], pool)
    assert found == Answer(
        "memory",
        "share of the expert bytes resident",
        tuple(row(value, speed) for value, speed in speeds.items()),
        BreakEven(
            "waiting equals computing",
            None,
            0.25,
            1.0,
            None,
            "it waits longer than it computes even at 1",
        ),
        0.5,
        ("0.1: no room",),
        (("decode", Labels(changed=("budget.slots_gib=null",))),) * 4,
        False,
        None,
        2,
        ABOUT,
        (),
    )
    assert len(pool.asked) == 5


def test_a_link_of_the_same_speeds_has_no_knee() -> None:
    speeds = {4.0: 10.0, 8.0: 20.0, 12.0: 22.0, 16.0: 22.0}
    key = "hardware.links.pcie.peak_gb_per_s"
    pool: Any = Pool(lambda words: speeds.get(of_word(words, key), 1.0))
    found = answer("link", GIVEN, list(speeds), pool, target=20.0)
    assert found.knee is None
    assert found.is_log
    assert found.rows == tuple(row(value, speed) for value, speed in speeds.items())
    assert found.break_even is not None
    assert found.break_even.told == "it waits longer than it computes even at 20000 GB/s"
    assert found.target is not None


def test_a_predictor_has_its_own_words_a_recall_and_ratios_to_the_last_series() -> None:
    def speed(words: Sequence[str]) -> float:
        return 4.0 if "predictor=none" in words else 8 * of_word(words, "predictor.precision")

    pool: Any = Pool(speed)
    found = answer("predictor", [*GIVEN, "predictor.depth=2"], [0.25, 1.0], pool, target=6.0)
    assert found.target is not None
    assert found.target.value == pytest.approx(0.75, rel=1e-3), "of the first series"
    assert ("model=m", "predictor=none") in pool.asked
    assert (
        "model=m",
        "predictor=stated_accuracy",
        "predictor.precision=1.0",
        "predictor.depth=2",
        "predictor.recall=0.9",
    ) in pool.asked
    assert found.rows == (
        row(0.25, 2.0, "prefetching", speedup=0.5, speedup_interval=pytest.approx((0.5, 0.5))),
        row(0.25, 4.0, "on demand"),
        row(1.0, 8.0, "prefetching", speedup=2.0, speedup_interval=pytest.approx((2.0, 2.0))),
        row(1.0, 4.0, "on demand"),
    )
    assert found.break_even is not None
    assert found.break_even.value == pytest.approx(0.5, rel=1e-3)
    given: Any = Pool(speed)
    answer("predictor", ["predictor.recall=0.5"], [0.5, 1.0], given)
    assert {words[-1] for words in given.asked} == {"predictor=none", "predictor.recall=0.5"}


def test_where_no_value_runs_the_first_refusal_is_told() -> None:
    pool: Any = Pool(lambda words: None)
    with pytest.raises(ValueError, match=r"^none of the values can run: 0\.1: no room$"):
        answer("memory", GIVEN, [0.1, 0.2], pool)
