"""Gate inputs in files made by hand: which rows they are of, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.traces import make_trace
from sim.traces import gate_inputs
from sim.traces.gate_inputs import hidden_path, read_gate_inputs, read_tensors
from sim.traces.trace import Trace, TraceError

REPAIR = "; capture or synthesise the trace again, or restore the file"
NAMES = {np.dtype(np.int32): "I32", np.dtype(np.float16): "F16", np.dtype(np.float32): "F32"}
KNOWN = "['BF16', 'F16', 'F32', 'I16', 'I32', 'I64', 'I8', 'U8']"


def raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def save(path: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    header, data = {}, b""
    for name, values in tensors.items():
        span = [len(data), len(data) + values.nbytes]
        shape = list(values.shape)
        header[name] = {"dtype": NAMES[values.dtype], "shape": shape, "data_offsets": span}
        data += values.tobytes()
    return raw(path, header, data)


def positions(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def inputs(rows: int) -> np.ndarray:
    """Gate inputs of three sites and 16 channels, each another number."""
    return np.arange(rows * 48, dtype=np.float32).reshape(rows, 3, 16)


def kept(*sequences: int) -> Trace:
    trace = make_trace()
    files = {hidden_path(number): "0" * 64 for number in sequences}
    return replace(trace, header=replace(trace.header, files=files))


def refusal(place: Path, sequences: tuple[int, ...] = (0,)) -> str:
    with pytest.raises(TraceError) as refused:
        read_gate_inputs(place, kept(0, 7), sequences)
    return str(refused.value)


def test_inputs_are_put_to_the_rows_of_their_positions(tmp_path: Path) -> None:
    """Sequence 0 has position 5 in row 8 and 0 in row 0; sequence 7 position 3 in row 11."""
    scale = np.array([[1, 2, 3], [1, 1, 1]], np.float32)
    save(
        tmp_path / "hidden/sequence_000.safetensors",
        {"position": positions(5, 0), "gate_in": inputs(2).astype(np.float16), "scale": scale},
    )
    last = inputs(1) - 1
    last[0, 2, 7] = np.nan
    save(
        tmp_path / "hidden/sequence_007.safetensors",
        {"gate_in": last, "position": positions(3)},
    )
    found = read_gate_inputs(tmp_path, kept(0, 7), (0, 7))
    assert found.place.tolist() == [1, -1, -1, -1, -1, -1, -1, -1, 0, -1, -1, 2]
    assert found.values.dtype == np.float32
    np.testing.assert_array_equal(
        found.values[:2], inputs(2) * np.array([[1, 2, 3], [1, 1, 1]])[..., None]
    )
    np.testing.assert_array_equal(found.values[2], last[0])
    of = found.of(np.array([8, 0]), 1)
    assert of is not None
    assert of[:, 0].tolist() == [32, 64]
    assert found.of(np.array([8, 1]), 1) is None
    assert found.of(np.array([8, 11]), 1) is not None
    assert found.of(np.array([8, 11]), 2) is None


def test_sequences_without_inputs_are_named_with_those_that_have_them(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as refused:
        read_gate_inputs(tmp_path, kept(7), (0, 7, *range(20, 29)))
    assert str(refused.value) == (
        "hidden: sequences is [0, 20, 21, 22, 23, 24, 25, 26], have no gate inputs (kept: [7]);"
        " capture with hidden_sequences=all, run fewer sequences (trace.max_sequences), or choose"
        " another predictor"
    )
    assert hidden_path(1234) == "hidden/sequence_1234.safetensors"


@pytest.mark.parametrize("wrong", [(5, 5), (0, 9), (-1, 0)])
def test_positions_are_of_the_sequences_rows_each_once(
    wrong: tuple[int, ...], tmp_path: Path
) -> None:
    place = tmp_path / hidden_path(7)
    save(place, {"position": positions(*wrong), "gate_in": inputs(2)})
    assert refusal(tmp_path, (7,)) == (
        "hidden/sequence_007.safetensors: position is 2, must be of its 4 rows, each once" + REPAIR
    )


@pytest.mark.parametrize(
    ("tensors", "shown"),
    [
        ({"gate_in": inputs(1)}, "{'gate_in': [1, 3, 16]}"),
        ({"position": positions(1)}, "{'position': [1]}"),
        (
            {"position": positions(1)[None], "gate_in": inputs(1)},
            "{'gate_in': [1, 3, 16], 'position': [1, 1]}",
        ),
        (
            {"position": positions(1), "gate_in": inputs(2)},
            "{'gate_in': [2, 3, 16], 'position': [1]}",
        ),
        (
            {"position": positions(1), "gate_in": inputs(1)[:, :2]},
            "{'gate_in': [1, 2, 16], 'position': [1]}",
        ),
    ],
)
def test_tensors_of_another_shape_are_refused(
    tensors: dict[str, np.ndarray], shown: str, tmp_path: Path
) -> None:
    save(tmp_path / hidden_path(0), tensors)
    assert refusal(tmp_path) == (
        f"sequence_000.safetensors: tensors is '{shown}', must be position [T] and gate_in"
        f" [T, 3, 16]{REPAIR}"
    )
    scale = np.ones((1, 2), np.float32)
    save(
        tmp_path / hidden_path(0),
        {"position": positions(1), "gate_in": inputs(1), "scale": scale},
    )
    assert refusal(tmp_path) == (
        f"sequence_000.safetensors: scale is [1, 2], must be [1, 3]{REPAIR}"
    )


# Files


@pytest.mark.parametrize(
    ("dtype", "data", "values"),
    [
        ("I8", b"\xff\x02", [-1, 2]),
        ("U8", b"\xff\x02", [255, 2]),
        ("I16", b"\xff\xff\x02\x00", [-1, 2]),
        ("I32", b"\xff\xff\xff\xff\x02\x00\x00\x00", [-1, 2]),
        ("I64", b"\xff" * 8 + b"\x02" + bytes(7), [-1, 2]),
        ("BF16", b"\x80\x3f\x40\xc0", [1.0, -3.0]),
        ("F16", b"\x00\x3c\x00\xc2", [1.0, -3.0]),
        ("F32", b"\x00\x00\x80\x3f\x00\x00\x40\xc0", [1.0, -3.0]),
    ],
)
def test_a_tensor_is_read_from_its_place_in_its_type(
    dtype: str, data: bytes, values: list[float], tmp_path: Path
) -> None:
    """It ends where the file does; what nobody asks for is not looked at."""
    entry = {"dtype": dtype, "shape": [1, 2], "data_offsets": [3, 3 + len(data)]}
    place = raw(tmp_path / "x", {"a": entry, "b": "nonsense"}, b"abc" + data)
    found = read_tensors(place, ("a", "c"))
    assert found.keys() == {"a"}
    assert found["a"].tolist() == [values]


BYTES = {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}
OF = f"must have a dtype of {KNOWN}, a shape and offsets"


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (7, OF),
        ({**BYTES, "dtype": "F8_E4M3"}, OF),
        ({**BYTES, "dtype": ["U8"]}, OF),
        ({**BYTES, "shape": 2}, OF),
        ({**BYTES, "shape": [True, 2]}, OF),
        ({**BYTES, "shape": [-1, -2]}, OF),
        ({**BYTES, "shape": [1 << 40, 0]}, OF),
        ({**BYTES, "data_offsets": 1}, OF),
        ({**BYTES, "data_offsets": [1, 2, 3]}, OF),
        ({**BYTES, "data_offsets": [-2, 0]}, OF),
        ({**BYTES, "shape": [3]}, "[1, 3], must span 3 values inside the file"),
        ({**BYTES, "shape": [1]}, "[1, 3], must span 1 values inside the file"),
        ({**BYTES, "data_offsets": [2, 4]}, "[2, 4], must span 2 values inside the file"),
    ],
)
def test_a_tensor_that_is_not_as_its_header_claims_is_refused(
    entry: object, told: str, tmp_path: Path
) -> None:
    good = raw(tmp_path / "x", {"a": BYTES}, b"abc")
    assert read_tensors(good, ("a",))["a"].tolist() == [98, 99]
    shown = f"{json.loads(json.dumps(entry))}, {told}" if told is OF else told
    with pytest.raises(TraceError) as refused:
        read_tensors(raw(tmp_path / "x", {"a": entry}, b"abc"), ("a",))
    assert str(refused.value) == f"x: a is {shown}{REPAIR}"


def test_nothing_is_a_tensor_too(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0, 5], "data_offsets": [0, 0]}
    assert read_tensors(raw(tmp_path / "x", {"a": empty}), ("a",))["a"].shape == (0, 5)


def test_a_file_and_its_header_have_a_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "must be at most 4294967296 bytes with a header of at most 1048576"
    place = tmp_path / "x"
    place.write_bytes((3).to_bytes(8, "little") + b"{}")
    with pytest.raises(TraceError) as refused:
        read_tensors(place, ("a",))
    assert str(refused.value) == f"x: size is 10, {told}{REPAIR}"
    raw(place, {}, b"more")
    for name, fits in (("LARGEST_FILE_BYTES", 14), ("LARGEST_HEADER_BYTES", 2)):
        with monkeypatch.context() as changed:
            changed.setattr(gate_inputs, name, fits)
            assert read_tensors(place, ("a",)) == {}
            changed.setattr(gate_inputs, name, fits - 1)
            with pytest.raises(TraceError, match=f"size is 14, must be at most .*{fits - 1}"):
                read_tensors(place, ("a",))
