"""The gates of p layers with their top k and weights: in one launch, or one after another.

Legend. P layers; E experts; H hidden size; T tokens; k experts a token. A gate's scores are ``W_p
x``. The k greatest are chosen, in descending order, at a tie the lower expert first; their softmax
gives the weights. All in fp32.

Source: HOBBIT (arXiv:2411.01433), section 3.3 (stacked gating) and Fig. 17a (stacked beside
sequential).
"""

from __future__ import annotations

import torch
from torch import Tensor

from real.kernels.jit import jit, launches, power_of_two, tl

Gated = tuple[Tensor, Tensor, Tensor]
"""Scores fp32 [T, P, E], experts int32 [T, P, k], weights fp32 [T, P, k]."""


def stacked_gates_ref(x_TH: Tensor, weight_PEH: Tensor, k: int) -> Gated:
    score_TPE = torch.einsum("th,peh->tpe", x_TH.float(), weight_PEH.float())
    expert_TPk = score_TPE.argsort(dim=2, descending=True, stable=True)[..., :k]
    weight_TPk = score_TPE.gather(2, expert_TPk).softmax(dim=2)
    return score_TPE, expert_TPk.int(), weight_TPk


@jit
def _stacked_gates_kernel(
    x_ptr,
    weight_ptr,
    score_ptr,
    expert_ptr,
    share_ptr,
    E,
    H,
    K: tl.constexpr,
    BE: tl.constexpr,
    BH: tl.constexpr,
):
    """The gate of one layer for one token."""
    p = tl.program_id(0)
    out = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + p
    e = tl.arange(0, BE)
    score = tl.zeros((BE,), dtype=tl.float32)
    for h0 in range(0, H, BH):
        h = h0 + tl.arange(0, BH)
        x = tl.load(x_ptr + tl.program_id(1).to(tl.int64) * H + h, mask=h < H, other=0.0).to(
            tl.float32
        )
        w = tl.load(
            weight_ptr + (p * E + e).to(tl.int64)[:, None] * H + h[None, :],
            mask=(e < E)[:, None] & (h < H)[None, :],
            other=0.0,
        )
        score += tl.sum(w.to(tl.float32) * x[None, :], axis=1)
    tl.store(score_ptr + out * E + e, score, mask=e < E)
    # Chosen experts are left out by their id and not by their score, which may be minus infinity.
    left = e < E
    greatest = tl.max(tl.where(left, score, float("-inf")), axis=0)
    total = tl.max(tl.zeros((BE,), dtype=tl.float32), axis=0)
    slot = tl.arange(0, BE)
    chosen = tl.zeros((BE,), dtype=tl.int32)
    share = tl.zeros((BE,), dtype=tl.float32)
    for nth in range(K):
        top = tl.max(tl.where(left, score, float("-inf")), axis=0)
        best = tl.min(tl.where(left & (score == top), e, BE), axis=0)
        part = tl.exp(top - greatest)
        total += part
        chosen = tl.where(slot == nth, best, chosen)
        share = tl.where(slot == nth, part, share)
        left = left & (e != best)
    tl.store(expert_ptr + out * K + slot, chosen, mask=slot < K)
    tl.store(share_ptr + out * K + slot, share / total, mask=slot < K)


def stacked_gates(
    x_TH: Tensor, weight_PEH: Tensor, k: int, tile_columns: int | None = None
) -> Gated:
    """Scores, experts and weights of every token at each of P layers, in one launch."""
    (T, H), (P, E, width) = x_TH.shape, weight_PEH.shape
    if width != H or not x_TH.is_contiguous() or not weight_PEH.is_contiguous():
        raise ValueError(
            f"gates of {list(weight_PEH.shape)} do not fit inputs of {list(x_TH.shape)}, or these"
            " are not contiguous"
        )
    if not 1 <= k <= E:
        raise ValueError(f"k={k} must be from 1 to the {E} experts")
    if not launches(x_TH):
        return stacked_gates_ref(x_TH, weight_PEH, k)
    score_TPE = torch.empty(T, P, E, dtype=torch.float32, device=x_TH.device)
    expert_TPk = torch.empty(T, P, k, dtype=torch.int32, device=x_TH.device)
    weight_TPk = torch.empty(T, P, k, dtype=torch.float32, device=x_TH.device)
    if T and P:
        _stacked_gates_kernel[(P, T)](
            x_TH,
            weight_PEH,
            score_TPE,
            expert_TPk,
            weight_TPk,
            E,
            H,
            K=k,
            BE=power_of_two(E),
            BH=tile_columns or max(32, min(power_of_two(H), 8192 // power_of_two(E))),
            num_warps=4,
        )
    return score_TPE, expert_TPk, weight_TPk


def sequential_gates(
    x_TH: Tensor, weight_PEH: Tensor, k: int, tile_columns: int | None = None
) -> Gated:
    """The same with one launch a layer."""
    gates = [stacked_gates(x_TH, weight_EH[None], k, tile_columns) for weight_EH in weight_PEH]
    scores, experts, weights = (torch.cat(part, dim=1) for part in zip(*gates, strict=True))
    return scores, experts, weights
