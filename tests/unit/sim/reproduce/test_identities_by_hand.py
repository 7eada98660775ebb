"""Each arithmetic of the papers' numbers, on a model of a few experts, worked by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sim.reproduce.identities import CHECKS, Asked
from sim.reproduce.roles import Claim, Paper

GIB, MIB = 2**30, 2**20
SIZES = SimpleNamespace(
    sites=3,
    experts=4,
    top_k=2,
    hidden=10,
    expert_intermediate=6,
    expert_params=100,
    head_params=50,
    total_params=2_000,
    active_params=500,
    expert_bytes=lambda precision: {"fp16": 200, "fp32": 400}[precision],
)
PRINTED = {"E051": 2.0, "E055": 1.0, "F010": 2.0, "F011": 7.9}
KERNELS = {"slow": {0: 2.0, 0.9: 1.0}, "fast": {0: 4.0, 0.9: 1.75}}
"""Times in ms are linear in the sparsity: 1.5 and 2.875 ms in the middle, at 0.45."""
BY_HAND: list[tuple[str, tuple[Any, ...], Any]] = [
    ("total_params", (), 2_000),
    ("active_params", (), 500),
    ("experts_params", (), 3 * 4 * 100),
    ("model_bytes", (), 4_000),
    ("experts_bytes", (), 2_400),
    ("expert_bytes", (), 200),
    ("experts_share", (), 0.6),
    ("dense_share", (), 0.4),
    ("active_share", (), 0.25),
    ("active_share_and_bytes", (), (25.0, 1e-6)),
    ("inactive_expert_bytes", (), 2 * 3 * 200),
    ("sites", (), 3),
    ("experts", (), 4),
    ("top_k", (), 2),
    ("routed_and_k", (), (4, 2)),
    ("bits_ratio", ("fp16", "int2"), 8.0),
    ("first_of_k_share", (4,), 0.25),
    ("reuse_one", (2, 8), 0.25),
    # Of 28 pairs of 8 experts, 15 have none of two.
    ("reuse_any", (2, 8), 13 / 28),
    ("ratio", (9, 4), 2.25),
    ("constant", (7,), 7),
    ("overlappable", ("F011", "F010"), 3),
    ("expert_count_bytes", (), 8_000),
    ("switch_experts_share", (), 1_200 / 1_950),
    ("buffer_bytes", (10,), 4_000),
    # Switch-base-8 has 96 experts of 18 MiB in FP32, this model 12.
    ("storage", ("fp32", "fp32", "E051"), (2_048 - 96 * 18 + 12 * 18) * MIB),
    ("storage", ("int4", "fp32", "E051"), (2_048 - 96 * 18 + 12 * 18 / 8) * MIB),
    ("storage", ("fp32", "int4", "E055"), (1_024 - 96 * 18 / 8 + 12 * 18) * MIB),
    # Half of 12 experts lose two bits of 32.
    ("mixed_storage", (0.5, "E055"), 1 - 6 * 18 / 16 / 1_024),
    ("footprint_ratio", (), 2_048 / (2_048 - 12 * 18 + 10 * 18)),
    # An up projection in 2 bits, and a fifth of the two others in 16.
    ("floe_compression", (0.8,), 48 / (2 + 2 * 16 * 0.2)),
    ("predictor_bytes", (), (12 * 6 * 160 * 4 / GIB, 12 * (10 + 6) * 1_024 * 2 / GIB)),
    ("memory_gb_per_s", ("rtx3090",), 936.2),
    ("kernel_ms", ("fast", 0.45), 2.875),
    ("kernel_speedup", ("slow", 0.45), 4 / 3),
    ("least_kernel_speedup", (0.45, 0.9), (4 / 3, 2.0)),
]


def claim(name: str, value: float) -> Claim:
    return Claim(name, "1", "says", "input", value)


@pytest.mark.parametrize(("name", "args", "expected"), BY_HAND)
def test_each_arithmetic_gives_what_is_worked_by_hand(
    name: str, args: tuple[Any, ...], expected: Any
) -> None:
    claims = tuple(claim(*one) for one in PRINTED.items())
    paper = Paper("p", "P", "here", claims, {}, {}, {}, {}, {}, KERNELS)
    assert CHECKS[name](Asked(paper, cast(Any, SIZES), args)) == pytest.approx(expected)


def test_no_arithmetic_is_left_out() -> None:
    assert {name for name, *_ in BY_HAND} == set(CHECKS)
