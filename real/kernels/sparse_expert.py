"""FloE's sparse expert for one token: only the neurons whose up projection is large are computed.

    v = U x;  keep |v| >= t;  h = SiLU(g x) * v over the kept gate columns g;  y = sum of h times
    the kept down rows

Legend. J needs of the token; N neurons; H hidden size; C rows of a slot.

Storage. A neuron's *pair* is its gate column and its down row side by side, [2 H]: the compact
layout in which the host keeps and sends them. All types are plain. The up projection (resident, at
two bits) is computed by ``real.kernels.dequant_gemv``.

There are three forms. *Masked*: all N pairs are there, and the mask decides which are read.
*Gathered*: only the kept pairs are there, in any order, in the first of a slot's C rows, with their
count in device memory; v has their values in the same order. *Listed*: the same, but v has all N
values, and a list names the neurons of the rows.

One pass. A program takes a run of the kept neurons, and of a few at a time it loads gate and down
together: neither waits for the other. The gate's dots are sums over the whole program; h times down
is added to H sums in registers. The programs' sums are added by a second launch in a fixed order,
so the same call gives the same bits. In the masked form each program finds its run by itself: it
counts v by pieces, and lists the pieces in which the run lies.

What lies behind a count is never read, and a count beyond the rows or the list reads no further
than these.

Source: FloE (arXiv:2505.05950), Algorithm 1; with |v|, as its text has it, not v, as the algorithm
is printed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from real.kernels.add_parts import add_parts
from real.kernels.jit import chained, chains, gdc_launch_dependents, gdc_wait, jit, launches, tl
from real.kernels.tiles import NeuronTile, neuron_tile, power_of_two

MASKED, GATHERED, LISTED = 0, 1, 2
PIECE = 1024
"""Neurons that the masked form counts as one."""


def sparse_expert_ref(
    x_H: Tensor, v_JN: Tensor, pairs: Tensor, slot_J: Tensor, threshold_J: Tensor
) -> Tensor:
    """The definition of the masked form: fp32 [J, H]; ``pairs`` [S, N, 2 H]."""
    outputs = []
    for slot, v_N, threshold in zip(
        slot_J.tolist(), v_JN.float(), threshold_J.tolist(), strict=True
    ):
        kept = (v_N.abs() >= threshold).nonzero()[:, 0]
        outputs.append(_pairs_ref(x_H, v_N[kept], pairs[slot, kept]))
    return torch.stack(outputs)


def gathered_expert_ref(
    x_H: Tensor, v_JC: Tensor, pairs: Tensor, slot_J: Tensor, count_J: Tensor
) -> Tensor:
    """The definition of the gathered form: fp32 [J, H]; ``pairs`` [S, C, 2 H]."""
    outputs = [
        _pairs_ref(x_H, v_C[:count], pairs[slot, :count])
        for slot, v_C, count in zip(slot_J.tolist(), v_JC.float(), count_J.tolist(), strict=True)
    ]
    return torch.stack(outputs)


def listed_expert_ref(
    x_H: Tensor, v_JN: Tensor, pairs: Tensor, slot_J: Tensor, count_J: Tensor, neuron_LJ: Tensor
) -> Tensor:
    """The definition of the listed form: fp32 [J, H]."""
    v_JC = v_JN.gather(1, neuron_LJ.T.to(torch.int64))
    return gathered_expert_ref(x_H, v_JC, pairs, slot_J, count_J.clamp(max=len(neuron_LJ)))


def _pairs_ref(x_H: Tensor, v_C: Tensor, pairs_C: Tensor) -> Tensor:
    gate_CH, down_CH = pairs_C.float().chunk(2, dim=1)
    return (torch.nn.functional.silu(gate_CH @ x_H.float()) * v_C) @ down_CH


@jit
def _list_run(v_base, threshold, own, N, p, P, NC: tl.constexpr, BV: tl.constexpr):
    """Write program p's share of the kept neurons, in their order; return where it ends."""
    c = tl.arange(0, NC)
    i = tl.arange(0, BV)
    at = c[:, None] * BV + i[None, :]
    whole = tl.load(v_base + at, mask=at < N, other=0.0)
    here = tl.sum(((tl.abs(whole) >= threshold) & (at < N)).to(tl.int32), axis=1)
    upto = tl.cumsum(here, axis=0)
    count = tl.sum(here, axis=0)
    span = (count + P - 1) // P
    first = p * span
    begin = tl.sum((upto <= first).to(tl.int32), axis=0)
    end = tl.sum((upto - here < tl.minimum(first + span, count)).to(tl.int32), axis=0)
    for piece in tl.range(begin, end):
        before = tl.sum(tl.where(c == piece, upto - here, 0), axis=0)
        n = piece * BV + i
        v = tl.load(v_base + n, mask=n < N, other=0.0)
        keep = (tl.abs(v) >= threshold) & (n < N)
        rank = before - 1 - first + tl.cumsum(keep.to(tl.int32), axis=0)
        tl.store(own + rank, n, mask=keep & (rank >= 0) & (rank < span))
    # The whole program reads what single lanes have written.
    tl.debug_barrier()
    return count


@jit
def _sparse_expert_kernel(
    x_ptr,
    pairs_ptr,
    pairs_stride,
    slot_ptr,
    v_ptr,
    threshold_ptr,
    count_ptr,
    list_ptr,
    part_ptr,
    N,
    H,
    ROWS,
    FORM: tl.constexpr,
    CAP: tl.constexpr,
    NC: tl.constexpr,
    BV: tl.constexpr,
    BT: tl.constexpr,
    BH: tl.constexpr,
    WAIT: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Program (run of kept neurons, need). ROWS: the most that a count may be."""
    p = tl.program_id(0)
    j = tl.program_id(1)
    P = tl.num_programs(0)
    J = tl.num_programs(1)
    if TRIGGER:
        gdc_launch_dependents()
    h = tl.arange(0, BH)
    x = tl.load(x_ptr + h, mask=h < H, other=0.0).to(tl.float32)
    pairs = pairs_ptr + tl.load(slot_ptr + j).to(tl.int64) * pairs_stride
    if WAIT:
        gdc_wait()
    v_base = v_ptr + j.to(tl.int64) * N
    own = list_ptr + (j * P + p) * CAP
    if FORM == 0:
        count = _list_run(v_base, tl.load(threshold_ptr + j), own, N, p, P, NC, BV)
    else:
        count = tl.minimum(tl.load(count_ptr + j), ROWS)
    span = (count + P - 1) // P
    first = p * span
    mine = tl.minimum(span, tl.maximum(count - first, 0))
    acc = tl.zeros((BH,), dtype=tl.float32)
    t = tl.arange(0, BT)
    for t0 in tl.range(0, mine, BT, num_stages=1):
        on = t0 + t < mine
        if FORM == 0:
            row = tl.load(own + t0 + t, mask=on, other=0)
        else:
            row = first + t0 + t
        neuron = row
        if FORM == 2:
            neuron = tl.load(list_ptr + row * J + j, mask=on, other=0)
        v = tl.load(v_base + neuron, mask=on & (neuron >= 0) & (neuron < N), other=0.0)
        mask = on[:, None] & (h < H)[None, :]
        at = pairs + row.to(tl.int64)[:, None] * (2 * H) + h[None, :]
        gate = tl.load(at, mask=mask, other=0.0)
        down = tl.load(at + H, mask=mask, other=0.0)
        s = tl.sum(gate.to(tl.float32) * x[None, :], axis=1)
        a = s * tl.sigmoid(s) * v
        acc += tl.sum(down.to(tl.float32) * a[:, None], axis=0)
    tl.store(part_ptr + (p * J + j).to(tl.int64) * H + h, acc, mask=h < H)


def sparse_expert(
    x_H: Tensor,
    v_JN: Tensor,
    pairs: Tensor,
    slot_J: Tensor,
    threshold_J: Tensor,
    tile: NeuronTile | None = None,
    *,
    behind: bool = False,
) -> Tensor:
    """The masked form: fp32 [J, H] from all pairs of each need's slot.

    ``pairs`` are [S, N, 2 H], the slots at any stride. ``v_JN`` (fp32) is the up projection,
    ``threshold_J`` is fp32. ``behind``: v was written by the kernel just before, which is one of
    this package. Only tests give ``tile``.
    """
    J, N = v_JN.shape
    _check(x_H, v_JN, pairs, N)
    if (
        slot_J.dtype != torch.int32
        or len(slot_J) != J
        or threshold_J.dtype != torch.float32
        or len(threshold_J) != J
    ):
        raise ValueError(
            f"{J} needs take int32 slots and float32 thresholds, not {slot_J.dtype}"
            f" {list(slot_J.shape)} and {threshold_J.dtype} {list(threshold_J.shape)}"
        )
    if not launches(x_H):
        return sparse_expert_ref(x_H, v_JN, pairs, slot_J, threshold_J)
    return _launch(MASKED, x_H, v_JN, pairs, slot_J, threshold_J, slot_J, slot_J, tile, behind)


def gathered_expert(
    x_H: Tensor,
    v_JC: Tensor,
    pairs: Tensor,
    slot_J: Tensor,
    count_J: Tensor,
    tile: NeuronTile | None = None,
    *,
    behind: bool = False,
) -> Tensor:
    """The gathered form: fp32 [J, H] from the first ``count_J`` rows of each need's slot.

    ``pairs`` are [S, C, 2 H]. ``v_JC`` (fp32) holds the kept values in the order of the rows.
    ``slot_J`` and ``count_J`` are int32, on the device; a count beyond C counts as C. ``behind``
    and ``tile`` as in `sparse_expert`.
    """
    J, C = v_JC.shape
    _check(x_H, v_JC, pairs, C)
    _check_tables(slot_J, count_J, J)
    if not launches(x_H):
        return gathered_expert_ref(x_H, v_JC, pairs, slot_J, count_J)
    return _launch(GATHERED, x_H, v_JC, pairs, slot_J, v_JC, count_J, slot_J, tile, behind)


def listed_expert(
    x_H: Tensor,
    v_JN: Tensor,
    pairs: Tensor,
    slot_J: Tensor,
    count_J: Tensor,
    neuron_LJ: Tensor,
    tile: NeuronTile | None = None,
    *,
    behind: bool = False,
) -> Tensor:
    """The listed form: fp32 [J, H] from the first ``count_J`` rows of each need's slot.

    ``neuron_LJ``, contiguous int32, names the neuron of each of up to L rows; ``v_JN`` (fp32) has
    all neurons' values. A count beyond L or beyond a slot's rows counts as that many; a neuron that
    does not exist adds nothing. Else as `gathered_expert`.
    """
    J = len(v_JN)
    _check(x_H, v_JN, pairs, int(pairs.shape[1]))
    _check_tables(slot_J, count_J, J)
    if (
        neuron_LJ.dtype != torch.int32
        or neuron_LJ.dim() != 2
        or neuron_LJ.shape[1] != J
        or not neuron_LJ.is_contiguous()
    ):
        raise ValueError(
            f"{J} needs take a contiguous int32 list [rows, {J}], not {neuron_LJ.dtype}"
            f" {list(neuron_LJ.shape)}"
        )
    if not launches(x_H):
        return listed_expert_ref(x_H, v_JN, pairs, slot_J, count_J, neuron_LJ)
    return _launch(LISTED, x_H, v_JN, pairs, slot_J, v_JN, count_J, neuron_LJ, tile, behind)


def _check_tables(slot_J: Tensor, count_J: Tensor, needs: int) -> None:
    for name, table in (("slots", slot_J), ("counts", count_J)):
        if table.dtype != torch.int32 or list(table.shape) != [needs] or not table.is_contiguous():
            raise ValueError(
                f"{needs} needs take as many int32 {name}, not {table.dtype} {list(table.shape)}"
            )


def _check(x_H: Tensor, v: Tensor, pairs: Tensor, neurons: int) -> None:
    H = len(x_H)
    if (
        v.dtype != torch.float32
        or not v.is_contiguous()
        or not x_H.is_contiguous()
        or x_H.dim() != 1
    ):
        raise ValueError(
            f"up projections are contiguous torch.float32 and x a vector, not {v.dtype}"
            f" {list(v.shape)} and {list(x_H.shape)}"
        )
    if (
        pairs.dim() != 3
        or list(pairs.shape[1:]) != [neurons, 2 * H]
        or pairs.stride()[1:] != (2 * H, 1)
    ):
        raise ValueError(
            f"pairs are [.., {neurons}, {2 * H}] with contiguous rows, not {list(pairs.shape)} with"
            f" strides {pairs.stride()}"
        )


def _launch(
    form: int,
    x_H: Tensor,
    v: Tensor,
    pairs: Tensor,
    slot_J: Tensor,
    threshold_J: Tensor,
    count_J: Tensor,
    listed: Tensor,
    tile: NeuronTile | None,
    behind: bool,
) -> Tensor:
    (J, N), H = v.shape, len(x_H)
    if not J:
        return torch.empty(J, H, dtype=torch.float32, device=x_H.device)
    tile, pdl = tile or neuron_tile(H, J), chains(x_H)
    P, piece = tile.programs, min(PIECE, power_of_two(N))
    cap = -(-N // P)
    if form == MASKED:
        listed = torch.empty(J * P * cap, dtype=torch.int32, device=x_H.device)
    rows = min(int(pairs.shape[1]), len(listed)) if form == LISTED else N
    part_PJH = torch.empty(P, J, H, dtype=torch.float32, device=x_H.device)
    _sparse_expert_kernel[(P, J)](
        x_H,
        pairs,
        pairs.stride(0),
        slot_J,
        v,
        threshold_J,
        count_J,
        listed,
        part_PJH,
        N,
        H,
        rows,
        FORM=form,
        CAP=cap,
        NC=power_of_two(-(-N // piece)),
        BV=piece,
        BT=tile.neurons,
        BH=power_of_two(H),
        WAIT=pdl and behind,
        TRIGGER=pdl,
        num_warps=tile.warps,
        **chained(pdl and behind),
    )
    return add_parts(part_PJH)
