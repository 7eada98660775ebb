"""``python -m real.validate``: runs on a device beside the simulator's, and what it refuses."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import real.validation.cases as cases
from real.validate import main, parse
from real.validation.cases import Plan, order_of
from real.validation.constants import MeasuredDurations
from real.validation.validation import agree
from real.validation.validation import validate as run_all
from sim.process.interrupts import Terminated

WORDS = (
    "device=null",
    "trace.max_sequences=1",
    "+workload.prompt_tokens=12",
    "+workload.decode_tokens=14",
)


def validate(folder: Path, *words: str, status: int = 0, lengths: bool = True) -> dict[str, Any]:
    own = WORDS if lengths else WORDS[:2]
    arguments = [
        "systems=lru,hobbit",
        "budgets=0.25",
        "repeats=1",
        f"output_dir={folder}",
        *own,
        *words,
    ]
    assert main(arguments) == status
    found: dict[str, Any] = json.loads((folder / "validation.json").read_text())
    return found


def test_on_the_null_device_everything_is_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = validate(tmp_path / "v")
    for check in found["checks"]:
        assert check["first_difference"] is None
        assert check["nonconformance"] is None
        assert (check["makespan_error"], check["token_error"], check["forced"]) == (0, 0, 0)
        assert (check["total_error"], check["step_error"], check["controlled"]) == (0, 0, "holds")
    assert [case["error"] for case in found["cases"]] == [0, 0]
    assert [one["regret"] for one in found["rankings"]] == [0]
    out = capsys.readouterr().out
    assert "| lru | 25% |" in out
    assert "- hobbit: lossy (experts at low precision, experts skipped)" in out
    assert "- no time of paced_cpu was ever compared with a real machine's" in out
    assert (
        "with trace.max_sequences=1 +workload.prompt_tokens=12 +workload.decode_tokens=14"
        in found["labels"]
    )
    # The figure says it, too, in lines that fit it.
    assert "was ever compared" in (tmp_path / "v" / "predicted_measured.svg").read_text(
        encoding="utf-8"
    )
    assert {path.name for path in (tmp_path / "v").iterdir()} == {
        "validation.json",
        "validation.md",
        "predicted_measured.png",
        "predicted_measured.svg",
        "timelines.json",
    }
    assert (
        f"null: {found['facts']['runs on']}<"
        in (tmp_path / "v" / "predicted_measured.svg").read_text()
    )
    events = json.loads((tmp_path / "v" / "timelines.json").read_text())["traceEvents"]
    spans = [
        {
            (e["tid"], e["name"], e["ts"], e["dur"])
            for e in events
            if e["ph"] == "X" and e["pid"] == pid
        }
        for pid in (1, 2)
    ]
    assert spans[0] == spans[1] != set()


@pytest.mark.thorough
def test_a_prediction_that_is_off_shows_as_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        MeasuredDurations, "hop_ns", lambda self, link, moved: 2 * self._nominal.hop_ns(link, moved)
    )
    found = validate(tmp_path / "v")
    assert all(case["error"] > 0.2 for case in found["cases"])


def test_runs_for_which_no_time_is_left_are_told_and_the_report_is_of_the_others(
    tmp_path: Path,
) -> None:
    words = ["systems=lru", "budgets=0.25,0.5,0.75", "repeats=1", f"output_dir={tmp_path}"]
    asked, left = parse([*words, *WORDS]), iter([True, False])
    found = run_all(asked, Console(quiet=True), lambda: next(left))
    told = json.loads((tmp_path / "validation.json").read_text())
    assert told["facts"]["left out for time"] == "1 of 3 runs"
    assert [check["share"] for check in told["checks"]] == sorted(
        share for _, share, _ in order_of(asked.plan)[:2]
    )
    assert found.agrees
    assert found.stopped_by is None
    assert list(left) == [], "it is asked before each run but the first"


@pytest.mark.parametrize(
    ("differences", "shifts", "holds"),
    [
        ((None, None), (), True),
        ((None, "call 3"), (), False),
        ((None,), ((True, True), (False, False)), True),
        ((None,), ((True, True), (True, False)), False),
        (("call 3",), ((True, True),), False),
    ],
)
def test_runs_agree_if_no_answer_differs_and_nothing_lossless_shifts(
    differences: tuple[str | None, ...], shifts: tuple[tuple[bool, bool], ...], holds: bool
) -> None:
    """Of a shift: whether its system is lossless, and whether it is zero."""
    found: Any = [SimpleNamespace(first_difference=one) for one in differences]
    shown: Any = [SimpleNamespace(lossless=lossless, is_zero=zero) for lossless, zero in shifts]
    assert agree(found, shown) is holds


@pytest.mark.thorough
def test_a_simulator_that_decides_otherwise_is_told_with_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay gets another budget than the recorded run had."""
    prepare, asked = cases.prepare_replay, []

    def another(request: Any) -> Any:
        asked.append(request)
        if request.system == "lru" and len([one for one in asked if one.system == "lru"]) > 1:
            request.simulated.budget.resident_share = 0.5
        return prepare(request)

    monkeypatch.setattr(cases, "prepare_replay", another)
    found = validate(tmp_path / "v", status=1)
    lru = next(check for check in found["checks"] if check["system"] == "lru")
    assert lru["first_difference"].startswith("call ")
    assert lru["nonconformance"] is not None


@pytest.mark.parametrize(
    ("stop", "status", "why"),
    [
        (RuntimeError("the loader failed"), 1, "one failed: the loader failed"),
        pytest.param(
            Terminated(), 128 + signal.SIGTERM, "it was interrupted", marks=pytest.mark.thorough
        ),
    ],
)
def test_what_ends_the_runs_leaves_a_report_of_those_before_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stop: BaseException,
    status: int,
    why: str,
) -> None:
    measure_run, measured = cases.measure_run, []

    def fails_at_the_third(*arguments: Any) -> Any:
        if len(measured) == 2:
            raise stop
        measured.append(measure_run(*arguments))
        return measured[-1]

    monkeypatch.setattr("real.validation.validation.measure_run", fails_at_the_third)
    found = validate(tmp_path / "v", "repeats=2", status=status)
    assert found["facts"]["INCOMPLETE"] == f"2 of 4 runs; then {why}"
    assert [len(case["system"]) > 0 for case in found["cases"]] == [True, True]
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith(f"error: {why}; the report is of the runs before it")
    )


def test_a_first_run_that_fails_leaves_its_message_and_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_arguments: Any) -> Any:
        raise RuntimeError("the loader failed")

    monkeypatch.setattr("real.validation.validation.measure_run", fails)
    assert main(["systems=lru", "budgets=0.25", f"output_dir={tmp_path}/v", *WORDS]) == 1
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith("error: the loader failed\nnothing was written: no run had ended")
    )
    assert not list((tmp_path / "v").glob("*"))


def test_repeats_are_interleaved_and_the_order_is_the_seeds() -> None:
    plan = Plan(("a", "b"), (0.25, 0.5), 3, 7, ())
    order = order_of(plan)
    assert order == order_of(plan)
    assert [repeat for _, _, repeat in order] == [0] * 4 + [1] * 4 + [2] * 4
    assert len(set(order)) == 12
    assert len({tuple(order[n : n + 4]) for n in (0, 4, 8)}) == 3


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["systems=lru,lru", "budgets=0.5"], "systems=lru,lru must name different systems"),
        (["systems=lru", "budgets=0.5,0.5"], "budgets=0.5,0.5 must be different shares"),
        (["systems=lru", "budgets=0.5", "budget.slots_gib=1"], "give budgets=0.25,0.5"),
        (["systems=nonesuch", "budgets=0.5"], "nonesuch"),
        (["systems=lru", "budgets=7", "device=null"], "resident_share"),
        (
            ["systems=lru", "budgets=0.5", "live.sequences=1"],
            "live.sequences=1: a trace is replayed",
        ),
        (["systems=lru", "budgets=0.5", "input=live"], "input=live: a trace is replayed here"),
        (
            ["systems=lru", "budgets=0.5", "device=null", "engine.links=free"],
            "engine.links=free changes nothing on device=null",
        ),
        pytest.param(
            [
                "systems=lru",
                "budgets=0.5",
                "device=null",
                "closed_loop=teacher-forced",
                "+workload.decode_tokens=4",
            ],
            "workload.decode_tokens: a text is read as long as it was recorded; leave lengths out",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, f"output_dir={tmp_path}/v"]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert not list((tmp_path / "v").glob("*")) if (tmp_path / "v").exists() else True


def test_other_words_go_into_the_configuration() -> None:
    asked = parse(["systems=lru", "budgets=0.25,0.5", "engine.links=free", "repeats=2"])
    assert asked.plan == Plan(("lru",), (0.25, 0.5), 2, 0, ("engine.links=free",))
    assert parse(["systems=lru", "budgets=0.5", "closed_loop=free-running"]).modes == (
        "free-running",
    )


@pytest.mark.thorough
def test_the_closed_loop_shows_zero_for_what_loses_nothing_and_a_shift_for_what_does(
    tmp_path: Path,
) -> None:
    rows = validate(tmp_path / "v", "closed_loop=teacher-forced", lengths=False)["closed_loop"]
    assert [(row["system"], row["lossless"], row["is_zero"]) for row in rows] == [
        ("lru", True, True),
        ("hobbit", False, False),
    ]
    assert "| lru | teacher-forced | 100" in (tmp_path / "v" / "validation.md").read_text()
