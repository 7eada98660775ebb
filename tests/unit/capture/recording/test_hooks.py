"""What the hooks record, against unhooked runs, one-shot runs and recomputation from scratch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from capture.models.discover import CaptureError, MoELayer, discover
from capture.models.expert_forms import form_of
from capture.models.model_cache import OF_OUTPUTS, cache_of
from capture.models.norms import gate_norms
from capture.recording.extras import SiteExtras, pack_masks, site_extras, unpack_masks
from capture.recording.hooks import RouterHooks
from capture.recording.lookahead import lookahead_scores, router_scorer
from capture.recording.prompts import Passage, Prompt
from capture.recording.rows import Rows
from capture.recording.rules import fit_rule
from capture.recording.run import run_passages
from helpers.tiny_models import FAMILIES, build
from sim.traces.trace import CHUNK, DECODE, PREFILL

PROMPT = Prompt("prose", "a", "fit", "", "CC0-1.0")
SPARSITIES = (0.5, 0.8, 0.9)


def passages(count: int = 3) -> list[Passage]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, 96, (count, 24), generator=generator).tolist()
    return [
        Passage(PROMPT, tuple(row[: 8 + index]), tuple(row[8 + index :]))
        for index, row in enumerate(tokens)
    ]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


@pytest.fixture(scope="module")
def rows(model: Any) -> Rows:
    return run_passages(model, discover(model), passages(), decode_tokens=6)


def left_padded_batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, 96, (3, 7), generator=torch.Generator().manual_seed(2))
    mask = torch.ones(3, 7, dtype=torch.long)
    for row, padding in enumerate((0, 2, 4)):
        ids[row, :padding], mask[row, :padding] = 0, 0
    return ids, mask


def generate(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> Any:
    return model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=6,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        eos_token_id=None,
    )


def test_a_hooked_run_is_bitwise_the_unhooked_run(model: Any) -> None:
    ids, mask = left_padded_batch()
    plain = generate(model, ids, mask)
    with RouterHooks(discover(model)) as hooks:
        hooked = generate(model, ids, mask)
    assert torch.equal(plain.sequences, hooked.sequences)
    assert all(
        torch.equal(one, other) for one, other in zip(plain.logits, hooked.logits, strict=True)
    )
    assert len(np.unique(hooks.take().step)) == 6


def test_hooks_leave_nothing_behind(model: Any) -> None:
    with RouterHooks(discover(model)):
        model(torch.tensor([[4, 5]]))
    modules = list(model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def test_every_real_token_of_a_left_padded_batch_is_recorded_once(model: Any) -> None:
    ids, mask = left_padded_batch()
    with RouterHooks(discover(model)) as hooks:
        sequences = generate(model, ids, mask).sequences
    rows = hooks.take()
    assert rows.phase.tolist() == [PREFILL] * 21 + [DECODE] * 15
    found = list(
        zip(
            rows.sequence[rows.valid],
            rows.position[rows.valid],
            rows.token[rows.valid],
            strict=True,
        )
    )
    # The last token is generated but never fed.
    fed = [sequences[row, padding:-1].tolist() for row, padding in enumerate((0, 2, 4))]
    expected = {
        (row, place, token) for row, tokens in enumerate(fed) for place, token in enumerate(tokens)
    }
    assert len(found) == len(expected)
    assert set(found) == expected
    assert set(rows.position[~rows.valid]) == {-1}
    assert rows.ids.shape[:2] == (36, len(discover(model)))


def test_padding_does_not_change_the_choices_of_real_tokens(model: Any) -> None:
    ids, mask = left_padded_batch()
    with RouterHooks(discover(model)) as hooks:
        model(ids, attention_mask=mask)
        padded = hooks.take()
        model(ids[2:, 4:])
        alone = hooks.take()
    own = padded.valid & (padded.sequence == 2)
    np.testing.assert_array_equal(padded.ids[own], alone.ids)


def test_positions_and_tokens_of_cached_decoding(rows: Rows) -> None:
    for number, passage in enumerate(passages()):
        own = rows.sequence == number
        length = len(passage.prefill)
        assert rows.position[own].tolist() == list(range(length + 6))
        assert rows.token[own].tolist() == [*passage.prefill, *passage.following[:6]]
        assert rows.phase[own].tolist() == [PREFILL] * length + [DECODE] * 6
    assert rows.step.tolist() == sorted(rows.step)
    assert len(set(rows.step.tolist())) == 3 * 7


def test_decode_routing_equals_one_shot_routing(model: Any, rows: Rows) -> None:
    with RouterHooks(discover(model)) as hooks:
        for passage in passages():
            model(torch.tensor([[*passage.prefill, *passage.following[:6]]]))
    whole = hooks.take()
    np.testing.assert_array_equal(np.sort(whole.ids, -1), np.sort(rows.ids, -1))


def test_greedy_continuation_feeds_what_generate_would(model: Any) -> None:
    passage = passages(1)[0]
    rows = run_passages(
        model, discover(model), [Passage(PROMPT, passage.prefill, ())], decode_tokens=5
    )
    prompt = torch.tensor([passage.prefill])
    greedy = generate(model, prompt, torch.ones_like(prompt)).sequences[0]
    assert rows.token.tolist() == greedy[: len(rows.token)].tolist()


def test_chunked_prefill_is_a_chunk(model: Any) -> None:
    tokens = torch.tensor([passages(1)[0].prefill])
    with RouterHooks(discover(model)) as hooks:
        output = model(tokens[:, :5], use_cache=True)
        model(tokens[:, 5:], **{OF_OUTPUTS: cache_of(output)})
    rows = hooks.take()
    assert rows.phase.tolist() == [PREFILL] * 5 + [CHUNK] * 3
    assert rows.position.tolist() == list(range(8))


def test_rows_after_the_end_of_text_are_not_valid(model: Any) -> None:
    with RouterHooks(discover(model), eos_token_ids=[2]) as hooks:
        output = model(torch.tensor([[4, 5], [6, 2]]), use_cache=True)
        for tokens in ([[2], [7]], [[9], [8]]):
            output = model(torch.tensor(tokens), **{OF_OUTPUTS: cache_of(output)})
    rows = hooks.take()
    assert rows.valid.tolist() == [True] * 4 + [False, True] + [False, True]


def test_the_fitted_rule_reproduces_every_selection(model: Any, rows: Rows) -> None:
    for layer in discover(model):
        site = layer.site
        rule, match, error = fit_rule(
            layer, rows.logits[:, site], rows.ids[:, site], rows.weights[:, site]
        )
        assert (rule.score, rule.weight) == (
            "softmax",
            "gather" if layer.num_experts == 8 else "norm",
        )
        assert match == 1.0
        assert error < 1e-6


def ahead(
    layers: list[MoELayer], rows: Rows, depth: int, norms: list[torch.Tensor] | None
) -> torch.Tensor:
    assert rows.gate_in is not None
    assert rows.logits is not None
    gate_in, logits = rows.gate_in, torch.from_numpy(rows.logits)
    scorers = [
        router_scorer(layer, gate_in[:, layer.site], logits[:, layer.site]) for layer in layers
    ]
    return lookahead_scores(
        layers, scorers, gate_in, depth, None if norms is None else (norms, norms)
    )


def test_lookahead_is_the_later_router_fed_with_this_input(model: Any, rows: Rows) -> None:
    layers = discover(model)
    scales = gate_norms(model, layers)
    raw, renormed = ahead(layers, rows, 3, None), ahead(layers, rows, 3, scales)
    for site in range(len(layers)):
        for distance in range(1, 4):
            if site + distance >= len(layers):
                assert raw[:, site, distance - 1].isnan().all()
                assert renormed[:, site, distance - 1].isnan().all()
                continue
            gate_in = rows.gate_in[:, site]
            with torch.no_grad():
                expected = layers[site + distance].router(gate_in)[0]
                exchanged = layers[site + distance].router(
                    gate_in / scales[site] * scales[site + distance]
                )[0]
            torch.testing.assert_close(raw[:, site, distance - 1], expected)
            torch.testing.assert_close(renormed[:, site, distance - 1], exchanged)
            assert not torch.allclose(expected, exchanged, atol=1e-2)


def test_renormed_lookahead_is_the_residual_under_the_later_norm(model: Any, rows: Rows) -> None:
    """By definition it is what the later layer's norm and router make of this layer's residual."""
    layers = discover(model)
    residuals: list[torch.Tensor] = []
    norms = [model.model.layers[layer.layer].post_attention_layernorm for layer in layers]
    handle = norms[0].register_forward_pre_hook(
        lambda _module, args: residuals.append(args[0].detach().clone())
    )
    passage = passages(1)[0]
    model(torch.tensor([passage.prefill]))
    handle.remove()
    with torch.no_grad():
        expected = layers[1].router(norms[1](residuals[0])[0])[0]
    ours = ahead(layers, rows, 1, gate_norms(model, layers))[: len(passage.prefill)]
    torch.testing.assert_close(ours[:, 0, 0], expected, rtol=1e-4, atol=1e-4)


def extras_of_site(model: Any, rows: Rows, site: int) -> SiteExtras:
    return site_extras(
        form_of(discover(model)[site]),
        rows.expert_inputs[:, site],
        torch.from_numpy(rows.ids[:, site]),
        torch.from_numpy(rows.weights[:, site]),
        fit=torch.from_numpy(rows.sequence < 2),
        decode=torch.from_numpy(rows.phase == DECODE),
        kept=torch.from_numpy((rows.phase == DECODE) & (rows.sequence == 1)),
        sparsities=SPARSITIES,
    )


def test_norms_shares_and_masks_equal_a_recomputation_row_by_row(model: Any, rows: Rows) -> None:
    site = 1
    extras = extras_of_site(model, rows, site)
    experts = discover(model)[site].experts
    decode = np.flatnonzero(rows.phase == DECODE)
    kept = np.flatnonzero((rows.phase == DECODE) & (rows.sequence == 1))
    for index, row in enumerate(decode):
        for slot, expert in enumerate(rows.ids[row, site]):
            x = rows.gate_in[row, site]
            gate, up = (experts.gate_up_proj[expert].detach() @ x).chunk(2)
            output = experts.down_proj[expert].detach() @ (functional.silu(gate) * up)
            assert extras.norms[index, slot].item() == pytest.approx(output.norm().item(), rel=1e-4)
            for rank in range(len(SPARSITIES)):
                active = up.abs() >= extras.thresholds[expert, rank]
                # One channel may lie at its threshold, where the order of summation decides.
                share = extras.shares[index, slot, rank].item()
                assert share == pytest.approx(active.float().mean().item(), abs=1.1 / len(up))
                if row in kept:
                    mask = extras.masks[kept.tolist().index(row), slot, rank]
                    assert (mask != active).sum() <= 1


# Contracts: C96
def test_thresholds_are_the_smallest_values_with_enough_below(model: Any, rows: Rows) -> None:
    site = 2
    extras = extras_of_site(model, rows, site)
    experts = discover(model)[site].experts
    for expert in range(experts.num_experts):
        chosen = (rows.ids[:, site] == expert).any(-1) & (rows.sequence < 2)
        if not chosen.any():
            continue
        inputs = rows.gate_in[torch.from_numpy(chosen), site]
        sample = (inputs @ experts.gate_up_proj[expert].detach().T).chunk(2, -1)[1].abs().flatten()
        for rank, sparsity in enumerate(SPARSITIES):
            threshold = extras.thresholds[expert, rank]
            assert torch.isclose(sample, threshold, rtol=1e-4).any()
            assert (sample <= threshold * (1 + 1e-4)).float().mean() >= sparsity
            assert (sample < threshold * (1 - 1e-4)).float().mean() < sparsity


def test_an_expert_without_a_sample_uses_the_sites_thresholds(model: Any, rows: Rows) -> None:
    layer = discover(model)[0]
    ids = torch.zeros(len(rows.ids), 1, dtype=torch.int16)
    everything = torch.ones(len(ids), dtype=torch.bool)
    extras = site_extras(
        form_of(layer),
        rows.expert_inputs[:, 0],
        ids,
        torch.ones(ids.shape),
        fit=everything,
        decode=everything,
        kept=everything,
        sparsities=SPARSITIES,
    )
    assert extras.num_pooled == layer.num_experts - 1
    assert torch.equal(extras.thresholds[0], extras.thresholds[1])


def test_masks_survive_packing() -> None:
    values = np.random.default_rng(0).random((5, 2, 1, 21))
    masks = values >= np.array([0.5, 0.8, 0.9])[:, None]
    planes = pack_masks(masks)
    assert planes.shape == (5, 2, 2, math.ceil(21 / 8))
    np.testing.assert_array_equal(unpack_masks(planes, 3, 21), masks)


def test_a_run_that_records_nothing_is_an_error(model: Any) -> None:
    with pytest.raises(CaptureError, match="no step was recorded"), RouterHooks(discover(model)):
        pass


def test_a_step_that_skips_a_site_is_an_error() -> None:
    model = build("mixtral")
    layers = discover(model)
    block = layers[2].block
    block.forward = lambda hidden: hidden  # type: ignore[assignment]
    with pytest.raises(CaptureError, match="out of turn"), RouterHooks(layers):
        model(torch.tensor([[4, 5]]))


def test_a_last_site_that_is_skipped_is_an_error() -> None:
    model = build("mixtral")
    layers = discover(model)
    layers[-1].block.forward = lambda hidden: hidden  # type: ignore[assignment]
    with pytest.raises(CaptureError, match="sites 3 to 3 were not recorded"), RouterHooks(layers):
        model(torch.tensor([[4, 5]]))


def test_beams_are_refused(model: Any) -> None:
    with RouterHooks(discover(model)):
        output = model(torch.tensor([[4, 5], [6, 7]]), use_cache=True)
        cache_of(output).batch_select_indices(torch.tensor([0]))
        with pytest.raises(CaptureError, match="beams and reordered batches"):
            model(torch.tensor([[8]]), **{OF_OUTPUTS: cache_of(output)})
    prompt = torch.tensor([[4, 5, 6]])
    refusal = "the cache is reordered: beams cannot be recorded; use plain greedy"
    with pytest.raises(CaptureError, match=refusal), RouterHooks(discover(model)):
        model.generate(prompt, num_beams=2, max_new_tokens=4, do_sample=False)


def test_speculative_decoding_is_refused(model: Any) -> None:
    prompt = torch.tensor([[4, 5, 6, 4, 5, 6, 4, 5]])
    with pytest.raises(CaptureError, match="speculative decoding"), RouterHooks(discover(model)):
        model.generate(
            prompt, prompt_lookup_num_tokens=3, max_new_tokens=8, do_sample=False, eos_token_id=None
        )


@pytest.mark.parametrize("beams", [1, 2])
def test_a_text_that_is_continued_without_a_cache_is_refused(model: Any, beams: int) -> None:
    prompt = torch.tensor([[4, 5, 6], [7, 8, 9]])
    with pytest.raises(CaptureError, match="use_cache=False"), RouterHooks(discover(model)):
        model.generate(prompt, num_beams=beams, max_new_tokens=4, do_sample=False, use_cache=False)


def test_texts_that_are_read_whole_one_after_the_other_are_sequences(model: Any) -> None:
    with RouterHooks(discover(model)) as hooks:
        for text in ([4, 5, 6], [4, 5, 7, 8], [4, 5, 7], [9, 4, 5, 7]):
            model(torch.tensor([text]))
    assert np.bincount(hooks.take().sequence).tolist() == [3, 4, 3, 4]


def test_a_cache_is_left_as_it_was(model: Any) -> None:
    with RouterHooks(discover(model)):
        output = model(torch.tensor([[4, 5]]), use_cache=True)
        output = model(torch.tensor([[6]]), **{OF_OUTPUTS: cache_of(output)})
    cache = cache_of(output)
    assert not {"crop", "reorder_cache"} & set(vars(cache))
    cache.crop(-1)
    assert cache.get_seq_length() == 2


def test_a_crop_of_rows_that_had_ended_is_allowed_and_one_of_tokens_is_not(model: Any) -> None:
    """On some devices generate() runs a step before it checks whether to stop, and undoes it."""
    with RouterHooks(discover(model), eos_token_ids=[2]) as hooks:
        output = model(torch.tensor([[4, 5]]), use_cache=True)
        output = model(torch.tensor([[2]]), **{OF_OUTPUTS: cache_of(output)})
        cache_of(output).crop(-1)
        model(torch.tensor([[2]]), **{OF_OUTPUTS: cache_of(output)})
    assert hooks.take().valid.tolist() == [True, True, False, False]
    with RouterHooks(discover(model), eos_token_ids=[2]):
        output = model(torch.tensor([[4, 5]]), use_cache=True)
        output = model(torch.tensor([[7]]), **{OF_OUTPUTS: cache_of(output)})
        with pytest.raises(CaptureError, match="1 positions with recorded tokens were cropped"):
            cache_of(output).crop(-1)


def test_a_router_that_its_input_does_not_explain_is_refused(model: Any, rows: Rows) -> None:
    layer = discover(model)[0]
    logits = torch.from_numpy(rows.logits[:, 0])
    router_scorer(layer, rows.gate_in[:, 0], logits)
    with pytest.raises(CaptureError, match="is not a function of its gate input alone"):
        router_scorer(layer, rows.gate_in[:, 0], logits.tanh())
