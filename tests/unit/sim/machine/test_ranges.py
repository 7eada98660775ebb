"""Every figure of a machine has a range: its ends are taken, and what is beyond them is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sim.machine.attention import LatentAttention
from sim.machine.compute import Compute, Cpu
from sim.machine.devices import Devices, Peer
from sim.machine.hardware import Hardware
from sim.machine.link import Link
from sim.machine.link_parts import Gather, Pages, Reads, Scattered, Unpack
from sim.machine.measured import Measured
from sim.machine.model import Model
from sim.machine.parts import Forecasting, Host, Ram, SharedMemory, Swap

Make = Callable[..., Any]

RATE, US, SHARE = "10**9 bytes a second", "microseconds", "a share of the peak"
COMPUTE = partial(Compute, 2.0, 0.5, 200.0, 0.5, 1.0, 2, 3, 1)
LINK: dict[str, Any] = {
    "peak_gb_per_s": 10.0,
    "efficiency": 0.5,
    "overhead_us": 6.0,
    "name": "pcie",
}
DRIVE: dict[str, Any] = {"block_bytes": 4096, "queue_depth": 1, "latency_us": 9.0}
ROWS = {"form": "staged", "threads": 1, "piece_bytes": 10, "rates": [["staged", 1, 10, 0.5]]}
PARTIES = {"gb_per_s": 9.0, "parties": ("compute", "pcie")}
MACHINE: dict[str, Any] = {
    "name": "m",
    "preset": "roofline",
    "validated": "none",
    "memory_gib": 1e6,
    "reserved_gib": 0.0,
    "links": (Link(10.0, 0.5, 6.0),),
    "compute": COMPUTE(),
    "source": "a test",
}
SWAP = {"gib": 1.0, "page_kib": 4.0, "in_us": 1.0, "out_us": 1.0}


def compute(**changes: Any) -> Compute:
    names = ("peak_tflops", "flops_efficiency", "memory_gb_per_s", "memory_efficiency", "launch_us")
    launches = {"dense_launches": 2, "expert_launches": 3, "tail_launches": 1}
    values: dict[str, Any] = dict(zip(names, (2.0, 0.5, 200.0, 0.5, 1.0), strict=True))
    return Compute(**(values | launches | changes))


def cpu(**changes: Any) -> Cpu:
    names = ("peak_tflops", "flops_efficiency", "memory_gb_per_s", "memory_efficiency")
    values: dict[str, Any] = dict(zip(names, (2.0, 0.5, 200.0, 0.5), strict=True))
    return Cpu(**(values | {"round_trip_us": 1.0} | changes))


def of(kind: Make, values: dict[str, Any], **changes: Any) -> Any:
    return kind(**(values | changes))


LINKS, READS = partial(of, Link, LINK), partial(of, Reads, DRIVE)
PAGES = partial(of, Pages, {"capacity_gib": 1.0, "gb_per_s": 9.0})
UNPACK = partial(of, Unpack, {"gb_per_s": 9.0})
GATHERS = {"threads": 1, "gb_per_s_per_thread": 9.0, "dram_gb_per_s": 9.0, "piece_bytes": 10}
GATHER, SCATTERED = partial(of, Gather, GATHERS), partial(of, Scattered, ROWS)
SWAPS, WHOLE = partial(of, Swap, SWAP), partial(of, Hardware, MACHINE)

DEVICES = partial(of, Devices, {"count": 2, "split": "layers", "peer": Peer(1.0, 1.0)})

RANGES: list[tuple[Make, str, float, float, str, str]] = [
    (
        compute,
        "hardware.compute.peak_tflops",
        1e-6,
        1e6,
        "1e-06 to 1e+06",
        "10**12 operations a second",
    ),
    (compute, "hardware.compute.memory_gb_per_s", 1e-3, 1e5, "0.001 to 100000", RATE),
    (compute, "hardware.compute.flops_efficiency", 1e-3, 1, "0.001 to 1", SHARE),
    (compute, "hardware.compute.memory_efficiency", 1e-3, 1, "0.001 to 1", SHARE),
    (compute, "hardware.compute.launch_us", 0, 1e6, "0 to 1e+06", US),
    (cpu, "hardware.cpu.peak_tflops", 1e-6, 1e6, "1e-06 to 1e+06", "10**12 operations a second"),
    (cpu, "hardware.cpu.memory_gb_per_s", 1e-3, 1e5, "0.001 to 100000", RATE),
    (cpu, "hardware.cpu.round_trip_us", 0, 1e7, "0 to 1e+07", US),
    (LINKS, "hardware.links.pcie.peak_gb_per_s", 1e-3, 1e5, "0.001 to 100000", RATE),
    (LINKS, "hardware.links.pcie.efficiency", 1e-3, 1, "0.001 to 1", SHARE),
    (LINKS, "hardware.links.pcie.overhead_us", 0, 1e7, "0 to 1e+07", US),
    (LINKS, "hardware.links.pcie.per_call_us", 0, 1e7, "0 to 1e+07", US),
    (LINKS, "hardware.links.pcie.slot_us", 0, 1e7, "0 to 1e+07", US),
    (LINKS, "hardware.links.pcie.wake_us", 0, 1e7, "0 to 1e+07", US),
    (
        LINKS,
        "hardware.links.pcie.pageable",
        1e-3,
        1,
        "0.001 to 1",
        "a share of the bandwidth from pinned memory",
    ),
    (LINKS, "hardware.links.pcie.copy_gb_per_s", 1e-3, 1e5, "0.001 to 100000", RATE),
    (READS, "reads.latency_us", 0, 1e7, "0 to 1e+07", US),
    (READS, "reads.fault_us", 0, 1e6, "0 to 1e+06", US),
    (READS, "reads.scattered_gb_per_s", 1e-3, 1e5, "0.001 to 100000", RATE),
    (PAGES, "page_cache.capacity_gib", 1e-6, 1e6, "1e-06 to 1e+06", "GiB"),
    (PAGES, "page_cache.gb_per_s", 1e-3, 1e5, "0.001 to 100000", RATE),
    (PAGES, "page_cache.overhead_us", 0, 1e7, "0 to 1e+07", US),
    (UNPACK, "unpack.gb_per_s", 1e-3, 1e5, "0.001 to 100000", RATE),
    (UNPACK, "unpack.bits", 8, 32, "8 to 32", "bits of a weight that is written out"),
    (UNPACK, "unpack.overhead_us", 0, 1e7, "0 to 1e+07", US),
    (GATHER, "gather.gb_per_s_per_thread", 1e-3, 1e5, "0.001 to 100000", RATE),
    (GATHER, "gather.dram_gb_per_s", 1e-3, 1e5, "0.001 to 100000", RATE),
    (SCATTERED, "scattered.choose_us", 0, 1e6, "0 to 1e+06", US),
    (Host, "hardware.host.sync_us", 0, 1e6, "0 to 1e+06", US),
    (Host, "hardware.host.issue_us", 0, 1e6, "0 to 1e+06", US),
    (Host, "hardware.host.wake_us", 0, 1e6, "0 to 1e+06", US),
    (Host, "hardware.host.post_us", 0, 1e6, "0 to 1e+06", US),
    (Host, "hardware.host.load_us", 0, 1e6, "0 to 1e+06", US),
    (Host, "hardware.host.load_gb_per_s", 1e-3, 1e5, "0.001 to 100000", RATE),
    (
        partial(Ram, filled_by="nvme"),
        "hardware.ram.capacity_gib",
        1e-6,
        1e6,
        "1e-06 to 1e+06",
        "GiB",
    ),
    (
        partial(of, SharedMemory, PARTIES),
        "hardware.shared_memory.gb_per_s",
        1e-3,
        1e5,
        "0.001 to 100000",
        RATE,
    ),
    (SWAPS, "hardware.swap.gib", 1e-6, 1e6, "1e-06 to 1e+06", "GiB"),
    (SWAPS, "hardware.swap.page_kib", 1e-3, 1e6, "0.001 to 1e+06", "KiB"),
    (SWAPS, "hardware.swap.in_us", 0, 1e6, "0 to 1e+06", US),
    (SWAPS, "hardware.swap.out_us", 0, 1e6, "0 to 1e+06", US),
    (WHOLE, "hardware.memory_gib", 1e-6, 1e6, "1e-06 to 1e+06", "GiB"),
    (WHOLE, "hardware.reserved_gib", 0, 1e6, "0 to 1e+06", "GiB"),
    (WHOLE, "hardware.prediction_us", 0, 1e7, "0 to 1e+07", US),
    (DEVICES, "hardware.devices.state_bits", 1, 64, "1 to 64", "bits of an activation"),
    (
        partial(Peer, overhead_us=1.0),
        "hardware.devices.peer.gb_per_s",
        1e-3,
        1e5,
        "0.001 to 100000",
        RATE,
    ),
    (partial(Peer, 1.0), "hardware.devices.peer.overhead_us", 0, 1e7, "0 to 1e+07", US),
    (Measured, "hardware.measured.fixed_us", 0, 1e7, "0 to 1e+07", US),
]


@pytest.mark.parametrize(
    ("make", "place", "low", "high", "told", "unit"), RANGES, ids=[one[1] for one in RANGES]
)
def test_the_ends_of_a_range_are_taken_and_what_is_beyond_them_is_refused(
    make: Make, place: str, low: float, high: float, told: str, unit: str
) -> None:
    key = place.rpartition(".")[2]
    for value in (low, high):
        make(**{key: value})
    for value in (low * 0.999 if low else -1e-9, high * 1.001):
        with pytest.raises(
            ValueError,
            match=f"^{re.escape(f'{place}={value!r} must be from {told}; give {unit}')}$",
        ):
            make(**{key: value})


SIZES = {
    "sites": 3,
    "experts": 4,
    "top_k": 1,
    "hidden": 8,
    "expert_intermediate": 16,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 4,
    "vocab": 10,
    "expert_matrices": 3,
}
MORE = (
    "expert_biases",
    "shared_intermediate",
    "leading_dense_layers",
    "dense_layers_per_site",
    "dense_intermediate",
    "encoder_sites",
    "other_site_params",
    "other_params",
    "null_experts",
)
MODEL = partial(of, Model, SIZES | {"name": "small", "source": "a test"})
LATENTS = ("query_rank", "kv_rank", "rope_dim", "nope_dim", "value_dim")
LATENT = partial(of, LatentAttention, dict.fromkeys(LATENTS, 3))
LAUNCHES = ("dense_launches", "expert_launches", "tail_launches", "dequantise_launches")
COUNTS: list[tuple[Make, str, int]] = [
    *((compute, f"hardware.compute.{name}", 0) for name in LAUNCHES),
    (LINKS, "hardware.links.pcie.engines", 1),
    (LINKS, "hardware.links.pcie.calls", 1),
    (LINKS, "hardware.links.pcie.head_bytes", 0),
    (LINKS, "hardware.links.pcie.call_bytes", 0),
    (READS, "reads.block_bytes", 512),
    (READS, "reads.queue_depth", 1),
    (GATHER, "gather.threads", 1),
    (GATHER, "gather.piece_bytes", 1),
    (SCATTERED, "scattered.threads", 1),
    (SCATTERED, "scattered.piece_bytes", 1),
    (DEVICES, "hardware.devices.count", 2),
    (partial(Forecasting, on="cpu"), "hardware.forecasting.launches", 0),
    *((MODEL, f"model.{name}", 1) for name in SIZES if name not in ("experts", "expert_matrices")),
    *((MODEL, f"model.{name}", 0) for name in MORE),
    *((LATENT, f"model.latent.{name}", 1) for name in LATENTS if name != "query_rank"),
    (LATENT, "model.latent.query_rank", 0),
]


@pytest.mark.parametrize(("make", "place", "least"), COUNTS, ids=[one[1] for one in COUNTS])
def test_a_count_is_whole_and_its_least_is_taken(make: Make, place: str, least: int) -> None:
    key = place.rpartition(".")[2]
    make(**{key: least})
    with pytest.raises(
        ValueError, match=f"^{place}={least - 1} must be a whole number >= {least}$"
    ):
        make(**{key: least - 1})
    with pytest.raises(ValueError, match=f"^{place}={least + 0.5} must be a whole number in"):
        make(**{key: least + 0.5})


def test_counts_that_are_a_slip_are_refused() -> None:
    compute(dense_launches=100_000)
    LINKS(engines=64)
    DEVICES(count=16)
    for make, key, value, told in (
        (
            compute,
            "dense_launches",
            100_001,
            "must be from 0 to 100000; give launches of one operation",
        ),
        (LINKS, "engines", 65, "must be from 1 to 64; give the transfers that it serves at once"),
        (DEVICES, "count", 17, "must be from 2 to 16; give devices; one device: devices=null"),
    ):
        with pytest.raises(ValueError, match=f"{key}={value} {told}$"):
            make(**{key: value})


def test_the_reserve_may_be_all_of_the_memory_and_no_more() -> None:
    WHOLE(memory_gib=2.0, reserved_gib=2.0)
    with pytest.raises(ValueError, match=r"^hardware\.reserved_gib=2\.5 exceeds"):
        WHOLE(memory_gib=2.0, reserved_gib=2.5)


@pytest.mark.parametrize(("key", "low"), [("expert", 1), ("dense", 1)])
def test_a_table_of_times_says_of_how_many_parameters(key: str, low: int) -> None:
    table = {"expert_us": {"fp16": [[1, 1.0]]}} if key == "expert" else {"dense_us": [[1, 1.0]]}
    for params in (low, 1e13):
        Measured(**{f"{key}_params": params}, **table)  # type: ignore[arg-type]
    told = f"must be from 1 to 1e+13; give parameters of what {key}_us are the times of"
    for params in (0.999, 1.001e13):
        with pytest.raises(ValueError, match=re.escape(f"measured.{key}_params={params!r} {told}")):
            Measured(**{f"{key}_params": params}, **table)  # type: ignore[arg-type]


def test_a_model_has_one_expert_matrix_and_one_bit_at_least() -> None:
    MODEL(experts=1, expert_matrices=1, dense_bits=1, kv_bits=1.0)
    for key, value, kind in (
        ("experts", 0, "a whole number"),
        ("expert_matrices", 0, "a whole number"),
        ("dense_bits", 0.9, "a number"),
        ("kv_bits", 0.9, "a number"),
    ):
        with pytest.raises(ValueError, match=f"^model.{key}={value} must be {kind} >= 1$"):
            MODEL(**{key: value})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"top_k": 5}, "model.top_k=5 exceeds model.experts=4"),
        (
            {"null_experts": 4},
            "model.null_experts=4 must be below model.experts=4, which counts them",
        ),
        (
            {"fused_gate": True, "expert_matrices": 2},
            "model.fused_gate=true needs experts of three matrices, those of small have 2",
        ),
        (
            {"leading_dense_layers": 2, "dense_layers_per_site": 1},
            "model small: 3 layers without experts (leading_dense_layers=2,"
            " dense_layers_per_site=1) and dense_intermediate=0 must be both given or both 0",
        ),
        (
            {"dense_intermediate": 7},
            "model small: 0 layers without experts (leading_dense_layers=0,"
            " dense_layers_per_site=0) and dense_intermediate=7 must be both given or both 0",
        ),
        (
            {"gates_of": "a"},
            "model small: give both gates_of and sizes_of (a transplant), or neither",
        ),
        (
            {"sizes_of": "a"},
            "model small: give both gates_of and sizes_of (a transplant), or neither",
        ),
        ({"latent": 3}, "model.latent=3 must be null or a section with its _target_"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        MODEL(**changes)


def test_sizes_at_the_edge_of_a_rule_go_together() -> None:
    MODEL(top_k=4, null_experts=3, encoder_sites=2, fused_gate=True)
    MODEL(leading_dense_layers=1, dense_intermediate=1, gates_of="a", sizes_of="b")
    with pytest.raises(ValueError, match=r"^model\.encoder_sites=3 must be below model\.sites=3:"):
        MODEL(encoder_sites=3)
