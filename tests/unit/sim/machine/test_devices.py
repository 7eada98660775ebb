"""Several devices of a machine: what a section may say, and which device has which layer."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from helpers.round_machine import small
from sim.machine.compute import Compute
from sim.machine.devices import (
    SPLITS,
    Device,
    Devices,
    Peer,
    device_of,
    each_alone,
    faster,
    route_of,
)
from sim.machine.hardware import Hardware
from sim.machine.link import Link
from sim.machine.link_parts import Pages, Reads
from sim.machine.model import Model
from sim.machine.parts import SharedMemory
from sim.values.types import Route
from sim.verbs import asking
from sim.verbs.names import names

COMPUTE = Compute(100.0, 1.0, 1000.0, 1.0, 4.0, 1, 1, 1)
LINK = Link(10.0, 1.0, 5.0, name="pcie")
PEER = Peer(10.0, 3.0)


def model(sites: int = 48, **rest: Any) -> Model:
    return Model("m", sites, 8, 2, 100, 16, 2, 2, 8, 1000, "test", **rest)


def devices(**given: Any) -> Devices:
    return Devices(**{"count": 2, "split": "layers", "peer": PEER} | given)


def machine(**given: Any) -> Hardware:
    values: dict[str, Any] = {"links": (LINK,), "compute": COMPUTE, "devices": devices()} | given
    return Hardware("box", "roofline", "none", 8.0, 0.5, source="test", **values)


# Contracts: C156
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"split": "rows"}, "split='rows'; allowed: layers, slices, copies, owners"),
        ({"links": "both"}, "links='both'; allowed: own, shared"),
        ({"peer": None}, "peer=None must be a section"),
        ({"shares": [1]}, r"shares=\[1\] must be 2 numbers above 0"),
        ({"shares": [1, 0]}, r"shares=\[1, 0\] must be 2 numbers above 0, one for each device, or"),
        ({"shares": [1, 1e6]}, "must be 2 numbers above 0"),
        ({"shares": [1, "1"]}, "must be 2 numbers above 0"),
        ({"others": None}, r"others has 0 devices of hardware\.devices\.count=2; the first device"),
        ({"split": "slices", "shares": [1, 1]}, "split=slices takes equal devices: set shares="),
        ({"split": "copies", "others": {"a": None}}, "split=copies takes equal devices"),
        (
            {"others": {"a": None, "b": None}},
            r"others has 2 devices of .*\.count=2; the first device",
        ),
    ],
)
def test_a_section_that_cannot_be_is_refused_with_its_key(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"hardware.devices.*{told}"):
        devices(**given)


# Contracts: C156
def test_every_split_is_a_word_of_ask_and_has_a_file() -> None:
    assert asking.SPLITS == SPLITS
    assert sorted(names("devices")) == sorted(["none", *(f"{split}_2" for split in SPLITS)])


# Contracts: C163
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"links": (LINK, replace(LINK, name="drive"))}, "hardware.links"),
        ({"links": (replace(LINK, slot_us=1.0),)}, "hardware.links.pcie.slot_us"),
        (
            {"shared_memory": SharedMemory(10.0, ("compute", "pcie"))},
            "hardware.shared_memory",
        ),
        ({"beside": {"compute": {"pcie": 2.0}}}, "hardware.beside"),
        (
            {"links": (replace(LINK, engines=2),), "devices": devices(split="slices")},
            "hardware.links.pcie.engines",
        ),
        ({"devices": devices(others={"other": LINK})}, "others.other=.*must be a section"),
    ],
)
def test_parts_of_a_machine_that_several_devices_refuse(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        machine(**given)


# Contracts: C157
@pytest.mark.parametrize(
    ("shares", "first", "head"),
    [((), 25, 1), ((24, 25), 24, 1), ((3, 1), 37, 1), ((48.5, 0.6), 48, 1), ((0.5, 0.5), 25, 1)],
)
def test_layers_go_by_shares_of_the_places_of_layers_and_head(
    shares: tuple[float, ...], first: int, head: int
) -> None:
    """48 layers have 49 places: the first device has those below its share of 49."""
    if first == 48:
        with pytest.raises(ValueError, match="leaves device 1 of 2 without a layer"):
            devices(shares=shares).device_of(model())
        return
    found = devices(shares=shares)
    assert found.device_of(model()) == (0,) * first + (1,) * (48 - first)
    assert found.head(model()) == head


def test_a_site_goes_with_its_layer_and_takes_the_dense_layers_before_it() -> None:
    """Three leading layers and five sites are eight layers and nine places: half is place 4.5, so
    layers 0 to 4 are on the first device, which are the first two sites.
    """
    leading = model(5, leading_dense_layers=3, dense_intermediate=16)
    assert devices().device_of(leading) == (0, 0, 1, 1, 1)
    assert devices(split="slices").device_of(leading) == ()


def test_three_devices_have_all_layers_in_order() -> None:
    found = devices(count=3, shares=(1, 2, 1)).device_of(model(11))
    assert found == (0,) * 3 + (1,) * 6 + (2,) * 2


# Contracts: C157 C169
def test_keys_and_values_are_where_their_layers_are_at_home_or_everywhere_in_part() -> None:
    model, peer = small(), Peer(1.0, 0.0)
    held = {
        split: Devices(2, split, peer).kv_sites(model)
        for split in ("layers", "owners", "slices", "copies")
    }
    everywhere = [(0, 1, 2), (0, 1, 2)]
    assert held == {
        "layers": [(0, 1), (2,)],
        "owners": [(0, 1, 2), ()],
        "slices": everywhere,
        "copies": everywhere,
    }


def test_keys_are_where_their_layers_are_or_with_their_owners() -> None:
    """Two sites of three experts and the place of a dense block; a third of them is home's."""
    small = replace(model(2), experts=3)
    assert device_of(machine(devices=None), small) == ()
    split = machine(devices=devices(shares=(1, 2)))
    assert device_of(split, small) == (0,) * 4 + (1,) * 4
    owned = machine(devices=devices(split="owners", shares=(1, 2)))
    assert device_of(owned, small) == (0, 1, 1, 0) * 2
    assert owned.link_names == ("pcie", "pcie_1")


# Contracts: C169
@pytest.mark.parametrize(
    ("shares", "homes"), [((), 4), ((1, 3), 2), ((3, 1), 6), ((1, 1e-3), None), ((0.5, 0.5), 4)]
)
def test_experts_go_by_shares_of_those_that_have_weights(
    shares: tuple[float, ...], homes: int | None
) -> None:
    found = devices(split="owners", shares=shares)
    if homes is None:
        with pytest.raises(ValueError, match="leaves device 1 of 2 without an expert of m"):
            found.owner_of(model())
        return
    sites = model().sites
    assert found.owner_of(model()) == ((0,) * homes + (1,) * (8 - homes) + (0,)) * sites
    stored = replace(model(), experts=10, null_experts=2)
    assert found.owner_of(stored) == ((0,) * homes + (1,) * (8 - homes) + (0,) * 3) * sites


# Contracts: C169
def test_by_use_home_owns_those_used_most_whatever_their_layer() -> None:
    """Two sites of three experts, and a third of all six is home's: the two most used."""
    small, ranked = replace(model(2), experts=3), ((1, 2), (1, 0), (0, 1), (0, 0), (1, 1), (0, 2))
    found = devices(split="owners", shares=(1, 2), order="use", ranked=ranked)
    assert found.owner_of(small) == (1, 1, 1, 0, 0, 1, 0, 0)
    with pytest.raises(ValueError, match=r"hardware\.devices\.order='use'; allowed: number"):
        devices(order="use")


def test_messages_have_the_bytes_of_the_rows_activations() -> None:
    """100 numbers of 16 bits are 200 B: 20 ns at 10 GB/s, and 3 us. Three devices send 4/3."""
    assert devices().crossing_ns(model(), 1) == 3_020
    assert devices(state_bits=32).crossing_ns(model(), 3) == 3_120
    assert devices(count=3, split="slices").sum_ns(model(), 1) == 3_000 + 27
    assert devices(split="copies").sum_ns(model(), 1) == 3_020


# Contracts: C158
def test_each_device_has_a_link_with_a_name_of_its_own_unless_they_share_it() -> None:
    slow = Device(4.0, 0.1, replace(COMPUTE, memory_gb_per_s=10.0), replace(LINK, engines=3))
    three = machine(devices=devices(count=3, others={"slow": slow}))
    assert three.link_names == ("pcie", "pcie_1", "pcie_2")
    assert [one.memory_gib for one in each_alone(three)] == [8.0, 8.0, 4.0]
    assert [one.links[0].name for one in each_alone(three)] == ["pcie"] * 3
    route = route_of(three, model(6))
    assert (route.engines, route.link_of) == ((1, 1, 3), device_of(three, model(6)))
    shared = machine(devices=devices(links="shared"))
    assert (shared.link_names, route_of(shared, model()).links) == (("pcie",), 1)
    in_step = machine(devices=devices(split="copies"))
    assert (in_step.link_names, route_of(in_step, model()).links) == (("pcie",), 1)


def test_a_machine_is_called_by_how_many_devices_it_has() -> None:
    assert machine().title == "2 x box (layers)"
    assert machine(devices=None).title == "box"
    assert (machine().all_memory_bytes, machine(devices=None).all_memory_bytes) == (
        16 << 30,
        8 << 30,
    )


# Contracts: C169
def test_experts_by_use_are_those_that_have_weights() -> None:
    """Of eight experts two have none: a trace that counts them, too, gives the others alone."""
    ranked = [(site, expert) for expert in range(8) for site in range(2)]
    owners = devices(split="owners", order="use", ranked=ranked).owner_of(model(2, null_experts=2))
    first, rest = (0, 0, 0, 1, 1, 1), (0, 0, 0)
    assert owners == (first + rest) * 2


def test_of_devices_without_a_layer_or_an_expert_the_first_is_told_with_all_shares() -> None:
    """Two of three devices have a thousandth; or there are fewer layers and experts than devices."""
    little, two = (1, 1e-3, 1e-3), replace(model(2), experts=2)
    for shares, of, told in (
        (little, model(), "[1, 0.001, 0.001] leaves device 1 of 3 without {}"),
        ((), two, "[1, 1, 1] leaves device 2 of 3 without {}"),
    ):
        sizes = (
            f"a layer with experts of m ({of.sites} sites)",
            f"an expert of m ({of.stored_experts} a layer)",
        )
        found = devices(count=3, shares=shares), devices(count=3, shares=shares, split="owners")
        for kind, ask, size in zip(
            found, (found[0].device_of, found[1].owner_of), sizes, strict=True
        ):
            assert kind.count == 3
            text = (
                f"hardware.devices.shares={told.format(size)}; give it a larger share, or set"
                " hardware.devices.count"
            )
            with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
                ask(of)


# Contracts: C156
def test_each_slots_expert_is_on_all_devices_that_have_copies() -> None:
    assert [devices(split=split).copies for split in SPLITS] == [1, 1, 2, 1]
    assert [machine(devices=devices(split=split)).copies for split in SPLITS] == [1, 1, 2, 1]
    assert (machine(devices=None).copies, devices().state_bits) == (1, 16)
    assert [devices(split=split).is_dealt for split in SPLITS] == [True, False, False, True]


def test_each_other_device_is_a_machine_of_its_own_figures_behind_a_link_of_the_same_name() -> None:
    slow = Device(
        4.0, 0.1, replace(COMPUTE, memory_gb_per_s=10.0), replace(LINK, engines=3, name="x")
    )
    first, last = each_alone(machine(devices=devices(others={"slow": slow})))
    assert first == machine(devices=None)
    assert last == replace(
        first,
        memory_gib=4.0,
        reserved_gib=0.1,
        compute=slow.compute,
        links=(replace(LINK, engines=3),),
    )
    route = route_of(machine(devices=devices(others={"slow": slow})), model(4))
    assert route == Route((1, 3), (0, 0), link_of=(0,) * 27 + (1,) * 9)


def test_a_part_of_a_device_has_a_part_of_the_time() -> None:
    twice = faster(COMPUTE, 2)
    assert twice == replace(COMPUTE, peak_tflops=200.0, memory_gb_per_s=2000.0)


def test_what_does_not_go_with_several_devices_is_told_with_its_value() -> None:
    """What divides a transfer beside its bytes does not go with devices in step."""
    reads = replace(LINK, reads=Reads(4096, 1, 9.0))
    for links, split, told in (
        ((replace(LINK, slot_us=1.5),), "layers", "links.pcie.slot_us (1.5)"),
        ((LINK, replace(LINK, name="drive")), "owners", "links (pcie, drive)"),
        ((replace(LINK, engines=2),), "copies", "links.pcie.engines (2)"),
        ((reads,), "slices", "links.pcie.reads (given)"),
    ):
        text = (
            f"hardware.{told} does not go with hardware.devices (split={split}); choose a"
            " machine without it, or one device (no gpus=, hardware.devices=null)"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            machine(links=links, devices=devices(split=split))
    machine(links=(reads,), devices=devices(split="layers"))
    machine(links=(replace(LINK, engines=2),), devices=devices(split="owners"))
    wrong = replace(LINK, page_cache=Pages(1.0, 9.0))
    with pytest.raises(
        ValueError, match=r"^hardware\.links\.pcie\.page_cache \(given\) does not go"
    ):
        machine(devices=devices(others={"other": Device(4.0, 0.1, COMPUTE, wrong)}))
