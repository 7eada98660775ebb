"""Predicts a phone's measured run: decoded tokens 65 to 128 from constants of tokens 1 to 64.

The run is BigMoeOnEdge on a OnePlus 15R, Qwen3-30B-A3B in Q4_K_M, one LRU of 4000 MiB, ``--overlap
--io-threads 4 -t 4``. Its log has these times of each token:

| column | time |
|---|---|
| io_ms | that the reading lanes were busy |
| stall_ms | that kernels waited for the lanes |
| mgmt_ms | of keeping the books of the cache |
| compute_ms | the rest |

Which experts were absent is the trace's own residency, which the simulator's LRU explains to the
last flag (``python -m sim.check``).

Constants are drawn from ``io_ms``, ``compute_ms`` and ``mgmt_ms`` of the first half alone. Stalls
are never fitted.

- A lane is busy ``wake + bytes * per_byte`` for a layer's reads. These two constants minimise the
  squares of relative errors.
- A layer's experts compute for their share, by bytes, of the median ``compute_ms``.
- Book-keeping takes equally long for every absent expert. Half of it, making room, is done while
  the lanes read.

The order of reads is the engine's. There is one read for each of the three projections of an absent
expert: first all gates, then all ups, then all downs, experts ascending. The kernels go through the
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
"""The bits a weight of gate and up projections; down takes the rest of an expert's bytes."""
GATE_BYTES = int(2048 * 768 * Q4_K_BITS / 8)
DENSE_BYTES = 541 * 2**20
"""The bytes of dense weights that a token's computation reads, as the engine reports them."""
FITTED_ON = 64
Floats = NDArray[np.float64]


class PhoneError(ValueError):
    """Files are not those of the recorded run; the message says what is missing."""


@dataclass(frozen=True)
class PhoneRun:
    """The recorded run.

    ``layers`` has, by decoded token and layer, pairs (expert, was absent) with experts ascending.
    ``expert_bytes`` is by layer. ``metrics`` has the log's columns, each by token.
    """

    layers: Sequence[Sequence[Sequence[tuple[int, bool]]]]
    expert_bytes: Sequence[int]
    metrics: Mapping[str, Floats]

    @property
    def absent(self) -> NDArray[np.int64]:
        """The number of absent experts, by token and layer."""
        return np.array(
            [[sum(gone for _, gone in layer) for layer in token] for token in self.layers], np.int64
        )


@dataclass(frozen=True)
class Constants:
    """The fitted constants, in ms.

    ``wake_ms`` is for a lane's start and ``layer_expert_ms`` for computing all experts of a layer.
    ``booking_ms`` is for the book-keeping of an absent expert. ``compute_ms`` is the mean over
    tokens, for sums over many tokens; ``token_compute_ms`` the median, for one token.
    """

    wake_ms: float
    read_ms_per_mb: float
    layer_expert_ms: float
    booking_ms: float
    compute_ms: float
    token_compute_ms: float = 0.0


@dataclass(frozen=True)
class Errors:
    """How well tokens after the first half are predicted.

    ``io`` and ``stall`` are median relative errors; ``wall_ratio`` is the predicted sum of wall
    times over the measured sum. ``line_*`` are the same for a straight line on the bytes read.
    """

    io: float
    stall: float
    wall_ratio: float
    line_io: float
    line_stall: float
    line_wall_ratio: float


def read_run(folder: Path) -> PhoneRun:
    """The recorded run in ``folder`` (``qwen.route.csv`` and ``qwen.metrics``).

    Raise PhoneError where a file is missing, or the two have different numbers of tokens.
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
    """The constants, fitted on the first half of the tokens."""
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
    middle = float(np.median(compute))
    return Constants(wake, per_mb, middle * share / sites, booking, float(compute.mean()), middle)


def _features(run: PhoneRun) -> Floats:
    """The lanes started and the megabytes read, by token [N, 2]."""
    absent = run.absent
    lanes = np.minimum(LANES, PROJECTIONS * absent).sum(axis=1)
    return np.stack([lanes, (absent * np.array(run.expert_bytes)).sum(axis=1) / 1e6], axis=1)


def _least_relative(features: Floats, target: Floats) -> list[float]:
    """The coefficients that minimise the squares of relative errors of ``target``."""
    found = np.linalg.lstsq(features / target[:, None], np.ones(len(target)), rcond=None)[0]
    return [float(one) for one in found]


def io_ms(run: PhoneRun, constants: Constants) -> Floats:
    """The predicted busy time of all lanes, by token."""
    return np.asarray(_features(run) @ np.array([constants.wake_ms, constants.read_ms_per_mb]))


def stall_ms(run: PhoneRun, constants: Constants) -> Floats:
    """The predicted time that kernels wait for reads, by token."""
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
    """The time that one layer's kernels wait for reads.

    A read goes to the lane that is free first. Kernels wait for each projection of each absent
    expert.
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
    # The lanes begin to read while half of the book-keeping is still to be done.
    now, waited = constants.booking_ms / 2 * len(missing), 0.0
    each = constants.layer_expert_ms / PROJECTIONS / len(absent)
    for projection in range(PROJECTIONS):
        for place in range(len(absent)):
            wait = max(0.0, arrives.get((projection, place), 0.0) - now)
            waited += wait
            now += wait + each
    return waited


def wall_ms(run: PhoneRun, constants: Constants) -> Floats:
    """The predicted time of each token: computing, waiting, and keeping the books."""
    books = constants.booking_ms * run.absent.sum(axis=1)
    return np.asarray(constants.token_compute_ms + stall_ms(run, constants) + books)


def errors(run: PhoneRun) -> Errors:
    """The errors of the prediction on the tokens after the first half."""
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
    """The column ``name`` predicted by a straight line on the bytes read.

    The line is fitted to the first half of the column itself.
    """
    read = (run.absent * np.array(run.expert_bytes)).sum(axis=1) / 1e6
    features = np.stack([np.ones(len(read)), read], axis=1)
    found = np.linalg.lstsq(features[:FITTED_ON], run.metrics[name][:FITTED_ON], rcond=None)[0]
    return np.asarray(features @ found)
