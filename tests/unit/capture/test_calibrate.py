"""Calibration finds the knobs that made a trace, and says which targets it cannot reach.

Stored fits hold on other seeds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from capture.calibrate import main, parse, stack_of
from capture.synthetic.calibration import FIT_SEEDS, FRESH_SEEDS, Stack, calibrate, measure
from capture.synthetic.targets import STATISTICS
from helpers.usual import usual
from sim.synthetic.gate_walk import Walk
from sim.synthetic.preset import Target, load_fit, load_preset, preset_names
from sim.traces.routing import RoutingRule

RULE = RoutingRule(score="softmax", weight="norm")
STACK = Stack(RULE, 6, 8, 2, sequences=4, tokens=64)
OTHER_SEEDS = (301, 302)
FITS = [(name, reading) for name in preset_names() for reading in load_preset(name).readings]


def target(
    statistic: str, value: float, knob: str, within: tuple[float, float], uncertainty: float = 0.01
) -> Target:
    return Target(statistic, value, uncertainty, "a test", knob, within)


def test_it_finds_knobs_that_made_the_statistics():
    made = replace(Walk(), spread=2.2, memory_middle=0.45, carry_deep=0.95)
    ranges = {
        "score_high": ("spread", (0.5, 5.0)),
        "overlap": ("memory_middle", (0.0, 1.0)),
        "used_1": ("carry_deep", (0.8, 0.999)),
    }
    samples = [STACK.sample(made, seed) for seed in FIT_SEEDS]
    targets = [
        target(name, float(np.mean([STATISTICS[name](sample) for sample in samples])), knob, within)
        for name, (knob, within) in ranges.items()
    ]
    fit = calibrate(STACK, Walk(), targets)
    assert fit.walk.spread == pytest.approx(2.2, rel=0.08)
    assert fit.walk.memory_middle == pytest.approx(0.45, abs=0.06)
    assert fit.walk.carry_deep == pytest.approx(0.95, abs=0.01)


def test_a_target_out_of_reach_leaves_its_knob_at_the_better_end_and_is_told():
    fit = calibrate(STACK, Walk(), [target("overlap_last", 0.99, "memory_last", (0.0, 1.0))])
    assert fit.walk.memory_last == 1.0
    assert not fit.rows[0].is_reached
    assert fit.rows[0].residual < -0.1


def test_targets_without_a_knob_are_compared_and_move_nothing():
    compared = Target("gini", 0.9, 0.01, "a test")
    fit = calibrate(STACK, Walk(), [compared])
    assert fit.walk == Walk()
    assert fit.rows[0].target is compared
    assert fit.rows == measure(STACK, Walk(), [compared], FRESH_SEEDS)


def test_what_is_measured_is_mean_and_deviation_over_seeds():
    row = measure(STACK, Walk(), [Target("gini", 0.9, 0.01, "a test")], (5, 6))[0]
    found = [STATISTICS["gini"](STACK.sample(Walk(), seed)) for seed in (5, 6)]
    assert row.achieved == pytest.approx(np.mean(found))
    assert row.deviation == pytest.approx(abs(found[0] - found[1]) / 2**0.5)


def test_calibration_is_deterministic():
    targets = [
        target("gini", 0.3, "popularity", (0.0, 1.0)),
        target("cosine", 0.95, "constant", (0.01, 5.0)),
    ]
    assert calibrate(STACK, Walk(), targets) == calibrate(STACK, Walk(), targets)


@pytest.mark.alike
@pytest.mark.parametrize(("name", "reading"), usual(FITS, FITS[::4]), ids=map("-".join, FITS))
def test_a_stored_fit_shows_its_table_again_on_other_seeds(name, reading):
    preset = load_preset(name)
    fit = load_fit(preset, reading)
    stack = stack_of(preset)
    assert (stack.sequences, stack.tokens) == (fit.sequences, fit.tokens)
    again = measure(stack, fit.walk, preset.targets_of(reading), OTHER_SEEDS)
    for row, fresh in zip(fit.rows, again, strict=True):
        # Wide, since two seeds are compared with four, in 250 comparisons, and deviations are
        # themselves estimates.
        noise = 5 * max(row.deviation, fresh.deviation)
        assert abs(fresh.achieved - row.achieved) <= max(row.target.uncertainty, noise), (
            row.target.statistic
        )
        if row.is_reached:
            assert abs(fresh.residual) <= row.target.uncertainty + noise, row.target.statistic


@pytest.mark.parametrize(("name", "reading"), FITS, ids=["-".join(pair) for pair in FITS])
def test_most_fitted_targets_are_reached(name, reading):
    rows = [row for row in load_fit(load_preset(name), reading).rows if row.target.knob]
    assert sum(row.is_reached for row in rows) >= 0.75 * len(rows)


def test_the_command_names_what_it_does_not_know(capsys):
    for given, told in (
        ([], "missing like=..."),
        (["like=gpt5"], "unknown like=gpt5; known: deepseek_moe_16b"),
        (
            ["like=mixtral_8x7b", "reading=upside_down"],
            "unknown reading=upside_down of mixtral_8x7b; known: used (",
        ),
        (["like=a", "like=b"], "like is given twice"),
        (["speed=1"], "known keys: like, reading"),
    ):
        assert main(given) == 2
        assert told in capsys.readouterr().err
    assert [(preset.name, reading) for preset, reading in parse(["like=mixtral_8x7b"])] == [
        ("mixtral_8x7b", "used"),
        ("mixtral_8x7b", "equality"),
        ("mixtral_8x7b", "first_choice"),
    ]
    assert {preset.name for preset, _ in parse(["like=all"])} == set(preset_names())
