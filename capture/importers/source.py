"""What importers share in reading: refusals, arguments, checks of files, digests, arrays."""

from __future__ import annotations

import codecs
import hashlib
import json
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.traces.trace import Trace, TraceError

Item = TypeVar("Item")
Track = Callable[[Sequence[Item], str], Iterable[Item]]
"""Iterates over a sequence while showing progress; the text says what is being done."""

INT16_MAX, INT32_MAX = (1 << 15) - 1, (1 << 31) - 1
LARGEST_LINE_BYTES = 1 << 26
RESTORE = "restore the file, or import another one"
IDS = "give experts= as the model has them; where the file counts them from 1, write them from 0"
"""What to do about an id that no expert of the model has."""
PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}
"""How packed files begin."""


class ImportFailure(ValueError):
    """An argument or a file cannot be imported; the message says which, and the way out."""


@dataclass(frozen=True)
class Imported:
    """An imported trace, and further files of its directory, by name.

    The files hold what the columns of a trace have no place for.
    """

    trace: Trace
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Refuse:
    """Checks values that were read from ``file``, and raises `TraceError` for what is wrong.

    The error names the file, the field, the value, the rule and the remedy.
    """

    file: str
    remedy: str = RESTORE

    def __call__(
        self, name: str, wrong: bool | np.bool_, value: object, rule: str, remedy: str | None = None
    ) -> None:
        if wrong:
            raise TraceError(self.file, name, value, rule, remedy or self.remedy)

    def where(
        self,
        name: str,
        wrong: NDArray[np.bool_],
        values: NDArray[Any],
        rule: str,
        remedy: str | None = None,
    ) -> None:
        """Refuse the first of ``values`` that is ``wrong``; both have the same shape."""
        if wrong.any():
            place = tuple(int(index) for index in np.argwhere(wrong)[0])
            self(f"{name}{list(place)}", True, values[place].item(), rule, remedy)

    def whole(self, name: str, value: object, least: int, most: int) -> int:
        """``value`` as a whole number in ``least..most``."""
        wrong = not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most
        self(name, wrong, value, f"must be a whole number in {least}..{most}")
        return int(value)  # type: ignore[call-overload, no-any-return]

    def text(self, name: str, value: object) -> str:
        """``value`` as text that can be printed."""
        self(
            name,
            not isinstance(value, str) or not value or not value.isprintable(),
            value,
            "must be printable text",
        )
        return str(value)

    def flag(self, name: str, value: object) -> bool:
        self(name, not isinstance(value, bool), value, "must be true or false")
        return bool(value)

    def numbers(self, name: str, value: object, kinds: str, dimensions: int) -> NDArray[Any]:
        """Nested lists as an array with ``dimensions``.

        It must not be empty, and its dtype must be one of ``kinds`` (numpy's letters).
        """
        rule = f"must be numbers in {dimensions} levels of equally long lists"
        try:
            found = np.array(value)
        except (ValueError, OverflowError, RecursionError):
            found = np.empty(0, object)
        wrong = found.dtype.kind not in kinds or found.ndim != dimensions or not found.size
        self(name, wrong, f"{found.dtype} {list(found.shape)}", rule)
        return found

    def has(self, name: str, value: object, *keys: str) -> dict[str, Any]:
        """``value`` as an object that has ``keys``."""
        where = f"{name}." if name else ""
        found = value if isinstance(value, dict) else {}
        self(name or "text", not isinstance(value, dict), value, "must be an object")
        for key in keys:
            self(
                f"{where}{key}",
                key not in found,
                "absent",
                f"must be there (found {sorted(map(str, found))})",
            )
        return found


def untracked(items: Sequence[Item], text: str) -> Iterable[Item]:
    """A `Track` that shows no progress."""
    return items


def count(key: str, text: str) -> int:
    """The argument ``key`` as a whole number of 1 or more."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise ImportFailure(f"{key}={text} must be a whole number of 1 or more")
    return int(text)


def one_of(key: str, text: str, among: Sequence[str]) -> str:
    """The argument ``key`` as one of the words ``among``."""
    if text not in among:
        raise ImportFailure(f"{key}={text} must be one of {', '.join(among)}")
    return text


# Files


def require_file(
    key: str, path: Path, what: str, most_bytes: int, remedy: str = "split it"
) -> Path:
    """``path`` if it is a plain file of at most ``most_bytes``; otherwise refuse it.

    A pipe or a device might never end.
    """
    try:
        if not path.is_file():
            raise ImportFailure(f"{key}={path} is no file; name {what}")
        size = path.stat().st_size
    except OSError as error:
        raise unreadable(key, path, error, what) from None
    if size > most_bytes:
        raise TraceError(path.name, "size", size, f"must be at most {most_bytes} bytes", remedy)
    return path


def unreadable(key: str, path: Path, error: OSError, what: str) -> ImportFailure:
    return ImportFailure(f"{key}={path} cannot be read ({error.strerror or error}); name {what}")


def lines_of(path: Path, refuse: Refuse) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of each line, read one by one, without its end (LF or CRLF), and
    without the mark with which some systems begin UTF-8.
    """
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(LARGEST_LINE_BYTES + 1):
            number += 1
            rule = f"must be at most {LARGEST_LINE_BYTES} bytes"
            refuse(
                f"line {number}", len(line) > LARGEST_LINE_BYTES, f"{len(line)} bytes or more", rule
            )
            if number == 1:
                packed = next((PACKED[mark] for mark in PACKED if line.startswith(mark)), "")
                refuse(
                    "file", bool(packed), f"packed ({packed})", "must be text", "unpack it first"
                )
                line = line.removeprefix(codecs.BOM_UTF8)
            yield number, decoded(line, refuse, f"line {number}").rstrip("\r\n")


def decoded(content: bytes, refuse: Refuse, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        refuse(name, True, f"byte {error.start}", "must be UTF-8")
        raise


def parsed_json(text: str | bytes, refuse: Refuse, name: str) -> Any:
    """The value of ``text`` as strict JSON: NaN, infinity and repeated keys are refused."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        refuse(name, True, str(error), "must be JSON")
        raise


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in found if keys.count(key) > 1)!r} comes twice")
    return found


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_of_all(paths: Sequence[Path]) -> str:
    """One digest for several files: sha256 over their own digests, a line each, in order."""
    return hashlib.sha256("".join(f"{sha256(path)}\n" for path in paths).encode()).hexdigest()


# Arrays


def npy_header(stream: BinaryIO | Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype that an .npy stream states.

    Raise ValueError for a format version that may hold more than plain numbers.
    """
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"format version {version} holds no plain numbers")
    try:
        with warnings.catch_warnings(action="ignore"):
            shape, _, dtype = read(stream)
    except (tokenize.TokenError, SyntaxError) as error:
        # numpy parses a header that is no literal again as Python 2's, and lets these out.
        raise ValueError(f"its header is cut short ({error.args[0]})") from None
    return shape, dtype


def stated_bytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Bytes of an array, exact for any stated shape, however large."""
    return int(np.prod([int(length) for length in shape], dtype=object)) * dtype.itemsize


def in_rank_order(weights: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Weights that do not rise along the last axis, lowered so that they fall strictly.

    Rounding has made some weights equal, and ordering by weight would lose their rank. Each such
    weight is lowered by a unit in the last place of float32, which is less than a thousandth of
    float16's rounding.
    """
    shares = weights.astype(np.float32)
    for rank in range(1, shares.shape[-1]):
        shares[..., rank] = np.minimum(
            shares[..., rank], np.nextafter(shares[..., rank - 1], np.float32(0))
        )
    return shares


def untied(weights: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """As `in_rank_order`, for weights in any order: equal ones are lowered in their order."""
    order = np.argsort(-weights, axis=-1, kind="stable")
    found = np.empty(weights.shape, np.float32)
    np.put_along_axis(found, order, in_rank_order(np.take_along_axis(weights, order, -1)), -1)
    return found
