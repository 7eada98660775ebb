"""Experts that are dequantised when they arrive: by hand, in a run, and a paper's numbers."""

from __future__ import annotations

from typing import Any

import pytest

from sim.machine.link import Link
from sim.machine.link_parts import Unpack
from sim.reproduce.storage import EXPERT_BYTES, EXPERTS_A_TOKEN, MEAN_BITS, constants
from sim.setup.execute import execute
from sim.study.trials import prepared
from sim.values.units import seconds

SLOW = "+hardware.links.pcie.unpack={_target_: sim.machine.Unpack, gb_per_s: 40, overhead_us: 5}"
DEMAND = (
    "system=load_on_demand",
    "loader.wait=wait_all",
    "trace.max_sequences=1",
    "workload.prompt_tokens=1",
    "workload.decode_tokens=4",
    "budget.resident_share=0.3",
)


# Contracts: C65
def test_what_is_written_out_takes_its_bytes_over_the_rate() -> None:
    """1 MB at 4 bits is 4 MB at 16 and 8 MB at 32: at 4 GB/s 1 and 2 ms."""
    assert Unpack(4.0).time_ns(1_000_000, 4) == 1_000_000
    assert Unpack(4.0, bits=32, overhead_us=7).time_ns(1_000_000, 4) == 2_007_000


def test_what_has_as_many_bits_is_usable_at_once() -> None:
    assert Unpack(4.0, overhead_us=7).time_ns(1_000_000, 16) == 0
    assert Unpack(4.0, overhead_us=7).time_ns(0, 4) == 0


def test_edgemoe_reads_and_widens_a_token_s_experts_in_the_time_that_it_tells() -> None:
    """Its 0.392 s without the compute.

    They are six experts of 18.9 MB in FP32, stored at 3.24 bits and widened by the loader.
    """
    compute_s, read_bytes_per_s, widen_bytes_per_s = constants()
    drive, unpack = Link(read_bytes_per_s / 1e9, 1.0, 0.0), Unpack(widen_bytes_per_s / 1e9, bits=32)
    stored = round(EXPERT_BYTES * MEAN_BITS / 32)
    token_ns = EXPERTS_A_TOKEN * (drive.hop_ns(stored) + unpack.time_ns(stored, MEAN_BITS))
    assert seconds(token_ns) + compute_s == pytest.approx(0.392, rel=1e-6)
    assert seconds(EXPERTS_A_TOKEN * drive.hop_ns(EXPERT_BYTES)) + compute_s == pytest.approx(
        0.789, rel=1e-6
    )


@pytest.mark.parametrize("precision", ["int4", "fp16"])
def test_a_run_waits_for_every_load_to_be_written_out(precision: str) -> None:
    """Nothing overlaps: each load stops the stream for its copy and its dequantisation.

    fp16 needs no dequantisation.
    """
    run = prepared([*DEMAND, f"precision={precision}", "hardware.memory_gib=96", SLOW])
    size = run.controller.geometry.variant_bytes[0]
    result = execute(run)
    copy_ns = run.hardware.links[0].hop_ns(size)
    written_ns = (
        5_000 + round(size * 16 / run.controller.geometry.bits[0] / 40)
        if precision == "int4"
        else 0
    )
    loads = len(result.frames.controller.issued)
    assert loads > 20
    assert sum(result.summary["stall_s"].values()) == seconds(loads * (copy_ns + written_ns))


def test_what_is_written_out_is_read_in_full_by_its_kernels() -> None:
    plain, written = (
        prepared([*DEMAND, "precision=int4"]),
        prepared([*DEMAND, "precision=int4", SLOW]),
    )
    compute, size = plain.hardware.compute, plain.controller.geometry.variant_bytes[0]
    in_full = compute.operation_ns(
        0, size * 16 / plain.controller.geometry.bits[0], compute.expert_launches
    )
    assert plain.durations.expert_ns(0, 0, 1) < written.durations.expert_ns(0, 0, 1)
    assert written.durations.expert_ns(0, 0, 1) == pytest.approx(in_full, abs=2)


def test_of_two_precisions_each_is_written_out_at_its_own_bits() -> None:
    run = prepared(["system=hobbit", "trace.max_sequences=1", SLOW])
    high, low = run.controller.geometry.variant_bytes
    link = run.hardware.links[0]
    assert run.durations.hop_ns(0, high) == link.hop_ns(high)
    bits = run.controller.geometry.bits[1]
    assert run.durations.hop_ns(0, low) == link.hop_ns(low) + 5_000 + round(low * 16 / bits / 40)


# Contracts: C141
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            (SLOW, "loader.chunk_bytes=1000000"),
            r"loader\.chunk_bytes=1000000, dense_slots=0 do not go with",
        ),
        (
            (SLOW, "hardware.links.pcie.engines=2"),
            r"pcie\.unpack does not go with engines=2, head_bytes=0",
        ),
        ((SLOW.replace("40", "-40"),), r"unpack\.gb_per_s=-40 must be from 0\.001 to 100000"),
        ((SLOW.replace("overhead_us", "bits"),), r"unpack\.bits=5 must be from 8 to 32"),
    ],
)
def test_what_cannot_be_written_out_is_refused(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepared([*DEMAND, *words])
