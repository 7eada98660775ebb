"""Importer of format flame: a capture of CMU-FLAME/FLAME-MoE-Traces (arXiv:2505.20225).

``path`` is ``<model>/actives/iter_<n>``. It has a ``layer_<nn>.parquet`` for each layer with
experts, with a row for each token:

- ``scores`` list<float16>[K]: the router's softmax over all experts, at the chosen ones, falling.
- ``indices`` list<int16>[K]: the chosen experts.

``<model>/samples/<nnn>.parquet`` beside it (or ``samples=DIR``) has the rows' ``token_id`` int32.

Rows are what was fed to the model in pretraining, sequence after sequence. All sequences have
``sequence_length=`` tokens, which no file states. Each becomes a prompt of one step, since nothing
was decoded; the last one may be cut short. A capture has 52 million tokens; ``tokens=N`` takes the
first N.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from capture.importers.parts import (
    FACTS,
    Recording,
    Request,
    Rows,
    assemble,
    check_ids,
    check_size,
    complete,
)
from capture.importers.source import (
    INT32_MAX,
    Imported,
    ImportFailure,
    Refuse,
    Track,
    count,
    require_file,
    sha256_of_all,
    unreadable,
)
from sim.traces.trace import PREFILL, TraceError

KEYS = (*FACTS, "samples", "sequence_length", "tokens")
LAYER_FILE = re.compile(r"layer_(\d{1,4})\.parquet", re.A)
SAMPLE_FILE = re.compile(r"\d{1,6}\.parquet", re.A)
LARGEST_FILE_BYTES = 1 << 34
# Versions of polars without half precision read it as single precision.
SCORES = (pl.Float32, *filter(None, [getattr(pl, "Float16", None)]))
COLUMNS: Mapping[str, tuple[Any, ...]] = {"scores": SCORES, "indices": (pl.Int16, pl.Int32)}
PUBLISHED: Mapping[tuple[str, int, int], Mapping[str, str]] = {
    (name, sites, 6): {"model": name, "experts": "64", "licence": "Apache-2.0"}
    for name, sites in (("flame-moe-290m", 8), ("flame-moe-721m", 11), ("flame-moe-1.7b", 17))
}
"""Facts from the data set's card, by the model's directory, its layers with experts, its top-k."""


def check(request: Request) -> None:
    if "sequence_length" not in request.options:
        raise ImportFailure(
            "format=flame also needs sequence_length=..., the tokens of a training sequence"
        )
    for key in ("sequence_length", "tokens"):
        if key in request.options:
            count(key, request.options[key])


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace of a capture. Raise `TraceError` or `ImportFailure`."""
    layers = _layer_files(request.path)
    shapes = {path: _shape(path) for path in layers.values()}
    num_rows, top_k = next(iter(shapes.values()))
    for path, shape in shapes.items():
        rule = f"must be {num_rows} rows and {top_k} ranks, as in {next(iter(shapes)).name}"
        Refuse(path.name)("rows and ranks", shape != (num_rows, top_k), shape, rule)
    taken = min(num_rows, int(request.options.get("tokens", num_rows)))
    check_size(Refuse(request.path.name), "rows", taken, len(layers), top_k, "take fewer, tokens=N")
    name = request.path.resolve().parents[1].name if len(request.path.resolve().parents) > 1 else ""
    facts = complete(
        request.facts, PUBLISHED.get((name, len(layers), top_k), {}), request.path.name
    )
    ids, weights = (
        np.empty((taken, len(layers), top_k), np.int16),
        np.empty((taken, len(layers), top_k), np.float32),
    )
    for site, path in enumerate(track(list(layers.values()), "reading layers")):
        ids[:, site], weights[:, site] = _choices(path, taken, top_k, int(facts["experts"]))
    samples = _sample_files(request)
    token = _tokens(samples, taken) if samples else None
    length = int(request.options["sequence_length"])
    sequence, position = np.divmod(np.arange(taken), length)
    rows = Rows(sequence, np.full(taken, PREFILL), sequence, position, ids, weights, token)
    recording = Recording(
        format="flame",
        files={},
        layers=list(layers),
        lacks=("scores", *(() if samples else ("tokens",))),
        dtype="float16",
        site_name="layer {}",
        also_missing="where a sequence begins",
        versions={"polars": pl.__version__},
        told={
            "origin": "CMU-FLAME/FLAME-MoE-Traces",
            "capture": f"{name}/{request.path.name}",
            "files": len(layers) + len(samples),
            "files_sha256": sha256_of_all([*layers.values(), *samples]),
            "rows_of_capture": num_rows,
            "sequences": f"not recorded: sequence_length={length}",
            "steps": "not recorded: a step for each sequence",
            "weights": (
                "softmax over all experts, float16; equal neighbours set apart by a float32 ulp"
            ),
        },
    )
    return Imported(assemble(facts, rows, recording))


def _layer_files(root: Path) -> dict[int, Path]:
    """The files of the layers, by number, ascending."""
    what = "an iter_<n> directory with layer_<nn>.parquet files"
    try:
        names = [place.name for place in root.iterdir()]
    except OSError as error:
        raise unreadable("path", root, error, what) from None
    found: dict[int, Path] = {}
    for match in filter(None, map(LAYER_FILE.fullmatch, sorted(names))):
        rule = "must not be there twice"
        Refuse(match[0])(
            "layer", int(match[1]) in found, int(match[1]), rule, "remove one of the files"
        )
        found[int(match[1])] = require_file("path", root / match[0], what, LARGEST_FILE_BYTES)
    if not found:
        raise ImportFailure(f"path={root} has no layer_<nn>.parquet; name {what}")
    return dict(sorted(found.items()))


def _shape(path: Path) -> tuple[int, int]:
    """How many rows a layer's file has, and how many ranks (K)."""
    refuse = Refuse(path.name)
    frame = _frame(path, COLUMNS, 1)
    num_rows = _collected(refuse, pl.scan_parquet(path, glob=False).select(pl.len())).item()
    refuse("rows", num_rows == 0, num_rows, "must be 1 or more")
    first = frame["indices"][0]
    ranks = 0 if first is None else len(first)
    refuse("indices, values in row [0]", ranks == 0, ranks, "must be 1 or more")
    return int(num_rows), ranks


def _choices(
    path: Path, taken: int, top_k: int, experts: int
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    refuse = Refuse(path.name)
    frame = _frame(path, COLUMNS, taken)
    arrays = {}
    for name in ("indices", "scores"):
        column = frame[name].cast(pl.List(frame[name].dtype.inner))  # type: ignore[attr-defined]
        lengths = column.list.len().to_numpy()
        refuse.where(
            f"{name}, values in row ", lengths != top_k, lengths, f"must be {top_k}, as in row 0"
        )
        flat = column.explode()
        refuse(name, bool(flat.null_count()), "null", "must hold no null")
        arrays[name] = flat.to_numpy().reshape(taken, top_k)
    scores = arrays["scores"].astype(np.float32)
    check_ids(refuse, "indices", arrays["indices"], experts)
    refuse.where("scores", ~((scores >= 0) & (scores <= 1)), scores, "must lie in 0..1")
    rising = scores[:, 1:] > scores[:, :-1]
    refuse.where(
        "scores", rising, scores[:, 1:], "must not rise from rank to rank (columns from rank 1)"
    )
    return arrays["indices"], scores


def _sample_files(request: Request) -> list[Path]:
    """The files with token ids, in order of name.

    Empty where the capture has none and the arguments name none.
    """
    asked = request.options.get("samples")
    root = Path(asked) if asked else request.path.resolve().parents[1] / "samples"
    if not root.is_dir():
        if asked:
            raise ImportFailure(
                f"samples={asked} is no directory; name one with 000.parquet, or leave it out"
            )
        return []
    names = sorted(place.name for place in root.iterdir() if SAMPLE_FILE.fullmatch(place.name))
    if asked and not names:
        raise ImportFailure(
            f"samples={asked} has no 000.parquet; name the capture's samples, or leave it out"
        )
    return [
        require_file("samples", root / name, "the capture's samples", LARGEST_FILE_BYTES)
        for name in names
    ]


def _tokens(paths: list[Path], taken: int) -> NDArray[np.int64]:
    parts: list[NDArray[np.int64]] = []
    missing = taken
    for path in paths:
        refuse = Refuse(path.name)
        column = _frame(path, {"token_id": (pl.Int32,)}, missing, nested=False)["token_id"]
        refuse("token_id", bool(column.null_count()), "null", "must hold no null")
        part = column.to_numpy().astype(np.int64)
        refuse.where(
            "token_id", (part < 0) | (part > INT32_MAX), part, f"must lie in 0..{INT32_MAX}"
        )
        parts.append(part)
        missing -= len(part)
    rule = f"must be {taken} or more in all samples, as in the layers' files"
    Refuse(paths[-1].name)("rows", missing > 0, taken - missing, rule)
    return np.concatenate(parts)


def _frame(
    path: Path, columns: Mapping[str, tuple[Any, ...]], rows: int, nested: bool = True
) -> pl.DataFrame:
    """The first ``rows`` of ``columns``, after a check of their dtypes.

    With ``nested`` the columns must be lists of these dtypes.
    """
    refuse = Refuse(path.name)
    frame = _collected(refuse, pl.scan_parquet(path, glob=False).head(0))
    for name, inner in columns.items():
        refuse(
            name,
            name not in frame.columns,
            "absent",
            f"must be a column (found {sorted(frame.columns)})",
        )
        dtype = frame[name].dtype
        found = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) and nested else dtype
        is_list = isinstance(dtype, (pl.List, pl.Array))
        rule = f"must be {'lists of ' if nested else ''}{' or '.join(map(str, inner))}"
        refuse(name, found not in inner or is_list != nested, str(dtype), rule)
    return _collected(refuse, pl.scan_parquet(path, glob=False).select(list(columns)).head(rows))


def _collected(refuse: Refuse, frame: pl.LazyFrame) -> pl.DataFrame:
    try:
        return frame.collect()
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise TraceError(
            refuse.file, "content", str(error), "must be a parquet file that polars reads"
        ) from None
