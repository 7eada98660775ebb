"""A phone's measured run against the simulator: reads and stalls of decoded tokens 65 to 128 from
tokens 1 to 64.

BigMoeOnEdge on a OnePlus 15R, Qwen3-30B-A3B in Q4_K_M, one LRU of 4000 MiB, ``--overlap
--io-threads 4 -t 4``. A token tells the time that its reading lanes were busy (``io_ms``), that its
kernels waited for them (``stall_ms``), that it kept books of its cache (``mgmt_ms``), and the rest
(``compute_ms``). Which experts were absent is the trace's own residency, which the simulator's LRU
explains to the last flag (``python -m sim.check``).

Constants are drawn from ``io_ms``, ``compute_ms`` and ``mgmt_ms`` of the first half alone; a stall
is never fitted:

- a lane is busy ``wake + bytes * per_byte`` for a layer's reads: two constants, least squares of
  relative errors;
- a layer's experts compute their share, by bytes, of the median ``compute_ms``;
- book-keeping takes as long for every absent expert: half of it, making room, is done while the
  lanes read.

What is read in which order is the engine's: one read for each of the three projections of an absent
expert, all gates, then all ups, then all downs, experts ascending; the kernels go through the
experts in that order and wait for each.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LANES = 4
PROJECTIONS = 3
Q4_K_BITS = 144 * 8 / 256
"""Bits a weight of gate and up; down takes what is left of an expert's bytes."""
GATE_BYTES = int(2048 * 768 * Q4_K_BITS / 8)
DENSE_BYTES = 541 * 2**20
"""Read of dense weights for a token, as the engine reports of this model."""
FITTED_ON = 64
Floats = NDArray[np.float64]


class PhoneError(ValueError):
    """Files that are not the recorded run; says what is missing."""


@dataclass(frozen=True)
class PhoneRun:
    """A decoded token's layers, each its experts ascending as (expert, was absent); expert bytes
    by layer; metrics.
    """

    layers: Sequence[Sequence[Sequence[tuple[int, bool]]]]
    expert_bytes: Sequence[int]
    metrics: Mapping[str, Floats]

    @property
    def absent(self) -> NDArray[np.int64]:
        """By token and layer."""
        return np.array(
            [[sum(gone for _, gone in layer) for layer in token] for token in self.layers], np.int64
        )


@dataclass(frozen=True)
class Constants:
    """Milliseconds: for a lane's start, a megabyte read, a layer's expert compute, book-keeping of
    an absent expert.

    ``compute_ms`` is the mean of a token's, for the sum of many.
    """

    wake_ms: float
    read_ms_per_mb: float
    layer_expert_ms: float
    booking_ms: float
    compute_ms: float


@dataclass(frozen=True)
class Errors:
    """Of tokens after the first half: median relative errors, summed wall over the measured, and
    a straight line's.
    """

    io: float
    stall: float
    wall_ratio: float
    line_io: float
    line_stall: float
    line_wall_ratio: float


def read_run(folder: Path) -> PhoneRun:
    """The recorded run in ``folder`` (``qwen.route.csv`` and ``qwen.metrics``). Raise
    PhoneError.
    """
    route, metrics = folder / "qwen.route.csv", folder / "qwen.metrics"
    for path in (route, metrics):
        if not path.is_file():
            raise PhoneError(f"{path} is not there; the recorded phone run needs it")
    lines = route.read_text(encoding="utf-8").splitlines()
    sizes = [
        int(line.split("expert_bytes=")[1].split()[0])
        for line in lines
        if line.startswith("# layer=")
    ]
    tokens: dict[int, list[list[tuple[int, bool]]]] = {}
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    for row in rows:
        if row["phase"] == "1":
            layers = tokens.setdefault(int(row["step"]), [[] for _ in sizes])
            layers[int(row["layer"])].append((int(row["expert"]), row["residency"] == "0"))
    table = [
        row
        for row in csv.DictReader(metrics.read_text(encoding="utf-8").splitlines())
        if row["step"].isdigit()
    ]
    if not sizes or len(table) != len(tokens):
        raise PhoneError(
            f"{folder}: {len(tokens)} decoded tokens in the routes, {len(table)} in the metrics"
        )
    names = ("wall_ms", "io_ms", "compute_ms", "stall_ms", "mgmt_ms")
    return PhoneRun(
        [[sorted(layer) for layer in tokens[step]] for step in sorted(tokens)],
        sizes,
        {name: np.array([float(row[name]) for row in table]) for name in names},
    )


def fit(run: PhoneRun) -> Constants:
    """From the first half of the tokens."""
    half = slice(0, FITTED_ON)
    absent, io_ms = run.absent, run.metrics["io_ms"]
    used = _features(run)
    wake, per_mb = _least_relative(used[half], io_ms[half])
    (booking,) = _least_relative(
        absent.sum(axis=1)[half, None].astype(float), run.metrics["mgmt_ms"][half]
    )
    compute = run.metrics["compute_ms"][half]
    sites = len(run.expert_bytes)
    routed = len(run.layers[0][0])
    expert_bytes = routed * sum(run.expert_bytes)
    share = expert_bytes / (expert_bytes + DENSE_BYTES)
    return Constants(
        wake, per_mb, float(np.median(compute)) * share / sites, booking, float(compute.mean())
    )


def _features(run: PhoneRun) -> Floats:
    """By token: lanes started, megabytes read."""
    absent = run.absent
    lanes = np.minimum(LANES, PROJECTIONS * absent).sum(axis=1)
    return np.stack([lanes, (absent * np.array(run.expert_bytes)).sum(axis=1) / 1e6], axis=1)


def _least_relative(features: Floats, target: Floats) -> list[float]:
    """Least squares of relative errors."""
    found = np.linalg.lstsq(features / target[:, None], np.ones(len(target)), rcond=None)[0]
    return [float(one) for one in found]


def io_ms(run: PhoneRun, constants: Constants) -> Floats:
    """Busy time of all lanes, by token."""
    return np.asarray(_features(run) @ np.array([constants.wake_ms, constants.read_ms_per_mb]))


def stall_ms(run: PhoneRun, constants: Constants) -> Floats:
    """Time that a token's kernels waited for reads."""
    return np.array(
        [
            sum(
                layer_stall_ms([gone for _, gone in layer], size, constants)
                for layer, size in zip(token, run.expert_bytes, strict=True)
            )
            for token in run.layers
        ]
    )


def layer_stall_ms(absent: Sequence[bool], expert_bytes: int, constants: Constants) -> float:
    """One layer's: reads go to the lane that is free first; kernels wait for each projection of
    each absent expert.
    """
    missing = [place for place, gone in enumerate(absent) if gone]
    if not missing:
        return 0.0
    sizes = (GATE_BYTES, GATE_BYTES, expert_bytes - 2 * GATE_BYTES)
    free, arrives = [constants.wake_ms] * LANES, dict[tuple[int, int], float]()
    for projection, size in enumerate(sizes):
        for place in missing:
            lane = free.index(min(free))
            free[lane] += size / 1e6 * constants.read_ms_per_mb
            arrives[projection, place] = free[lane]
    # The lanes read while the other half of the books is kept.
    now, waited = constants.booking_ms / 2 * len(missing), 0.0
    each = constants.layer_expert_ms / PROJECTIONS / len(absent)
    for projection in range(PROJECTIONS):
        for place in range(len(absent)):
            wait = max(0.0, arrives.get((projection, place), 0.0) - now)
            waited += wait
            now += wait + each
    return waited


def errors(run: PhoneRun) -> Errors:
    """On the tokens after the first half."""
    constants, test = fit(run), slice(FITTED_ON, None)
    reads, waits = io_ms(run, constants), stall_ms(run, constants)
    wall = constants.compute_ms + waits + constants.booking_ms * run.absent.sum(axis=1)
    line = {name: _line(run, name) for name in ("io_ms", "stall_ms", "wall_ms")}
    measured = run.metrics

    def median(predicted: Floats, name: str) -> float:
        return float(np.median(np.abs(predicted - measured[name])[test] / measured[name][test]))

    total = measured["wall_ms"][test].sum()
    return Errors(
        median(reads, "io_ms"),
        median(waits, "stall_ms"),
        float(wall[test].sum() / total),
        median(line["io_ms"], "io_ms"),
        median(line["stall_ms"], "stall_ms"),
        float(line["wall_ms"][test].sum() / total),
    )


def _line(run: PhoneRun, name: str) -> Floats:
    """A straight line on the bytes read, fitted to the first half of ``name`` itself."""
    read = (run.absent * np.array(run.expert_bytes)).sum(axis=1) / 1e6
    features = np.stack([np.ones(len(read)), read], axis=1)
    found = np.linalg.lstsq(features[:FITTED_ON], run.metrics[name][:FITTED_ON], rcond=None)[0]
    return np.asarray(features @ found)
