"""One run of an experiment: its words, its trace, what is measured of it; each is run once and kept."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from hydra.errors import HydraException
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sim.build import ROOT, build, load_trace
from sim.configure import configure
from sim.engine import simulate
from sim.frames import Frames
from sim.latency import decode_time_and_tokens, prefill_time
from sim.reproduce.roles import Paper
from sim.reproduce.storage import Timing, timed
from sim.run import Run
from sim.trace import Trace

LOADING = ("demand", "behind_demand", "behind_prefetch", "late_prefetch", "storage", "no_slot")
OWN = ("trace", "timing", "calibrated")
"""Words that this module resolves; all others are a configuration's."""
WRONG = "sim.reproduce.wrong.AlwaysWrong"


class ArmError(ValueError):
    """A run of an experiment that cannot be; says which, and why."""


@dataclass(frozen=True)
class Arm:
    """One run: the words of its configuration, the trace it replays, and whether durations are given (``timing``)."""

    words: tuple[str, ...]
    trace: str
    timing: str | None = None

    def key(self, digest: str) -> str:
        """What identifies the run: its words, its trace and everything that computes it."""
        return hashlib.sha256(json.dumps([asdict(self), digest]).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Measured:
    """What is kept of a run. Lists are by sequence, times in ns; decode unless it says prefill."""

    decode_ns: list[float]
    tokens: list[float]
    prefill_ns: list[float]
    prompt_tokens: list[int]
    asked: list[float]
    found: list[float]
    missed: list[float]
    penalty: list[float]
    loading_share: float
    host_ns_per_prefill_gate: float
    link_ns_per_gate: float
    ns_per_transfer: float
    prefetches_per_gate: float
    device_bytes: int
    gates: str = ""
    extra: dict[str, float] = field(default_factory=dict)


def expand(paper: Paper, words: Sequence[str], constants: Mapping[str, float]) -> Arm:
    """The arm of a list of words: names of lists are replaced, the later of two that say the same stands.

    Choosing an option drops what was set in the one before it. Raise ArmError for a word that nothing knows.
    """
    chosen: dict[str, str] = {}
    for word in _flat(paper, words):
        name, found, value = word.partition("=")
        if not found:
            raise ArmError(f"{paper.title}: the word {word!r} is neither a list of words nor name=value")
        if "." not in name:
            for other in [key for key in chosen if key.startswith(f"{name}.")]:
                del chosen[other]
        chosen.pop(name, None)
        chosen[name] = value
    if (constant := chosen.pop("calibrated", None)) is not None:
        key = str(paper.calibrated[constant]["key"])
        chosen.setdefault(key, f"{constants.get(constant, 0.0):.3f}")
    trace = chosen.pop("trace", "")
    if trace not in paper.traces:
        raise ArmError(f"{paper.title}: trace={trace!r} is none of {', '.join(paper.traces)}")
    timing = chosen.pop("timing", None)
    return Arm(tuple(f"{name}={value}" for name, value in chosen.items()), trace, timing)


def _flat(paper: Paper, words: Sequence[Any]) -> list[str]:
    found: list[str] = []
    for word in words:
        found += _flat(paper, paper.words[str(word)]) if str(word) in paper.words else [str(word)]
    return found


@cache
def digest() -> str:
    """Of everything that a run depends on: the simulator, its options, and what fits and synthesises traces."""
    own = [Path(__file__).parent / f"{name}.py" for name in ("arms", "storage", "wrong")]
    files = [*ROOT.glob("conf/**/*.yaml"), *ROOT.glob("capture/*.py"), *ROOT.glob("capture/presets/**/*.*"), *own,
             *(path for path in ROOT.glob("sim/**/*.py") if "reproduce" not in path.parts)]  # fmt: skip
    return digest_of(sorted(files))


def digest_of(files: Sequence[Path]) -> str:
    """Of the names and contents of ``files``, and of numpy's version."""
    total = hashlib.sha256(np.__version__.encode())
    for path in files:
        if path.is_file():
            total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()[:24]


def measure(arm: Arm, trace_dir: Path, timing: Timing | None) -> Measured:
    """Simulate ``arm`` on the trace in ``trace_dir`` and keep what experiments read. Raise ArmError."""
    run = prepare(arm, trace_dir)
    durations: Any = run.durations if timing is None else timed(run, timing)
    record = simulate(run.controller, run.workload, durations)
    frames = Frames(run.controller, run.workload, durations, record, run.hardware.link_names)
    return _measured(run, frames)


def prepare(arm: Arm, trace_dir: Path) -> Run:
    """The built run of ``arm``."""
    wrong = "predictor=always_wrong" in arm.words
    words = [word.replace("predictor=always_wrong", "predictor=stated_accuracy") for word in arm.words]
    try:
        cfg, system = configure("outputs=summary", f"trace.path={trace_dir}", *words)
        if wrong:
            cfg.predictor._target_ = WRONG
        _give_fit(cfg, trace_dir)
        return build(cfg, system, _trace(str(trace_dir)))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ArmError(f"{' '.join(words)} on {trace_dir.name}: {error}") from error


def _give_fit(cfg: DictConfig, trace_dir: Path) -> None:
    """Point a predictor that is fitted at the fit that lies beside its trace."""
    if "artefact" not in cfg.predictor or cfg.predictor.artefact is not None:
        return
    for path in sorted((trace_dir.parent / f"{trace_dir.name}.fits").glob("*/*.json")):
        option = OmegaConf.load(ROOT / "conf" / "predictor" / f"{path.parent.name}.yaml")
        if get_class(str(option._target_)) is get_class(str(cfg.predictor._target_)):
            cfg.predictor.artefact = str(path)


@lru_cache(maxsize=3)
def _trace(path: str) -> Trace:
    return load_trace(path, lookahead_sites=3)


def _measured(run: Run, frames: Frames) -> Measured:
    decode_ns, tokens = decode_time_and_tokens(frames)
    lookups = _by_sequence(run, frames)
    gates = max(1, frames.lookups["tick"].n_unique())
    first, decode_gates = frames.link_names[0], lookups.pop("gates")
    hops = frames.transfers.filter(pl.col("link") == first)
    whole = hops["end_ns"] - hops["start_ns"]
    return Measured(
        decode_ns.tolist(), tokens.tolist(), prefill_time(frames).tolist(), frames.sequences["prompt_tokens"].to_list(),
        **lookups, loading_share=_loading_share(frames), host_ns_per_prefill_gate=_host_per_prefill_gate(run, frames),
        link_ns_per_gate=frames.traffic.busy_ns()[first] / gates,
        ns_per_transfer=float(whole.mean() or 0.0) if len(whole) else 0.0,  # type: ignore[arg-type]
        prefetches_per_gate=sum(t.prefetch for t in run.controller.issued) / max(1, decode_gates),
        device_bytes=run.ledger.total_bytes, gates=run.trace.header.name,
    )  # fmt: skip


def _by_sequence(run: Run, frames: Frames) -> dict[str, Any]:
    """Of decode lookups: those asked for, found on the device, missed, and the misses' penalties, by sequence."""
    bits = run.controller.geometry.bits
    cost = {name: each / bits[0] for name, each in zip(run.controller.geometry.precisions, bits, strict=True)}
    decode = frames.lookups.filter((pl.col("phase") == "decode") & (pl.col("outcome") != "skip"))
    is_miss = pl.col("outcome").is_in(["miss", "promoted"])
    steps = frames.tokens.select("step", "sequence")
    table = decode.join(steps, on="step").group_by("sequence").agg(
        asked=pl.len(), found=pl.col("outcome").is_in(["hit", "high_for_low"]).sum(), missed=is_miss.sum(),
        penalty=pl.col("wanted").replace_strict(cost, return_dtype=pl.Float64).filter(is_miss).sum(),
    )  # fmt: skip
    table = frames.sequences.select("sequence").join(table, on="sequence", how="left", maintain_order="left")
    names = ("asked", "found", "missed", "penalty")
    columns = {name: table[name].fill_null(0).cast(pl.Float64).to_list() for name in names}
    return {**columns, "gates": decode["tick"].n_unique()}


def _loading_share(frames: Frames) -> float:
    """Of the time of decode steps, what the stream waited for loads."""
    record = frames.record
    start = np.array(record.step_start_ns, np.int64)
    is_decode = np.array([step.decode for step in frames.workload.steps], np.bool_)
    at = np.searchsorted(start, np.array(record.idle_start_ns, np.int64), side="right") - 1
    waited = np.sum([frames.stalls[part] for part in LOADING], axis=0)
    time_ns = int((np.array(record.step_end_ns, np.int64) - start)[is_decode].sum())
    return float(np.sum(waited[is_decode[at]])) / time_ns if time_ns else 0.0


def _host_per_prefill_gate(run: Run, frames: Frames) -> float:
    steps = [step for step in run.workload.steps if not step.decode]
    gates = sum(len(step.sites) for step in steps)
    start = np.array(frames.record.step_start_ns, np.int64)
    at = np.searchsorted(start, np.array(frames.record.idle_start_ns, np.int64), side="right") - 1
    is_prefill = np.array([not step.decode for step in run.workload.steps], np.bool_)
    return float(frames.stalls["host"][is_prefill[at]].sum()) / gates if gates else 0.0


def save(path: Path, measured: Measured) -> None:
    """Write a result whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(asdict(measured)) + "\n", encoding="utf-8")
    part.replace(path)


def load(path: Path) -> Measured:
    return Measured(**json.loads(path.read_text(encoding="utf-8")))
