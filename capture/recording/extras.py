"""Measures the inside of experts: output norms, shares of active channels, channel masks.

All of it is computed from recorded inputs after the model has run, never inside its forward pass.
Modules are called through ``forward``, which bypasses hooks, and on copies of the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from capture.models.discover import CaptureError
from capture.models.expert_forms import ExpertForm
from sim.values.units import part_of

# Thresholds pooled over a site are fitted on at most so many values, evenly spaced in the sample.
POOLED_VALUES = 1 << 24


@dataclass(frozen=True, eq=False)
class SiteExtras:
    """What was measured inside the experts of one site, for the rows asked for.

    - ``norms`` [D, K]: Euclidean norm of each chosen expert's output.
    - ``shares`` [D, K, P]: share of each chosen expert's channels that are active.
    - ``masks`` bool [M, K, P, I]: which channels are active.
    - ``thresholds`` [E, P]: a channel is active from this absolute value on.
    - ``num_pooled``: how many experts had no sample and use the thresholds of the whole site.

    P counts sparsities. Norms and shares are NaN in rows that did not visit the site.
    """

    norms: torch.Tensor
    shares: torch.Tensor
    masks: torch.Tensor
    thresholds: torch.Tensor
    num_pooled: int


def site_extras(
    form: ExpertForm,
    inputs: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    *,
    fit: torch.Tensor,
    decode: torch.Tensor,
    kept: torch.Tensor,
    sparsities: Sequence[float],
) -> SiteExtras:
    """Extras of one site, from its experts' form, their inputs [N, H], and ids and weights [N, K].

    Thresholds are fitted on the rows ``fit`` (bool [N]). Norms and shares are returned for the rows
    ``decode``, masks for the rows ``kept``. A channel is active where its absolute value v is at
    least the threshold ``t = min{t' > 0 : F(t') >= sparsity}``. F is the empirical distribution of
    v of that expert over the fitted rows. A channel that is exactly 0 adds nothing, and is never
    active.

    Source: Zhou et al., FloE: On-the-Fly MoE Inference on Memory-constrained GPU, section 4.1.
    """
    device, experts = next(form.experts.parameters()).device, form.layer.num_experts
    inputs, ids, weights = inputs.to(device), ids.to(device), weights.to(device)
    thresholds, lacking = _fitted_thresholds(form, inputs, ids, weights, fit.to(device), sparsities)
    shares = torch.zeros(*ids.shape, len(sparsities))
    place = (kept.long().cumsum(0) - 1).to(device)
    masks = torch.zeros(
        int(kept.sum()), ids.shape[1], len(sparsities), form.width, dtype=torch.bool
    )
    for expert in range(experts):
        rows, slots = torch.where(ids == expert)
        values = (
            form.channels(expert, form.fed(inputs, weights, rows, slots))
            .detach()
            .abs()
            .float()
            .cpu()
        )
        active = values[:, None, :] >= thresholds[expert][None, :, None]
        shares[rows.cpu(), slots.cpu()] = active.float().mean(-1)
        mine = kept[rows.cpu()]
        masks[place[rows].cpu()[mine], slots.cpu()[mine]] = active[mine]
    wanted = decode.to(device)
    norms, shares = form.norms(inputs[wanted], ids[wanted], weights[wanted]), shares[decode]
    # Rows of an encoder-decoder's other stack have no input at this site: nothing was measured.
    away = torch.isnan(inputs[wanted]).any(-1).cpu()
    norms[away], shares[away] = torch.nan, torch.nan
    return SiteExtras(norms, shares, masks, thresholds, lacking)


def unmeasured_extras(
    ids: torch.Tensor,
    *,
    decode: torch.Tensor,
    kept: torch.Tensor,
    experts: int,
    width: int,
    sparsities: Sequence[float],
) -> SiteExtras:
    """Extras of a site whose experts cannot be measured: all NaN, and masks without a channel."""
    count, top_k, levels = int(decode.sum()), ids.shape[1], len(sparsities)
    return SiteExtras(
        norms=torch.full((count, top_k), torch.nan),
        shares=torch.full((count, top_k, levels), torch.nan),
        masks=torch.zeros(int(kept.sum()), top_k, levels, width, dtype=torch.bool),
        thresholds=torch.full((experts, levels), torch.nan),
        num_pooled=0,
    )


def _fitted_thresholds(
    form: ExpertForm,
    inputs: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    fit: torch.Tensor,
    sparsities: Sequence[float],
) -> tuple[torch.Tensor, int]:
    """Thresholds [E, P], and how many experts had no sample of their own."""
    experts = form.layer.num_experts

    def sample(expert: int) -> torch.Tensor:
        rows, slots = torch.where((ids == expert) & fit[:, None])
        return form.channels(expert, form.fed(inputs, weights, rows, slots)).detach().abs().float()

    own = [
        _thresholds(values, sparsities) if len(values := sample(expert)) else None
        for expert in range(experts)
    ]
    lacking = sum(values is None for values in own)
    if not lacking:
        return torch.stack([values for values in own if values is not None]), 0
    everything = torch.cat([sample(expert).flatten().cpu() for expert in range(experts)])
    pooled = _thresholds(everything[:: len(everything) // POOLED_VALUES + 1], sparsities)
    return torch.stack([pooled if values is None else values for values in own]), lacking


def _thresholds(sample: torch.Tensor, sparsities: Sequence[float]) -> torch.Tensor:
    """For each sparsity the smallest positive sample value with at least that share at or below.

    Returns [P].
    """
    ordered = sample.flatten().sort().values
    if not len(ordered):
        raise CaptureError(
            "no row to fit activation thresholds on; give prompts with split=fit, or sparsities="
        )
    ranks = [max(part_of(len(ordered), share, up=True), 1) - 1 for share in sparsities]
    # Where the whole sample is 0 any positive threshold makes every channel inactive; 1 is taken.
    least = ordered[ordered > 0][:1] if ordered[-1] > 0 else torch.ones_like(ordered[:1])
    return torch.maximum(ordered[torch.tensor(ranks, device=ordered.device)], least).cpu()


def pack_masks(masks: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Channel masks ``[..., P, I]``, packed into bytes ``[..., B, ceil(I / 8)]``.

    The masks are nested, since thresholds ascend. So a channel's *level*, the number of masks that
    contain it, says all; B is the number of bits of P. Plane b holds bit b of the levels, eight
    channels a byte, the first channel in the highest bit.
    """
    num_masks = masks.shape[-2]
    levels = masks.sum(-2).astype(np.uint8)
    planes = [np.packbits(levels >> bit & 1, axis=-1) for bit in range(num_masks.bit_length())]
    return np.stack(planes, axis=-2)


def unpack_masks(planes: NDArray[np.uint8], num_masks: int, width: int) -> NDArray[np.bool_]:
    """Inverse of `pack_masks`: ``[..., num_masks, width]``, lowest sparsity first."""
    bits = np.unpackbits(planes, axis=-1, count=width).astype(np.int64)
    levels = sum(bits[..., plane, :] << plane for plane in range(planes.shape[-2]))
    return np.asarray(levels)[..., None, :] > np.arange(num_masks)[:, None]
