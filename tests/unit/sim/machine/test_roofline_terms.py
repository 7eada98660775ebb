"""Each term of a roofline alone, by hand: a machine of 1 TFLOP/s and 100 GB/s, with 2 us a launch.

Of the small model a layer without its experts has 240 parameters, an expert 384 and the head 80.
One row at its first token reads 480 B and 16 B of keys and values in a layer: 5 ns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from helpers.round_machine import machine, small
from sim.machine.compute import Cpu
from sim.machine.lanes import Lanes
from sim.machine.link_parts import Unpack
from sim.machine.measured import Measured
from sim.machine.parts import Forecasting, Host
from sim.machine.roofline import Roofline
from sim.values.types import Share, Step


def step(**changes: Any) -> Step:
    values: dict[str, Any] = {"sequences": (0,), "token": 1, "decode": True, "sites": (0, 1, 2)}
    rows = changes.pop("rows", 1)
    return Step(0, 0, rows, begins=(), ends=(), **(values | changes))


CPU = Cpu(2.0, 0.5, 20.0, 0.5, 30.0)
"""1 TFLOP/s, 10 GB/s, and 30 us there and back."""


def test_gates_run_ahead_read_their_matrices_on_the_device_or_on_the_cpu() -> None:
    """Two sites of 4 x 8 parameters at 2 B are 128 B: 1 ns at 100 B/ns, 13 ns at 10."""
    plain = machine()
    on = machine(forecasting=Forecasting("compute", 3))
    one = Roofline(small(), on, ("fp16",), forecast_sites=2)
    assert list(one.dense_ns(step())) == [5 + 8_000 + 1 + 6_000] * 3
    assert one.prediction_ns == 0
    on = machine(forecasting=Forecasting("cpu"), cpu=CPU, prediction_us=7.0)
    one = Roofline(small(), on, ("fp16",), forecast_sites=2)
    assert list(one.dense_ns(step())) == [5 + 8_000] * 3
    assert one.prediction_ns == 7_000 + 13 + 30_000
    assert Roofline(small(), on, ("fp16",)).prediction_ns == 7_000
    assert Roofline(small(), plain, ("fp16",), forecast_sites=2).prediction_ns == 0
    # Floating-point operations: 2 x 2 x 4 x 8 of a wide gate are more than its bytes, of 1 bit.
    wide = small(experts=10_000, dense_bits=1)
    one = Roofline(
        wide, machine(forecasting=Forecasting("compute", 0)), ("fp16",), forecast_sites=2
    )
    none = Roofline(wide, plain, ("fp16",))
    assert one.dense_ns(step())[0] - none.dense_ns(step())[0] == 320  # 2 x 160,000 at 1 FLOP/ps


def test_drafts_are_made_one_after_another_before_the_first_site_of_a_step() -> None:
    """A draft layer takes 8,005 ns and two experts of 8 + 6,000 ns, the head 2 + 2,000 ns."""
    one = Roofline(small(), machine(), ("fp16",), draft_layers=2)
    draft = 2 * (8_005 + 2 * 6_008) + 2_002
    assert list(one.dense_ns(step(drafters=(1, 1, 1)))) == [8_005 + 3 * draft, 8_005, 8_005]
    assert list(one.dense_ns(step(drafters=(1, 1, 1), sites=(1, 2)))) == [
        8_005,
        8_005 + 3 * draft,
        8_005,
    ]
    assert list(one.dense_ns(step())) == [8_005] * 3
    none = Roofline(small(), machine(), ("fp16",))
    assert list(none.dense_ns(step(drafters=(1, 1, 1)))) == [8_005] * 3
    # A layer that drafts is like the last one, with no dense layer before it: see the next test.
    first = Roofline(
        small(sites=2, leading_dense_layers=1, dense_intermediate=100),
        machine(),
        ("fp16",),
        draft_layers=1,
    )
    draft = 8_005 + 2 * 6_008 + 2_002
    assert list(first.dense_ns(step(drafters=(1,), sites=(0, 1)))) == [57 + 22_000 + draft, 8_005]
    # Two sequences draft a row each: 480 + 2 x 16 B, and two experts each.
    pair = step(rows=2, sequences=(0, 1), drafters=(2,), parts=(Share(1, 1, 1),) * 2)
    assert one.dense_ns(pair)[0] - none.dense_ns(pair)[0] == 2 * (8_005 + 4 * 6_008) + 2_002


# Contracts: C151
def test_a_draft_is_made_for_the_sequences_that_check_it_alone() -> None:
    """A sequence reads five rows of its prompt, one checks ten drafts, and one checks eleven.

    So ten drafts are made for two sequences, and the last one for one. The head runs for 1 + 11 +
    12 rows. Each takes 160 ns with 80,000 parameters. At 11 and 12 tokens 480 + 23 x 16 B take 8 ns,
    at 12 tokens 480 + 12 x 16 B take 7 ns.
    """
    parts = Share(5, 5), Share(11, 11, 10), Share(12, 12, 11)
    mixed = step(rows=28, sequences=(0, 1, 2), decode=False, drafters=(*[2] * 10, 1), parts=parts)
    one = Roofline(small(), machine(), ("fp16",), draft_layers=1)
    none = Roofline(small(), machine(), ("fp16",))
    for_two, for_one = 8_008 + 4 * 6_008 + 2_002, 8_007 + 2 * 6_008 + 2_002
    assert one.dense_ns(mixed)[0] - none.dense_ns(mixed)[0] == 10 * for_two + for_one
    wide = Roofline(small(vocab=10_000), machine(), ("fp16",))
    assert wide.tail_ns(mixed) == 2_000 + 24 * 160


# Contracts: C151
def test_a_draft_attends_to_the_context_of_its_own_sequence() -> None:
    """Sequences at 1 and 1,001 tokens check a draft each: 480 + (1 + 1,001) x 16 B take 165 ns.

    A second draft is made for the one at 1 token alone: 480 + 16 B take 5 ns.
    """
    parts = Share(3, 1, 2), Share(2, 1_001, 1)
    both = step(rows=5, sequences=(0, 1), drafters=(2, 1), parts=parts)
    one = Roofline(small(), machine(), ("fp16",), draft_layers=1)
    none = Roofline(small(), machine(), ("fp16",))
    first, second = 8_165 + 4 * 6_008 + 2_002, 8_005 + 2 * 6_008 + 2_002
    assert one.dense_ns(both)[0] - none.dense_ns(both)[0] == first + second


def test_layers_before_a_site_and_shared_experts_have_launches_of_their_own() -> None:
    """A layer without experts has 240 - 32 and 3 x 8 x 100 parameters, and keys of its own.

    At site 0: 2,848 x 2 B and 2 x 16 B are 57 ns; eight launches, and three of a block: 22 us.
    A shared expert of 3 x 8 x 50 adds 2,400 B, 24 ns, and three launches.
    """
    model = small(leading_dense_layers=1, dense_intermediate=100)
    one = Roofline(model, machine(), ("fp16",))
    assert list(one.dense_ns(step())) == [57 + 22_000, 8_005, 8_005]
    shared = Roofline(small(shared_intermediate=50), machine(), ("fp16",))
    assert list(shared.dense_ns(step())) == [29 + 14_000] * 3


def test_a_prompts_head_runs_for_the_last_row_of_each_sequence() -> None:
    """2 x 7 x 80 FLOPs are less than 160 B; of 500 rows they are 80 ns."""
    one = Roofline(small(), machine(), ("fp16",))
    assert one.tail_ns(step(rows=500, decode=False)) == 2 + 2_000
    assert one.tail_ns(step(rows=500, decode=True)) == 80 + 2_000


def test_after_an_encoder_keys_and_values_of_its_prompt_are_made_for_the_decoder() -> None:
    """Two layers decode, with 8 x 4 x 2 parameters each: 2 x 500 x 128 FLOPs."""
    one = Roofline(small(encoder_sites=1), machine(), ("fp16",))
    assert one.tail_ns(step(rows=500, decode=False)) == 128 + 2_000
    assert one.tail_ns(step(decode=True)) == 2 + 2_000


def test_experts_of_few_bits_are_written_out_by_a_kernel_where_the_device_has_one() -> None:
    """An expert of 384,000 parameters: 192,000 B at 4 bits, 768,000 B written out at 16.

    Both pass the memory once, 9,600 ns, with five launches; then 768,000 B are read.
    """
    model = small(hidden=8_000, head_dim=4)
    compute = replace(machine().compute, dequantise_launches=5)
    one = Roofline(model, machine(compute=compute), ("fp16", "int4"))
    assert one.expert_ns(1, 0, 1) == 9_600 + 10_000 + 7_680 + 6_000
    assert one.expert_ns(0, 0, 1) == 7_680 + 6_000
    plain = Roofline(model, machine(), ("fp16", "int4"))
    assert plain.expert_ns(1, 0, 1) == 1_920 + 6_000


def test_what_slots_hold_at_more_bits_is_read_at_these() -> None:
    """Read is what the slot holds: 8 bits of 384,000 weights are 384,000 B, 3,840 ns."""
    model = small(hidden=8_000, head_dim=4)
    for one in (
        Roofline(model, machine(), ("int8", "int4"), held_bits=8.0),
        Roofline(model, unpacking(8.0), ("int8", "int4")),
        Roofline(model, unpacking(8.0), ("int8", "int4"), held_bits=5.0),
    ):
        assert [one.expert_ns(precision, 0, 1) for precision in (0, 1)] == [3_840 + 6_000] * 2


def unpacking(bits: float) -> Any:
    first, second = machine().links
    return machine(links=(replace(first, unpack=Unpack(1.0, bits, 3.0)), second))


def test_a_link_that_dequantises_tells_bits_by_bytes() -> None:
    """192 B at 4 bits are written out as 384 B at 8, at 1 GB/s: 384 ns behind 3 us.

    Up to 192 B are of 4 bits, up to 384 B of 8. What is larger is dense, of 16.
    """
    one, plain = (Roofline(small(), m, ("int8", "int4")) for m in (unpacking(8.0), machine()))
    more = {size: one.hop_ns(0, size) - plain.hop_ns(0, size) for size in (1, 192, 193, 384, 385)}
    assert more == {1: 3_002, 192: 3_384, 193: 0, 384: 0, 385: 0}
    assert one.hop_ns(1, 192) == plain.hop_ns(1, 192)


def test_free_copies_take_no_time_and_contend_for_nothing() -> None:
    beside = {"compute": {"near": 1.5}}
    one = Roofline(small(), machine(beside=beside), ("fp16",), free_copies=True)
    assert (one.hop_ns(0, 10**9), one.latency_ns(1), one.contention, one.lanes(0)) == (
        0,
        0,
        None,
        None,
    )
    assert one.page_cache_bytes(0) == 0
    assert Roofline(small(), machine(beside=beside), ("fp16",)).contention is not None


def test_deciding_takes_host_time_after_a_gate_and_the_cpu_says_how_far_it_is() -> None:
    one = Roofline(small(), machine(host=Host(1, 2, 3, 4), cpu=CPU), ("fp16",), decision_ns=55)
    assert (one.host.sync_ns, one.host.issue_ns, one.host.wake_ns) == (1_000, 2_055, 3_000)
    assert one.cpu_latency_ns == 30_000
    assert Roofline(small(), machine(), ("fp16",)).cpu_latency_ns == 0
    # 768 B at 10 B/ns are 77 ns; what stays on the device is read on the cpu, too.
    assert one.cpu_ns(0, 0, 1) == 77 + 30_000
    # 32 bits of each 3 weights are 512 B, and 40 B stay: 55 ns.
    assert Roofline(small(), machine(cpu=CPU), ("floe",)).cpu_ns(0, 0, 1) == 55 + 30_000
    with pytest.raises(ValueError, match=r"^hardware m has no cpu section"):
        Roofline(small(), machine(), ("fp16",)).cpu_ns(0, 0, 1)


def test_a_draft_runs_no_gates_ahead_since_no_forecast_is_made_at_its_layers() -> None:
    """Contract C151: 128 B of two gates and three launches are each site's, and no draft's."""
    on = machine(forecasting=Forecasting("compute", 3))
    one = Roofline(small(), on, ("fp16",), forecast_sites=2, draft_layers=2)
    draft = 2 * (8_005 + 2 * 6_008) + 2_002
    assert list(one.dense_ns(step(drafters=(1, 1)))) == [
        14_006 + 2 * draft,
        14_006,
        14_006,
    ]


def test_a_measured_layer_is_of_one_row_and_waits_for_gates_run_ahead() -> None:
    """10 us for 240 parameters; 128 B of two gates and three launches: 1 + 6,000 ns."""
    table = Measured(0.0, dense_params=240, dense_us=[[1, 10.0]])
    on = machine(measured=table, forecasting=Forecasting("compute", 3))
    one = Roofline(small(), on, ("fp16",), forecast_sites=2)
    assert list(one.dense_ns(step())) == [10_000 + 6_001] * 3
    copies = machine(measured=Measured(copy_us={"near": [[1, 9.0]]}))
    assert list(Roofline(small(), copies, ("fp16",)).dense_ns(step())) == [8_005] * 3


def test_several_rows_take_no_less_than_the_one_that_was_measured() -> None:
    """C81: on a machine whose layers were measured two rows took a quarter of one row's time."""
    slow, fast = (
        Roofline(small(), machine(measured=Measured(0.0, 240, dense_us=[[1, us]])), ("fp16",))
        for us in (10.0, 0.5)
    )
    two = step(rows=2, sequences=(0, 1), parts=(Share(1, 1),) * 2)
    formula = Roofline(small(), machine(), ("fp16",)).dense_ns(two)
    assert max(formula) < 10_000
    assert min(formula) > 500
    assert list(slow.dense_ns(two)) == [10_000] * 3
    assert list(fast.dense_ns(two)) == list(formula)


def test_lanes_and_projections_are_those_of_the_link_and_of_the_precision() -> None:
    first, second = machine().links
    one = Roofline(small(), machine(links=(replace(first, wake_us=2.0), second)), ("fp16", "int4"))
    assert (one.lanes(0), one.lanes(1)) == (Lanes(wake_ns=2_000), None)
    assert [one.projection_bytes(*at) for at in ((0, 0, 768), (1, 1, 192), (1, 2, 200))] == [
        (256, 256, 256),
        (64, 64, 64),
        (64, 64, 72),
    ]
