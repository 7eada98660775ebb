"""The simulator replays what recorded runs took, and ends where they did.

- On a null device a replay is exact, with no order forced, whatever the features.
- On a device that takes close events in any order, the recorded order is forced.
- A driver with one rule broken is found at a call.
- On paced threads the limits of docs/validation.md hold. A machine that is too busy for them skips
that part with the reason.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from differential.by_hand import foresee, gate, machine, token
from differential.features import FEATURES, random_feature, random_mixture
from differential.production import ScenarioWorkload, controller_for
from differential.scenario import Host, Link, Loader, Placement, Scenario, random_scenario
from helpers.restless import Restless
from helpers.slowed import Slowed, slowed
from real.driver.device import Device, NullDevice
from real.driver.links import Links
from real.driver.loop import Driver
from real.driver.needs import Batch, Needs
from real.driver.paced import PacedDevice
from real.driver.recording import Recording, record_run
from real.validation.conformance import Conformance, NonconformanceError, conform
from sim.core.transfer import Transfer

KINDS = ("plain", *FEATURES, "mixture")
MS, US = 1_000_000, 1000


def given(kind: str, seed: int, ties: bool) -> Scenario:
    if kind == "plain":
        return random_scenario(seed, ties)
    return random_mixture(seed, ties) if kind == "mixture" else random_feature(kind, seed, ties)


def record(scenario: Scenario, device: Device, factor: int = 1) -> Recording:
    workload = ScenarioWorkload(scenario)
    return record_run(
        controller_for(scenario), workload, Slowed(scenario, workload, factor), device
    )  # type: ignore[arg-type]


def replayed(
    recording: Recording, scenario: Scenario, factor: int = 1, **options: Any
) -> Conformance:
    workload = ScenarioWorkload(scenario)
    return conform(
        recording, controller_for(scenario), workload, Slowed(scenario, workload, factor), **options
    )  # type: ignore[arg-type]


@pytest.mark.alike
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_on_the_null_device_is_replayed_exactly_and_nothing_is_forced(kind: str) -> None:
    for seed in range(12 if kind == "mixture" else 3):
        for ties in (True, False):
            scenario = given(kind, seed, ties)
            recording = record(scenario, NullDevice())
            found = replayed(recording, scenario, tie_ns=0)
            makespan_ns = recording.record.makespan_ns
            expected = Conformance(
                len(recording.calls), 0, makespan_ns, makespan_ns, 0.0, found.gap_ns
            )
            assert found == expected, (kind, seed, ties)
            # Without host time the stream does something, or stands idle for something, all the
            # time.
            assert found.gap_ns == 0 or any(vars(scenario.host).values()), (kind, seed, ties)


@pytest.mark.thorough
def test_what_threads_might_have_done_in_another_order_is_forced_and_counted() -> None:
    """Durations of ms, of which what lies within 0.1 ms may change places."""
    forced = swapped = 0
    for kind in (
        "engines",
        "cut_through",
        "three_hops",
        "prediction_latency",
        "cpu",
        "chunks",
        "mixture",
    ):
        for seed in range(6):
            scenario = slowed(given(kind, seed, ties=False), 100)
            device = Restless(seed, close_ns=100_000)
            found = replayed(record(scenario, device, 100), scenario, 100)
            assert found.makespan_error < 0.001
            assert found.forced <= device.num_swapped
            forced, swapped = forced + found.forced, swapped + device.num_swapped
    assert forced > 50
    assert swapped > 100


# ---- drivers that break a rule

take, admit, fill, on_cpu_result = Needs.take, Needs.admit, Links.fill, Driver.on_cpu_result


def serve_the_last(self: Links, link: int, following: Transfer | None) -> None:
    line = self._lines[link]
    if following is not None:
        line.waiting.append(following)
    while line.waiting and None in line.serving:
        engine = line.serving.index(None)
        service = line.serving[engine] = self._begin(link, engine, line.waiting.pop())
        self._device.serve(service)


def compute_the_last(self: Needs, free_ns: int, *, whole: bool) -> Batch:
    if self.line and not self.line[-1].pending:
        self.line = deque([self.line.pop(), *self.line])
        self.line[0].keys.reverse()
        self.line[0].rows.reverse()
    return take(self, free_ns, whole=whole)


def compute_all_together(self: Needs, *admitted: Any) -> None:
    self._together, self._joins_when_ready = True, False
    admit(self, *admitted)


def never_hand_on(self: Links, link: int, transfer: Transfer) -> int:
    return -1


def never_cut(self: Links, without: int = -1) -> None:
    self._chunk_bytes, chunk_bytes = 0, self._chunk_bytes
    fill(self, without)
    self._chunk_bytes = chunk_bytes


def lose_predictions(self: Driver, tick: int) -> None: ...


def tell_results_in_pairs(self: Driver, key: int) -> None:
    held = vars(self).setdefault("held", [])
    held.append(key)
    if len(held) == min(2, len(self._on_cpu)):
        for each in (held.pop(), *held):
            on_cpu_result(self, each)
        held.clear()


BROKEN: dict[str, tuple[type, str, Callable[..., Any], str]] = {
    "serves the last first": (Links, "_go_on", serve_the_last, "two_hops"),
    "computes the last first": (Needs, "take", compute_the_last, "plain"),
    "never hands on from a head": (Links, "_head_ns", never_hand_on, "cut_through"),
    "never cuts": (Links, "fill", never_cut, "chunks"),
    "computes together": (Needs, "admit", compute_all_together, "plain"),
    "loses predictions": (Driver, "on_prediction", lose_predictions, "prediction_latency"),
    "tells CPU results in pairs": (Driver, "on_cpu_result", tell_results_in_pairs, "cpu"),
}


@pytest.mark.alike
@pytest.mark.parametrize("name", BROKEN)
def test_a_driver_that_breaks_a_rule_is_found_at_a_call(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durations of ms, so that no tie excuses it."""
    owner, attribute, broken, kind = BROKEN[name]
    monkeypatch.setattr(owner, attribute, broken)
    found = []
    for seed in range(12):
        scenario = slowed(given(kind, seed, ties=False), MS)
        recording = record(scenario, NullDevice(), MS)
        try:
            replayed(recording, scenario, MS)
        except NonconformanceError as error:
            found.append(str(error))
    assert len(found) >= 2
    assert all(error.startswith("call ") for error in found), found


def test_a_stream_that_waits_where_it_need_not_is_found_or_shows_as_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where its calls come in an order that may be, only its times are wrong."""
    monkeypatch.setattr(Needs, "admit", compute_all_together)
    gaps = 0
    for seed in range(20):
        scenario = given("plain", seed, ties=False)
        if scenario.loader.wait == "as_ready":
            recording = record(scenario, NullDevice())
            with suppress(NonconformanceError):
                gaps += replayed(recording, scenario, tie_ns=0).gap_ns > 0
    assert gaps > 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"replayed_ns": 1_006_000}, r"the makespan differs by 0\.6 %, but may by 0\.5 %"),
        (
            {"token_error": 0.011},
            r"the 95th percentile of the steps' durations differs by 1\.1 %, but may by 1 %",
        ),
        ({"forced": 11}, r"the order was forced in 1\.1 %, but may by 1 %"),
    ],
)
def test_a_replay_that_is_too_far_off_is_refused_with_the_limit(
    change: dict[str, Any], why: str
) -> None:
    good = Conformance(
        1000, forced=10, recorded_ns=1_000_000, replayed_ns=1_005_000, token_error=0.01, gap_ns=0
    )
    good.check()
    with pytest.raises(NonconformanceError, match=why):
        replace(good, **change).check()


# ---- threads


def offloaded(loader: Loader, **rest: Any) -> Scenario:
    """40 tokens through 4 sites of 8 experts of 1 MiB, two a token, with room for 12; times in us.

    A load takes 2 ms, an expert 0.3 and the dense work of a site 0.6 ms; the next site is foreseen,
    mostly rightly.
    """
    rng = np.random.default_rng(7)
    routed = rng.permuted(np.tile(np.arange(8), (40, 4, 1)), axis=2)[..., :2]
    foreseen = np.where(rng.random(routed.shape) < 0.8, routed, (routed + 1) % 8)
    steps = tuple(
        token(
            *(gate(*site) for site in needs),
            ahead={s: (foresee(*ahead[s + 1]),) for s in range(3)},
            begins=index == 0,
            ends=index == 39,
            token=index + 1,
            dense_ns=(600,) * 4,
            tail_ns=400,
        )
        for index, (needs, ahead) in enumerate(zip(routed.tolist(), foreseen.tolist(), strict=True))
    )
    values: dict[str, Any] = {"service_ns": (2000,)} | rest
    return machine(
        *steps, capacity=12 << 20, variant_bytes=(1 << 20,), base_ns=(300,), loader=loader, **values
    )


PACED = {
    "one link": offloaded(Loader(lookahead=1)),
    "two links, chunks, the CPU and host time": offloaded(
        Loader(lookahead=1, chunk_bytes=1 << 18, in_flight=2),
        links=(Link(20, 0), Link(30, 0)),
        host=Host(20, 30, 40, 20),
        prediction_ns=100,
        placement=Placement(frozenset({(s, e) for s in range(4) for e in (0, 1)}), cpu_ns=900),
    ),
}


@pytest.mark.parametrize("name", PACED)
def test_a_run_on_paced_threads_that_copy_real_bytes_is_replayed_within_the_limits(
    name: str,
) -> None:
    scenario = PACED[name]
    recording = record(scenario, PacedDevice(), US)
    found = replayed(recording, scenario, US)
    try:
        found.check()
    except NonconformanceError as error:
        if (load := os.getloadavg()[0]) > (os.cpu_count() or 1):
            pytest.skip(
                f"the machine is busy (load average {load:.1f} on {os.cpu_count()} cores): {error}"
            )
        raise
