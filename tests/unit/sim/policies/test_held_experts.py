"""Slots that hold dequantised experts: sizes by hand, and the cost of a hit and of a load."""

from __future__ import annotations

from typing import Any

import pytest

from sim.core.slots import Slots
from sim.machine.budget import Budget, held_bits, make_geometry
from sim.policies.recency import LRU
from sim.setup.execute import execute
from sim.study.trials import prepared
from sim.values.types import Geometry

UNPACK = "+hardware.links.pcie.unpack={_target_: sim.machine.Unpack, gb_per_s: 40, bits: 32}"
MIB = 2**20
RUN = (
    "system=edgemoe",
    "predictor=none",
    "trace.max_sequences=1",
    "workload.prompt_tokens=1",
    "workload.decode_tokens=6",
    "hardware.memory_gib=96",
    "loader.chunk_bytes=null",
    "outputs=summary",
)


def test_ten_experts_of_switch_base_are_a_buffer_of_180_mib() -> None:
    """EdgeMoE section 4.2: "approximately 180MB more".

    768 x 3072 x 2 weights of 4 B are 18 MiB, stored in 2.25 MiB or 1.125 MiB. Ten slots of 96
    experts are a share of 10 / 96.
    """
    run = prepared(
        [
            "system=edgemoe",
            "predictor=none",
            "hardware=jetson_tx2",
            "model=switch_base_8",
            "trace=tiny_switch",
            "model.gates_of=tiny_switch",
            "model.sizes_of=switch_base_8",
            "trace.max_sequences=1",
            "budget.resident_share=0.10417",
        ]
    )
    assert run.controller.geometry.variant_bytes == (9 * MIB // 4, 9 * MIB // 8)
    assert len(run.controller.slots.initial) == 10
    assert run.ledger.slot_bytes == pytest.approx(180 * MIB, rel=1e-4)


# Contracts: C5
def test_a_slot_is_taken_by_what_is_held_and_a_load_moves_what_is_stored() -> None:
    geometry = Geometry(1, 4, 1, ("int4", "int2"), (4.0, 2.0), (10, 5), 160, held_bytes=(80, 80))
    slots = Slots(geometry, LRU(initial="empty"), 1)  # type: ignore[arg-type]
    assert (slots.slot_bytes[0], slots.key_bytes[0], slots.key_bytes[5]) == (80, 10, 5)
    assert slots.claim(0, True) == () == slots.claim(6, True)
    assert slots.claim(1, True) is None, "two fill 160 B, whatever their width"


def test_what_is_held_is_no_less_than_what_is_stored() -> None:
    with pytest.raises(
        ValueError, match=r"held_bytes \(4,\) must be no less than variant_bytes \(10,\)"
    ):
        Geometry(1, 4, 1, ("int4",), (4.0,), (10,), 40, held_bytes=(4,))


def test_a_run_of_edgemoe_moves_int4_and_int2_and_holds_fp32() -> None:
    run = prepared([*RUN, "budget.resident_share=0.25", "bounds=max"])
    geometry, expert = run.controller.geometry, 3 * 4096 * 14336
    assert geometry.variant_bytes == (expert // 2, expert // 4)
    assert geometry.held_bytes == (4 * expert, 4 * expert)
    assert run.ledger.slot_bytes == 32 * 4 * expert, "a quarter of 128 experts"
    result = execute(run)
    moved = {transfer.moved_bytes for transfer in run.controller.issued}
    assert moved == set(geometry.variant_bytes)
    assert len(run.controller.slots.initial) == 32
    assert result.summary["budget"]["slots"]["int4"] == 32
    assert result.summary["bounds"]["lower_s"] <= result.summary["makespan_s"]


def test_a_hit_needs_neither_the_load_nor_the_dequantisation() -> None:
    """The stream waits for loads, and each is read and dequantised once.

    Nothing else depends on the rate.
    """
    slow, fast = (
        prepared([*RUN, "budget.resident_share=0.9", "loader.wait=wait_all", rate])
        for rate in (UNPACK, UNPACK.replace("40", "80"))
    )
    waited = []
    for run in (slow, fast):
        result = execute(run)
        loads = run.controller.issued
        assert result.summary["lookups"]["hit"] > 3 * len(loads) > 0
        each = [run.durations.hop_ns(0, transfer.moved_bytes) for transfer in loads]
        assert sum(result.summary["stall_s"].values()) == pytest.approx(sum(each) / 1e9)
        waited.append(sum(each))
    expert = 4 * 3 * 4096 * 14336
    assert waited[0] - waited[1] == pytest.approx(
        len(slow.controller.issued) * expert * (1 / 40 - 1 / 80), rel=1e-6
    )


def test_fp32_is_what_its_kernels_read() -> None:
    held, stored = (
        prepared([*RUN, "budget.resident_share=0.25", word])
        for word in ("seed=0", "precision.held=null")
    )
    compute = held.hardware.compute
    expert = 3 * 4096 * 14336
    for run, size in ((held, 4 * expert), (stored, expert // 2)):
        assert run.durations.expert_ns(0, 0, 1) == pytest.approx(
            compute.operation_ns(2 * expert, size, compute.expert_launches), abs=2
        )


# Contracts: C5
def test_what_a_link_writes_out_is_held_so_too() -> None:
    run = prepared(
        [
            "system=lru",
            "precision=int4",
            "trace.max_sequences=1",
            "hardware.memory_gib=96",
            UNPACK.replace("32", "16"),
        ]
    )
    geometry = run.controller.geometry
    assert geometry.held_bytes == (4 * geometry.variant_bytes[0],)
    assert run.ledger.slot_bytes == 64 * geometry.held_bytes[0]


def test_what_is_stored_on_a_device_is_held_as_it_is() -> None:
    run = prepared([*RUN, "budget.resident_share=0.25"])
    sizes = (run.model.expert_bytes("int4"), run.model.expert_bytes("int2"))
    assert (
        make_geometry(
            run.model, ("int4", "int2"), Budget(0.25), stored_bytes=sizes, held_bits=32.0
        ).held_bytes
        == ()
    )


@pytest.mark.parametrize("held", ["fp31", "", 4])
def test_an_unknown_width_to_hold_is_refused(held: Any) -> None:
    run = prepared([*RUN, "budget.resident_share=0.25"])
    with pytest.raises(ValueError, match=r"unknown precision\.held=.*known: fp32, .*or null"):
        held_bits(held, run.hardware)
