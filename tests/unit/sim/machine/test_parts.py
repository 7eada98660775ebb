"""What a host's times become, and parties that share a memory."""

from __future__ import annotations

import pytest

from sim.machine.model import Model
from sim.machine.parts import Forecasting, Host, SharedMemory, Swap
from sim.machine.swap import Paging, paging_of
from sim.values.types import HostCosts


def test_a_hosts_times_are_whole_nanoseconds_and_its_rate_bytes_a_second() -> None:
    assert Host().costs == HostCosts(0, 0, 0, 0, (), 0, None)
    one = Host(1.5, 2.5, 3.5, 4.5, 5.5, 6.5)
    assert one.costs == HostCosts(1_500, 2_500, 3_500, 4_500, (), 5_500, 6.5e9)


def test_a_table_of_waits_begins_with_what_waking_takes_at_least() -> None:
    points = [[0.5, 2.0], [10, 4.5]]
    costs = Host(wake_us=points).costs
    assert costs == HostCosts(0, 0, 2_000, 0, ((500, 2_000), (10_000, 4_500)), 0, None)
    assert Host(wake_us=[[7, 2.0]]).costs == HostCosts(wake_ns=2_000), "one point is a number"
    for table, told in (
        ([[1, 2.0], [1, 3.0]], r"wake_us: the arguments \[1, 1\] must ascend"),
        ([[1, 1.1e6]], r"wake_us=1100000\.0 must be from 0 to 1e\+06; give microseconds"),
        ([], r"wake_us=\[\] must be a list of \[argument, microseconds\]"),
    ):
        with pytest.raises(ValueError, match=f"^hardware.host.{told}$"):
            Host(wake_us=table)  # type: ignore[arg-type]


def test_two_parties_at_least_share_a_memory_always_or_as_they_draw() -> None:
    for slows in ("always", "as_drawn"):
        assert SharedMemory(9.0, ("cpu", "compute"), slows).slows == slows
    assert SharedMemory(9.0, ("cpu", "compute")).slows == "always"
    with pytest.raises(
        ValueError, match=r"^hardware\.shared_memory\.slows='never'; allowed: always, as_drawn$"
    ):
        SharedMemory(9.0, ("cpu", "compute"), "never")
    for parties in (("cpu",), ("cpu", "cpu"), "cpu", ()):
        with pytest.raises(ValueError, match=r"must name two or more of compute, cpu, links$"):
            SharedMemory(9.0, parties)  # type: ignore[arg-type]


def test_gates_run_ahead_on_the_device_or_on_the_cpu_with_two_launches() -> None:
    assert [Forecasting(on).launches for on in ("compute", "cpu")] == [2, 2]
    with pytest.raises(
        ValueError, match=r"^hardware\.forecasting\.on='gpu'; allowed: compute, cpu$"
    ):
        Forecasting("gpu")


class Held:
    """A ledger of 10 dense, 20 slot, 3 staging and 5 overflow bytes, and 7 bytes of all else."""

    dense_bytes, slot_bytes, staging_bytes, overflow_bytes, total_bytes = 10, 20, 3, 5, 45


# Contracts: C182
def test_weights_and_what_is_staged_of_them_have_the_memory_that_all_else_leaves() -> None:
    model = Model("small", 3, 4, 2, 8, 16, 2, 1, 4, 10, "a test")
    swap = Swap(1.0, 0.5, 1.5, 2.5)
    block = model.block_bytes(0)
    rest = model.dense_bytes - 3 * block
    ledger: object = Held()
    found = paging_of(swap, 8, model, ledger)  # type: ignore[arg-type]
    assert found == Paging(512, 1, (block,) * 3, rest, 1_500, 2_500)
    assert rest > 0
    assert paging_of(Swap(1.0, 0.001, 0, 0), 9, model, ledger).page_bytes == 1  # type: ignore[arg-type]
    for memory, missing in ((7, 0), (4, 3)):
        with pytest.raises(
            ValueError,
            match=f"^hardware.swap: keys and values, activations and reserve take {missing} B more"
            f" than the device's {memory} B, and only weights are swapped; set",
        ):
            paging_of(swap, memory, model, ledger)  # type: ignore[arg-type]
