"""FloE live: a running model's own activations say how many neurons move, and which.

Oracles: the checkpoint's up projections, rounded to two bits here, on inputs that hooks of the
model saw; fp64 of the neurons that have come; a fresh controller that is told the counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from capture.channels import named_and_found
from capture.tiny.model import load_model
from helpers.live_runs import cached_skeleton, recorded
from real.kernels.quantise import dequantise, quantise
from real.live.asked import Asked
from real.live.channels import LiveChannels
from real.live.live import LiveDriver
from real.live.run import live_driver, prepare
from real.setup.prepare import Prepared, read_request
from real.store.swapping import expert_forms
from real.store.work import ExpertWork
from sim.policies.payloads import ActiveShare
from sim.setup.configure import configure
from sim.traces.trace import Trace
from sim.values.places import ROOT
from sim.values.types import Geometry

TRACE = "capture/assets/traces/tiny_mixtral"
FREE = ("engine.links=free", "engine.compute=free")
Prepare = Callable[..., Prepared]


@pytest.fixture
def live(stores: Path, bundled_trace: Trace, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    monkeypatch.setattr("real.store.weightless.skeleton", cached_skeleton)

    def prepared(*overrides: str) -> Prepared:
        fixed = (
            "model=tiny_mixtral",
            "input=live",
            "system=floe",
            f"engine.store_dir={stores}",
            "output_dir=unused",
            "device=null",
            "budget.resident_share=0.25",
            "live.sequences=1",
            "live.prompt_tokens=9",
            "live.new_tokens=5",
            f"trace.path={TRACE}",
        )
        cfg, _ = configure(*fixed, *overrides, config="real")
        return prepare(read_request(cfg, "floe"), bundled_trace)

    return prepared


@pytest.fixture(scope="module")
def ups() -> torch.Tensor:
    """All up projections at two bits, [S, E, I, H]."""
    forms = expert_forms(load_model(ROOT / "capture" / "assets" / "tiny_mixtral"))
    return torch.stack(
        [
            torch.stack(
                [
                    dequantise(quantise(form.matrices(form.tensors(e))["up"], 2, 64))
                    for e in range(8)
                ]
            )
            for form in forms
        ]
    )


@pytest.fixture(scope="module")
def thresholds() -> torch.Tensor:
    return load_file(ROOT / TRACE / "thresholds.safetensors")["thresholds"]


@dataclass(frozen=True)
class Part:
    """An expert computed from some of its neurons: its output for a row [1, H]."""

    step: int
    key: int
    row: torch.Tensor
    neurons: np.ndarray[Any, Any]
    output: torch.Tensor


class Seen:
    """The routers' inputs in decoded steps, by step and site, and what was computed in part."""

    def __init__(self, driver: LiveDriver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver, self.fed = driver, dict[tuple[int, int], torch.Tensor]()
        self.parts: list[Part] = []
        for form in driver._model.weightless.forms:
            form.layer.router.register_forward_pre_hook(self._hook(form.layer.site))
        own = ExpertWork.run

        def run(
            work: ExpertWork, key: int, blob: torch.Tensor, rows: torch.Tensor, neurons: Any = None
        ) -> None:
            own(work, key, blob, rows, neurons)
            if neurons is not None:
                output = work._outputs[work._geometry.expert_of(key)]
                self.parts.append(
                    Part(driver._step.index, key, rows.clone(), neurons.copy(), output.clone())
                )

        monkeypatch.setattr(ExpertWork, "run", run)

    def _hook(self, site: int) -> Any:
        def hook(_module: Any, args: Any) -> None:
            self.fed[self.driver._step.index, site] = (
                args[0].detach().reshape(-1, args[0].shape[-1]).clone()
            )

        return hook


Drive = Callable[..., tuple[Prepared, Seen]]


@pytest.fixture(scope="module")
def ended() -> dict[tuple[str, ...], tuple[Prepared, Seen]]:
    """Runs that several tests share."""
    return {}


@pytest.fixture
def driven(
    live: Prepare,
    ended: dict[tuple[str, ...], tuple[Prepared, Seen]],
    monkeypatch: pytest.MonkeyPatch,
) -> Drive:
    def run(*overrides: str) -> tuple[Prepared, Seen]:
        if overrides not in ended:
            prepared = live(*overrides)
            driver = live_driver(prepared)
            seen = Seen(driver, monkeypatch)
            driver.drive()
            ended[overrides] = prepared, seen
        return ended[overrides]

    return run


@pytest.mark.parametrize(
    ("overrides", "channels"),
    [
        pytest.param(
            ("predictor=none", "payload=active_share"), "active", marks=pytest.mark.thorough
        ),
        pytest.param(("payload.missed=dropped",), "named", marks=pytest.mark.thorough),
        (("payload.missed=fetched",), "both"),
        pytest.param(
            ("predictor=none", "payload=active_share", "device=cpu", *FREE),
            "active",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ("payload.missed=fetched", "device=cpu", *FREE), "both", marks=pytest.mark.thorough
        ),
        pytest.param(
            ("payload.missed=fetched", "device=host", *FREE), "both", marks=pytest.mark.thorough
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_what_comes_of_an_expert_are_the_channels_that_the_models_rows_make_active(
    driven: Drive,
    ups: torch.Tensor,
    thresholds: torch.Tensor,
    overrides: tuple[str, ...],
    channels: str,
) -> None:
    prepared, seen = driven(*overrides)
    g, column = prepared.run.controller.geometry, 2
    assert (
        prepared.run.trace.header.sparsities[column]
        == prepared.run.controller.payload.sparsity
        == 0.9
    )  # type: ignore[attr-defined]
    forecast = 0
    for part in seen.parts:
        step, row, neurons = part.step, part.row, part.neurons
        site, expert = g.site_of(part.key), g.expert_of(part.key)
        assert torch.equal(row, seen.fed[step, site])

        def response(
            fed: torch.Tensor, site: int = site, expert: int = expert
        ) -> np.ndarray[Any, Any]:
            found: np.ndarray[Any, Any] = (
                (fed[0].double() @ ups[site, expert].double().T).abs().numpy()
            )
            return found

        threshold, own = float(thresholds[site, expert, column]), response(row)
        of_row = set(np.flatnonzero(own >= threshold).tolist())
        got = set(neurons.tolist())
        assert len(got) == len(neurons)
        if got == of_row:
            continue
        forecast += 1
        before = response(seen.fed[step, site - 1])
        named = set(np.flatnonzero(before >= threshold).tolist())
        if not named:
            # One byte of the likeliest neuron goes all the same. The rest of that neuron takes the
            # place of the row's last one.
            first = int(before.argmax())
            others = [neuron for neuron in np.argsort(-own).tolist() if neuron != first]
            assert got == (set() if channels == "named" else {first, *others[: len(of_row) - 1]})
            continue
        assert got == (named if channels == "named" else named | of_row), (step, site, expert)
    assert len(seen.parts) > 40
    assert (forecast > 10) == (channels != "active")


def test_an_expert_of_these_channels_is_computed_as_fp64_does(
    driven: Drive, ups: torch.Tensor
) -> None:
    prepared, seen = driven("payload.missed=fetched")
    parts, g = seen.parts, prepared.run.controller.geometry
    forms = expert_forms(load_model(ROOT / "capture" / "assets" / "tiny_mixtral"))
    assert len(parts) > 40
    for part in parts:
        site, expert = g.site_of(part.key), g.expert_of(part.key)
        matrices = forms[site].matrices(forms[site].tensors(expert))
        # Pairs are stored in half precision.
        gate, down = (matrices[name].half().double() for name in ("gate", "down"))
        x = part.row.double()
        kept = torch.zeros(len(gate), dtype=torch.double)
        kept[torch.from_numpy(part.neurons)] = 1
        inner = torch.nn.functional.silu(x @ gate.T) * (x @ ups[site, expert].double().T) * kept
        torch.testing.assert_close(part.output.double(), inner @ down.T, rtol=1e-4, atol=1e-5)


def test_the_counts_that_a_live_run_is_told_are_those_of_its_own_inputs(
    driven: Drive, ups: torch.Tensor, thresholds: torch.Tensor
) -> None:
    """The counts equal those of the code that makes them from a trace's recorded inputs."""
    prepared, seen = driven("payload.missed=fetched")
    assert seen.driver.channels is not None
    arrays, trace = seen.driver.channels.arrays, seen.driver._live.trace
    steps = [step for step in seen.driver._live.workload.steps if step.decode]
    assert arrays["position"].tolist() == [9, 10, 11, 12, 13]
    for site in range(1, 16):
        before, row = (
            torch.cat([seen.fed[step.index, at] for step in steps]) for at in (site - 1, site)
        )
        for expert in range(8):
            chosen = np.flatnonzero((trace.ids[9:, site] == expert).any(-1))
            of_site = thresholds[site, expert].numpy()
            masks = (row @ ups[site, expert].T).abs().numpy()[chosen, None] >= of_site[
                None, :, None
            ]
            values = (before @ ups[site, expert].T).abs().numpy()
            counts = named_and_found(values, of_site, chosen, masks)
            for name, count in zip(("named", "found", "active"), counts, strict=True):
                assert np.array_equal(arrays[name][:, site, expert, 2], count[:, 2]), (
                    name,
                    site,
                    expert,
                )
    rows, active, found, named = prepared.run.controller.payload.channel_counts([0])  # type: ignore[attr-defined]
    assert (rows, active > found > 0, named > found) == (5, True, True)


@pytest.mark.parametrize(
    "overrides",
    [
        ("payload.missed=fetched",),
        pytest.param(("payload=active_share",), marks=pytest.mark.thorough),
        pytest.param(("payload=active_share_nominal",), marks=pytest.mark.thorough),
        pytest.param(("payload.missed=fetched", "device=cpu", *FREE), marks=pytest.mark.thorough),
        pytest.param(
            ("workload=continuous_4", "live.sequences=3", "live.new_tokens=[2,7]"),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=" ".join,
)
def test_calls_get_the_same_answers_of_a_controller_that_is_told_the_counts(
    live: Prepare, bundled_trace: Trace, overrides: tuple[str, ...]
) -> None:
    run = recorded(live(*overrides))
    channels, fresh = run.driver.channels, run.fresh(bundled_trace)
    assert channels is not None
    if channels.arrays:
        cast(Any, fresh.payload).know(channels.arrays)
    assert any(transfer.partial for transfer in run.plain.issued)
    assert run.difference(fresh) is None


# Contracts: C125
def test_a_prefetch_that_begins_late_brings_what_was_forecast_and_its_rest_what_the_row_lacks() -> (
    None
):
    up, payload = torch.eye(4), cast(Any, ActiveShare(0.5, "nominal"))
    payload.forecast_bytes = payload.missing_bytes = lambda key, *rest: 2
    geometry = Geometry(2, 4, 2, ("floe",), (16.0,), (16,), 160)
    channels = LiveChannels(cast(Any, None), payload, geometry, 4, lambda site, expert: up, None)
    key = geometry.key(0, 1, 3)
    for values, ask in (
        ([1.0, 4.0, -3.0, 2.0], payload.forecast_bytes),
        ([-9.0, 0.0, 1.0, 5.0], payload.missing_bytes),
    ):
        channels.see(Asked(0, torch.tensor([values]), torch.tensor([[3]]), torch.ones(1, 1)))
        assert ask(key) == 2
    assert channels.ranked(key, False).tolist() == [1, 2, 3, 0]
    assert channels.ranked(key, True).tolist() == [0, 3, 2, 1]


# Contracts: C44, C125
def test_what_follows_an_overtaken_prefetch_is_what_the_need_itself_makes_active() -> None:
    up, payload = torch.eye(4), cast(Any, ActiveShare(0.5, "nominal"))
    payload.forecast_bytes = payload.moved_bytes = lambda key, *rest: 2
    geometry = Geometry(2, 4, 2, ("floe",), (16.0,), (16,), 160)
    channels = LiveChannels(cast(Any, None), payload, geometry, 4, lambda site, expert: up, None)
    key = geometry.key(0, 1, 3)
    for values, ask in (
        ([1.0, 4.0, -3.0, 2.0], payload.forecast_bytes),
        ([-9.0, 0.0, 1.0, 5.0], payload.moved_bytes),
    ):
        channels.see(Asked(0, torch.tensor([values]), torch.tensor([[3]]), torch.ones(1, 1)))
        ask(key)
    assert channels.ranked(key, True).tolist() == [0, 3, 2, 1]


def test_parts_of_experts_that_are_not_stored_by_neuron_are_refused(live: Prepare) -> None:
    with pytest.raises(ValueError, match=r"payload ActiveShare of fp16 .*precision=floe"):
        live("system=lru", "payload=active_share", "loader.staging_slots=4")
