"""The command line of a capture: plain ``key=value`` arguments, checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from sim.trace_header import NORMS

DTYPES = ("float32", "bfloat16", "float16")
CONTINUATIONS = ("document", "greedy")


class SettingError(ValueError):
    """An argument that is unknown, malformed or out of range; the message says which and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """What to capture and how.

    ``sequences`` are taken from the prompts in file order, half of each split. ``prompt_tokens`` is a range
    (both ends included) from which each sequence's prompt length is drawn with ``seed``. After the prompt,
    ``decode_tokens`` follow one by one with a KV cache: the document's own text (``continuation=document``) or the
    model's (``greedy``). ``lookahead`` is the depth in sites, 0 for none. ``hidden_sequences`` of each split also keep
    gate inputs and channel masks. ``*_step`` are the fixed-point steps to which stored values are rounded;
    ``weights_step`` 0 stores exact float32. ``threads`` is for the CPU, 0 for torch's own choice; a tiny model is
    fastest with 1.
    """

    model: str
    prompts: Path
    output_dir: Path
    name: str = ""
    sequences: int = 64
    prompt_tokens: tuple[int, int] = (32, 64)
    decode_tokens: int = 64
    continuation: str = "document"
    lookahead: int = 3
    norms: tuple[str, ...] = NORMS
    sparsities: tuple[float, ...] = (0.5, 0.8, 0.9)
    hidden_sequences: int = 4
    logits_step: float = 1 / 32
    lookahead_step: float = 1 / 32
    weights_step: float = 0.0
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 0
    seed: int = 0


def parse_settings(arguments: Sequence[str]) -> Settings:
    """Settings from arguments ``key=value``. Raise `SettingError` for the first that is wrong."""
    known = {item.name: item for item in fields(Settings)}
    given: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise SettingError(f"{argument!r} is not key=value; known keys: {', '.join(known)}")
        if key not in known:
            raise SettingError(f"unknown key {key!r}; known keys: {', '.join(known)}")
        if key in given:
            raise SettingError(f"{key} is given twice; give it once")
        given[key] = _PARSERS[key](key, text)
    missing = [name for name, item in known.items() if item.default is MISSING and name not in given]
    if missing:
        raise SettingError(f"missing {' and '.join(f'{name}=...' for name in missing)}; they have no default")
    settings = Settings(**given)
    if settings.hidden_sequences and settings.lookahead == 0 and not settings.sparsities:
        raise SettingError("hidden_sequences needs lookahead or sparsities; set hidden_sequences=0 for routing only")
    return settings


def _text(key: str, text: str) -> str:
    if not text:
        raise SettingError(f"{key} is empty; give a value")
    return text


def _path(key: str, text: str) -> Path:
    return Path(_text(key, text))


def _integer(minimum: int) -> Callable[[str, str], int]:
    def parse(key: str, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise SettingError(f"{key} is {text!r}, must be a whole number of {minimum} or more") from None
        if value < minimum:
            raise SettingError(f"{key} is {value}, must be {minimum} or more")
        return value

    return parse


def _step(key: str, text: str) -> float:
    over, slash, under = text.partition("/")
    try:
        value = float(over) / float(under) if slash else float(over)
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not 0 < value <= 1:
        raise SettingError(f"{key} is {text!r}, must be a number in 0..1 such as 1/64")
    return value


def _step_or_exact(key: str, text: str) -> float:
    return 0.0 if text == "0" else _step(key, text)


def _range(key: str, text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    first = _integer(1)(key, low)
    last = _integer(1)(key, high) if dash else first
    if last < first:
        raise SettingError(f"{key} is {text!r}, must be LOW-HIGH with LOW <= HIGH, such as 32-64")
    return first, last


def _shares(key: str, text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(item) for item in text.split(",") if item)
    except ValueError:
        raise SettingError(f"{key} is {text!r}, must be shares such as 0.5,0.8,0.9, or empty") from None
    if list(values) != sorted(set(values)) or not all(0 < value < 1 for value in values):
        raise SettingError(f"{key} is {text!r}, must be ascending shares between 0 and 1, such as 0.5,0.8,0.9")
    return values


def _some(allowed: Sequence[str]) -> Callable[[str, str], tuple[str, ...]]:
    def parse(key: str, text: str) -> tuple[str, ...]:
        values = tuple(text.split(","))
        if not set(values) <= set(allowed) or len(set(values)) != len(values):
            raise SettingError(f"{key} is {text!r}, must be some of {', '.join(allowed)}, separated by commas")
        return values

    return parse


def _one(allowed: Sequence[str]) -> Callable[[str, str], str]:
    def parse(key: str, text: str) -> str:
        if text not in allowed:
            raise SettingError(f"{key} is {text!r}, must be one of {', '.join(allowed)}")
        return text

    return parse


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "model": _text,
    "prompts": _path,
    "output_dir": _path,
    "name": _text,
    "sequences": _integer(1),
    "prompt_tokens": _range,
    "decode_tokens": _integer(1),
    "continuation": _one(CONTINUATIONS),
    "lookahead": _integer(0),
    "norms": _some(NORMS),
    "sparsities": _shares,
    "hidden_sequences": _integer(0),
    "logits_step": _step,
    "lookahead_step": _step,
    "weights_step": _step_or_exact,
    "dtype": _one(DTYPES),
    "device": _text,
    "threads": _integer(0),
    "seed": _integer(0),
}
