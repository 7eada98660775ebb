"""Synthetic traces: valid, deterministic, marked as such, made by the routers that they state."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from capture.synthesize import hidden_files, main, parse
from sim.synthetic.gate_walk import Walk, gate_inputs, make_routers
from sim.synthetic.preset import Fit, FitRow, Preset, Target
from sim.synthetic.synthesis import Request, Synthetic, synthesize_like
from sim.traces.header import Lookahead, ModelShape
from sim.traces.routing import RoutingRule
from sim.traces.synthesis import SCORE_STEP
from sim.traces.trace import DECODE, PREFILL, Trace, read_trace, write_trace
from sim.workload.steps import Workload

RULE = RoutingRule(score="softmax", weight="softmax_topk")
TARGET = Target(
    "gini", 0.3, 0.05, "a paper, table 1", "popularity", (0.0, 1.0), borrowed="another model"
)
WALK = Walk(channels=6, popularity=0.3)
FIT = Fit(WALK, (FitRow(TARGET, 0.31, 0.01),), 8, 128)
ONE = Preset(
    "one",
    ModelShape("synthetic_one", "none", 5, 8, 2, 16, 32),
    RULE,
    (tuple(range(1, 6)),),
    {},
    {"plain": "as printed"},
    (TARGET,),
    "a note",
)
BOTH = replace(ONE, name="both", layers=((1, 3), (1, 3, 5)), rule=RoutingRule())
REQUEST = Request(
    "one", tokens=7, reading="plain", sequences=3, prompt_tokens=4, seed=2, lookahead=2
)


def make(preset: Preset = ONE, **given) -> Synthetic:
    return synthesize_like(preset, FIT, replace(REQUEST, like=preset.name, **given))


def arrays_of(trace: Trace) -> dict[str, np.ndarray]:
    plain = {name: value for name, value in vars(trace).items() if isinstance(value, np.ndarray)}
    return plain | dict(trace.lookahead)


def test_a_trace_survives_writing_and_says_synthetic_with_its_fit_table(tmp_path):
    made = make().trace
    write_trace(tmp_path / "trace", made)
    trace = read_trace(tmp_path / "trace", "all")
    for name, values in arrays_of(made).items():
        assert np.array_equal(values, arrays_of(trace)[name], equal_nan=True), name
    header = trace.header
    assert header.source == "synthetic"
    assert header.model == ONE.shape
    assert (
        header.provenance["target.gini"]
        == "0.3 +- 0.05 (a paper, table 1, borrowed from another model); fitted, achieved 0.310 +-"
        " 0.010"
    )
    assert header.provenance["knob.popularity"] == 0.3
    assert header.provenance["reading"] == "plain: as printed"
    assert header.provenance["note"] == "a note"
    assert [site.layer for site in header.sites] == [1, 2, 3, 4, 5]
    assert [(item.split, item.prompt_tokens, item.decode_tokens) for item in header.sequences] == [
        ("eval", 4, 7),
        ("fit", 4, 7),
        ("eval", 4, 7),
    ]


def test_a_header_says_all_that_the_gates_were_made_of():
    """A target that no knob moves, and a preset without a note; the encoder's layers come first."""
    free = replace(TARGET, knob=None, within=None, borrowed=None, statistic="cosine")
    fit = Fit(WALK, (FitRow(TARGET, 0.31, 0.01), FitRow(free, 0.2984, 0.0016)), 8, 128)
    preset = replace(BOTH, note="", targets=(TARGET, free))
    header = synthesize_like(preset, fit, replace(REQUEST, reading="", lookahead=0)).trace.header
    assert header.provenance == {
        "generator": (
            "capture.synthesize: a walk of gate inputs over layers and tokens, synthetic routers"
        ),
        "calibrated": True,
        "like": "both",
        "reading": ": as printed",
        "split": "even sequences eval, odd sequences fit",
        "seed": 2,
        **{f"knob.{name}": value for name, value in asdict(WALK).items()},
        "target.gini": (
            "0.3 +- 0.05 (a paper, table 1, borrowed from another model); fitted, achieved 0.310 +-"
            " 0.010"
        ),
        "target.cosine": "0.3 +- 0.05 (a paper, table 1); not fitted, achieved 0.298 +- 0.002",
    }
    assert [(site.site, site.name, site.layer, site.stack) for site in header.sites] == [
        (0, "encoder.1", 1, "encoder"),
        (1, "encoder.3", 3, "encoder"),
        (2, "decoder.1", 1, "decoder"),
        (3, "decoder.3", 3, "decoder"),
        (4, "decoder.5", 5, "decoder"),
    ]
    assert (header.lookahead, header.steps) == (None, {"logits": SCORE_STEP})
    assert (header.dtype, header.licence, header.source) == ("float32", "CC0-1.0", "synthetic")
    assert make().trace.header.lookahead == Lookahead("gate_in", ("raw",), 2, SCORE_STEP)


def test_the_same_request_gives_the_same_arrays_and_another_seed_others():
    one, again, other = (arrays_of(make(seed=seed).trace) for seed in (2, 2, 3))
    assert all(np.array_equal(one[name], again[name], equal_nan=True) for name in one)
    assert not np.array_equal(one["ids"], other["ids"])


def test_a_sequence_is_the_same_however_many_there_are():
    few, many = make(sequences=2).trace, make(sequences=4).trace
    rows = len(few.step)
    assert np.array_equal(few.ids, many.ids[:rows])
    assert np.array_equal(few.expert_norms, many.expert_norms[:rows])


def test_choices_are_the_rules_of_the_stated_logits_and_lookahead_those_of_later_routers():
    made = make()
    trace = made.trace
    ids, weights = RULE.route(trace.logits, 2)
    assert np.array_equal(ids, trace.ids)
    assert np.array_equal(weights, trace.weights)
    routers = make_routers(WALK, 5, 8, 2)
    inputs, tokens = gate_inputs(WALK, routers, 11, 2, 1)
    own = trace.sequence == 1
    assert trace.token[own].tolist() == tokens.tolist()
    assert trace.logits[own] == pytest.approx(
        (inputs @ routers.weight.swapaxes(1, 2)).swapaxes(0, 1), abs=SCORE_STEP
    )
    scores = trace.lookahead["raw"][own]
    assert scores[9, 1, 1] == pytest.approx(routers.weight[3] @ inputs[1, 9], abs=SCORE_STEP)
    assert np.isnan(scores[trace.phase[own] == PREFILL]).all()
    decoded = scores[trace.phase[own] == DECODE]
    assert np.isnan(decoded[:, 4]).all()
    assert np.isnan(decoded[:, 3, 1]).all()
    assert np.isfinite(decoded[:, :3]).all()


def test_a_workload_of_it_runs_with_forecasts():
    workload = Workload(make().trace, split="eval", batching="sequential", lookahead=2)
    assert len(workload.steps) == 2 * (1 + 7)
    assert workload.forecasts


def test_prompts_of_an_encoder_decoder_visit_the_encoder_and_decoded_rows_the_decoder(tmp_path):
    trace = make(BOTH, lookahead=1).trace
    write_trace(tmp_path / "trace", trace)
    prompt = trace.phase == PREFILL
    assert (trace.ids[prompt][:, :2] >= 0).all()
    assert (trace.ids[prompt][:, 2:] == -1).all()
    assert (trace.ids[~prompt][:, 2:] >= 0).all()
    assert (trace.ids[~prompt][:, :2] == -1).all()
    assert trace.header.encoder_sites == 2
    assert [site.name for site in trace.header.sites] == [
        "encoder.1",
        "encoder.3",
        "decoder.1",
        "decoder.3",
        "decoder.5",
    ]
    encoder, decoder = make_routers(WALK, 2, 8, 2, 0), make_routers(WALK, 3, 8, 2, 1)
    assert encoder.weight.shape[0] == 2
    inputs, _ = gate_inputs(WALK, decoder, 7, 2, 0, 1)
    first = trace.logits[(trace.sequence == 0) & ~prompt][:, 2]
    assert first == pytest.approx(inputs[0] @ decoder.weight[0].T, abs=SCORE_STEP)


def test_kept_gate_inputs_give_the_logits_again(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    pytest.importorskip("torch")
    made = make(hidden_sequences=2)
    write_trace(tmp_path / "trace", made.trace, hidden_files(made))
    assert hidden_files(make()) == {}
    routers = safetensors.load_file(tmp_path / "trace" / "routers.safetensors")["router_weight"]
    tensors = safetensors.load_file(tmp_path / "trace" / "hidden" / "sequence_001.safetensors")
    assert not (tmp_path / "trace" / "hidden" / "sequence_002.safetensors").exists()
    inputs = tensors["gate_in"] * tensors["scale"][..., None]
    rows = (made.trace.sequence == 1) & (made.trace.phase == DECODE)
    assert tensors["position"].tolist() == made.trace.position[rows].tolist()
    assert np.einsum("tsh,seh->tse", inputs, routers) == pytest.approx(
        made.trace.logits[rows], abs=0.15
    )


@pytest.mark.parametrize(
    ("preset", "given", "told"),
    [
        (ONE, {"tokens": 0}, "tokens=0"),
        (ONE, {"sequences": 0}, "sequences=0"),
        (ONE, {"seed": -1}, "seed=-1"),
        (
            ONE,
            {"tokens": 10**9},
            "tokens=1000000000 are 3000000012 rows, must be at most 2147483647",
        ),
        (ONE, {"lookahead": 5}, "lookahead=5 must be below 5, the sites of one in a row"),
        (ONE, {"hidden_sequences": 4}, "hidden_sequences=4 exceeds sequences=3"),
        (BOTH, {"prompt_tokens": 0}, "the encoder of both needs a prompt"),
        (BOTH, {"hidden_sequences": 1}, "set hidden_sequences=0"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(preset, given, told):
    with pytest.raises(ValueError, match=r".") as refused:
        make(preset, **given)
    assert told in str(refused.value)


def test_a_request_may_be_at_the_ends_of_its_ranges_and_is_of_eight_sequences_by_default():
    least = {"tokens": 1, "sequences": 1, "prompt_tokens": 0, "seed": 0, "lookahead": 0}
    trace = make(**least).trace
    assert (trace.ids.shape, trace.lookahead, trace.header.lookahead) == ((1, 5, 2), {}, None)
    most = make(tokens=1, lookahead=4, hidden_sequences=3)
    assert (sorted(most.inputs), most.inputs[2].shape[:2]) == ([0, 1, 2], (5, 5))
    scores = most.trace.lookahead["raw"][most.trace.phase == DECODE]
    assert np.isfinite(scores[:, 0]).all()
    assert not np.isfinite(scores[:, 1, 3]).any()
    both = make(BOTH, lookahead=2, prompt_tokens=1)
    assert [one.weight.shape[0] for one in (both.routers,)] == [3]
    assert both.inputs == {}
    assert Request("one", 5) == Request("one", 5, "", 8, 32, 0, 3, 0)


def test_the_command_writes_a_trace_and_tells_how_good_the_fit_is(tmp_path, capsys):
    given = [
        "like=switch_base_8",
        "reading=balanced",
        "tokens=5",
        "sequences=2",
        "prompt_tokens=3",
        "lookahead=1",
        f"output_dir={tmp_path / 'trace'}",
    ]
    assert main(given) == 0
    told = capsys.readouterr().out
    assert "SYNTHETIC, like switch_base_8, reading=balanced" in told
    assert "borrowed from other models: kept_8" in told
    trace = read_trace(tmp_path / "trace", "all")
    assert (trace.header.name, trace.header.source) == ("synthetic_switch_base_8", "synthetic")
    assert main(given) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["colour=red"], "colour is no option"),
        (["like=mixtral_8x7b", "tokens=1"], "missing output_dir="),
        (["like=tiny_mixtral", "tokens=1", "output_dir=d"], "unknown like=tiny_mixtral"),
        (
            ["like=mixtral_8x7b", "reading=odd", "tokens=1", "output_dir=d"],
            "unknown reading=odd of mixtral_8x7b",
        ),
        (["like=mixtral_8x7b", "tokens=0", "output_dir=d"], "tokens=0"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(given, told, capsys):
    assert main(given) == 2
    assert told in capsys.readouterr().err


def test_arguments_become_a_request():
    words = ["like=olmoe_1b_7b", "tokens=9", "output_dir=d", "seed=4", "lookahead=0"]
    request, place, overwrite = parse(words)
    assert request == Request("olmoe_1b_7b", 9, seed=4, lookahead=0)
    assert (str(place), overwrite) == ("d", False)


def test_a_trace_that_does_not_fit_the_memory_is_one_line(monkeypatch, tmp_path, capsys):
    def full(*given, **more):
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr("capture.synthesize.synthesize_like", full)
    assert main(["like=mixtral_8x7b", "tokens=1", f"output_dir={tmp_path / 'd'}"]) == 2
    told = "synthesize: Unable to allocate 9 TiB; take fewer sequences or tokens\n"
    assert capsys.readouterr().err == told
