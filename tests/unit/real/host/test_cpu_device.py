"""The CPU device: real bytes in the controller's slots, and decisions that repeat.

Oracles: the store's own bytes; a fresh controller that gets the same calls; the simulator that
replays the durations.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from helpers.cpu_runs import FREE, NVME, THOROUGH, Prepare, check_contents, run
from real.driver.recording import record_run
from real.host.cpu import CpuDevice
from real.store.reading import read_whole
from real.store.slots import SlotMemory
from real.validation.conformance import NonconformanceError, conform
from sim.policies.payloads import WholeLayer
from sim.results.replay import replay
from sim.results.run import Run
from sim.setup.build import build
from sim.traces.trace import Trace

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


# Contracts: C122, C127
@pytest.mark.alike
@pytest.mark.parametrize(
    "overrides",
    [
        ("system=lru", "engine.source=direct"),
        pytest.param(("system=hobbit", "engine.source=mmap"), marks=THOROUGH),
        pytest.param(("system=fate",), marks=THOROUGH),
        ("system=moe_infinity", *NVME),
        ("system=promoe", "loader.chunk_bytes=20000", "engine.source=buffered", "engine.cold=true"),
        pytest.param(("system=fiddler",), marks=THOROUGH),
        pytest.param(
            ("system=llama_cpp", "engine.source=mmap", "engine.cold=true"), marks=THOROUGH
        ),
        pytest.param(("system=adapmoe", "budget.resident_share=0.6"), marks=THOROUGH),
        pytest.param(
            ("system=lru", "loader.in_flight=2", "hardware.links.loader.engines=2"), marks=THOROUGH
        ),
    ],
    ids=lambda overrides: overrides[0] + overrides[1][:12] if len(overrides) > 1 else overrides[0],
)
def test_what_the_controller_calls_resident_has_the_bytes_of_the_store(
    prepare: Prepare, overrides: tuple[str, ...]
) -> None:
    prepared = prepare(*FREE, *overrides)
    run(prepared)
    assert check_contents(prepared) > 20


def test_the_slots_are_exactly_the_budgets_bytes(prepare: Prepare) -> None:
    prepared = prepare("system=fiddler", *FREE)
    controller = prepared.run.controller
    budget = int(0.4 * 16 * 8 * 3 * 128 * 120 * 2)
    assert cast(CpuDevice, prepared.device).slots.num_bytes == budget + 2 * max(
        controller.geometry.variant_bytes
    )
    assert sum(controller.slots.capacity_bytes) == budget


@THOROUGH
def test_variants_of_two_sizes_in_one_pool_lie_in_pieces_and_compute_the_same(
    prepare: Prepare,
) -> None:
    prepared = prepare("system=fate", *FREE)
    run(prepared)
    # How many depends on what arrives first, and so on how busy this machine is.
    assert cast(CpuDevice, prepared.device).slots.num_scattered > 0
    assert check_contents(prepared) > 20


# Contracts: C127
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(("system=transformers", *FREE), marks=THOROUGH),
        ("system=deepspeed_mii", "engine.source=buffered", *FREE),
        pytest.param(("system=sti", "loader.in_flight=2", *FREE), marks=THOROUGH),
        pytest.param(
            ("system=deepspeed_mii", *NVME[:1], "hardware.ram=null", *FREE), marks=THOROUGH
        ),
        pytest.param(("system=infinite_link", *FREE), marks=THOROUGH),
    ],
    ids=lambda overrides: overrides[0],
)
def test_where_layers_stream_what_is_computed_is_there(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    """Slots have the store's bytes when experts are computed; dense blocks have a stand-in's."""
    prepared = prepare(*overrides)
    assert prepared.weights is not None
    device, controller, store = (
        cast(CpuDevice, prepared.device),
        prepared.run.controller,
        prepared.weights.store,
    )
    g, home = controller.geometry, read_whole(store.path, store.header.num_bytes)
    compute, seen = device.compute, {"experts": 0, "dense": 0}

    def checked(key: int, rows: int, nominal_ns: int) -> None:
        if key >= 0 and g.expert_of(key) < g.experts:
            blob = device._home_blob(key) if device._refers else device.slots.blob(key)
            assert (blob.numpy() == home[device._offset(key) :][: g.bytes_of(key)]).all(), (
                g.name_of(key)
            )
            seen["experts"] += 1
        elif key >= 0 and device.blocks is not None:
            device.blocks.check(key, controller.dense_bytes[g.site_of(key)])
            seen["dense"] += 1
        compute(key, rows, nominal_ns)

    monkeypatch.setattr(device, "compute", checked)
    record = run(prepared)
    assert seen["experts"] > 20
    assert (seen["dense"] > 200) == (controller.loader.dense_slots > 0)
    if isinstance(controller.payload, WholeLayer):
        assert max(record.service_bytes) > g.bytes_of(0)


LOADER_KINDS = (
    ("system=load_on_demand",),
    ("system=mixtral_offloading",),
    ("system=hobbit",),
    ("system=moe_infinity", *NVME),
    ("system=promoe", "loader.chunk_bytes=20000"),
    ("system=fiddler",),
    ("system=edgemoe",),
    ("system=sida",),
    ("system=transformers",),
    ("system=deepspeed_mii",),
)
"""One system for each kind of loader."""
USUAL = ("system=mixtral_offloading", "system=moe_infinity", "system=promoe")


@pytest.mark.alike
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(words, id=words[0], marks=() if words[0] in USUAL else THOROUGH)
        for words in LOADER_KINDS
    ],
)
def test_a_paced_run_conforms_in_its_answers_and_in_time(
    prepare: Prepare, bundled_trace: Trace, overrides: tuple[str, ...]
) -> None:
    """Links are paced and computations free.

    What the machine took is replayed, so a busy machine can only matter to ties.
    """
    prepared = prepare("engine.compute=free", *overrides)
    made = prepared.run
    recording = record_run(made.controller, made.workload, made.durations, prepared.device)
    sizes = list(made.controller.geometry.variant_bytes)

    def fresh() -> Run:
        return build(prepared.request.simulated, "system", bundled_trace, stored_bytes=sizes)

    again, timed = fresh(), fresh()
    assert len(recording.calls) > 400
    assert replay(recording.calls, again.controller, again.workload, recording.asked_ns) is None
    found = conform(recording, timed.controller, timed.workload, timed.durations)
    counts = [run.controller.lookup_outcomes for run in (made, timed)]
    assert counts[0] == counts[1]
    try:
        found.check()
    except NonconformanceError as error:
        if (load := os.getloadavg()[0]) > (os.cpu_count() or 1):
            pytest.skip(
                f"the machine is busy (load average {load:.1f} on {os.cpu_count()} cores): {error}"
            )
        raise


def test_a_stand_in_of_any_geometry_computes_its_pattern(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every expert's output is that of its pattern, worked out by hand.

    A few blobs stand for all experts.
    """
    prepared = prepare(
        "system=lru",
        "engine.weights=stand_in",
        "engine.stand_in_gib=0.001",
        *FREE,
        store_dir=tmp_path,
    )
    assert prepared.weights is not None
    header = prepared.weights.store.header
    assert header.num_bytes <= 1 << 20
    assert 2 <= header.distinct < 16 * 8
    seen: dict[int, torch.Tensor] = {}
    device = cast(CpuDevice, prepared.device)
    work, forms = device._work_of, prepared.weights.forms
    own = work.run

    def watched(key: int, blob: torch.Tensor, rows: torch.Tensor, _neurons: Any) -> None:
        own(key, blob, rows)
        tensors = prepared.weights.store.decode(0, blob, torch.float32)  # type: ignore[union-attr]
        seen[key] = forms[0].forward(tensors, rows)

    monkeypatch.setattr(work, "run", watched)
    run(prepared)
    g = prepared.run.controller.geometry
    assert len(seen) > 30
    for key, output in list(seen.items())[:20]:
        number = (g.site_of(key) * 8 + g.expert_of(key)) % header.distinct
        k, place = np.arange(128)[None], [np.arange(240)[:, None], np.arange(128)[:, None]]
        first = ((k * 7 + place[0] * 131 + number * 389) % 1021 - 510) / 1024
        down = ((np.arange(120)[None] * 7 + place[1] * 131 + number * 389 + 53) % 1021 - 510) / 1024
        x = work._noise.numpy().astype(np.float64)
        gate, up = np.split(x @ first.T, 2, axis=1)
        expected = (gate / (1 + np.exp(-gate)) * up) @ down.T
        assert np.allclose(output[:1].numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("system=floe", "precision=fp16", "payload=active_share", *FREE), "payload ActiveShare"),
        (("system=floe", "hardware=rtx4090_nvme"), "payload ReusedChannels with a RAM tier"),
        pytest.param(
            ("system=infinite_link", "engine.source=direct"),
            "a reference needs memory",
            marks=THOROUGH,
        ),
        (("system=sida", *FREE), "write_back with engine.links=free"),
        (("system=lru", "precision=mxfp4"), "precision mxfp4 cannot be stored"),
        pytest.param(
            ("system=lru", "model=mixtral_8x7b", "engine.weights=capture/assets/tiny_mixtral"),
            "the weights have",
            marks=THOROUGH,
        ),
        pytest.param(
            ("system=lru", "engine.source=tape"), "unknown engine.source=tape", marks=THOROUGH
        ),
        (("system=lru", "+engine.colour=red"), "not of .'colour'"),
        pytest.param(("system=lru", "device=tpu"), "unknown device=tpu", marks=THOROUGH),
        pytest.param(("system=lru", "input=dream"), "unknown input=dream", marks=THOROUGH),
    ],
)
def test_what_the_device_does_not_do_is_refused_before_any_work(
    prepare: Prepare, overrides: tuple[str, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        prepare(*overrides)


def test_room_for_a_variant_is_found_in_pieces_and_given_back_whole() -> None:
    """Random claims of two sizes up to the last byte, as a controller that counts bytes makes."""

    class Held:
        def __init__(self) -> None:
            self.capacity_bytes, self.pool_of = (1000, 520), [0] * 60 + [1] * 60
            self.key_bytes = [160 if key % 3 else 48 for key in range(120)]
            self.state = [4] * 120
            self.geometry = self

        num_keys = 120
        name_of = str

    slots: Any = Held()
    memory = SlotMemory(slots)
    draw = np.random.default_rng(0)
    for _ in range(3000):
        key = int(draw.integers(120))
        pool = [
            k for k in range(120) if slots.state[k] == 0 and slots.pool_of[k] == slots.pool_of[key]
        ]
        used = sum(slots.key_bytes[k] for k in pool)
        if slots.state[key] == 0:
            slots.state[key] = 4
        elif used + slots.key_bytes[key] <= slots.capacity_bytes[slots.pool_of[key]]:
            slots.state[key] = 0
            memory.place(key)
            for piece in memory.pieces(key, 0, slots.key_bytes[key]):
                piece[:] = key
        memory.check(lambda key: slots.state[key] == 0)
    assert memory.num_scattered > 50
    for key in range(120):
        assert slots.state[key] or (memory.blob(key).numpy() == key).all()
