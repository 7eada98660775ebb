"""The catalogue's machines: what papers' presets must give back, and what all have in common."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from sim.machine.hardware import Hardware
from sim.machine.roofline import Roofline
from sim.setup.sections import make_object
from sim.values.places import ROOT
from sim.values.types import Step

FACTS = ROOT.parent / "shared" / "facts" / "hardware.csv"
FOLDER = ROOT / "conf" / "hardware"
MACHINES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "generic")
DRIVES = ("nvme", "sata", "ufs", "microsd")
"""What links from a drive are called."""
MIXTRAL_EXPERT = 352_321_536
IN_FACTS = {
    "RTX 4090": ("rtx4090_pcie4", "rtx4090_nvme", "rtx4090_hobbit"),
    "RTX 3090": ("rtx3090_pcie4", "rtx3090_pcie3"),
    "GTX 1080 Ti": ("gtx1080ti_pcie3", "gtx1080ti_pcie1"),
    "RTX A6000": ("rtx_a6000_pcie4",),
    "A100 80GB SXM": ("a100_sxm_pcie4",),
    "H100 SXM": ("h100_sxm_pcie5",),
    "H200 SXM": ("h200_sxm_pcie5",),
    "Jetson AGX Orin 32GB (developer kit)": ("jetson_agx_orin",),
    "Jetson TX2": ("jetson_tx2",),
    "Raspberry Pi 4B 8GB": ("raspberry_pi_4b",),
    "Apple M2 Ultra": ("m2_ultra",),
    "Apple M3 Max": ("m3_max",),
    "Apple M4 Max": ("m4_max",),
    "Apple M4": ("m4",),
}


@cache
def option(group: str, name: str) -> Any:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return make_object(compose(f"{group}/{name}")[group])


def machine(name: str) -> Hardware:
    return option("hardware", name)  # type: ignore[no-any-return]


def layer_ms(name: str, precision: str) -> float:
    """A decoded token's layer of Mixtral with both experts resident, host time included, in ms."""
    durations = Roofline(option("model", "mixtral_8x7b"), machine(name), (precision,))
    step = Step(0, 0, 1, (0,), 1, True, (), ())
    return (
        durations.dense_ns(step)[0] + durations.host.sync_ns + 2 * durations.expert_ns(0, 0, 1)
    ) / 1e6


# Presets of papers


def test_hobbits_4090_computes_a_layer_in_3_ms_and_loads_two_experts_in_22() -> None:
    """Sections 2.1 and 2.2: the load is 85.5 % of the load and the computation after it."""
    assert layer_ms("rtx4090_hobbit", "fp16") == pytest.approx(3.0, abs=0.001)
    link = machine("rtx4090_hobbit").links[0]
    assert 2 * link.hop_ns(MIXTRAL_EXPERT) / 1e6 == pytest.approx(22.0, abs=0.05)
    cpu = machine("rtx4090_hobbit").cpu
    assert cpu is not None
    assert cpu.operation_ns(0, MIXTRAL_EXPERT) / 1e6 == pytest.approx(5.02, abs=0.01)


def test_hobbits_orin_loads_two_int8_experts_in_117_ms_which_is_94_5_percent_of_a_layer() -> None:
    load_ms = 2 * machine("jetson_agx_orin_hobbit").links[0].hop_ns(MIXTRAL_EXPERT // 2) / 1e6
    assert load_ms == pytest.approx(117.4, abs=0.1)
    assert load_ms / (load_ms + layer_ms("jetson_agx_orin_hobbit", "int8")) == pytest.approx(
        0.945, abs=0.0005
    )


@pytest.mark.parametrize(
    ("name", "dense_ms", "sparse_ms"),
    [
        ("h100_floe", 0.169, 0.103),
        ("a100_floe", 0.253, 0.155),
        ("rtx_a6000_floe", 0.524, 0.263),
        ("rtx3090_floe", 0.542, 0.283),
    ],
)
def test_floes_machines_compute_its_experts_in_the_times_of_its_table(
    name: str, dense_ms: float, sparse_ms: float
) -> None:
    """Table 1, at sparsity 0 and 0.9, within 5 %.

    At 0 all three matrices are read, at 0.9 the up projection and a tenth of the others.
    """
    compute = machine(name).compute
    times = [
        compute.operation_ns(0, MIXTRAL_EXPERT * (1 + 2 * active) / 3, compute.expert_launches)
        / 1e6
        for active in (1.0, 0.1)
    ]
    assert times == pytest.approx([dense_ms, sparse_ms], rel=0.05)


def test_an_expert_takes_nearly_15_ms_on_floes_pc_and_6_ms_on_fates() -> None:
    assert machine("rtx3090_floe").links[0].hop_ns(MIXTRAL_EXPERT) / 1e6 == pytest.approx(
        15.0, abs=0.01
    )
    assert machine("rtx3090_fate").links[0].hop_ns(17_301_504) / 1e6 == pytest.approx(
        6.0, abs=0.002
    )


# All of them


@pytest.mark.parametrize("name", MACHINES)
def test_every_figure_of_a_machine_stands_beside_where_it_comes_from(name: str) -> None:
    """Each number in the file that is not 0 has a comment.

    What a file takes over from another has its comment there.
    """
    for text in (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        value, _, comment = text.partition("#")
        key, _, figure = value.partition(":")
        if figure.strip().replace(".", "").isdigit() and float(figure) and key.strip() != "engines":
            assert comment.strip(), text
    assert machine(name).name == name


def test_pageable_memory_does_not_slow_the_reads_of_a_drive() -> None:
    """C65: on unified memory transformers and fiddler read the drive at half its rate."""
    found = [one for one in map(machine, MACHINES) if one.links[0].name in DRIVES]
    assert {one.name for one in found} >= {"m4", "jetson_agx_orin_hobbit", "oneplus_15r_bigmoe"}
    assert all(one.unpinned() == one for one in found)
    assert all(one.is_unified for one in found)


@pytest.mark.skipif(
    not Path(FACTS).exists(), reason="the table of facts is not part of the project"
)
def test_machines_have_the_memory_and_the_bandwidth_of_the_table_of_facts() -> None:
    with FACTS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["device"] not in ("Storage", "Generic")]
    assert {row["device"] for row in rows} == set(IN_FACTS)
    bandwidth = {
        row["device"]: float(row["value"]) for row in rows if row["metric"] == "memory_bandwidth"
    }
    for device, names in IN_FACTS.items():
        for name in names:
            assert machine(name).compute.memory_gb_per_s == bandwidth[device], name


def test_any_other_machine_takes_three_figures() -> None:
    given = [
        "hardware.memory_gib=16",
        "hardware.links.link.peak_gb_per_s=16",
        "hardware.compute.memory_gb_per_s=320",
    ]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        generic = make_object(
            compose("config", ["hardware=generic", "output_dir=x", *given]).hardware,
        )
    assert (generic.memory_bytes, generic.links[0].bytes_per_s) == (16 << 30, 12.8e9)
    assert generic.compute.operation_ns(0, 272_000_000, 0) == 1_000_000
