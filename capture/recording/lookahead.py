"""Lookahead scores: the scores of later sites' routers on the input of an earlier site.

Nothing here runs inside the model's forward pass. Routers are recomputed from recorded inputs, and
only after a check that the recomputation reproduces the recorded logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from capture.models.discover import ENCODER, CaptureError, MoELayer, logit_linear

# A linear router recomputed in float32 differs by rounding only. Allowed is a share of the largest
# logit: ROUTER_TOLERANCE, or so many units in the last place of the model's dtype, if that is more.
ROUTER_TOLERANCE, ROUTER_TOLERANCE_ULPS = 1e-3, 8

Scorer = Callable[[torch.Tensor], torch.Tensor]


def router_linear(layer: MoELayer) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight [E, H] and bias [E] (or None) of the router, in float32 on the CPU.

    Raise `CaptureError` if it has no such weight.
    """
    for module in reversed(list(layer.router.modules())):
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if (
            isinstance(weight, torch.Tensor)
            and weight.dim() == 2
            and weight.shape[0] == layer.num_classes
        ):
            return (
                weight.detach().float().cpu(),
                None if bias is None else bias.detach().float().cpu(),
            )
    raise CaptureError(
        f"{layer.name}: the router has no weight [experts, hidden]; record with lookahead=0"
    )


def is_linear(layer: MoELayer, gate_in: torch.Tensor, logits: torch.Tensor) -> bool:
    """Whether the router's weight maps the recorded inputs [T, H] to the recorded logits [T, E]."""
    try:
        weight, bias = router_linear(layer)
    except CaptureError:
        return False
    return weight.shape[1] == gate_in.shape[-1] and _agrees(
        _linear(weight, bias)(gate_in), gate_in, logits
    )


def router_scorer(layer: MoELayer, gate_in: torch.Tensor, logits: torch.Tensor) -> Scorer:
    """The router as a function of its input alone, ``[T, H] -> float32 [T, E]`` on the CPU.

    A linear router is computed from its weight in float32, others by the module itself. Raise
    `CaptureError` unless the function returns the recorded ``logits`` for the recorded ``gate_in``:
    a router with a state or with other inputs cannot be asked about another site's input.
    """
    if is_linear(layer, gate_in, logits):
        return _linear(*router_linear(layer))
    try:
        scorer = _module_scorer(layer)
        if _agrees(scorer(gate_in), gate_in, logits):
            return scorer
        reason = "does not give its recorded logits again"
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        reason = str(error).split("\n")[0]
    raise CaptureError(
        f"{layer.name}: the router {type(layer.router).__name__} is not a function of its gate"
        f" input alone ({reason}), so feeding it with another site's input has no plain meaning;"
        " record with lookahead=0"
    )


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Scorer:
    def score(inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs.float(), weight, bias)

    return score


def _module_scorer(layer: MoELayer) -> Scorer:
    parameter = next(layer.router.parameters())
    linear = logit_linear(layer.router, layer.num_experts)

    def score(inputs: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        handle = (
            None
            if linear is None
            else linear.register_forward_hook(lambda _m, _a, output: seen.append(output))
        )
        try:
            with torch.no_grad():
                output: Any = layer.router(inputs.to(parameter.device, parameter.dtype)[None])
        finally:
            if handle is not None:
                handle.remove()
        members = seen or (output if isinstance(output, tuple) else (output,))
        logits = next(member for member in members if member.shape[-1] == layer.num_classes)
        return logits.reshape(len(inputs), -1).float().cpu()

    return score


def _agrees(found: torch.Tensor, gate_in: torch.Tensor, logits: torch.Tensor) -> bool:
    if not len(logits):
        return True
    tolerance = max(ROUTER_TOLERANCE, ROUTER_TOLERANCE_ULPS * torch.finfo(gate_in.dtype).eps)
    error = (found - logits).abs().max().item()
    return error <= tolerance * max(1.0, logits.abs().max().item())


def lookahead_scores(
    layers: Sequence[MoELayer],
    scorers: Sequence[Scorer],
    inputs: torch.Tensor,
    depth: int,
    scales: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]] | None,
    *,
    next_site: bool = False,
) -> torch.Tensor:
    """Scores of the routers 1 to ``depth`` sites ahead, on the inputs of each site.

    Returns [T, S, depth, E], NaN where there is no such site: past the last site, and from an
    encoder's sites past the end of the encoder. ``inputs`` [T, S, H] are gate inputs or attention
    inputs.

    ``scales`` decides how an input x is fed:

    - None (`raw`): as it is.
    - (own, gate) (`renormed`): ``x / own[s] * gate[s + j]``, with the scales by site of the norm
      that made x and of the norm before the target's gate. That is what the target's norm would
      make of the residual here.

    With ``next_site`` the input of the *next* site's layer is fed, which is a whole block nearer to
    the target.
    """
    num_rows, num_sites = inputs.shape[:2]
    scores = torch.full((num_rows, num_sites, depth, layers[0].num_classes), math.nan)
    encoder = sum(layer.side == ENCODER for layer in layers)
    for site in range(num_sites):
        end = encoder if site < encoder else num_sites
        for ahead in range(1, min(depth, end - 1 - site) + 1):
            source = site + 1 if next_site else site
            fed = inputs[:, source].float()
            if scales is not None:
                own, gate = scales
                fed = fed / own[source].float().cpu() * gate[site + ahead].float().cpu()
            scores[:, site, ahead - 1] = scorers[site + ahead](fed)
    return scores
