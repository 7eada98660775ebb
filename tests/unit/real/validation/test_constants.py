"""A machine's durations are learnt from its runs; from nominal runs the nominal times come back."""

from __future__ import annotations

import pytest

from real.setup.prepare import prepare_replay
from real.validation.cases import measure_run, request_of, simulated
from real.validation.constants import Constants, MeasuredDurations
from sim.values.types import HostCosts, Step

EXPERT = ("expert", "fp16", True)


def test_a_group_is_its_median_and_between_groups_lies_a_straight_line() -> None:
    constants = Constants.learn(
        [(EXPERT, 100, ns) for ns in (90, 150, 1000)] + [(EXPERT, 200, ns) for ns in (240, 260)]
    )
    assert constants.takes(EXPERT, 100) == 150
    assert constants.takes(EXPERT, 200) == 250
    assert constants.takes(EXPERT, 150) == 200


def test_beyond_what_was_seen_times_grow_in_proportion() -> None:
    constants = Constants.learn([(EXPERT, 100, 150), (EXPERT, 200, 250)])
    assert constants.takes(EXPERT, 400) == 500
    assert constants.takes(EXPERT, 50) == 75


def test_a_kind_that_was_not_seen_takes_its_nominal_time() -> None:
    assert Constants.learn([(EXPERT, 100, 150)]).takes(("hop", 0, True), 77) == 77


def test_what_has_no_nominal_time_takes_what_it_took() -> None:
    learnt = Constants.learn([(("issue_ns", 0, True), 0, ns) for ns in (30, 40, 50)])
    assert learnt.host == HostCosts(0, 40, 0, 0)


HOST = (
    "hardware.host.sync_us=40",
    "hardware.host.issue_us=200",
    "hardware.host.wake_us=70",
    "hardware.host.post_us=30",
)
WORDS = ("device=null", "trace.max_sequences=1", *HOST)


@pytest.mark.alike
@pytest.mark.parametrize("system", ["lru", "hobbit", "fiddler"])
def test_on_the_null_device_nominal_times_and_the_hosts_come_back(system: str) -> None:
    request = request_of(WORDS, system, 0.5)
    measured = measure_run(request, 0.5, system)
    constants = Constants.learn(measured.pairs)
    assert constants.host == HostCosts(40_000, 200_000, 70_000, 30_000)
    for kind, (nominal, taken) in constants.medians.items():
        if not kind[0].endswith("_ns"):
            assert nominal == taken, kind


@pytest.mark.thorough
def test_a_prediction_from_another_systems_run_on_the_null_device_is_exact() -> None:
    request = request_of(WORDS, "hobbit", 0.5)
    constants = Constants.learn(measure_run(request_of(WORDS, "lru", 0.5), 0.5, "lru").pairs)
    prepared = prepare_replay(request)
    durations = MeasuredDurations(prepared.run.durations, constants, ("fp16", "int4"))
    predicted = simulated(prepared, durations).record
    assert predicted.step_end_ns == measure_run(request, 0.5, "hobbit").recording.record.step_end_ns


def test_experts_of_one_precision_are_alike_whatever_number_a_system_gives_it() -> None:
    """io_qexp's first precision is hobbit's second one."""
    request = request_of(WORDS, "io_qexp", 0.5)
    pairs = measure_run(request, 0.5, "io_qexp").pairs
    constants = Constants.learn((kind, ns, 3 * took) for kind, ns, took in pairs)
    run = prepare_replay(request_of(WORDS, "hobbit", 0.5)).run
    assert run.controller.geometry.precisions == ("fp16", "int4")
    nominal = run.durations
    durations = MeasuredDurations(nominal, constants, ("fp16", "int4"))
    assert durations.expert_ns(1, 0, 1) == 3 * nominal.expert_ns(1, 0, 1)
    # Nobody showed an expert at fp16.
    assert durations.expert_ns(0, 0, 1) == nominal.expert_ns(0, 0, 1)


@pytest.mark.thorough
def test_twice_as_slow_a_machine_is_learnt_as_one() -> None:
    """The same run on links and compute of half the speed.

    The nominal run with the constants learnt there takes twice its time.
    """
    slow = (
        "hardware.links.loader.efficiency=0.5",
        "hardware.links.loader.overhead_us=200",
        "hardware.compute.memory_efficiency=0.5",
    )
    words = ("device=null", "trace.max_sequences=1", "hardware.host.issue_us=0")
    pairs = measure_run(request_of((*words, *slow), "lru", 0.5), 0.5, "lru").pairs
    nominal = {pair[:2] for pair in measure_run(request_of(words, "lru", 0.5), 0.5, "lru").pairs}
    constants = Constants.learn(
        (kind, ns // 2 if kind[0] != "tail" else ns, took) for kind, ns, took in pairs
    )
    for kind, nominal_ns in nominal:
        if kind[0] in ("expert", "hop"):
            assert constants.takes(kind, nominal_ns) == pytest.approx(2 * nominal_ns, abs=2)


def test_steps_of_another_kind_keep_their_own_times() -> None:
    decode, prefill = ("tail", 0, True), ("tail", 0, False)
    constants = Constants.learn([(decode, 10, 11), (prefill, 10, 30)])
    durations = MeasuredDurations(Nominal(), constants, ())  # type: ignore[arg-type]
    step = Step(0, 0, 1, (0,), 1, True, (), (), (0,))
    assert durations.tail_ns(step) == 11
    assert durations.tail_ns(Step(0, 0, 1, (0,), 1, False, (), (), (0,))) == 30


class Nominal:
    host, prediction_ns = HostCosts(), 0

    def tail_ns(self, step: Step) -> int:
        return 10
