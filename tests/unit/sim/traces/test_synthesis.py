"""Synthetic traces: deterministic, valid, and following their knobs in the stated directions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.traces.header import ModelShape
from sim.traces.synthesis import PRESETS, RULE, SCORE_STEP, synthesize
from sim.traces.trace import DECODE, PREFILL, Trace, read_trace, write_trace
from sim.workload.steps import Workload

SHAPE = ModelShape("synthetic", "none", 5, 16, 3, 64, 128)


def make(**given: Any) -> Trace:
    return synthesize(SHAPE, **{"tokens": 60, "lookahead": 3, **given})


def arrays_of(trace: Trace) -> dict[str, np.ndarray]:
    plain = {name: value for name, value in vars(trace).items() if isinstance(value, np.ndarray)}
    return plain | dict(trace.lookahead)


def recall(trace: Trace, distance: int) -> float:
    """Share of the selections in the top k of the forecast made ``distance`` sites before."""
    chosen, _ = RULE.route(trace.lookahead["raw"][:, :-distance, distance - 1], trace.ids.shape[2])
    return float((trace.ids[:, distance:, :, None] == chosen[:, :, None, :]).any(-1).mean())


def reuse(trace: Trace, lag: int) -> float:
    """Share of the selections that the token ``lag`` before made, too, at the same site."""
    return float((trace.ids[lag:, :, :, None] == trace.ids[:-lag, :, None, :]).any(-1).mean())


def concentration(trace: Trace) -> float:
    """The share of a site's selections on its most popular quarter of experts, over all sites."""
    experts = trace.header.model.experts
    counts = [
        np.sort(np.bincount(trace.ids[:, site].ravel(), minlength=experts))[::-1]
        for site in range(SHAPE.sites)
    ]
    return float(np.mean([count[: experts // 4].sum() / count.sum() for count in counts]))


def test_the_same_arguments_give_the_same_arrays():
    first, again = (arrays_of(make(seed=4, sequences=2, prompt_tokens=5)) for _ in range(2))
    assert first.keys() == again.keys()
    for name, values in first.items():
        assert np.array_equal(values, again[name], equal_nan=True), name


def test_another_process_gives_the_same_arrays():
    code = (
        "import hashlib; from sim.traces.synthesis import PRESETS, synthesize; trace ="
        " synthesize(PRESETS['qwen1_5_moe_a2_7b'], tokens=5, seed=3);"
        " print(hashlib.sha256(trace.logits.tobytes() +"
        " trace.lookahead['raw'].tobytes()).hexdigest())"
    )
    prints = {
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
        for _ in range(2)
    }
    assert len(prints) == 1


def test_another_seed_gives_another_trace():
    assert not np.array_equal(make(seed=0).ids, make(seed=1).ids)


def test_a_trace_survives_writing_unchanged(tmp_path):
    trace = make(sequences=3, prompt_tokens=4, skew=2.0)
    write_trace(tmp_path / "trace", trace)
    back = arrays_of(read_trace(tmp_path / "trace", "all"))
    for name, values in arrays_of(trace).items():
        assert np.array_equal(values, back[name], equal_nan=True), name


def test_writing_twice_gives_the_same_bytes(tmp_path):
    for name in ("first", "second"):
        write_trace(tmp_path / name, make(seed=5))
    for file in ("header.json", "routes.parquet"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_selections_are_what_the_stated_rule_makes_of_the_logits():
    trace = make()
    assert {site.rule for site in trace.header.sites} == {RULE}
    ids, weights = RULE.route(trace.logits, SHAPE.top_k)
    assert np.array_equal(trace.ids, ids)
    assert np.array_equal(trace.weights, weights)
    softmax = np.exp(trace.logits.astype(np.float64))
    chosen = np.take_along_axis(softmax, trace.ids.astype(np.int64), -1)
    assert np.allclose(trace.weights, chosen / chosen.sum(-1, keepdims=True), atol=1e-6)


def test_weights_sum_to_1_in_every_row():
    assert np.allclose(make(skew=3.0, prompt_tokens=7).weights.sum(-1), 1.0, atol=1e-6)


def test_recall_falls_with_distance_and_stays_above_chance():
    trace = make(tokens=400)
    by_distance = [recall(trace, distance) for distance in (1, 2, 3)]
    assert by_distance[0] > by_distance[1] + 0.03 > by_distance[2] + 0.06
    assert by_distance[2] > SHAPE.top_k / SHAPE.experts + 0.1


def test_recall_rises_with_accuracy():
    by_accuracy = [
        recall(make(tokens=400, lookahead_accuracy=accuracy), 1)
        for accuracy in (0.0, 0.5, 0.9, 1.0)
    ]
    assert by_accuracy == sorted(by_accuracy)
    assert by_accuracy[0] < 0.5
    assert by_accuracy[-1] == 1.0


def test_a_perfect_forecast_is_the_logits_of_the_site_ahead():
    trace = make(lookahead_accuracy=1.0)
    for distance in (1, 2, 3):
        assert np.array_equal(
            trace.lookahead["raw"][:, :-distance, distance - 1], trace.logits[:, distance:]
        )


def test_without_skew_and_accuracy_a_forecast_is_no_better_than_chance():
    trace = make(tokens=2000, skew=0.0, lookahead_accuracy=0.0, persistence=0.0)
    assert recall(trace, 1) == pytest.approx(SHAPE.top_k / SHAPE.experts, abs=0.01)


def test_forecasts_are_as_spread_as_the_truth():
    trace = make(tokens=2000, skew=0.0, lookahead_accuracy=0.6)
    for distance in (1, 3):
        assert trace.lookahead["raw"][:, :-distance, distance - 1].std() == pytest.approx(
            trace.logits.std(), rel=0.03
        )


def test_forecasts_end_with_the_last_site():
    scores = make().lookahead["raw"]
    for distance in (1, 2, 3):
        assert np.isnan(scores[:, SHAPE.sites - distance :, distance - 1]).all()
        assert np.isfinite(scores[:, : SHAPE.sites - distance, distance - 1]).all()


def test_reuse_rises_with_persistence_and_falls_with_lag():
    by_persistence = [
        reuse(make(tokens=400, persistence=persistence), 1) for persistence in (0.0, 0.6, 0.95)
    ]
    assert by_persistence[0] + 0.1 < by_persistence[1] < by_persistence[2] - 0.1
    trace = make(tokens=400)
    assert reuse(trace, 1) > reuse(trace, 8) + 0.05


def test_each_of_several_sequences_persists():
    trace = make(tokens=100, sequences=4, persistence=0.95)
    alone = reuse(make(tokens=400, persistence=0.95), 1)
    assert reuse(trace, 1) == pytest.approx(alone, abs=0.05)


def test_without_persistence_and_skew_selections_are_uniform():
    trace = make(tokens=4000, persistence=0.0, skew=0.0)
    assert reuse(trace, 1) == pytest.approx(SHAPE.top_k / SHAPE.experts, abs=0.01)
    assert concentration(trace) == pytest.approx(0.25, abs=0.02)


def test_without_persistence_the_first_choice_follows_zipf_law():
    shape = replace(SHAPE, sites=2, experts=8, top_k=1)
    trace = synthesize(shape, tokens=20_000, persistence=0.0, skew=1.0, lookahead=0)
    zipf = 1 / np.arange(1, 9)
    for site in range(2):
        shares = np.sort(np.bincount(trace.ids[:, site, 0], minlength=8))[::-1] / 20_000
        assert np.allclose(shares, zipf / zipf.sum(), atol=0.012)


def test_the_spread_of_logits_is_the_same_at_the_start_and_the_end_of_a_sequence():
    trace = synthesize(
        replace(SHAPE, experts=200), tokens=40, sequences=40, skew=0.0, persistence=0.9, lookahead=0
    )
    for position in (0, 39):
        assert trace.logits[trace.position == position].std() == pytest.approx(
            np.pi / np.sqrt(6), rel=0.03
        )


def test_popularity_concentrates_with_skew():
    by_skew = [concentration(make(tokens=400, skew=skew)) for skew in (0.0, 0.6, 2.0)]
    assert by_skew[0] + 0.05 < by_skew[1] < by_skew[2] - 0.05


def test_popular_experts_differ_from_site_to_site():
    popular = [
        np.bincount(site.ravel(), minlength=16).argmax()
        for site in make(skew=2.0).ids.swapaxes(0, 1)
    ]
    assert len(set(popular)) > 1


def test_each_sequence_is_a_prefill_step_and_then_a_step_a_token():
    trace = make(tokens=3, sequences=2, prompt_tokens=4)
    assert trace.step.tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 4, 4, 4, 5, 6, 7]
    assert trace.phase.tolist() == ([PREFILL] * 4 + [DECODE] * 3) * 2
    assert trace.position.tolist() == [0, 1, 2, 3, 4, 5, 6] * 2
    assert trace.sequence.tolist() == [0] * 7 + [1] * 7
    assert [(item.prompt_tokens, item.decode_tokens) for item in trace.header.sequences] == [
        (4, 3),
        (4, 3),
    ]
    steps = Workload(trace, split="all", lookahead=2).steps
    assert [(step.rows, step.decode, step.token) for step in steps[:3]] == [
        (4, False, 4),
        (1, True, 5),
        (1, True, 6),
    ]


def test_a_prompt_of_one_token_has_a_step_of_its_own():
    assert make(tokens=2, prompt_tokens=1).step.tolist() == [0, 1, 2]


def test_without_a_prompt_every_step_is_one_token():
    assert make(tokens=3, sequences=2).step.tolist() == [0, 1, 2, 3, 4, 5]


def test_even_sequences_are_for_evaluation_so_that_one_alone_can_be_run():
    assert [item.split for item in make(sequences=3).header.sequences] == ["eval", "fit", "eval"]
    assert len(Workload(make()).steps) == 60


def test_the_header_names_the_generator_its_parameters_and_what_it_is_not():
    header = make(seed=9, skew=1.5).header
    assert header.source == "synthetic"
    assert header.provenance["calibrated"] is False
    assert "sim.traces.synthesis" in str(header.provenance["generator"])
    assert (header.provenance["seed"], header.provenance["skew"]) == (9, 1.5)
    assert header.lookahead is not None
    assert (header.lookahead.depth, header.lookahead.norms, header.lookahead.step) == (
        3,
        ("raw",),
        SCORE_STEP,
    )


def test_a_trace_may_have_no_lookahead(tmp_path):
    trace = make(lookahead=0)
    assert trace.header.lookahead is None
    write_trace(tmp_path / "trace", trace)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mixtral_8x7b", (32, 8, 2)),
        ("qwen1_5_moe_a2_7b", (24, 60, 4)),
        ("qwen3_30b_a3b", (48, 128, 8)),
    ],
)
def test_presets_have_the_shape_of_their_model_and_say_that_the_load_is_synthetic(name, shape):
    preset = PRESETS[name]
    assert (preset.sites, preset.experts, preset.top_k) == shape
    assert preset.name == f"synthetic_{name}"
    trace = synthesize(preset, tokens=2)
    assert trace.ids.shape == (2, shape[0], shape[2])
