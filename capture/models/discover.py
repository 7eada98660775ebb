"""Finds the MoE layers of a transformers model by structure, without a list of architectures.

The search begins at the *experts* module, which is recognised by what its ``forward`` takes: hidden
states, then the chosen expert ids, then their weights. `capture.models.adapters` knows the other
forms that a choice can have (one-hot dispatch, dense experts that see scaled inputs, experts that
route inside, inputs sorted by expert). The router is a module beside the experts. It is recognised
by its name, or because it alone gives a value for each expert.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import nn

from capture.models.adapters import Adapter, adapter_of, forward_arguments
from capture.models.refusal import CaptureError as CaptureError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROUTER_NAMES = ("gate", "router", "wg")
EXPERT_COUNT_NAMES = (
    "num_experts",
    "num_local_experts",
    "num_routed_experts",
    "n_routed_experts",
    "moe_num_experts",
)
TOP_K_NAMES = (
    "top_k",
    "num_experts_per_tok",
    "moe_topk",
    "top_k_experts",
    "moe_k",
    "num_experts_per_token",
)
ENCODER, DECODER = "encoder", "decoder"


@dataclass(frozen=True, eq=False)
class MoELayer:
    """One MoE block of a model, with the modules around it.

    - ``site`` counts MoE blocks in execution order, the encoder's first; ``layer`` counts the
      layers of the block's stack.
    - ``kind`` is ``attn`` for experts inside attention, else ``ffn``; ``side`` is the encoder or
      the decoder; ``name`` is the block's name in the model.
    - ``stack`` is the innermost pretrained model around the block. It is given the token ids, mask
      and cache of a step.
    - ``owner`` is the whole layer around the block, with its norms and its attention.
    - ``num_experts`` counts experts with weights, ``num_classes`` the classes of the router. Where
      there are more classes, the last ones are null experts, which compute nothing.
    - ``top_k`` is how many experts a token chooses; ``adapter`` reads what the experts are given.
    """

    site: int
    layer: int
    kind: str
    side: str
    name: str
    stack: nn.Module
    owner: nn.Module
    block: nn.Module
    router: nn.Module
    experts: nn.Module
    num_experts: int
    num_classes: int
    top_k: int
    adapter: Adapter


def discover(model: nn.Module) -> list[MoELayer]:
    """The MoE layers of ``model`` in execution order, those of an encoder first.

    Raise `CaptureError` in these cases:

    - there are none;
    - a router or a count cannot be found;
    - sites differ in how many experts they have or choose;
    - there are several stacks that are not an encoder and a decoder.
    """
    modules = dict(model.named_modules())
    found = [(name, adapter) for name in modules if name and (adapter := adapter_of(modules, name))]
    if not found:
        near = [name for name in modules if name.rsplit(".", 1)[-1] == "experts"][:3]
        raise CaptureError(
            f"{type(model).__name__}: no module takes (hidden states, expert ids, weights), as"
            f" experts do (modules named experts: {near or 'none'}); this architecture cannot be"
            " recorded"
        )
    layers = [_layer(modules, name, adapter) for name, adapter in found]
    layers = _sides(model, layers)
    for what in ("num_experts", "num_classes", "top_k"):
        counts = sorted({getattr(layer, what) for layer in layers})
        if len(counts) > 1:
            raise CaptureError(
                f"{type(model).__name__}: sites differ in {what} ({counts}); a trace has one"
                " for all"
            )
    return layers


def _sides(model: nn.Module, layers: list[MoELayer]) -> list[MoELayer]:
    """The layers with their side and site number, the encoder's first."""
    encoder = None
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) and _is_pretrained(
        model
    ):
        encoder = model.get_encoder()
    stacks = {
        id(layer.stack): type(layer.stack).__name__
        for layer in layers
        if layer.stack is not encoder
    }
    if len(stacks) > 1:
        raise CaptureError(
            f"{type(model).__name__}: MoE layers in {len(stacks)} stacks"
            f" ({sorted(stacks.values())}) that are not an encoder and a decoder; pass one stack,"
            " such as the text model"
        )
    sided = [
        replace(layer, side=ENCODER if layer.stack is encoder else DECODER) for layer in layers
    ]
    # A layer's attention runs before its feed-forward block, even where it was registered later.
    sided.sort(key=lambda layer: (layer.side == DECODER, layer.layer, layer.kind == "ffn"))
    return [replace(layer, site=site) for site, layer in enumerate(sided)]


def _layer(modules: dict[str, nn.Module], name: str, adapter: Adapter) -> MoELayer:
    block_name, experts = name.rpartition(".")[0], modules[name]
    block = modules[block_name]
    num_experts = _num_experts(name, experts, block)
    router = _router(block_name, block, experts, num_experts)
    stack_name = _stack_name(modules, name)
    stack = modules[stack_name]
    owner_name, number = _owner(modules, stack_name, block_name)
    return MoELayer(
        site=-1,
        layer=number,
        kind=(
            "attn"
            if "attn" in block_name.rsplit(".", 1)[-1] or "attention" in block_name
            else "ffn"
        ),
        side=DECODER,
        name=block_name,
        stack=stack,
        owner=modules[owner_name],
        block=block,
        router=router,
        experts=experts,
        num_experts=num_experts,
        num_classes=_num_classes(router, num_experts),
        top_k=adapter.top_k or _top_k(block_name, router, block, getattr(stack, "config", None)),
        adapter=adapter,
    )


def _is_pretrained(module: nn.Module) -> TypeGuard[PreTrainedModel]:
    """Imported late: with transformers comes a second that no replay of a trace needs."""
    from transformers import PreTrainedModel

    return isinstance(module, PreTrainedModel)


def _stack_name(modules: dict[str, nn.Module], name: str) -> str:
    while name:
        name = name.rpartition(".")[0]
        if _is_pretrained(modules[name]):
            return name
    return ""


def _owner(modules: dict[str, nn.Module], stack_name: str, block_name: str) -> tuple[str, int]:
    """Name and number of the stack's outermost numbered module that holds the block.

    Where there is none: the block's parent, and 0.
    """
    inner = block_name[len(stack_name) + 1 :] if stack_name else block_name
    numbered = re.match(r"(?:.*?\.)??(\d+)(?=\.|$)", inner)
    if numbered is None:
        return block_name.rpartition(".")[0], 0
    prefix = f"{stack_name}." if stack_name else ""
    return prefix + inner[: numbered.end()], int(numbered[1])


def _num_experts(name: str, experts: nn.Module, block: nn.Module) -> int:
    stacked = [parameter.shape[0] for parameter in experts.parameters() if parameter.dim() == 3]
    if stacked:
        # Some fused weights may have rows for null experts, too, but not all weights do.
        return min(stacked)
    if isinstance(experts, (nn.ModuleDict, nn.ModuleList)) and len(experts):
        # Children without parameters, such as a dropout, are no experts.
        return sum(any(True for _ in child.parameters()) for child in experts.children())
    count = _count(EXPERT_COUNT_NAMES, experts, block)
    if count is None:
        raise CaptureError(
            f"{name}: cannot tell how many experts it holds; it has no num_experts and no 3-D"
            " weight"
        )
    return count


def _router(block_name: str, block: nn.Module, experts: nn.Module, num_experts: int) -> nn.Module:
    children = dict(block.named_children())
    for name in ROUTER_NAMES:
        if name in children and children[name] is not experts:
            return children[name]
    # The router is what has a row for each expert: a shared expert's sigmoid gate has one row, a
    # norm has none.
    fitting = [
        child
        for child in children.values()
        if child is not experts
        and any(rows >= num_experts for rows in _matrix_rows(child))
        and not any(parameter.dim() == 3 for parameter in child.parameters())
    ]
    exact = [child for child in fitting if num_experts in _matrix_rows(child)]
    if len(exact) == 1:
        return exact[0]
    raise CaptureError(
        f"{block_name}: no router among {list(children)}: none is named"
        f" {' or '.join(ROUTER_NAMES)}, and {len(exact)} have a weight with {num_experts} rows"
    )


def _matrix_rows(module: nn.Module) -> list[int]:
    return [parameter.shape[0] for parameter in module.parameters() if parameter.dim() == 2]


def logit_linear(router: nn.Module, num_experts: int) -> nn.Linear | None:
    """The linear layer inside ``router`` whose output is the logits; None where there is none."""
    inner = [
        module
        for module in router.modules()
        if isinstance(module, nn.Linear) and module is not router
    ]
    fitting = [module for module in inner if module.out_features >= num_experts]
    return fitting[-1] if fitting else None


def _num_classes(router: nn.Module, num_experts: int) -> int:
    linear = logit_linear(router, num_experts)
    if linear is not None:
        return linear.out_features
    weight = getattr(router, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        return num_experts
    # Inkling's router also weighs the shared experts, among which nothing is chosen.
    shared = _count(("n_shared_experts",), router) or 0
    return max(int(weight.shape[0]) - shared, num_experts)


def _count(names: tuple[str, ...], *holders: object) -> int | None:
    for holder in holders:
        for key in names:
            value = getattr(holder, key, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _top_k(name: str, *holders: object) -> int:
    count = _count(TOP_K_NAMES, *holders)
    if count is None:
        raise CaptureError(
            f"{name}: cannot tell how many experts a token chooses; looked for {TOP_K_NAMES}"
        )
    return count


def first_argument(module: nn.Module) -> Callable[[tuple[object, ...], dict[str, object]], object]:
    """A function that reads the first argument of a call of ``module``, however it is passed.

    The function takes the call's ``args`` and ``kwargs``.
    """
    names = forward_arguments(module)
    name = names[0] if names else "hidden_states"

    def read(args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return args[0] if args else kwargs[name]

    return read


def tensors_named(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and values of the parameters and buffers of ``module`` and its submodules."""
    yield from module.named_parameters()
    yield from module.named_buffers()
