"""An engine's log beside the trace of the same run: what it tells of lanes, and how far a run is off.

The log has a line for each decoded token. Its times are in ms:

| column | time |
|---|---|
| io | that the engines of the link read, summed over engines |
| compute | of all but waits for reads and book-keeping |
| load | of book-keeping beside the reads |
| stall | that kernels waited for reads |
| wall | of the token |

The trace has what was absent, by token and layer (`sim.traces.residency_log`). Constants are fitted
to ``io``, ``compute`` and ``load``. Stalls are never fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from sim.machine.hardware import Hardware
from sim.machine.model import Model
from sim.machine.roofline import Roofline
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute
from sim.traces.residency_log import ResidencyLog
from sim.values.types import Step
from sim.values.units import GB, NS_PER_MS

QUANTITIES = ("io", "stall", "wall")
"""What a simulated run is compared in."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LaneLog:
    """A log of N decoded tokens and S sites.

    ``absent`` [N, S] counts the experts that were read, ``expert_bytes`` [S] are those of one.
    ``times_ms`` has columns [N] by name.
    """

    absent: NDArray[np.int64]
    expert_bytes: NDArray[np.int64]
    times_ms: Mapping[str, Floats]


def lane_log(residency: ResidencyLog, times_ms: Mapping[str, Floats]) -> LaneLog:
    """The log and the trace as one. Raise ValueError if they have different numbers of tokens."""
    # The prompt is the trace's first step; every further one is a decoded token.
    step, sites = residency.step, len(residency.expert_bytes)
    tokens = int(step.max())
    if any(len(column) != tokens for column in times_ms.values()):
        told = ", ".join(f"{name} {len(column)}" for name, column in times_ms.items())
        raise ValueError(f"the trace has {tokens} decoded tokens, the log has {told}")
    read = (residency.loaded_bytes > 0) & (step > 0)
    absent = np.zeros((tokens, sites), np.int64)
    np.add.at(absent, (step[read] - 1, residency.site[read]), 1)
    return LaneLog(absent, np.array(residency.expert_bytes, np.int64), times_ms)


@dataclass(frozen=True)
class LaneFit:
    """What tokens tell of a link with so many ``engines``, and of host and compute."""

    engines: int
    wake_ms: float
    ms_per_byte: float
    load_ms_per_byte: float
    compute_ms: float

    @property
    def engine_gb_per_s(self) -> float:
        return 1e3 / self.ms_per_byte / GB

    @property
    def load_gb_per_s(self) -> float:
        return 1e3 / self.load_ms_per_byte / GB

    def file(
        self,
        head: Sequence[str],
        *,
        base: str,
        name: str,
        link: str,
        memory: str,
        copy_gb_per_s: float | None,
        source: str,
    ) -> str:
        """The text of the machine's file. ``memory`` is the efficiency of the device's memory."""
        own, copies = self.engine_gb_per_s, copy_gb_per_s
        lines = [
            *(f"# {line}" for line in head),
            "defaults:",
            f"  - {base}",
            "  - _self_",
            f"name: {name}",
            "preset: calibrated",
            "validated: none  # tokens of one run are no runs",
            "links:",
            f"  {link}:",
            f"    engines: {self.engines}  # lanes, as given",
            f"    engine_gb_per_s: {own:.6g}  # a lane",
            f"    peak_gb_per_s: {self.engines * own:.6g}  # all lanes: no cap for all was felt",
            "    efficiency: 1.0  # as measured",
            "    overhead_us: 0.0  # a lane's start is told, not a read's",
            f"    wake_us: {self.wake_ms * 1e3:.6g}  # a lane's start",
            "    unit: projection  # as the engine reads",
        ]
        if copies is not None:
            lines.append(f"    copy_gb_per_s: {copies:g}  # as given; no column tells it")
        lines += [
            "compute:",
            f"  memory_efficiency: {memory}",
            "host:",
            f"  load_gb_per_s: {self.load_gb_per_s:.6g}  # book-keeping of loads, beside the reads",
            f'source: "{source}"',
        ]
        return "\n".join([*lines, ""])


def fit_lanes(log: LaneLog, rows: int, engines: int, projections: int) -> LaneFit:
    """The constants of the first ``rows`` tokens.

    Reading takes ``wake`` for each engine that a layer's reads set to work and so much a byte: least
    squares of relative errors. Book-keeping takes so much a byte: what is given back is pages. Raise
    ValueError for times that no such link can have.
    """
    started = np.minimum(engines, projections * log.absent).sum(axis=1)
    moved = (log.absent * log.expert_bytes).sum(axis=1)
    features = np.stack([started, moved], axis=1).astype(float)
    wake, per_byte = _least_relative(features[:rows], log.times_ms["io"][:rows])
    if wake < 0 or per_byte <= 0:
        raise ValueError(
            f"an engine would wake in {wake:.3g} ms and read a byte in {per_byte:.3g} ms: the log's"
            f" io is no time of {engines} engines, summed over them; give another number (lanes)"
        )
    (load,) = _least_relative(moved[:rows, None].astype(float), log.times_ms["load"][:rows])
    if load <= 0:
        raise ValueError(
            f"the log's book-keeping takes {load:.3g} ms a byte; name its column (load_ms:COLUMN)"
        )
    compute = float(np.median(log.times_ms["compute"][:rows]))
    return LaneFit(engines, wake, per_byte, load, compute)


def _least_relative(features: Floats, target: Floats) -> list[float]:
    """The coefficients that minimise the squares of relative errors of ``target``."""
    told = target > 0
    scaled = features[told] / target[told, None]
    found = np.linalg.lstsq(scaled, np.ones(len(scaled)), rcond=None)[0]
    return [float(one) for one in found]


def fit_memory(
    hardware: Hardware, model: Model, precision: str, context: int, compute_ms: float
) -> float:
    """The memory efficiency at which a decoded token's work takes ``compute_ms``.

    Raise ValueError unless it lies between 0.001 and 1.
    """
    step = Step(0, 0, 1, (0,), context, True, (), (), tuple(range(model.sites)))

    def token_ms(efficiency: float) -> float:
        compute = replace(hardware.compute, memory_efficiency=efficiency)
        costs = Roofline(model, replace(hardware, compute=compute), (precision,))
        experts = sum(model.top_k * costs.expert_ns(0, site, 1) for site in range(model.sites))
        return (sum(costs.dense_ns(step)) + costs.tail_ns(step) + experts) / NS_PER_MS

    low, high = 1e-3, 1.0
    if not token_ms(high) <= compute_ms <= token_ms(low):
        raise ValueError(
            f"a token of {model.name} at {precision} takes {token_ms(high):.3g} to"
            f" {token_ms(low):.3g} ms on {hardware.name} whatever its memory efficiency, the log"
            f" says {compute_ms:.3g}: another model, precision or base, or host time that the log"
            " counts as compute"
        )
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if token_ms(middle) > compute_ms else (low, middle)
    return (low + high) / 2


# ---- a simulated run beside the log


def simulated_ms(
    words: Sequence[str], hardware: Mapping[str, Any] | None = None
) -> dict[str, Floats]:
    """``io``, ``stall`` and ``wall`` by decoded token of the run of these words, in ms.

    ``hardware``: figures that take the place of the machine's.
    """
    cfg, system = configure(*words)
    if hardware is not None:
        OmegaConf.set_struct(cfg, False)
        cfg = DictConfig(OmegaConf.merge(cfg, {"hardware": dict(hardware)}))
    tokens = execute(build(cfg, system)).frames.tokens.filter(pl.col("phase") == "decode")
    wall_ns = tokens["end_ns"] - tokens["start_ns"]
    columns = {"io": tokens["reading_ns"], "stall": tokens["waiting_ns"], "wall": wall_ns}
    return {name: column.to_numpy() / NS_PER_MS for name, column in columns.items()}


def errors_after(
    predicted: Mapping[str, Floats], measured: Mapping[str, Floats], rows: int
) -> dict[str, Floats]:
    """The relative errors of the tokens after the first ``rows``, with their signs, by quantity.

    A token whose measured time is 0 has none, as one that never waited has none of its stall.
    """
    errors: dict[str, Floats] = {}
    for name in QUANTITIES:
        if name in measured:
            made, took = predicted[name][rows:], measured[name][rows:]
            errors[name] = made[took > 0] / took[took > 0] - 1
    return {name: error for name, error in errors.items() if len(error)}
