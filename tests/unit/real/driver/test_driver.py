"""The driver of real runs, worked by hand on the null device."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest

from differential.by_hand import foresee, gate
from differential.by_hand import machine as by_hand
from differential.by_hand import token as step_of
from differential.production import ScenarioDurations, ScenarioWorkload, controller_for
from differential.scenario import (
    Batching,
    Forecast,
    Host,
    Link,
    Loader,
    Need,
    Placement,
    PoolSpec,
    Prediction,
    Request,
    Row,
    Scenario,
    Step,
    Thresholds,
)
from real.driver.device import TAIL, Device, NullDevice
from real.driver.loop import drive
from sim.core.controller import Controller
from sim.results.calls import Call, RecordedController
from sim.values.record import CPU_RESULT, HOST_TIME, NO_REQUEST, Record
from sim.values.types import Outcome, PrefetchOutcome

WAITS = ("wait_all", "as_ready", "in_order")


def play(scenario: Scenario, device: Device | None = None) -> tuple[Record, RecordedController]:
    controller, workload = RecordedController(controller_for(scenario)), ScenarioWorkload(scenario)
    durations = ScenarioDurations(scenario, workload)
    record = drive(controller, workload, durations, device or NullDevice())  # type: ignore[arg-type]
    controller.check()
    return record, controller


def asked(record: Record, calls: list[Call]) -> list[tuple[int, str, int]]:
    return [
        (now, call.kind, call.argument) for now, call in zip(record.call_ns, calls, strict=True)
    ]


def idle(record: Record) -> list[tuple[int, int, int]]:
    return list(zip(record.idle_start_ns, record.idle_end_ns, record.idle_cause, strict=True))


def services(record: Record) -> list[tuple[int, int, int, int]]:
    """(transfer, link, start, end) of each service."""
    columns = (
        record.service_number,
        record.service_link,
        record.service_start_ns,
        record.service_end_ns,
    )
    return list(zip(*columns, strict=True))


def token(*needs: tuple[int, ...], **rest: Any) -> Step:
    """One step with these needs site by site; its dense work takes 1 a site."""
    return step_of(*(gate(*experts) for experts in needs), **rest)


def machine(*steps: Step, **rest: Any) -> Scenario:
    """A machine on which transfers take 10, experts 4."""
    return by_hand(*steps, **({"base_ns": (4,)} | rest))


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize(
    ("forecast", "score", "makespan_ns"),
    [
        pytest.param(None, 0.0, 38_000_000, id="no prefetch"),
        pytest.param((Forecast(0),), 0.0, 33_000_000, id="right prefetch"),
        pytest.param((Forecast(1),), 0.0, 47_000_000, id="wrong prefetch"),
        pytest.param((Forecast(0, 0.6),), 0.6, 24_000_000, id="right low prefetch"),
        pytest.param((Forecast(1, 0.6),), 0.6, 27_500_000, id="wrong low prefetch"),
    ],
)
def test_hobbit_figure_9(wait: Any, forecast: Prediction, score: float, makespan_ns: int) -> None:
    """Two layers; in ms: attention 3, a load 14 (3.5 at low precision), an expert 2."""
    step = Step(
        0,
        True,
        True,
        1,
        1,
        (3_000_000,) * 2,
        0,
        ((Need(0),), (Need(0, 1, score),)),
        ((forecast,), (None,)),
    )
    scenario = Scenario(
        sites=2,
        experts=2,
        variant_bytes=(4, 1),
        service_ns=(14_000_000, 3_500_000),
        base_ns=(2_000_000,) * 2,
        per_token_ns=(0, 0),
        pools=(PoolSpec(8, (0,)), PoolSpec(2, (1,))),
        steps=(step,),
        selector=Thresholds(0.5, 1.0),
        loader=Loader(lookahead=1, wait=wait),
    )
    record, _ = play(scenario)
    assert record.makespan_ns == makespan_ns
    assert record.gate_ns[0] == 3_000_000


def test_a_wave_computed_as_its_needs_become_ready() -> None:
    """Three needs, room for two. 0 loads 1..11, 1 loads 11..21.

    0 is computed 11..15: it is unpinned and 2 is admitted, but the link is busy, so nothing is
    polled. At 21, 1 is there and 2 takes the slot of 0: it loads 21..31 while 1 is computed 21..25,
    and is computed 31..35.
    """
    scenario = machine(
        token((0, 1, 2), rows=3, token=3), capacity=2, loader=Loader(wait="as_ready")
    )
    record, controller = play(scenario)
    assert asked(record, controller.log) == [
        (0, "begin_sequence", 0),
        (1, "gate", 0),
        (1, "poll", 0),
        (11, "transfer_done", 0),
        (15, "need_done", 0),
        (21, "transfer_done", 1),
        (31, "transfer_done", 2),
        (35, "end_sequence", 0),
    ]
    assert (record.lookup_ns, record.ready_ns) == ([1, 1, 15], [11, 21, 31])
    assert services(record) == [(0, 0, 1, 11), (1, 0, 11, 21), (2, 0, 21, 31)]
    assert idle(record) == [(1, 11, 0), (15, 21, 1), (25, 31, 2)]
    assert (record.end_ns, record.step_end_ns, record.makespan_ns) == ([35], [35], 35)
    assert [call.victims for call in controller.log if call.transfer >= 0] == [(), (), (0,)]


def test_a_wave_computed_when_all_that_a_call_admitted_is_there() -> None:
    """Three needs, room for two: 0 and 1 load 1..21 and are computed 21..29.

    At 25, 0 is done and 2 is admitted; the link is free, so it is polled, and 2 loads 25..35 and is
    computed 35..39.
    """
    scenario = machine(
        token((0, 1, 2), rows=3, token=3), capacity=2, loader=Loader(wait="wait_all")
    )
    record, controller = play(scenario)
    assert asked(record, controller.log)[1:-1] == [
        (1, "gate", 0),
        (1, "poll", 0),
        (11, "transfer_done", 0),
        (21, "transfer_done", 1),
        (25, "need_done", 0),
        (25, "poll", 0),
        (35, "transfer_done", 2),
    ]
    assert idle(record) == [(1, 21, 1), (29, 35, 2)]
    assert record.makespan_ns == 39


@pytest.mark.parametrize(
    ("wait", "computed_ns"),
    [
        ("as_ready", [(2, 5), (0, 15), (1, 25)]),
        ("wait_all", [(0, 25), (1, 29), (2, 33)]),
        ("in_order", [(0, 15), (1, 25), (2, 29)]),
    ],
)
def test_what_is_there_is_computed_first_or_with_the_rest_or_in_its_turn(
    wait: Any, computed_ns: list[tuple[int, int]]
) -> None:
    """Needs 0, 1 and 2 at 1, of which 2 is resident; 0 comes at 11, 1 at 21; each takes 4."""
    scenario = machine(token((0, 1, 2)), initial=((0, 0, 2),), loader=Loader(wait=wait))
    device = WatchedDevice()
    play(scenario, device)
    assert [(key, end_ns) for key, end_ns in device.computed if key in (0, 1, 2)] == computed_ns


class WatchedDevice(NullDevice):
    """A null device that notes (key, end) of all that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.computed: list[tuple[int, int]] = []

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        super().compute(key, rows, nominal_ns)
        self.computed.append((key, self.now_ns()))


def test_each_step_computes_its_layers_dense_blocks_its_experts_and_the_tail() -> None:
    """Keys of a site: its experts 0 to 7, then its dense block, 8."""
    device = WatchedDevice()
    play(machine(token((3,), (5,), tail_ns=7), initial=((0, 0, 3), (0, 1, 5))), device)
    assert device.computed == [(8, 1), (3, 5), (17, 6), (14, 10), (-1, 17)]


class CountedDevice(NullDevice):
    """Notes for how many rows each key was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, int]] = []

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        super().compute(key, rows, nominal_ns)
        self.rows.append((key, rows))


# Contracts: C70
def test_the_head_is_computed_for_the_last_row_of_a_prompt_and_for_each_decoded_token() -> None:
    """Three rows of a prompt go through the layer, one of them through the head; then one token."""
    device = CountedDevice()
    prompt, decoded = token((3,), rows=3, ends=False), token((3,), begins=False, token=4)
    play(machine(prompt, decoded, initial=((0, 0, 3),)), device)
    head = [rows for key, rows in device.rows if key == TAIL]
    layer = [rows for key, rows in device.rows if key == 8]
    assert (layer, head) == ([3, 1], [1, 1])


# Contracts: C13
@pytest.mark.parametrize(("in_flight", "polls"), [(1, 1), (2, 2)])
def test_the_link_is_polled_until_it_is_full(in_flight: Any, polls: int) -> None:
    """Three misses at 1: the gate is followed by one poll for each transfer that may be issued."""
    record, controller = play(machine(token((0, 1, 2)), loader=Loader(in_flight=in_flight)))
    assert asked(record, controller.log).count((1, "poll", 0)) == polls
    assert record.service_start_ns == [1, 11, 21]


@pytest.mark.parametrize(
    ("service_ns", "outcome"),
    [(4, Outcome.HIT), (5, Outcome.HIT), (6, Outcome.LATE)],
    ids=["before", "at", "after"],
)
def test_a_transfer_that_ends_at_the_instant_of_a_gate_has_arrived(
    service_ns: int, outcome: Outcome
) -> None:
    """The prefetch for site 1 starts at 1.

    Site 0's expert ends at 5, and the gate of site 1 is at 6.
    """
    step = token((0,), (0,), ahead={0: (foresee(0),)})
    scenario = machine(
        step, initial=((0, 0, 0),), service_ns=(service_ns,), loader=Loader(lookahead=1)
    )
    _, controller = play(scenario)
    assert controller.lookup_outcomes[-1] == outcome


@pytest.mark.parametrize("in_flight", [1, 2])
def test_transfers_in_flight_at_the_end_are_cut(in_flight: Any) -> None:
    """Site 0 foresees 1, 2 and 3 at site 1, which needs none of them.

    1 loads from 1 on, and the run ends at 10.
    """
    step = token((0,), (0,), ahead={0: (foresee(1, 2, 3),)})
    initial = ((0, 0, 0), (0, 1, 0))
    loader = Loader(lookahead=1, in_flight=in_flight, cancel_stale=False)
    record, controller = play(machine(step, initial=initial, loader=loader))
    assert record.makespan_ns == 10
    assert services(record) == [(0, 0, 1, -1)]
    assert controller.prefetch_counts[PrefetchOutcome.UNUSED_AT_END] == in_flight
    assert controller.prefetch_counts[PrefetchOutcome.CANCELLED] == 3 - in_flight


def test_a_sequence_begins_with_its_first_step_and_ends_with_its_last() -> None:
    """Steps of two sequences: 0, 1, 0. In each: dense work 1, expert 4, tail 2."""
    first = token((0,), ends=False, tail_ns=2)
    other = token((0,), sequence=1, tail_ns=2)
    record, controller = play(
        machine(first, other, replace(first, begins=False, ends=True), initial=((0, 0, 0),))
    )
    calls = [call for call in asked(record, controller.log) if call[1].endswith("sequence")]
    assert calls == [
        (0, "begin_sequence", 0),
        (7, "begin_sequence", 1),
        (14, "end_sequence", 1),
        (21, "end_sequence", 0),
    ]
    assert (record.step_start_ns, record.step_end_ns) == ([0, 7, 14], [7, 14, 21])


def test_a_need_that_nothing_brings_is_an_error_that_names_it() -> None:
    class Silent(Controller):
        __slots__ = ()

        def poll(self, link: int) -> None:
            self.calls += 1

    scenario = machine(token((0,), (5,)), initial=((0, 0, 0),))
    silent, workload = controller_for(scenario), ScenarioWorkload(scenario)
    silent.__class__ = Silent
    links = "link 0 serves nothing, nothing issued behind, 1 queued"
    missing = (
        rf"step 0 site 1 waits for site 1 expert 5 high \(0 needs not admitted; {links}\).*nothing"
        r" is under way"
    )
    with pytest.raises(RuntimeError, match=missing):
        drive(silent, workload, ScenarioDurations(scenario, workload), NullDevice())  # type: ignore[arg-type]


def test_host_time_surrounds_the_gate_wakes_the_stream_and_ends_the_site() -> None:
    """Dense work to 1, sync 2 to the gate at 3, issue 3 to 6. 0 loads 3..13.

    The stream wakes at 13 for 4, computes 17..21, and has 5 of post time.
    """
    record, _ = play(machine(token((0,)), host=Host(sync_ns=2, issue_ns=3, wake_ns=4, post_ns=5)))
    assert record.gate_ns == [3]
    assert idle(record) == [
        (1, 3, HOST_TIME),
        (3, 6, HOST_TIME),
        (6, 13, 0),
        (13, 17, HOST_TIME),
        (21, 26, HOST_TIME),
    ]
    assert record.end_ns == [26]


def test_after_a_longer_wait_the_stream_may_take_longer_to_wake() -> None:
    """As above it stands idle from 6 to 13, and 7 lies half way between 4 and 10: 2 + 4."""
    host = Host(2, 3, 0, 5, wakes=((4, 2), (10, 10)))
    record, _ = play(machine(token((0,)), host=host))
    assert idle(record)[2:4] == [(6, 13, 0), (13, 19, HOST_TIME)]
    assert record.end_ns == [28]


def test_who_does_not_stand_idle_is_not_woken() -> None:
    """The load ends at 11, just as the host time after the gate does."""
    record, _ = play(machine(token((0,)), host=Host(issue_ns=10, wake_ns=4)))
    assert idle(record) == [(1, 11, HOST_TIME)]
    assert record.end_ns == [15]


def test_the_site_waits_for_the_cpus_results() -> None:
    """0 and 1 go to the CPU, 1..8 and 8..15; 2 is there, and is computed 1..5."""
    placement = Placement(frozenset({(0, 0), (0, 1)}), cpu_ns=7)
    record, controller = play(machine(token((0, 1, 2)), initial=((0, 0, 2),), placement=placement))
    assert asked(record, controller.log)[2:4] == [(8, "cpu_done", 0), (15, "cpu_done", 1)]
    assert record.ready_ns == [8, 15, 1]
    assert idle(record) == [(5, 15, CPU_RESULT)]
    assert record.end_ns == [15]


def test_a_cpu_result_that_ends_a_waves_need_wakes_the_stream_for_what_it_lets_in() -> None:
    """Room for one. 0 goes to the CPU, 1..8. Then 1 is let in, is there, and is computed 10..14."""
    placement = Placement(frozenset({(0, 0)}), cpu_ns=7)
    scenario = machine(
        token((0, 1), rows=2, token=2),
        capacity=1,
        initial=((0, 0, 1),),
        placement=placement,
        host=Host(wake_ns=2),
    )
    record, controller = play(scenario)
    assert asked(record, controller.log)[2:4] == [(8, "cpu_done", 0), (8, "need_done", 0)]
    assert idle(record) == [(1, 8, CPU_RESULT), (8, 10, HOST_TIME)]
    assert record.end_ns == [14]


def test_what_the_placement_leaves_out_lets_the_next_in_at_once() -> None:
    placement = Placement(skip=frozenset({(0, 0)}))
    scenario = machine(
        token((0, 1), rows=2, token=2), capacity=1, initial=((0, 0, 1),), placement=placement
    )
    record, controller = play(scenario)
    assert asked(record, controller.log)[1:3] == [(1, "gate", 0), (1, "need_done", 0)]
    assert record.end_ns == [5]


def test_streamed_dense_blocks_are_waited_for() -> None:
    """One slot, which holds block 0.

    Block 1 is queued at the gate at 1 and comes at 21. Block 0 is queued then and would come at 42,
    too late.
    """
    loader = Loader(dense_slots=1)
    links, initial = (Link(0, 1),), ((0, 0, 0), (0, 1, 0))
    scenario = machine(
        token((0,), (0,)), initial=initial, links=links, dense_bytes=(20, 20), loader=loader
    )
    record, controller = play(scenario)
    assert asked(record, controller.log) == [
        (0, "begin_sequence", 0),
        (1, "gate", 0),
        (1, "poll", 0),
        (21, "transfer_done", 0),
        (22, "gate", 1),
        (22, "poll", 0),
        (26, "end_sequence", 0),
    ]
    assert idle(record) == [(5, 21, 0)]


def test_a_prediction_with_a_latency_comes_between_the_calls_of_the_stream() -> None:
    """Site 0's forecast is made 1..3, that of site 1 6..8."""
    step = token((0,), (0,), ahead={0: (foresee(1),)})
    scenario = machine(
        step, initial=((0, 0, 0), (0, 1, 0)), prediction_ns=2, loader=Loader(lookahead=1)
    )
    record, controller = play(scenario)
    assert [call for call in asked(record, controller.log) if call[1] != "poll"] == [
        (0, "begin_sequence", 0),
        (1, "gate", 0),
        (3, "prediction_ready", 0),
        (6, "gate", 1),
        (8, "prediction_ready", 1),
        (10, "end_sequence", 0),
    ]


def test_a_transfer_takes_its_links_one_after_another() -> None:
    record, _ = play(machine(token((0,)), links=(Link(0, 10), Link(3, 20))))
    assert services(record) == [(0, 1, 1, 24), (0, 0, 24, 34)]


def test_a_link_hands_on_so_early_that_the_next_never_starves() -> None:
    """4 bytes take 40 on link 1 and 8 on link 0; the head of one byte takes 2 on link 0.

    So the transfer is handed on at 1 + 40 + 2 - 8.
    """
    links = (Link(0, 2), Link(0, 10, head_bytes=1))
    record, controller = play(
        machine(token((0,)), variant_bytes=(4,), service_ns=(8,), links=links)
    )
    assert (35, "head_done", 0) in asked(record, controller.log)
    assert services(record) == [(0, 1, 1, 41), (0, 0, 35, 43)]


def test_what_is_written_back_goes_first_in_one_service() -> None:
    """The link takes 3 and 10 a byte: 13 for what goes back, 13 for what comes."""
    scenario = machine(
        token((0,)),
        capacity=1,
        initial=((0, 0, 1),),
        links=(Link(3, 10),),
        loader=Loader(write_back=True),
    )
    record, _ = play(scenario)
    assert services(record) == [(0, 0, 1, 27)]
    assert record.service_bytes == [1]


def test_engines_that_serve_at_once_share_the_link() -> None:
    """Two engines, three loads of 10: two share the link, 1..21; the third has it 21..31."""
    record, _ = play(machine(token((0, 1, 2)), links=(Link(0, 10, engines=2),)))
    assert services(record) == [(0, 0, 1, 21), (1, 0, 1, 21), (2, 0, 21, 31)]
    assert record.service_engine == [0, 1, 0]


def test_a_prefetch_gives_way_to_a_demand_at_the_end_of_a_chunk() -> None:
    """Site 0 foresees 1, whose 4 bytes take 1..41, in chunks of 10.

    Site 1 needs 0 at 6: the prefetch is cut at 11, and goes on at 51, when 0 has come.
    """
    step = token((0,), (0,), ahead={0: (foresee(1),)}, tail_ns=99)
    scenario = machine(
        step,
        initial=((0, 0, 0),),
        variant_bytes=(4,),
        service_ns=(40,),
        links=(Link(0, 10),),
        loader=Loader(lookahead=1, chunk_bytes=1, cancel_stale=False),
    )
    record, controller = play(scenario)
    assert (11, "chunk_done", 0) in asked(record, controller.log)
    assert services(record) == [(0, 0, 1, 11), (1, 0, 11, 51), (0, 0, 51, 81)]
    assert record.service_bytes == [1, 4, 3]
    assert record.service_urgent == [0, 1, 0]


def test_with_nothing_to_run_the_stream_waits_for_a_request() -> None:
    """Two requests, at 0 and at 50, of one token each."""
    row = Row((((0, 1.0),),), ((),))
    requests = (Request((), (row,)), Request((), (row,), arrival_ns=50))
    scenario = machine(token((0,)), initial=((0, 0, 0),), host=Host(wake_ns=2))
    batching = Batching("static", 1, dense_ns=(1,))
    record, controller = play(replace(scenario, steps=(), requests=requests, batching=batching))
    assert idle(record) == [(5, 50, NO_REQUEST), (50, 52, HOST_TIME)]
    assert (record.step_start_ns, record.step_end_ns) == ([0, 52], [5, 57])
    assert asked(record, controller.log)[-3:] == [
        (52, "begin_sequence", 1),
        (53, "gate", 1),
        (57, "end_sequence", 1),
    ]


def test_no_pass_of_the_garbage_collector_pauses_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H100 one took 184 ms of a run of 12 tokens, as the host's time in one of them."""
    seen: list[bool] = []
    plain = NullDevice.compute

    def compute(self: NullDevice, key: int, rows: int, nominal_ns: int) -> None:
        seen.append(gc.isenabled())
        plain(self, key, rows, nominal_ns)

    monkeypatch.setattr(NullDevice, "compute", compute)
    play(machine(token((0,)), initial=((0, 0, 0),)))
    assert seen
    assert not any(seen)
    assert gc.isenabled()
