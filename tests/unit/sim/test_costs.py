"""Durations and the memory ledger, worked out by hand for a 4090 and Mixtral-8x7B."""

from __future__ import annotations

from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from sim.build import ROOT
from sim.costs import FixedDurations, Roofline, check_memory
from sim.hardware import Compute, Hardware, Link
from sim.model import Model
from sim.types import Step

MIXTRAL_EXPERT = 352_321_536


def link(**changes: Any) -> Link:
    values: dict[str, Any] = {"name": "l", "peak_gb_per_s": 10.0, "efficiency": 0.5, "overhead_us": 6.0}
    return Link(**(values | changes))


def compute(**changes: Any) -> Compute:
    """1 TFLOP/s and 100 GB/s, reached; 2 us a launch."""
    values: dict[str, Any] = {
        "peak_tflops": 2.0, "flops_efficiency": 0.5, "memory_gb_per_s": 200.0, "memory_efficiency": 0.5,
        "launch_us": 2.0, "dense_launches": 4, "expert_launches": 3, "tail_launches": 1,
    }  # fmt: skip
    return Compute(**(values | changes))


def machine(**changes: Any) -> Hardware:
    values: dict[str, Any] = {
        "name": "m", "preset": "roofline", "validated": "none", "memory_gib": 1.0, "reserved_gib": 0.25, "link": link(),
        "compute": compute(), "source": "paper",
    }  # fmt: skip
    return Hardware(**(values | changes))


def small(**changes: Any) -> Model:
    """Per layer 240 dense parameters; head 80; an expert 384 (see test_model)."""
    values: dict[str, Any] = {
        "name": "small", "sites": 3, "experts": 4, "top_k": 2, "hidden": 8, "expert_intermediate": 16, "heads": 2,
        "kv_heads": 1, "head_dim": 4, "vocab": 10, "source": "paper",
    }  # fmt: skip
    return Model(**(values | changes))


def step(rows: int = 1, token: int = 1, sequences: tuple[int, ...] = (0,)) -> Step:
    return Step(0, 0, rows, sequences, token, rows == 1, (), ())


def from_conf(group: str, name: str) -> Any:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return instantiate(compose(f"{group}/{name}")[group])


def test_a_transfer_takes_its_overhead_and_its_bytes_at_the_reached_rate() -> None:
    """6 us + bytes at 5 GB/s: 0.2 ns a byte, rounded once."""
    assert [link().transfer_ns(size) for size in (0, 1, 5, 12, 10**9)] == [6000, 6000, 6001, 6002, 200_006_000]


def test_an_operation_takes_the_longer_of_computing_and_moving_and_its_launches() -> None:
    """1 FLOP/ps and 100 B/ns: 3e6 FLOPs take 3 us, 6e5 B take 6 us."""
    one = compute()
    assert one.operation_ns(3e6, 0, 0) == 3_000
    assert one.operation_ns(3e6, 6e5, 0) == 6_000
    assert one.operation_ns(9e6, 6e5, 0) == 9_000
    assert one.operation_ns(9e6, 6e5, 3) == 15_000
    assert one.operation_ns(0, 0, 0) == 0


def test_a_mixtral_expert_on_a_4090_by_hand() -> None:
    """Over PCIe: 352,321,536 B at 31.5 * 0.816 = 25.704 GB/s are 13,706,876 ns, and 6 us: 13.71 ms.

    One token reads its weights at 1008 * 0.9 = 907.2 GB/s: 388,361 ns, and 3 launches of 4 us. At int4 a quarter:
    97,090 ns. 400 tokens: 2 * 400 * 176,160,768 FLOPs at 165.2 * 0.96 = 158.592 TFLOP/s: 888,624 ns, more than that.
    """
    hardware, mixtral = from_conf("hardware", "rtx4090_pcie4"), from_conf("model", "mixtral_8x7b")
    durations = Roofline(mixtral, hardware, ("fp16", "int4"))
    assert durations.transfer_ns(MIXTRAL_EXPERT) == 13_706_876 + 6_000
    assert durations.expert_ns(0, 1) == 388_361 + 12_000
    assert durations.expert_ns(1, 1) == 97_090 + 12_000
    assert durations.expert_ns(0, 400) == durations.expert_ns(1, 400) == 888_624 + 12_000


def test_dense_work_reads_its_weights_and_the_keys_and_values_so_far() -> None:
    """One row at token 1001: weights 240 * 2 = 480 B, keys and values 1001 * 16 = 16,016 B: 165 ns at 100 B/ns.

    FLOPs: 2 * 240 + 4 * 1001 * 8 = 32,512: 33 ns at 1 FLOP/ps, less. Four launches take 8 us.
    """
    durations = Roofline(small(), machine(), ("fp16",))
    assert list(durations.dense_ns(step(token=1001))) == [165 + 8_000] * 3


def test_a_prompt_attends_to_half_of_itself_on_average() -> None:
    """101 rows, no context: each row attends to (1 + .. + 101) / 101 = 51 tokens.

    FLOPs: 2 * 101 * 240 + 4 * 101 * 51 * 8 = 48,480 + 164,832 = 213,312: 213 ns. Bytes: 480 + 101 * 16 = 2,096: 21 ns.
    """
    durations = Roofline(small(), machine(), ("fp16",))
    assert durations.dense_ns(step(rows=101, token=101))[0] == 213 + 8_000


def test_the_head_runs_once_a_sequence() -> None:
    """80 parameters of 2 B: 1.6 ns, rounded to 2; 2 * 500 * 80 FLOPs for 500 sequences: 80 ns. One launch of 2 us."""
    durations = Roofline(small(), machine(), ("fp16",))
    assert durations.tail_ns(step()) == 2 + 2_000
    assert durations.tail_ns(step(rows=500, sequences=tuple(range(500)))) == 80 + 2_000


def test_fixed_durations_are_what_was_given() -> None:
    fixed = FixedDurations((1, 2), 3, (10, 5), {8: 80, 2: 20}, (4, 0))
    assert (list(fixed.dense_ns(step())), fixed.tail_ns(step())) == ([1, 2], 3)
    assert (fixed.expert_ns(0, 1), fixed.expert_ns(0, 3), fixed.expert_ns(1, 3)) == (14, 22, 5)
    assert (fixed.transfer_ns(8), fixed.transfer_ns(2)) == (80, 20)
    assert FixedDurations((1,), 0, (10,), {}).expert_ns(0, 9) == 10


def test_the_ledger_holds_the_longest_context_the_widest_step_and_all_slots() -> None:
    """Dense 1776 B; keys and values 48 B a token, of 2 sequences * 100 tokens; 7 rows * 2 B * (4 * 8 + 2 * 2 * 16)."""
    steps = [step(rows=7, token=7), step(token=100), step(rows=2, token=9, sequences=(0, 1))]
    ledger = check_memory(small(), machine(), steps, 5_000)
    assert vars(ledger) == {
        "dense_bytes": 1_776, "kv_bytes": 9_600, "activation_bytes": 1_344, "slot_bytes": 5_000,
        "reserved_bytes": 1 << 28,
    }  # fmt: skip
    assert ledger.total_bytes == 1_776 + 9_600 + 1_344 + 5_000 + (1 << 28)


def test_memory_is_enough_to_the_last_byte_and_one_more_is_refused_by_its_parts() -> None:
    rest = (1 << 30) - (1 << 28) - 1_776 - 48 - 2 * (32 + 64)
    assert check_memory(small(), machine(), [step()], rest).total_bytes == 1 << 30
    parts = r"dense 0\.00, kv 0\.00, activation 0\.00, slot 0\.75, reserved 0\.25 GiB"
    with pytest.raises(ValueError, match=rf"holds 1 GiB, but the run needs 1\.00 GiB \({parts}\); lower budget"):
        check_memory(small(), machine(), [step()], rest + 1)


@pytest.mark.parametrize(
    ("build", "changes", "message"),
    [
        (link, {"peak_gb_per_s": "fast"}, r"hardware\.link\.peak_gb_per_s='fast' must be a number"),
        (link, {"peak_gb_per_s": 0}, r"hardware\.link\.peak_gb_per_s=0 must be"),
        (link, {"efficiency": 1.5}, r"hardware\.link\.efficiency=1\.5 must be <= 1"),
        (link, {"overhead_us": -1}, r"hardware\.link\.overhead_us=-1 must be"),
        (compute, {"peak_tflops": 0}, r"hardware\.compute\.peak_tflops=0"),
        (compute, {"expert_launches": 1.5}, r"hardware\.compute\.expert_launches=1\.5 must be a whole number"),
        (machine, {"memory_gib": "24GiB"}, r"hardware\.memory_gib='24GiB' must be a number"),
        (machine, {"validated": "yes"}, r"hardware\.validated='yes'; allowed: measured, emulated, none"),
    ],
)
def test_a_machine_that_cannot_be_is_refused_by_the_name_of_its_key(
    build: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(**changes)
