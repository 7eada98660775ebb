"""The bits of each precision, by the sources in the comments of its module."""

from __future__ import annotations

import pytest

from sim.machine.precision import PRECISION_BITS, PRECISIONS, Precision, in_four_bits


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp32", 32),
        ("fp16", 16),
        ("bf16", 16),
        ("int8", 8),
        ("int4", 4),
        ("int2", 2),
        ("fp8", 8.001953125),  # 32 bits for 16,384 weights
        ("mxfp4", 4.25),
        ("int4_g32", 4.5),
        ("int4_g128", 4.125),
        ("nvfp4", 4.5),
        ("hqq4_g64", 4.5),
        ("hqq2_g64", 2.5),
        ("hqq2_g16", 3),
    ],
)
def test_a_uniform_precision_has_as_many_bits_in_every_projection(name: str, bits: float) -> None:
    one = PRECISIONS[name]
    assert (one.gate, one.up, one.down, one.resident) == (bits, bits, bits, ())
    assert one.is_uniform
    assert PRECISION_BITS[name] == bits
    assert (one.bits(3), one.bits(2), one.bits(1)) == (3 * bits, 2 * bits, bits)
    assert one.bits(3, resident=True) == 0


def test_two_precisions_differ_by_projection() -> None:
    """144 bytes of 256 weights are 4.5 bits, 210 bytes 6.5625, and their mean 5.53125."""
    one, floe = PRECISIONS["q4_k_m"], PRECISIONS["floe"]
    assert (one.gate, one.up, one.down, one.resident) == (4.5, 4.5, 5.53125, ())
    assert (one.bits(3), one.bits(2)) == (14.53125, 10.03125)
    assert (floe.gate, floe.up, floe.down, floe.resident) == (16, 2.5, 16, ("up",))
    assert (floe.bits(3), floe.bits(3, resident=True)) == (32, 2.5)
    assert (floe.bits(2), floe.bits(2, resident=True)) == (16, 2.5)
    assert [name for name, one in PRECISIONS.items() if not one.is_uniform] == ["q4_k_m", "floe"]
    assert not Precision(1, 2, 1).is_uniform
    assert not Precision(2, 1, 1).is_uniform
    assert not Precision(1, 1, 1, ("up",)).is_uniform


def test_a_file_of_four_bits_has_no_more_than_the_model_as_it_is_published() -> None:
    named = ("fp32", "bf16", "fp8", "mxfp4", "int4", "q4_k_m")
    assert [in_four_bits(name) for name in named] == [*["q4_k_m"] * 3, "mxfp4", "int4", "q4_k_m"]
