"""Options of a machine beyond its formulas: measured tables, gates run ahead, dequantisation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from helpers import round_machine
from helpers.round_machine import small
from sim.machine.compute import Compute, Cpu
from sim.machine.hardware import Hardware
from sim.machine.link import Link
from sim.machine.link_parts import Scattered
from sim.machine.measured import Measured, time_ns
from sim.machine.model import Model
from sim.machine.parts import Forecasting, SharedMemory
from sim.machine.roofline import Roofline
from sim.study.trials import prepared
from sim.values.types import Step

STEP = Step(0, 0, 1, (0,), 1, True, (), ())
POINTS = [[1, 10.0], [3, 20.0], [5, 60.0]]


def compute(**changes: Any) -> Compute:
    """With launches of 1 us, two of them for dense work."""
    return round_machine.compute(**{"launch_us": 1.0, "dense_launches": 2} | changes)


def machine(**changes: Any) -> Hardware:
    one: dict[str, Any] = {"links": {"pcie": Link(10.0, 0.5, 6.0)}, "compute": compute()}
    return round_machine.machine(**one | changes)


def durations(
    hardware: Hardware,
    model: Model | None = None,
    precisions: tuple[str, ...] = ("fp16",),
    **options: Any,
) -> Roofline:
    return Roofline(model or small(), hardware, precisions, **options)


# Measured


# Contracts: C81
@pytest.mark.parametrize(
    ("at", "expected_us"), [(0, 10), (1, 10), (2, 15), (3, 20), (4, 40), (5, 60), (7, 100)]
)
def test_between_the_points_of_a_table_and_beyond_its_last_there_are_straight_lines(
    at: int, expected_us: int
) -> None:
    assert time_ns(POINTS, at) == expected_us * 1_000
    assert time_ns([[3, 7.0]], at) == 7_000


def test_a_table_takes_the_place_of_its_formula_and_of_no_other() -> None:
    measured = Measured(
        small().expert_params,
        small().block_params(0),
        0.0,
        {"fp16": POINTS, "int4": [[1, 3.0]]},
        [[0, 5.0], [1000, 15.0]],
        {"pcie": [[0, 1.0], [10**6, 101.0]]},
    )
    one = durations(machine(measured=measured), precisions=("fp16", "int4"))
    plain = durations(machine(), precisions=("fp16", "int4"))
    assert [one.expert_ns(0, 0, tokens) for tokens in (1, 2, 4)] == [10_000, 15_000, 40_000]
    assert one.expert_ns(1, 0, 1) == 3_000
    assert list(one.dense_ns(Step(0, 0, 1, (0,), 500, True, (), ()))) == [10_000] * 3
    prompt = Step(0, 0, 7, (0,), 7, False, (), ())
    assert list(one.dense_ns(prompt)) == [max(5_070, of) for of in plain.dense_ns(prompt)]
    assert one.hop_ns(0, 500_000) == 51_000


def test_a_memory_that_always_slows_is_refused_where_times_were_measured() -> None:
    """C141: it lowered rates that a table does not ask, so that measured work was not slowed."""
    tables = Measured(copy_us={"pcie": POINTS}), Measured(1.0, expert_us={"fp16": POINTS})
    for table, party in zip(tables, ("pcie", "compute"), strict=True):
        with pytest.raises(ValueError, match=rf"has the times of {party}; set slows=as_drawn"):
            machine(measured=table, shared_memory=SharedMemory(9.0, ("compute", "pcie")))
    drawn = SharedMemory(9.0, ("compute", "pcie"), "as_drawn")
    assert machine(measured=tables[0], shared_memory=drawn).contention is not None
    apart = SharedMemory(9.0, ("compute", "cpu"))
    cpu = Cpu(1.0, 1.0, 10.0, 1.0, 20.0)
    assert machine(measured=tables[0], shared_memory=apart, cpu=cpu).shared_memory == apart


def test_beyond_a_table_nothing_is_faster_than_its_formula() -> None:
    """C81: a table whose last points fall gave an expert of 5,300 rows 0 ns on an H100."""
    falls = Measured(
        small().expert_params,
        small().block_params(0),
        0.0,
        {"fp16": [[1, 9.0], [4, 6.0]]},
        [[9, 5.0]],
    )
    one, plain = durations(machine(measured=falls)), durations(machine())
    assert [one.expert_ns(0, 0, rows) for rows in (1, 4)] == [9_000, 6_000]
    assert one.expert_ns(0, 0, 5) == 5_000
    assert one.expert_ns(0, 0, 99_000) == plain.expert_ns(0, 0, 99_000) > 0
    short, long = (Step(0, 0, 1, (0,), context, True, (), ()) for context in (9, 10**7))
    assert list(one.dense_ns(short)) == [5_000] * 3
    assert one.dense_ns(long) == plain.dense_ns(long)


def test_pageable_copies_take_longer_than_those_that_were_measured() -> None:
    """C65: fiddler and transformers copied as from pinned memory where copies were measured.

    Of 101 us 6 are latency, and half of the bandwidth is left: 196 us.
    """
    table = Measured(copy_us={"pcie": [[0, 1.0], [10**6, 101.0]]})
    slower = machine(measured=table).unpinned()
    assert [slower.hop_ns(0, size) for size in (0, 10**6)] == [1_000, 196_000]
    others = Measured(expert_params=1, expert_us={"fp16": POINTS})
    assert machine(measured=others).unpinned().measured == others


def test_experts_and_layers_of_another_size_take_the_fixed_part_and_their_share_of_the_rest() -> (
    None
):
    """10 us of an expert four times as large: 2 us are fixed, and a fourth of 8 us is 2 us."""
    measured = Measured(
        4 * small().expert_params,
        2 * small().block_params(0),
        2.0,
        {"fp16": POINTS},
        [[0, 5.0], [1000, 15.0]],
    )
    one = durations(machine(measured=measured))
    assert one.expert_ns(0, 0, 1) == 2_000 + 2_000
    assert list(one.dense_ns(Step(0, 0, 1, (0,), 500, True, (), ()))) == [2_000 + 4_000] * 3


def test_what_takes_less_than_the_fixed_part_takes_its_own_time_at_every_size() -> None:
    measured = Measured(2 * small().expert_params, 0, 50.0, {"fp16": POINTS})
    assert durations(machine(measured=measured)).expert_ns(0, 0, 1) == 10_000


@pytest.mark.parametrize(
    ("measured", "asked", "lent"),
    [
        (("fp16", "int8"), "int8", "int8"),
        (("fp16", "int8"), "int4", "int8"),
        (("fp16", "int4"), "floe", "fp16"),  # its gate and down projections have 16 bits
        (("int8", "int4"), "hqq4_g64", "int4"),
        ((), "fp16", None),
    ],
)
def test_a_precision_that_was_not_measured_takes_the_times_of_the_nearest(
    measured: tuple[str, ...], asked: str, lent: str | None
) -> None:
    table = Measured(1.0, expert_us=dict.fromkeys(measured, POINTS))
    assert table.stands_for(asked) == lent


def test_a_machine_says_which_precisions_took_the_times_of_others() -> None:
    table = Measured(1.0, expert_us={"fp16": POINTS})
    assert table.told(["fp16"]) is None
    assert table.told(["fp16", "int4"]) == "not measured there: int4 takes the times of fp16"
    assert Measured(copy_us={"pcie": POINTS}).told(["int4"]) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expert_us": {"fp16": POINTS}}, r"hardware\.measured\.expert_params=0\.0 must be from 1"),
        (
            {"expert_params": 1, "expert_us": {"fp17": POINTS}},
            r"hardware\.measured\.expert_us\.fp17: unknown precision; known: ",
        ),
        (
            {"copy_us": {"pcie": []}},
            r"hardware\.measured\.copy_us\.pcie=\[\] must be a list of \[argument",
        ),
        *(
            ({"copy_us": {"pcie": points}}, r"must be a list of \[argument, microseconds\]$")
            for points in ([[1]], [[1, 2], [3]], [[1, 2], "34"], [[1, 2, 3]], "12", {1: 2})
        ),
        ({"copy_us": {"pcie": [[1, "2us"]]}}, r"copy_us\.pcie='2us' must be a number"),
        (
            {"copy_us": {"pcie": [[2, 1], [2, 3]]}},
            r"copy_us\.pcie: the arguments \[2, 2\] must ascend",
        ),
        ({"dense_us": 0}, r"dense_us=0 must be a list of"),
        (
            {"dense_params": 1, "dense_us": [[0, -1]]},
            r"dense_us=-1 must be from 0 to 1e\+09; give microseconds",
        ),
    ],
)
def test_a_table_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Measured(**arguments)


def test_parts_of_experts_come_as_scattered_rows_and_whole_ones_as_copies() -> None:
    """A service of rows takes the overhead of a copy of nothing, and their bytes at their rate."""
    plain = machine().links[0]
    scattered = Scattered("staged", 1, 10, [["staged", 1, 10, 0.5]])
    hardware = machine(links=(replace(plain, scattered=scattered),))
    whole = Roofline(small(), hardware, ("fp16",)).model.expert_bytes("fp16")
    one = Roofline(small(), hardware, ("fp16",), moves_in_part=True)
    chosen = machine(links=(replace(plain, scattered=replace(scattered, choose_us=0.7)),))
    slower = Roofline(small(), chosen, ("fp16",), moves_in_part=True)
    assert slower.hop_ns(0, 1_000) == one.hop_ns(0, 1_000) + 700
    assert slower.hop_ns(0, whole) == one.hop_ns(0, whole)
    assert one.hop_ns(0, whole) == plain.hop_ns(whole)
    assert one.hop_ns(0, 1_000) == plain.hop_ns(0) + 2_000
    assert Roofline(small(), hardware, ("fp16",)).hop_ns(0, 1_000) == plain.hop_ns(1_000)


# Contracts: C64
def test_an_engine_that_searches_its_slots_takes_longer_for_every_load() -> None:
    """30 slots of 0.05 us are 1.5 us, which draw no bandwidth; a measured copy has them, too."""
    plain, size = machine().links[0], small().expert_bytes("fp16")
    hardware = machine(links=(replace(plain, slot_us=0.05),))
    one, known = durations(hardware), {"pcie": [[1, 9.0]]}
    assert (one.hop_ns(0, size), one.latency_ns(0)) == (plain.hop_ns(size), plain.latency_ns)
    one.slots = 30
    assert one.hop_ns(0, size) == plain.hop_ns(size) + 1_500
    assert one.latency_ns(0) == plain.latency_ns + 1_500
    measured = durations(replace(hardware, measured=Measured(copy_us=known)))
    measured.slots = 30
    assert measured.hop_ns(0, size) == 9_000 + 1_500
    free = durations(hardware, free_copies=True)
    free.slots = 30
    assert (free.hop_ns(0, size), free.latency_ns(0)) == (0, 0)


def test_a_run_on_such_an_engine_searches_as_many_slots_as_its_pools_have() -> None:
    """Half of Mixtral's experts are 4 a layer; what is loaded on demand has two slots in all."""
    words = ("model=tiny_gates_half_mixtral", "trace=tiny_mixtral", "budget.resident_share=0.5")
    words = (*words, "hardware=h100_sxm_pcie5")
    slots = []
    for system in ("lru", "load_on_demand"):
        one, other = (
            prepared([f"system={system}", *words, f"+hardware.links.pcie.slot_us={each}"])
            for each in (0, 2)
        )
        size = one.controller.geometry.variant_bytes[0]
        more = other.durations.hop_ns(0, size) - one.durations.hop_ns(0, size)
        slots.append(more / 2_000)
    assert slots == [64, 2]


def test_slots_are_searched_at_the_device_alone() -> None:
    links = {"pcie": Link(10.0, 0.5, 6.0), "nvme": Link(5.0, 1.0, 0.0, slot_us=1)}
    with pytest.raises(
        ValueError, match=r"links\.nvme\.slot_us=1: .* where pcie ends; give it ther"
    ):
        machine(links=links)


def test_a_table_of_a_link_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"copy_us has nvme; the links of m are pcie"):
        machine(measured=Measured(copy_us={"nvme": POINTS}))


# Gates run ahead


def test_gates_that_are_run_ahead_on_the_device_delay_every_gate() -> None:
    """Two routers of 4 x 8000 parameters: 128,000 B at 100 B/ns take 1280 ns, and two launches."""
    wide = small(hidden=8000)
    hardware = machine(forecasting=Forecasting("compute"))
    plain, ahead = durations(hardware, wide), durations(hardware, wide, forecast_sites=2)
    assert [b - a for a, b in zip(plain.dense_ns(STEP), ahead.dense_ns(STEP), strict=True)] == [
        3_280
    ] * 3
    assert ahead.prediction_ns == 0
    assert not hardware.predicts_later(2)


def test_gates_that_are_run_ahead_on_the_cpu_answer_later() -> None:
    """64,000 parameters: 128,000 B at 10 B/ns take 12.8 us, and the round trip 30 us.

    Both are added to the ``prediction_us`` that is set anyway.
    """
    cpu = Cpu(
        peak_tflops=1.0,
        flops_efficiency=0.5,
        memory_gb_per_s=20.0,
        memory_efficiency=0.5,
        round_trip_us=30.0,
    )
    hardware = machine(forecasting=Forecasting("cpu"), cpu=cpu, prediction_us=2.0)
    ahead = durations(hardware, small(hidden=8000), forecast_sites=2)
    assert ahead.prediction_ns == 2_000 + 12_800 + 30_000
    assert ahead.dense_ns(STEP) == durations(machine(), small(hidden=8000)).dense_ns(STEP)
    assert hardware.predicts_later(2)
    assert not machine(forecasting=Forecasting("cpu"), cpu=cpu).predicts_later(0)


# Dequantisation


def test_weights_that_are_written_out_before_use_are_read_twice_and_written_once() -> None:
    """384,000 parameters in int4: 192,000 B are read and 768,000 B written: 9600 ns, and a launch.

    Reading them then takes 7680 ns.
    """
    model = small(expert_intermediate=16_000)
    written = durations(machine(compute=compute(dequantise_launches=1)), model, ("fp16", "int4"))
    fused = durations(machine(), model, ("fp16", "int4"))
    assert fused.expert_ns(1, 0, 1) == 1_920 + 3_000
    assert written.expert_ns(1, 0, 1) == (9_600 + 1_000) + (7_680 + 3_000)
    assert written.expert_ns(0, 0, 1) == fused.expert_ns(0, 0, 1) == 7_680 + 3_000


# One memory

CPU = Cpu(
    peak_tflops=1.0,
    flops_efficiency=0.5,
    memory_gb_per_s=60.0,
    memory_efficiency=0.5,
    round_trip_us=0.0,
)


# Contracts: C73
@pytest.mark.parametrize(("gives", "cpu", "link"), [(31.5, 27, 4.5), (20.0, 16, 4.0)])
def test_who_draws_from_one_memory_is_slowed_as_though_all_drew_at_once(
    gives: float, cpu: int, link: float
) -> None:
    """The CPU could draw 30 GB/s and the link 5. Of 31.5 each gets nine tenths. A memory of 20 is
    asked for 20 and 5, so each gets four fifths of that.

    Without the CPU the link gets all that it asks for.
    """
    hardware = machine(cpu=CPU, shared_memory=SharedMemory(gives, ("cpu", "pcie")))
    both, alone = hardware.together(True), hardware.together(False)
    assert both.cpu is not None
    assert both.cpu.operation_ns(0, cpu * 1_000) == 1_000
    assert both.links[0].bytes_per_s == pytest.approx(link * 1e9)
    assert (alone.links, alone.cpu) == (hardware.links, hardware.cpu)
    assert both.compute == hardware.compute, "the device has a memory of its own"


@pytest.mark.parametrize(("gives", "compute", "link"), [(100.8, 96, 4.8), (20.0, 16, 4.0)])
def test_on_unified_memory_the_drive_takes_its_part_from_the_device(
    gives: float, compute: int, link: float
) -> None:
    """The device could draw 100 GB/s and the drive 5. Of 100.8 both get 0.96; a memory of 20 is
    asked for 20 and 5.
    """
    hardware = machine(shared_memory=SharedMemory(gives, ("compute", "pcie"))).together(False)
    assert hardware.compute.operation_ns(0, compute * 1_000, 0) == 1_000
    assert hardware.links[0].bytes_per_s == pytest.approx(link * 1e9)


def test_a_link_that_is_much_faster_than_the_memory_is_slowed_to_its_part() -> None:
    """The device draws 100 GB/s and the link 10,000. Of 20 GB/s both get half. Its efficiency would
    be 0.0005, which no figure may be: a search for a fast link ended with that refusal.
    """
    fast = {"pcie": Link(20_000.0, 0.5, 6.0)}
    one = machine(links=fast, shared_memory=SharedMemory(20.0, ("compute", "pcie")))
    slowed = one.together(False)
    assert slowed.links[0].bytes_per_s == pytest.approx(10e9)
    assert slowed.compute.operation_ns(0, 10_000, 0) == 1_000


def test_engines_with_a_pace_of_their_own_are_slowed_as_their_link_is() -> None:
    """C73: the link asks for 10 of 20 GB/s and the device for 20. Each gets two thirds, and so does one
    engine of four: a link that was slowed below the pace of an engine was refused.
    """
    lanes = {"ufs": Link(10.0, 1.0, 6.0, engines=4, engine_gb_per_s=9.0)}
    shared = SharedMemory(20.0, ("compute", "ufs"))
    slowed = machine(links=lanes, shared_memory=shared).together(False).links[0]
    assert slowed.bytes_per_s == pytest.approx(20e9 / 3)
    assert slowed.engine_gb_per_s == pytest.approx(6.0)


def test_a_memory_that_is_fast_enough_for_all_slows_nobody() -> None:
    hardware = machine(cpu=CPU, shared_memory=SharedMemory(200.0, ("compute", "cpu", "pcie")))
    assert hardware.together(True) == replace(hardware, shared_memory=None)
    assert machine().together(True) == machine()


def test_a_memory_is_shared_by_the_parties_in_use_if_there_are_several() -> None:
    three = SharedMemory(84.0, ("compute", "cpu", "pcie"), "as_drawn")
    hardware = machine(cpu=CPU, shared_memory=three)
    assert hardware.together(True) == hardware
    two = replace(three, parties=("compute", "pcie"))
    assert hardware.together(False) == replace(hardware, shared_memory=two)
    alone = machine(cpu=CPU, shared_memory=SharedMemory(1.0, ("cpu", "pcie")))
    assert alone.together(False) == replace(alone, shared_memory=None), "however slow it is"
    # 105 GB/s are asked of as many.
    enough = machine(shared_memory=SharedMemory(105.0, ("compute", "pcie")))
    assert enough.together(False) == replace(enough, shared_memory=None)


# What no machine can be


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: machine(reserved_gib=1.5),
            r"hardware\.reserved_gib=1\.5 exceeds hardware\.memory_gib=1",
        ),
        (
            lambda: machine(forecasting=Forecasting("cpu")),
            r"forecasting\.on=cpu, but hardware m has no cpu section",
        ),
        (
            lambda: machine(shared_memory=SharedMemory(9.0, ("cpu", "pcie"))),
            r"parties has cpu; those of m are compute, p",
        ),
        (
            lambda: SharedMemory(9.0, ("cpu",)),
            r"shared_memory\.parties=\('cpu',\) must name two or more",
        ),
        (lambda: SharedMemory(-9.0, ("cpu", "pcie")), r"shared_memory\.gb_per_s=-9\.0 must be"),
        (lambda: Forecasting("npu"), r"hardware\.forecasting\.on='npu'; allowed: compute, cpu"),
        (lambda: machine(forecasting="cpu"), r"hardware\.forecasting of m must be a section"),
        (
            lambda: compute(dequantise_launches=-1),
            r"hardware\.compute\.dequantise_launches=-1 must be",
        ),
    ],
)
def test_a_machine_that_cannot_be_is_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
