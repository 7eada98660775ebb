"""The files of a fit by hand: what is written is read, and each wrong part is refused whole."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.fitting import artefact
from sim.fitting.artefact import Artefact, ArtefactError, read_artefact, write_artefact
from sim.policies.requires import Shape

REFIT = "; fit again (moelab fit, moelab capture fit)"
MADE = Artefact(
    "next_site",
    {"depth": 2, "rule": "all"},
    {"name": "small", "sha256": "ab"},
    Shape(3, 6, 2, 1),
    (0, 7),
    {"counts": np.arange(12, dtype=np.int32).reshape(3, 4), "share": np.array([0.5, 0.25])},
    {"recall": 0.5, "rows": 3},
)


def edited(folder: Path, **change: Any) -> Path:
    place = write_artefact(folder, "fit", MADE)
    place.write_text(json.dumps(json.loads(place.read_text()) | change))
    return place


def with_arrays(folder: Path, content: bytes) -> Path:
    place = edited(folder, arrays_sha256=hashlib.sha256(content).hexdigest())
    (folder / "fit.npz").write_bytes(content)
    return place


def refusal(place: Path) -> str:
    with pytest.raises(ArtefactError) as refused:
        read_artefact(place)
    return str(refused.value)


def test_a_fit_is_two_files_that_give_it_back(tmp_path: Path) -> None:
    place = write_artefact(tmp_path / "a" / "b", "fit", MADE)
    assert place == tmp_path / "a" / "b" / "fit.json"
    assert sorted(path.name for path in place.parent.iterdir()) == ["fit.json", "fit.npz"]
    digest = hashlib.sha256((place.parent / "fit.npz").read_bytes()).hexdigest()
    assert json.loads(place.read_text()) == {
        "schema": 1,
        "kind": "next_site",
        "parameters": {"depth": 2, "rule": "all"},
        "trace": {"name": "small", "sha256": "ab"},
        "shape": {"sites": 3, "experts": 6, "top_k": 2, "encoder_sites": 1},
        "sequences": [0, 7],
        "results": {"recall": 0.5, "rows": 3},
        "arrays_sha256": digest,
    }
    with zipfile.ZipFile(place.parent / "fit.npz") as archive:
        assert [(entry.filename, entry.compress_type) for entry in archive.infolist()] == [
            ("counts.npy", zipfile.ZIP_BZIP2),
            ("share.npy", zipfile.ZIP_DEFLATED),
        ]
    back = read_artefact(place)
    assert replace(back, arrays={}) == replace(MADE, arrays={})
    assert {name: values.tolist() for name, values in back.arrays.items()} == {
        "counts": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
        "share": [0.5, 0.25],
    }
    # Over older ones, with the same bytes.
    write_artefact(place.parent, "fit", back)
    assert hashlib.sha256((place.parent / "fit.npz").read_bytes()).hexdigest() == digest


SHAPE = {"sites": 3, "experts": 6, "top_k": 2, "encoder_sites": 0}
NUMBERS = "must have whole numbers sites, experts, top_k, encoder_sites"
OBJECT = (
    "the text must be an object of schema, kind, parameters, trace, shape, sequences, results,"
    " arrays_sha256 with schema 1"
)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"schema": 2}, OBJECT),
    ({"more": 1}, OBJECT),
    ({"shape": [3]}, f"shape [3] {NUMBERS}"),
    ({"shape": {"sites": 3}}, f"shape {{'sites': 3}} {NUMBERS}"),
    ({"shape": {**SHAPE, "sites": -1}}, f"shape { {**SHAPE, 'sites': -1} } {NUMBERS}"),
    ({"shape": {**SHAPE, "sites": True}}, f"shape { {**SHAPE, 'sites': True} } {NUMBERS}"),
    ({"trace": {"name": "x"}}, "trace {'name': 'x'} must have name and sha256"),
    ({"trace": ["name"]}, "trace ['name'] must have name and sha256"),
    (
        {"trace": {"name": "x", "sha256": 3}},
        "trace {'name': 'x', 'sha256': 3} must have name and sha256",
    ),
    ({"sequences": 3}, "sequences 3 must be a list of numbers"),
    ({"sequences": [1, 1 << 31]}, "sequences [1, 2147483648] must be a list of numbers"),
    ({"parameters": []}, "parameters [] must be names with text or whole numbers"),
    ({"parameters": {"a": 0.5}}, "parameters {'a': 0.5} must be names with text or whole numbers"),
    ({"results": []}, "results [] must be names with numbers"),
    ({"results": {"a": "b"}}, "results {'a': 'b'} must be names with numbers"),
]


@pytest.mark.parametrize(("change", "told"), WRONG)
def test_a_part_that_is_none_is_refused_with_its_value(
    change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    place = edited(tmp_path, **change)
    # A long value is cut to eighty letters.
    what, must, rule = told.partition(" must ")
    name, _, shown = what.partition(" ")
    assert refusal(place) == f"{place}: {name} {shown:.80}{must}{rule}{REFIT}"


@pytest.mark.parametrize("draft_sites", [0, 1])
def test_a_fit_of_a_model_that_drafts_is_for_such_a_model(tmp_path: Path, draft_sites: int) -> None:
    made = replace(MADE, shape=replace(MADE.shape, draft_sites=draft_sites))
    place = write_artefact(tmp_path, "fit", made)
    assert read_artefact(place).shape == made.shape
    assert ("draft_sites" in json.loads(place.read_text())["shape"]) == bool(draft_sites)


def test_numbers_may_lie_on_their_bounds(tmp_path: Path) -> None:
    place = edited(tmp_path, sequences=[0, (1 << 31) - 1], results={}, parameters={})
    assert read_artefact(place).sequences == (0, 2147483647)


def test_files_that_are_not_there_or_are_others_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "x.json") == (
        f"{tmp_path / 'x.json'} cannot be read (no file {tmp_path / 'x.json'}); name the .json file"
        " of a fit, or fit again (moelab fit, moelab capture fit)"
    )
    place = edited(tmp_path, arrays_sha256="0123456789abcdef")
    digest = hashlib.sha256((tmp_path / "fit.npz").read_bytes()).hexdigest()
    assert refusal(place) == (
        f"{tmp_path / 'fit.npz'}: sha256 {digest[:12]} must be 0123456789ab{REFIT}"
    )
    place.write_text("{")
    assert refusal(place) == f"{place}: the text must be JSON{REFIT}"


def _npz(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, content)
    return packed.getvalue()


def _npy(values: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    plain = io.BytesIO()
    np.lib.format.write_array(plain, values, version=version)
    return plain.getvalue()


def _cut_header() -> bytes:
    """An array whose header ends inside brackets."""
    return _npy(np.zeros(2)).replace(b"'shape': (2,)", b"'shape': (2, ")


def _damaged() -> bytes:
    """An archive whose packed bytes are no deflated ones."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", _npy(np.arange(4)))
    content = bytearray(packed.getvalue())
    content[35:45] = b"\xff" * 10
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (lambda: _npz("a.npy", _npy(np.zeros(2), (2, 0))), "a.npy version (2, 0) must be 1.0"),
        (
            lambda: _npz("a.npy", _npy(np.array(["xy"]))),
            "a.npy <U2 (1,) must be numbers in 136 bytes",
        ),
        (
            lambda: _npz("a.npy", _npy(np.zeros((2, 3))) + b"\0"),
            "a.npy float64 (2, 3) must be numbers in 177 bytes",
        ),
        (lambda: _npz("a.npy", _npy(np.array([1.0, np.nan]))), "a.npy must be finite"),
        (lambda: b"none", "the content (File is not a zip file) must be an .npz file"),
    ],
)
def test_arrays_that_are_none_are_refused(
    content: Callable[[], bytes], told: str, tmp_path: Path
) -> None:
    place = with_arrays(tmp_path, content())
    assert refusal(place) == f"{tmp_path / 'fit.npz'}: {told}{REFIT}"
    unsigned = with_arrays(tmp_path, _npz("a.npy", _npy(np.array([[3]], np.uint8))))
    assert read_artefact(unsigned).arrays["a"].tolist() == [[3]]


@pytest.mark.parametrize("content", [lambda: _npz("a.npy", _cut_header()), _damaged])
def test_what_numpy_and_zlib_fail_on_is_refused_too(
    content: Callable[[], bytes], tmp_path: Path
) -> None:
    told = refusal(with_arrays(tmp_path, content()))
    assert told.startswith(f"{tmp_path / 'fit.npz'}: the content (")
    assert told.endswith(f") must be an .npz file{REFIT}")


def test_neither_what_is_no_number_nor_an_object_is_written(tmp_path: Path) -> None:
    assert artefact.LARGEST_JSON_BYTES == 16_777_216
    assert artefact.LARGEST_ARRAYS_BYTES == 2_147_483_648
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        write_artefact(tmp_path, "fit", replace(MADE, results={"recall": float("nan")}))
    with pytest.raises(
        ValueError, match=r"has 'a': .* must be an array of whole numbers or of floats"
    ):
        write_artefact(tmp_path, "fit", replace(MADE, arrays={"a": np.array([{}])}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"arrays": None}, r"is None; it must be a dict of numpy's arrays"),
        ({"arrays": {}}, r"is \{\}; it must be a dict"),
        ({"arrays": {3: np.zeros(2)}}, r"has 3: .* name each array as a variable"),
        ({"arrays": {"a/b": np.zeros(2)}}, r"has 'a/b': .* name each array as a variable"),
        ({"arrays": {"a": [1, 2]}}, r"has 'a': \[1, 2\]; it must be an array of whole numbers"),
        ({"arrays": {"a": np.array([None])}}, r"it must be an array of whole numbers"),
        ({"arrays": {"a": np.array([True])}}, r"it must be an array of whole numbers"),
        ({"arrays": {"a": np.array([np.nan])}}, r"it must be finite"),
        ({"parameters": {"x": 0.5}}, r"has parameters=\{'x': 0\.5\}; they must be texts"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    """A predictor of one's own made it: runs refused the file, or writing it was a traceback."""
    with pytest.raises(ValueError, match=f"^the fit mine .*{told}"):
        write_artefact(tmp_path, "mine", replace(MADE, **change))
    with pytest.raises(ValueError, match="is named after no file"):
        write_artefact(tmp_path, "a/mine", MADE)
    assert list(tmp_path.iterdir()) == []
