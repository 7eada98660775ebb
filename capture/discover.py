"""Finds the MoE layers of a transformers model by structure: no list of architectures or class names.

The anchor is the *experts* module, recognised by what its ``forward`` takes: hidden states, then the chosen expert ids,
then their weights. Its router is a sibling. Models whose experts are called otherwise (dense Llama 4 experts, one-hot
dispatch, experts that route inside) are refused by name instead of being recorded wrongly.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

INDEX_ARGUMENTS = ("top_k_index", "router_indices", "selected_experts", "topk_indices")
WEIGHT_ARGUMENTS = ("top_k_weights", "routing_weights", "topk_weights")
ROUTER_NAMES = ("gate", "router", "wg")
TOP_K_NAMES = ("top_k", "num_experts_per_tok", "moe_topk", "top_k_experts", "moe_k")


class CaptureError(ValueError):
    """A model or run that cannot be recorded faithfully; the message says what was found and the way out."""


@dataclass(frozen=True, eq=False)
class MoELayer:
    """One MoE block. ``site`` counts MoE blocks in execution order, ``layer`` all layers of the model.

    ``stack`` is the innermost pretrained model around the block: it sees the token ids, mask and cache of a step.
    ``owner`` is the module around the block, in which the norm before the router lives.
    """

    site: int
    layer: int
    kind: str
    name: str
    stack: nn.Module
    owner: nn.Module
    block: nn.Module
    router: nn.Module
    experts: nn.Module
    num_experts: int
    top_k: int


def discover(model: nn.Module) -> list[MoELayer]:
    """The MoE layers of ``model`` in execution order.

    Raise `CaptureError` if there are none, if a router or a count cannot be found, or if they belong to several
    stacks (encoder and decoder), whose steps would visit only some of the sites.
    """
    modules = dict(model.named_modules())
    names = [name for name, module in modules.items() if name and _is_experts(module)]
    if not names:
        near = [name for name, module in modules.items() if name.rsplit(".", 1)[-1] == "experts"][:3]
        raise CaptureError(
            f"{type(model).__name__}: no module takes (hidden states, expert ids, weights), as experts do "
            f"(modules named experts: {near or 'none'}); this architecture cannot be recorded"
        )
    layers = [_layer(modules, site, name) for site, name in enumerate(names)]
    stacks = {id(layer.stack): type(layer.stack).__name__ for layer in layers}
    if len(stacks) > 1:
        raise CaptureError(
            f"{type(model).__name__}: MoE layers in {len(stacks)} stacks ({sorted(stacks.values())}); steps that visit "
            "only some of the sites are not supported yet: pass one stack, such as the decoder"
        )
    return layers


def forward_arguments(module: nn.Module) -> list[str]:
    """Names of the arguments of ``module.forward`` in order, without self."""
    try:
        return list(inspect.signature(type(module).forward).parameters)[1:]
    except (TypeError, ValueError):
        return []


def _is_experts(module: nn.Module) -> bool:
    arguments = forward_arguments(module)
    # A ModuleDict of experts takes a one-hot mask under the same name.
    takes_choice = len(arguments) >= 3 and arguments[1] in INDEX_ARGUMENTS and arguments[2] in WEIGHT_ARGUMENTS
    return takes_choice and not isinstance(module, nn.ModuleDict)


def _layer(modules: dict[str, nn.Module], site: int, name: str) -> MoELayer:
    block_name = _parent(name)
    block, experts = modules[block_name], modules[name]
    router = next((modules[f"{block_name}.{key}"] for key in ROUTER_NAMES if f"{block_name}.{key}" in modules), None)
    if router is None:
        children = [child for child, _ in block.named_children()]
        raise CaptureError(f"{block_name}: no router among {children}, must be one of {ROUTER_NAMES}")
    stack = _stack(modules, name)
    numbers = re.findall(r"\.(\d+)\.", f".{name}.")
    return MoELayer(
        site=site,
        layer=int(numbers[0]) if numbers else site,
        kind="attn" if "attn" in block_name.rsplit(".", 1)[-1] else "ffn",
        name=block_name,
        stack=stack,
        owner=modules[_parent(block_name)],
        block=block,
        router=router,
        experts=experts,
        num_experts=_num_experts(name, experts),
        top_k=_top_k(name, router, block, getattr(stack, "config", None)),
    )


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _stack(modules: dict[str, nn.Module], name: str) -> nn.Module:
    while name:
        name = _parent(name)
        if isinstance(modules[name], PreTrainedModel):
            return modules[name]
    return modules[""]


def _num_experts(name: str, experts: nn.Module) -> int:
    count = getattr(experts, "num_experts", None)
    if isinstance(count, int) and count > 0:
        return count
    stacked = [parameter.shape[0] for parameter in experts.parameters() if parameter.dim() == 3]
    if not stacked:
        raise CaptureError(f"{name}: cannot tell how many experts it holds; it has no num_experts and no 3-D weight")
    return stacked[0]


def _top_k(name: str, *holders: object) -> int:
    for holder in holders:
        for key in TOP_K_NAMES:
            value = getattr(holder, key, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    raise CaptureError(f"{name}: cannot tell how many experts a token chooses; looked for {TOP_K_NAMES}")


def gate_norms(model: nn.Module, layers: list[MoELayer]) -> list[torch.Tensor]:
    """The scale vector [H] of the RMS norm before each layer's router: ``gate input = normalised * scale``.

    Found by running one token and looking whose output the router is fed. Raise `CaptureError` where that is no RMS
    norm with a scale; `renormed` lookahead is then not defined.
    """
    outputs: dict[int, nn.Module] = {}
    norms: dict[int, nn.Module] = {}
    # Keeps the storages alive, so that no address is used twice.
    alive: list[torch.Tensor] = []

    def on_norm(module: nn.Module, _args: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            alive.append(output)
            outputs[output.untyped_storage().data_ptr()] = module

    def on_router(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        norm = outputs.get(args[0].untyped_storage().data_ptr())
        if norm is not None:
            norms[id(module)] = norm

    candidates = [
        child
        for layer in layers
        for child in layer.owner.modules()
        if [parameter.dim() for parameter in child.parameters()] == [1] and not list(child.children())
    ]
    handles = [child.register_forward_hook(on_norm) for child in dict.fromkeys(candidates)]
    handles += [layer.router.register_forward_pre_hook(on_router) for layer in layers]
    try:
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device))
    finally:
        for handle in handles:
            handle.remove()
    return [_scale(layer, norms.get(id(layer.router))) for layer in layers]


def _scale(layer: MoELayer, norm: nn.Module | None) -> torch.Tensor:
    if norm is None:
        raise CaptureError(f"{layer.name}: the router is not fed by a norm; record with norms=raw")
    weight = next(norm.parameters()).detach()
    with torch.no_grad():
        # Equal inputs stay equal under an RMS norm, so its output shows the scale it applies, eps apart.
        applied = norm(torch.ones_like(weight)[None])[0]
    # Some families store the scale less one.
    for scale in (weight, 1 + weight):
        if torch.allclose(applied.float(), scale.float(), rtol=1e-2, atol=1e-4) and bool((scale != 0).all()):
            return scale
    raise CaptureError(f"{layer.name}: {type(norm).__name__} is no RMS norm with a scale; record with norms=raw")
