"""The trainer: recipe and losses against worked numbers, and killed runs against whole ones."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rich.console import Console  # noqa: E402

from capture import train_tiny  # noqa: E402
from capture.tiny.corpus import Corpus, Document  # noqa: E402
from capture.tiny.evaluation import (  # noqa: E402
    capture_gating,
    evaluate,
    held_out_loss,
    token_losses,
)
from capture.tiny.model import (  # noqa: E402
    balance_loss,
    build_model,
    load_model,
    make_optimizer,
    recorded_router_logits,
    z_loss,
)
from capture.tiny.recipes import RECIPES, Recipe  # noqa: E402
from capture.tiny.tokenizer import TokenStream, consecutive_windows, load_tokenizer  # noqa: E402
from capture.tiny.training import BatchSampler, RunState  # noqa: E402
from capture.train_tiny import main, train  # noqa: E402
from sim.process import progress  # noqa: E402

TINY = Recipe(
    layers=2,
    hidden=16,
    inter=8,
    experts=4,
    heads=2,
    kv_heads=1,
    vocab=300,
    seq=8,
    batch=2,
    tokens=96,
)
SHIPPED = Path(train_tiny.__file__).parent / "assets" / "tiny_mixtral"


def tiny_stream(seed: int = 0, num_tokens: int = 600) -> TokenStream:
    """Random tokens, the second half of them in another domain."""
    ids = np.random.default_rng(seed).integers(0, 300, num_tokens).astype(np.uint16)
    half = np.arange(num_tokens) >= num_tokens // 2
    return TokenStream(ids, half.astype(np.int32), half.astype(np.uint8))


def parameters(state: RunState) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.model.state_dict().items()}


def assert_bitwise_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


@pytest.fixture(autouse=True)
def one_thread():
    """Run with one thread: sums of several threads may round differently from run to run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("forgotten", ["nothing", "weights", "sampler", "optimizer"])
def test_a_resumed_run_owes_its_bits_to_all_of_its_state(tmp_path: Path, forgotten: str) -> None:
    state_file = tmp_path / "run_state.pt"
    state = RunState.start(TINY, tiny_stream())
    train(state, state_file, save_every=4)
    resumed = RunState.start(TINY, tiny_stream())
    fresh = RunState.start(TINY, tiny_stream())
    resumed.load(state_file)
    assert resumed.step == 4
    if forgotten == "weights":
        resumed.model.load_state_dict(fresh.model.state_dict())
    elif forgotten == "sampler":
        resumed.sampler = fresh.sampler
    elif forgotten == "optimizer":
        resumed.optimizer = make_optimizer(resumed.model, TINY)
    train(resumed, tmp_path / "other.pt", save_every=100)
    assert (resumed.losses == state.losses) == (forgotten == "nothing")


def test_a_kill_while_saving_leaves_the_last_whole_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_file = tmp_path / "run_state.pt"
    state = RunState.start(TINY, tiny_stream())
    state.save(state_file)
    before = parameters(state)

    def die_halfway(content: object, file) -> None:
        file.write(b"half of a state")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", die_halfway)
    with torch.no_grad():
        next(state.model.parameters()).add_(1)
    with pytest.raises(KeyboardInterrupt):
        state.save(state_file)
    restored = RunState.start(TINY, tiny_stream())
    restored.load(state_file)
    assert_bitwise_equal(before, parameters(restored))


def test_saving_puts_a_new_file_in_place_and_does_not_write_into_the_old_one(
    tmp_path: Path,
) -> None:
    state_file = tmp_path / "run_state.pt"
    state = RunState.start(TINY, tiny_stream())
    state.save(state_file)
    other_name = tmp_path / "other_name_of_the_same_file"
    other_name.hardlink_to(state_file)
    before = other_name.read_bytes()
    state.losses.append(1.0)
    state.save(state_file)
    assert other_name.read_bytes() == before != state_file.read_bytes()


def test_a_run_of_another_recipe_or_text_is_not_resumed(tmp_path: Path) -> None:
    state_file = tmp_path / "run_state.pt"
    RunState.start(TINY, tiny_stream()).save(state_file)
    with pytest.raises(
        ValueError, match=r"cannot resume .*seed=0 there, 1 here; give the arguments"
    ):
        RunState.start(replace(TINY, seed=1), tiny_stream()).load(state_file)
    with pytest.raises(ValueError, match="trained on text"):
        RunState.start(TINY, tiny_stream(seed=1)).load(state_file)


def test_every_step_uses_its_own_learning_rate(tmp_path: Path) -> None:
    state = RunState.start(replace(TINY, warmup_steps=3, decay_share=0.5), tiny_stream())
    rates: list[float] = []
    train(
        state,
        tmp_path / "state.pt",
        100,
        lambda step, loss: rates.append(state.optimizer.param_groups[1]["lr"]),
    )
    assert rates == pytest.approx([2e-3 / 3, 4e-3 / 3, 2e-3, 2e-3, 4e-3 / 3, 2e-3 / 3])


def test_a_step_follows_the_gradient_of_language_balance_and_z_loss(tmp_path: Path) -> None:
    recipe = replace(TINY, balance_loss=2.0, z_loss=0.5, tokens=32)
    state, oracle = RunState.start(recipe, tiny_stream()), RunState.start(recipe, tiny_stream())
    gradients: list[list[torch.Tensor]] = []
    state.optimizer.step = lambda: gradients.append(
        [value.grad.clone() for value in state.model.parameters()]
    )
    train(state, tmp_path / "state.pt", 100)
    # The weights do not change, so the steps differ only by their windows.
    for of_step in gradients:
        windows, _ = oracle.sampler.draw()
        with recorded_router_logits(oracle.model) as logits:
            words = oracle.model(input_ids=windows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(words.transpose(1, 2), windows[:, 1:])
            loss = loss + 2.0 * balance_loss(logits, 2) + 0.5 * z_loss(logits)
        expected = torch.autograd.grad(loss, list(oracle.model.parameters()))
        norm = math.sqrt(sum(float(value.square().sum()) for value in expected))
        for value, wanted in zip(of_step, expected, strict=True):
            torch.testing.assert_close(value, wanted * min(1.0, 1 / norm), rtol=1e-3, atol=1e-6)


def test_the_schedule_has_the_learning_rates_of_the_recorded_run() -> None:
    recipe = Recipe()
    assert recipe.num_steps == 1815
    assert recipe.learning_rate_at(0) == pytest.approx(2e-3 / 100)
    assert recipe.learning_rate_at(99) == recipe.learning_rate_at(1451) == 2e-3
    # As logged at steps 1500, 1600, 1800 and 1815 of the shipped checkpoint's training.
    logged = {
        1500: 0.001741046831955923,
        1600: 0.0011900826446280992,
        1800: 8.81542699724518e-05,
        1815: 5.509641873278e-06,
    }
    for step, rate in logged.items():
        assert recipe.learning_rate_at(step - 1) == pytest.approx(rate)


def test_the_default_recipe_builds_the_shipped_architecture() -> None:
    assert RECIPES["tiny_mixtral"] == Recipe()
    model = build_model(Recipe())
    shipped = load_model(SHIPPED)
    assert sum(parameter.numel() for parameter in model.parameters()) == 7_229_568
    shapes = {name: value.shape for name, value in shipped.named_parameters()}
    assert {name: value.shape for name, value in model.named_parameters()} == shapes
    assert shipped.config.num_experts_per_tok == Recipe().top_k


def test_initial_weights_follow_the_recipe() -> None:
    model = build_model(Recipe(layers=4))
    deviations = {
        name: value.std().item() for name, value in model.named_parameters() if value.dim() >= 2
    }
    assert deviations["model.embed_tokens.weight"] == pytest.approx(0.15, rel=0.02)
    assert deviations["model.layers.1.self_attn.q_proj.weight"] == pytest.approx(0.02, rel=0.05)
    for name in ("self_attn.o_proj.weight", "mlp.experts.down_proj"):
        assert deviations[f"model.layers.1.{name}"] == pytest.approx(0.02 / math.sqrt(8), rel=0.05)
    again = build_model(Recipe(layers=4))
    assert_bitwise_equal(dict(model.named_parameters()), dict(again.named_parameters()))


def test_balance_loss_is_one_for_even_load_and_e_over_k_for_a_collapsed_layer() -> None:
    # Token t prefers experts t and t + 1: every expert has the same load.
    even = torch.eye(8) * 5 + torch.eye(8).roll(1, 1) * 4
    assert balance_loss([even], 2).item() == pytest.approx(1.0)
    collapsed = torch.tensor([[50.0, 50.0, 0, 0, 0, 0, 0, 0]]).repeat(8, 1)
    assert balance_loss([collapsed], 2).item() == pytest.approx(4.0)
    # Layers do not make up for each other: two that collapsed onto different experts still cost the
    # full loss.
    assert balance_loss([collapsed, collapsed.roll(4, 1)], 2).item() == pytest.approx(4.0)


def test_z_loss_of_zero_logits_is_the_squared_logarithm_of_the_number_of_experts() -> None:
    assert z_loss([torch.zeros(3, 8), torch.zeros(3, 8)]).item() == pytest.approx(math.log(8) ** 2)


def test_routers_and_embeddings_have_no_weight_decay() -> None:
    model = build_model(TINY)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decays = {
        names[id(parameter)]: group["weight_decay"]
        for group in make_optimizer(model, TINY).param_groups
        for parameter in group["params"]
    }
    assert len(decays) == len(names)
    free = {name for name, decay in decays.items() if decay == 0}
    assert {
        "model.embed_tokens.weight",
        "model.layers.0.mlp.gate.weight",
        "model.norm.weight",
    } <= free
    assert decays["model.layers.0.mlp.experts.down_proj"] == decays["lm_head.weight"] == 0.1


def test_router_logits_are_recorded_only_inside_the_context() -> None:
    model = build_model(TINY)
    with recorded_router_logits(model) as logits:
        model(input_ids=torch.zeros(2, 8, dtype=torch.long))
        assert [tuple(of_layer.shape) for of_layer in logits] == [(16, 4), (16, 4)]
    model(input_ids=torch.zeros(2, 8, dtype=torch.long))
    assert len(logits) == 2


def test_domains_without_text_give_their_share_to_the_others() -> None:
    sampler = BatchSampler(
        tiny_stream(), replace(TINY, batch=400, tokens=8 * 400, mix=(0.1, 0.3, 0.6))
    )
    first_domain = tiny_stream().ids[:300]
    starts = {tuple(window) for window in np.lib.stride_tricks.sliding_window_view(first_domain, 5)}
    share = np.mean([tuple(window[:5].tolist()) in starts for window in sampler.draw()[0]])
    assert share == pytest.approx(0.25, abs=0.06)


def test_text_too_short_for_a_window_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"cannot draw windows of seq=8 tokens from a training text of 5 tokens"
    ):
        BatchSampler(tiny_stream(num_tokens=5), TINY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": 5}, r"top_k=5 of experts=4; give 1..experts"),
        ({"heads": 3}, r"cannot split hidden=16 over heads=3"),
        ({"heads": 16}, r"cannot split hidden=16 over heads=16"),
        ({"heads": 4, "kv_heads": 3}, r"cannot share kv_heads=3 among heads=4"),
        ({"tokens": 15}, r"one step takes batch\*seq = 16 tokens; raise --tokens"),
        ({"layers": 0}, r"layers=0; give at least 1"),
        ({"mix": (0.0, 0.0, 0.0)}, r"cannot mix domains"),
        ({"decay_share": 1.5}, r"decay_share=1.5"),
    ],
)
def test_recipes_that_cannot_work_are_refused_with_the_way_out(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot embed token 299: vocab=200"):
        RunState.start(replace(TINY, vocab=200), tiny_stream())


def test_held_out_loss_weighs_every_token_the_same() -> None:
    model = build_model(TINY).eval()
    stream = tiny_stream(num_tokens=101)
    # Every token stands for three bytes.
    losses = held_out_loss(model, *consecutive_windows(stream, 11), np.full(300, 3))
    ids = stream.ids.astype(np.int64)
    expected = [
        token_losses(model, ids[None, start : start + 11], 1).mean() for start in range(0, 91, 10)
    ]
    # Token 50 is the first of the second domain; the window that starts there is the sixth.
    for domain, part in {"code": expected[:5], "docs": expected[5:]}.items():
        assert losses[domain].tokens == 50
        assert losses[domain].nats_per_token == pytest.approx(np.mean(part), rel=1e-5)
        assert losses[domain].bits_per_byte == pytest.approx(
            np.mean(part) / 3 / math.log(2), rel=1e-5
        )


def test_captured_gates_reproduce_the_models_own_routing() -> None:
    model = build_model(TINY).eval()
    windows = tiny_stream().ids[:80].astype(np.int64).reshape(10, 8)
    gating = capture_gating(model, windows)["decoder"]
    assert gating.gate_inputs.shape == (10, 8, 2, 16)
    again = np.einsum("stlh,leh->stle", gating.gate_inputs, gating.routers)
    np.testing.assert_allclose(gating.logits, again, rtol=1e-4, atol=1e-6)
    assert (np.sort(np.argsort(-gating.logits, -1)[..., :2]) == np.sort(gating.experts)).all()
    np.testing.assert_allclose(gating.weights.sum(-1), 1.0, rtol=1e-5)
    assert (np.diff(gating.weights, axis=-1) <= 0).all()
    assert not model.model.layers[0].mlp.gate._forward_hooks


def test_expert_output_norms_are_those_of_the_experts_alone() -> None:
    model = build_model(TINY).eval()
    windows = tiny_stream().ids[:16].astype(np.int64).reshape(2, 8)
    gating = capture_gating(model, windows)["decoder"]
    experts = model.model.layers[1].mlp.experts
    for token, rank in ((0, 0), (3, 1), (7, 0)):
        chosen = gating.experts[1, token, 1, rank]
        inputs = torch.from_numpy(gating.gate_inputs[1, token, 1])
        gate, up = (experts.gate_up_proj[chosen] @ inputs).chunk(2)
        norm = (experts.down_proj[chosen] @ (torch.nn.functional.silu(gate) * up)).norm().item()
        assert gating.output_norms[1, token, 1, rank] == pytest.approx(norm, rel=1e-4)


def held_out_corpus() -> Corpus:
    """Two training documents and a held-out one, long enough for one window each."""
    lines = "".join(f"def function_{index}(x):\n    return x + {index}\n" for index in range(100))
    names = ("abc.py", "json/decoder.py", "base64.py")
    return Corpus(tuple(Document("code", name, lines, "") for name in names), ("code: a test",))


def test_the_command_trains_exports_and_evaluates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_tiny, "build_corpus", lambda *arguments, **options: held_out_corpus())
    out = tmp_path / "tiny"
    sizes = {
        "layers": 4,
        "hidden": 16,
        "inter": 8,
        "heads": 2,
        "kv-heads": 1,
        "seq": 16,
        "batch": 2,
        "tokens": 96,
    }
    size = [argument for name, value in sizes.items() for argument in (f"--{name}", str(value))]
    main(["--out", str(out), "--save-every", "1", *size])
    printed = capsys.readouterr().out
    assert "Held-out loss" in printed
    assert "HOBBIT, fig. 5a" in printed
    assert {path.name for path in out.iterdir()} >= {
        "config.json",
        "model.safetensors",
        "train_meta.json",
    }
    assert not (out / train_tiny.STATE_FILE).exists()
    # What was exported is what the next command reads.
    windows = np.resize(np.arange(9), (1, 600))
    losses = held_out_loss(load_model(out), windows, np.zeros(1, np.uint8), np.ones(2048, int))
    assert losses["code"].nats_per_token == pytest.approx(math.log(2048), abs=1.0)
    assert load_tokenizer(out).get_vocab_size() == 2048
    with pytest.raises(SystemExit):
        main(["--out", str(out), *size])
    assert "it holds a finished model; give another --out" in capsys.readouterr().err


def test_models_too_shallow_for_the_statistics_still_get_their_loss(tmp_path: Path) -> None:
    model = build_model(replace(TINY, vocab=2048))
    model.save_pretrained(tmp_path)
    load_tokenizer(SHIPPED).save(str(tmp_path / "tokenizer.json"))
    evaluation = evaluate(tmp_path, held_out_corpus(), Console(quiet=True))
    assert evaluation.losses["code"].nats_per_token == pytest.approx(math.log(2048), abs=0.5)
    assert evaluation.statistics == {}


def test_the_command_explains_wrong_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in {
        ("--out", str(tmp_path), "--resume"): "does not exist; leave out --resume to start a run",
        ("--out", str(tmp_path), "--tokens", "100"): "one step takes batch*seq = 2048 tokens",
        ("--tokens", "1.5"): "1.5 is not a whole number",
        ("--save-every", "0"): "0 is below 1",
    }.items():
        with pytest.raises(SystemExit):
            main(list(arguments))
        assert message in " ".join(capsys.readouterr().err.split())
    (tmp_path / train_tiny.STATE_FILE).touch()
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path)])
    assert "is an unfinished run; give --resume" in " ".join(capsys.readouterr().err.split())


def test_progress_goes_to_a_file_as_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with (tmp_path / "log").open("w") as file:
        state = RunState.start(replace(TINY, tokens=16 * 100), tiny_stream())
        train_tiny.train_with_progress(
            state, tmp_path / "run_state.pt", 1000, Console(file=file, width=100)
        )
    last = (tmp_path / "log").read_text(encoding="utf-8").splitlines()[-1]
    assert re.fullmatch(
        r"training: steps: 100 of 100 after \d+ s, loss \d\.\d{3} nats/token, [\d,]+ tokens/s", last
    )
