"""Durations and the memory ledger, worked out by hand for a 4090 and Mixtral-8x7B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from sim.machine.costs import FixedDurations, Roofline, check_memory, overflow_bytes
from sim.machine.hardware import Compute, Hardware, Host, Link
from sim.machine.model import Model
from sim.setup.sections import make_object
from sim.values.places import ROOT
from sim.values.types import HostCosts, Step

MIXTRAL_EXPERT = 352_321_536


def machine(**changes: Any) -> Hardware:
    """A machine that reaches 1 TFLOP/s and 100 GB/s, with 2 us a launch.

    Its two links reach 5 and 1 GB/s.
    """
    compute = Compute(
        peak_tflops=2.0,
        flops_efficiency=0.5,
        memory_gb_per_s=200.0,
        memory_efficiency=0.5,
        launch_us=2.0,
        dense_launches=4,
        expert_launches=3,
        tail_launches=1,
    )
    values: dict[str, Any] = {
        "name": "m",
        "preset": "roofline",
        "validated": "none",
        "memory_gib": 1.0,
        "reserved_gib": 0.25,
        "links": {"near": Link(10.0, 0.5, 6.0), "far": Link(2.0, 0.5, 80.0)},
        "compute": compute,
        "source": "paper",
    }
    return Hardware(**(values | changes))


def small(**changes: Any) -> Model:
    """A model with 240 dense parameters a layer, a head of 80, experts of 384 (see test_model)."""
    values: dict[str, Any] = {
        "name": "small",
        "sites": 3,
        "experts": 4,
        "top_k": 2,
        "hidden": 8,
        "expert_intermediate": 16,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 4,
        "vocab": 10,
        "source": "paper",
    }
    return Model(**(values | changes))


def step(rows: int = 1, token: int = 1, sequences: tuple[int, ...] = (0,)) -> Step:
    return Step(0, 0, rows, sequences, token, rows == 1, (), ())


def from_conf(group: str, name: str) -> Any:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return make_object(compose(f"{group}/{name}")[group])


def test_a_hop_takes_the_overhead_and_the_bytes_of_its_own_link() -> None:
    durations = Roofline(small(), machine(), ("fp16",))
    assert [durations.hop_ns(0, size) for size in (0, 1, 5, 12, 10**9)] == [
        6000,
        6000,
        6001,
        6002,
        200_006_000,
    ]
    assert (durations.hop_ns(1, 1000), durations.latency_ns(0), durations.latency_ns(1)) == (
        81_000,
        6_000,
        80_000,
    )


def test_a_mixtral_expert_on_a_4090_by_hand() -> None:
    """The times of an expert of 352,321,536 B:

    - Over PCIe: at 31.5 * 0.816 = 25.704 GB/s 13,706,876 ns, and 6 us: 13.71 ms.
    - For one token it reads its weights at 1008 * 0.9 = 907.2 GB/s: 388,361 ns, and 3 launches of 4
      us. At int4 a quarter: 97,090 ns.
    - For 400 tokens: 2 * 400 * 176,160,768 FLOPs at 165.2 * 0.96 = 158.592 TFLOP/s: 888,624 ns,
      which is more than reading takes.
    """
    hardware, mixtral = from_conf("hardware", "rtx4090_pcie4"), from_conf("model", "mixtral_8x7b")
    durations = Roofline(mixtral, hardware, ("fp16", "int4"))
    assert durations.hop_ns(0, MIXTRAL_EXPERT) == 13_706_876 + 6_000
    assert durations.expert_ns(0, 0, 1) == durations.expert_ns(0, 31, 1) == 388_361 + 12_000
    assert durations.expert_ns(1, 0, 1) == 97_090 + 12_000
    assert durations.expert_ns(0, 0, 400) == durations.expert_ns(1, 0, 400) == 888_624 + 12_000


def test_an_expert_with_silent_channels_reads_its_share_for_one_token_and_all_for_more() -> None:
    """FloE's kernel: 10 % of 352,321,536 B at 907.2 GB/s are 38,836 ns, and 3 launches of 4 us.

    Rows of several tokens have different active channels, so all of the expert is read.
    """
    hardware, mixtral = from_conf("hardware", "rtx4090_pcie4"), from_conf("model", "mixtral_8x7b")
    durations = Roofline(mixtral, hardware, ("fp16",), active_share=0.1)
    assert durations.expert_ns(0, 0, 1) == 38_836 + 12_000
    assert durations.expert_ns(0, 0, 2) == 388_361 + 12_000


def test_a_mixtral_expert_on_its_hosts_cpu_by_hand() -> None:
    """352,321,536 B at 117 * 0.6 = 70.2 GB/s: 5,018,825 ns, and 20 us there and back.

    HOBBIT reports 5 ms. 400 tokens: 2 * 400 * 176,160,768 FLOPs at 4.7 * 0.5 = 2.35 TFLOP/s:
    59,969,623 ns.
    """
    hardware, mixtral = from_conf("hardware", "rtx4090_pcie4"), from_conf("model", "mixtral_8x7b")
    durations = Roofline(mixtral, hardware, ("fp16", "int4"))
    assert durations.cpu_ns(0, 3, 1) == 5_018_825 + 20_000
    assert durations.cpu_ns(1, 3, 1) == 1_254_706 + 20_000
    assert durations.cpu_ns(0, 3, 400) == 59_969_623 + 20_000


def test_a_machine_whose_cpu_is_not_described_computes_nothing_there() -> None:
    with pytest.raises(
        ValueError, match=r"hardware m has no cpu section.*; choose placement=load, or a machine"
    ):
        Roofline(small(), machine(), ("fp16",)).cpu_ns(0, 0, 1)


def test_where_bytes_differ_from_site_to_site_so_does_the_work() -> None:
    """200,000 B at 100 B/ns take 2 us and 400,000 B take 4 us.

    At 16 bits these are 1e5 and 2e5 parameters. 100 tokens: 2 * 100 * 1e5 FLOPs at 1 FLOP/ps take
    20 us, and 40 us.
    """
    durations = Roofline(
        small(),
        machine(),
        ("fp16", "int4"),
        ((200_000, 400_000, 200_000), (50_000, 100_000, 50_000)),
    )
    assert [durations.expert_ns(0, site, 1) for site in range(3)] == [8_000, 10_000, 8_000]
    assert [durations.expert_ns(0, site, 100) for site in range(2)] == [26_000, 46_000]
    assert [durations.expert_ns(1, site, 1) for site in range(2)] == [6_500, 7_000]


def test_what_the_host_costs_and_a_prediction_takes_is_the_machines() -> None:
    durations = Roofline(
        small(), machine(host=Host(1.0, 2.0, 3.5, 4.0), prediction_us=70.0), ("fp16",)
    )
    assert durations.host == HostCosts(1_000, 2_000, 3_500, 4_000)
    assert durations.prediction_ns == 70_000
    assert Roofline(small(), machine(), ("fp16",)).host == HostCosts()


def test_dense_work_reads_its_weights_and_the_keys_and_values_so_far() -> None:
    """One row at token 1001 reads 480 B of weights and 16,016 B of keys and values.

    These are 240 * 2 and 1001 * 16 B: 165 ns at 100 B/ns. FLOPs: 2 * 240 + 4 * 1001 * 8 = 32,512:
    33 ns at 1 FLOP/ps, less. Four launches take 8 us.
    """
    durations = Roofline(small(), machine(), ("fp16",))
    assert list(durations.dense_ns(step(token=1001))) == [165 + 8_000] * 3


def test_a_prompt_attends_to_half_of_itself_on_average() -> None:
    """101 rows without context: each row attends to (1 + .. + 101) / 101 = 51 tokens.

    FLOPs: 2 * 101 * 240 + 4 * 101 * 51 * 8 = 48,480 + 164,832 = 213,312: 213 ns. Bytes: 480 + 101 *
    16 = 2,096: 21 ns.
    """
    durations = Roofline(small(), machine(), ("fp16",))
    assert durations.dense_ns(step(rows=101, token=101))[0] == 213 + 8_000


def test_each_sequence_of_a_step_attends_to_its_own_context() -> None:
    """Eight sequences of one row, at up to 1001 tokens: 480 + 8 * 16,016 = 128,608 B: 1286 ns.

    FLOPs: 8 * (480 + 32,032) = 260,096: 260 ns, less. Two prompts of 101 rows take twice the FLOPs
    of one, 427 ns.
    """
    durations = Roofline(small(), machine(), ("fp16",))
    assert (
        durations.dense_ns(step(rows=8, token=1001, sequences=tuple(range(8))))[0] == 1_286 + 8_000
    )
    assert durations.dense_ns(step(rows=202, token=101, sequences=(0, 1)))[0] == 427 + 8_000


def test_the_head_runs_once_a_sequence() -> None:
    """80 parameters of 2 B take 1.6 ns, rounded to 2.

    2 * 500 * 80 FLOPs for 500 sequences take 80 ns. There is one launch of 2 us.
    """
    durations = Roofline(small(), machine(), ("fp16",))
    assert durations.tail_ns(step()) == 2 + 2_000
    assert durations.tail_ns(step(rows=500, sequences=tuple(range(500)))) == 80 + 2_000


def test_fixed_durations_are_what_was_given() -> None:
    fixed = FixedDurations((1, 2), 3, (10, 5), {8: 80, 2: 20}, (4, 0), cpu_ns=7, prediction_ns=9)
    assert (list(fixed.dense_ns(step())), fixed.tail_ns(step())) == ([1, 2], 3)
    assert (fixed.expert_ns(0, 0, 1), fixed.expert_ns(0, 1, 3), fixed.expert_ns(1, 0, 3)) == (
        14,
        22,
        5,
    )
    assert (fixed.hop_ns(0, 8), fixed.hop_ns(0, 2), fixed.latency_ns(0)) == (80, 20, 0)
    assert (fixed.cpu_ns(0, 0, 1), fixed.prediction_ns, fixed.host) == (7, 9, HostCosts())
    assert FixedDurations((1,), 0, (10,), {}).expert_ns(0, 0, 9) == 10


def test_fixed_durations_of_several_links_are_by_link() -> None:
    fixed = FixedDurations(
        (1,), 0, (10,), ({8: 80}, {8: 800}), latency_ns=(0, 30), host=HostCosts(sync_ns=2)
    )
    assert (fixed.hop_ns(0, 8), fixed.hop_ns(1, 8), fixed.latency_ns(1), fixed.host.sync_ns) == (
        80,
        800,
        30,
        2,
    )


@dataclass(frozen=True)
class Limits:
    tokens: int = 1
    rows: int = 1


# Contracts: C82
def test_the_ledger_holds_the_longest_context_the_widest_step_and_all_slots() -> None:
    """Dense weights take 1776 B, keys and values 48 B for each of 200 tokens.

    Activations take 7 rows * 2 B * (4 * 8 + 2 * 2 * 16).
    """
    ledger = check_memory(
        small(),
        machine(),
        Limits(200, 7),
        slot_bytes=5_000,
        staging_bytes=70,
        overflow_bytes=300,
        parts_bytes=11,
        draft_bytes=13,
    )
    assert vars(ledger) == {
        "dense_bytes": 1_776,
        "kv_bytes": 9_600,
        "activation_bytes": 1_344,
        "slot_bytes": 5_000,
        "staging_bytes": 70,
        "overflow_bytes": 300,
        "reserved_bytes": 1 << 28,
        "parts_bytes": 11,
        "draft_bytes": 13,
    }
    assert ledger.total_bytes == 1_776 + 9_600 + 1_344 + 5_000 + 70 + 300 + (1 << 28) + 11 + 13


def test_of_streamed_layers_only_the_slots_are_on_the_device() -> None:
    """Three layers have 240 parameters at 2 B: 1776 - 3 * 480 = 336 B belong to no layer."""
    held = [
        check_memory(small(), machine(), Limits(), slot_bytes=0, dense_slots=n).dense_bytes
        for n in (0, 1, 2)
    ]
    assert held == [1_776, 336 + 480, 336 + 960]


# Contracts: C82
def test_memory_is_enough_to_the_last_byte_and_one_more_is_refused_by_its_parts() -> None:
    rest = (1 << 30) - (1 << 28) - 1_776 - 48 - 2 * (32 + 64)
    assert check_memory(small(), machine(), Limits(), slot_bytes=rest).total_bytes == 1 << 30
    parts = r"dense 0\.00, kv 0\.00, activation 0\.00, slot 0\.75, reserved 0\.25 GiB"
    with pytest.raises(
        ValueError, match=rf"holds 1 GiB, but the run needs 1\.00 GiB \({parts}\); lower budget"
    ):
        check_memory(small(), machine(), Limits(), slot_bytes=rest + 1)


def test_a_refusal_for_memory_says_how_much_fits() -> None:
    """3 GiB of slots, beside 0.25 GiB reserved, are asked of 1 GiB: 0.75 GiB fit."""
    with pytest.raises(
        ValueError, match=r"lower budget\.resident_share or slots_gib \(0\.75 GiB of slots fit\)"
    ):
        check_memory(small(), machine(), Limits(), slot_bytes=3 << 30)
    with pytest.raises(ValueError, match=r"\(0\.00 GiB of slots fit\)"):
        check_memory(small(), machine(reserved_gib=0.9999999), Limits(), slot_bytes=100)


@pytest.mark.parametrize(
    ("union", "arriving", "pool", "over"),
    [(30, 0, 100, 30), (30, 80, 100, 40), (120, 0, 100, 140), (120, 500, 100, 240)],
    ids=[
        "the last union has been trimmed",
        "beside what arrives 10 of it stay",
        "20 of it never fit",
        "all stays",
    ],
)
def test_what_pools_hold_over_their_capacity_is_the_union_and_what_stays_of_the_last(
    union: int, arriving: int, pool: int, over: int
) -> None:
    assert overflow_bytes(union, arriving, pool) == over
