"""What a run adds to loops: known additions are found again in the tables of a simulated run."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from real.calibration.facts import Facts, as_json, read_facts
from real.calibration.in_run import InRun, Loops, Surplus, in_run, surplus
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
    assert found.wake_ns == pytest.approx(150 * US, abs=500)
    assert found.service_ns == pytest.approx(70 * US, abs=1)


def test_a_run_that_takes_no_longer_than_loops_adds_nothing() -> None:
    run, tables = recorded("system=lru")
    loops = loops_of(run, -50 * US, -70 * US)
    found = surplus([in_run(tables, run.model.block_params(0))], loops)
    assert (found.operation_ns, found.service_ns) == (0.0, 0.0)


def test_each_run_has_one_vote_and_other_sizes_their_share_of_what_grows() -> None:
    """An expert of half the size: 100 are fixed, and 150 of the other 300: 250 instead of 400.

    Gates of 2 needs: gaps 10, dense 200, experts 800 or 500, and 3 operations' surplus.
    """
    loops = Loops(10, 200.0, 1000, 400.0, 100.0, 10.0, 8.0, [(0, 0.0), (1000, 1000.0)])
    runs = [
        InRun(1000, 2, 10, 10 + 200 + 800 + 3 * 20, 1100.0, 1030.0, None),
        InRun(500, 2, 10, 10 + 200 + 500 + 3 * 30, 900.0, 560.0, 540.0),
        InRun(500, 2, 10, 10 + 200 + 500 + 3 * 70, 1500.0, 620.0, 620.0),
    ]
    wakes = [one.waited_ns - one.gate_ns + 8 for one in runs]
    assert surplus(runs, loops) == Surplus(30.0, sorted(wakes)[1], 50.0)


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


def facts() -> Facts:
    return Facts(
        copy=[(4096, 5.0), (8192, 7.0)],
        experts={"fp16": [(1, 9.0)]},
        expert_bytes={"fp16": 8192},
        runs=[InRun(8192, 2, 10, 100.0, 200.0, 8.0, None)],
    )


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
    ],
)
def test_what_holds_no_facts_is_refused(
    change: dict[str, object], told: str, tmp_path: Path
) -> None:
    place = tmp_path / "facts.json"
    place.write_text(json.dumps(as_json(replace(facts())) | change))
    with pytest.raises(ValueError, match=told):
        read_facts(place)
