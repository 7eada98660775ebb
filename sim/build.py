"""From a composed configuration to the objects of a run. The only module that instantiates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from sim.controller import Controller
from sim.costs import Roofline, check_memory
from sim.model import PRECISION_BITS, Model
from sim.policies.caches import Belady
from sim.policies.precisions import ScoreThreshold
from sim.run import Run
from sim.trace import Trace, read_trace
from sim.types import Geometry
from sim.units import require_number
from sim.workload import Workload

ROOT = Path(__file__).parents[1]
"""The project's folder: relative paths that do not exist below the working directory are looked up here."""

SETTINGS = ("budget", "seed", "outputs", "timeline_steps", "output_dir")
OUTPUTS = ("all", "summary")
PARTS = ("model", "hardware", "trace", "workload", "predictor", "cache", "precision", "placement", "loader")


@dataclass(frozen=True)
class TraceChoice:
    """Which trace, and which of its sequences: a split, without those that carry a flag, at most so many."""

    path: str
    split: str
    exclude: Sequence[str]
    max_sequences: int | None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise ValueError(f"trace.path={self.path!r} must be the directory of a trace")
        if isinstance(self.exclude, str) or not all(isinstance(flag, str) for flag in self.exclude):
            raise ValueError(f"trace.exclude={self.exclude!r} must be a list of flags, such as [has_repetition]")
        if self.max_sequences is not None:
            require_number("trace.max_sequences", self.max_sequences, minimum=1, whole=True)


@dataclass(frozen=True)
class WorkloadChoice:
    """How sequences become steps, and which lookahead scores are used."""

    batching: str
    lookahead_norm: str


def build(cfg: DictConfig, system: str, trace: Trace | None = None) -> Run:
    """A fresh run. ``trace`` saves reading it again where it is at hand (with the columns that the run needs).

    Raise ValueError (``TraceError`` and ``CapacityError`` among them), saying what does not fit what.
    """
    if missing := OmegaConf.missing_keys(cfg):
        raise ValueError(f"configuration values not set: {', '.join(sorted(missing))}; give them on the command line")
    OmegaConf.resolve(cfg)
    if cfg.outputs not in OUTPUTS:
        raise ValueError(f"unknown outputs={cfg.outputs}; allowed: {', '.join(OUTPUTS)}")
    if cfg.timeline_steps is not None:
        require_number("timeline_steps", cfg.timeline_steps, minimum=1, whole=True)
    require_number("seed", cfg.seed, whole=True)
    known = {*PARTS, *SETTINGS}
    if unknown := [str(name) for name in cfg if name not in known]:
        raise ValueError(f"unknown settings {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    if unknown := [f"budget.{name}" for name in cfg.get("budget") or () if name != "resident_share"]:
        raise ValueError(f"unknown settings {', '.join(unknown)}; known: budget.resident_share")
    for name in (*PARTS, "budget"):
        if not OmegaConf.is_dict(cfg.get(name)):
            raise ValueError(
                f"{name}={cfg.get(name)} must be a section of values, as in conf/; leave it or set a value in it"
            )
    part = {name: _part(cfg, name) for name in PARTS}
    model, hardware, choice = part["model"], part["hardware"], part["trace"]
    predictor, cache, selector = part["predictor"], part["cache"], part["precision"]
    trace = trace or load_trace(choice.path, predictor.lookahead_sites)
    model.check_trace(trace.header.model, trace.header.name)
    workload = Workload(
        trace, split=choice.split, batching=part["workload"].batching, lookahead=predictor.lookahead_sites,
        norm=part["workload"].lookahead_norm, exclude=choice.exclude, max_sequences=choice.max_sequences,
    )  # fmt: skip
    if isinstance(selector, ScoreThreshold) and selector.quantiles is not None:
        selector.profile(fit_scores(trace))
    share = cfg.budget.resident_share
    geometry = _geometry(model, selector.precisions, share)
    if isinstance(cache, Belady):
        if selector.constant is None:
            raise ValueError(
                "cache=belady needs one precision for all experts; choose precision=fp16 or another fixed one"
            )
        cache.foresee(_key_schedule(workload, geometry, selector.constant))
    controller = Controller(geometry, predictor, cache, selector, part["placement"], part["loader"])
    ledger = check_memory(model, hardware, workload.steps, sum(controller.slots.capacity_bytes))
    durations = Roofline(model, hardware, selector.precisions)
    config = OmegaConf.to_container(cfg)
    assert isinstance(config, dict)
    return Run(system, model, hardware, trace, workload, controller, durations, ledger, share, cfg.seed,
               {str(name): value for name, value in config.items()})  # fmt: skip


def _part(cfg: DictConfig, name: str) -> Any:
    try:
        return instantiate(cfg[name], _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        raise ValueError(f"{name}: {cause if cause is not None else error}") from error


def load_trace(path: str, lookahead_sites: int) -> Trace:
    """The trace at ``path``, with its lookahead scores where a predictor needs them."""
    directory = Path(path)
    if not directory.is_absolute() and not directory.exists():
        directory = ROOT / directory
    columns: tuple[str, ...] = ()
    if lookahead_sites:
        trace = read_trace(directory)
        if trace.header.lookahead is None:
            return trace
        columns = ("lookahead",)
    return read_trace(directory, columns)


def fit_scores(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """HOBBIT's eq. 2 score of every decode selection of the trace's fit split, flat."""
    workload = Workload(trace, split="fit", batching="sequential")
    decode = np.array([step.start for step in workload.steps if step.decode], dtype=np.int64)
    chosen = workload.chosen[0][decode] >= 0
    return np.asarray(workload.scores[decode][chosen], dtype=np.float64)


def _geometry(model: Model, precisions: tuple[str, ...], share: float) -> Geometry:
    require_number("budget.resident_share", share)
    if not 0 < share <= 1:
        raise ValueError(f"budget.resident_share={share} must be above 0 and at most 1: a share of all experts' bytes")
    sizes = tuple(model.expert_bytes(precision) for precision in precisions)
    capacity = int(share * model.sites * model.experts * sizes[0])
    bits = tuple(PRECISION_BITS[precision] for precision in precisions)
    return Geometry(model.sites, model.experts, model.top_k, precisions, bits, sizes, capacity)


def _key_schedule(workload: Workload, geometry: Geometry, precision: int) -> list[list[int]]:
    sites = geometry.sites
    return [
        [geometry.key(precision, tick % sites, expert) for expert in needs]
        for tick, needs in enumerate(workload.schedule())
    ]
