"""The kernel of several inputs: the rows of every expert through its matrix, on tensor cores.

Legend and storage: ``real.kernels.grouped_gemm``; tiles: ``real.kernels.tiles``.

y^T = W x^T. Weights are the first operand, made in registers of the bytes that came: integers less
their middle are exact in bf16. A byte is read once, and gives all its slabs. Block by block of 64
inputs scale and zero act in fp32 on what the tensor cores summed: ``scale * (dot - (zero - middle)
* sum of inputs)``; the sums come from a small launch before.

An fp32 input is given as planes of bf16 that add up to it. Each plane costs a dot, and no bytes of
weights.
"""

from __future__ import annotations

from real.kernels.jit import gdc_launch_dependents, gdc_wait, jit, tl


def _centred(shift: int, mask: int, middle: int) -> str:
    """PTX: four bytes to four bf16 q - middle; 0x4300 | q is 128 + q.

    The subtraction is ``1 x - (128 + middle)``: before sm_90 there is no other for pairs.
    """
    minus = 0xC300C300 + middle * 0x00010001
    return (
        f"{{ .reg .b32 t, c, one; shr.b32 t, $2, {shift}; and.b32 t, t, {mask:#010x};"
        f" mov.b32 c, {minus:#010x}; mov.b32 one, 0x3F803F80;"
        " prmt.b32 $0, t, 0x43434343, 0x4140; prmt.b32 $1, t, 0x43434343, 0x4342;"
        " fma.rn.bf16x2 $0, $0, one, c; fma.rn.bf16x2 $1, $1, one, c; }"
    )


def _constant(value):
    return value if tl is None else tl.constexpr(value)


ASM_40, ASM_41 = _constant(_centred(4, 0x0F0F0F0F, 7)), _constant(_centred(0, 0x0F0F0F0F, 7))
ASM_20, ASM_21 = _constant(_centred(6, 0x03030303, 1)), _constant(_centred(4, 0x03030303, 1))
ASM_22, ASM_23 = _constant(_centred(2, 0x03030303, 1)), _constant(_centred(0, 0x03030303, 1))
ASM_8 = _constant(
    "{ .reg .f32 a, b, c, d; "
    + " ".join(f"prmt.b32 {x}, $2, 0x4B000000, 0x744{n};" for n, x in enumerate("abcd"))
    + " ".join(f" add.f32 {x}, {x}, 0fCB00007F;" for x in "abcd")
    + " cvt.rn.bf16x2.f32 $0, b, a; cvt.rn.bf16x2.f32 $1, d, c; }"
)
CONSTRAINTS = _constant("=r,=r,r")


@jit
def _operand(
    held, SLAB: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr, COMPILED: tl.constexpr
):
    """One slab's weights as the first operand: plain, or q - middle."""
    if BITS == 16:
        return held.to(DTYPE)
    elif not COMPILED:
        q = (held.to(tl.int32) >> (8 - BITS - SLAB * BITS)) & ((1 << BITS) - 1)
        return (q - ((1 << BITS) - 1) // 2).to(tl.float32)
    else:
        if BITS == 8:
            ASM: tl.constexpr = ASM_8
        elif BITS == 4:
            ASM: tl.constexpr = ASM_40 if SLAB == 0 else ASM_41
        elif SLAB < 2:
            ASM: tl.constexpr = ASM_20 if SLAB == 0 else ASM_21
        else:
            ASM: tl.constexpr = ASM_22 if SLAB == 2 else ASM_23
        return tl.inline_asm_elementwise(ASM, CONSTRAINTS, [held], tl.bfloat16, True, 4)


@jit
def _load_metas(
    base, r, on, w, ROWS, R, N, W, COUNT: tl.constexpr, SETS: tl.constexpr, ON: tl.constexpr
):
    """Of every slab each row's scale or zero, or as a word those of two blocks."""
    metas = ()
    for slab in tl.static_range(COUNT):
        n = r + slab * (ROWS if SETS == 2 else R)
        metas = metas + ((tl.load(base + n * W + w, mask=on & (n < N), other=0) if ON else on),)
    return metas


@jit
def _half(word, u: tl.constexpr, U: tl.constexpr):
    """The scale or zero of block ``u`` in what was loaded for U blocks."""
    if U == 2:
        return (
            ((word >> (16 * u)) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        )
    else:
        return word.to(tl.float32)


@jit
def _dot(w, x_at, plane, mask, PLANES: tl.constexpr, COMPILED: tl.constexpr):
    """w times the sum of x's planes; the interpreter would multiply the bit patterns of bf16."""
    dot = tl.zeros((w.shape[0], x_at.shape[1]), dtype=tl.float32)
    for p in tl.static_range(PLANES):
        x = tl.load(x_at + p * plane, mask=mask, other=0.0)
        if COMPILED:
            dot = tl.dot(w, x, dot, input_precision="ieee")
        else:
            dot += tl.dot(w.to(tl.float32), x.to(tl.float32), input_precision="ieee")
    return dot


@jit
def _store(at, value, mask, plane, PLANES: tl.constexpr, COMPILED: tl.constexpr):
    """fp32 as it is (PLANES 0), or so many bf16 that add up to it."""
    if PLANES == 0:
        tl.store(at, value, mask=mask)
    for p in tl.static_range(PLANES):
        near = value
        if not COMPILED:
            # The interpreter cuts off where a GPU rounds to nearest: rounded here, nothing is left.
            held = value.to(tl.int32, bitcast=True)
            near = ((held + 0x7FFF + ((held >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
        part = near.to(tl.bfloat16)
        tl.store(at + p * plane, part, mask=mask)
        value -= part.to(tl.float32)


@jit
def tensor_dots_kernel(
    x_ptr,
    plane,
    sum_ptr,
    tile_ptr,
    slot_ptr,
    weight_ptr,
    weight_at,
    weight_stride,
    meta_ptr,
    scale_at,
    zero_at,
    meta_stride,
    y_ptr,
    y_plane,
    part_stride,
    N,
    K,
    R,
    G,
    B,
    ROWS,
    OUT,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    GATED: tl.constexpr,
    PLANES: tl.constexpr,
    Y_PLANES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    U: tl.constexpr,
    EVEN: tl.constexpr,
    COMPILED: tl.constexpr,
    WAIT: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Program (tile of rows of one expert, block of rows of bytes, part of K).

    B: blocks of BK inputs; STEPS of them are a part's, U are taken at once. With 2 their scales
    come as one word, since what is brought ahead comes in no fewer than 4 bytes.
    """
    SETS: tl.constexpr = 2 if GATED and BITS >= 8 else 1
    SLABS: tl.constexpr = 1 if BITS >= 8 else 8 // BITS
    COUNT: tl.constexpr = SLABS * SETS
    DTYPE: tl.constexpr = x_ptr.dtype.element_ty
    if TRIGGER:
        gdc_launch_dependents()
    tile = tile_ptr + tl.program_id(0) * 3
    slot = tl.load(slot_ptr + tl.load(tile)).to(tl.int64)
    m = tl.load(tile + 1) + tl.arange(0, BM)
    m_on = m < tl.load(tile + 2)
    m = m.to(tl.int64)
    r = tl.program_id(1) * BN + tl.arange(0, BN)
    on = r < ROWS
    k = tl.arange(0, BK)
    weight = weight_ptr + slot * weight_stride + weight_at + r[:, None] * K + k[None, :]
    scale = meta_ptr + slot * meta_stride + scale_at
    zero = meta_ptr + slot * meta_stride + zero_at
    if U == 2:
        scale = scale.to(tl.pointer_type(tl.int32))
        zero = zero.to(tl.pointer_type(tl.int32))
    if WAIT:
        gdc_wait()
    accs = ()
    for _ in tl.static_range(COUNT):
        accs = accs + (tl.zeros((BN, BM), dtype=tl.float32),)
    first = tl.program_id(2) * STEPS
    for w in tl.range(first // U, tl.minimum(first + STEPS, B) // U, num_stages=STAGES):
        g = w if U == 2 else w * BK // GROUP
        scales = _load_metas(scale, r, on, g, ROWS, R, N, G // U, COUNT, SETS, BITS < 16)
        zeros = _load_metas(zero, r, on, g, ROWS, R, N, G // U, COUNT, SETS, HAS_ZERO)
        for u in tl.static_range(U):
            block = w * U + u
            k_on = on[:, None] if EVEN else on[:, None] & (block * BK + k < K)[None, :]
            x_at = x_ptr + m[None, :] * K + (block * BK + k)[:, None]
            x_on = m_on[None, :] if EVEN else m_on[None, :] & (block * BK + k < K)[:, None]
            x_sum = tl.load(sum_ptr + m * B + block, mask=m_on, other=0.0) if BITS < 16 else m_on
            held = tl.load(weight + block * BK, mask=k_on, other=0)
            added = ()
            for slab in tl.static_range(COUNT):
                if SETS == 2 and slab == 1:
                    held = tl.load(weight + ROWS * K + block * BK, mask=k_on, other=0)
                one = _operand(held, 0 if SETS == 2 else slab, BITS, DTYPE, COMPILED)
                dot = _dot(one, x_at, plane, x_on, PLANES, COMPILED)
                if BITS < 16:
                    if HAS_ZERO:
                        off = _half(zeros[slab], u, U) - ((1 << BITS) - 1) // 2
                        dot -= off[:, None] * x_sum[None, :]
                    dot *= _half(scales[slab], u, U)[:, None]
                added = added + (accs[slab] + dot,)
            accs = added
    y = y_ptr + tl.program_id(2).to(tl.int64) * part_stride + m[None, :] * OUT + r[:, None]
    HALF: tl.constexpr = COUNT // 2 if GATED else COUNT
    for slab in tl.static_range(HALF):
        total = accs[slab]
        if GATED:
            total = total * tl.sigmoid(total) * accs[slab + HALF]
        there = (on & (slab * R + r < OUT))[:, None] & m_on[None, :]
        _store(y + slab * R, total, there, y_plane, Y_PLANES, COMPILED)


@jit
def block_sums_kernel(
    x_ptr,
    plane,
    sum_ptr,
    K,
    B,
    PLANES: tl.constexpr,
    BK: tl.constexpr,
    BB: tl.constexpr,
    WAIT: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """The sum of each row's blocks of BK inputs, over all planes."""
    if TRIGGER:
        gdc_launch_dependents()
    t = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    k = b[:, None] * BK + tl.arange(0, BK)[None, :]
    if WAIT:
        gdc_wait()
    acc = tl.zeros((BB,), dtype=tl.float32)
    for p in tl.static_range(PLANES):
        x = tl.load(x_ptr + p * plane + t * K + k, mask=k < K, other=0.0)
        acc += tl.sum(x.to(tl.float32), axis=1)
    tl.store(sum_ptr + t * B + b, acc, mask=b < B)
