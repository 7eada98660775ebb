"""What offloading policies ask beyond routing, computed from recorded inputs after the model has run.

Nothing here runs inside the model's forward pass: modules are called through ``forward``, past any hook, on copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from capture.discover import CaptureError, MoELayer

# A linear router recomputed in float32 differs by rounding only: a share of the largest logit, or units in the last
# place of the model's dtype, whichever is more.
ROUTER_TOLERANCE, ROUTER_TOLERANCE_ULPS = 1e-3, 8


@dataclass(frozen=True, eq=False)
class SiteExtras:
    """Of one site. ``norms [D, K]``, ``shares [D, K, P]`` and ``masks`` (bool [M, K, P, I]) of the rows asked for.

    ``thresholds [E, P]`` are those of |x W_up|; ``num_pooled`` experts had no sample and use the whole site's.
    """

    norms: torch.Tensor
    shares: torch.Tensor
    masks: torch.Tensor
    thresholds: torch.Tensor
    num_pooled: int


def router_linear(layer: MoELayer) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight [E, H] and bias [E] of the router. Raise `CaptureError` if it has no such weight."""
    for module in reversed(list(layer.router.modules())):
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if isinstance(weight, torch.Tensor) and weight.dim() == 2 and weight.shape[0] == layer.num_experts:
            return weight.detach().float().cpu(), None if bias is None else bias.detach().float().cpu()
    raise CaptureError(f"{layer.name}: the router has no weight [experts, hidden]; record with lookahead=0")


def check_linear(layer: MoELayer, gate_in: torch.Tensor, logits: torch.Tensor) -> None:
    """Raise `CaptureError` unless the router's weight maps the recorded inputs [T, H] to the recorded logits [T, E]."""
    error = (_linear(layer, gate_in) - logits).abs().max().item() if len(logits) else 0.0
    tolerance = max(ROUTER_TOLERANCE, ROUTER_TOLERANCE_ULPS * torch.finfo(gate_in.dtype).eps)
    if error > tolerance * max(1.0, logits.abs().max().item()):
        raise CaptureError(
            f"{layer.name}: logits differ from weight x input by {error:.3g}: this router is not linear, so feeding it "
            "with another site's input has no plain meaning; record with lookahead=0"
        )


def _linear(layer: MoELayer, inputs: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(inputs.float(), *router_linear(layer))


def lookahead_scores(
    layers: Sequence[MoELayer], gate_in: torch.Tensor, depth: int, scales: Sequence[torch.Tensor] | None
) -> torch.Tensor:
    """Scores of the routers 1..``depth`` sites on, fed with this site's gate input; [T, S, depth, E], NaN past the end.

    ``gate_in [T, S, H]``. Without ``scales`` the input is fed as it is (`raw`); with the norms' scale vectors it is
    ``x / scales[s] * scales[s + j]`` (`renormed`): what the target's norm would make of this site's residual.
    """
    num_rows, num_sites = gate_in.shape[:2]
    scores = torch.full((num_rows, num_sites, depth, layers[0].num_experts), math.nan)
    for site in range(num_sites):
        for ahead in range(1, min(depth, num_sites - 1 - site) + 1):
            inputs = gate_in[:, site].float()
            if scales is not None:
                inputs = inputs / scales[site].float().cpu() * scales[site + ahead].float().cpu()
            scores[:, site, ahead - 1] = _linear(layers[site + ahead], inputs)
    return scores


def up_activations(experts: nn.Module, expert: int, inputs: torch.Tensor) -> torch.Tensor:
    """``x W_up`` of one expert, [T, I], for ``inputs [T, H]``, whatever the layout of the fused weights."""
    name = "gate_up_proj" if hasattr(experts, "gate_up_proj") else "up_proj"
    fused = getattr(experts, name, None)
    if not isinstance(fused, torch.Tensor) or fused.dim() != 3:
        raise CaptureError(f"{type(experts).__name__} has no fused gate_up_proj or up_proj; record with sparsities=")
    weight = fused.detach()[expert]
    values = inputs @ weight if getattr(experts, "is_transposed", False) else nn.functional.linear(inputs, weight)
    bias = getattr(experts, f"{name}_bias", None)
    if isinstance(bias, torch.Tensor):
        values = values + bias.detach()[expert]
    if name == "up_proj":
        return values
    return values.chunk(2, -1)[1] if getattr(experts, "is_concatenated", True) else values[..., 1::2]


def expert_norms(experts: nn.Module, inputs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Euclidean norm of each chosen expert's output before weighting, [T, K]; 0 where ``ids`` is -1."""
    norms = torch.zeros(ids.shape)
    for slot in range(ids.shape[1]):
        chosen = ids[:, slot : slot + 1].long()
        # Weight 1 for one expert at a time makes the module's own sum that expert's output.
        weights = (chosen >= 0).to(inputs.dtype)
        with torch.no_grad():
            output = type(experts).forward(experts, inputs, chosen.clamp(min=0), weights)
        norms[:, slot] = output.float().norm(dim=-1).cpu()
    return norms


def site_extras(
    layer: MoELayer,
    inputs: torch.Tensor,
    ids: torch.Tensor,
    *,
    fit: torch.Tensor,
    decode: torch.Tensor,
    kept: torch.Tensor,
    sparsities: Sequence[float],
) -> SiteExtras:
    """Extras of one site, from its expert inputs [N, H] and ids [N, K].

    Thresholds are fitted on the rows ``fit`` [N]; norms and shares are given for ``decode`` [N], masks for ``kept``
    [N]. A channel is active where |x W_up| >= t, with ``t = min{t' : F(t') >= sparsity}`` and F the empirical
    distribution of |x W_up| of that expert over the fitted rows.

    Source: Zhou et al., FloE: On-the-Fly MoE Inference on Memory-constrained GPU, section 4.1.
    """
    device = next(layer.experts.parameters()).device
    inputs, ids = inputs.to(device), ids.to(device)
    samples, places = [], []
    for expert in range(layer.num_experts):
        rows, slots = torch.where(ids == expert)
        samples.append(up_activations(layer.experts, expert, inputs[rows]).abs().float().cpu())
        places.append((rows.cpu(), slots.cpu()))
    fitted = [sample[fit[rows]] for sample, (rows, _) in zip(samples, places, strict=True)]
    pooled = _thresholds(torch.cat(fitted), sparsities)
    thresholds = torch.stack([_thresholds(sample, sparsities) if len(sample) else pooled for sample in fitted])
    width = samples[0].shape[-1]
    active = torch.zeros(*ids.shape, len(sparsities), width, dtype=torch.bool)
    for expert, (rows, slots) in enumerate(places):
        active[rows, slots] = samples[expert][:, None, :] >= thresholds[expert][None, :, None]
    return SiteExtras(
        norms=expert_norms(layer.experts, inputs[decode.to(device)], ids[decode.to(device)]),
        shares=active[decode].float().mean(-1),
        masks=active[kept],
        thresholds=thresholds,
        num_pooled=sum(not len(sample) for sample in fitted),
    )


def _thresholds(sample: torch.Tensor, sparsities: Sequence[float]) -> torch.Tensor:
    """The smallest sample value at or below which at least each share of the sample lies, [P]."""
    ordered = sample.flatten().sort().values
    if not len(ordered):
        raise CaptureError("no row to fit activation thresholds on; give prompts with split=fit, or sparsities=")
    ranks = [max(math.ceil(share * len(ordered) - 1e-9), 1) - 1 for share in sparsities]
    return ordered[torch.tensor(ranks)]


def pack_masks(masks: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Channel masks ``[..., P, I]`` in ``[..., B, ceil(I / 8)]`` bytes, B bits a channel for P masks.

    The masks are nested (thresholds ascend), so a channel's *level*, the number of masks it is in, says all. Plane b
    holds bit b of the levels, eight channels a byte, the first channel in the highest bit.
    """
    num_masks = masks.shape[-2]
    levels = masks.sum(-2).astype(np.uint8)
    planes = [np.packbits(levels >> bit & 1, axis=-1) for bit in range(num_masks.bit_length())]
    return np.stack(planes, axis=-2)


def unpack_masks(planes: NDArray[np.uint8], num_masks: int, width: int) -> NDArray[np.bool_]:
    """Inverse of `pack_masks`: ``[..., num_masks, width]``, the mask of the lowest sparsity first."""
    bits = np.unpackbits(planes, axis=-1, count=width).astype(np.int64)
    levels = sum(bits[..., plane, :] << plane for plane in range(planes.shape[-2]))
    return np.asarray(levels)[..., None, :] > np.arange(num_masks)[:, None]
