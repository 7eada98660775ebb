"""The bits of each precision, by the sources in the comments of its module."""

from __future__ import annotations

import pytest

from sim.machine.precision import (
    FILES,
    PRECISION_BITS,
    PRECISIONS,
    Precision,
    bits_of_file,
    in_four_bits,
)


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
        ("q8_0", 8.5),
        ("q6_k", 6.5625),
        ("q4_0", 4.5),
        ("mxfp4_moe", 4.25),
        ("iq4_xs", 4.25),
        ("iq3_xxs", 3.0625),
    ],
)
def test_a_uniform_precision_has_as_many_bits_in_every_projection(name: str, bits: float) -> None:
    one = PRECISIONS[name]
    assert (one.gate, one.up, one.down, one.resident) == (bits, bits, bits, ())
    assert one.is_uniform
    assert PRECISION_BITS[name] == bits
    assert (one.bits(3), one.bits(2), one.bits(1)) == (3 * bits, 2 * bits, bits)
    assert one.bits(3, resident=True) == 0


def test_files_of_two_formats_have_the_mean_of_their_layers_in_the_down_projection() -> None:
    """Half of the layers in six bits, a sixteenth in five, an eighth in Q2_K, or all in three."""
    mixed = {name: one for name, one in PRECISIONS.items() if not one.is_uniform}
    assert {name: (one.gate, one.up, one.down) for name, one in mixed.items()} == {
        "q5_k_m": (5.5, 5.5, 6.03125),
        "q4_k_m": (4.5, 4.5, 5.53125),
        "q3_k_m": (3.4375, 3.4375, 4.5625),
        "q2_k": (2.625, 2.625, 3.4375),
        "iq2_xxs": (2.0625, 2.0625, 2.1328125),
        "floe": (16, 2.5, 16),
    }


def test_two_precisions_differ_by_projection() -> None:
    """144 bytes of 256 weights are 4.5 bits, 210 bytes 6.5625, and their mean 5.53125."""
    one, floe = PRECISIONS["q4_k_m"], PRECISIONS["floe"]
    assert (one.gate, one.up, one.down, one.resident) == (4.5, 4.5, 5.53125, ())
    assert (one.bits(3), one.bits(2)) == (14.53125, 10.03125)
    assert (floe.gate, floe.up, floe.down, floe.resident) == (16, 2.5, 16, ("up",))
    assert (floe.bits(3), floe.bits(3, resident=True)) == (32, 2.5)
    assert (floe.bits(2), floe.bits(2, resident=True)) == (16, 2.5)
    assert not Precision(1, 2, 1).is_uniform
    assert not Precision(2, 1, 1).is_uniform
    assert not Precision(1, 1, 1, ("up",)).is_uniform


def test_a_file_of_four_bits_has_no_more_than_the_model_as_it_is_published() -> None:
    named = ("fp32", "bf16", "fp8", "mxfp4", "int4", "q4_k_m")
    assert [in_four_bits(name) for name in named] == [
        *["q4_k_m"] * 3,
        "mxfp4_moe",
        "int4",
        "q4_k_m",
    ]


def test_a_file_of_llama_cpp_has_its_bits_for_all_weights_and_other_precisions_are_of_experts() -> (
    None
):
    assert bits_of_file(("q4_k_m",)) == 4.84
    assert bits_of_file(("q2_k", "q8_0")) == 8.5
    assert bits_of_file(("mxfp4_moe",)) == 8.5, "experts have 4.25"
    assert bits_of_file(("q4_k_m", "int4")) is bits_of_file(("fp16",)) is bits_of_file(()) is None
    assert set(FILES) <= set(PRECISIONS)
