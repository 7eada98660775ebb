"""Precisions of experts: the bits that each of their weights takes, with the scales of groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Precision:
    """The stored bits a weight of each projection of an expert.

    ``resident`` names the projections of every expert that stay on the device, outside the slots,
    and never move.
    """

    gate: float
    up: float
    down: float
    resident: tuple[str, ...] = ()

    def bits(self, matrices: int, *, resident: bool = False) -> float:
        """The bits a weight, summed over those of an expert's ``matrices`` that move.

        With ``resident``, summed over those that stay instead. Experts of two matrices have no
        gate projection.
        """
        names = PROJECTIONS[-matrices:]
        return sum(
            float(getattr(self, name)) for name in names if (name in self.resident) == resident
        )

    @property
    def is_uniform(self) -> bool:
        return self.gate == self.up == self.down and not self.resident


def _same(bits: float) -> Precision:
    return Precision(bits, bits, bits)


PROJECTIONS = ("gate", "up", "down")
# The bits a weight of llama.cpp's super-blocks of 256 weights: so many bytes each.
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS = (size * 8 / 256 for size in (84, 110, 144, 176, 210, 66))
PRECISIONS = {
    "fp32": _same(32.0),
    "fp16": _same(16.0),
    "bf16": _same(16.0),
    "int8": _same(8.0),  # int8, int4 and int2 as the papers count them: without scales
    "int4": _same(4.0),
    "int2": _same(2.0),
    "fp8": _same(
        8 + 32 / 128**2
    ),  # an fp32 scale for each block of 128 x 128 (DeepSeek-V3, README_WEIGHTS.md)
    "mxfp4": _same(
        4 + 8 / 32
    ),  # an 8-bit scale for each 32 weights (OCP Microscaling Formats, section 5.1)
    "int4_g32": _same(
        4 + 16 / 32
    ),  # a bf16 scale for each 32 or 128 weights (compressed-tensors, pack-quantized)
    "int4_g128": _same(4 + 16 / 128),
    "nvfp4": _same(4 + 8 / 16),  # an fp8 scale for each 16 weights (NVFP4)
    "hqq4_g64": _same(4 + 32 / 64),  # HQQ: fp16 scale and zero for each 64 weights
    "hqq2_g64": _same(2 + 32 / 64),
    "hqq2_g16": _same(
        2 + 16 / 16
    ),  # 8-bit scale and zero for each 16 weights (demo of mixtral-offloading@ce54518)
    # llama.cpp's files (ggml-common.h has the blocks, llama-quant.cpp the mixtures). Where its
    # down projections are of two formats, the mean over layers stands for each.
    "q8_0": _same(34 * 8 / 32),
    "q6_k": _same(Q6_K),
    "q5_k_m": Precision(Q5_K, Q5_K, (Q5_K + Q6_K) / 2),
    "q4_k_m": Precision(Q4_K, Q4_K, (Q4_K + Q6_K) / 2),
    "q4_0": _same(18 * 8 / 32),
    "mxfp4_moe": _same(4 + 8 / 32),  # experts as mxfp4, and all other weights as q8_0
    "q3_k_m": Precision(Q3_K, Q3_K, (15 * Q4_K + Q5_K) / 16),
    "q2_k": Precision(Q2_K, Q2_K, Q3_K),
    # with an importance matrix, as they are published
    "iq4_xs": _same(136 * 8 / 256),
    "iq3_xxs": _same(98 * 8 / 256),
    "iq2_xxs": Precision(IQ2_XXS, IQ2_XXS, (7 * IQ2_XXS + Q2_K) / 8),
    # FloE section 3.2: up projections are resident in HQQ INT2; gate and down projections are in
    # fp16 and are moved when needed.
    "floe": Precision(16.0, 2 + 32 / 64, 16.0, resident=("up",)),
}
"""Precisions by name. Scales and zeros of groups are counted where stated."""
AS_STORED = ("fp32", "fp16", "bf16")
"""Precisions in which most models are published: an expert served in one has lost nothing."""
PRECISION_BITS = {name: precision.bits(3) / 3 for name, precision in PRECISIONS.items()}
"""Bits that a slot holds and a load moves, for each weight of an expert's three projections."""
FILES = (
    "q8_0",
    "q6_k",
    "q5_k_m",
    "q4_k_m",
    "q4_0",
    "mxfp4_moe",
    "q3_k_m",
    "q2_k",
    "iq4_xs",
    "iq3_xxs",
    "iq2_xxs",
)
"""Precisions of llama.cpp's files, which have all other weights quantised, too."""
OF_OTHERS = {"mxfp4_moe": PRECISION_BITS["q8_0"]}
"""Bits of the weights that are of no expert, in files that say it."""
MXFP4 = "mxfp4", "mxfp4_moe"
"""How gpt-oss is published, and the file in which people run it."""
IN_FILES = (*FILES, *AS_STORED, MXFP4[0])
"""All precisions in which llama.cpp's files may have experts; in the last ones as they are published."""
FOUR_BITS = "q4_k_m"
"""The precision of most files in which people run a model that is published in more bits."""


def says_dense_bits(config: Mapping[str, Any]) -> bool:
    """Whether the model's file, or a word, says how many bits the weights of a configuration's model
    have that are of no expert.
    """
    return "dense_bits" in config["model"]


def bits_of_file(precisions: Collection[str]) -> float | None:
    """The bits a weight that a file with experts in ``precisions`` has for all other weights: the
    most of an expert's means, to two digits, or as the file has it. None where that is no file of
    llama.cpp.
    """
    if not precisions or not set(precisions) <= set(FILES):
        return None
    return round(max(OF_OTHERS.get(name, PRECISION_BITS[name]) for name in precisions), 2)


def in_four_bits(stored: str) -> str:
    """The precision of such a file of a model: that in which it is ``stored``, where that has fewer.
    What is stored as mxfp4 has a file of its own.
    """
    published, of_file = MXFP4
    if stored == published:
        return of_file
    return min(FOUR_BITS, stored, key=PRECISION_BITS.__getitem__)
