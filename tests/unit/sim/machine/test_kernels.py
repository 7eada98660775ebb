"""An engine's kernels as figures, and what many rows cost beside weights and experts: by hand.

The machine has 1 TFLOP/s and 100 GB/s.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from helpers.round_machine import compute, machine, small
from sim.machine.attention import LatentAttention, computed_tokens
from sim.machine.kernels import Kernels
from sim.machine.roofline import Roofline
from sim.values.types import Share, Step

FIGURES = {
    "together": True,
    "launches": 23,
    "more_launches": 12,
    "weight_share": 0.6,
    "attention_share": 0.6,
    "row_share": 0.15,
    "tile_rows": 128,
    "inner_values": 6,
    "outer_values": 4,
    "layer_values": 16,
    "head_values": 8,
    "head_dim": 128,
    "causal_rows": 1024,
    "graph_rows": None,
}


def test_every_figure_can_be_set_alone() -> None:
    assert set(FIGURES) == set(asdict(Kernels()))
    for name, value in FIGURES.items():
        assert asdict(Kernels(**{name: value})) == asdict(Kernels()) | {name: value}
        assert asdict(Kernels())[name] != value


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("together", "yes", "must be true or false"),
        ("launches", -1, "must be a whole number >= 0"),
        ("more_launches", -1, "must be a whole number >= 0"),
        ("weight_share", 1.5, "must be from 0.01 to 1; give a share of"),
        ("attention_share", 0, "must be from 0.01 to 1; give a share of"),
        ("row_share", -0.1, "must be from 0 to 1; give a share of"),
        ("inner_values", -1, "must be a whole number >= 0"),
        ("outer_values", 0.5, "must be a whole number in"),
        ("layer_values", -2, "must be a whole number >= 0"),
        ("head_values", "8", "must be a whole number in"),
        ("head_dim", -1, "must be a whole number >= 0"),
        ("causal_rows", 1.5, "must be a whole number in"),
        ("graph_rows", -1, "must be a whole number >= 0"),
        ("graph_rows", 0.5, "must be a whole number in"),
        ("tile_rows", 56, "must be 0, where kernels have no tiles, or one of 8, 16, 24"),
        ("tile_rows", True, "must be 0, where kernels have no tiles, or one of 8, 16, 24"),
    ],
)
def test_what_no_engine_has_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^kernels\.{name}={value!r} {message}"):
        Kernels(**{name: value})


# Contracts: C81
def test_attention_in_blocks_computes_what_its_mask_hides() -> None:
    """Ten rows after 90 tokens: all 100, from ten rows on those before a row, 95.5 on average.

    With a window of 20 the cache has 30 tokens for them, in no order. Four tokens are no more.
    """
    assert computed_tokens(100, 10, 0, 11) == 100
    assert computed_tokens(100, 10, 0, 10) == 95.5
    assert computed_tokens(100, 10, 20, 10) == computed_tokens(100, 10, 20, 11) == 30
    assert computed_tokens(4, 4, 20, 8) == 4


def layers_ns(kernels: Kernels, rows: int, tokens: int, **changes: Any) -> int:
    """The time of a layer for so many rows of one sequence, at the end of so many tokens."""
    times = compute(launch_us=0.0)
    made = Roofline(small(**changes), machine(compute=times), ("fp16",), kernels=kernels)
    step = Step(0, 0, rows, (0,), tokens, False, (), (), parts=(Share(rows, tokens, 0),))
    return int(made.dense_ns(step)[0])


# Contracts: C81
def test_a_step_of_many_rows_computes_what_its_mask_hides_and_heads_of_a_least_width() -> None:
    """Nine of 1,000 tokens: 8,964 pairs of 4 * 200 * 4 FLOPs, or 9,000: 115.2 ns more. Of a window of
    100 it is 109 tokens for each row, 81 pairs more than were needed: 259.2 ns. Eight rows are few.

    Heads of 4 count as those of 16: 3 * 28,684.8 ns more.
    """
    plain, whole, wide = Kernels(), Kernels(causal_rows=10), Kernels(head_dim=16)
    many: dict[str, Any] = {"heads": 200}
    of_plain = layers_ns(plain, 9, 1_000, **many)
    assert layers_ns(whole, 9, 1_000, **many) - of_plain == pytest.approx(115.2, abs=1)
    assert layers_ns(wide, 9, 1_000, **many) - of_plain == pytest.approx(86_054.4, abs=1)
    windowed = many | {"windows": (100,)}
    more = layers_ns(whole, 9, 1_000, **windowed) - layers_ns(plain, 9, 1_000, **windowed)
    assert more == pytest.approx(259.2, abs=1)
    for kernels in (whole, wide):
        assert layers_ns(kernels, 8, 1_000, **many) == layers_ns(plain, 8, 1_000, **many)


# Contracts: C81
def test_a_layer_hands_on_its_rows_in_a_step_of_many() -> None:
    """Sixteen values of 8 and eight of (2 + 1) * 4, of 4 B, are 896 B: 8.96 ns for each of nine rows.

    Of compressed vectors of 3 + 2 two heads and the keys have 15 values: 992 B.
    """
    kernels, plain = Kernels(layer_values=16, head_values=8), Kernels()
    assert layers_ns(kernels, 9, 9) - layers_ns(plain, 9, 9) == pytest.approx(80.64, abs=1)
    assert layers_ns(kernels, 8, 9) == layers_ns(plain, 8, 9)
    latent = LatentAttention(query_rank=0, kv_rank=3, rope_dim=2, nope_dim=2, value_dim=2)
    more = layers_ns(kernels, 9, 9, latent=latent) - layers_ns(plain, 9, 9, latent=latent)
    assert more == pytest.approx(9 * 9.92, abs=1)
