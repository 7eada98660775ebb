"""A phone's recorded run beside the same run simulated: a machine file, a trace and words.

The run is BigMoeOnEdge on a OnePlus 15R, Qwen3-30B-A3B in Q4_K_M, one LRU of 4000 MiB, ``--overlap
--io-threads 4 -t 4``. The machine is ``hardware=oneplus_15r_bigmoe``, which ``sim.calibrate`` drew
from decoded tokens 1 to 64 of the log (its I/O, computing and book-keeping, never its stalls).
What each column of the log is (`sim.answers.engine_lanes`) the engine's source says:

- ``io_ms`` sums over the lanes the time in ``pread``. A lane then copies what it read to its place,
  which no column has.
- ``stall_ms`` is the mean over four kernel threads of the time that each waited for projections.
- ``mgmt_ms`` is the giving back of evicted pages, beside the reads. Taking pages costs nothing.
- ``compute_ms`` is the rest of ``wall_ms``.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from sim.answers.engine_lanes import QUANTITIES, simulated_ms

ROUTES, METRICS = "qwen.route.csv", "qwen.metrics"
FITTED_ON = 64
WORDS = (
    "system=lru",
    "loader=bigmoe",
    "cache.recency=rows",
    "model=qwen3_30b_a3b",
    "model.top_k=6",
    # 567.3 MB of dense weights of the layers (the log's ``dense_bytes``) and 255.3 MB of the head
    # in Q6_K, over their 1.23 10**9 parameters.
    "+model.dense_bits=5.35",
    "precision=q4_k_m",
    "budget.slots_gib=3.90625",
    "trace.split=all",
    "hardware=oneplus_15r_bigmoe",
)
"""The run in words, but for its trace."""
Floats = NDArray[np.float64]


class PhoneError(ValueError):
    """Files are not those of the recorded run; the message says what is missing."""


@dataclass(frozen=True)
class PhoneRun:
    """The recorded run and the simulated one, by decoded token, in ms.

    ``measured`` and ``predicted`` have ``io``, ``stall`` and ``wall``; ``read_bytes`` is what the
    engine read.
    """

    measured: Mapping[str, Floats]
    predicted: Mapping[str, Floats]
    read_bytes: Floats

    def error(self, name: str) -> Floats:
        """The relative errors of the tokens after the first half, with their signs."""
        return (self.predicted[name] / self.measured[name] - 1)[FITTED_ON:]

    def line(self, name: str) -> Floats:
        """The column predicted by a straight line on the bytes that were read, by token.

        The line is fitted to the first half of the column itself.
        """
        features = np.stack([np.ones(len(self.read_bytes)), self.read_bytes], axis=1)
        fitted = features[:FITTED_ON], self.measured[name][:FITTED_ON]
        return np.asarray(features @ np.linalg.lstsq(*fitted, rcond=None)[0])


def read_run(folder: Path) -> PhoneRun:
    """The recorded run in ``folder`` (``qwen.route.csv`` and ``qwen.metrics``), and simulated.

    Raise PhoneError where a file is missing or cannot be read, or the two have different numbers
    of tokens.
    """
    for name in (ROUTES, METRICS):
        if not (folder / name).is_file():
            raise PhoneError(f"{folder / name} is not there; the recorded phone run needs it")
    columns = _columns(folder / METRICS)
    with TemporaryDirectory() as place:
        trace = Path(place) / "trace"
        _import(folder / ROUTES, trace)
        predicted = simulated_ms([*WORDS, f"trace.path={trace}"])
    measured = {name: columns[f"{name}_ms"] for name in QUANTITIES}
    if len(predicted["io"]) != len(measured["io"]):
        raise PhoneError(
            f"{folder}: {len(predicted['io'])} decoded tokens in the routes,"
            f" {len(measured['io'])} in the metrics"
        )
    return PhoneRun(measured, predicted, columns["read_bytes"])


def _columns(path: Path) -> dict[str, Floats]:
    """The columns of the log that are compared."""
    rows = [
        row
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        if (row.get("step") or "").isdigit()
    ]
    names = [*(f"{name}_ms" for name in QUANTITIES), "read_bytes"]
    try:
        return {name: np.array([float(row[name]) for row in rows]) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise PhoneError(
            f"{path} must have numbers in the columns {', '.join(names)}: {error}"
        ) from error


def _import(routes: Path, trace: Path) -> None:
    """Make a trace of the engine's routes, with what its cache held."""
    words = ["format=bigmoe", f"path={routes}", f"output_dir={trace}"]
    command = [sys.executable, "-m", "capture.import_trace", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PhoneError(f"{routes} cannot be imported: {done.stderr.strip()[-500:]}")
