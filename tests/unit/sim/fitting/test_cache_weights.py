"""Calibration of the weighted score: the grid, the cost of a point, and the command."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from sim import fit as fit_command
from sim.fit import calibrate, main
from sim.fitting.cache_weights import Fit, fit_weights, miss_penalty, override, simplex
from sim.process.progress import Shown
from sim.setup.execute import execute

TERMS = ("lru", "lfu", "lhu", "fld")


def test_the_grid_has_every_point_of_the_simplex() -> None:
    """There are (n + 3) choose 3 of them: 10 for halves, 286 for tenths."""
    halves = list(simplex(0.5, TERMS))
    assert len(halves) == 10
    assert {tuple(point.values()) for point in halves} >= {
        (1, 0, 0, 0),
        (0, 0.5, 0.5, 0),
        (0, 0, 0, 1),
    }
    tenths = list(simplex(0.1, TERMS))
    assert len({tuple(point.values()) for point in tenths}) == len(tenths) == 286
    assert all(
        sum(point.values()) == pytest.approx(1) and min(point.values()) >= 0 for point in tenths
    )


@pytest.mark.parametrize("step", [0.3, 0, -0.1, 2, 0.01, float("nan")])
def test_a_step_that_does_not_divide_one_is_refused(step: float) -> None:
    with pytest.raises(ValueError, match="step"):
        list(simplex(step, TERMS))


def test_points_are_ranked_by_what_they_cost_and_equal_ones_stay_in_order() -> None:
    costs = {1.0: 0.2, 0.5: 0.1, 0.0: 0.1}

    def cost(weights: Mapping[str, float]) -> float:
        return costs[weights["lru"]]

    fit = fit_weights(simplex(0.5, TERMS), cost)
    assert fit.penalties == (0.1,) * 9 + (0.2,)
    assert fit.best == {"lru": 0.0, "lfu": 0.0, "lhu": 0.0, "fld": 1.0}
    assert fit.points[-1] == {"lru": 1.0, "lfu": 0.0, "lhu": 0.0, "fld": 0.0}
    assert fit.near_best() == 9
    assert fit.near_best(tolerance=1.0) == 10
    assert override(fit.best) == "cache.weights={lru:0,lfu:0,lhu:0,fld:1}"


@pytest.mark.parametrize("precision", ["hobbit", "fp16", "int4"])
def test_the_penalty_of_a_run_is_that_of_its_summary(precision: str) -> None:
    """The summary counts it from tables of lookups, this from the controller's columns."""
    words = [f"precision={precision}", "trace.max_sequences=1"]
    progress = Progress(disable=True)
    run, fit = calibrate([*words, "step=1"], progress)
    (task,) = progress.tasks
    assert (task.description, task.total, task.completed) == (
        "calibrating: points of the grid",
        4,
        4,
    )
    summary = execute(run).summary
    assert summary["lookups"]["miss"] > 100
    assert miss_penalty(run.controller, run.workload) == pytest.approx(
        summary["miss_penalty"], abs=1e-12
    )
    assert len(fit.points) == 4


def test_the_best_point_costs_what_a_run_with_its_weights_costs() -> None:
    _, fit = calibrate(["trace.max_sequences=1", "step=0.5"], Progress(disable=True))
    again, _ = calibrate(
        ["trace.max_sequences=1", "step=1", override(fit.best)], Progress(disable=True)
    )
    execute(again)
    assert miss_penalty(again.controller, again.workload) == fit.penalties[0] < fit.penalties[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["step=0.3"], "step=0.3 must divide 1"),
        (["step=x"], "step=x must be a number"),
        (["cache=lru"], "LRU has no weights to calibrate; choose cache=weighted_score"),
        (
            ["predictor=gate_lookahead_1"],
            "runs the fit sequences without a predictor; leave it out",
        ),
        (
            ["workload=continuous_4", "workload.arrivals_per_s=1"],
            "a calibration wants the same steps at every point; set workload.arrivals_per_s=null",
        ),
        (["trace.split=eval"], "runs the fit sequences without a predictor; leave it out"),
        (["cache.weights.lru=-1"], "cache.weights need"),
        # What a shell makes of braces without quotes.
        (["cache.weights=lru:0.5", "cache.weights=fld:0.5"], "in quotes, as a shell takes braces"),
        (["output_dir=fits"], "writes no file"),
        (["no_such_group=1"], "no_such_group"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = [] if "cache=lru" in words else ["cache=weighted_score"]
    assert main([*cache, "trace.max_sequences=1", *words]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("fit: ")
    assert message in told.err
    assert not told.out


def test_a_calibration_is_told_by_its_best_points_and_how_flat_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of six points three cost at most 1.01 times the best; the first five are shown."""
    points = tuple({"lru": place / 8, "fld": 1 - place / 8} for place in range(6))
    found = Fit(points, (0.2, 0.201, 0.202, 0.2021, 0.5, 0.75))
    header = SimpleNamespace(name="t")
    run = SimpleNamespace(
        workload=SimpleNamespace(sequences=[4, 5, 6], trace=SimpleNamespace(header=header))
    )
    monkeypatch.setattr(fit_command, "calibrate", lambda words, progress: (run, found))
    monkeypatch.setattr(fit_command, "labels_of", lambda *given: given)
    monkeypatch.setattr(fit_command, "told", lambda labels: [f"note of {len(labels)}"])
    with Shown() as progress:
        lines = fit_command.fit_cache([], progress)
    assert lines == [
        "3 fit sequences of t, 6 points; 3 cost at most 1 % more than the best, the worst costs"
        " 0.7500",
        "  0.2000  'cache.weights={lru:0,fld:1}'",
        "  0.2010  'cache.weights={lru:0.125,fld:0.875}'",
        "  0.2020  'cache.weights={lru:0.25,fld:0.75}'",
        "  0.2021  'cache.weights={lru:0.375,fld:0.625}'",
        "  0.5000  'cache.weights={lru:0.5,fld:0.5}'",
        "note of 1",
        "'cache.weights={lru:0,fld:1}'",
    ]


def test_twenty_parts_are_the_finest_grid() -> None:
    assert list(simplex(1, ("a", "b"))) == [{"a": 0, "b": 1}, {"a": 1, "b": 0}]
    finest = list(simplex(0.05, ("a", "b")))
    assert (len(finest), finest[1]) == (21, {"a": 0.05, "b": 0.95})
    for step in (1 / 21, 2):
        with pytest.raises(
            ValueError,
            match=rf"^step={step:g} must divide 1 into 1 to 20 parts, such as 0\.1 or 0\.25$",
        ):
            list(simplex(step, ("a", "b")))
