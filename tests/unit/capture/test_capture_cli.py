"""``python -m capture`` end to end on a small random model, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from capture.__main__ import main
from capture.models.discover import CaptureError
from capture.recording.describe import describe
from capture.recording.extras import unpack_masks
from capture.recording.load import check_model
from capture.recording.prompts import KEYS, has_repetition, read_prompts
from capture.recording.settings import SettingError, Settings, parse_settings
from helpers.checkpoints import save_checkpoint, write_prompts
from helpers.tiny_models import build
from sim.traces.trace import DECODE, PREFILL, Trace, read_trace
from sim.values.places import ROOT

REQUIRED = ["model=m", "prompts=p", "output_dir=o"]


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(build("mixtral"), tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def arguments(model_directory: Path) -> list[str]:
    prompts = write_prompts(model_directory / "prompts.jsonl")
    return [
        f"model={model_directory}",
        f"prompts={prompts}",
        "sequences=4",
        "prompt_tokens=6-9",
        "decode_tokens=8",
        "hidden_sequences=1",
        "sparsities=0.5,0.9",
    ]


@pytest.fixture(scope="module")
def captured(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traces") / "noise"
    threads = torch.get_num_threads()
    assert main([*arguments, f"output_dir={directory}", "threads=1"]) == 0
    torch.set_num_threads(threads)
    return directory


@pytest.fixture(scope="module")
def trace(captured: Path) -> Trace:
    return read_trace(captured, "all")


def test_the_trace_holds_what_was_asked_for(trace: Trace) -> None:
    header = trace.header
    assert (header.model.sites, header.model.experts, header.model.top_k) == (4, 6, 2)
    assert (header.model.hidden, header.model.expert_intermediate) == (32, 40)
    assert [(item.split, item.decode_tokens) for item in header.sequences] == [("fit", 8)] * 2 + [
        ("eval", 8)
    ] * 2
    assert all(6 <= item.prompt_tokens <= 9 for item in header.sequences)
    assert all(site.rule_match == 1.0 for site in header.sites)
    assert (header.source, header.experts_implementation, header.dtype) == (
        "captured",
        "eager",
        "float32",
    )
    assert header.columns == ("logits", "lookahead", "expert_norms", "active_shares")
    assert "output_dir" not in str(header.provenance["command"])
    assert set(header.files) == {
        "README.md",
        "routes.parquet",
        "routers.safetensors",
        "thresholds.safetensors",
        "hidden/sequence_000.safetensors",
        "hidden/sequence_002.safetensors",
        "prefill_forecasts_raw.parquet",
        "prefill_forecasts_renormed.parquet",
    }


def test_decode_feeds_the_document(trace: Trace, arguments: list[str]) -> None:
    prompts = Path(arguments[1].partition("=")[2]).read_text().splitlines()
    texts = {
        split: [json.loads(line)["text"] for line in prompts if f'"{split}"' in line]
        for split in ("fit", "eval")
    }
    for number, text in enumerate(texts["fit"] + texts["eval"]):
        tokens = trace.token[trace.sequence == number].tolist()
        assert tokens == [int(word[1:]) for word in text.split()][: len(tokens)]


def test_wide_columns_belong_to_decode_rows(trace: Trace) -> None:
    decode = trace.phase == DECODE
    assert set(trace.phase.tolist()) == {PREFILL, DECODE}
    assert trace.expert_norms is not None
    assert trace.active_shares is not None
    for values in (*trace.lookahead.values(), trace.expert_norms, trace.active_shares):
        assert np.isnan(values[~decode]).all()
    assert np.isfinite(trace.expert_norms[decode]).all()
    assert np.isfinite(trace.lookahead["raw"][decode, 0]).all()
    # Shares are multiples of 1/40, since there are 40 channels, and fall with sparsity.
    counts = trace.active_shares[decode] * 40
    np.testing.assert_allclose(counts, np.rint(counts), atol=1e-4)
    assert (np.diff(trace.active_shares[decode], axis=-1) <= 0).all()


@pytest.mark.parametrize("number", [0, 2])
def test_hidden_files_agree_with_the_columns(captured: Path, trace: Trace, number: int) -> None:
    hidden = safetensors.numpy.load_file(captured / f"hidden/sequence_{number:03d}.safetensors")
    routers = safetensors.numpy.load_file(captured / "routers.safetensors")
    own = (trace.sequence == number) & (trace.phase == DECODE)
    np.testing.assert_array_equal(hidden["position"], trace.position[own])
    masks = unpack_masks(hidden["mask_planes"], 2, 40)
    assert trace.active_shares is not None
    np.testing.assert_allclose(masks.mean(-1), trace.active_shares[own], atol=1e-6)
    inputs = hidden["gate_in"] * hidden["scale"][..., None]
    assert trace.logits is not None
    logits = np.einsum("tsh,seh->tse", inputs, routers["router_weight"])
    assert np.abs(logits - trace.logits[own]).max() < 0.2
    ahead = np.einsum("tsh,seh->tse", inputs[:, :-1], routers["router_weight"][1:])
    assert np.abs(ahead - trace.lookahead["raw"][own][:, :-1, 0]).max() < 0.2


def test_thresholds_are_fitted_on_the_fit_sequences_alone(captured: Path, trace: Trace) -> None:
    """Oracle: the gate inputs of a fresh run, put through the up matrix by hand, and a sort."""
    model = build("mixtral")
    seen: list[torch.Tensor] = []
    layer = model.model.layers[1].mlp
    handle = layer.gate.register_forward_pre_hook(
        lambda _m, args: seen.append(args[0].detach().clone())
    )
    chosen = []
    for item in trace.header.sequences:
        own = trace.sequence == item.sequence
        if item.split == "fit":
            with torch.no_grad():
                model(torch.from_numpy(trace.token[own].astype(np.int64))[None])
            chosen.append(trace.ids[own, 1])
    handle.remove()
    inputs, ids = (
        torch.cat([values.reshape(-1, values.shape[-1]) for values in seen]),
        np.concatenate(chosen),
    )
    stored = safetensors.numpy.load_file(captured / "thresholds.safetensors")["thresholds"][1]
    for expert in range(6):
        rows = (ids == expert).any(-1)
        up = layer.experts.gate_up_proj[expert].detach().chunk(2)[1]
        ordered = (inputs[torch.from_numpy(rows)] @ up.T).abs().flatten().sort().values
        for rank, sparsity in enumerate((0.5, 0.9)):
            place = int(np.ceil(sparsity * len(ordered) - 1e-9)) - 1
            assert stored[expert, rank] == pytest.approx(float(ordered[place]), rel=1e-4)


def test_the_rules_route_the_stored_ids(trace: Trace) -> None:
    assert trace.logits is not None
    for site in trace.header.sites:
        assert site.rule is not None
        ids, _ = site.rule.route(trace.logits[:, site.site], 2)
        same = (np.sort(ids, -1) == np.sort(trace.ids[:, site.site], -1)).all(-1)
        # Stored logits are rounded; a near-tie may fall the other way.
        assert same.mean() > 0.9


def test_the_same_capture_twice_is_the_same_trace(
    captured: Path, arguments: list[str], tmp_path: Path
) -> None:
    assert main([*arguments, f"output_dir={tmp_path / 'again'}", "threads=1"]) == 0
    first, again = read_trace(captured).header, read_trace(tmp_path / "again").header
    assert first.files == again.files


@pytest.mark.thorough
def test_weights_are_exact_unless_a_step_is_asked_for(
    trace: Trace, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "weights" not in trace.header.steps
    assert "need order" not in describe(trace.header, len(trace.step), ())
    rest = [
        "hidden_sequences=0",
        "sparsities=",
        "lookahead=0",
        "weights_step=1/8",
        f"output_dir={tmp_path / 'round'}",
    ]
    kept = [argument for argument in arguments if not argument.startswith(("hidden", "spars"))]
    assert main([*kept, *rest]) == 0
    rounded = read_trace(tmp_path / "round")
    np.testing.assert_array_equal(rounded.ids, trace.ids)
    np.testing.assert_array_equal(rounded.weights, np.rint(trace.weights * 8) / 8)
    # Need order is descending weight, then id. Coarse steps make ties, which the lower id wins.
    swapped = [
        np.lexsort((trace.ids[row, site], -trace.weights[row, site])).tolist()
        != np.lexsort((trace.ids[row, site], -rounded.weights[row, site])).tolist()
        for row, site in np.ndindex(trace.ids.shape[:2])
    ]
    assert sum(swapped) > 0
    assert rounded.header.provenance["rounding_reorders_weights"] == sum(swapped)
    assert (
        f"of {sum(swapped)} of {len(swapped)} rows"
        in (tmp_path / "round" / "README.md").read_text()
    )
    assert f"{sum(swapped)} of {len(swapped)}" in capsys.readouterr().out


def test_routing_alone_can_be_recorded(arguments: list[str], tmp_path: Path) -> None:
    chosen = [argument for argument in arguments if not argument.startswith(("hidden", "spars"))]
    rest = ["hidden_sequences=0", "sparsities=", "lookahead=0", "continuation=greedy"]
    assert main([*chosen, *rest, f"output_dir={tmp_path / 'bare'}"]) == 0
    trace = read_trace(tmp_path / "bare", "all")
    assert trace.header.columns == ("logits",)
    assert set(trace.header.files) == {"README.md", "routes.parquet"}
    assert "greedy" in str(trace.header.provenance["continuation"])


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["speed=9"], "unknown key 'speed'; known keys: model, prompts, output_dir"),
        (["sequences"], "'sequences' is not key=value"),
        (["sequences=0"], "sequences is 0, must be 1 or more"),
        (["sequences=many"], "sequences is 'many', must be a whole number"),
        (["sequences=2", "sequences=3"], "sequences is given twice"),
        (["prompt_tokens=9-3"], "prompt_tokens is '9-3'"),
        (["dtype=int8"], "dtype is 'int8', must be one of float32"),
        (["norms=raw,raw"], "norms is 'raw,raw'"),
        (["sparsities=0.9,0.5"], "sparsities is '0.9,0.5', must be ascending"),
        (["logits_step=1/0"], "logits_step is '1/0'"),
        (["weights_step=-1/4"], "weights_step is '-1/4'"),
        (["lookahead_step=0"], "lookahead_step is '0'"),
        (["device="], "device is empty"),
        (["trust_remote_code=1"], "trust_remote_code is '1', must be one of yes, no"),
        (["hidden_share=0"], "hidden_share is '0', must be a share above 0"),
        (["lookahead_position=mlp_in"], "lookahead_position is 'mlp_in', must be one of gate_in"),
        (["batch=2", "prefill_chunk=4"], "prefill_chunk would cut the padding of a batch"),
        (["logits=no", "lookahead=2"], "lookahead is checked against logits"),
        (["lookahead=0", "sparsities="], "hidden_sequences needs lookahead or sparsities"),
        (["chat=no"], "chat changes nothing without continuation=greedy"),
        (["hidden_sequences=0", "hidden_share=0.5"], "hidden_share changes nothing without hidden"),
        (["hidden_sequences=0", "hidden_dtype=float16"], "hidden_dtype changes nothing without"),
        (["logits=no", "logits_step=1/2"], "logits_step changes nothing without logits=yes"),
        (["lookahead=0", "norms=raw"], "norms changes nothing without lookahead; leave it out"),
        (["lookahead=0", "prefill_lookahead=rows"], "prefill_lookahead changes nothing without"),
    ],
)
def test_wrong_arguments_are_refused_by_key(extra: list[str], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_settings([*REQUIRED, *extra])
    assert message in str(caught.value)


def test_a_text_may_have_marks_that_other_readers_take_for_ends_of_lines(tmp_path: Path) -> None:
    """JSON allows them in a text as they are."""
    line = dict.fromkeys(KEYS, "a\u2028b\u0085c") | {"split": "eval"}
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps(line, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [prompt.text for prompt in read_prompts(file)] == ["a\u2028b\u0085c"]


def test_steps_are_fractions_and_weights_are_exact_by_default() -> None:
    assert (
        parse_settings(REQUIRED).weights_step
        == parse_settings([*REQUIRED, "weights_step=0"]).weights_step
        == 0
    )
    assert parse_settings([*REQUIRED, "weights_step=1/4096"]).weights_step == 1 / 4096


def test_missing_arguments_are_named_together() -> None:
    with pytest.raises(SettingError, match=r"missing model=\.\.\. and output_dir=\.\.\."):
        parse_settings(["prompts=p"])


def replaced(arguments: list[str], **changes: Any) -> list[str]:
    kept = [argument for argument in arguments if argument.partition("=")[0] not in changes]
    return kept + [f"{key}={value}" for key, value in changes.items()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "absent"}, "model=absent is no directory"),
        ({"model": "."}, "model=. cannot be loaded"),
        ({"prompts": "absent.jsonl"}, "absent.jsonl: cannot be read"),
        ({"sequences": 6}, "needs 3 of each split, but only 2 prompts have split=fit"),
        ({"decode_tokens": 40}, "has 30 tokens, needs"),
        ({"lookahead": 50}, "the sites of the model: no site lies further ahead"),
    ],
)
def test_wrong_inputs_exit_with_2_and_write_nothing(
    arguments: list[str],
    changes: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*replaced(arguments, **changes), "output_dir=out"]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "prompts.jsonl:1: not JSON"),
        ("[]", "must be an object"),
        ('{"domain": "a"}', "must be an object"),
    ],
)
def test_wrong_prompt_lines_are_refused_by_number(
    arguments: list[str],
    line: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    assert main([*replaced(arguments, prompts=path), f"output_dir={tmp_path / 'out'}"]) == 2
    assert message in capsys.readouterr().err


def test_a_document_in_both_splits_is_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_prompts(tmp_path / "prompts.jsonl", document="same")
    assert main([*replaced(arguments, prompts=path), f"output_dir={tmp_path / 'out'}"]) == 2
    assert "documents ['same'] are in both splits" in capsys.readouterr().err


def test_an_output_directory_in_use_is_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main([*arguments, f"output_dir={tmp_path}"]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_loops_are_told_from_text() -> None:
    assert has_repetition([1, 2, 3] * 8)
    assert not has_repetition(list(range(24)))
    assert not has_repetition([1, 2])


def test_the_line_of_a_prompt_in_the_docs_is_one(tmp_path: Path) -> None:
    """What a file of one's own must have stood on no page."""
    page = (ROOT / "docs" / "captures.md").read_text(encoding="utf-8")
    (tmp_path / "prompts.jsonl").write_text(page.partition("```json\n")[2].partition("```")[0])
    (prompt,) = read_prompts(tmp_path / "prompts.jsonl")
    assert (prompt.split, prompt.licence) == ("fit", "own")


def test_a_folder_that_is_not_there_is_told_beside_what_the_hub_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no connection")

    monkeypatch.setattr("transformers.PretrainedConfig.get_config_dict", refuse)
    with pytest.raises(CaptureError, match="there is no such folder here, and on the hub: no conn"):
        check_model(Settings("models/nix", Path("p"), Path("o")))
