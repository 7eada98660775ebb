"""Experiments on a few tokens, from their words to a verdict; what is kept, refused and written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.reproduce import __main__ as command
from sim.reproduce import report
from sim.reproduce.__main__ import asked, main, outcomes_of
from sim.reproduce.arms import WRONG, Arm, ArmError, Job, composed, expand
from sim.reproduce.checks import worked
from sim.reproduce.experiments import Outcome, Runner, arms_of, points_of
from sim.reproduce.measured import Measured
from sim.reproduce.measures import MEASURES, Given
from sim.reproduce.roles import PAPERS, Claim, Experiment, Paper, load_paper
from sim.reproduce.rules import Value, odds
from sim.reproduce.verdicts import Verdict, counts, verdict_of
from sim.results.folders import locked
from sim.setup.parts import make_parts, with_layer_staged
from sim.values.places import ROOT

BUNDLED = ROOT / "capture" / "assets" / "traces" / "tiny_mixtral"
EXPERT_BYTES = 352_321_536


def small(name: str) -> Paper:
    """The paper with traces of a few tokens, and nothing fitted."""
    paper = load_paper(name)
    traces = {
        key: {
            **{k: v for k, v in spec.items() if k != "fits"},
            "sequences": 4,
            "prompt_tokens": 4,
            "tokens": 3,
        }
        for key, spec in paper.traces.items()
        if "like" in spec
    }
    return replace(paper, traces=traces)


@pytest.mark.thorough
def test_the_share_of_loading_is_that_of_two_experts_and_three_milliseconds(tmp_path: Path) -> None:
    """Every expert is loaded: 2 x 352 MB at 32 GB/s take 22.02 ms, beside a layer's 3 ms.

    The output matrix takes 0.3 ms a token, a hundredth of a layer for each layer.
    """
    runner = Runner(tmp_path, processes=1)
    found = outcomes_of(small("hobbit"), runner, only=["loading_share_4090"])["loading_share_4090"]
    load_ms = 2 * EXPERT_BYTES / 32e9 * 1e3
    assert found.default is not None
    assert found.default.point == pytest.approx(load_ms / (load_ms + 3.0), abs=0.002)
    (slower,) = found.grid.values()
    assert odds(slower.point) > odds(found.default.point), (
        "the data sheet's machine computes faster and loads slower"
    )

    started = runner.started
    again = outcomes_of(small("hobbit"), runner, only=["loading_share_4090"])["loading_share_4090"]
    assert (runner.started, again) == (started, found), "what was run is kept"
    other = Runner(tmp_path, processes=1)
    outcomes_of(small("hobbit"), other, only=["loading_share_4090"])
    assert other.started == 0, "by another process, too"

    paper = load_paper("hobbit")
    verdict = verdict_of(paper, paper.claim("H010"), {"loading_share_4090": found})
    assert (verdict.verdict, verdict.inside) == ("holds", True)
    report.write(tmp_path / "out", paper, [verdict])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "hobbit.md",
        "hobbit.json",
        "hobbit.png",
        "hobbit.svg",
    }
    assert json.loads((tmp_path / "out" / "hobbit.json").read_text())[0]["verdict"] == "holds"
    assert any(
        line.startswith("Load : compute on the 4090")
        for line in worked(paper, {"loading_share_4090": found})
    )


@pytest.mark.thorough
def test_on_demand_is_the_same_at_any_budget_and_an_arm_that_cannot_run_says_why(
    tmp_path: Path,
) -> None:
    paper = small("fate")
    runner = Runner(tmp_path, processes=1)
    paper = replace(paper, calibrated={}, words={**paper.words, "high": ["hardware=rtx3090_pcie3"]})
    found = outcomes_of(paper, runner, only=["lod_any_budget"])["lod_any_budget"]
    assert found.default == Value(1.0, (), (), True)

    broken = replace(
        paper.experiments["lod_any_budget"],
        common=["budget.resident_share=2"],
        arms={"little": ["lod"], "much": ["lod"]},
    )
    started = runner.started
    failed = outcomes_of(replace(paper, experiments={"broken": broken}), runner)["broken"]
    assert runner.started == started + 2, "a run that fails was begun, too"
    assert failed.default is None
    assert "resident_share" in failed.failures["default"]


@pytest.mark.alike
@pytest.mark.parametrize("name", PAPERS)
def test_every_experiments_words_make_runs_whose_parts_are_accepted(name: str) -> None:
    paper = load_paper(name)
    for experiment in paper.experiments.values():
        if experiment.arms:
            points = points_of(paper, experiment, {})
            assert len(points) == 1 + sum(len(one) - 1 for one in experiment.grid.values())
            for arm in arms_of(points, experiment):
                assert arm.trace in paper.traces
                config, _ = composed(Job(arm, BUNDLED, "0", {}, None))
                make_parts(with_layer_staged(config))


def test_the_later_of_two_words_stands_and_an_option_drops_what_was_set_in_another() -> None:
    paper = replace(
        load_paper("hobbit"),
        words={"fast": ["hardware=a", "hardware.x=1"], "both": ["fast", "cache=lru"]},
    )
    arm = expand(
        paper, ["both", "trace=mixtral_16", "cache.scope=site", "cache=lfu", "hardware.x=2"], {}
    )
    assert arm.words == ("hardware=a", "cache=lfu", "hardware.x=2")
    assert arm.trace == "mixtral_16"
    with pytest.raises(ArmError, match="'quick' is neither"):
        expand(paper, ["quick"], {})
    with pytest.raises(ArmError, match="trace='nowhere'"):
        expand(paper, ["trace=nowhere"], {})


def test_a_calibrated_word_is_the_constant_that_was_drawn() -> None:
    arm = expand(load_paper("fate"), ["high", "qwen"], {"host_us": 2500.0})
    assert "hardware.host.sync_us=2500.000" in arm.words
    overridden = expand(
        load_paper("fate"), ["high", "qwen", "hardware.host.sync_us=0"], {"host_us": 2500.0}
    )
    assert "hardware.host.sync_us=0" in overridden.words


def measured(
    decode: list[float],
    prefill: list[float] | None = None,
    penalty: list[float] | None = None,
    found: list[float] | None = None,
) -> Measured:
    ones = [1.0] * len(decode)
    return Measured(
        decode,
        ones,
        prefill or decode,
        [1] * len(decode),
        [4.0] * len(decode),
        found or ones,
        ones,
        penalty or ones,
        0.5,
        0.0,
        0.0,
        0.0,
        0.0,
        0,
    )


def job_of(*words: str, fits: dict[str, Path] | None = None) -> Job:
    return Job(
        Arm(words, "tiny"), ROOT / "capture/assets/traces/tiny_mixtral", "digest", fits or {}, None
    )


def test_an_arm_is_given_the_fit_of_its_own_trace_whatever_was_given_before(tmp_path: Path) -> None:
    """Configurations of the same words share their sections, which must not leak."""
    for trace in ("first", "second"):
        (tmp_path / trace).mkdir()
        (tmp_path / trace / "fit.json").write_text(trace, encoding="ascii")
    fits = [tmp_path / trace / "fit.json" for trace in ("first", "second")]
    given = [composed(job_of("system=eap", fits={"next_site": fit})) for fit in fits]
    assert [config["predictor"]["artefact"] for config, _ in given] == [str(fit) for fit in fits]
    assert given[0][1] != given[1][1]


def test_a_predictor_is_wrong_only_in_the_arm_that_says_so() -> None:
    wrong, _ = composed(job_of("system=lru", "predictor=always_wrong"))
    stated, _ = composed(job_of("system=lru", "predictor=stated_accuracy"))
    assert wrong["predictor"]["_target_"] == WRONG
    assert stated["predictor"]["_target_"].endswith(".StatedAccuracy")


def test_ratios_are_of_sums_over_the_same_sequences() -> None:
    """12 over 6, then 9 over 6: the mean is 1.75, the largest 2, the range from 1.5."""
    groups = [
        {"a": measured([2.0, 4.0]), "b": measured([4.0, 8.0])},
        {"a": measured([3.0, 3.0]), "b": measured([4.5, 4.5])},
    ]
    speedup = MEASURES["decode_speedup"]
    mean = speedup(Given(groups, ("a", "b"), "mean"))
    assert mean.point == pytest.approx(1.75)
    assert mean.intervals[0] == pytest.approx((1.75, 1.75)), "every sequence has the same ratio"
    assert speedup(Given(groups, ("a", "b"), "max")).point == pytest.approx(2.0)
    assert speedup(Given(groups, ("a", "b"), "range")).points == pytest.approx((2.0, 1.5))
    reduced = MEASURES["prefill_reduction"](Given(groups[:1], ("a", "b"), "mean"))
    assert (reduced.point, reduced.intervals[0]) == (pytest.approx(0.5), pytest.approx((0.5, 0.5)))


def test_orders_are_exact_in_every_group() -> None:
    fast, slow = measured([1.0]), measured([2.0])
    faster = MEASURES["decode_faster"]
    assert faster(Given([{"a": fast, "b": slow}], ("a", "b"), "mean")).holds is True
    mixed = [{"a": fast, "b": slow}, {"a": slow, "b": fast}]
    assert faster(Given(mixed, ("a", "b"), "mean")).holds is False
    assert faster(Given(mixed, ("a", "b"), "any")).holds is True
    ladder = MEASURES["ever_faster"]
    three = [{"a": measured([3.0]), "b": measured([2.0]), "c": measured([1.0])}]
    assert ladder(Given(three, ("a", "b", "c"), "mean")).holds is True
    assert ladder(Given(three, ("a", "c", "b"), "mean")).holds is False


def claim(**given: object) -> Claim:
    return Claim(
        **(
            {
                "id": "H999",
                "where": "1",
                "says": "x",
                "role": "transferred",
                "extent": "partly",
                "experiment": "e",
                "rule": "speedup",
                "value": 2.0,
            }
            | given
        )
    )  # type: ignore[arg-type]


# Contracts: C137
def test_verdicts_hold_at_the_default_and_are_reachable_elsewhere() -> None:
    paper = load_paper("hobbit")
    holds = verdict_of(paper, claim(), {"e": Outcome(Value(2.1), {"other": Value(9.0)})})
    assert (holds.verdict, holds.ends, holds.sign) == ("holds", (2.1, 9.0), True)
    reachable = verdict_of(
        paper, claim(), {"e": Outcome(Value(1.2), {"x": Value(1.9), "y": Value(0.9)})}
    )
    assert (reachable.verdict, reachable.met_at, reachable.width) == (
        "reachable",
        ("x",),
        pytest.approx(1.9 / 0.9),
    )
    ends = {"default": (1.1, 1.4), "x": (1.2, 2.1)}
    ranges = {name: Value(sum(both) / 2, both) for name, both in ends.items()}
    told = claim(value=(1.0, 2.0), rule="speedup_range")
    spread = verdict_of(paper, told, {"e": Outcome(ranges["default"], {"x": ranges["x"]})})
    assert (spread.ends, spread.width) == ((1.1, 2.1), pytest.approx(2.1 / 1.4)), (
        "each end of a range has an interval"
    )
    misses = verdict_of(paper, claim(), {"e": Outcome(Value(1.2), {"x": Value(4.0)})})
    assert (misses.verdict, misses.inside) == ("misses", True), "between two points, met at none"
    assert (
        verdict_of(paper, claim(), {"e": Outcome(None, {}, {"default": "no room"})}).verdict
        == "misses"
    )
    given = verdict_of(paper, claim(role="input", experiment=None, rule=None), {})
    assert counts([holds, reachable, given]) == {
        "transferred": {"holds": 1, "reachable": 1},
        "input": {"not scored": 1},
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("paper=shannon", "shannon is none of hobbit"),
        ("processes=65", "processes=65"),
        (f"phone={ROOT}", "qwen.route.csv is not there"),
        (f"field={ROOT} paper=fate", "goes alone: paper= says nothing"),
    ],
)
def test_what_is_asked_wrongly_is_refused_in_one_line(
    word: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(word.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_command_writes_and_shows_every_paper_and_counts_the_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[tuple[Any, ...]] = []
    paper = SimpleNamespace(
        claims=[claim(needs="simulation", extent="full"), claim(needs="arithmetic")]
    )
    monkeypatch.setattr(command, "load_paper", lambda name: paper)
    monkeypatch.setattr(command, "outcomes_of", lambda paper, runner: runner.processes)
    monkeypatch.setattr(command, "verdict_of", lambda paper, claim, found: Verdict(claim, "holds"))
    monkeypatch.setattr(command, "worked", lambda paper, found: [f"worked {found}"])
    monkeypatch.setattr(report, "write", lambda *told: done.append(("write", *told)))
    monkeypatch.setattr(report, "show", lambda *told: done.append(("show", *told[1:])))
    assert main(["paper=floe", f"output_dir={tmp_path}", "processes=3"]) == 0
    verdicts = [Verdict(one, "holds") for one in paper.claims]
    assert done == [
        ("write", tmp_path, paper, verdicts),
        ("show", paper, verdicts, ["worked 3"]),
    ]
    *counted, last = capsys.readouterr().out.splitlines()
    assert counted == [
        "claims that need simulated times or decisions: 1 holds",
        "claims that can be recomputed in part: 1 claims, 0 published sign or order, 0 inside an"
        " interval of at most 2x",
    ]
    assert re.fullmatch(rf"0 runs in \d+ s; files: {tmp_path}", last)

    def fails(paper: Any, runner: Any) -> None:
        raise ArmError("no room")

    monkeypatch.setattr(command, "outcomes_of", fails)
    assert main(["paper=floe", f"output_dir={tmp_path}"]) == 2
    assert capsys.readouterr() == ("", "reproduce: no room\n")


@pytest.mark.parametrize("count", [1, 64])
def test_as_many_processes_are_taken_as_its_refusal_names(count: int) -> None:
    assert asked([f"processes={count}"]).processes == count


def test_all_papers_are_asked_for_by_default() -> None:
    assert asked([]).papers == PAPERS


def test_on_demand_a_token_takes_the_time_that_the_machine_was_drawn_from(tmp_path: Path) -> None:
    """EdgeMoE's 0.789 s: six FP32 experts are read for a token, and computed."""
    on_demand = Experiment(
        "on_demand", ("s_per_token", ("run",)), {"run": ["io_exp"]}, ["timing=tx2", "switch_8"]
    )
    paper = replace(small("edgemoe"), experiments={"on_demand": on_demand})
    found = outcomes_of(paper, Runner(tmp_path, processes=1))["on_demand"]
    assert found.default is not None
    assert found.default.point == pytest.approx(0.789, rel=1e-6)


# Contracts: C132
def test_a_folder_that_another_process_writes_is_refused_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "outcomes_of", lambda paper, runner: pytest.fail("it ran"))
    with locked(tmp_path):
        assert main(["paper=floe", f"output_dir={tmp_path}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"reproduce: output_dir={tmp_path} is being written by another process")
    assert [*tmp_path.iterdir()] == []
