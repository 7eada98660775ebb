"""A phone's recorded runs beside the same runs simulated: a machine file, traces and words.

The runs are BigMoeOnEdge on a OnePlus 15R, one LRU, ``--overlap --io-threads 4 -t 4``. The machine
is ``hardware=oneplus_15r_bigmoe``, which ``sim.calibrate`` drew from decoded tokens 1 to 64 of
Qwen3's log (its I/O, computing and book-keeping, never its stalls). Nothing of the other runs is
fitted. What each column of a log is (`sim.answers.engine_lanes`) the engine's source says:

- ``io_ms`` sums over the lanes the time in ``pread``. A lane then copies what it read to its place,
  which no column has.
- ``stall_ms`` is the mean over four kernel threads of the time that each waited for projections.
- ``mgmt_ms`` is the giving back of evicted pages, beside the reads. Taking pages costs nothing.
- ``compute_ms`` is the rest of ``wall_ms``.

Bytes of experts and of layers' dense weights are those of each trace. What no file tells is in
`RECORDINGS`, with where it is from.
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

Floats = NDArray[np.float64]


class PhoneError(ValueError):
    """Files are not those of a recorded run; the message says what is missing."""


@dataclass(frozen=True)
class Recording:
    """A published run: how its files begin, its model's name, and the run in words but its trace.

    ``facts`` are of the model, for the trace's header. The machine was drawn from the first
    ``fitted`` decoded tokens.
    """

    stem: str
    model: str
    words: tuple[str, ...]
    facts: tuple[str, ...] = ()
    fitted: int = 0

    @property
    def routes(self) -> str:
        return f"{self.stem}.route.csv"

    @property
    def metrics(self) -> str:
        return f"{self.stem}.metrics"


def _words(*own: str) -> tuple[str, ...]:
    """The words of a run: those of all runs around its own."""
    first = "system=lru", "loader=bigmoe", "cache.recency=rows", "cache.initial=empty"
    return (*first, *own, "trace.split=all", "hardware=oneplus_15r_bigmoe")


QWEN = Recording(
    "qwen",
    "Qwen3-30B-A3B",
    _words(
        "model=qwen3_30b_a3b",
        "model.top_k=6",
        # 567.3 MB of dense weights of the layers (the log's ``dense_bytes``) and 255.3 MB of the
        # head in Q6_K, over their 1.23 10**9 parameters.
        "+model.dense_bits=5.35",
        "precision=q4_k_m",
        "budget.slots_gib=3.90625",
    ),
    fitted=64,
)
"""The run that the machine is drawn from."""
GEMMA = Recording(
    "gemma",
    "Gemma-4-26B-A4B",
    _words(
        # Sizes are those that its log prints (``print_info``); all else is Qwen3's, as a file.
        "model=qwen3_30b_a3b",
        "model.name=gemma4_26b_a4b",
        "model.sites=30",
        "model.top_k=6",
        "model.hidden=2816",
        "model.expert_intermediate=704",
        "+model.shared_intermediate=2112",
        # Of a layer with a sliding window. The five others have two heads of 512: assumed alike.
        "model.heads=16",
        "model.kv_heads=8",
        "model.head_dim=256",
        "model.other_site_params=0",
        "model.vocab=262144",
        "+model.tied_embeddings=true",
        # ``ffn_gate_up_exps`` is one tensor (core/src/moe/arch_registry.cpp).
        "+model.fused_gate=true",
        # 1,283.5 MB of the layers, as logged, and 605.6 MB of the head in Q6_K, over their 2.32
        # 10**9 parameters. The head is assumed: 1,816 MiB were warmed, 620.7 MB more than layers.
        "+model.dense_bits=6.51",
        "precision=q4_k_m",
        "budget.slots_gib=3.90625",
    ),
    ("hidden=2816", "expert_intermediate=704", "licence=Apache-2.0"),
)
GPT_OSS = Recording(
    "gptoss",
    "gpt-oss-120b",
    _words(
        "model=gpt_oss_120b",
        "model.top_k=2",
        # 828.1 MB of the layers, as logged, and 615.3 MB of the head, over their 1.55 10**9
        # parameters. The head is assumed in Q8_0: rows of 2,880 are no multiple of 256.
        "+model.dense_bits=7.46",
        # The file's name says Q4_K_M, but an expert of 13,219,200 bytes has 4.25 bits a weight.
        "precision=mxfp4",
        "budget.slots_gib=2.9296875",
    ),
    ("hidden=2880", "expert_intermediate=2880", "licence=Apache-2.0", "dtype=MXFP4"),
)
RECORDINGS = (QWEN, GEMMA, GPT_OSS)
"""Every published run that has both routes and times of tokens."""


@dataclass(frozen=True)
class PhoneRun:
    """A recorded run and the simulated one, by decoded token, in ms.

    ``measured`` and ``predicted`` have ``io``, ``stall`` and ``wall``; ``read_bytes`` is what the
    engine read.
    """

    measured: Mapping[str, Floats]
    predicted: Mapping[str, Floats]
    read_bytes: Floats
    recording: Recording = QWEN

    @property
    def half(self) -> int:
        """How many tokens a line of this run is fitted to."""
        return self.recording.fitted or len(self.read_bytes) // 2

    @property
    def judged(self) -> list[str]:
        """The columns in which tokens after the first half took any time."""
        return [name for name, column in self.measured.items() if column[self.half :].any()]

    def error(self, name: str) -> Floats:
        """The relative errors, with their signs, of the tokens that no constant is drawn from."""
        return relative(self.predicted[name], self.measured[name])[self.recording.fitted :]

    def line(self, name: str, of: PhoneRun | None = None) -> Floats:
        """The column predicted by a straight line on the bytes that were read, by token.

        The line is fitted to the same column's first half, in this run or in the run ``of``.
        """
        other, features = of or self, _features(self.read_bytes)
        fitted = (
            _features(other.read_bytes)[: other.half],
            other.measured[name][: other.half],
        )
        return np.asarray(features @ np.linalg.lstsq(*fitted, rcond=None)[0])


def relative(predicted: Floats, measured: Floats) -> Floats:
    """The relative errors, with their signs; NaN of a token that took no time, which has none."""
    found = np.full(len(measured), np.nan)
    np.divide(predicted, measured, out=found, where=measured > 0)
    return found - 1


def _features(read_bytes: Floats) -> Floats:
    return np.stack([np.ones(len(read_bytes)), read_bytes], axis=1)


def read_runs(folder: Path) -> list[PhoneRun]:
    """Qwen3's run in ``folder``, and each of the others whose files are there; all simulated.

    Raise PhoneError as `read_run` does, and where a run has only one of its two files.
    """
    others = [one for one in RECORDINGS[1:] if _any_file(folder, one)]
    return [read_run(folder, one) for one in (QWEN, *others)]


def _any_file(folder: Path, recording: Recording) -> bool:
    return any((folder / name).is_file() for name in (recording.routes, recording.metrics))


def read_run(folder: Path, recording: Recording = QWEN) -> PhoneRun:
    """The recorded run in ``folder`` (``qwen.route.csv`` and ``qwen.metrics``), and simulated.

    Raise PhoneError where a file is missing or cannot be read, or the two have different numbers
    of tokens.
    """
    for name in (recording.routes, recording.metrics):
        if not (folder / name).is_file():
            raise PhoneError(f"{folder / name} is not there; the recorded phone run needs it")
    columns = _columns(folder / recording.metrics)
    with TemporaryDirectory() as place:
        trace = Path(place) / "trace"
        _import(folder / recording.routes, trace, recording.facts)
        predicted = simulated_ms([*recording.words, f"trace.path={trace}"])
    measured = {name: columns[f"{name}_ms"] for name in QUANTITIES}
    if len(predicted["io"]) != len(measured["io"]):
        raise PhoneError(
            f"{folder}: {len(predicted['io'])} decoded tokens in the routes,"
            f" {len(measured['io'])} in the metrics"
        )
    return PhoneRun(measured, predicted, columns["read_bytes"], recording)


def _columns(path: Path) -> dict[str, Floats]:
    """The columns of the log that are compared."""
    rows = [
        row
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        if (row.get("step") or "").isdigit()
    ]
    names = [*(f"{name}_ms" for name in QUANTITIES), "read_bytes"]
    try:
        found = {name: np.array([float(row[name]) for row in rows]) for name in names}
        if wrong := [name for name, column in found.items() if not np.isfinite(column).all()]:
            raise ValueError(f"{wrong[0]} has what is no number")
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise PhoneError(
            f"{path} must have numbers in the columns {', '.join(names)}: {error}"
        ) from error


def _import(routes: Path, trace: Path, facts: tuple[str, ...]) -> None:
    """Make a trace of the engine's routes, with what its cache held."""
    words = ["format=bigmoe", f"path={routes}", f"output_dir={trace}", *facts]
    command = [sys.executable, "-m", "capture.import_trace", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PhoneError(f"{routes} cannot be imported: {done.stderr.strip()[-500:]}")
