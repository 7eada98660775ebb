"""An input in fixed point: what integer dot products (``real.kernels.integer_dots``) multiply.

Sixteen neighbouring inputs share a step, 2^-22 of the greatest of them, so that an outlier blurs
its own sixteen alone. An input is a whole number of steps, and that is three signed bytes: ``65536
high + 256 middle + low``. Four inputs' bytes are one word.

Layout. int32 [T, 3, K / 4]: the planes high, middle, low, word after word. In fp32 [T, 2, C], C =
K / 16: the steps, and the sums of the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from real.kernels.jit import blocks, chained, chains, gdc_launch_dependents, gdc_wait, jit, tl
from real.kernels.tiles import CHUNK

WHOLE = 1 << 22
CHUNKS = 16
"""Of one program, a single warp."""
LEAST_STEP = 1e-30
Planes = tuple[Tensor, Tensor]
"""Words int32 [T, 3, K / 4]; steps and sums fp32 [T, 2, K / 16]."""


def fixed_point_ref(x_TK: Tensor) -> Planes:
    """The definition."""
    x_TCE = x_TK.float().reshape(len(x_TK), -1, CHUNK)
    step_TC = (x_TCE.abs().amax(2) * (1.0 / WHOLE)).clamp(min=LEAST_STEP)
    rest = (x_TCE / step_TC[..., None] + 0.5).floor().int()
    planes: list[Tensor] = []
    for _ in range(3):
        low = ((rest + 128) & 255) - 128
        planes.insert(0, low)
        rest = (rest - low) >> 8
    digit = (torch.stack(planes, dim=1) & 255).to(torch.uint8)
    words = digit.flatten(2).view(torch.int32)
    return words, torch.stack([step_TC, x_TCE.sum(2)], dim=1)


def read(planes: Planes) -> Tensor:
    """The inputs [T, K] as fp64 that the planes stand for."""
    words, about = planes
    high, middle, low = words.view(torch.int8).double().unbind(1)
    whole = 65536 * high + 256 * middle + low
    return whole * about[:, 0].repeat_interleave(CHUNK, dim=1)


@jit
def _fixed_point_kernel(
    x_ptr, words_ptr, about_ptr, K, BC: tl.constexpr, WAIT: tl.constexpr, TRIGGER: tl.constexpr
):
    if TRIGGER:
        gdc_launch_dependents()
    if WAIT:
        gdc_wait()
    t = tl.program_id(1).to(tl.int64)
    C = K // 16
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    e = tl.arange(0, 16)
    x = tl.load(x_ptr + t * K + c[:, None] * 16 + e[None, :], mask=(c < C)[:, None], other=0.0)
    x = x.to(tl.float32)
    step = tl.maximum(tl.max(tl.abs(x), axis=1) * (1.0 / 4194304.0), 1e-30)
    # A plain quotient of the GPU's is off by up to a whole step where an input is the greatest.
    rest = tl.floor(tl.div_rn(x, tl.broadcast_to(step[:, None], x.shape)) + 0.5).to(tl.int32)
    shift = (e % 4 * 8)[None, :]
    at = words_ptr + t * 12 * C + c[:, None] * 4 + tl.arange(0, 4)[None, :]
    for plane in tl.static_range(3):
        low = ((rest + 128) & 255) - 128
        word = tl.sum(tl.reshape((low & 255) << shift, (BC, 4, 4)), axis=2)
        tl.store(at + (2 - plane) * 4 * C, word, mask=(c < C)[:, None])
        rest = (rest - low) >> 8
    tl.store(about_ptr + t * 2 * C + c, step, mask=c < C)
    tl.store(about_ptr + (t * 2 + 1) * C + c, tl.sum(x, axis=1), mask=c < C)


def fixed_point(x_TK: Tensor, *, behind: bool = False) -> Planes:
    """The planes of contiguous rows [T, K]; K is a multiple of 16.

    ``behind``: the kernel that wrote x was launched just before, and is one of this package.
    """
    T, K = x_TK.shape
    if K % CHUNK or not x_TK.is_contiguous():
        raise ValueError(f"rows of {K} inputs are no contiguous multiples of {CHUNK}")
    words = torch.empty(T, 3, K // 4, dtype=torch.int32, device=x_TK.device)
    about = torch.empty(T, 2, K // CHUNK, dtype=torch.float32, device=x_TK.device)
    pdl = chains(x_TK)
    _fixed_point_kernel[(blocks(K // CHUNK, CHUNKS), T)](
        x_TK,
        words,
        about,
        K,
        BC=CHUNKS,
        WAIT=pdl and behind,
        TRIGGER=pdl,
        num_warps=1,
        **chained(pdl and behind),
    )
    return words, about
