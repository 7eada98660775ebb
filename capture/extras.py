"""What offloading policies ask about the inside of experts, computed from recorded inputs after the model has run.

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

# Thresholds pooled over a site are fitted on at most so many values, taken at equal distances.
POOLED_VALUES = 1 << 24


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


def check_measurable(layer: MoELayer) -> int:
    """The width I of the site's experts. Raise `CaptureError` if their activations cannot be measured one by one."""
    if not layer.adapter.standalone:
        raise CaptureError(
            f"{layer.name}: {type(layer.experts).__name__} cannot be run for chosen rows and experts; record with "
            "sparsities="
        )
    parameter = next(layer.experts.parameters())
    for width in _input_widths(layer):
        probe = torch.zeros(1, width, dtype=parameter.dtype, device=parameter.device)
        try:
            return int(up_activations(layer.experts, 0, probe).shape[-1])
        except RuntimeError:
            continue
    raise CaptureError(f"{layer.name}: cannot tell the width of its experts' input; record with sparsities=")


def _input_widths(layer: MoELayer) -> list[int]:
    """Candidates for H: the model's, and what the fused weights show."""
    hidden = getattr(getattr(layer.stack, "config", None), "hidden_size", 0)
    shapes = [parameter.shape for parameter in layer.experts.parameters() if parameter.dim() == 3]
    return [hidden, *dict.fromkeys(width for shape in shapes for width in shape[1:])]


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
    for slot in range(ids.shape[1] if len(ids) else 0):
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
    thresholds, lacking = _fitted_thresholds(layer, inputs, ids, fit.to(device), sparsities)
    shares = torch.zeros(*ids.shape, len(sparsities))
    place = (kept.long().cumsum(0) - 1).to(device)
    masks = torch.zeros(0)
    for expert in range(layer.num_experts):
        rows, slots = torch.where(ids == expert)
        values = up_activations(layer.experts, expert, inputs[rows]).abs().float().cpu()
        active = values[:, None, :] >= thresholds[expert][None, :, None]
        shares[rows.cpu(), slots.cpu()] = active.float().mean(-1)
        if not expert:
            masks = torch.zeros(int(kept.sum()), ids.shape[1], *active.shape[1:], dtype=torch.bool)
        mine = kept[rows.cpu()]
        masks[place[rows].cpu()[mine], slots.cpu()[mine]] = active[mine]
    wanted = decode.to(device)
    return SiteExtras(
        norms=expert_norms(layer.experts, inputs[wanted], ids[wanted]),
        shares=shares[decode],
        masks=masks,
        thresholds=thresholds,
        num_pooled=lacking,
    )


def _fitted_thresholds(
    layer: MoELayer, inputs: torch.Tensor, ids: torch.Tensor, fit: torch.Tensor, sparsities: Sequence[float]
) -> tuple[torch.Tensor, int]:
    """Thresholds [E, P] and how many experts had no sample of their own."""

    def sample(expert: int) -> torch.Tensor:
        rows = ((ids == expert).any(-1) & fit).nonzero()[:, 0]
        return up_activations(layer.experts, expert, inputs[rows]).abs().float()

    own = [_thresholds(values, sparsities) if len(values := sample(expert)) else None
           for expert in range(layer.num_experts)]  # fmt: skip
    lacking = sum(values is None for values in own)
    if not lacking:
        return torch.stack([values for values in own if values is not None]), 0
    everything = torch.cat([sample(expert).flatten().cpu() for expert in range(layer.num_experts)])
    pooled = _thresholds(everything[:: len(everything) // POOLED_VALUES + 1], sparsities)
    return torch.stack([pooled if values is None else values for values in own]), lacking


def _thresholds(sample: torch.Tensor, sparsities: Sequence[float]) -> torch.Tensor:
    """The smallest sample value at or below which at least each share of the sample lies, [P]."""
    ordered = sample.flatten().sort().values
    if not len(ordered):
        raise CaptureError("no row to fit activation thresholds on; give prompts with split=fit, or sparsities=")
    ranks = [max(math.ceil(share * len(ordered) - 1e-9), 1) - 1 for share in sparsities]
    return ordered[torch.tensor(ranks, device=ordered.device)].cpu()


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
