"""From a composed configuration to a run on a device: the store is opened, or written first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf

from capture.recording.settings import Settings
from real.driver.device import Device
from real.driver.settings import INPUTS, Engine, Live
from real.setup.devices import check_device, maker_of
from real.setup.stores import STAND_IN, Advance, PlannedStore, plan_of, weights_folder
from real.store.experts import ExpertForm
from real.store.stand_in import StandInForm
from real.store.store import Store
from real.store.swapping import forms_of_layers
from real.store.work import Weights
from sim.machine.model import Model
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.own_gates import own_gates
from sim.setup.sections import make_object
from sim.traces.trace import Trace
from sim.values.places import ASSETS
from sim.workload.kv_room import GROWING, ONCE

if TYPE_CHECKING:
    from real.store.weightless import Weightless

SECTIONS = ("device", "input", "engine", "live")
"""What ``conf/real.yaml`` adds to a simulated run's configuration."""
CheckLive = Callable[["Request", Run, "Weightless", bool], object]
"""``check(request, run, weightless, by_neuron)`` of a live run that is to be."""


@dataclass(frozen=True)
class Request:
    """What was asked for, checked.

    ``simulated`` is the configuration of the run without this package's sections.
    """

    device: str
    input: str
    engine: Engine
    live: Live
    simulated: DictConfig
    system: str
    changed: tuple[str, ...] = ()
    """The overrides of machine, model, trace and workload."""

    @property
    def needs_weights(self) -> bool:
        return self.device != "null" or self.input == "live"


OF_TRACES = ("trace.max_sequences", "trace.split", "trace.exclude", "workload.short_sequences")
"""Which of a trace's sequences are replayed."""
OF_PACE = ("engine.links", "engine.compute")
OF_STORE = tuple(
    f"engine.{name}" for name in ("source", "cold", "weights", "dtype", "stand_in_gib")
)
"""What says something of the experts' weights, of which a replay on the null device has none."""
OF_GATHERING = ("engine.gather", "engine.gather_threads", "engine.gather_columns")
GATHERING = ("cuda", "host")
"""The devices that gather the neurons of a partial move."""


@dataclass(frozen=True)
class Prepared:
    """A run and its device; ``weightless`` is the model of a live run."""

    request: Request
    run: Run
    device: Device
    weights: Weights | None
    weightless: Weightless | None = None

    @property
    def num_steps(self) -> int | None:
        """How many steps the run will have; None where that is not known."""
        if self.request.input == "replay":
            return len(self.run.workload.steps) or None
        if self.run.workload.batching != "sequential":
            return None
        return sum(1 + new for _, new in self.request.live.lengths())


def check_words(cfg: DictConfig, words: Sequence[str]) -> None:
    """Raise ValueError for a word that changes nothing: one about the other input, or about what
    the device does not have, such as a pace, weights or a gatherer.
    """
    is_live = cfg.input == "live"
    unused = OF_TRACES if is_live else ("live",)
    way = "say live.sequences and live.split" if is_live else "say input=live"
    for word in words:
        key = word.lstrip("+~").partition("=")[0]
        if any(key == one or key.startswith(f"{one}.") for one in unused):
            raise ValueError(
                f"{word} changes nothing with input={cfg.input}; leave it out, or {way}"
            )
        is_null = cfg.device in (None, "null")
        if key in OF_PACE and word.endswith("=free") and is_null:
            raise ValueError(
                f"{word} changes nothing on device=null, whose clock is virtual; leave it out, or"
                " choose device=cpu"
            )
        if key in OF_STORE and is_null and not is_live:
            raise ValueError(
                f"{word} changes nothing on device=null, where a replay moves no weights; leave it"
                " out, or choose device=cpu"
            )
        if key == "engine.stand_in_gib" and (not is_null or is_live) and not _is_stand_in(cfg):
            raise ValueError(
                f"{word} changes nothing: the experts are a checkpoint's; leave it out, or choose"
                f" engine.weights={STAND_IN}"
            )
        if key in OF_GATHERING and cfg.device not in GATHERING:
            raise ValueError(
                f"{word} changes nothing on device={'null' if is_null else cfg.device}, which gathers"
                f" no neurons; leave it out, or choose device={' or '.join(GATHERING)}"
            )


def _is_stand_in(cfg: DictConfig) -> bool:
    """Whether the experts are patterns, and no checkpoint's."""
    engine = _section(Engine, "engine", cfg.engine)
    return weights_folder(engine, make_object(cfg.model)) is None


def check_slowing(cfg: DictConfig, words: Sequence[str]) -> None:
    """Raise ValueError for a word by which parties of the machine slow each other during a run:
    those of a device do so by themselves, or not at all (contract C74).
    """
    shared = cfg.hardware.get("shared_memory") or {}
    parts = ["hardware.beside"]
    parts += ["hardware.shared_memory"] if shared.get("slows") == "as_drawn" else []
    for word in words:
        key = word.lstrip("+~").partition("=")[0]
        if any(key == part or key.startswith(f"{part}.") for part in parts):
            raise ValueError(
                f"{word} changes nothing on a device, whose parties are not slowed by these figures;"
                " moelab run simulates this, or leave it out"
            )


def read_request(cfg: DictConfig, system: str, changed: Sequence[str] = ()) -> Request:
    """The request that a configuration makes. Raise ValueError for an unknown section or value."""
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    simulated = OmegaConf.create(
        {name: value for name, value in plain.items() if name not in SECTIONS}
    )
    device = "null" if cfg.device is None else str(cfg.device)
    if cfg.input not in INPUTS:
        raise ValueError(f"unknown input={cfg.input}; allowed: {', '.join(INPUTS)}")
    maker_of(device)
    if plain.get("workload", {}).get("requests"):
        raise ValueError(
            "workload.requests: no device of ours holds prefixes, or moves keys and values; moelab"
            " run simulates them, or set workload.requests=null"
        )
    if plain.get("hardware", {}).get("devices"):
        raise ValueError(
            "hardware.devices: a run is on one device; moelab run simulates several, or set"
            " hardware.devices=null"
        )
    _require_no_lanes(plain)
    engine = _section(Engine, "engine", cfg.engine)
    _require_no_free_drafts(device, engine, plain.get("workload") or {})
    return Request(
        device,
        cfg.input,
        engine,
        _section(Live, "live", cfg.live),
        simulated,
        system,
        tuple(changed),
    )


def _require_no_lanes(plain: Mapping[str, Any]) -> None:
    """Raise ValueError for what only the simulator has (contracts C141, C165 to C168, C174)."""
    hardware = plain.get("hardware") or {}
    links, host = hardware.get("links") or {}, hardware.get("host") or {}
    off = (None, 0, "variant")
    found = [
        f"hardware.links.{name}.{key}={link[key]}"
        for name, link in links.items()
        for key in ("engine_gb_per_s", "wake_us", "copy_gb_per_s", "unit")
        if isinstance(link, Mapping) and link.get(key) not in off
    ]
    found += [
        f"hardware.host.{key}={host[key]}"
        for key in ("load_us", "load_gb_per_s")
        if host.get(key) not in off
    ]
    found += [
        f"hardware.links.{name}.page_cache"
        for name, link in links.items()
        if isinstance(link, Mapping) and link.get("page_cache") is not None
    ]
    if hardware.get("swap") is not None:
        found.append("hardware.swap")
    if (plain.get("loader") or {}).get("wait") == "by_projection":
        found.append("loader.wait=by_projection")
    if (plain.get("workload") or {}).get("kv_allocation") == GROWING:
        raise ValueError(
            f"workload.kv_allocation={GROWING}: a device's slots are allocated once; moelab run"
            f" simulates this, or set it to {ONCE}"
        )
    if found:
        raise ValueError(
            f"{', '.join(found)}: a device's engines read whole variants at their own pace; moelab"
            " run simulates this, or leave it out"
        )


def _require_no_free_drafts(device: str, engine: Engine, workload: Mapping[str, Any]) -> None:
    """Raise ValueError for drafts whose time no device takes: only nominal times have it."""
    layers = workload.get("draft_layers", 0)
    if device != "null" and engine.compute == "free" and workload.get("draft_tokens") and layers:
        raise ValueError(
            f"workload.draft_layers={layers} with engine.compute=free: device={device} computes no"
            " drafts, so that they would take no time; choose engine.compute=padded, or set"
            " workload.draft_layers=0"
        )


def _section(kind: type[Any], name: str, values: DictConfig) -> Any:
    plain: Any = OmegaConf.to_container(values, resolve=True) if OmegaConf.is_dict(values) else None
    known = list(kind.__dataclass_fields__)
    if not isinstance(plain, dict) or (unknown := [key for key in plain if key not in known]):
        raise ValueError(
            f"{name} must be a section of {', '.join(known)}"
            + (f", not of {unknown}" if plain is not None else "")
        )
    return kind(**plain)


def prepare_replay(
    request: Request, trace: Trace | None = None, advance: Advance = lambda done, total: None
) -> Prepared:
    """A run whose routing is a trace's. Raise ValueError for parts that do not fit each other."""
    if not request.needs_weights:
        run = build(request.simulated, request.system, trace, changed=request.changed)
        return Prepared(request, run, maker_of(request.device)(run, None, request.engine), None)
    model = make_object(request.simulated.model)
    _check_gates(request, model, trace)
    folder = weights_folder(request.engine, model)
    if folder is None:
        forms: Sequence[ExpertForm] = [StandInForm(model, site) for site in range(model.sites)]
    else:
        # Only here and in a live run is transformers imported: that takes seconds.
        from capture.models.discover import discover
        from real.store.weightless import skeleton

        forms = forms_of_layers(discover(skeleton(settings_of(request, folder))))
    planned = plan_of(request.engine, request.simulated, model, folder, forms)
    run = _run_with(request, planned, trace)
    weights = weights_of(request, model, planned.open(advance), forms)
    return Prepared(request, run, maker_of(request.device)(run, weights, request.engine), weights)


def _run_with(request: Request, planned: PlannedStore, trace: Trace | None) -> Run:
    """The run with experts in a planned store's sizes.

    Raise ValueError for parts that do not fit each other, and for what the device does not do.
    """
    run = build(
        request.simulated,
        request.system,
        trace,
        changed=request.changed,
        stored_bytes=planned.variant_bytes,
    )
    check_device(request.device, run.controller, request.engine, by_neuron=planned.by_neuron)
    return run


def _check_gates(request: Request, model: Model, trace: Trace | None) -> None:
    """Raise ValueError for a model without gates before its store is written, which takes long."""
    if trace is None and request.simulated.trace.get("path") is None:
        own_gates(model)


def settings_of(request: Request, folder: Path) -> Settings:
    """Settings with which the model is loaded as a capture loads it."""
    return Settings(str(folder), Path(request.live.prompts), Path(), dtype=request.engine.dtype)


def weights_of(
    request: Request, model: Model, store: Store, forms: Sequence[ExpertForm]
) -> Weights:
    dtype = getattr(torch, request.engine.dtype)
    dense = [*(model.block_params(site) for site in range(model.sites)), model.head_params]
    return Weights(store, forms, dtype, model.hidden, dense)


def _to_gpu(model: Any) -> None:
    """Move what a model has beside its experts to the GPU, and wait for it.

    A run's streams do not wait for that move, so it must be over before.
    """
    model.to("cuda")
    torch.cuda.synchronize()


def prepare_live(
    request: Request,
    check: CheckLive,
    trace: Trace | None = None,
    advance: Advance = lambda done, total: None,
) -> Prepared:
    """A run whose routing is the model's own; the trace brings only what was fitted.

    ``check`` raises ValueError for what a live run does not do, before the store is written. Raise
    ValueError for parts that do not fit each other, and without a model's weights.
    """
    model = make_object(request.simulated.model)
    folder = weights_folder(request.engine, model)
    if folder is None:
        raise ValueError(
            f"input=live needs a model that decides: model={model.name} has no weights here; choose"
            " one of"
            f" {', '.join(sorted(path.parent.name for path in ASSETS.glob('*/config.json')))}, or"
            " give engine.weights"
        )
    _check_gates(request, model, trace)
    from real.store.weightless import load_weightless

    weightless = load_weightless(settings_of(request, folder))
    planned = plan_of(request.engine, request.simulated, model, folder, weightless.forms)
    run = _run_with(request, planned, trace)
    check(request, run, weightless, planned.by_neuron)
    if request.device == "cuda" and torch.cuda.is_available():
        _to_gpu(weightless.model)
    weights = weights_of(request, model, planned.open(advance), weightless.forms)
    return Prepared(
        request, run, maker_of(request.device)(run, weights, request.engine), weights, weightless
    )
