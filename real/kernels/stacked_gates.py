"""The gates of p layers with their top k and weights: in one launch, or one after another.

Legend. P layers; E experts; H hidden size; T tokens; k experts a token. A gate's scores are ``W_p
x``. The k greatest are chosen, in descending order, at a tie the lower expert first; their softmax
gives the weights. All in fp32.

A program computes the scores of a few experts, so that a gate is read by many multiprocessors at
once. Of a gate's programs whichever ends last chooses. It alone reads the scores, in their order,
so which one it is changes nothing. A counter in device memory tells it; it leaves 0 there.

Source: HOBBIT (arXiv:2411.01433), section 3.3 (stacked gating) and Fig. 17a (stacked beside
sequential).
"""

from __future__ import annotations

import torch
from torch import Tensor

from real.kernels.jit import blocks, jit, launches, tl
from real.kernels.tiles import GateTile, gate_tile, power_of_two

Gated = tuple[Tensor, Tensor, Tensor]
"""Scores fp32 [T, P, E], experts int32 [T, P, k], weights fp32 [T, P, k]."""


def stacked_gates_ref(x_TH: Tensor, weight_PEH: Tensor, k: int) -> Gated:
    score_TPE = torch.einsum("th,peh->tpe", x_TH.float(), weight_PEH.float())
    expert_TPk = score_TPE.argsort(dim=2, descending=True, stable=True)[..., :k]
    weight_TPk = score_TPE.gather(2, expert_TPk).softmax(dim=2)
    return score_TPE, expert_TPk.int(), weight_TPk


@jit
def _choose(score_ptr, expert_ptr, share_ptr, out, E, K: tl.constexpr, BE: tl.constexpr):
    """The K best of one gate's scores, and their weights."""
    e = tl.arange(0, BE)
    # Other multiprocessors wrote these: not from this one's own cache.
    score = tl.load(score_ptr + out * E + e, mask=e < E, other=float("-inf"), cache_modifier=".cg")
    # Chosen experts are left out by their id and not by their score, which may be minus infinity.
    left = e < E
    greatest = tl.max(score, axis=0)
    total = tl.max(tl.zeros((BE,), dtype=tl.float32), axis=0)
    chosen = tl.zeros((BE,), dtype=tl.int32)
    share = tl.zeros((BE,), dtype=tl.float32)
    for nth in range(K):
        top = tl.max(tl.where(left, score, float("-inf")), axis=0)
        best = tl.min(tl.where(left & (score == top), e, BE), axis=0)
        part = tl.exp(top - greatest)
        total += part
        chosen = tl.where(e == nth, best, chosen)
        share = tl.where(e == nth, part, share)
        left = left & (e != best)
    tl.store(expert_ptr + out * K + e, chosen, mask=e < K)
    tl.store(share_ptr + out * K + e, share / total, mask=e < K)


@jit
def _stacked_gates_kernel(
    x_ptr,
    weight_ptr,
    score_ptr,
    expert_ptr,
    share_ptr,
    counter_ptr,
    E,
    H,
    K: tl.constexpr,
    BB: tl.constexpr,
    BE: tl.constexpr,
    BH: tl.constexpr,
):
    """Program (experts, layer, token)."""
    p = tl.program_id(1)
    out = tl.program_id(2).to(tl.int64) * tl.num_programs(1) + p
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    score = tl.zeros((BB,), dtype=tl.float32)
    for h0 in range(0, H, BH):
        h = h0 + tl.arange(0, BH)
        x = tl.load(x_ptr + tl.program_id(2).to(tl.int64) * H + h, mask=h < H, other=0.0)
        w = tl.load(
            weight_ptr + (p * E + b).to(tl.int64)[:, None] * H + h[None, :],
            mask=(b < E)[:, None] & (h < H)[None, :],
            other=0.0,
        )
        score += tl.sum(w.to(tl.float32) * x.to(tl.float32)[None, :], axis=1)
    tl.store(score_ptr + out * E + b, score, mask=b < E)
    # All of this program's scores are written before it counts itself.
    tl.debug_barrier()
    before = tl.atomic_add(counter_ptr + out, 1, sem="acq_rel", scope="gpu")
    if before == tl.num_programs(0) - 1:
        tl.store(counter_ptr + out, 0)
        _choose(score_ptr, expert_ptr, share_ptr, out, E, K, BE)


def stacked_gates(
    x_TH: Tensor,
    weight_PEH: Tensor,
    k: int,
    tile: GateTile | None = None,
    *,
    counter: Tensor | None = None,
) -> Gated:
    """Scores, experts and weights of every token at each of P layers, in one launch.

    ``counter``: int32 zeros, at least T * P, of this caller's stream alone; they are zeros again
    afterwards. Without it zeros are made here, which is another launch. Only tests give
    ``tile``.
    """
    (T, H), (P, E, width) = x_TH.shape, weight_PEH.shape
    if width != H or not x_TH.is_contiguous() or not weight_PEH.is_contiguous():
        raise ValueError(
            f"gates of {list(weight_PEH.shape)} do not fit inputs of {list(x_TH.shape)}, or these"
            " are not contiguous"
        )
    if not 1 <= k <= E:
        raise ValueError(f"k={k} must be from 1 to the {E} experts")
    if counter is not None and (counter.dtype != torch.int32 or counter.numel() < T * P):
        raise ValueError(
            f"a counter for {T} tokens at {P} layers is torch.int32 [{T * P}], not {counter.dtype}"
            f" {list(counter.shape)}"
        )
    if not launches(x_TH):
        return stacked_gates_ref(x_TH, weight_PEH, k)
    score_TPE = torch.empty(T, P, E, dtype=torch.float32, device=x_TH.device)
    expert_TPk = torch.empty(T, P, k, dtype=torch.int32, device=x_TH.device)
    weight_TPk = torch.empty(T, P, k, dtype=torch.float32, device=x_TH.device)
    if T and P:
        if counter is None:
            counter = torch.zeros(T * P, dtype=torch.int32, device=x_TH.device)
        tile = tile or gate_tile(E, H)
        _stacked_gates_kernel[(blocks(E, tile.experts), P, T)](
            x_TH,
            weight_PEH,
            score_TPE,
            expert_TPk,
            weight_TPk,
            counter,
            E,
            H,
            K=k,
            BB=tile.experts,
            BE=power_of_two(E),
            BH=tile.columns,
            num_warps=tile.warps,
        )
    return score_TPE, expert_TPk, weight_TPk


def sequential_gates(
    x_TH: Tensor,
    weight_PEH: Tensor,
    k: int,
    tile: GateTile | None = None,
    *,
    counter: Tensor | None = None,
) -> Gated:
    """The same with one launch a layer."""
    gates = [
        stacked_gates(x_TH, weight_EH[None], k, tile, counter=counter) for weight_EH in weight_PEH
    ]
    scores, experts, weights = (torch.cat(part, dim=1) for part in zip(*gates, strict=True))
    return scores, experts, weights
