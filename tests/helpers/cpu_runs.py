"""Prepared replays on the CPU device, with stores that are written once for each test module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from capture.recording.settings import Settings
from real.driver.loop import drive
from real.host.cpu import CpuDevice
from real.setup.prepare import Prepared, prepare_replay, read_request
from real.store.reading import read_whole
from real.store.weightless import skeleton
from sim.core.slots import UNUSED
from sim.setup.configure import configure
from sim.traces.trace import Trace

FREE = ("engine.links=free", "engine.compute=free")
ONE = ("trace.max_sequences=1", "+workload.prompt_tokens=12", "+workload.decode_tokens=14")
THOROUGH = pytest.mark.thorough
NVME = (
    "hardware=rtx4090_nvme",
    "hardware.ram.capacity_gib=0.005",
    "hardware.links.nvme.head_bytes=30000",
)
Prepare = Callable[..., Prepared]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture
def prepare(stores: Path, bundled_trace: Trace, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    monkeypatch.setattr("real.store.weightless.skeleton", _skeleton)

    def prepared(*overrides: str, store_dir: Path = stores) -> Prepared:
        fixed = (
            f"engine.store_dir={store_dir}",
            "output_dir=unused",
            "budget.resident_share=0.4",
            *ONE,
        )
        cfg, _ = configure(*fixed, *overrides, config="real")
        return prepare_replay(read_request(cfg, "system"), bundled_trace)

    return prepared


@cache
def _skeleton(settings: Settings) -> Any:
    """The model's skeleton; made once for all tests, since nothing changes it."""
    return skeleton(settings)


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def run(prepared: Prepared) -> Any:
    return drive(
        prepared.run.controller, prepared.run.workload, prepared.run.durations, prepared.device
    )


def check_contents(prepared: Prepared) -> int:
    """Check that every resident variant's slot holds the store's bytes.

    What is resident is what the controller says. Returns how many there are.
    """
    device, controller = cast(CpuDevice, prepared.device), prepared.run.controller
    g = controller.geometry
    assert prepared.weights is not None
    home = read_whole(prepared.weights.store.path, prepared.weights.store.header.num_bytes)
    pairs = [(device.slots, controller.slots)]
    if device.ram is not None and controller.ram is not None:
        pairs.append((device.ram, controller.ram))
    count = 0
    for memory, slots in pairs:
        held = [
            key
            for key in range(g.num_keys)
            if slots.state[key] <= UNUSED and g.expert_of(key) < g.experts
        ]
        memory.check(lambda key, held=held: key in held)  # type: ignore[misc]
        for key in held:
            blob, offset = memory.blob(key).numpy(), device._offset(key)
            assert (blob == home[offset : offset + len(blob)]).all(), g.name_of(key)
        count += len(held)
    return count
