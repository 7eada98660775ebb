"""One expert computed alone, against what the model computes and against formulas by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

from capture.models.adapters import Adapter
from capture.models.discover import CaptureError, MoELayer, discover
from capture.models.expert_forms import ACTIVATED, UP, form_of
from capture.recording.extras import site_extras
from capture.recording.hooks import RouterHooks
from capture.recording.rows import Rows
from helpers.architectures import AVAILABLE, VOCABULARY, tiny

SPARSITIES = (0.5, 0.8)
# transformers 5.17 and 5.23 run experts 0 and 1 of this model whatever its router chose, so its
# outputs are those of no choice.
WRONG = "nllb-moe"
# One model of each layout and way of being called; the others are like one of these.
KINDS = (
    "mixtral",
    "gpt_oss",
    "longcat_flash",
    "llama4_text",
    "nemotron_h",
    "jetmoe",
    "aria_text",
    "zaya",
    "dbrx",
    "switch_transformers",
    "nllb-moe",
)
NAMES = [
    pytest.param(name, marks=() if name in KINDS else pytest.mark.thorough) for name in AVAILABLE
]


def run(model: Any) -> tuple[list[MoELayer], Rows, dict[int, torch.Tensor]]:
    """The rows of a prompt, and what each site's experts returned.

    Where experts return nothing of their own, it is what the block returned.
    """
    layers, outputs = discover(model), {}
    tokens = torch.randint(4, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(2))

    def keep(site: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: object, output: Any) -> None:
            outputs[site] = (output[0] if isinstance(output, tuple) else output).detach()

        return hook

    whole = [layer.adapter.reads_router for layer in layers]
    handles = [
        (layer.block if block else layer.experts).register_forward_hook(keep(layer.site))
        for layer, block in zip(layers, whole, strict=True)
    ]
    decoder = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    with RouterHooks(layers) as hooks, torch.no_grad():
        model(input_ids=tokens, **decoder)
    for handle in handles:
        handle.remove()
    return layers, hooks.take(), outputs


@pytest.mark.parametrize("name", [name for name in NAMES if name.values != (WRONG,)])
def test_weighted_outputs_of_single_experts_add_up_to_what_the_model_computed(name: str) -> None:
    """Site by site, the sum over a token's choices of weight times output is the experts' output.

    The outputs are those of which norms are taken.
    """
    transformers.logging.set_verbosity_error()
    layers, rows, outputs = run(tiny(name))
    for layer in layers:
        if layer.kind == "attn":
            continue
        form, site = form_of(layer), layer.site
        visited = ~torch.isnan(rows.expert_inputs[:, site]).any(-1)
        inputs = rows.expert_inputs[visited, site]
        ids, weights = (
            torch.from_numpy(values[:, site])[visited] for values in (rows.ids, rows.weights)
        )
        total = torch.zeros_like(inputs)
        norms = form.norms(inputs, ids, weights)
        for row, slot in np.ndindex(*ids.shape):
            place = torch.tensor([row]), torch.tensor([slot])
            expert = int(ids[row, slot])
            if expert < 0:
                assert norms[row, slot] == 0
                continue
            alone = form.output(expert, form.fed(inputs, weights, *place))[0].detach()
            torch.testing.assert_close(norms[row, slot], alone.norm(), rtol=1e-4, atol=1e-6)
            total[row] += alone * (1 if form.weighted_input else weights[row, slot])
        expected = outputs[site].reshape(total.shape) - beside(layer, inputs)
        torch.testing.assert_close(
            total, expected + identity(layer, rows, visited), rtol=1e-4, atol=1e-5
        )


def beside(layer: MoELayer, inputs: torch.Tensor) -> torch.Tensor:
    """What a block that was recorded as a whole adds to the output of its experts."""
    if not layer.adapter.reads_router:
        return torch.zeros(())
    shared = getattr(layer.block, "shared_expert", None)
    with torch.no_grad():
        return layer.block.bias if shared is None else shared(inputs)


def identity(layer: MoELayer, rows: Rows, visited: torch.Tensor) -> torch.Tensor:
    """What null experts add: they hand their input on.

    Their weights are those that are missing from the sum.
    """
    if layer.num_classes == layer.num_experts or not hasattr(layer.experts, "identity_expert"):
        return torch.zeros(())
    logits = torch.from_numpy(rows.logits[:, layer.site])[visited]
    router = layer.router
    scores = logits.softmax(-1)
    chosen = (scores + router.e_score_correction_bias).topk(layer.top_k, dim=-1).indices
    weights = scores.gather(-1, chosen) * router.routed_scaling_factor
    null = torch.where(chosen >= layer.num_experts, weights, 0).sum(-1, keepdim=True)
    return -null * rows.expert_inputs[visited, layer.site]


@pytest.mark.parametrize("name", NAMES)
def test_channels_are_what_the_activation_multiplies_or_makes(name: str) -> None:
    """Where the activation sees one half of a projection, the channels are the other half.

    Else they are what it returns.
    """
    for layer in discover(tiny(name)):
        if layer.kind == "attn":
            with pytest.raises(CaptureError, match="lies the attention"):
                form_of(layer)
            continue
        form = form_of(layer)
        inputs = torch.randn(5, form.width_in, generator=torch.Generator().manual_seed(1))
        seen = activation_calls(layer, form, 3, inputs)
        channels = form.channels(3, inputs).detach()
        assert channels.shape == (5, form.width)
        if form.quantity == ACTIVATED:
            torch.testing.assert_close(channels, seen[1])
            continue
        gate, up = by_hand(layer, 3, inputs)
        torch.testing.assert_close(channels, up, rtol=1e-4, atol=1e-5)
        if seen is not None:
            torch.testing.assert_close(seen[0], gate, rtol=1e-4, atol=1e-5)
            assert not torch.allclose(channels, seen[0], atol=1e-2)


def activation_calls(
    layer: MoELayer, form: Any, expert: int, inputs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What an expert's activation module was given, and what it returned.

    None where the activation is no module (gpt-oss).
    """
    names = ("act_fn", "activation", "activation_fn", "act")
    inside = [*layer.experts.modules(), layer.block]
    found = {
        id(module): module
        for holder in inside
        for name in names
        if isinstance(module := getattr(holder, name, None), nn.Module)
    }
    calls: list[tuple[torch.Tensor, torch.Tensor]] = []
    handles = [
        module.register_forward_hook(
            lambda _m, args, output: calls.append((args[0].detach(), output.detach()))
        )
        for module in found.values()
    ]
    form.output(expert, inputs)
    for handle in handles:
        handle.remove()
    # The last call; its rows are taken once, however often they were given.
    return (calls[-1][0][: len(inputs)], calls[-1][1][: len(inputs)]) if calls else None


def by_hand(layer: MoELayer, expert: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x W_gate and x W_up, from the layouts that the architectures' papers and code state."""
    experts = layer.experts
    name = type(experts).__name__
    with torch.no_grad():
        if name == "DbrxExperts":
            w1, v1 = (
                getattr(experts.mlp, part).view(layer.num_experts, -1, x.shape[-1])[expert]
                for part in ("w1", "v1")
            )
            return x @ w1.T, x @ v1.T
        if name == "JetMoeParallelExperts":
            both = x @ layer.block.input_linear.weight[expert].T
        elif name == "GptOssExperts":
            both = x @ experts.gate_up_proj[expert] + experts.gate_up_proj_bias[expert]
            return both[:, ::2], both[:, 1::2]
        elif name in ("Llama4TextExperts", "AriaExperts"):
            both = x @ experts.gate_up_proj[expert]
        else:
            both = x @ experts.gate_up_proj[expert].T
        half = both.shape[-1] // 2
        return both[:, :half], both[:, half:]


@pytest.mark.parametrize(
    ("name", "quantity"),
    [
        ("llama4_text", f"{UP}, x times its gate weight"),
        ("jetmoe", UP),
        ("dbrx", UP),
        ("nemotron_h", ACTIVATED),
        ("switch_transformers", ACTIVATED),
        ("nllb-moe", ACTIVATED),
        ("mixtral", UP),
    ],
)
def test_thresholds_shares_and_norms_equal_a_row_by_row_computation(
    name: str, quantity: str
) -> None:
    layers, rows, _ = run(tiny(name))
    layer = layers[-1]
    form, site = form_of(layer), layer.site
    assert form.told == quantity
    visited = ~torch.isnan(rows.expert_inputs[:, site]).any(-1)
    inputs = rows.expert_inputs[visited, site]
    ids, weights = (
        torch.from_numpy(values[:, site])[visited] for values in (rows.ids, rows.weights)
    )
    every = torch.ones(len(ids), dtype=torch.bool)
    extras = site_extras(
        form, inputs, ids, weights, fit=every, decode=every, kept=every, sparsities=SPARSITIES
    )
    values: dict[int, list[np.ndarray]] = {}
    for row, slot in np.ndindex(*ids.shape):
        if ids[row, slot] >= 0:
            values.setdefault(int(ids[row, slot]), []).append(
                channels_by_hand(layer, ids, weights, inputs, row, slot)
            )
    for expert, sample in values.items():
        ordered = np.sort(np.concatenate(sample))
        for rank, sparsity in enumerate(SPARSITIES):
            least = ordered[ordered > 0][0]
            expected = max(ordered[int(np.ceil(sparsity * len(ordered))) - 1], least)
            assert extras.thresholds[expert, rank].item() == pytest.approx(expected, rel=1e-4)
    place = dict.fromkeys(values, 0)
    for row, slot in np.ndindex(*ids.shape):
        expert = int(ids[row, slot])
        if expert < 0:
            continue
        own = values[expert][place[expert]]
        place[expert] += 1
        for rank in range(len(SPARSITIES)):
            active = own >= extras.thresholds[expert, rank].item()
            assert extras.shares[row, slot, rank].item() == pytest.approx(
                active.mean(), abs=1.1 / len(own)
            )
            assert np.count_nonzero(extras.masks[row, slot, rank].numpy() != active) <= 1
            # A channel that is 0 is never active; a ReLU makes half of them 0.
            assert not extras.masks[row, slot, rank].numpy()[own == 0].any()


def channels_by_hand(
    layer: MoELayer,
    ids: torch.Tensor,
    weights: torch.Tensor,
    inputs: torch.Tensor,
    row: int,
    slot: int,
) -> np.ndarray:
    expert, x = int(ids[row, slot]), inputs[row : row + 1]
    kind = type(layer.experts).__name__
    with torch.no_grad():
        if kind == "SwitchTransformersExperts":
            values = functional.relu(x @ layer.experts[f"expert_{expert}"].wi.weight.T)
        elif kind == "NllbMoeExperts":
            first = layer.experts[f"expert_{expert}"].fc1
            values = functional.relu(x @ first.weight.T + first.bias)
        elif kind == "NemotronHExperts":
            values = functional.relu(x @ layer.experts.up_proj[expert].T) ** 2
        else:
            scale = weights[row, slot] if kind == "Llama4TextExperts" else 1
            values = by_hand(layer, expert, x * scale)[1]
    return values[0].abs().numpy()


class Trio(nn.ModuleDict):
    """Experts with a gate, each a module of its own.

    No shape shows which of its layers is the up projection.
    """

    def __init__(self) -> None:
        super().__init__()
        for expert in range(2):
            self[str(expert)] = nn.Sequential(nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 4))

    def forward(
        self, hidden: torch.Tensor, expert_ids: torch.Tensor, expert_weights: torch.Tensor
    ) -> torch.Tensor:
        raise NotImplementedError


def test_what_cannot_be_told_is_refused_with_the_reason() -> None:
    from types import SimpleNamespace

    experts = Trio()
    layer: Any = SimpleNamespace(
        experts=experts, adapter=Adapter(experts), name="block", kind="ffn", num_experts=2
    )
    with pytest.raises(
        CaptureError, match=r"block: Sequential has 3 linear layers.*record with sparsities="
    ):
        form_of(layer)
    square = nn.Module()
    square.gate_up_proj = nn.Parameter(torch.zeros(2, 8, 8))
    square.other = nn.Parameter(torch.zeros(2, 3, 3))
    layer.experts, layer.adapter = square, Adapter(square)
    with pytest.raises(
        CaptureError, match=r"cannot tell which axis of gate_up_proj \[2, 8, 8\] is the input"
    ):
        form_of(layer)
