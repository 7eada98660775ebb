"""The options of a capture beyond its defaults, end to end on small random models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from capture.__main__ import main
from capture.models.discover import CaptureError, discover
from capture.models.model_cache import OF_OUTPUTS, cache_of
from capture.models.norms import attention_norms, gate_norms
from capture.recording.prompts import Passage, Prompt, prompts_file
from capture.recording.run import end_tokens, run_batch
from helpers.architectures import tiny
from helpers.checkpoints import save_checkpoint, save_tokenizer, write_prompts
from helpers.tiny_models import build
from sim.traces.trace import CHUNK, DECODE, PREFILL, Trace, read_trace

ROUTING = ("sparsities=", "lookahead=0", "hidden_sequences=0")


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_checkpoint(build("mixtral"), tmp_path_factory.mktemp("mixtral"))
    write_prompts(directory / "prompts.jsonl")
    return directory


def run(checkpoint: Path, out: Path, *extra: str) -> Trace:
    settings = {"sequences": "4", "prompt_tokens": "5-9", "decode_tokens": "6", "threads": "1"}
    settings |= {"prompts": str(checkpoint / "prompts.jsonl")} | dict(
        item.split("=", 1) for item in extra
    )
    told = [f"{key}={value}" for key, value in settings.items()]
    assert main([f"model={checkpoint}", f"output_dir={out}", *told]) == 0
    return read_trace(out, "all")


def refused(checkpoint: Path, out: Path, capsys: pytest.CaptureFixture[str], *extra: str) -> str:
    settings = [
        "sequences=4",
        "prompt_tokens=5-9",
        "decode_tokens=6",
        f"prompts={checkpoint / 'prompts.jsonl'}",
    ]
    assert main([f"model={checkpoint}", f"output_dir={out}", *settings, *extra]) == 2
    assert not out.exists()
    return capsys.readouterr().err


def test_a_batch_is_left_padded_and_records_the_same_choices(mixtral: Path, tmp_path: Path) -> None:
    alone, together = run(mixtral, tmp_path / "one"), run(mixtral, tmp_path / "two", "batch=2")
    assert together.header.provenance["batch"] == 2
    assert (~together.valid).sum() == sum(
        abs(
            alone.header.sequences[pair].prompt_tokens
            - alone.header.sequences[pair + 1].prompt_tokens
        )
        for pair in (0, 2)
    )
    for number in range(4):
        one, other = (trace.valid & (trace.sequence == number) for trace in (alone, together))
        for name in ("token", "position", "phase"):
            np.testing.assert_array_equal(getattr(alone, name)[one], getattr(together, name)[other])
        np.testing.assert_array_equal(np.sort(alone.ids[one], -1), np.sort(together.ids[other], -1))
        np.testing.assert_allclose(
            alone.lookahead["raw"][one], together.lookahead["raw"][other], atol=1 / 30
        )
        np.testing.assert_allclose(
            alone.active_shares[one], together.active_shares[other], atol=0.06
        )  # type: ignore[index]
    # Two sequences share each step, so the trace shows which experts the batch needs together.
    steps = [
        set(together.sequence[together.step == step].tolist()) for step in np.unique(together.step)
    ]
    assert steps == [{0, 1}] * 7 + [{2, 3}] * 7


def test_a_prompt_in_chunks_records_the_same_choices(mixtral: Path, tmp_path: Path) -> None:
    whole = run(mixtral, tmp_path / "whole", *ROUTING)
    chunks = run(mixtral, tmp_path / "chunks", *ROUTING, "prefill_chunk=3")
    np.testing.assert_array_equal(np.sort(whole.ids, -1), np.sort(chunks.ids, -1))
    np.testing.assert_array_equal(whole.position, chunks.position)
    first = chunks.sequence == 0
    length = whole.header.sequences[0].prompt_tokens
    assert chunks.phase[first].tolist() == [PREFILL] * 3 + [CHUNK] * (length - 3) + [DECODE] * 6
    assert np.bincount(chunks.step[first]).tolist()[:2] == [3, min(3, length - 3)]
    assert chunks.header.provenance["prefill_chunk"] == 3


@pytest.mark.parametrize(("chunk", "sizes"), [(3, [3, 3, 1]), (1, [1] * 7)])
def test_a_last_chunk_of_one_token_is_still_the_prompt(
    mixtral: Path, tmp_path: Path, chunk: int, sizes: list[int]
) -> None:
    trace = run(mixtral, tmp_path / "t", *ROUTING, "prompt_tokens=7", f"prefill_chunk={chunk}")
    for item in trace.header.sequences:
        assert (item.prompt_tokens, item.decode_tokens) == (7, 6)
        own = trace.sequence == item.sequence
        assert np.bincount(trace.step[own] - trace.step[own][0]).tolist() == sizes + [1] * 6
        chunks = [PREFILL] * chunk + [CHUNK] * (7 - chunk)
        assert trace.phase[own].tolist() == chunks + [DECODE] * 6


@pytest.mark.parametrize(("dtype", "chunk"), [("float32", 5), ("bfloat16", 4), ("float32", 1)])
def test_chunks_are_refused_where_a_model_forgets_its_state_between_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str, chunk: int
) -> None:
    """Jamba's Mamba layers carry a state into steps of one token only; Granite's into any."""
    for name in ("jamba", "granitemoehybrid"):
        directory = save_checkpoint(tiny(name), tmp_path / name)
        write_prompts(directory / "prompts.jsonl")
        told = (*ROUTING, f"dtype={dtype}", f"prefill_chunk={chunk}")
        if name == "granitemoehybrid" or chunk == 1:
            run(directory, tmp_path / f"{name}_trace", *told)
        else:
            error = refused(directory, tmp_path / "none", capsys, *told)
            assert "JambaForCausalLM computes something else of a prompt in chunks" in error
            assert "record with prefill_chunk=0" in error


def test_a_start_token_that_is_also_the_end_token_ends_nothing() -> None:
    model = tiny("nllb-moe")
    start = model.config.decoder_start_token_id
    assert end_tokens(model) == (start,)
    passage = Passage(Prompt("d", "d", "fit", "", "own"), (5, 6, 7), (9, start, 8))
    rows = run_batch(model, discover(model), [passage], 4, eos_token_ids=(start,))
    # Its text ends where the token comes again: that row is not run, nor any behind it.
    decoded = rows.phase == DECODE
    assert rows.token[decoded].tolist() == [start, 9]
    assert rows.valid[decoded].all()


def test_an_end_token_inside_a_prompt_in_chunks_ends_nothing() -> None:
    model = tiny("mixtral")
    passage = Passage(Prompt("d", "d", "fit", "", "own"), (5, 6, 7, 2, 8), (9, 10))
    rows = run_batch(model, discover(model), [passage], 2, prefill_chunk=1, eos_token_ids=(2,))
    assert rows.valid.all()
    assert rows.phase.tolist() == [PREFILL] + [CHUNK] * 4 + [DECODE] * 2


def test_greedy_text_ends_at_its_end_token(mixtral: Path, tmp_path: Path) -> None:
    """The end token is what the model says third in sequence 1 of a run without an end."""
    open_ended = run(
        mixtral, tmp_path / "open", *ROUTING, "continuation=greedy", "decode_tokens=12"
    )
    said = open_ended.token[(open_ended.sequence == 1) & (open_ended.phase == DECODE)]
    model = build("mixtral")
    model.generation_config.eos_token_id = [2, int(said[2])]
    directory = save_checkpoint(model, tmp_path / "ending")
    write_prompts(directory / "prompts.jsonl")
    for batch in (1, 4):
        ended = run(
            directory,
            tmp_path / f"b{batch}",
            *ROUTING,
            "continuation=greedy",
            "decode_tokens=12",
            f"batch={batch}",
        )
        for item in ended.header.sequences:
            fed = open_ended.token[
                (open_ended.sequence == item.sequence) & (open_ended.phase == DECODE)
            ].tolist()
            expected = fed.index(int(said[2])) if int(said[2]) in fed else len(fed)
            assert item.decode_tokens == expected
            own = ended.valid & (ended.sequence == item.sequence) & (ended.phase == DECODE)
            assert ended.token[own].tolist() == fed[:expected]
    # In a batch an ended sequence still runs and loads experts, but its rows are no tokens.
    assert ((ended.sequence == 1) & ~ended.valid & (ended.phase == DECODE)).any()


# Contracts: C90
@pytest.mark.parametrize("position", ["attn_in", "next_attn_in"])
def test_other_positions_feed_the_attentions_input(
    position: str, mixtral: Path, tmp_path: Path
) -> None:
    """Oracle: the attention's input, hooked here by name, put through router and norms by hand."""
    trace = run(
        mixtral,
        tmp_path / "out",
        f"lookahead_position={position}",
        "lookahead=2",
        "sparsities=",
        "lookahead_step=1/1024",
    )
    assert trace.header.lookahead is not None
    assert trace.header.lookahead.position == position
    model = build("mixtral")
    seen: list[torch.Tensor] = []
    handles = [
        layer.input_layernorm.register_forward_hook(
            lambda _m, _a, output: seen.append(output.detach())
        )
        for layer in model.model.layers
    ]
    own = trace.sequence == 0
    with torch.no_grad():
        model(torch.from_numpy(trace.token[own].astype(np.int64))[None])
    for handle in handles:
        handle.remove()
    decode = trace.phase[own] == DECODE
    for site in range(4):
        for ahead in (1, 2):
            scores = {
                norm: values[own][decode][:, site, ahead - 1]
                for norm, values in trace.lookahead.items()
            }
            if site + ahead > 3:
                assert np.isnan(scores["raw"]).all()
                continue
            source = site + (position == "next_attn_in")
            fed, target = seen[source][0][decode], model.model.layers[site + ahead]
            scale = (
                target.post_attention_layernorm.weight
                / model.model.layers[source].input_layernorm.weight
            )
            expected = {"raw": target.mlp.gate(fed)[0], "renormed": target.mlp.gate(fed * scale)[0]}
            for norm, values in expected.items():
                np.testing.assert_allclose(scores[norm], values.detach().numpy(), atol=2e-3)


def test_a_norm_with_a_bias_is_not_told_to_be_none() -> None:
    """Phi-3.5-MoE's router was said not to be fed by a norm."""
    model = tiny("phimoe")
    with pytest.raises(CaptureError, match="is fed by no norm that has a scale alone; record"):
        gate_norms(model, discover(model))


def test_attention_and_gate_norms_are_told_apart() -> None:
    model = build("mixtral")
    layers = discover(model)
    for layer, gate, attention in zip(
        layers, gate_norms(model, layers), attention_norms(model, layers), strict=True
    ):
        assert torch.equal(gate, layer.owner.post_attention_layernorm.weight)
        assert torch.equal(attention, layer.owner.input_layernorm.weight)


@pytest.mark.thorough
def test_gate_inputs_in_half_precision_of_a_share_of_the_rows(
    mixtral: Path, tmp_path: Path
) -> None:
    extra = (
        "hidden_dtype=float16",
        "hidden_share=0.5",
        "hidden_sequences=2",
        "decode_tokens=12",
        "logits_step=0",
    )
    trace = run(mixtral, tmp_path / "half", *extra)
    assert "logits" not in trace.header.steps
    routers = safetensors.numpy.load_file(tmp_path / "half" / "routers.safetensors")
    kept, error = 0, 0.0
    for path in sorted((tmp_path / "half" / "hidden").iterdir()):
        hidden = safetensors.numpy.load_file(path)
        assert hidden["gate_in"].dtype == np.float16
        assert "scale" not in hidden
        own = (trace.sequence == int(path.stem[-3:])) & np.isin(trace.position, hidden["position"])
        own &= trace.phase == DECODE
        assert own.sum() == len(hidden["position"])
        assert trace.logits is not None
        logits = np.einsum(
            "tsh,seh->tse", hidden["gate_in"].astype(np.float32), routers["router_weight"]
        )
        error = max(error, float(np.abs(logits - trace.logits[own]).max()))
        kept += int(own.sum())
    assert 0 < kept < 4 * 12
    assert error < 0.02
    stated = trace.header.provenance["hidden_relative_rms_error"]
    assert 0 < float(stated) < 2.0**-11
    again = run(mixtral, tmp_path / "again", *extra)
    assert again.header.files == trace.header.files


def test_choices_without_logits(
    mixtral: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = run(mixtral, tmp_path / "bare", "logits=no", "sparsities=", "hidden_sequences=0")
    # Nobody looked for a rule, so none is said to be missing.
    assert "sites_without_rule" not in trace.header.provenance
    assert "selections reproduced" not in capsys.readouterr().out
    assert trace.header.columns == ()
    assert all(site.rule is None for site in trace.header.sites)
    np.testing.assert_array_equal(trace.ids, run(mixtral, tmp_path / "full", *ROUTING).ids)


def test_a_chat_template_wraps_prompts_that_the_model_continues(tmp_path: Path) -> None:
    template = (
        "{% for message in messages %}w90 {{ message['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}w91{% endif %}"
    )
    directory = save_checkpoint(build("mixtral"), tmp_path / "chat", template)
    write_prompts(directory / "prompts.jsonl")
    plain = run(directory, tmp_path / "plain", *ROUTING, "continuation=greedy", "chat=no")
    chat = run(directory, tmp_path / "wrapped", *ROUTING, "continuation=greedy")
    assert chat.header.provenance["chat_template"] is True
    assert "chat_template" not in plain.header.provenance
    for number in range(4):
        before, after = (
            trace.token[(trace.sequence == number) & (trace.phase == PREFILL)].tolist()
            for trace in (plain, chat)
        )
        assert after == [90, *before, 91]


def test_a_bundled_set_is_known_by_name() -> None:
    assert prompts_file(Path("heldout")).name == "heldout.jsonl"


def test_what_a_model_does_not_allow_is_left_out_unless_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Zaya's router has a state, so lookahead has no meaning."""
    directory = save_checkpoint(tiny("zaya"), tmp_path / "zaya")
    write_prompts(directory / "prompts.jsonl")
    trace = run(directory, tmp_path / "out")
    told = capsys.readouterr().out
    assert "not recorded: lookahead" in told
    assert trace.lookahead == {}
    assert "ZayaRouter is not a function of its gate input alone" in str(
        trace.header.provenance["not_recorded_lookahead"]
    )
    assert (trace.header.model.experts, trace.header.provenance["null_experts"]) == (9, 1)
    assert "compute nothing" in (tmp_path / "out" / "README.md").read_text()
    assert all(site.rule is not None and site.rule.null_experts == 1 for site in trace.header.sites)
    message = refused(directory, tmp_path / "no", capsys, "lookahead=2")
    assert "ZayaRouter is not a function of its gate input alone" in message


def test_an_encoder_and_a_decoder_have_their_own_rows(tmp_path: Path) -> None:
    directory = save_checkpoint(tiny("switch_transformers"), tmp_path / "switch")
    write_prompts(directory / "prompts.jsonl")
    trace = run(directory, tmp_path / "out", "batch=2")
    header = trace.header
    assert (header.encoder_sites, header.model.sites) == (2, 4)
    assert [site.stack for site in header.sites] == ["encoder", "encoder", "decoder", "decoder"]
    assert header.provenance["active_shares_of"] == "|act(x W_in)|"
    decode = trace.phase == DECODE
    assert trace.active_shares is not None
    assert np.isnan(trace.active_shares[decode][:, :2]).all()
    assert np.isfinite(trace.active_shares[decode & trace.valid][:, 2:]).all()
    assert (trace.ids[decode][:, :2] == -1).all()
    assert (trace.ids[~decode][:, 2:] == -1).all()
    assert trace.logits is not None
    assert np.isfinite(trace.logits[decode][:, 2:]).all()
    assert np.isfinite(trace.lookahead["raw"][decode][:, 2, 0]).all()
    assert all(site.rule_match == 1.0 for site in header.sites)
    for number in range(4):
        own = trace.valid & (trace.sequence == number)
        assert trace.position[own].tolist() == list(range(own.sum()))
        assert trace.token[own & decode][0] == 0
        assert (own & decode).sum() == 6


# Contracts: C96
def test_attention_experts_are_not_measured_and_the_header_says_so(tmp_path: Path) -> None:
    directory = save_checkpoint(tiny("jetmoe"), tmp_path / "jetmoe")
    write_prompts(directory / "prompts.jsonl")
    trace = run(directory, tmp_path / "out")
    kinds = [site.kind for site in trace.header.sites]
    assert kinds == ["attn", "ffn"] * 3
    told = str(trace.header.provenance["sites_not_measured"])
    assert told.startswith("0, 2, 4: ")
    assert "lies the attention" in told
    assert (
        trace.header.provenance["active_shares_of"],
        trace.header.model.expert_intermediate,
    ) == ("|x W_up|", 48)
    decode = trace.phase == DECODE
    assert trace.active_shares is not None
    assert trace.expert_norms is not None
    for site, kind in enumerate(kinds):
        measured = (
            np.isfinite(trace.active_shares[decode, site]),
            np.isfinite(trace.expert_norms[decode, site]),
        )
        assert all((found == (kind == "ffn")).all() for found in measured)
    thresholds = safetensors.numpy.load_file(tmp_path / "out" / "thresholds.safetensors")[
        "thresholds"
    ]
    assert np.isnan(thresholds[::2]).all()
    assert (thresholds[1::2] > 0).all()


# Contracts: C89
def test_a_hash_layers_table_is_kept(tmp_path: Path) -> None:
    directory = save_checkpoint(tiny("deepseek_v4"), tmp_path / "v4")
    write_prompts(directory / "prompts.jsonl")
    trace = run(directory, tmp_path / "out")
    sites = [
        int(site) for site in str(trace.header.provenance["sites_chosen_by_token_id"]).split(", ")
    ]
    assert sites
    tables = safetensors.numpy.load_file(tmp_path / "out" / "routers.safetensors")
    for site in sites:
        assert trace.header.sites[site].rule is None
        table = tables[f"token_experts_{site}"]
        np.testing.assert_array_equal(
            np.sort(table[trace.token], -1), np.sort(trace.ids[:, site], -1)
        )
    assert "the token's id chooses" in (tmp_path / "out" / "README.md").read_text()


def test_a_model_without_a_head_reads_documents_and_cannot_continue_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = save_checkpoint(tiny("qwen3_vl_moe_text"), tmp_path / "tower")
    write_prompts(directory / "prompts.jsonl")
    assert run(directory, tmp_path / "out", *ROUTING).header.model.sites == 3
    message = refused(directory, tmp_path / "no", capsys, *ROUTING, "continuation=greedy")
    assert (
        "has no language-model head to continue with; record with continuation=document" in message
    )


def test_remote_code_does_not_run_unless_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, mark = tmp_path / "remote", tmp_path / "ran"
    directory.mkdir()
    (directory / "config.json").write_text(
        '{"model_type": "nobody", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM":'
        ' "code.Model"}}'
    )
    (directory / "code.py").write_text(f"open({str(mark)!r}, 'w')\n")
    save_tokenizer(directory)
    write_prompts(directory / "prompts.jsonl")
    message = refused(directory, tmp_path / "out", capsys)
    assert "cannot be loaded" in message
    assert message.endswith("Set trust_remote_code=yes to run it.\n")
    assert not mark.exists()


def test_a_checkpoint_without_its_routers_is_refused(
    mixtral: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers made random ones, and a trace of those was written without a word in it."""
    directory = shutil.copytree(mixtral, tmp_path / "part")
    weights = safetensors.numpy.load_file(directory / "model.safetensors")
    kept = {name: one for name, one in weights.items() if "moe.gate" not in name}
    assert len(kept) < len(weights)
    safetensors.numpy.save_file(kept, directory / "model.safetensors", {"format": "pt"})
    message = refused(directory, tmp_path / "out", capsys, *ROUTING)
    assert "lacks weights of MixtralForCausalLM, which would be random: model.layers.0." in message
    assert "gate.weight" in message


@pytest.mark.parametrize("takes_the_word", [True, False])
def test_a_model_that_keeps_no_cache_is_refused_with_a_way_out(
    takes_the_word: bool, mixtral: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not know of caches at all ended in a traceback."""
    model = build("mixtral")
    whole = model.forward

    def without(input_ids: torch.Tensor, use_cache: bool = True) -> Any:
        return whole(input_ids=input_ids, use_cache=False)

    def unaware(input_ids: torch.Tensor) -> Any:
        return whole(input_ids=input_ids, use_cache=False)

    monkeypatch.setattr(model, "forward", without if takes_the_word else unaware)
    passage = Passage(Prompt("p", "text", "fit", "a", "b"), (5, 6, 7), (8, 9))
    told = "MixtralForCausalLM returns no cache, .* as a csv yourself"
    with pytest.raises(CaptureError, match=told):
        run_batch(model, discover(model), [passage], 2)


@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
def test_the_experts_implementation_is_set_and_told(
    implementation: str, mixtral: Path, tmp_path: Path
) -> None:
    trace = run(mixtral, tmp_path / "out", *ROUTING, f"experts_implementation={implementation}")
    assert trace.header.experts_implementation == implementation


def test_a_static_caches_mask_tells_padding(mixtral: Path) -> None:
    """generate() passes masks of four dimensions with a static cache."""
    from capture.recording.hooks import RouterHooks

    model = build("mixtral")
    prompt, mask = (
        torch.randint(4, 96, (2, 6), generator=torch.Generator().manual_seed(0)),
        torch.ones(2, 6).long(),
    )
    prompt[1, :2], mask[1, :2] = 0, 0

    def recorded(**settings: Any) -> Any:
        with RouterHooks(discover(model)) as hooks:
            model.generate(
                prompt,
                attention_mask=mask,
                max_new_tokens=4,
                do_sample=False,
                eos_token_id=None,
                disable_compile=True,
                **settings,
            )
        return hooks.take()

    dynamic, static = recorded(), recorded(cache_implementation="static")
    for name in ("valid", "position", "token", "phase", "sequence"):
        np.testing.assert_array_equal(getattr(dynamic, name), getattr(static, name))
    np.testing.assert_array_equal(
        np.sort(dynamic.ids[dynamic.valid], -1), np.sort(static.ids[static.valid], -1)
    )


def test_flushing_at_every_step_records_the_same(mixtral: Path) -> None:
    from capture.recording.hooks import RouterHooks

    model, passage = build("mixtral"), torch.tensor([[4, 5, 6, 7]])
    found = []
    for flush_bytes in (1, 1 << 30):
        with RouterHooks(discover(model), flush_bytes=flush_bytes) as hooks, torch.no_grad():
            output = model(passage, use_cache=True)
            for token in (8, 9):
                output = model(torch.tensor([[token]]), **{OF_OUTPUTS: cache_of(output)})
        found.append(hooks.take())
    for name in ("step", "token", "ids", "weights", "logits"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name))
    assert torch.equal(found[0].gate_in, found[1].gate_in)


def test_end_tokens_are_those_of_the_generation_settings() -> None:
    model = build("mixtral")
    model.generation_config.eos_token_id = [7, 8]
    assert end_tokens(model) == (7, 8)
    model.generation_config.eos_token_id = None
    assert end_tokens(model) == (2,)
    passage = Passage(Prompt("prose", "a", "fit", "", "CC0-1.0"), (4, 5), (6, 2, 9))
    rows = run_batch(model, discover(model), [passage], 3, eos_token_ids=end_tokens(model))
    assert rows.token.tolist() == [4, 5, 6]
