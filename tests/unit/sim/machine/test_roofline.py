"""Durations of a roofline, worked out by hand for a 4090 and Mixtral-8x7B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from helpers.round_machine import machine, small
from sim.machine.kernels import Kernels
from sim.machine.link_parts import Pages
from sim.machine.parts import Host
from sim.machine.roofline import Roofline
from sim.setup.sections import make_object
from sim.values.places import ROOT
from sim.values.types import HostCosts, Share, Step

MIXTRAL_EXPERT = 352_321_536


def step(rows: int = 1, token: int = 1, *parts: Share) -> Step:
    """A step of one sequence, or of these parts."""
    rows, token = (
        sum(one.rows for one in parts) or rows,
        max((one.tokens for one in parts), default=token),
    )
    return Step(0, 0, rows, tuple(range(len(parts) or 1)), token, rows == 1, (), (), parts=parts)


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


def test_what_the_page_cache_keeps_is_copied_beside_the_search_for_a_slot() -> None:
    """20,000 B at 20 GB/s behind 1.5 us, and a look at each of four slots in 0.5 us."""
    pages = Pages(capacity_gib=1, gb_per_s=20, overhead_us=1.5)
    first, second = machine().links
    hardware = replace(machine(), links=(replace(first, page_cache=pages, slot_us=0.5), second))
    durations = Roofline(small(), hardware, ("fp16",))
    durations.slots = 4
    assert durations.kept_ns(0, 20_000) == 2_500 + 2_000
    assert [durations.page_cache_bytes(link) for link in (0, 1)] == [1 << 30, 0]


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
    """Eight sequences of one row, at 1001 tokens: 480 + 8 * 16,016 = 128,608 B: 1286 ns.

    FLOPs: 8 * (480 + 32,032) = 260,096: 260 ns, less. Two prompts of 101 rows take twice the FLOPs
    of one, 427 ns. With one sequence at 1001 tokens and seven at 1 it is 480 + 1008 * 16 B: 166 ns.
    A chunk of 101 rows beside the decoded row at 1001 tokens has 213,312 + 32,512 FLOPs: 246 ns.
    """
    durations = Roofline(small(), machine(), ("fp16",))

    def first_ns(*parts: Share) -> int:
        return durations.dense_ns(step(1, 1, *parts))[0] - 8_000

    far, near, prompt = Share(1, 1001), Share(1, 1), Share(101, 101)
    assert first_ns(*[far] * 8) == 1_286
    assert first_ns(prompt, prompt) == 427
    assert first_ns(far, *[near] * 7) == 166
    assert first_ns(*[near] * 7, far) == 166
    assert first_ns(prompt, far) == 246


def test_the_head_runs_once_a_sequence() -> None:
    """80 parameters of 2 B take 1.6 ns, rounded to 2.

    2 * 500 * 80 FLOPs for 500 sequences take 80 ns. There is one launch of 2 us.
    """
    durations = Roofline(small(), machine(), ("fp16",))
    assert durations.tail_ns(step()) == 2 + 2_000
    assert durations.tail_ns(step(1, 1, *[Share(1, 1)] * 500)) == 80 + 2_000


# Contracts: C81
def test_kernels_that_take_a_layers_experts_together_launch_once_a_layer() -> None:
    """An expert's launches of 2 us become its layer's, however many experts that computes."""
    each = Roofline(small(), machine(), ("fp16",))
    together = Roofline(small(), machine(), ("fp16",), kernels=Kernels(together=True))
    launch_ns = 2_000 * machine().compute.expert_launches
    assert launch_ns > 0
    assert each.expert_ns(0, 0, 1) - together.expert_ns(0, 0, 1) == launch_ns
    assert together.dense_ns(step())[0] - each.dense_ns(step())[0] == launch_ns
    assert together.tail_ns(step()) == each.tail_ns(step())
