"""What holds for every family that the project trains: resumption, prediction, recorded gates."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from capture.tiny.evaluation import (  # noqa: E402
    byte_lengths,
    capture_gating,
    held_out_passages,
    token_losses,
)
from capture.tiny.families import FAMILIES, family_named, family_of  # noqa: E402
from capture.tiny.model import build_model, language_loss, load_model, make_optimizer  # noqa: E402
from capture.tiny.recipes import RECIPES, Recipe  # noqa: E402
from capture.tiny.tokenizer import (  # noqa: E402
    SHIPPED_TOKENIZER,
    TokenStream,
    consecutive_windows,
    load_tokenizer,
)
from capture.tiny.training import BatchSampler, RunState  # noqa: E402
from capture.train_tiny import main, train  # noqa: E402

SMALL = {"layers": 4, "hidden": 16, "inter": 8, "vocab": 300, "seq": 12, "batch": 2, "tokens": 144}
ALL = {
    "tiny_mixtral": replace(RECIPES["tiny_mixtral"], experts=4, heads=2, kv_heads=1, **SMALL),
    "tiny_qwen2moe": replace(
        RECIPES["tiny_qwen2moe"], experts=6, top_k=3, heads=2, kv_heads=1, **SMALL
    ),
    "tiny_switch": replace(
        RECIPES["tiny_switch"], experts=4, heads=2, kv_heads=2, prefix=(2, 5), **SMALL
    ),
}
# The largest size of a checkpoint in float16, in bytes.
LARGEST_BYTES = {"tiny_mixtral": 15_000_000, "tiny_qwen2moe": 7_000_000, "tiny_switch": 4_000_000}

every_recipe = pytest.mark.parametrize("name", ALL)


@pytest.fixture(autouse=True)
def one_thread():
    """Run with one thread: sums of several threads may round differently from run to run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_stream() -> TokenStream:
    ids = np.random.default_rng(0).integers(0, 300, 600).astype(np.uint16)
    return TokenStream(ids, np.zeros(600, np.int32), np.zeros(600, np.uint8))


def windows(rows: int = 3, length: int = 13) -> torch.Tensor:
    return torch.from_numpy(
        tiny_stream().ids[: rows * length].astype(np.int64).reshape(rows, length)
    )


KILLED_RUN = """
import os, signal, sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[2])
from test_train_tiny_families import ALL, tiny_stream
from capture.tiny.training import RunState; from capture.train_tiny import train
torch.set_num_threads(1)
def kill_after_four(step, loss):
    if step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
train(RunState.start(ALL[sys.argv[3]], tiny_stream()), Path(sys.argv[1]), 3, kill_after_four)
"""


def test_every_shipped_recipe_is_tested_here() -> None:
    assert set(ALL) == set(RECIPES) == set(LARGEST_BYTES)
    assert {recipe.family for recipe in RECIPES.values()} == set(FAMILIES)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "tiny_qwen2moe" else pytest.mark.thorough)
        for name in ALL
    ],
)
def test_a_killed_run_resumes_and_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    straight = RunState.start(ALL[name], tiny_stream())
    train(straight, tmp_path / "straight.pt", save_every=100)
    assert straight.step == 6

    state_file = tmp_path / "run_state.pt"
    command = [sys.executable, "-c", KILLED_RUN, str(state_file), str(Path(__file__).parent), name]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    resumed = RunState.start(ALL[name], tiny_stream())
    resumed.load(state_file)
    assert resumed.step == 3
    train(resumed, state_file, save_every=100)
    theirs = resumed.model.state_dict()
    assert [
        key
        for key, value in straight.model.state_dict().items()
        if not torch.equal(value, theirs[key])
    ] == []
    assert resumed.losses == straight.losses


@pytest.mark.alike
@every_recipe
def test_a_run_learns(name: str, tmp_path: Path) -> None:
    stream = tiny_stream()
    stream.ids[:] = np.arange(600) % 7
    state = RunState.start(replace(ALL[name], tokens=24 * 60, warmup_steps=5), stream)
    train(state, tmp_path / "run_state.pt", save_every=1000)
    assert state.losses[0] == pytest.approx(np.log(300), abs=0.3)
    assert np.mean(state.losses[-5:]) < 0.75 * np.mean(state.losses[:5])


@every_recipe
def test_every_name_that_a_family_gives_is_one_of_its_parameters(name: str) -> None:
    family, model = FAMILIES[ALL[name].family], build_model(ALL[name])
    names = [parameter for parameter, _ in model.named_parameters()]
    for ending in (*family.residual_outputs, *family.embeddings, *family.undecayed):
        assert any(parameter.endswith(ending) for parameter in names), ending
    routers = {id(site.router_weight) for site in family.sites(model)}
    free = {id(value) for value in make_optimizer(model, ALL[name]).param_groups[1]["params"]}
    assert routers <= free


@every_recipe
def test_full_recipes_fit_the_bytes_that_their_checkpoints_may_have(name: str) -> None:
    recipe = RECIPES[name]
    with torch.device("meta"):
        model = FAMILIES[recipe.family].fresh(recipe)
    assert (
        2 * sum(parameter.numel() for parameter in model.parameters()) < 0.99 * LARGEST_BYTES[name]
    )


def test_the_recipes_are_those_the_systems_need() -> None:
    fine, switch = RECIPES["tiny_qwen2moe"], RECIPES["tiny_switch"]
    assert (fine.experts >= 32, fine.top_k) == (True, 4)
    assert fine.config["shared_expert_intermediate_size"] == fine.top_k * fine.inter
    assert (switch.experts, switch.top_k) == (8, 1)
    sites = family_named(switch.family).sites(build_model(replace(ALL["tiny_switch"], layers=12)))
    assert [site.stack for site in sites] == ["encoder"] * 6 + ["decoder"] * 6


@every_recipe
def test_a_token_is_predicted_from_all_tokens_before_it_and_none_after(name: str) -> None:
    model = build_model(ALL[name]).eval()
    predict = family_of(model).predict
    tokens, prefix = windows(), 4
    with torch.no_grad():
        # Fresh weights are so small that one token's effect on another would be lost in rounding.
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.dim() > 1 else 1)
        before = predict(model, tokens, prefix)
        assert before.shape == (3, 13 - prefix, 300)
        for changed in range(13):
            other = tokens.clone()
            other[:, changed] += 1
            differs = (predict(model, other, prefix) - before).abs().amax((0, 2)) > 1e-4
            # Logits i predict token prefix + i, so those after the changed token depend on it.
            assert differs.tolist() == [prefix + i > changed for i in range(13 - prefix)]


def test_the_loss_of_an_encoder_decoder_is_the_one_transformers_takes() -> None:
    model = build_model(ALL["tiny_switch"]).eval()
    tokens = windows()
    theirs = model(input_ids=tokens[:, :4], labels=tokens[:, 4:].contiguous()).loss
    assert language_loss(model, tokens, 4).item() == pytest.approx(theirs.item(), rel=1e-6)


def test_the_prefix_of_a_decoder_only_model_just_is_not_counted() -> None:
    model = build_model(ALL["tiny_mixtral"]).eval()
    tokens = windows().numpy()
    np.testing.assert_allclose(
        token_losses(model, tokens, 5), token_losses(model, tokens, 1)[:, 4:], rtol=1e-6
    )


def test_no_token_of_the_switch_recipe_is_dropped_for_want_of_capacity() -> None:
    model = build_model(ALL["tiny_switch"]).eval()
    same = torch.full((1, 200), 7)
    kept = []
    router = model.encoder.block[1].layer[-1].mlp.router
    router.register_forward_hook(lambda module, args, outputs: kept.append(outputs[0].sum().item()))
    model.encoder(input_ids=same)
    assert kept == [200]


@every_recipe
def test_captured_gates_are_the_models_own(name: str) -> None:
    recipe = ALL[name]
    model = build_model(recipe).eval()
    family = family_of(model)
    tokens = torch.from_numpy(np.random.default_rng(1).integers(0, 300, (10, 80)))
    captured = capture_gating(model, tokens.numpy())
    lengths = {"encoder": family.prefix, "decoder": tokens.shape[1] - family.prefix + 1}
    assert list(captured) == list(dict.fromkeys(site.stack for site in family.sites(model)))
    for stack, gating in captured.items():
        sites = [site for site in family.sites(model) if site.stack == stack]
        assert gating.gate_inputs.shape == (len(tokens), lengths[stack], len(sites), 16)
        again = np.einsum("stlh,leh->stle", gating.gate_inputs, gating.routers)
        np.testing.assert_allclose(gating.logits, again, rtol=1e-4, atol=1e-5)
        ranked = np.argsort(-gating.logits, -1)[..., : recipe.top_k]
        assert (np.sort(ranked) == np.sort(gating.experts)).all()
        assert (np.diff(gating.weights, axis=-1) <= 0).all()
        # A gate input is the normalised residual stream times the gain.
        scale = gating.gate_inputs / gating.norm_gains
        np.testing.assert_allclose((scale**2).mean(-1), 1.0, rtol=0.05)
        assert all(not site.router._forward_hooks for site in sites)


@every_recipe
def test_expert_outputs_weighted_and_summed_are_what_the_experts_return(name: str) -> None:
    model = build_model(ALL[name]).eval()
    family = family_of(model)
    for site in family.sites(model)[-2:]:
        inputs = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            outputs = site.router(inputs[None] if "switch" in name else inputs)
            routed = family.routed(outputs)
            total = torch.zeros_like(inputs)
            for token in range(5):
                for weight, index in zip(
                    routed.weights[token], routed.experts[token].tolist(), strict=True
                ):
                    total[token] += (
                        weight * family.expert(site.experts, index, inputs[token : token + 1])[1][0]
                    )
            if "switch" in name:
                one_hot = outputs[0].view(-1, 1, ALL[name].experts)
                theirs = site.experts(inputs, one_hot, routed.weights)
            else:
                theirs = site.experts(inputs, routed.experts, routed.weights)
        torch.testing.assert_close(total, theirs, rtol=1e-4, atol=1e-6)


def test_prefixes_are_drawn_over_their_whole_range_and_fixed_ones_move_no_generator() -> None:
    free = BatchSampler(tiny_stream(), replace(ALL["tiny_switch"], prefix=(2, 5)))
    assert {free.draw()[1] for _ in range(100)} == {2, 3, 4, 5}
    fixed = BatchSampler(tiny_stream(), ALL["tiny_mixtral"])
    drawn, prefix = fixed.draw()
    assert prefix == 1
    generator = np.random.default_rng(0)
    generator.choice(3, size=2, p=[1.0, 0.0, 0.0])
    starts = [int(generator.integers(600 - 12 - 1)) for _ in range(2)]
    for start, window in zip(starts, drawn, strict=True):
        np.testing.assert_array_equal(window.numpy(), tiny_stream().ids[start : start + 13])


def test_windows_that_share_their_prefix_predict_every_later_token_once() -> None:
    stream = tiny_stream()
    cut, _ = consecutive_windows(stream, 20, 6)
    predicted = np.concatenate([window[6:] for window in cut])
    np.testing.assert_array_equal(predicted, stream.ids[6 : 6 + len(predicted)])
    assert len(stream) - 6 - len(predicted) == (600 - 6) % (20 - 6)


def test_bytes_of_tokens_are_those_of_the_text() -> None:
    tokenizer = load_tokenizer(SHIPPED_TOKENIZER)
    lengths = byte_lengths(tokenizer)
    text = "def añadir(x):\n    return x + 1  # ünïcode ≤ 3\n"
    assert lengths[tokenizer.encode(text).ids].sum() == len(text.encode())
    assert lengths[0] == 0
    assert len(lengths) == 2048


def test_passages_too_short_are_left_out_and_a_file_of_none_is_refused(tmp_path: Path) -> None:
    line = '{"domain": "code", "document": "a", "split": "fit", "text": "%s", "licence": ""}\n'
    file = tmp_path / "passages.jsonl"
    file.write_text(line % ("word " * 300) + line % "short")
    tokenizer = load_tokenizer(SHIPPED_TOKENIZER)
    assert held_out_passages(file, tokenizer).windows.shape == (1, 200)
    file.write_text(line % "short")
    with pytest.raises(ValueError, match="has 200 tokens"):
        held_out_passages(file, tokenizer)


def test_models_of_other_types_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(
        ValueError,
        match="cannot train or evaluate a model of type 'llama'; known: mixtral, qwen2_moe",
    ):
        load_model(tmp_path)


def test_a_prefix_that_leaves_nothing_to_predict_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"cannot draw a prefix from \(1, 600\): give 1 <= least <= most <= seq=512",
    ):
        Recipe(prefix=(1, 600))


def test_the_command_names_the_models_it_knows(capsys: pytest.CaptureFixture[str]) -> None:
    for argument in ("model=tiny_llama", "tiny_switch"):
        with pytest.raises(SystemExit):
            main([argument])
        assert (
            f"{argument!r} is not model=NAME with NAME one of tiny_mixtral, tiny_qwen2moe,"
            " tiny_switch" in " ".join(capsys.readouterr().err.split())
        )


def test_the_command_starts_from_the_recipe_of_the_named_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["model=tiny_switch", "--out", str(tmp_path), "--tokens", "100"])
    assert "one step takes batch*seq = 2048 tokens" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit):
        main(["model=tiny_switch", "--out", str(tmp_path), "--seq", "100"])
    assert "cannot draw a prefix from (32, 128)" in " ".join(capsys.readouterr().err.split())
