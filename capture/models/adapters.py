"""Adapters that read which experts an MoE block was told to compute, and with what weights.

Nearly every architecture calls ``experts(hidden, ids, weights)``. The others have an adapter of a
few lines each. All are recognised by the arguments that ``forward`` takes. An adapter says where
the choice can be read (from the experts' arguments, or from the router's output) and turns it into
ids and weights ``[T, K]``; an id of -1 is a choice that is not computed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

_IDS = re.compile(
    r"(top_?k|router|routing|selected|expert|chosen)_?(index|indices|ids|idx|experts?)$"
)
_WEIGHTS = re.compile(
    r"(top_?k|router|routing|expert|gate|chosen)_?(weights?|scores?|probs?|gates?)$"
)

Choice = tuple[torch.Tensor, torch.Tensor]


def forward_arguments(module: nn.Module) -> list[str]:
    """Names of the arguments of ``module.forward`` in order, without self."""
    try:
        return list(inspect.signature(type(module).forward).parameters)[1:]
    except (TypeError, ValueError):
        return []


class Adapter:
    """The common form: ``experts(hidden, ids, weights)``.

    ``reads_router``: the choice is read from the router's output, not from the experts' arguments.
    ``standalone``: the experts can be called alone with any rows, ids and weights, so what they
    compute can be measured afterwards. ``top_k``: choices a token; 0 where the model's own
    attributes give the number.
    """

    reads_router = False
    standalone = True
    top_k = 0

    def __init__(self, experts: nn.Module) -> None:
        self.names = forward_arguments(experts)

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The first arguments of a call, in order, whether passed by position or by name."""
        if len(args) >= 3:
            return args
        given = dict(zip(self.names, args, strict=False)) | dict(kwargs)
        return [given[name] for name in self.names[:3] if name in given]

    def choice(self, experts: nn.Module, arguments: Sequence[Any], router_output: Any) -> Choice:
        """Ids and weights, each ``[.., K]``, of one call.

        ``arguments`` are those of the experts' call, ``router_output`` is what the router returned
        before it.
        """
        return arguments[1], arguments[2]


class OneHot(Adapter):
    """``experts(hidden, mask [T, 1, E], weights [T, 1])``: top-1 with an expert capacity.

    A row of the mask that is all zero is a token that was dropped.
    """

    standalone = False
    top_k = 1

    def choice(self, experts: nn.Module, arguments: Sequence[Any], router_output: Any) -> Choice:
        mask, weights = arguments[1], arguments[2].reshape(-1, 1)
        mask = mask.reshape(len(weights), -1)
        kept = mask.sum(-1, keepdim=True) > 0
        return torch.where(kept, mask.argmax(-1, keepdim=True), -1), torch.where(kept, weights, 0)


class Combined(Adapter):
    """``experts(hidden, mask, gates [T, E])``: top-2 with an expert capacity.

    The gate of an expert that was not chosen, or whose token was dropped, is 0. What such a model
    then *computes* can differ: transformers runs NLLB's mask as if it were ids. Only the router's
    choice is recorded.
    """

    standalone = False
    top_k = 2

    def choice(self, experts: nn.Module, arguments: Sequence[Any], router_output: Any) -> Choice:
        weights, ids = arguments[2].reshape(-1, arguments[2].shape[-1]).topk(self.top_k, dim=-1)
        return torch.where(weights > 0, ids, -1), weights


class RoutesInside(Adapter):
    """``experts(hidden, logits)``: the experts turn logits into a choice themselves."""

    standalone = False

    def choice(self, experts: nn.Module, arguments: Sequence[Any], router_output: Any) -> Choice:
        return experts.route_tokens_to_experts(arguments[1])  # type: ignore[operator, no-any-return]


class Dense(Adapter):
    """``experts(hidden * score)``: every expert runs on every row.

    The router's scores ``[T, E]`` are 0 for experts that were not chosen.
    """

    reads_router = True
    standalone = False

    def choice(self, experts: nn.Module, arguments: Sequence[Any], router_output: Any) -> Choice:
        scores, logits = router_output[0], router_output[1]
        ids = logits.topk(self.top_k, dim=-1).indices
        return ids, scores.gather(-1, ids)


class Sorted(Adapter):
    """Experts whose inputs are sorted by expert.

    The router returns the order, the sorted weights and how many rows each expert gets.
    """

    reads_router = True
    standalone = False

    def choice(self, experts: nn.Module, arguments: Sequence[Any], router_output: Any) -> Choice:
        order, _rows, gates, sizes, logits = router_output
        counts = torch.tensor(sizes, device=order.device)
        ids = torch.empty_like(order)
        ids[order] = torch.repeat_interleave(torch.arange(len(sizes), device=order.device), counts)
        weights = torch.empty_like(gates)
        weights[order] = gates
        return ids.view(len(logits), -1), weights.view(len(logits), -1)


def adapter_of(modules: Mapping[str, nn.Module], name: str) -> Adapter | None:
    """The adapter for the module ``name``; None if the module does not hold experts."""
    module, block = modules[name], modules[name.rpartition(".")[0]]
    names = forward_arguments(module)
    for fits, adapter in _FORMS:
        if fits(names, module, block):
            made = adapter(module)
            if isinstance(made, Dense):
                made.top_k = int(block.top_k)  # type: ignore[arg-type]
            return made
    return None


def _is_common(names: list[str], module: nn.Module, block: nn.Module) -> bool:
    return len(names) >= 3 and bool(_IDS.match(names[1]) and _WEIGHTS.match(names[2]))


def _is_one_hot(names: list[str], module: nn.Module, block: nn.Module) -> bool:
    return _is_common(names, module, block) and isinstance(module, nn.ModuleDict)


def _is_combined(names: list[str], module: nn.Module, block: nn.Module) -> bool:
    return names[1:3] == ["router_mask", "router_probs"]


def _routes_inside(names: list[str], module: nn.Module, block: nn.Module) -> bool:
    return names[1:] == ["router_logits"] and hasattr(module, "route_tokens_to_experts")


def _is_dense(names: list[str], module: nn.Module, block: nn.Module) -> bool:
    fused = any(parameter.dim() == 3 for parameter in module.parameters(recurse=False))
    return (
        len(names) == 1
        and fused
        and hasattr(block, "router")
        and isinstance(getattr(block, "top_k", None), int)
    )


def _is_sorted(names: list[str], module: nn.Module, block: nn.Module) -> bool:
    # The block holds two such modules; the first stands for both.
    first = next(
        (child for child in block.children() if "expert_size" in forward_arguments(child)), None
    )
    return names[1:] == ["expert_size"] and module is first


_FORMS: tuple[tuple[Callable[[list[str], nn.Module, nn.Module], bool], type[Adapter]], ...] = (
    (_is_one_hot, OneHot),
    (_is_common, Adapter),
    (_is_combined, Combined),
    (_routes_inside, RoutesInside),
    (_is_dense, Dense),
    (_is_sorted, Sorted),
)
