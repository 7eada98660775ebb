"""The two files of a fit: ``NAME.json`` says what was fitted on what, ``NAME.npz`` beside it holds
the arrays.

Neither file is trusted: sizes are checked before anything is allocated, and nothing is evaluated.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.policies.requires import Shape
from sim.process.files import write_whole
from sim.values.fields import TraceError, load_object

SCHEMA = 1
KINDS = "iuf"
LARGEST_JSON_BYTES = 1 << 24
LARGEST_ARRAYS_BYTES = 1 << 31
REFIT = "fit again (moelab fit, moelab capture fit)"
FIELDS = ("schema", "kind", "parameters", "trace", "shape", "sequences", "results", "arrays_sha256")
SHAPE_FIELDS = ("sites", "experts", "top_k", "encoder_sites")
"""What every fit tells of its model. Only a model with draft sites tells how many they are."""
DRAFTS = "draft_sites"


class ArtefactError(ValueError):
    """A fit is not what it claims to be, or is not for this run. The message names the file, the
    value, the rule and the way out.
    """


@dataclass(frozen=True)
class Artefact:
    """The content of a fit's files.

    ``kind`` and ``parameters`` are those of the policy that it was made for. It was made on the
    ``sequences`` of a ``trace`` (name, sha256). ``arrays`` is what was learnt; ``results`` are
    numbers about the fit itself, such as its recall.
    """

    kind: str
    parameters: Mapping[str, str | int]
    trace: Mapping[str, str]
    shape: Shape
    sequences: tuple[int, ...]
    arrays: Mapping[str, NDArray[Any]]
    results: Mapping[str, float]


def write_artefact(folder: Path, name: str, artefact: Artefact) -> Path:
    """Write ``name``.json and ``name``.npz into ``folder``, replacing older ones. The same fit
    gives the same bytes. Return the path of the .json file. Raise ValueError for what could not be
    read again.
    """
    _check_fitted(name, artefact)
    folder.mkdir(parents=True, exist_ok=True)
    packed = _packed(artefact.arrays)
    plain = {
        "schema": SCHEMA,
        "kind": artefact.kind,
        "parameters": dict(artefact.parameters),
        "trace": dict(artefact.trace),
        "shape": {
            name: number
            for name, number in asdict(artefact.shape).items()
            if name in SHAPE_FIELDS or number
        },
        "sequences": list(artefact.sequences),
        "results": dict(artefact.results),
        "arrays_sha256": hashlib.sha256(packed).hexdigest(),
    }
    text = json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n"
    place = folder / f"{name}.json"
    # Another process may read the fit that is there.
    write_whole(folder / f"{name}.npz", packed)
    write_whole(place, text)
    return place


def _check_fitted(name: str, artefact: Artefact) -> None:
    """Refuse what a policy's own code made that is no fit."""
    arrays, parameters = artefact.arrays, artefact.parameters
    if Path(name).name != name:
        raise ValueError(f"the fit {name!r} is named after no file: choose a `kind` without signs")
    if not all(isinstance(value, str | int) for value in parameters.values()):
        raise ValueError(
            f"the fit {name} has parameters={dict(parameters)}; they must be texts or whole numbers"
        )
    if not isinstance(arrays, Mapping) or not arrays:
        raise ValueError(f"the fit {name} is {arrays!r:.80}; it must be a dict of numpy's arrays")
    for key, array in arrays.items():
        told = f"the fit {name} has {key!r}: {array!r:.80}"
        if not (isinstance(key, str) and key.isidentifier()):
            raise ValueError(f"{told}; name each array as a variable is named")
        if not isinstance(array, np.ndarray) or array.dtype.kind not in KINDS:
            raise ValueError(f"{told}; it must be an array of whole numbers or of floats")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{told}; it must be finite")


def _packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of an .npz archive as numpy writes it, but with the better packing for each array.

    Counts are a quarter smaller by bzip2 than deflated; floats are smaller deflated.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for key in sorted(arrays):
            plain = io.BytesIO()
            np.save(plain, arrays[key], allow_pickle=False)
            # An entry without a time of day, so that the same arrays give the same bytes.
            method = zipfile.ZIP_DEFLATED if arrays[key].dtype.kind == "f" else zipfile.ZIP_BZIP2
            archive.writestr(zipfile.ZipInfo(f"{key}.npy"), plain.getvalue(), method, 9)
    return packed.getvalue()


def read_artefact(place: Path) -> Artefact:
    """Read and check the fit whose .json file is ``place``. Raise `ArtefactError`."""
    try:
        text = _content(place, LARGEST_JSON_BYTES)
        arrays = _content(place.with_suffix(".npz"), LARGEST_ARRAYS_BYTES)
    except OSError as error:
        raise ArtefactError(
            f"{place} cannot be read ({error}); name the .json file of a fit, or {REFIT}"
        ) from None
    try:
        value = load_object(text)
    except TraceError as error:
        raise _refusal(place, "the text", error.rule) from None
    if not isinstance(value, dict) or set(value) != set(FIELDS) or value["schema"] != SCHEMA:
        raise _refusal(
            place, "the text", f"must be an object of {', '.join(FIELDS)} with schema {SCHEMA}"
        )
    digest = hashlib.sha256(arrays).hexdigest()
    if digest != value["arrays_sha256"]:
        raise _refusal(
            place.with_suffix(".npz"),
            f"sha256 {digest[:12]}",
            f"must be {value['arrays_sha256']!s:.12}",
        )
    return _checked(place, value, _arrays(place.with_suffix(".npz"), arrays))


def _checked(place: Path, value: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Artefact:
    shape, trace, numbers = value["shape"], value["trace"], value["sequences"]
    if (
        not isinstance(shape, dict)
        or set(shape) - {DRAFTS} != set(SHAPE_FIELDS)
        or not all(map(_is_count, shape.values()))
    ):
        raise _refusal(
            place, f"shape {shape!s:.80}", f"must have whole numbers {', '.join(SHAPE_FIELDS)}"
        )
    if not isinstance(trace, dict) or set(trace) != {"name", "sha256"} or not _all_text(trace):
        raise _refusal(place, f"trace {trace!s:.80}", "must have name and sha256")
    if not isinstance(numbers, list) or not all(map(_is_count, numbers)):
        raise _refusal(place, f"sequences {numbers!s:.80}", "must be a list of numbers")
    parameters, results = value["parameters"], value["results"]
    if not isinstance(parameters, dict) or not all(
        isinstance(item, str | int) for item in parameters.values()
    ):
        raise _refusal(
            place, f"parameters {parameters!s:.80}", "must be names with text or whole numbers"
        )
    if not isinstance(results, dict) or not all(
        isinstance(item, int | float) for item in results.values()
    ):
        raise _refusal(place, f"results {results!s:.80}", "must be names with numbers")
    return Artefact(
        str(value["kind"]), parameters, trace, Shape(**shape), tuple(numbers), arrays, results
    )


def _arrays(place: Path, content: bytes) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            # The claimed sizes are checked before anything is unpacked, and `_array` checks each
            # array against its claim.
            if sum(entry.file_size for entry in entries) > LARGEST_ARRAYS_BYTES:
                raise _refusal(
                    place, "the unpacked size", f"must be at most {LARGEST_ARRAYS_BYTES} bytes"
                )
            return {
                entry.filename.removesuffix(".npy"): _array(archive, entry, place)
                for entry in entries
            }
    except (
        zipfile.BadZipFile,
        ValueError,
        EOFError,
        OSError,
        NotImplementedError,
        RuntimeError,
        # numpy parses a header that is no literal again as Python 2's, and lets these out.
        tokenize.TokenError,
        SyntaxError,
        zlib.error,
    ) as error:
        if isinstance(error, ArtefactError):
            raise
        raise _refusal(place, f"the content ({error})", "must be an .npz file") from None


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, place: Path) -> NDArray[Any]:
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise _refusal(place, f"{entry.filename} version {version}", "must be 1.0")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        expected = math.prod(shape) * dtype.itemsize + stream.tell()
        if dtype.kind not in KINDS or expected != entry.file_size:
            raise _refusal(
                place,
                f"{entry.filename} {dtype} {shape}",
                f"must be numbers in {entry.file_size} bytes",
            )
    with archive.open(entry) as stream:
        found = np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise _refusal(place, entry.filename, "must be finite")
    return found


def _content(place: Path, most: int) -> bytes:
    # Plain files only: reading a pipe would block, and a device has no end.
    if not place.is_file():
        raise FileNotFoundError(f"no file {place}")
    if place.stat().st_size > most:
        raise _refusal(place, f"size {place.stat().st_size}", f"must be at most {most} bytes")
    return place.read_bytes()


def _refusal(place: Path, what: str, rule: str) -> ArtefactError:
    return ArtefactError(f"{place}: {what} {rule}; {REFIT}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _all_text(values: Mapping[str, object]) -> bool:
    return all(isinstance(value, str) for value in values.values())
