"""The durations of EdgeMoE's machine, worked out by hand from a timing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.reproduce.durations import Timing, timed

FP32_BYTES = 18_874_368
"""Two projections of 768 x 3072 weights of 4 B."""
TIMING = Timing(
    compute_s=0.004,
    after_gate=0.25,
    read_bytes_per_s=1e8,
    widen_bytes_per_s=100 * FP32_BYTES,
    in_line=False,
)
"""A token computes 4 ms, 2 ms at each of two decoder sites; to dequantise an expert takes 10 ms."""
LOADED = {
    # what is in play: the bytes of an expert, and their time to be read and dequantised, in ns
    ("int4",): (FP32_BYTES // 8, 23_592_960 + 10_000_000),
    ("int4", "int2"): (1_911_030, 19_110_300 + 10_000_001),
    ("fp32",): (FP32_BYTES, 188_743_680),
}
"""With two widths, an expert of the mean of 3.24 bits takes as long as any to dequantise."""


def run(*precisions: str, links: int = 1) -> Any:  # only what `timed` asks of a run
    """Three sites, of which one is an encoder's."""
    return SimpleNamespace(
        hardware=SimpleNamespace(name="h", links=range(links)),
        model=SimpleNamespace(sites=3, encoder_sites=1),
        controller=SimpleNamespace(geometry=SimpleNamespace(precisions=precisions)),
    )


@pytest.mark.parametrize("precisions", LOADED)
def test_a_loader_reads_and_dequantises_and_the_decoder_shares_a_tokens_compute(
    precisions: tuple[str, ...],
) -> None:
    found = timed(run(*precisions), TIMING)
    size, took_ns = LOADED[precisions]
    assert found.hop_ns(0, size) == took_ns
    step: Any = None
    assert list(found.dense_ns(step)) == [1_500_000] * 3
    assert [found.expert_ns(at, 0, 1) for at in range(len(precisions))] == [500_000] * len(
        precisions
    )


def test_in_line_the_compute_stream_dequantises_whatever_is_computed() -> None:
    found = timed(run("fp32", "int4"), Timing(0.004, 0.25, 1e8, 100 * FP32_BYTES, in_line=True))
    assert found.hop_ns(0, FP32_BYTES // 8) == 23_592_960
    assert [found.expert_ns(at, 0, 1) for at in (0, 1)] == [500_000, 10_500_000]


def test_a_machine_of_two_links_is_refused() -> None:
    with pytest.raises(ValueError, match="hardware h: a timing is of one link"):
        timed(run("int4", links=2), TIMING)
