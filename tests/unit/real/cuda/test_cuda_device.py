"""The CUDA device on a runtime without a GPU, which refuses what a GPU might do in another order.

Oracles: the CPU device's logits, bit for bit; and under every expert that is computed the store's
own bytes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from hydra import compose, initialize_config_dir

import real.cuda.device
from helpers.fake_runtime import FakeRuntime
from helpers.usual import usual
from real.calibration.bench import DeviceBench
from real.cuda.device import CudaDevice
from real.cuda.runtime import CudaRuntime, DeviceError
from real.cuda.segments import Kind
from real.cuda.work import Captured, DeviceWork
from real.driver.machine import processor
from real.kernels.tiles import tiled_counts
from real.live.run import live_driver, prepare
from real.setup.execute import measure, replay_driver
from real.setup.prepare import Prepared, prepare_replay, read_request
from sim.core.slots import UNUSED
from sim.setup.configure import configure
from sim.traces.trace import Trace
from sim.values.places import ROOT
from sim.values.record import Record

NVME = (
    "hardware=rtx4090_nvme",
    "hardware.ram.capacity_gib=0.005",
    "hardware.links.nvme.head_bytes=30000",
)
"""A managed RAM tier of 58 experts, and a link that hands on early."""
STAND_IN = ("engine.weights=stand_in", "engine.stand_in_gib=0.004")
"""Experts without a model, as a GPU's replays have them."""
FREE = ("engine.links=free", "engine.compute=free")
Prepare = Callable[..., Prepared]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture
def runtimes(monkeypatch: pytest.MonkeyPatch) -> list[FakeRuntime]:
    """The runtimes of the devices made in a test."""
    made: list[FakeRuntime] = []

    def make() -> FakeRuntime:
        made.append(FakeRuntime(strict=True, late=2))
        return made[-1]

    monkeypatch.setattr(real.cuda.device, "CudaRuntime", make)
    return made


@pytest.fixture
def prepared(stores: Path, bundled_trace: Trace, runtimes: list[FakeRuntime]) -> Prepare:
    def make(*overrides: str, way: str = "replay") -> Prepared:
        fixed = (
            f"input={way}",
            f"engine.store_dir={stores}",
            "output_dir=unused",
            "budget.resident_share=0.25",
            "live.prompt_tokens=5",
            "live.new_tokens=4",
            "live.sequences=1",
            "trace.path=capture/assets/traces/tiny_mixtral",
            "trace.max_sequences=2",
            *FREE,
        )
        request = read_request(configure(*fixed, *overrides, config="real")[0], "system")
        return (
            prepare(request, bundled_trace)
            if way == "live"
            else prepare_replay(request, bundled_trace)
        )

    return make


Look = Callable[[int, torch.Tensor | None], None]


def look_at(device: CudaDevice, before: Look, after: Look = lambda key, output: None) -> None:
    """Call ``before(key, None)`` when an expert is given to the stream, ``after`` behind that.

    ``after`` gets its output where a graph computes it.
    """
    launch, compute = device._launch, device._compute_expert

    def launched(captured: Captured, kind: int, keys: Sequence[int]) -> tuple[int, torch.Tensor]:
        # Which of them are computed is known behind the launch, and nothing moves before it ends.
        count, outputs_JH = launch(captured, kind, keys)
        for key, output_H in zip(keys[:count], outputs_JH, strict=True):
            before(key, None)
            after(key, output_H)
        return count, outputs_JH

    def computed(key: int, rows: int) -> None:
        before(key, None)
        compute(key, rows)
        after(key, None)

    device._launch = launched  # type: ignore[method-assign]
    device._compute_expert = computed  # type: ignore[method-assign]


def watch(device: CudaDevice) -> list[int]:
    """Compare a slot's bytes with the store's before each expert is computed from it.

    Return a list that gets the keys computed.
    """
    seen: list[int] = []
    whole = device._weights.store.path.read_bytes()

    def look(key: int, _: torch.Tensor | None) -> None:
        size, offset = device._bytes_of(key), device.homes.offset(key)
        stored = whole[offset : offset + size]
        held = device.arrivals.held(key)
        if held is not None:
            width = device.arrivals.pair_bytes(key)
            stored = b"".join(stored[width * neuron : width * (neuron + 1)] for neuron in held)
        slot = torch.cat(
            [*device.slots.of(key).parts(0, len(stored)), torch.empty(0, dtype=torch.uint8)]
        )
        assert slot.numpy().tobytes() == stored, f"{key} holds other bytes"
        if device.homes.ram is not None and len(seen) % 8 == 0:
            check_ram(device, whole)
        seen.append(key)
        device.slots.check()

    look_at(device, look)
    return seen


def check_ram(device: CudaDevice, whole: bytes) -> None:
    """Check that what the RAM tier holds has the store's bytes."""
    tier = device._controller.ram
    assert device.homes.ram is not None
    assert tier is not None
    held = [key for key, state in enumerate(tier.state) if state <= UNUSED]
    assert len(held) > 20
    for key in held:
        offset = device.homes.offset(key)
        stored = whole[offset : offset + device._bytes_of(key)]
        assert device.homes.ram.blob(key).numpy().tobytes() == stored, (
            f"{key} holds other bytes in RAM"
        )


def compare(device: CudaDevice) -> list[int]:
    """Compare what an expert's graph computes with what torch makes of the same bytes.

    Return a list that gets the keys compared.
    """
    seen: list[int] = []

    def look(key: int, output_H: torch.Tensor | None) -> None:
        if output_H is not None:
            pieces = list(device.slots.of(key).parts(0, device._bytes_of(key)))
            own = device._work_of.output(
                key, torch.cat(pieces), device._work_of.noise, device.arrivals.held(key)
            )
            off = float((output_H - own).norm())
            # Both sum in fp32, in different orders. An expert without active neurons must give 0.
            assert off <= 1e-5 * float(own.norm()), f"{key} is off by {off}"
            seen.append(key)

    look_at(device, lambda key, _: None, look)
    return seen


@pytest.mark.parametrize("precision", usual(["int8", "int4", "int2"], ["int4"]))
def test_several_rows_of_an_expert_in_few_bits_are_computed_as_it_is_stored(
    precision: str, prepared: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt's needs have several rows; no weight is written out in 16 bits for them.

    Before the run the kernels of every such tile are called once: a first call compiles them.
    """
    run = prepared("device=cuda", "system=lru", f"precision={precision}", "trace.max_sequences=1")
    seen: list[int] = []
    called: list[int] = []
    rows, rows_at = Captured.compute_rows, Captured._rows_at

    def noted(self: Captured, kind: Kind, place: int, count: int) -> torch.Tensor:
        called.append(count)
        return rows_at(self, kind, place, count)

    def looked_at(self: Captured, kind: int, key: int, count: int) -> torch.Tensor:
        got = rows(self, kind, key, count)
        device = cast(CudaDevice, run.device)
        pieces = list(device.slots.of(key).parts(0, device._bytes_of(key)))
        own = device._work_of.output(key, torch.cat(pieces), device._work_of.rows(key, count))
        # What lies between the products is right to 2^-17 of a number.
        assert float((got - own).norm()) <= 1e-5 * float(own.norm())
        assert torch.equal(got, rows(self, kind, key, count)), "same call, same bits"
        seen.append(count)
        return got

    def refused(*_: object) -> None:
        raise AssertionError("an expert was computed by torch")

    monkeypatch.setattr(Captured, "compute_rows", looked_at)
    monkeypatch.setattr(Captured, "_rows_at", noted)
    monkeypatch.setattr(DeviceWork, "run", refused)
    replay_driver(run).drive()
    assert max(seen) > 2
    warmed = tiled_counts(run.run.workload.limits.rows)
    assert called[: len(warmed)] == warmed


def replay(run: Prepared) -> tuple[Record, list[int]]:
    """Make a run; return its record, and the keys of the experts that were computed."""
    device, threads = cast(CudaDevice, run.device), threading.active_count()
    seen = watch(device)
    record = replay_driver(run).drive()
    assert threading.active_count() == threads
    return record, seen


@pytest.mark.alike
@pytest.mark.parametrize(
    "system", ["lru", "mixtral_offloading"]
)  # lossless: decisions depend on times
def test_a_live_run_gives_the_cpu_devices_bits(system: str, prepared: Prepare) -> None:
    logits: dict[str, list[torch.Tensor]] = {}
    for name in ("cpu", "cuda"):
        run = prepared(f"device={name}", f"system={system}", way="live")
        driver = live_driver(run)
        logits[name] = driver.logits = []
        driver.drive()
    assert len(logits["cpu"]) == 5, "the prompt's, and one for each token"
    for ours, theirs in zip(logits["cuda"], logits["cpu"], strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.alike
@pytest.mark.parametrize(
    "overrides",
    [
        ("system=lru",),
        ("system=fiddler",),
        pytest.param(("system=hobbit",), marks=pytest.mark.thorough),
        pytest.param(
            ("system=lru", "engine.links=paced", "engine.compute=padded"),
            marks=pytest.mark.thorough,
        ),
        (
            "system=floe",
            "payload.missed=fetched",
            "engine.gather_threads=2",
            "engine.gather_columns=5",
        ),
        ("system=floe", "engine.gather=zero_copy", "engine.gather_columns=5"),
        pytest.param(("system=floe", "engine.source=direct"), marks=pytest.mark.thorough),
        pytest.param(
            ("system=floe", "engine.links=paced", "engine.compute=padded"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(("system=fate", "budget.resident_share=0.4"), marks=pytest.mark.thorough),
        pytest.param(("system=moe_infinity", *NVME), marks=pytest.mark.thorough),
        pytest.param(
            ("system=fate", "budget.resident_share=0.4", *NVME, "engine.source=buffered"),
            marks=pytest.mark.thorough,
        ),
        ("system=load_on_demand", "loader.in_flight=2"),
        ("system=lru", "engine.source=direct"),
        pytest.param(
            ("system=lru", "engine.source=buffered", "loader.in_flight=2"),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=" ".join,
)
def test_every_expert_is_computed_from_its_own_bytes_in_legal_order(
    overrides: tuple[str, ...], prepared: Prepare, runtimes: list[FakeRuntime]
) -> None:
    """Events end late on this runtime, and nothing is over that the host has not seen so."""
    run = prepared("device=cuda", "trace.max_sequences=1", "+workload.decode_tokens=14", *overrides)
    record, seen = replay(run)
    assert len(seen) > 100
    loads = sum(link == 0 for link in record.service_link)
    assert loads > 10
    device = cast(CudaDevice, run.device)
    assert sum(engine.num_copies for engine in device._engines) >= loads
    assert runtimes[-1].current is runtimes[-1].legacy, "the caller's stream is its own again"
    assert not runtimes[-1]._pinned, "the arena is unpinned when the run has ended"
    assert not device.slots.pools, "the slots are given back when the run has ended"


@pytest.mark.alike
@pytest.mark.parametrize(
    "overrides",
    [
        ("system=mixtral_offloading",),
        pytest.param(("system=hobbit",), marks=pytest.mark.thorough),
        ("system=fate", "budget.resident_share=0.4"),
        (
            "system=floe",
            "payload.missed=fetched",
            "engine.gather=zero_copy",
            "engine.gather_columns=5",
        ),
        ("system=lru", *STAND_IN),
        ("system=floe", *STAND_IN),
    ],
    ids=" ".join,
)
def test_graphs_compute_what_torch_does_of_whole_experts_and_of_ones_in_part(
    overrides: tuple[str, ...], prepared: Prepare
) -> None:
    """Pools of single layers, of two precisions, of mixed sizes; experts that have come in part."""
    run = prepared("device=cuda", "trace.max_sequences=1", "+workload.decode_tokens=6", *overrides)
    device = cast(CudaDevice, run.device)
    seen, kinds = compare(device), set[str]()
    look_at(
        device,
        lambda key, _: kinds.add("whole" if device.arrivals.held(key) is None else "in part"),
    )
    replay_driver(run).drive()
    assert len(seen) > 100
    assert ("in part" in kinds) == ("system=floe" in overrides)


def test_experts_of_another_activation_have_no_graph(prepared: Prepare) -> None:
    run = prepared(
        "device=cuda", "system=lru", "trace.max_sequences=1", "+workload.decode_tokens=2"
    )
    device = cast(CudaDevice, run.device)
    for form in device._weights.forms:
        form.layer.experts.act_fn = torch.nn.GELU()
    seen = compare(device)
    replay_driver(run).drive()
    assert not seen


def test_a_kernel_that_reads_host_memory_needs_all_of_the_store_in_it(prepared: Prepare) -> None:
    with pytest.raises(
        ValueError,
        match=r"engine.gather=zero_copy with engine.source=direct \(the whole store must",
    ):
        prepared("device=cuda", "system=floe", "engine.gather=zero_copy", "engine.source=direct")


def test_a_gpu_that_is_too_small_for_the_slots_is_told_of_and_everything_is_given_back(
    prepared: Prepare, runtimes: list[FakeRuntime]
) -> None:
    run = prepared("device=cuda", "system=lru")
    runtimes[-1].set_capacity(1 << 20)
    threads = threading.active_count()
    with pytest.raises(DeviceError, match=r"the device has \d+ B free, but \d+ B are needed"):
        replay_driver(run).drive()
    assert threading.active_count() == threads
    assert not runtimes[-1]._pinned
    assert not cast(CudaDevice, run.device).slots.pools


def test_torchs_own_out_of_memory_becomes_a_message_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The CUDA runtime's part, with stand-ins for torch's calls."""

    def refuses(*_sizes: object, **_options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    runtime = object.__new__(CudaRuntime)
    runtime.device = torch.device("cuda", 0)
    monkeypatch.setattr("real.cuda.runtime.torch.empty", refuses)
    monkeypatch.setattr("real.cuda.runtime.torch.cuda.mem_get_info", lambda device: (5, 9))
    with pytest.raises(
        DeviceError, match=r"the device has 5 B of 9 B free, but 100 B are needed; lower budget"
    ):
        runtime.allocate(100)


def test_page_faults_are_no_source_of_a_gpu(prepared: Prepare) -> None:
    with pytest.raises(
        ValueError, match=r"does not run engine.source=mmap \(page faults\); choose device=null"
    ):
        prepared("device=cuda", "system=lru", "engine.source=mmap")


@pytest.mark.parametrize(
    ("device", "gpu", "first"),
    [("host", "host", ""), ("cuda", FakeRuntime.name, f"{FakeRuntime.name}, ")],
)
def test_a_run_tells_what_it_ran_on(device: str, gpu: str, first: str, prepared: Prepare) -> None:
    """A GPU is named before the processor beside it; the host as a device is its processor."""
    run = prepared(
        f"device={device}",
        "system=lru",
        "trace.max_sequences=1",
        "workload=hobbit_16_128",
        "workload.prompt_tokens=2",
        "workload.decode_tokens=2",
    )
    driver = replay_driver(run)
    record = driver.drive()
    summary = measure(run, run.run, driver, record).summary
    told = summary["real"]
    assert (told["device"], told["gpu"], told["stands_for"]) == (device, gpu, None)
    assert summary["hardware"] == f"{first}{processor()}, {os.cpu_count()} cores"
    assert told["slot_bytes"] == cast(CudaDevice, run.device).slots.num_bytes > 0


def test_without_a_gpu_it_says_so(stores: Path, bundled_trace: Trace) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        request = read_request(
            compose(
                "real",
                [
                    "device=cuda",
                    f"engine.store_dir={stores}",
                    "output_dir=unused",
                    "trace.path=capture/assets/traces/tiny_mixtral",
                ],
            ),
            "lru",
        )
    with pytest.raises(
        ValueError, match=r"there is no CUDA device here .* choose device=cpu or device=null"
    ):
        prepare_replay(request, bundled_trace)


# Contracts: C124
def test_what_is_issued_behind_a_copy_is_given_to_the_stream_before_that_copy_has_ended(
    prepared: Prepare, runtimes: list[FakeRuntime]
) -> None:
    """Two transfers in flight: the second one's bytes follow the first one's at once."""
    run = prepared(
        "device=cuda",
        "system=load_on_demand",
        "loader.in_flight=2",
        "trace.max_sequences=1",
        "+workload.decode_tokens=3",
    )
    device = cast(CudaDevice, run.device)
    announce, early = device.announce, list[bool]()

    def watched(link: int, number: int, key: int, moved_bytes: int, victims: Sequence[int]) -> None:
        copies = sum("copies" in line for line in runtimes[-1].log)
        is_new = number not in device._traffic._ahead
        announce(link, number, key, moved_bytes, victims)
        if is_new:
            early.append(sum("copies" in line for line in runtimes[-1].log) > copies)

    device.announce = watched  # type: ignore[method-assign]
    replay_driver(run).drive()
    assert len(early) > 10
    assert all(early)


def test_computing_hands_over_what_has_ended(prepared: Prepare) -> None:
    """Experts are computed until a load has ended, and nothing else asks for its end."""
    bench = DeviceBench(prepared("device=host", "system=lru"))
    with bench.opened():
        took_ns, _ = bench.overlapped_ns(
            bench.geometry.bytes_of(bench.key), lambda: bench.compute_ns(bench.other, 1)
        )
    assert took_ns > 0
