"""Reads the gate inputs that a trace keeps of some sequences: hidden/sequence_NNN.safetensors.

The format is a header of JSON, then plain arrays. It is read without the safetensors package, which
nothing else in the simulator needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.policies.base import IntArray
from sim.traces.rows import Trace
from sim.values.fields import TraceError, load_object

FOLDER = "hidden"
DTYPES = {
    "I8": np.int8,
    "U8": np.uint8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
}
"""What a tensor is read as. BF16 then becomes single precision, exactly."""
LARGEST_HEADER_BYTES = 1 << 20
LARGEST_FILE_BYTES = 1 << 32


@dataclass(frozen=True, eq=False)
class GateInputs:
    """The gate inputs of the rows that were kept: ``values`` [M, S, H].

    ``place`` [N] is the index in ``values`` of each row of the trace, -1 for a row not kept.
    """

    values: NDArray[np.float32]
    place: NDArray[np.int64]

    def of(self, rows: IntArray, site: int) -> NDArray[np.float32] | None:
        """The inputs of ``rows`` at ``site``, [R, H].

        None where one of the rows was not kept, or does not visit the site.
        """
        place = self.place[rows]
        if (place < 0).any():
            return None
        found = self.values[place, site]
        return found if np.isfinite(found).all() else None


def read_gate_inputs(directory: Path, trace: Trace, sequences: tuple[int, ...]) -> GateInputs:
    """The gate inputs of these sequences of the trace in ``directory``.

    Raise `TraceError` where a sequence's inputs were not kept, or a file has other shapes or
    positions than the trace.
    """
    lacking = [number for number in sequences if hidden_path(number) not in trace.header.files]
    if lacking:
        kept = [
            s.sequence
            for s in trace.header.sequences
            if hidden_path(s.sequence) in trace.header.files
        ]
        raise TraceError(
            FOLDER,
            "sequences",
            lacking[:8],
            f"have no gate inputs (kept: {kept})",
            "capture with hidden_sequences=all, run fewer sequences (trace.max_sequences), or"
            " choose another predictor",
        )
    model = trace.header.model
    place = np.full(len(trace.sequence), -1, np.int64)
    parts, start = [], 0
    for number in sequences:
        values, position = sequence_inputs(
            directory / hidden_path(number), model.sites, model.hidden
        )
        rows = np.flatnonzero((trace.sequence == number) & trace.valid)
        row_at = dict(zip(trace.position[rows].tolist(), rows.tolist(), strict=True))
        if len(set(position.tolist())) < len(position) or not row_at.keys() >= set(
            position.tolist()
        ):
            raise TraceError(
                hidden_path(number),
                "position",
                len(position),
                f"must be of its {len(rows)} rows, each once",
            )
        place[[row_at[at] for at in position.tolist()]] = start + np.arange(len(position))
        parts.append(values)
        start += len(values)
    return GateInputs(np.concatenate(parts), place)


def hidden_path(sequence: int) -> str:
    """Where in a trace the gate inputs of a sequence lie."""
    return f"{FOLDER}/sequence_{sequence:03d}.safetensors"


def sequence_inputs(
    path: Path, sites: int, hidden: int
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Gate inputs [T, S, H] and positions [T] of a file; inputs are NaN at sites not visited.

    Raise `TraceError` for other shapes.
    """
    tensors = read_tensors(path, ("gate_in", "scale", "position"))
    position, values = tensors.get("position"), tensors.get("gate_in")
    if (
        position is None
        or values is None
        or position.ndim != 1
        or values.shape != (len(position), sites, hidden)
    ):
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        raise TraceError(
            path.name,
            "tensors",
            str(shapes),
            f"must be position [T] and gate_in [T, {sites}, {hidden}]",
        )
    inputs = values.astype(np.float32)
    if "scale" in tensors:
        if tensors["scale"].shape != values.shape[:2]:
            raise TraceError(
                path.name,
                "scale",
                list(tensors["scale"].shape),
                f"must be {list(values.shape[:2])}",
            )
        inputs *= tensors["scale"][..., None]
    return inputs, position


def read_tensors(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Those tensors of ``names`` that the safetensors file ``path`` has.

    Raise `TraceError` for a file or a tensor that is not as its header claims.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size > LARGEST_FILE_BYTES or length > min(LARGEST_HEADER_BYTES, size - 8):
                rule = (
                    f"must be at most {LARGEST_FILE_BYTES} bytes with a header of at most"
                    f" {LARGEST_HEADER_BYTES}"
                )
                raise TraceError(path.name, "size", size, rule)
            header = load_object(stream.read(length))
            if not isinstance(header, dict):
                raise TraceError(path.name, "header", header, "must be a JSON object")
            return {
                name: _tensor(path, name, header[name], 8 + length, size)
                for name in names
                if name in header
            }
    except OSError as error:
        raise TraceError(path.name, "file", str(path), f"cannot be read ({error})") from None


def _tensor(path: Path, name: str, entry: object, start: int, size: int) -> NDArray[Any]:
    facts: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    shape, span = facts.get("shape"), facts.get("data_offsets")
    dtype = DTYPES.get(str(facts.get("dtype")))
    whole = all(
        isinstance(numbers, list) and all(type(n) is int and 0 <= n <= size for n in numbers)
        for numbers in (shape, span)
    )
    if (
        dtype is None
        or not isinstance(shape, list)
        or not isinstance(span, list)
        or not whole
        or len(span) != 2
    ):
        raise TraceError(
            path.name, name, entry, f"must have a dtype of {sorted(DTYPES)}, a shape and offsets"
        )
    count = math.prod(shape)
    if span[1] - span[0] != count * np.dtype(dtype).itemsize or start + span[1] > size:
        raise TraceError(path.name, name, span, f"must span {count} values inside the file")
    found = np.fromfile(path, dtype, count, offset=start + span[0]).reshape(shape)
    return (found.astype("<u4") << 16).view("<f4") if facts["dtype"] == "BF16" else found
