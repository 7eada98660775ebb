"""Reads JSON objects field by field: checks every type and range, and refuses unknown fields.

Each refusal is a `TraceError` that names the file, the field, the value, the rule and the way out.
"""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

HEADER_FILE = "header.json"
RECAPTURE = "capture or synthesise the trace again, or restore the file"
INT32_MAX = (1 << 31) - 1

T = TypeVar("T")


class TraceError(ValueError):
    """A trace is not what it claims; the message names file, field, value, rule and way out."""

    def __init__(
        self, file: str, name: str, value: object, rule: str, remedy: str = RECAPTURE
    ) -> None:
        shown = _shown(value)
        super().__init__(f"{file}: {name} is {shown}, {rule}; {remedy}")
        self.file = file
        self.field = name
        self.rule = rule


class Fields:
    """The fields of one JSON object, read one by one with their types.

    The object must have exactly the fields of the dataclass ``shape``, except that those in
    ``optional`` may be absent and then have the value given there. ``path`` names the object in
    errors. Every method raises `TraceError` for a value of the wrong type or range.
    """

    def __init__(
        self,
        value: object,
        path: str,
        shape: type[Any],
        optional: Mapping[str, object] | None = None,
    ) -> None:
        self.path = path
        known = set(shape.__dataclass_fields__)
        if not isinstance(value, dict):
            raise TraceError(HEADER_FILE, path or "text", value, "must be a JSON object")
        whole = dict(optional or {}) | value
        if set(whole) != known:
            missing, unknown = sorted(known - set(whole)), sorted(set(value) - known)
            rule = (
                f"must have exactly the known fields (missing {missing}, unknown {_shown(unknown)})"
            )
            raise TraceError(HEADER_FILE, path or "fields", sorted(value), rule)
        self.value: dict[str, object] = whole

    def refusal(self, key: str, rule: str) -> TraceError:
        name = f"{self.path}.{key}" if self.path else key
        return TraceError(HEADER_FILE, name, self.value[key], rule)

    def text(self, key: str, among: Collection[str] | None = None) -> str:
        value = self.value[key]
        # Lone surrogates survive JSON but no file name, hash or output can hold them.
        if (
            not isinstance(value, str)
            or not is_text(value)
            or (among is not None and value not in among)
        ):
            raise self.refusal(
                key, f"must be one of {tuple(among)}" if among is not None else "must be text"
            )
        return value

    def line(self, key: str) -> str:
        """A text in which no line breaks: names stand in tables, labels and lists of words."""
        value = self.text(key)
        if value and value.splitlines() != [value]:
            raise self.refusal(key, "must be text without a line break")
        return value

    def integer(self, key: str, minimum: int, maximum: int = INT32_MAX) -> int:
        value = self.value[key]
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise self.refusal(key, f"must be an int in {minimum}..{maximum}")
        return value

    def number(self, key: str, maximum: float, above: float | None = None) -> float:
        """A number in 0..``maximum``, and greater than ``above`` if given."""
        if not is_number(self.value[key], maximum, above):
            raise self.refusal(
                key, f"must be a number in 0..{maximum}" + ("" if above is None else f", > {above}")
            )
        return float(self.value[key])  # type: ignore[arg-type]

    def flag(self, key: str) -> bool:
        value = self.value[key]
        if not isinstance(value, bool):
            raise self.refusal(key, "must be true or false")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers of 0 or more."""
        value = self.value[key]
        whole = isinstance(value, list) and all(
            isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= INT32_MAX
            for item in value
        )
        if not isinstance(value, list) or not whole:
            raise self.refusal(key, f"must be a list of ints in 0..{INT32_MAX}")
        return tuple(value)

    def array(self, key: str, item: Callable[[object, str], T]) -> tuple[T, ...]:
        value = self.value[key]
        if not isinstance(value, list):
            raise self.refusal(key, "must be a list")
        prefix = f"{self.path}.{key}" if self.path else key
        return tuple(item(entry, f"{prefix}[{index}]") for index, entry in enumerate(value))

    def table(self, key: str, rule: str, accepts: Callable[[object], bool]) -> dict[str, Any]:
        value = self.value[key]
        if not isinstance(value, dict) or not all(
            is_text(name) and accepts(item) for name, item in value.items()
        ):
            raise self.refusal(key, f"must be an object of {rule}")
        return dict(value)


def read_json(text: str | bytes) -> object:
    """The value of a JSON ``text``. Raise ValueError as `load_object` raises its error."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_distinct)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def load_object(text: str | bytes) -> object:
    """The value of a JSON ``text``.

    Raise `TraceError` for text that is no JSON, for NaN and infinity, and for a key given twice.
    """
    try:
        return read_json(text)
    except ValueError as error:
        raise TraceError(HEADER_FILE, "text", str(error), "must be JSON") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        # Readers of JSON differ in which of the two values they take.
        raise ValueError(f"a key comes twice among {_shown([key for key, _ in pairs])}")
    return found


def is_number(value: object, maximum: float, above: float | None = None) -> bool:
    # A bool is an int to isinstance. Comparisons are False for NaN and exact for huge ints.
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 <= value <= maximum and (above is None or value > above)  # type: ignore[operator]


def is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def is_scalar(value: object) -> bool:
    return (
        is_text(value)
        or isinstance(value, bool)
        or (isinstance(value, (int, float)) and abs(value) < 1e300)
    )


def is_sha256(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _shown(value: object) -> str:
    """A short, printable form; a huge int or a deep list cannot even be converted to text."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):
        text = f"<{type(value).__name__}>"
    printable = "".join(letter if letter.isprintable() else "?" for letter in text[:200])
    return f"'{printable}'" if isinstance(value, str) else printable
