"""Machines: figures by hand, routes, and what is refused because no machine can be like that."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from helpers import round_machine
from helpers.round_machine import compute
from sim.machine.compute import Cpu
from sim.machine.contention import COMPUTE, CPU, FIRST_LINK, Contention
from sim.machine.devices import Devices, Peer
from sim.machine.hardware import Hardware
from sim.machine.link import Link
from sim.machine.measured import Measured
from sim.machine.parts import Forecasting, Host, Ram, SharedMemory, Swap
from sim.setup.sections import make_object
from sim.values.places import ROOT
from sim.values.types import HostCosts, Route

MACHINES = sorted({path.stem for path in (ROOT / "conf" / "hardware").glob("*.yaml")} - {"generic"})


def link(**changes: Any) -> Link:
    """A link that reaches 5 GB/s, with an overhead of 6 us."""
    return Link(**({"peak_gb_per_s": 10.0, "efficiency": 0.5, "overhead_us": 6.0} | changes))


def cpu(**changes: Any) -> Cpu:
    values: dict[str, Any] = {
        "peak_tflops": 0.1,
        "flops_efficiency": 0.5,
        "memory_gb_per_s": 20.0,
        "memory_efficiency": 0.5,
        "round_trip_us": 30.0,
    }
    return Cpu(**(values | changes))


def machine(**changes: Any) -> Hardware:
    return round_machine.machine(**{"links": {"pcie": link()}} | changes)


def loaded(name: str) -> Any:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return make_object(compose(f"hardware/{name}")["hardware"])


# Figures


# Contracts: C64
def test_a_service_takes_its_overhead_and_its_bytes_at_the_reached_rate() -> None:
    """6 us, and 0.2 ns for each byte at 5 GB/s, rounded once."""
    assert [link().hop_ns(size) for size in (0, 1, 5, 12, 10**9)] == [
        6000,
        6000,
        6001,
        6002,
        200_006_000,
    ]
    assert link().latency_ns == 6_000


# Contracts: C81
def test_an_operation_takes_the_longer_of_computing_and_moving_and_its_launches() -> None:
    """At 1 FLOP/ps and 100 B/ns, 3e6 FLOPs take 3 us and 6e5 B take 6 us."""
    one = compute()
    assert one.operation_ns(3e6, 0, 0) == 3_000
    assert one.operation_ns(3e6, 6e5, 0) == 6_000
    assert one.operation_ns(9e6, 6e5, 0) == 9_000
    assert one.operation_ns(9e6, 6e5, 3) == 15_000
    assert one.operation_ns(0, 0, 0) == 0


def test_an_expert_on_the_cpu_takes_the_longer_of_computing_and_reading_and_its_round_trip() -> (
    None
):
    """The CPU has 50 FLOP/ns and 10 B/ns."""
    assert cpu().operation_ns(5e5, 0) == 10_000 + 30_000
    assert cpu().operation_ns(5e5, 3e5) == 30_000 + 30_000


# Contracts: C4
def test_host_times_become_whole_nanoseconds() -> None:
    assert Host(1.5, 2.0, 0.25, 3.0).costs == HostCosts(1_500, 2_000, 250, 3_000)
    assert machine().host.costs == HostCosts()


# Contracts: C67
def test_waking_may_take_longer_after_a_longer_wait() -> None:
    """Points of 1 us and 3 us: half way between them, and the nearest beyond them."""
    costs = Host(wake_us=[[1, 0.5], [3, 1.5]]).costs
    assert [costs.waking_ns(ns) for ns in (1, 1_000, 2_000, 2_001, 3_000, 10**9)] == [
        500,
        500,
        1_000,
        1_000,
        1_500,
        1_500,
    ]
    assert Host(wake_us=[[1, 0.5]]).costs == Host(wake_us=0.5).costs


# Links and routes


# Contracts: C9
def test_links_are_in_order_from_the_device_outwards_under_the_names_they_are_given() -> None:
    hardware = machine(links={"pcie": link(), "nvme": link(peak_gb_per_s=2.0)})
    assert hardware.link_names == ("pcie", "nvme")
    assert [one.peak_gb_per_s for one in hardware.links] == [10.0, 2.0]


def test_links_may_stand_in_a_list_with_or_without_names() -> None:
    assert machine(links=[link(), link(name="nvme")]).link_names == ("0", "nvme")
    assert machine(links=(link(name="a"), link(name="b"))).link_names == ("a", "b")


def test_one_link_and_nothing_managed_is_the_default_route() -> None:
    assert machine().route == Route()


# Contracts: C9
def test_a_route_names_engines_cut_through_and_the_managed_ram_by_link() -> None:
    links = {"pcie": link(engines=2), "gather": link(), "nvme": link(head_bytes=4096)}
    hardware = machine(links=links, ram=Ram(2.0, "nvme"))
    assert hardware.route == Route((2, 1, 1), (0, 0, 4096), 2, 2 << 30)
    assert machine(links=links, ram=Ram(0.5, "gather")).route.ram_link == 1


# Contracts: C141
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"links": {"pcie": link(head_bytes=1)}}, "link 0, which ends at the device"),
        (
            {"links": {"pcie": link(), "nvme": link(head_bytes=1, engines=2)}},
            "link 1 has 2 engines",
        ),
        (
            {"ram": Ram(1.0, "pcie")},
            r"filled_by='pcie' must be a link that ends in RAM: this machine has none",
        ),
        (
            {"ram": Ram(1.0, "ssd"), "links": {"pcie": link(), "nvme": link()}},
            r"filled_by='ssd' must be .*: nvme",
        ),
        ({"links": {}}, r"hardware\.links={} must hold at least one link"),
        ({"links": None}, r"hardware\.links=None must hold at least one link"),
        ({"links": {"pcie": None}}, r"hardware\.links\.pcie=None must be a section"),
        (
            {"links": [link(name="x"), link(name="x")]},
            r"hardware\.links must have different names, got x, x",
        ),
    ],
)
def test_a_route_that_cannot_be_is_refused_with_the_machine(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        machine(**changes)


# Ranges


def with_link(**changes: Any) -> Hardware:
    return machine(links={"pcie": link(**changes)})


@pytest.mark.parametrize(
    ("build", "changes", "message"),
    [
        (
            with_link,
            {"peak_gb_per_s": "fast"},
            r"hardware\.links\.pcie\.peak_gb_per_s='fast' must be a number",
        ),
        (
            with_link,
            {"peak_gb_per_s": 0},
            r"hardware\.links\.pcie\.peak_gb_per_s=0 must be from 0\.001 to 100000; give",
        ),
        (
            with_link,
            {"peak_gb_per_s": 1e9},
            r"hardware\.links\.pcie\.peak_gb_per_s=1000000000\.0 must be from",
        ),
        (
            with_link,
            {"efficiency": 1.5},
            r"hardware\.links\.pcie\.efficiency=1\.5 must be .* to 1; give a share",
        ),
        (with_link, {"efficiency": 0}, r"hardware\.links\.pcie\.efficiency=0 must be from 0\.001"),
        (with_link, {"overhead_us": -1}, r"hardware\.links\.pcie\.overhead_us=-1 must be"),
        (
            with_link,
            {"overhead_us": 1e9},
            r"hardware\.links\.pcie\.overhead_us=1000000000\.0 must be .*; give micro",
        ),
        (
            with_link,
            {"engines": 0},
            r"hardware\.links\.pcie\.engines=0 must be a whole number >= 1",
        ),
        (with_link, {"engines": 1000}, r"hardware\.links\.pcie\.engines=1000 must be from 1 to 64"),
        (
            with_link,
            {"head_bytes": -1},
            r"hardware\.links\.pcie\.head_bytes=-1 must be a whole number >= 0",
        ),
        (
            compute,
            {"peak_tflops": 0},
            r"hardware\.compute\.peak_tflops=0 must be from 1e-06 to 1e\+06",
        ),
        (
            compute,
            {"memory_gb_per_s": 1e9},
            r"hardware\.compute\.memory_gb_per_s=1000000000\.0 must be from",
        ),
        (
            compute,
            {"memory_efficiency": 2},
            r"hardware\.compute\.memory_efficiency=2 must be .*; give a share",
        ),
        (
            compute,
            {"expert_launches": 1.5},
            r"hardware\.compute\.expert_launches=1\.5 must be a whole number",
        ),
        (cpu, {"memory_gb_per_s": 0}, r"hardware\.cpu\.memory_gb_per_s=0 must be from"),
        (cpu, {"round_trip_us": None}, r"hardware\.cpu\.round_trip_us=None must be a number"),
        (
            Host,
            {"wake_us": -1},
            r"hardware\.host\.wake_us=-1 must be from 0 to 1e\+06; give microseconds",
        ),
        (Host, {"wake_us": [[2, 1], [1, 1]]}, r"wake_us: the arguments \[2, 1\] must ascend"),
        (Host, {"wake_us": [[2, 1e7]]}, r"wake_us=10000000\.0 must be from 0 to 1e\+06"),
        (
            Ram,
            {"capacity_gib": 0, "filled_by": "nvme"},
            r"hardware\.ram\.capacity_gib=0 must be from",
        ),
        (machine, {"memory_gib": "24GiB"}, r"hardware\.memory_gib='24GiB' must be a number"),
        (machine, {"memory_gib": 1e9}, r"hardware\.memory_gib=1000000000\.0 must be from"),
        (machine, {"prediction_us": -1}, r"hardware\.prediction_us=-1 must be"),
        (
            machine,
            {"compute": None},
            r"hardware\.compute of m must be a section with its _target_, got None",
        ),
        (machine, {"ram": 24}, r"hardware\.ram of m must be a section"),
        (
            machine,
            {"validated": "yes"},
            r"hardware\.validated='yes' must be none, or a section with its _target_",
        ),
    ],
)
def test_a_machine_that_cannot_be_is_refused_by_the_name_of_its_key(
    build: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(**changes)


# The files


@pytest.mark.alike
@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_named_as_its_file_and_says_where_its_figures_come_from(name: str) -> None:
    hardware = loaded(name)
    assert hardware.name == name
    assert len(hardware.source) > 20
    text = (ROOT / "conf" / "hardware" / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")


def test_a_machine_with_a_drive_is_the_same_machine_with_a_link_and_a_tier_more() -> None:
    near, far = loaded("rtx4090_pcie4"), loaded("rtx4090_nvme")
    assert far.links[0] == near.links[0]
    assert far.link_names == ("pcie", "nvme")
    assert far.compute == near.compute
    assert (far.route.ram_link, far.route.ram_bytes) == (1, 24 << 30)


def test_on_unified_memory_there_is_one_link_from_storage() -> None:
    assert loaded("jetson_agx_orin").link_names == ("nvme",)


@pytest.mark.parametrize(
    ("key", "value"),
    [("gib", 0), ("page_kib", 0), ("page_kib", 1e7), ("in_us", -1), ("out_us", 1e7)],
)
def test_a_swap_out_of_its_range_is_refused_with_its_key(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"hardware\.swap\.{key}"):
        Swap(**({"gib": 1.0, "page_kib": 4.0, "in_us": 1.0, "out_us": 1.0} | {key: value}))


TWO = Devices(2, "layers", Peer(10.0, 3.0))
PACE = (
    "engines with a pace of their own are of one device, and nobody slows them; leave out one or"
    " the other"
)


def test_parties_that_slow_each_other_keep_a_part_of_their_pace_in_millionths() -> None:
    """Three times as long is a third of the pace; once as long is no rival at all."""
    slowed = {"compute": {"pcie": 3.0, "cpu": 1}, "pcie": {"cpu": 1.6}}
    hardware = machine(beside=slowed, cpu=cpu())
    kept = {(COMPUTE, FIRST_LINK): 333_333, (FIRST_LINK, CPU): 625_000}
    shared = SharedMemory(50.0, ("compute", "pcie"), "as_drawn")
    drawing = replace(hardware, shared_memory=shared)
    # The device draws 200 x 0.5 GB/s, the link 10 x 0.5.
    draws = {COMPUTE: 1e11, FIRST_LINK: 5e9}
    for found, expected in (
        (hardware.contention, Contention(1, kept)),
        (drawing.contention, Contention(1, kept, 5e10, draws)),
    ):
        assert found is not None
        assert vars(found) == vars(expected)
    always = replace(shared, slows="always")
    assert machine(shared_memory=always).contention is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"beside": {"nvme": {"cpu": 2}}}, "beside has nvme; those of m are compute, pcie"),
        (
            {"beside": {"pcie": {"cpu": 2, "x": 2}}},
            "beside.pcie has cpu, x; those of m are compute, pcie",
        ),
        (
            {"shared_memory": SharedMemory(9.0, ("cpu", "pcie"))},
            "shared_memory.parties has cpu; those of m are compute, pcie",
        ),
        (
            {"forecasting": Forecasting("cpu")},
            "forecasting.on=cpu, but hardware m has no cpu section",
        ),
        (
            {"measured": Measured(copy_us={"z": [[1, 1.0]], "a": [[1, 1.0]]})},
            "measured.copy_us has a, z; the links of m are pcie",
        ),
        (
            {"links": {"pcie": link(), "nvme": link(slot_us=1.5)}},
            "links.nvme.slot_us=1.5: slots are the device's, where pcie ends; give it there",
        ),
        (
            {
                "links": {"pcie": link(wake_us=2.0)},
                "beside": {"pcie": {"compute": 1.5}},
            },
            f"links.pcie.wake_us=2.0 of m does not go with hardware.beside and shared_memory: {PACE}",
        ),
        (
            {"links": {"pcie": link(wake_us=2.0)}, "devices": TWO},
            f"links.pcie.wake_us=2.0 of m does not go with hardware.devices: {PACE}",
        ),
        (
            {"swap": Swap(1.0, 4.0, 1.0, 1.0), "devices": TWO},
            "swap of m is of one device; set hardware.swap=null, or hardware.devices=null",
        ),
        (
            {"ram": Ram(1.0, "pcie")},
            "ram.filled_by='pcie' must be a link that ends in RAM: this machine has none (a single"
            " link ends at the device); set ram to null",
        ),
    ],
    ids=str,
)
def test_parts_that_do_not_go_together_are_told_in_full(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^hardware.{re.escape(told)}$"):
        machine(**changes)


def test_what_an_option_needs_is_enough() -> None:
    both = {"beside": {"pcie": {"cpu": 2}}, "forecasting": Forecasting("cpu"), "cpu": cpu()}
    found = machine(shared_memory=SharedMemory(9.0, ("cpu", "pcie")), **both)
    assert [found.predicts_later(sites) for sites in (0, 1)] == [False, True]
    assert machine(prediction_us=1.0).predicts_later(0)
    on = machine(
        forecasting=Forecasting("compute"), measured=Measured(copy_us={"pcie": [[1, 9.0]]})
    )
    assert (on.predicts_later(1), on.hop_ns(0, 1)) == (False, 9_000)
    assert machine(links={"pcie": link(slot_us=1.5)}).links[0].slot_us == 1.5
    assert machine().unpinned().links[0].efficiency == 0.25
