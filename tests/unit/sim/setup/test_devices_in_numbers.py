"""What each of several devices holds and is built of, byte by byte, and what they refuse."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from sim.machine.ledger import Ledger
from sim.setup import on_devices
from sim.setup.on_devices import (
    check_devices_parts,
    durations_on,
    holds_all,
    ledger_on,
    ledgers_on,
)
from sim.values.units import GIB
from sim.workload.steps import Limits

LEDGER = Ledger(10, 11, 5, 12, 13, 14, 6, 7, 50, 8)
LIMITS: Any = Limits(7, 2, 0)
MODEL: Any = SimpleNamespace(
    sites=4,
    block_bytes=lambda site: 10 * (site + 1),
    head_params=100,
    dense_bits=4.5,
    dense_bytes=162,
    layers_at=lambda site: 1 + site % 2,
    kv_bytes_by_window=lambda sites: {0: sum(3 * (1 + site % 2) for site in sites)},
)
"""Blocks of 10, 20, 30 and 40 bytes, a head of 57 (450 bits), and 5 bytes besides; the sites have
1, 2, 1 and 2 layers.
"""


def machine(split: str, count: int = 2, **more: Any) -> Any:
    layers = split == "layers"
    devices = SimpleNamespace(
        split=split,
        count=count,
        has_layers=layers,
        is_dealt=split in ("layers", "owners"),
        device_of=lambda model: (0, 1, 1, 1),
        kv_sites=lambda model: [(0,), (1, 2, 3)] if layers else [(0, 1, 2, 3), ()],
        head=lambda model: 1,
        crossing_ns=lambda model, rows: 100 + rows,
        sum_ns=lambda model, rows: 200 + rows,
        links="own",
        others={},
        parts=count if split == "slices" else 1,
        services=count if more.get("links") == "shared" else 1,
    )
    vars(devices).update(more)
    return SimpleNamespace(devices=devices)


@pytest.fixture(autouse=True)
def _two_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    def each_alone(hardware: Any) -> list[Any]:
        return [
            SimpleNamespace(
                reserved_gib=1 + n, swap=None, memory_bytes=3 * GIB - 4000 * n, memory_gib=3
            )
            for n in range(hardware.devices.count)
        ]

    monkeypatch.setattr(on_devices, "each_alone", each_alone)


def test_a_device_of_layers_or_an_owner_holds_its_own_and_the_first_what_is_of_no_site() -> None:
    slots = {0: 1000, 1: 2000}
    parts = ledgers_on(machine("layers"), MODEL, LIMITS, LEDGER, slots)
    assert parts == [
        Ledger(10 + 5, 7 * 3, 5, 1000, 13, 14, GIB, 7, 0, 8),
        Ledger(20 + 30 + 40 + 57, 7 * 3 * 5, 5, 2000, 13, 14, 2 * GIB, 7, 50, 8),
    ]
    owners = ledgers_on(machine("owners"), MODEL, LIMITS, LEDGER, slots)
    assert owners == [
        Ledger(162, 7 * 3 * 6, 5, 1000, 13, 14, GIB, 7, 50, 8),
        Ledger(0, 0, 5, 2000, 13, 14, 2 * GIB, 7, 0, 8),
    ]
    for dense_bytes in (157, 150):
        few: Any = SimpleNamespace(**{**vars(MODEL), "dense_bytes": dense_bytes})
        first, _ = ledgers_on(machine("layers"), few, LIMITS, LEDGER, slots)
        assert first.dense_bytes == 10, "nothing besides"
    both = ledger_on(machine("layers"), MODEL, LIMITS, LEDGER, slots)
    assert both == Ledger(162, 126, 10, 3000, 26, 28, 3 * GIB, 14, 50, 16)


def test_devices_in_step_hold_equal_parts_rounded_up_and_copies_all_slots() -> None:
    slices = ledgers_on(machine("slices", 3), MODEL, LIMITS, LEDGER, {})
    assert slices == [Ledger(4, 4, 5, 4, 5, 5, 6, 7, 50, 8)] * 3
    copies = ledgers_on(machine("copies", 3), MODEL, LIMITS, LEDGER, {})
    assert copies == [Ledger(4, 4, 5, 12, 13, 14, 6, 7, 50, 8)] * 3


def test_the_device_that_cannot_hold_its_part_is_named() -> None:
    """The second has 1 GiB beside what is set aside, less 4000 bytes; it holds 197 besides."""
    fits = {0: 1, 1: GIB - 4000 - 147 - 105 - 97}
    ledger_on(machine("layers"), MODEL, LIMITS, LEDGER, fits)
    with pytest.raises(ValueError, match=r"^device 1 of 2: the device holds 3 GiB, but"):
        ledger_on(machine("layers"), MODEL, LIMITS, LEDGER, fits | {1: fits[1] + 1})
    much = Ledger(10, 11, 5, 6 * GIB, 13, 14, 6, 7, 50, 8)
    with pytest.raises(ValueError, match=r"^each device of 2: the device holds 3 GiB, but"):
        ledger_on(machine("slices"), MODEL, LIMITS, much, {})


def test_all_experts_are_the_stored_ones_each_with_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sites of two experts, the second of which is null, and a key that holds nothing."""
    geometry: Any = SimpleNamespace(
        device_of=(0, 0, 0, 1, 1, 1),
        slot_bytes=(5, 5, 5, 7, 7, 7),
        experts=2,
        null_experts=1,
        expert_of=lambda key: key % 3,
    )
    asked: list[Any] = []
    monkeypatch.setattr(on_devices, "all_slot_bytes", lambda given: 12)
    monkeypatch.setattr(
        on_devices, "make_ledger", lambda *words, slot_bytes: (*words[2:], slot_bytes)
    )
    monkeypatch.setattr(on_devices, "ledger_on", lambda *words: asked.append(words[2:]))
    assert holds_all(machine("layers"), MODEL, LIMITS, geometry) is True
    assert asked == [(LIMITS, (LIMITS, 12), {0: 5, 1: 7})]

    def refuses(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(on_devices, "ledger_on", refuses)
    assert holds_all(machine("layers"), MODEL, LIMITS, geometry) is False


@pytest.mark.parametrize("links", ["own", "shared"])
def test_durations_are_of_each_machine_or_of_one_that_shares_the_work(
    links: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OnLayers", "OnOwners", "InStep"):
        monkeypatch.setattr(
            on_devices, name, lambda *given, name=name, **named: (name, *given, named)
        )
    monkeypatch.setattr(on_devices, "replace", lambda machine, compute: compute)
    monkeypatch.setattr(on_devices, "faster", lambda compute, times: (compute, times))
    alone: Any = SimpleNamespace(reserved_gib=1, compute="c")
    monkeypatch.setattr(on_devices, "each_alone", lambda hardware: [alone] * 2)

    def made(split: str) -> Any:
        return durations_on(machine(split, links=links), MODEL, lambda one: ["alone", one])  # type: ignore[arg-type, return-value]

    each, is_shared = ["alone", alone], links == "shared"
    name, machines, of, head, shared, crossing, _ = made("layers")
    assert (name, machines, of, head, shared) == (
        "OnLayers",
        [each, each],
        (0, 1, 1, 1),
        1,
        is_shared,
    )
    assert crossing(5) == 105
    name, machines, shared, crossing, _ = made("owners")
    assert (name, machines, shared, crossing(6)) == ("OnOwners", [each, each], is_shared, 106)
    part = ["alone", ("c", 2)]
    for split, moved, parts in (("slices", part, 2), ("copies", each, 1)):
        name, computing, moving, named = made(split)
        assert (name, computing, moving) == ("InStep", part, moved)
        assert named.pop("sum_ns")(3) == 203
        assert named == {
            "parts": parts,
            "services": 2 if is_shared else 1,
            "layers_at": (1, 2, 1, 2),
        }


def parts(split: str, **more: Any) -> Any:
    values: dict[str, Any] = {
        "drafts": 0,
        "precisions": ("fp16",),
        "dense_slots": 0,
        "kv_allocation": "at_once",
        "encoder_sites": 0,
        "prefetch_budget": 3,
        "uses_cpu": False,
        "whole": True,
        "write_back": False,
        "others": {},
    }
    assert set(more) <= set(values)
    values |= more
    speculation = SimpleNamespace(layers_in_use=values["drafts"])
    return SimpleNamespace(
        hardware=machine(split, others=values["others"]),
        loader=SimpleNamespace(
            **{name: values[name] for name in ("dense_slots", "prefetch_budget", "write_back")}
        ),
        workload=SimpleNamespace(speculation=speculation, kv_allocation=values["kv_allocation"]),
        precision=SimpleNamespace(precisions=values["precisions"]),
        model=SimpleNamespace(encoder_sites=values["encoder_sites"]),
        placement=SimpleNamespace(uses_cpu=values["uses_cpu"]),
        payload=SimpleNamespace(whole=values["whole"]),
    )


ALL = ("layers", "owners", "slices", "copies")
DEALT, STEP = ALL[:2], ALL[2:]
SLOW = {"slow": "a device"}


@pytest.mark.parametrize(
    ("splits", "values", "told", "way"),
    [
        (ALL, {"dense_slots": 1}, "loader.dense_slots=1", "loader.dense_slots=0"),
        (
            ALL,
            {"kv_allocation": "growing"},
            "workload.kv_allocation=growing",
            "workload.kv_allocation=once",
        ),
        (ALL, {"encoder_sites": 1}, "model.encoder_sites=1", "a model without an encoder"),
        (ALL, {"whole": False}, "a payload that moves parts", "payload=whole"),
        (ALL, {"write_back": True}, "loader.write_back=true", "loader.write_back=false"),
        (
            DEALT,
            {"prefetch_budget": "within_layer"},
            "loader.prefetch_budget=within_layer",
            "loader.prefetch_budget to a number",
        ),
        (STEP, {"uses_cpu": True}, "a placement that computes on the CPU", "placement=load"),
        (STEP, {"drafts": 1}, "workload.draft_layers=1", "workload.draft_layers=0"),
    ],
)
def test_what_is_refused_is_refused_by_these_and_not_by_others(
    splits: tuple[str, ...], values: dict[str, Any], told: str, way: str
) -> None:
    workload: Any = None
    for split in ALL:
        for config in ({}, {"bounds": "none"}):
            check_devices_parts(parts(split), config, workload)
        with pytest.raises(ValueError, match=r"^bounds=max does not .*; choose bounds=none, or"):
            check_devices_parts(parts(split), {"bounds": "max"}, workload)
        if split not in splits:
            check_devices_parts(parts(split, **values), {}, workload)
            continue
        message = (
            f"{told} does not go with hardware.devices (split={split}); choose {way}, or set"
            " hardware.devices=null"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            check_devices_parts(parts(split, **values), {}, workload)


def test_drafts_go_with_equal_devices_of_layers_and_one_device_refuses_nothing() -> None:
    workload: Any = None
    check_devices_parts(parts("layers", drafts=1), {}, workload)
    check_devices_parts(parts("layers", others=SLOW), {}, workload)
    with pytest.raises(
        ValueError, match=r"^workload.draft_layers=1 on devices that differ .*draft_layers=0, or"
    ):
        check_devices_parts(parts("layers", drafts=1, others=SLOW), {}, workload)
    one = parts("slices", drafts=1)
    one.hardware.devices = None
    check_devices_parts(one, {"bounds": "max"}, workload)
