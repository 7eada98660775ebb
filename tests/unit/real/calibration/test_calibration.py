"""A machine's file from what was measured: figures by hand, and a file that the simulator takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir

from real.calibrate import main, parse
from real.calibration.calibration import calibrate
from real.calibration.facts import Facts
from real.calibration.fit import figures, fit_line, roofline_ns
from real.calibration.in_run import InRun
from real.calibration.measure import Plan
from real.calibration.write import Gathers, Machine, gathers_of, hardware_text
from real.cuda.runtime import CudaRuntime
from real.setup.prepare import Prepared, prepare_replay
from real.validation.cases import request_of
from sim.engine.simulate import simulate
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.sections import make_object

MACHINE = Machine(
    "test_machine",
    "cpu",
    "a processor",
    "torch 9",
    "2026-01-02",
    "storage",
    "a file",
    8 << 30,
    1 << 30,
    {"expert": 1_000_000.0, "dense": 500_000.0, "tail": 900_000.0},
)
PARAMS = 1_000_000.0


def facts() -> Facts:
    """Facts of a machine whose figures are known.

    Its link has 2 GB/s after 50 us. Experts of 2 MB are read at 10 GB/s or computed at 100 GFLOP/s,
    in 3 launches of 1 us.
    """
    return Facts(
        copy=[(size, 50_000 + size / 2) for size in (4096, 65536, 1 << 20, 2_000_000)],
        overlapped=[(2_000_000, 1.2 * (50_000 + 1_000_000))],
        experts={
            "fp16": [(rows, 3_000 + max(200_000, rows * 20_000)) for rows in (1, 2, 64)],
            "int4": [(1, 60_000.0), (64, 1_283_000.0)],
        },
        expert_bytes={"fp16": 2_000_000, "int4": 562_500},
        beside_copy=223_300.0,
        on_cpu=[(1, 700_000.0)],
        dense=40_000.0,
        tail=90_000.0,
        operation=1_000.0,
        host={"sync": 1000, "issue": 2000, "wake": 3000, "post": 4000},
    )


def test_a_straight_line_is_found_again() -> None:
    line = fit_line(facts().copy)
    assert line.overhead_ns == pytest.approx(50_000, rel=1e-6)
    assert line.per_s == pytest.approx(2e9, rel=1e-6)
    assert line.worst < 1e-9


def test_an_overhead_below_nothing_is_nothing_and_the_error_says_what_that_costs() -> None:
    """Small copies take 1 ns a byte and large ones twice that, so no line fits."""
    line = fit_line([(1000, 1000.0), (100_000, 200_000.0)])
    assert line.overhead_ns == 0
    assert line.per_s == pytest.approx(1e9 * (1 + 0.25) / (1 + 0.5))
    assert line.residual > 0.1


def test_a_busy_machine_on_which_more_bytes_come_sooner_has_an_error_that_says_so() -> None:
    line = fit_line([(1000, 5000.0), (2000, 100.0), (4000, 10.0)])
    assert line.per_s > 0
    assert line.residual > 0.9


def test_the_roofline_is_found_again() -> None:
    found = figures(facts(), PARAMS, ["fp16", "int4"], 3)
    assert found.memory_bytes_per_s == pytest.approx(2_000_000 / 200_000 * 1e9)
    assert found.flops_per_s == pytest.approx(2 * 64 * PARAMS / (64 * 20_000) * 1e9)
    assert not found.dequantises
    assert roofline_ns(found, 2_000_000, PARAMS, 1) == pytest.approx(203_000)
    assert found.expert_worst < 1e-9


def test_fewer_bits_that_take_longer_are_written_out_first() -> None:
    slow = replace(facts(), experts={**facts().experts, "int4": [(1, 400_000.0)]})
    assert figures(slow, PARAMS, ["fp16", "int4"], 3).dequantises


def written(
    folder: Path,
    machine: Machine = MACHINE,
    of: Facts | None = None,
    gathers: Gathers | None = None,
) -> Any:
    """The machine of the file, as the simulator loads it."""
    (folder / "hardware").mkdir(exist_ok=True)
    of = of or facts()
    found = figures(of, PARAMS, ["fp16", "int4"], 3)
    text = hardware_text(machine, found, of, ["reads of the drive"], gathers)
    (folder / "hardware" / f"{machine.name}.yaml").write_text(text)
    with initialize_config_dir(str(folder), version_base="1.3"):
        return make_object(compose(f"hardware/{machine.name}")["hardware"])


def test_the_file_holds_what_was_measured(tmp_path: Path) -> None:
    machine = written(tmp_path)
    assert [machine.hop_ns(0, size) for size, _ in facts().copy] == [
        round(ns) for _, ns in facts().copy
    ]
    assert machine.links[0].hop_ns(1_000_000) == pytest.approx(550_000, abs=2)
    assert (machine.validated, machine.preset, machine.memory_gib, machine.reserved_gib) == (
        "none",
        "calibrated",
        8,
        1,
    )
    assert machine.host.costs.wake_ns == 3000
    assert machine.compute.operation_ns(0, 2_000_000, 3) == pytest.approx(203_000, abs=2)
    text = (tmp_path / "hardware" / "test_machine.yaml").read_text()
    assert machine.beside == {"compute": {"storage": 1.1}, "storage": {"compute": 1.2}}
    assert "# Left out: reads of the drive" in text


def test_its_tables_serve_every_model_by_its_sizes(tmp_path: Path) -> None:
    """A layer of 0.5 million parameters takes 40 us, a head of 0.9 takes 90, an expert of one 203.

    No line through them has a part that is the same for all, so the times go by parameters.
    """
    machine = written(tmp_path)
    assert machine.measured.expert_us["int4"] == [[1, 60.0], [64, 1283.0]]
    assert machine.measured.fixed_us == 0
    assert machine.measured.expert_ns("int4", PARAMS / 2, 1) == 30_000
    assert machine.measured.dense_ns(PARAMS, 7) == 80_000


def test_experts_given_together_take_less_each_and_the_host_what_is_left_of_a_gate(
    tmp_path: Path,
) -> None:
    """Two experts take 203 us and 193 more: 10 less. A gate of two took 440 us: 386 are experts', 30
    the layer's, 9 the host's, and 15 of its 5 MB. One of half the experts took 231: 183, 30, 9 and
    9 of 3 MB. Another waited 5 us longer, for 1 ms."""
    waits = [(1_000_000, 5_000.0)]
    runs = [
        InRun(2_000_000, 2, 500_000, 440_000.0, waits, 1_050_000.0, None),
        InRun(1_000_000, 2, 500_000, 231_000.0, waits, 550_000.0, None),
    ]
    of = replace(facts(), together=[(1, 203_000.0), (2, 396_000.0)], runs=runs)
    machine = written(tmp_path, of=of)
    assert machine.measured.expert_us["fp16"] == [[1, 199.0], [2, 203.0], [64, 1283.0]]
    assert machine.measured.expert_us["int4"] == [[1, 51.688], [64, 1283.0]]
    assert machine.measured.dense_us == [[1, 33.0]]
    assert machine.host.costs.issue_ns == pytest.approx(9_000, abs=1)
    assert machine.host.costs.waking_ns(1_000_000) == pytest.approx(14_000, abs=1)
    assert machine.hop_ns(0, 2_000_000) == 1_050_000
    assert (machine.host.costs.sync_ns, machine.host.costs.post_ns) == (0, 0)
    text = (tmp_path / "hardware" / "test_machine.yaml").read_text()
    assert "given together take 10 us less each, and 3000 us more for each 10**9 bytes" in text


def test_an_expert_on_the_cpu_takes_what_runs_say_where_one_was_made() -> None:
    """Of 700 us in a loop, or 900 in a run, hand-overs take twice the smallest copy's 52 us."""
    hand_over_ns = 2 * facts().copy[0][1]
    for of, took_ns in ((facts(), 700_000), (replace(facts(), cpu_in_run=900_000.0), 900_000)):
        rate = figures(of, PARAMS, ["fp16", "int4"], 3).cpu_bytes_per_s
        assert rate == pytest.approx(2_000_000 / (took_ns - hand_over_ns) * 1e9)


def test_what_runs_add_goes_to_operations_waits_and_services(tmp_path: Path) -> None:
    """A gate of two needs took 54 us beyond its parts: 18 us an operation.

    After a wait it took 30 us more. A service of 2 MB took 1,100 us and not 1,050. Computing beside
    copies took 223.3 us for 203, and both are 18 us longer.
    """
    dense, two = 40_000, 2 * 203_000
    gate_ns, waits = 7_000 + dense + two + 54_000, [(900_000, 28_000.0)]
    run = InRun(2_000_000, 2, 500_000, gate_ns, waits, 1_100_000.0, None)
    machine = written(tmp_path, of=replace(facts(), runs=[run]))
    assert machine.measured.expert_us["int4"] == [[1, 78.0], [64, 1301.0]]
    assert machine.measured.dense_us == [[1, 58.0]]
    assert machine.measured.fixed_us == 18
    assert machine.hop_ns(0, 2_000_000) == 1_100_000
    assert machine.host.costs.wake_ns == 30_000
    assert machine.beside["compute"]["storage"] == pytest.approx(
        (223.3 + 18) / (203 + 18), abs=1e-3
    )


def test_the_devices_clock_tells_precisions_apart_that_loops_do_not(tmp_path: Path) -> None:
    """An expert of fp16 takes 203 us in a loop, 150 of them on the device, and one of int4 110.

    So the host has 53 us of either, and int4 takes 163. More rows stay as they were measured.
    """
    known = replace(facts(), device={"fp16": 150_000.0, "int4": 110_000.0, "int2": 1.0})
    machine = written(tmp_path, of=known)
    assert machine.measured.expert_us["int4"] == [[1, 163.0], [64, 1283.0]]
    assert machine.measured.expert_us["fp16"][0] == [1, 203.0]


def test_what_runs_add_by_slots_and_by_the_length_of_a_wait_goes_into_the_file(
    tmp_path: Path,
) -> None:
    """Loads of 2 MB took 50 us more on a device of 110 slots than on one of 10: 0.5 for each."""
    gate_ns = 7_000.0 + 40_000 + 2 * 203_000
    runs = [
        InRun(2_000_000, 2, 500_000, gate_ns, waits, 1_055_000.0 + 500 * slots, None, slots)
        for slots, waits in ((10, [(900_000, 18_000.0)]), (110, [(5_000_000, 98_000.0)]))
    ]
    machine = written(tmp_path, of=replace(facts(), runs=runs))
    assert machine.links[0].slot_us == pytest.approx(0.5)
    assert machine.hop_ns(0, 2_000_000) == 1_055_000
    assert machine.host.costs.wakes == ((900_000, 20_000), (5_000_000, 100_000))


def test_the_probes_gathers_go_into_the_link(tmp_path: Path) -> None:
    rows = [
        {"gather": form, "threads": threads, "columns": 50, "bytes_per_s": rate}
        for form, threads, rate in (("staged", 1, 3e9), ("staged", 4, 5e9), ("zero_copy", 1, 4e10))
    ]
    link = written(tmp_path, gathers=gathers_of(rows, 100)).links[0]
    assert (link.scattered.form, link.scattered.threads, link.scattered.piece_bytes) == (
        "staged",
        4,
        5000,
    )
    assert link.scattered.bytes_per_s == 5e9
    assert replace(link.scattered, form="zero_copy", threads=1).bytes_per_s == 4e10
    assert gathers_of([], 100) is None


def test_a_gather_slower_than_any_machines_makes_a_file_that_can_be_read(tmp_path: Path) -> None:
    """A thread that wakes late for 400 bytes: 18 kB a second, which is 0.0 GB/s when rounded."""
    rows = [{"gather": "staged", "threads": 1, "columns": 1, "bytes_per_s": 17922.0}]
    link = written(tmp_path, gathers=gathers_of(rows, 64)).links[0]
    assert link.scattered.bytes_per_s == 1e6


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["name=x", "seconds=3601"], "seconds=3601 must be at most 3600"),
        (["name=h200_sxm_pcie5"], "must be a new file"),
        (["name"], "'name' is no KEY=VALUE"),
    ],
)
def test_a_wrong_word_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize("device", ["cpu", "host"])
def test_this_machine_is_measured_and_then_simulated(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hardware").mkdir()
    output, facts_file = tmp_path / "hardware" / "here.yaml", tmp_path / "facts.json"
    words = [
        f"device={device}",
        "name=here",
        "size=tiny",
        f"output={output}",
        f"facts={facts_file}",
        f"engine.store_dir={tmp_path / 'stores'}",
        "engine.source=buffered",
    ]
    assert main(words) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    assert f"next: moelab run system=lru hardware=here 'hydra.searchpath=[{tmp_path}]'" in told
    cfg, name = configure(
        "system=lru",
        "hardware=here",
        f"hydra.searchpath=[file://{tmp_path}]",
        "model=tiny_mixtral",
        "trace.max_sequences=1",
        "workload=hobbit_16_128",
        "workload.decode_tokens=4",
    )
    run = build(cfg, name)
    assert run.hardware.name == "here"
    assert run.hardware.compute.memory_gb_per_s > 0
    assert simulate(run.controller, run.workload, run.durations).makespan_ns > 0


def test_what_a_machine_has_taken_is_asked_before_the_calibration_takes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [6 << 30]
    monkeypatch.setattr("real.calibration.calibration.available_bytes", lambda: left[0])
    monkeypatch.setattr("real.calibration.calibration.memory_bytes", lambda: 8 << 30)

    def measure(plan: Plan, say: object) -> tuple[Facts, Prepared]:
        left[0] = 1 << 30
        return facts(), prepare_replay(request_of(("device=null",), "lru", 0.5))

    monkeypatch.setattr("real.calibration.calibration.measure", measure)
    text, _ = calibrate(parse(["name=here", f"output={tmp_path / 'here.yaml'}"]), lambda told: None)
    assert "memory_gib: 8 " in text
    assert "reserved_gib: 2 " in text


def test_a_gpus_context_and_workspace_are_told_without_what_the_process_holds_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The CUDA runtime's arithmetic, with stand-ins for torch's calls.

    Of the memory 23 GiB are the process's own tensors, or kept for them. The context takes 0.5 GiB.
    The workspace of a stream's first product is 32 MiB of what is kept.
    """
    allocated, workspace, kept, context = [20 << 30], 32 << 20, 23 << 30, 1 << 29
    runtime = object.__new__(CudaRuntime)
    runtime.device = torch.device("cpu")
    answers: dict[str, Callable[[object], object]] = {
        "memory_allocated": lambda device: allocated[0],
        "memory_reserved": lambda device: kept,
        "mem_get_info": lambda device: ((80 << 30) - kept - context, 80 << 30),
        "stream": lambda stream: nullcontext(),
        "Stream": lambda device: FakeStream(),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(f"real.cuda.runtime.torch.cuda.{name}", answer)

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        allocated[0] += workspace
        return a

    monkeypatch.setattr("real.cuda.runtime.torch.matmul", product)
    assert runtime.memory() == (80 << 30, context + workspace)


class FakeStream:
    def synchronize(self) -> None: ...


def test_nothing_is_measured_that_would_have_no_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a new file in a folder that exists"):
        parse(["name=x", f"output={tmp_path / 'nowhere' / 'x.yaml'}"])
