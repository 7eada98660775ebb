"""What the command makes of experiments: constants, chosen runs, a field, a phone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.reproduce import __main__ as command
from sim.reproduce.arms import Arm, ArmError
from sim.reproduce.experiments import Outcome, Runner
from sim.reproduce.roles import Claim, Experiment, Paper
from sim.reproduce.rules import Value

CLAIM = Claim("C1", "1", "x", "fitted", value=5.0)
CALIBRATED = {"host_us": {"experiment": "e", "to": "C1", "layers": "4", "key": "hardware.us"}}
EXPERIMENT = Experiment(
    "e",
    ("decode_speedup", ("a", "b")),
    {"a": ["x=1"], "b": ["y=2"]},
    ["trace=own"],
    grid={"g": [["of the default"], ["q=1"]]},
)
PAPER = Paper("p", "P", "here", (CLAIM,), {"e": EXPERIMENT}, {"own": {}}, {}, {}, CALIBRATED, {})


class Stub(Runner):
    """A runner that has a number for each arm, and hears what was asked."""

    def results(self, paper: Paper, wanted: Any, progress: Any) -> Any:
        self.asked = list(wanted)
        progress(1, 2)
        return {arm: f"result of {' '.join(arm.words)}" for arm in self.asked}


@pytest.mark.parametrize(
    ("s_per_token", "us"),
    [(0.1, 25_000.0), (0.2, 0.0), (0.3, 0.0)],
)
def test_a_calibrated_time_is_what_a_token_lacks_over_the_layers(
    s_per_token: float, us: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published are 5 tokens/s, 0.2 s each; there are four layers."""
    asked: list[Any] = []

    def found(paper: Paper, experiment: Experiment, points: Any, *rest: Any) -> Outcome:
        asked.append([point.name for point in points])
        return Outcome(Value(s_per_token))

    monkeypatch.setattr(command, "outcome", found)
    runner = Stub(tmp_path, 1)
    assert command.calibrated(PAPER, runner) == {"host_us": pytest.approx(us)}
    assert (asked, len(runner.asked)) == ([["default"]], 2)
    monkeypatch.setattr(command, "outcome", lambda *told: Outcome(None))
    with pytest.raises(ArmError) as refused:
        command.calibrated(PAPER, runner)
    assert str(refused.value) == "P: e cannot run, so host_us cannot be drawn from it"


def test_runs_are_those_of_chosen_experiments_that_need_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(EXPERIMENT, grid={})
    paper = replace(
        PAPER,
        calibrated={},
        experiments={
            "closed": replace(run, measure=("stacked_gates", ())),
            "gates": replace(run, measure=("lookahead_top1", (1,))),
            "run": run,
        },
    )
    monkeypatch.setattr(command, "closed_outcome", lambda paper, one: one.measure[0])
    told = lambda paper, one, points, results, runner: (one.measure[0], len(points), results)  # noqa: E731
    monkeypatch.setattr(command, "outcome", told)
    runner = Stub(tmp_path, 1)
    words = (("x=1",), ("y=2",))
    results = {Arm(one, "own"): f"result of {one[0]}" for one in words}
    assert command.outcomes_of(paper, runner) == {
        "closed": "stacked_gates",
        "gates": ("lookahead_top1", 1, results),
        "run": ("decode_speedup", 1, results),
    }
    assert command.outcomes_of(paper, runner, ["gates"]) == {"gates": ("lookahead_top1", 1, {})}
    assert runner.asked == []


def test_a_field_is_asked_for_alone_and_papers_may_have_a_phone_and_a_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("table", "slots_table", "gains_table", "asked_table", "prompts_table"):
        monkeypatch.setattr(command, name, lambda told, name=name: f"{name} {told}")
    monkeypatch.setattr(command, "check", lambda told: None)
    monkeypatch.setattr(command, "check_gates", lambda gates, told: None)
    monkeypatch.setattr(command, "gains", lambda told, again: ["gains", *told])
    monkeypatch.setattr(command, "asked_of", lambda told: [])
    monkeypatch.setattr(command, "steps_table", lambda place, told: f"steps {place} {told}")
    monkeypatch.setattr(command, "rows", lambda place, told: iter([place, told]))
    monkeypatch.setattr(command, "published", lambda file: file.name)
    for name in ("figures", "splits", "prompts"):
        monkeypatch.setattr(command, name, lambda name=name: name)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    assert command.main(["field=there"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"table {[Path('there'), 'field.csv']}",
        f"gains_table {['gains', Path('there'), 'field.csv']}",
        "asked_table []",
        "steps there figures",
        "slots_table splits",
        "prompts_table prompts",
    ]

    paper = replace(PAPER, claims=())
    recorded: list[str] = []
    monkeypatch.setattr(command, "load_paper", lambda name: paper)
    monkeypatch.setattr(command, "has_gains", lambda paper: True)
    monkeypatch.setattr(
        command, "with_recorded", lambda paper, told: recorded.append(told) or paper
    )
    monkeypatch.setattr(command, "phone_lines", lambda place: [f"phone {place}"])
    monkeypatch.setattr(command, "outcomes_of", lambda paper, runner: {})
    monkeypatch.setattr(command, "worked", lambda paper, found: [])
    monkeypatch.setattr(command.report, "write", lambda *told: None)
    monkeypatch.setattr(command.report, "show", lambda *told: None)
    told = ["paper=fate,floe", "phone=there", "recorded=m:d", f"output_dir={tmp_path}"]
    assert command.main(told) == 0
    assert capsys.readouterr().out.startswith("phone there\n")
    assert recorded == ["m:d", "m:d"]
    monkeypatch.setattr(command, "has_gains", lambda paper: False)
    assert command.main(told) == 2
    assert "recorded=m:d changes nothing of paper=fate,floe: the g" in capsys.readouterr().err
    assert command.main(["paper=floe", f"output_dir={tmp_path}"]) == 0
    assert "phone" not in capsys.readouterr().out
    assert recorded == ["m:d", "m:d"]
