"""Finds the RMS norms before routers and attention, and the module that mixes a layer's tokens.

Modules are found by the model's structure; which norm feeds which module is found by running one
token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from capture.models.discover import CaptureError, MoELayer, first_argument

_MIXERS = re.compile(r"attn|attention|mamba|mixer|conv|ssm", re.IGNORECASE)
Read = Callable[..., object]


def attention_input(layer: MoELayer) -> tuple[nn.Module, Read]:
    """The module that mixes tokens in the site's layer, and how to read its input from a call.

    That is the layer's attention, or what takes its place (Mamba, a convolution). Raise
    `CaptureError` where the layer has none beside the MoE block.
    """
    # Where router and experts lie in the layer itself, the layer is its own block.
    blocks = (layer.router, layer.experts) if layer.block is layer.owner else (layer.block,)
    inside = {module for block in blocks for module in block.modules()}
    for name, module in layer.owner.named_modules():
        candidate = module[0] if isinstance(module, nn.ModuleList) and len(module) else module
        weights = [parameter for parameter in candidate.parameters() if parameter.dim() >= 2]
        named = bool(_MIXERS.search(name.rsplit(".", 1)[-1]))
        if named and weights and inside.isdisjoint(candidate.modules()):
            return candidate, first_argument(candidate)
    raise CaptureError(
        f"{layer.name}: its layer has no attention beside the MoE block; record with"
        " lookahead_position=gate_in"
    )


def gate_norms(model: nn.Module, layers: Sequence[MoELayer]) -> list[torch.Tensor]:
    """The scale vector [H] of the RMS norm before each layer's router.

    The gate's input is the normalised vector times this scale. Raise `CaptureError` where a router
    is not fed by an RMS norm with a scale; `renormed` lookahead is then not defined.
    """
    return norm_scales(
        model, layers, [(layer.router, first_argument(layer.router)) for layer in layers]
    )


def attention_norms(model: nn.Module, layers: Sequence[MoELayer]) -> list[torch.Tensor]:
    """As `gate_norms`, for the norm before the attention of each site's layer."""
    return norm_scales(model, layers, [attention_input(layer) for layer in layers])


def norm_scales(
    model: nn.Module, layers: Sequence[MoELayer], fed: Sequence[tuple[nn.Module, Read]]
) -> list[torch.Tensor]:
    """The scale of the norm that feeds each module of ``fed``, which has one for each layer.

    Found by running one token: a module is fed by the norm whose output it is given.
    """
    outputs: dict[int, nn.Module] = {}
    norms: dict[int, nn.Module] = {}
    # Keeps the outputs alive: tensors are told apart by their addresses.
    alive: list[torch.Tensor] = []

    def on_norm(module: nn.Module, _args: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            alive.append(output)
            outputs[output.untyped_storage().data_ptr()] = module

    def on_fed(read: Read) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            values = read(args, kwargs)
            assert isinstance(values, torch.Tensor)
            norm = outputs.get(values.untyped_storage().data_ptr())
            if norm is not None:
                norms[id(module)] = norm

        return hook

    candidates = [
        child
        for layer in layers
        for child in layer.owner.modules()
        if [parameter.dim() for parameter in child.parameters()] == [1]
        and not list(child.children())
    ]
    handles = [child.register_forward_hook(on_norm) for child in dict.fromkeys(candidates)]
    handles += [
        module.register_forward_pre_hook(on_fed(read), with_kwargs=True) for module, read in fed
    ]
    try:
        run_one_token(model)
    finally:
        for handle in handles:
            handle.remove()
    return [
        _scale(layer, norms.get(id(module))) for layer, (module, _) in zip(layers, fed, strict=True)
    ]


def run_one_token(model: nn.Module) -> None:
    """One forward call of the whole model on token 0."""
    token = torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device)
    decoder = (
        {"decoder_input_ids": token} if getattr(model.config, "is_encoder_decoder", False) else {}
    )
    with torch.no_grad():
        model(input_ids=token, **decoder)


def _scale(layer: MoELayer, norm: nn.Module | None) -> torch.Tensor:
    if norm is None:
        raise CaptureError(
            f"{layer.name}: the router is fed by no norm that has a scale alone; record with"
            " norms=raw"
        )
    weight = next(norm.parameters()).detach()
    with torch.no_grad():
        # An RMS norm turns a vector of ones into its scale, up to eps.
        applied = norm(torch.ones_like(weight)[None])[0]
    # Some families store the scale minus one.
    for scale in (weight, 1 + weight):
        if torch.allclose(applied.float(), scale.float(), rtol=1e-2, atol=1e-4) and bool(
            (scale != 0).all()
        ):
            return scale
    raise CaptureError(
        f"{layer.name}: {type(norm).__name__} is no RMS norm with a scale; record with norms=raw"
    )
