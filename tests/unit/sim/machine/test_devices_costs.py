"""Durations of several devices, worked by hand."""

from __future__ import annotations

import pytest

from sim.machine.devices_costs import InStep, OnLayers, OnOwners
from sim.machine.durations import FixedDurations, OwnedDurations
from sim.values.types import Step


def step(*sites: int, rows: int = 1) -> Step:
    return Step(0, 0, rows, (0,), rows, True, (0,), (0,), sites)


def alone(dense_ns: int, tail_ns: int = 50, hop_ns: int = 100) -> FixedDurations:
    hops = {size: hop_ns * size for size in (1, 2, 3)}
    return FixedDurations([dense_ns] * 4, tail_ns, [10], [hops], latency_ns=[hop_ns // 10])


def on_layers(*, head: int = 1, is_shared: bool = False) -> OnLayers:
    one, other = alone(100), alone(300, 70, 40)
    return OnLayers([one, other], (0, 0, 1, 1), head, is_shared, lambda rows: 7 * rows)


# Contracts: C159
@pytest.mark.parametrize(
    ("sites", "rows", "times"),
    [
        ((0, 1, 2, 3), 1, [100, 100, 307, 300]),
        ((0, 1, 2, 3), 2, [100, 100, 314, 300]),
        ((0, 1), 1, [100, 100, 300, 300]),
        ((1, 3), 1, [100, 100, 300, 307]),
    ],
)
def test_dense_work_takes_its_devices_time_and_what_crosses(
    sites: tuple[int, ...], rows: int, times: list[int]
) -> None:
    assert on_layers().dense_ns(step(*sites, rows=rows)) == times


def test_the_tail_is_the_heads_devices_and_crosses_if_the_last_site_is_elsewhere() -> None:
    assert on_layers().tail_ns(step(0, 1, 2, 3)) == 70
    assert on_layers().tail_ns(step(0, 1)) == 77
    assert on_layers(head=0).tail_ns(step(0, 1, 2, 3, rows=3)) == 71


def test_each_device_has_its_link_or_all_have_link_0() -> None:
    own, shared = on_layers(), on_layers(is_shared=True)
    assert [own.hop_ns(link, 3) for link in (0, 1)] == [300, 120]
    assert [own.latency_ns(link) for link in (0, 1)] == [10, 4]
    assert (shared.hop_ns(0, 3), shared.latency_ns(0)) == (300, 10)


def test_a_step_of_four_layers_on_two_equal_devices_is_one_message_longer() -> None:
    """The example of contract C159."""
    both = OnLayers([alone(100), alone(100)], (0, 0, 1, 1), 1, False, lambda rows: 7)
    every = step(0, 1, 2, 3)
    needs_ns = sum(both.expert_ns(0, site, 1) for site in every.sites)
    assert sum(both.dense_ns(every)) + needs_ns + both.tail_ns(every) == 4 * 110 + 7 + 50


# Contracts: C161
def test_devices_in_step_add_up_twice_a_layer_and_the_last_time_in_the_tail() -> None:
    """Two sites that stand for one and two layers: six messages, one of them in the tail."""
    dense = FixedDurations([100, 200], 50, [10], {1: 1})
    both = InStep(dense, dense, parts=1, services=1, layers_at=(1, 2), sum_ns=lambda rows: 7 * rows)
    assert both.dense_ns(step(0, 1)) == [107, 228]
    assert both.dense_ns(step(1)) == [114, 221]
    assert both.tail_ns(step(0, 1, rows=2)) == 64


@pytest.mark.parametrize(
    ("parts", "services", "hop_ns", "latency_ns"),
    [(1, 1, 300, 10), (2, 1, 200, 10), (2, 2, 400, 20)],
)
def test_a_transfer_moves_a_part_to_each_device_one_after_another_on_one_link(
    parts: int, services: int, hop_ns: int, latency_ns: int
) -> None:
    """Three bytes in two parts are two bytes and one: the larger part counts."""
    one = alone(100)
    both = InStep(
        one, one, parts=parts, services=services, layers_at=(1,) * 4, sum_ns=lambda rows: 0
    )
    assert (both.hop_ns(0, 3), both.latency_ns(0)) == (hop_ns, latency_ns)


def test_devices_in_step_compute_nothing_on_the_cpu() -> None:
    one = alone(100)
    both = InStep(one, one, parts=1, services=1, layers_at=(1,) * 4, sum_ns=lambda rows: 0)
    with pytest.raises(ValueError, match="placement=load, or split=layers"):
        both.cpu_ns(0, 0, 1)


# Contracts: C170
def test_home_has_the_dense_work_and_each_owner_its_experts_time_and_link() -> None:
    one = FixedDurations([100], 50, [10], [{3: 300}], latency_ns=[30])
    other = FixedDurations([900], 90, [40], [{3: 120}], latency_ns=[4])
    both = OnOwners([one, other], False, lambda rows: 7 * rows)
    assert (both.dense_ns(step(0)), both.tail_ns(step(0)), both.expert_ns(0, 0, 1)) == (
        [100],
        50,
        10,
    )
    assert [both.expert_on_ns(device, 0, 0, 1) for device in (0, 1)] == [10, 40]
    assert [both.hop_ns(link, 3) for link in (0, 1)] == [300, 120]
    assert (both.devices, both.message_ns(3)) == (2, 21)
    assert isinstance(both, OwnedDurations)
    assert not isinstance(on_layers(), OwnedDurations)
