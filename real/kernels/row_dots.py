"""The kernel of one input: its dot products with the rows of a matrix, in fp32.

Legend and storage: ``real.kernels.dequant_gemv``; tiles: ``real.kernels.tiles``.

A lane keeps its own part of every dot. It multiplies the C weights that one load of 16 bytes gave
it, scales that sum, and adds it to its own; sums cross lanes once, at the row's end.

Arithmetic. GPUs convert integers to floats at a quarter of their speed or less. So an integer q is
moved to the top of the mantissa of 1.0, which then reads as 1 + q / 2^bits. That is one instruction
a weight (PRMT), given four bytes at once. Let d be the dot product of such numbers over C inputs,
and s the sum of these. Their part is ``scale * (2^bits d - (2^bits + zero) s)``. A byte of 8 bits
comes as 2^23 + q instead, from which 2^23 + 128 is taken; both are exact.

Gated: gate lies above up in one matrix. Of 4 bits, gate and up of a neuron are the two halves of
one byte; of 2 bits they are crumbs 0 and 2, or 1 and 3; of 8 and 16 bits they are two rows.
"""

from __future__ import annotations

from real.kernels.jit import gdc_launch_dependents, gdc_wait, jit, tl


def _lifted(shift: str, mask: int) -> str:
    """PTX: four bytes to four 1 + q / 2^bits. The top bit of byte 2 is the exponent's last one."""
    return (
        f"{{ .reg .b32 t; {shift} lop3.b32 t, t, {mask:#010x}, 0x80808080, 0xEA;"
        " prmt.b32 $0, t, 0x3F000000, 0x7044; prmt.b32 $1, t, 0x3F000000, 0x7144;"
        " prmt.b32 $2, t, 0x3F000000, 0x7244; prmt.b32 $3, t, 0x3F000000, 0x7344; }"
    )


def _constant(value):
    return value if tl is None else tl.constexpr(value)


LIFT_4 = (_lifted("shr.b32 t, $4, 1;", 0x78787878), _lifted("shl.b32 t, $4, 3;", 0x78787878))
LIFT_2 = tuple(
    _lifted(shift, 0x60606060)
    for shift in (
        "shr.b32 t, $4, 1;",
        "shl.b32 t, $4, 1;",
        "shl.b32 t, $4, 3;",
        "shl.b32 t, $4, 5;",
    )
)
LIFT_8 = (
    "{ "
    + " ".join(f"prmt.b32 ${n}, $4, 0x4B000000, 0x744{n};" for n in range(4))
    + " ".join(f" add.f32 ${n}, ${n}, 0fCB000080;" for n in range(4))
    + " }"
)
ASM_8, ASM_40, ASM_41 = map(_constant, (LIFT_8, *LIFT_4))
ASM_20, ASM_21, ASM_22, ASM_23 = map(_constant, LIFT_2)
FOUR_INTEGERS, FOUR_FLOATS = _constant("=r,=r,=r,=r,r"), _constant("=f,=f,=f,=f,r")


@jit
def lift(held, SLAB: tl.constexpr, BITS: tl.constexpr, COMPILED: tl.constexpr):
    """fp32 1 + q / 2^BITS of one slab's weights; of 8 bits q - 128."""
    if not COMPILED:
        q = (held.to(tl.int32) >> (8 - BITS - SLAB * BITS)) & ((1 << BITS) - 1)
        if BITS == 8:
            return (q - 128).to(tl.float32)
        else:
            return ((q << (23 - BITS)) | 0x3F800000).to(tl.float32, bitcast=True)
    elif BITS == 8:
        return tl.inline_asm_elementwise(ASM_8, FOUR_FLOATS, [held], tl.float32, True, 4)
    elif BITS == 4 and SLAB == 0:
        return tl.inline_asm_elementwise(ASM_40, FOUR_INTEGERS, [held], tl.float32, True, 4)
    elif BITS == 4:
        return tl.inline_asm_elementwise(ASM_41, FOUR_INTEGERS, [held], tl.float32, True, 4)
    elif SLAB == 0:
        return tl.inline_asm_elementwise(ASM_20, FOUR_INTEGERS, [held], tl.float32, True, 4)
    elif SLAB == 1:
        return tl.inline_asm_elementwise(ASM_21, FOUR_INTEGERS, [held], tl.float32, True, 4)
    elif SLAB == 2:
        return tl.inline_asm_elementwise(ASM_22, FOUR_INTEGERS, [held], tl.float32, True, 4)
    else:
        return tl.inline_asm_elementwise(ASM_23, FOUR_INTEGERS, [held], tl.float32, True, 4)


@jit
def load_meta(base, row, g, N, G, MASK: tl.constexpr):
    """Scales or zeros of rows x groups."""
    if MASK:
        return tl.load(
            base + row[:, None] * G + g[None, :],
            mask=(row < N)[:, None] & (g < G)[None, :],
            other=0.0,
        )
    else:
        return tl.load(base + row[:, None] * G + g[None, :])


@jit
def load_metas(base, r, g, N, R, G, SLABS: tl.constexpr, ON: tl.constexpr, MASK: tl.constexpr):
    """Those of every slab, a tuple."""
    metas = ()
    for slab in tl.static_range(SLABS):
        metas = metas + ((load_meta(base, slab * R + r, g, N, G, MASK) if ON else g),)
    return metas


@jit
def load_tile(
    matrix,
    r,
    k0,
    shape,
    SLABS: tl.constexpr,
    GROUP: tl.constexpr,
    C: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    META: tl.constexpr,
    BK: tl.constexpr,
    MASK: tl.constexpr,
    WORD: tl.constexpr,
):
    """All that a tile needs, asked for at once: weights, scales and zeros of its slabs.

    ``matrix``: where these begin, weights in words of so many bytes. ``shape``: N, K, R and G.
    """
    weight, scale, zero = matrix
    N, K, R, G = shape
    w = k0 // WORD + tl.arange(0, BK // WORD)
    at = weight + r[:, None] * (K // WORD) + w[None, :]
    if MASK:
        held = tl.load(at, mask=(r < R)[:, None] & (w < K // WORD)[None, :], other=0)
    else:
        held = tl.load(at)
    g = (k0 + tl.arange(0, BK // C) * C) // GROUP
    scales = load_metas(scale, r, g, N, R, G, SLABS, META, MASK)
    zeros = load_metas(zero, r, g, N, R, G, SLABS, META and HAS_ZERO, MASK)
    return held, scales, zeros


@jit
def _load_tiles(
    matrix,
    r,
    ROWS,
    k0,
    shape,
    SETS: tl.constexpr,
    SLABS: tl.constexpr,
    GROUP: tl.constexpr,
    C: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    META: tl.constexpr,
    BK: tl.constexpr,
    MASK: tl.constexpr,
):
    """A tile, and beside one of gates that of their ups where these are rows of their own."""
    one = load_tile(matrix, r, k0, shape, SLABS, GROUP, C, HAS_ZERO, META, BK, MASK, 1)
    if SETS == 1:
        return one, one
    else:
        r = ROWS + r
        return one, load_tile(matrix, r, k0, shape, SLABS, GROUP, C, HAS_ZERO, META, BK, MASK, 1)


@jit
def _add_tile(
    accs,
    tile,
    x,
    SLABS: tl.constexpr,
    BITS: tl.constexpr,
    C: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    COMPILED: tl.constexpr,
):
    """Add a tile's dots to its slabs' sums [BN, BK / C], each lane its own part."""
    held, scales, zeros = tile
    x_sum = tl.sum(tl.reshape(x, (BK // C, C)), axis=1)
    LEVELS: tl.constexpr = 1 if BITS == 8 else 1 << BITS
    ADD: tl.constexpr = -128 if BITS == 8 else LEVELS
    added = ()
    for slab in tl.static_range(SLABS):
        w = held.to(tl.float32) if BITS == 16 else lift(held, slab, BITS, COMPILED)
        dot = tl.sum(tl.reshape(w * x[None, :], (BN, BK // C, C)), axis=2)
        if BITS < 16:
            if HAS_ZERO:
                less = (ADD + zeros[slab].to(tl.float32)) * x_sum[None, :]
            else:
                less = (((1 << BITS) - 1) // 2 + ADD) * x_sum[None, :]
            dot = scales[slab].to(tl.float32) * (LEVELS * dot - less)
        added = added + (accs[slab] + dot,)
    return added


@jit
def zeros_of(COUNT: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr):
    """A tuple of so many fp32 zeros [BN, BC]."""
    accs = ()
    for _ in tl.static_range(COUNT):
        accs = accs + (tl.zeros((BN, BC), dtype=tl.float32),)
    return accs


@jit
def store_rows(y, accs, r, ROWS, R, OUT, COUNT: tl.constexpr, GATED: tl.constexpr):
    """The sums' totals; of gated ones SiLU(gate) * up, where the first half are gates."""
    HALF: tl.constexpr = COUNT // 2 if GATED else COUNT
    for slab in tl.static_range(HALF):
        total = tl.sum(accs[slab], axis=1)
        if GATED:
            total = total * tl.sigmoid(total) * tl.sum(accs[slab + HALF], axis=1)
        tl.store(y + slab * R + r, total, mask=(r < ROWS) & (slab * R + r < OUT))


@jit
def row_dots_kernel(
    x_ptr,
    x_stride,
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
    ROWS,
    OUT,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    GATED: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    STEPS: tl.constexpr,
    MASK: tl.constexpr,
    COMPILED: tl.constexpr,
    WAIT: tl.constexpr,
    TRIGGER: tl.constexpr,
):
    """Program (rows of bytes, need, part of K).

    ROWS: rows of bytes shared out to programs, half of them where gate and up are two rows. OUT:
    outputs of a need.
    """
    SLABS: tl.constexpr = 1 if BITS >= 8 else 8 // BITS
    SETS: tl.constexpr = 2 if GATED and BITS >= 8 else 1
    META: tl.constexpr = BITS < 16
    if TRIGGER:
        gdc_launch_dependents()
    j = tl.program_id(1)
    slot = tl.load(slot_ptr + j).to(tl.int64)
    r = tl.program_id(0) * BN + tl.arange(0, BN)
    begin = tl.program_id(2) * (STEPS * BK)
    weight = weight_ptr + slot * weight_stride + weight_at
    meta = meta_ptr + slot * meta_stride
    matrix, shape = (weight, meta + scale_at, meta + zero_at), (N, K, R, G)
    tiles = _load_tiles(
        matrix, r, ROWS, begin, shape, SETS, SLABS, GROUP, C, HAS_ZERO, META, BK, MASK
    )
    if WAIT:
        gdc_wait()
    accs = zeros_of(SLABS, BN, BK // C)
    others = zeros_of(SLABS, BN, BK // C)
    for step in tl.static_range(STEPS):
        k = begin + step * BK + tl.arange(0, BK)
        x = tl.load(x_ptr + j * x_stride + k, mask=k < K, other=0.0).to(tl.float32)
        tile, other = tiles
        if step + 1 < STEPS:
            k0 = begin + (step + 1) * BK
            tiles = _load_tiles(
                matrix, r, ROWS, k0, shape, SETS, SLABS, GROUP, C, HAS_ZERO, META, BK, MASK
            )
        accs = _add_tile(accs, tile, x, SLABS, BITS, C, HAS_ZERO, BN, BK, COMPILED)
        if SETS == 2:
            others = _add_tile(others, other, x, SLABS, BITS, C, HAS_ZERO, BN, BK, COMPILED)
    y = y_ptr + (tl.program_id(2) * tl.num_programs(1) + j).to(tl.int64) * OUT
    accs = accs + others if SETS == 2 else accs
    store_rows(y, accs, r, ROWS, R, OUT, SETS * SLABS, GATED)
