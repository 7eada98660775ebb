"""The kernel of one input in fixed point: dot products with 4-bit and 2-bit rows, in integers.

Legend and storage: ``real.kernels.dequant_gemv``; the input: ``real.kernels.fixed_point``.

Arithmetic. One instruction (dp4a) multiplies four unsigned bytes with four signed ones, and adds
all that to an integer. So a weight is never taken apart. Masked where they lie in their byte, the
weights of one slab are ``q 2^s``; the power of two is undone by the scale. Sixteen weights of a
lane meet the three planes of their inputs in twelve such instructions, and two conversions to fp32
follow. Of sixteen products of 240 x 128 no sum leaves int32, so integers are exact; only the steps
of the input round, by 2^-23 of its sixteen's greatest.
"""

from __future__ import annotations

from real.kernels.jit import gdc_launch_dependents, gdc_wait, jit, tl
from real.kernels.row_dots import load_tile, store_rows, zeros_of


def _dots(mask: int) -> str:
    """PTX: 16 weights of a slab against 16 inputs: the high plane's sum, and 256 middle + low."""
    text = "{ .reg .b32 t, m; "
    for word in range(4):
        text += f"and.b32 t, ${2 + word}, {mask:#010x}; "
        for plane, sum_of in enumerate(("$0", "m", "$1")):
            before = sum_of if word else "0"
            text += f"dp4a.u32.s32 {sum_of}, t, ${6 + 4 * plane + word}, {before}; "
    return text + "shl.b32 m, m, 8; add.s32 $1, $1, m; }"


def _constant(value):
    return value if tl is None else tl.constexpr(value)


ASM_40, ASM_41 = _constant(_dots(0xF0F0F0F0)), _constant(_dots(0x0F0F0F0F))
ASM_20, ASM_21 = _constant(_dots(0xC0C0C0C0)), _constant(_dots(0x30303030))
ASM_22, ASM_23 = _constant(_dots(0x0C0C0C0C)), _constant(_dots(0x03030303))
CONSTRAINTS = _constant("=&r,=&r," + ",".join(["r"] * 16))


@jit
def _interpreted_dots(words, high, middle, low, LEFT: tl.constexpr, BITS: tl.constexpr):
    dot = words[0] * 0
    for word in tl.static_range(4):
        for b in tl.static_range(0, 32, 8):
            x = (((high[word] >> b) & 255) ^ 128) - 128
            x = 256 * x + (((middle[word] >> b) & 255) ^ 128) - 128
            x = 256 * x + (((low[word] >> b) & 255) ^ 128) - 128
            dot += ((words[word] >> (b + LEFT)) & ((1 << BITS) - 1)) * x
    return (dot.to(tl.float32)) * (1 << LEFT)


@jit
def _dots_of(
    words, high, middle, low, SLAB: tl.constexpr, BITS: tl.constexpr, COMPILED: tl.constexpr
):
    """fp32 sums of masked weights times whole steps, each lane's sixteen."""
    LEFT: tl.constexpr = 8 - BITS - SLAB * BITS
    if not COMPILED:
        return _interpreted_dots(words, high, middle, low, LEFT, BITS)
    else:
        if BITS == 4:
            ASM: tl.constexpr = ASM_40 if SLAB == 0 else ASM_41
        elif SLAB < 2:
            ASM: tl.constexpr = ASM_20 if SLAB == 0 else ASM_21
        else:
            ASM: tl.constexpr = ASM_22 if SLAB == 2 else ASM_23
        top, rest = tl.inline_asm_elementwise(
            ASM,
            CONSTRAINTS,
            [
                words[0],
                words[1],
                words[2],
                words[3],
                high[0],
                high[1],
                high[2],
                high[3],
                middle[0],
                middle[1],
                middle[2],
                middle[3],
                low[0],
                low[1],
                low[2],
                low[3],
            ],
            (tl.int32, tl.int32),
            True,
            1,
        )
        return top.to(tl.float32) * 65536.0 + rest.to(tl.float32)


@jit
def _quarters(held, BN: tl.constexpr, BC: tl.constexpr):
    """The four words of each sixteen bytes, as four tensors [BN, BC]."""
    even, odd = tl.split(tl.reshape(held, (BN, BC, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@jit
def _plane(at, w, K, BN: tl.constexpr, BC: tl.constexpr):
    """The words of one plane of the inputs, laid out as the weights that they meet."""
    words = tl.load(at + w[None, :], mask=(w < K // 4)[None, :], other=0)
    first, second, third, fourth = _quarters(words, 1, BC)
    return (
        tl.broadcast_to(first, (BN, BC)),
        tl.broadcast_to(second, (BN, BC)),
        tl.broadcast_to(third, (BN, BC)),
        tl.broadcast_to(fourth, (BN, BC)),
    )


@jit
def integer_dots_kernel(
    words_ptr,
    about_ptr,
    x_one,
    slot_ptr,
    weight_ptr,
    weight_at,
    weight_stride,
    meta_ptr,
    scale_at,
    zero_at,
    meta_stride,
    y_ptr,
    N,
    K,
    R,
    G,
    OUT,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    GATED: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STEPS: tl.constexpr,
    MASK: tl.constexpr,
    COMPILED: tl.constexpr,
    WAIT: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Program (rows of bytes, need, part of K)."""
    SLABS: tl.constexpr = 8 // BITS
    BC: tl.constexpr = BK // 16
    if TRIGGER:
        gdc_launch_dependents()
    j = tl.program_id(1)
    slot = tl.load(slot_ptr + j).to(tl.int64)
    r = tl.program_id(0) * BN + tl.arange(0, BN)
    begin = tl.program_id(2) * (STEPS * BK)
    weight = (weight_ptr + slot * weight_stride + weight_at).to(tl.pointer_type(tl.int32))
    meta = meta_ptr + slot * meta_stride
    matrix, shape = (weight, meta + scale_at, meta + zero_at), (N, K, R, G)
    tile = load_tile(matrix, r, begin, shape, SLABS, GROUP, 16, HAS_ZERO, True, BK, MASK, 4)
    if WAIT:
        gdc_wait()
    C = K // 16
    words_at = words_ptr + j * x_one * 12 * C
    about_at = about_ptr + j * x_one * 2 * C
    accs = zeros_of(SLABS, BN, BC)
    for step in tl.static_range(STEPS):
        w = (begin + step * BK) // 4 + tl.arange(0, BK // 4)
        high = _plane(words_at, w, K, BN, BC)
        middle = _plane(words_at + 4 * C, w, K, BN, BC)
        low = _plane(words_at + 8 * C, w, K, BN, BC)
        # One at a time: where a lane loaded neighbours, it would have to give them away.
        ch = tl.max_contiguous((begin + step * BK) // 16 + tl.arange(0, BC), 1)[None, :]
        size = tl.load(about_at + ch, mask=ch < C, other=0.0)
        x_sum = tl.load(about_at + C + ch, mask=ch < C, other=0.0)
        held, scales, zeros = tile
        if step + 1 < STEPS:
            k0 = begin + (step + 1) * BK
            tile = load_tile(matrix, r, k0, shape, SLABS, GROUP, 16, HAS_ZERO, True, BK, MASK, 4)
        quarters = _quarters(held, BN, BC)
        added = ()
        for slab in tl.static_range(SLABS):
            dot = _dots_of(quarters, high, middle, low, slab, BITS, COMPILED)
            dot = dot * (size * (1.0 / (1 << (8 - BITS - slab * BITS))))
            if HAS_ZERO:
                dot -= zeros[slab].to(tl.float32) * x_sum
            else:
                dot -= ((1 << BITS) - 1) // 2 * x_sum
            added = added + (accs[slab] + scales[slab].to(tl.float32) * dot,)
        accs = added
    y = y_ptr + (tl.program_id(2) * tl.num_programs(1) + j).to(tl.int64) * OUT
    store_rows(y, accs, r, R, R, OUT, SLABS, GATED)
