"""The check of the synthesiser cuts traces as it says and judges by its thresholds.

A trace compared with itself passes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from capture.check_synthesis import Row, main, parse, shuffled, speeds, targets_of
from capture.synthetic.cases import cut, load_case
from capture.synthetic.targets import Gates
from sim.synthetic.gate_walk import Walk
from sim.synthetic.preset import Fit, load_preset
from sim.synthetic.synthesis import Request, synthesize_like
from sim.traces.trace import DECODE, PREFILL, write_trace


@pytest.fixture(scope="module")
def trace():
    preset = replace(load_preset("mixtral_8x7b"), layers=(tuple(range(4)),))
    preset = replace(preset, shape=replace(preset.shape, sites=4))
    request = Request("mixtral_8x7b", 50, "used", sequences=6, prompt_tokens=3, lookahead=3)
    return synthesize_like(preset, Fit(Walk(channels=6), (), 8, 128), request).trace


def test_a_cut_keeps_prompts_whole_and_the_first_decoded_rows(trace):
    short = cut(trace, [1, 4], 5)
    assert sorted(set(short.sequence.tolist())) == [1, 4]
    for number in (1, 4):
        own, whole = short.sequence == number, trace.sequence == number
        assert (short.phase[own] == PREFILL).sum() == 3
        assert short.position[own & (short.phase == DECODE)].tolist() == [3, 4, 5, 6, 7]
        assert np.array_equal(short.ids[own], trace.ids[whole][:8])
    assert {item.sequence: item.decode_tokens for item in short.header.sequences} == {1: 5, 4: 5}


def test_a_case_has_gates_by_split_and_falling_weight(trace, tmp_path):
    write_trace(tmp_path / "trace", trace)
    case = load_case(tmp_path / "trace", 2, 48)
    assert case.has_lookahead
    assert case.fit.experts.shape == (2, 48, 4, 2)
    assert (np.diff(case.eval.weights, axis=-1) <= 0).all()
    decoded = np.flatnonzero((trace.sequence == 3) & (trace.phase == DECODE))[:48]
    assert np.array_equal(case.fit.experts[1], trace.ids[decoded])
    assert case.eval.ahead is not None
    first = np.flatnonzero((trace.sequence == 0) & (trace.phase == DECODE))[:48]
    assert np.array_equal(case.eval.ahead(2)[0], trace.lookahead["raw"][first][:, :2, 1])
    assert {target.knob for target in targets_of(case)} >= {
        "spread",
        "memory_middle",
        "carry_deep",
        "topic",
    }
    with pytest.raises(ValueError, match=r"0 fit sequences have 60 tokens without .*; take fewer"):
        load_case(tmp_path / "trace", 2, 60)


def test_a_case_has_the_gate_inputs_of_its_own_rows_however_they_are_kept(trace, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    rows = {number: np.arange(3, 53 - number, dtype=np.int32) for number in (1, 3)}
    exact = {
        number: np.random.default_rng(number).normal(size=(len(own), 4, 5)).astype(np.float16)
        for number, own in rows.items()
    }
    files = {
        f"hidden/sequence_{number:03d}.safetensors": safetensors.save(
            {"gate_in": exact[number], "position": own}
        )
        for number, own in rows.items()
    }
    model = replace(trace.header.model, hidden=5)
    write_trace(
        tmp_path / "halves", replace(trace, header=replace(trace.header, model=model)), files
    )
    inputs = load_case(tmp_path / "halves", 2, 48).fit.inputs
    assert np.array_equal(inputs, exact[1][None, :48]), "of sequence 3 one row is not kept"


def test_a_trace_whose_tokens_choose_fewer_experts_is_refused_by_name(trace, tmp_path):
    ids, weights = trace.ids.copy(), trace.weights.copy()
    ids[3::7, 2, 1], weights[3::7, 2, 1] = -1, 0
    header = replace(
        trace.header, sites=tuple(replace(site, rule=None) for site in trace.header.sites)
    )
    write_trace(tmp_path / "dropped", replace(trace, header=header, ids=ids, weights=weights))
    with pytest.raises(ValueError, match="do not choose 2 experts at every site"):
        load_case(tmp_path / "dropped", 2, 48)


def test_a_trace_of_choices_alone_has_the_rule_of_shares_that_sum_to_one(trace, tmp_path):
    header = trace.header
    bare = replace(
        header, sites=tuple(replace(site, rule=None) for site in header.sites), lookahead=None
    )
    write_trace(tmp_path / "shares", replace(trace, header=bare, lookahead={}))
    case = load_case(tmp_path / "shares", 2, 48)
    assert not case.has_lookahead
    assert case.rule.route(np.array([1.0, 3.0, 2.0]), 2)[1].sum() == pytest.approx(1)
    write_trace(
        tmp_path / "halves", replace(trace, header=bare, lookahead={}, weights=trace.weights / 2)
    )
    with pytest.raises(ValueError, match="states no routing rule and its weights do not sum to 1"):
        _ = load_case(tmp_path / "halves", 2, 48).rule


def test_shuffling_keeps_tokens_and_loses_their_order():
    rng = np.random.default_rng(0)
    experts = np.argsort(rng.random((3, 40, 2, 5)), -1)[..., :2]
    mixed = shuffled(Gates(5, experts, np.ones(experts.shape)))
    tokens = sorted(map(str, experts.reshape(-1, 4).tolist()))
    assert sorted(map(str, mixed.experts.reshape(-1, 4).tolist())) == tokens
    assert not np.array_equal(mixed.experts, experts)


@pytest.mark.parametrize(
    ("row", "holds"),
    [
        (Row("H1", "a", 0.50, (0.52, 0.53, 0.54), 0.031), True),
        (Row("H1", "a", 0.50, (0.52, 0.53, 0.56), 0.031), False),
        (Row("H1", "a", 0.50, (0.48, 0.48, 0.48), 0.03, shuffled=0.45), True),
        (Row("H1", "a", 0.50, (0.48, 0.48, 0.48), 0.03, shuffled=0.51), False),
        (Row("-", "a", 0.50, (0.9, 0.9, 0.9), None), True),
    ],
)
def test_a_row_holds_within_its_threshold_and_better_than_the_baseline(row, holds):
    assert row.holds == holds


@pytest.mark.thorough
def test_speeds_are_those_of_the_systems_on_the_eval_half(trace):
    found = speeds(cut(trace, [0, 1], 20), {"lru": ["system=lru"], "oracle": ["system=oracle"]})
    assert set(found) == {(share, name) for share in (0.25, 0.5) for name in ("lru", "oracle")}
    assert found[0.5, "lru"] > found[0.25, "lru"]
    assert found[0.25, "oracle"] > found[0.25, "lru"]


def test_a_wrong_argument_is_refused_by_name(capsys, tmp_path):
    for given, told in (
        (["speed=1"], "speed is no option"),
        (["tokens=x"], "tokens=x must be a whole number from 48 on"),
        (["tokens=20"], "tokens=20 must be a whole number from 48 on"),
        ([f"traces={tmp_path / 'none'}"], "name the directory of a trace"),
    ):
        assert main(given) == 2
        assert told in capsys.readouterr().err
    assert parse(["traces=a,b", "sequences=5"])[1:] == (5, 64)
