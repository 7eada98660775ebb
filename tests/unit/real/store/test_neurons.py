"""Experts that move neuron by neuron: stored, moved in part, completed, and computed.

Oracles: fp64 over the neurons that are there, with the others masked; the store's own rows; a fresh
controller.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from real.driver.recording import record_run
from real.host.cpu import CpuDevice
from real.kernels.quantise import dequantise, quantise
from real.setup.prepare import Prepared, prepare_replay, read_request
from real.store.neurons import PAIRS, UP, Arrivals, by_neuron, of_neurons
from real.store.stand_in import StandInForm
from real.store.store import plan_store
from real.store.swapping import expert_forms
from real.store.variants import StoreError
from sim.machine.model import Model
from sim.results.replay import replay
from sim.setup.build import build
from sim.setup.configure import configure
from sim.traces.trace import Trace
from sim.values.places import ROOT
from sim.values.types import Geometry

NEURONS, HIDDEN = 24, 16
SIZES = {"gate_up_proj": (2 * NEURONS, HIDDEN), "down_proj": (HIDDEN, NEURONS)}


def model(matrices: int = 3) -> Model:
    return Model(
        "some", 2, 4, 2, HIDDEN, NEURONS, 1, 1, HIDDEN, 32, "test", expert_matrices=matrices
    )


def dense(
    tensors: dict[str, torch.Tensor], rows: torch.Tensor, neurons: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """What the named neurons of an expert with a SiLU gate make of rows, in fp64."""
    gate, up = np.split(tensors["gate_up_proj"].double().numpy(), 2)
    x, down = rows.double().numpy(), tensors["down_proj"].double().numpy()
    g, u = x @ gate.T, x @ up.T
    active = np.isin(np.arange(len(gate)), neurons)
    found: np.ndarray[Any, Any] = (g / (1 + np.exp(-g)) * u * active) @ down.T
    return found


@pytest.mark.parametrize("count", [0, 1, 7, NEURONS])
def test_an_expert_of_some_neurons_is_the_whole_one_with_the_others_masked(count: int) -> None:
    form = StandInForm(model(), 1)
    tensors, draw = form.tensors(2), torch.Generator().manual_seed(count)
    neurons = torch.randperm(NEURONS, generator=draw)[:count]
    rows = torch.randn(3, HIDDEN, generator=draw)
    parts = by_neuron(form, tensors)
    found = form.forward(of_neurons(form, parts[PAIRS][neurons], parts[UP][neurons]), rows)
    assert found.shape == rows.shape
    assert np.allclose(found.numpy(), dense(tensors, rows, neurons.numpy()), rtol=1e-5, atol=1e-6)


def test_all_neurons_in_their_order_are_the_expert_bit_for_bit() -> None:
    from capture.tiny.model import load_model

    form = expert_forms(load_model(ROOT / "capture" / "assets" / "tiny_mixtral"))[3]
    tensors, rows = form.tensors(5), torch.randn(4, 128, generator=torch.Generator().manual_seed(0))
    parts = by_neuron(form, tensors)
    again = of_neurons(form, parts[PAIRS], parts[UP])
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)
    expected = form.forward(tensors, rows)
    in_memory_order = {name: values.contiguous() for name, values in again.items()}
    assert torch.equal(form.forward(in_memory_order, rows), expected)
    # The neurons' own rows are a transposed view of down_proj: some CPUs add its terms in another order.
    assert torch.allclose(form.forward(again, rows), expected, rtol=1e-5, atol=1e-6)


def test_experts_without_a_gate_cannot_be_stored_so() -> None:
    with pytest.raises(
        StoreError, match=r"experts of in, out have no neurons .* another precision"
    ):
        plan_store({}, [StandInForm(model(matrices=2), 0)], ["floe"])
    with pytest.raises(StoreError, match="goes with no other one, got floe, int4"):
        plan_store({}, [StandInForm(model(), 0)], ["floe", "int4"])


# Contracts: C125
@settings(max_examples=60, deadline=None)
@given(moves=st.lists(st.tuples(st.integers(1, 800), st.integers(0, 800)), min_size=1, max_size=4))
def test_what_completes_a_partial_move_brings_the_neurons_that_are_not_there(
    moves: list[tuple[int, int]],
) -> None:
    """A slot filled byte by byte by ``extent`` has the rows of ``held``, each neuron once."""
    size, key = 32, 3
    geometry = Geometry(2, 4, 2, ("floe",), (16.0,), (size * NEURONS,), 10 * size * NEURONS)
    arrivals = Arrivals(geometry, NEURONS)
    home = np.random.default_rng(0).integers(256, size=size * NEURONS, dtype=np.uint8)
    number = 0
    for first, rest in moves:
        there = min(first, size * NEURONS - 1)
        slot = np.zeros(size * NEURONS, np.uint8)
        arrivals.begin(key, number, 0, there)
        _fill(arrivals, key, slot, home, 0, there)
        more = min(rest, size * NEURONS - there)
        if more:
            before = arrivals.held(key)
            assert before is not None
            arrivals.begin(key, number + 1, there, more)
            arrivals.begin(key, number + 1, there, 1)  # a later service of the same transfer
            _fill(arrivals, key, slot, home, there, more)
            assert np.array_equal(arrivals.held(key)[: len(before)], before)  # type: ignore[index]
        held = arrivals.held(key)
        assert held is not None
        assert len(held) == (there + more) // size
        assert len(set(held.tolist())) == len(held)
        assert np.array_equal(
            slot.reshape(NEURONS, size)[: len(held)], home.reshape(NEURONS, size)[held]
        )
        number += 2
    arrivals.begin(key, number, 0, size * NEURONS)
    assert arrivals.held(key) is None
    assert arrivals.extent(key, 5, 100) == (5, 100)


def _fill(arrivals: Arrivals, key: int, slot: Any, home: Any, begin: int, count: int) -> None:
    end = begin + count
    while begin < end:
        at, piece = arrivals.extent(key, begin, end - begin)
        slot[begin : begin + piece] = home[at : at + piece]
        begin += piece


# ---- a run


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


def prepared(stores: Path, trace: Trace, *words: str) -> Prepared:
    fixed = (
        f"engine.store_dir={stores}",
        "output_dir=unused",
        "budget.resident_share=0.4",
        "trace.max_sequences=1",
        "+workload.decode_tokens=4",
        "engine.links=free",
        "engine.compute=free",
        "system=floe",
    )
    cfg, _ = configure(*fixed, *words, config="real")
    return prepare_replay(read_request(cfg, "floe"), trace)


@pytest.mark.parametrize(
    "words",
    [
        ("engine.source=ram", "payload.missed=fetched"),
        pytest.param(("engine.source=direct",), marks=pytest.mark.thorough),
        pytest.param(("payload=active_share", "engine.source=mmap"), marks=pytest.mark.thorough),
    ],
    ids=lambda words: words[0],
)
def test_floe_computes_on_a_device_the_neurons_that_the_controller_moved(
    stores: Path, bundled_trace: Trace, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Slots hold the store's rows of as many neurons as bytes were moved.

    The output is that of these neurons alone, in fp64.
    """
    run = prepared(stores, bundled_trace, *words)
    assert run.weights is not None
    device, store, controller = cast(CpuDevice, run.device), run.weights.store, run.run.controller
    g, compute, home = (
        controller.geometry,
        device.compute,
        np.frombuffer(store.path.read_bytes(), np.uint8),
    )
    counts: list[int] = []

    def checked(key: int, rows: int, nominal_ns: int) -> None:
        held = device.arrivals.held(key) if key >= 0 and g.expert_of(key) < g.experts else None
        if held is not None:
            counts.append(len(held))
            if len(counts) % 4 == 1:
                _check_partial(device, key, held, home)
        compute(key, rows, nominal_ns)

    monkeypatch.setattr(device, "compute", checked)
    recording = record_run(controller, run.run.workload, run.run.durations, run.device)
    moved = [transfer for transfer in controller.issued if transfer.partial]
    rests = [transfer for transfer in moved if transfer.parent >= 0]
    assert len(moved) > 50
    assert bool(rests) == ("payload.missed=fetched" in words)
    assert len(counts) > 40
    assert len(set(counts)) > 5, "as many as the trace's tokens made active"
    # A forecast that names no channel moves one byte all the same.
    assert {
        transfer.moved_bytes % device.arrivals.pair_bytes(transfer.key) for transfer in moved
    } <= {0, 1}
    sizes = [variant.num_bytes for variant in store.header.variants]
    again = build(run.request.simulated, "floe", bundled_trace, stored_bytes=sizes)
    assert replay(recording.calls, again.controller, again.workload, recording.asked_ns) is None


def up_of(device: CpuDevice, key: int) -> torch.Tensor:
    g = device._controller.geometry
    return device._work_of.up_of(g.site_of(key), g.expert_of(key))


def _check_partial(device: CpuDevice, key: int, held: Any, home: Any) -> None:
    size, offset = device.arrivals.pair_bytes(key), device._offset(key)
    blob = device.slots.blob(key)
    pairs = blob[: len(held) * size].view(torch.float16).view(len(held), size // 2)
    assert np.array_equal(
        pairs.view(torch.uint8).numpy(), home[offset:][: len(blob)].reshape(-1, size)[held]
    )
    rows = device._work_of.rows(key, 1)
    up = up_of(device, key)
    hidden = up.shape[1]
    tensors = {
        "gate_up_proj": torch.cat([pairs[:, :hidden].float(), up[torch.from_numpy(held)]]),
        "down_proj": pairs[:, hidden:].T.float(),
    }
    expected = dense(tensors, rows, np.arange(len(held)))
    found = device._work_of.output(key, blob, rows, held)
    assert np.allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


# Contracts: C125
@pytest.mark.thorough
def test_the_up_projections_are_the_models_own_at_two_bits_and_count_as_a_loss(
    stores: Path, bundled_trace: Trace
) -> None:
    from capture.tiny.model import load_model

    run = prepared(stores, bundled_trace)
    assert run.weights is not None
    store, form = (
        run.weights.store,
        expert_forms(load_model(ROOT / "capture" / "assets" / "tiny_mixtral"))[2],
    )
    store.verify()
    assert store.header.lossless == (False,)
    key = run.run.controller.geometry.key(0, 2, 6)
    up = form.matrices(form.tensors(6))["up"]
    assert torch.equal(up_of(cast(CpuDevice, run.device), key), dequantise(quantise(up, 2, 64)))
    ups = 16 * 8 * store.header.resident.num_bytes  # type: ignore[union-attr]
    assert ups == 16 * 8 * (30 * 128 + 2 * 120 * 2 * 2), (
        "2.5 bits a weight: 30 rows of bytes, scales and zeros"
    )
