"""What a run adds to loops: known additions are found again in the tables of a simulated run."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest

from real.calibration.facts import Facts, as_json, read_facts
from real.calibration.fit import choose_ns, experts_of, joint_ns
from real.calibration.in_run import (
    InParts,
    InRun,
    Loops,
    Surplus,
    by_length,
    in_parts,
    in_run,
    surplus,
)
from sim.answers.time_parts import Tables
from sim.engine.simulate import simulate
from sim.results.frames import Frames
from sim.results.run import Run
from sim.study.trials import prepared
from sim.values.types import Step

US = 1000
WORDS = (
    "hardware=rtx4090_pcie4",
    "model=tiny_gates_half_mixtral",
    "trace.max_sequences=1",
    "workload=hobbit_16_128",
    "workload.prompt_tokens=2",
    "workload.decode_tokens=8",
    "budget.resident_share=0.25",
    "hardware.host.sync_us=10",
    "hardware.host.issue_us=80",
    "hardware.host.wake_us=150",
    "hardware.host.post_us=25",
)
STEP = Step(0, 0, 1, (0,), 5, True, (), ())


@cache
def recorded(*words: str) -> tuple[Run, Tables]:
    run = prepared([*WORDS, *words])
    record = simulate(run.controller, run.workload, run.durations)
    frames = Frames(run.controller, run.workload, run.durations, record, run.hardware.link_names)
    wait = run.controller.loader.wait
    return run, Tables(frames.lookups, frames.transfers, frames.tokens, wait)


def loops_of(run: Run, operation_ns: float, service_ns: float) -> Loops:
    """Loops in which everything takes so much less than in the run."""
    times, model = run.durations, run.model
    size = run.controller.geometry.variant_bytes[0]
    return Loops(
        model.block_params(0),
        times.dense_ns(STEP)[0] - operation_ns,
        size,
        times.expert_ns(0, 0, 1) - operation_ns,
        0.0,
        115 * US,
        80 * US,
        [(1, 0.0), (size, times.hop_ns(0, size) - service_ns)],
    )


def test_what_a_run_adds_to_operations_waits_and_services_is_found_again() -> None:
    run, tables = recorded("system=lru")
    found = surplus([in_run(tables, run.model.block_params(0))], loops_of(run, 9 * US, 70 * US))
    assert found.operation_ns == pytest.approx(9 * US, abs=200)  # contexts grow
    assert [ns for _, ns in found.wakes] == pytest.approx([150 * US] * len(found.wakes), abs=500)
    assert found.service_ns == pytest.approx(70 * US, abs=1)
    assert (found.byte_ns, found.slot_ns) == (0, 0)


def test_a_run_that_takes_no_longer_than_loops_adds_nothing() -> None:
    run, tables = recorded("system=lru")
    loops = loops_of(run, -50 * US, -70 * US)
    found = surplus([in_run(tables, run.model.block_params(0))], loops)
    assert (found.operation_ns, found.service_ns) == (0.0, 0.0)


def test_operations_that_are_given_together_leave_the_rest_of_a_gate_to_the_host() -> None:
    """A machine whose operations take 40 us more alone: its run has 115 us of gaps a gate."""
    run, tables = recorded("system=lru")
    loops = replace(loops_of(run, -40 * US, 0), joint_ns=40.0 * US, gaps_ns=7.0, issue_ns=7.0)
    shown = in_run(tables, run.model.block_params(0))
    found = surplus([shown], loops)
    assert found.operation_ns == -40 * US
    # One run alone gives them to the bytes.
    read = shown.needs * shown.expert_bytes + 2 * shown.dense_params
    assert found.gaps_ns == 0
    assert found.read_ns * read == pytest.approx(115 * US, abs=600)  # contexts grow
    # Waits add 150 us, and hide 80 between a gate and its first operation.
    assert [ns for _, ns in found.wakes] == pytest.approx([70 * US] * len(found.wakes), abs=1500)
    # Another run with a gate of half the bytes and the same gaps gives them to the host.
    half = replace(
        shown, expert_bytes=shown.expert_bytes // 2, dense_params=shown.dense_params // 2
    )
    least_ns = loops.work_ns(half.needs, half.dense_params, half.expert_bytes)
    gate_ns = least_ns - 3 * loops.joint_ns + read * found.read_ns
    both = surplus([shown, replace(half, gate_ns=gate_ns)], loops)
    assert both.gaps_ns == pytest.approx(115 * US, abs=600)
    assert both.read_ns * read == pytest.approx(0, abs=600)


def test_how_much_less_an_expert_takes_beside_others_is_the_line_through_their_counts() -> None:
    """One takes 100, three take 280: each more 90, so 10 less than by itself."""
    known = replace(facts(), dense=50.0, experts={"fp16": [(1, 100.0)]})
    known = replace(known, together=[(1, 100.0), (2, 185.0), (3, 280.0)])
    assert joint_ns(known, "fp16") == pytest.approx(10.0)
    assert joint_ns(replace(known, together=[]), "fp16") == 0.0
    # What takes longer together is no launch that is saved.
    assert joint_ns(replace(known, together=[(1, 100.0), (2, 250.0)]), "fp16") == 0.0
    # And no operation takes less than nothing.
    assert 0 < joint_ns(replace(known, together=[(1, 9e9), (2, 9e9)]), "fp16") < known.dense


def test_each_run_has_one_vote_and_other_sizes_their_share_of_what_grows() -> None:
    """An expert of half the size: 100 are fixed, and 150 of the other 300: 250 instead of 400.

    Gates of 2 needs: gaps 10, dense 200, experts 800 or 500, and 3 operations' surplus.
    """
    loops = Loops(10, 200.0, 1000, 400.0, 100.0, 10.0, 8.0, [(0, 0.0), (1000, 1000.0)])
    runs = [
        InRun(1000, 2, 10, 10 + 200 + 800 + 3 * 20, [(900, 40.0)], 1150.0, None),
        InRun(500, 2, 10, 10 + 200 + 500 + 3 * 30, [(600, 60.0), (70, 1.0)], 560.0, 540.0),
        InRun(500, 2, 10, 10 + 200 + 500 + 3 * 70, [(1000, 90.0)], 560.0, 540.0),
    ]
    # Waits from 512 to 1023 make one point: the median length, and the median time.
    wakes = [(70, 1.0 + 8), (900, 60.0 + 8)]
    # Services of 1,000 B are 150 longer, of 500 B 50: a line would begin below 0, so bytes alone.
    found = surplus(runs, loops)
    assert (found.operation_ns, found.wakes) == (30.0, wakes)
    assert (found.service_ns, found.slot_ns) == (0, 0)
    assert found.byte_ns == pytest.approx((1000 * 150 + 2 * 500 * 50) / (1000**2 + 2 * 500**2))


def test_what_bytes_and_slots_add_to_services_is_told_apart_where_runs_differ_in_both() -> None:
    """A service has 50 more, 0.1 for a byte and 0.5 for each of 100 or 400 slots."""
    loops = Loops(10, 200.0, 1000, 400.0, 100.0, 10.0, 8.0, [(0, 0.0), (1000, 1000.0)])

    def run(size: int, slots: int) -> InRun:
        took = size + 50 + 0.1 * size + 0.5 * slots
        return InRun(size, 2, 10, 1000.0, [(900, 40.0)], took, took, slots)

    found = surplus([run(1000, 100), run(500, 100), run(500, 400)], loops)
    told = (found.service_ns, found.byte_ns, found.slot_ns)
    assert told == (pytest.approx(50), pytest.approx(0.1), pytest.approx(0.5))
    # Two runs of one size tell slots, one run tells neither.
    two = surplus([run(500, 100), run(500, 400)], loops)
    assert (two.service_ns, two.byte_ns, two.slot_ns) == (
        pytest.approx(100),
        0,
        pytest.approx(0.5),
    )
    one = surplus([run(500, 400)], loops)
    assert (one.service_ns, one.byte_ns, one.slot_ns) == (pytest.approx(300), 0, 0)


def test_waits_of_about_one_length_make_one_point_and_rare_lengths_none() -> None:
    """Ten waits of 5 to 7, and one of 100."""
    waits = [(5, 10.0)] * 4 + [(7, 30.0)] * 6 + [(100, 900.0)]
    assert by_length(waits) == [(7, 30.0)]
    assert by_length([(2, 1.0), (9, 3.0)]) == [(2, 1.0), (9, 3.0)]


def test_a_run_of_parts_tells_what_choosing_rows_and_computing_some_of_them_takes() -> None:
    """Rows are chosen in 700 us, and an expert takes what it takes in the run."""
    rates = [["staged", 4, 819200, 3.0]]
    part = "{_target_: sim.machine.Scattered, form: staged, threads: 4, piece_bytes: 819200"
    part += ", rates: [[staged, 4, 819200, 3.0]], choose_us: 700}"
    words = ("system=floe", "payload=active_share_nominal", "budget.resident_share=0.6")
    run, tables = recorded(*words, f"+hardware.links.pcie.scattered={part}")
    dense_params, gather = run.model.block_params(0), ("staged", 4, 819200)
    found = in_parts(tables, "floe", dense_params, run.controller.slots.count, gather)
    known = replace(
        facts(),
        copy=[(0, float(run.hardware.hop_ns(0, 0)))],
        dense=float(run.durations.dense_ns(STEP)[0]),
        host={"sync": 10 * US, "issue": 80 * US, "post": 25 * US},
        runs=[],
        parts=[found],
    )
    added = Surplus(0.0, [], 0.0, 0.0, 0.0)
    assert choose_ns(known, rates, added) == pytest.approx(700 * US, abs=2)
    params = {"dense": dense_params, "expert": run.model.expert_params}
    ((rows, ns),) = experts_of(known, "fp16", params, added)["floe"]
    assert (rows, ns) == (1, pytest.approx(run.durations.expert_ns(0, 0, 1), rel=0.02))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("system=mixtral_offloading",), "waits for all of a gate's loads .*, not as_ready"),
        (("system=load_on_demand",), "0 waited for nothing and 112 for loads"),
    ],
)
def test_a_run_that_cannot_tell_is_refused(words: tuple[str, ...], told: str) -> None:
    run, tables = recorded(*words)
    with pytest.raises(ValueError, match=told):
        in_run(tables, run.model.block_params(0))


RUN = InRun(8192, 2, 10, 100.0, [(50, 200.0)], 8.0, None)


def facts() -> Facts:
    return Facts(
        copy=[(4096, 5.0), (8192, 7.0)],
        experts={"fp16": [(1, 9.0)]},
        expert_bytes={"fp16": 8192},
        runs=[RUN],
        parts=[InParts("floe", 2, 10, 100.0, "staged", 4, 800, 2048, 9.0, 76)],
        device={"fp16": 3.0},
    )


def test_a_number_of_facts_that_is_beyond_all_floats_is_refused_by_its_key(tmp_path: Path) -> None:
    place, told = tmp_path / "facts.json", as_json(facts())
    place.write_text(json.dumps(told).replace("100.0", "1e999"))
    with pytest.raises(ValueError, match=r"runs\.0\.gate_ns=inf must be finite"):
        read_facts(place)


def test_facts_are_read_as_they_were_written_and_older_ones_have_no_runs(tmp_path: Path) -> None:
    place, told = tmp_path / "facts.json", as_json(facts())
    place.write_text(json.dumps(told | {"figures": {"of": "no concern"}}))
    assert json.loads(json.dumps(as_json(read_facts(place)))) == json.loads(json.dumps(told))
    del told["runs"]
    place.write_text(json.dumps(told))
    assert read_facts(place).runs == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"copy": []}, "it has no copies or no experts"),
        ({"copy": [[1]]}, "are no points"),
        ({"runs": [{"size": 1}]}, "unexpected keyword"),
        ({"copy": [[0, 5.0]]}, "a copy of no bytes"),
        ({"copy": [[4096, float("nan")]]}, "NaN is not a JSON number"),
        ({"device": {"fp16": float("nan")}}, "NaN is not a JSON number"),
        (
            {"runs": [{**asdict(RUN), "gate_ns": "1e999"}]},
            r"runs\.0\.gate_ns='1e999' must be a num",
        ),
        ({"experts": {"fp16": [[1, 0.0]]}}, "are no points"),
        ({"experts": {"fp16": [[4, 9.0]]}}, "experts in fp16 need a time of one row"),
        ({"expert_bytes": {"int4": 8192}}, "experts in fp16 need .* their bytes"),
        ({"dense": -1.0}, "dense=-1.0 is no time"),
        ({"operation": "soon"}, "operation='soon' must be a number"),
        ({"host": {"nap": 7}}, "nap=7 is no time"),
    ],
)
def test_what_holds_no_facts_is_refused(
    change: dict[str, object], told: str, tmp_path: Path
) -> None:
    place = tmp_path / "facts.json"
    place.write_text(json.dumps(as_json(replace(facts())) | change))
    with pytest.raises(ValueError, match=told):
        read_facts(place)
