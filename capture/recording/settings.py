"""The command line of a capture: plain ``key=value`` arguments, checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from sim.traces.header import NORMS, POSITIONS, PREFILLS

DTYPES = ("float32", "bfloat16", "float16")
CONTINUATIONS = ("document", "greedy")
IMPLEMENTATIONS = ("eager", "grouped_mm", "batched_mm")
HIDDEN_DTYPES = ("int8", "float16")
CHATS = ("auto", "no")
PREFILL_LOOKAHEADS = ("counts", "rows", "no")
AUTO = "auto"
DEFAULT_LOOKAHEAD, DEFAULT_SPARSITIES = 3, (0.5, 0.8, 0.9)


class SettingError(ValueError):
    """An argument is unknown, malformed or out of range.

    The message says which one, and what is allowed.
    """


@dataclass(frozen=True)
class Settings:
    """What to capture and how.

    None means: whatever this model allows; the trace says what was left out and why. A stated value
    that the model does not allow is refused.

    What runs:

    - ``model``: a directory or a hub id. Remote code runs only with ``trust_remote_code``.
    - ``prompts``: a file or the name of a bundled set. ``sequences`` are taken from it in file
      order, half of each split.
    - ``prompt_tokens``: the range (both ends included) from which each sequence's prompt length is
      drawn with ``seed``.
    - ``decode_tokens``: tokens that follow the prompt one by one with a KV cache.
      ``continuation=document`` feeds the document's own text; ``greedy`` feeds the model's own
      text, which ends at its end-of-text token. With ``chat=auto`` a prompt for ``greedy`` is put
      into the tokenizer's chat template, if there is one.
    - ``batch``: sequences that run together. ``prefill_chunk`` cuts prompts into steps of so many
      tokens; 0 means one step.
    - ``threads``: of the CPU, 0 for torch's own choice; a tiny model is fastest with 1.

    What is kept:

    - ``prefill``: ``rows`` keeps every row of a prompt. ``counts`` keeps only how many of its
      tokens chose each expert at each site, and the sum of their weights (`sim.traces.prefill`).
    - ``lookahead``: how many sites ahead scores reach, 0 for no scores. They are computed from what
      is seen at ``lookahead_position``, by ``norms``.
    - ``prefill_lookahead``: of prompts ``counts`` keeps what their rows are forecast to choose
      together (`sim.traces.forecasts`), ``rows`` every row's scores (as large as those of decoded
      rows), ``no`` nothing.
    - ``sparsities``: those of the activation shares; none for no measurement inside experts.
    - ``hidden_sequences``: how many sequences of each split also keep gate inputs (as
      ``hidden_dtype``) and channel masks, of ``hidden_share`` of their decode rows.
    - ``*_step``: the fixed-point steps to which stored values are rounded. 0 for ``weights_step``
      or ``logits_step`` stores exact float32.
    """

    model: str
    prompts: Path
    output_dir: Path
    name: str = ""
    sequences: int = 64
    prompt_tokens: tuple[int, int] = (32, 64)
    decode_tokens: int = 64
    continuation: str = "document"
    chat: str = "auto"
    batch: int = 1
    prefill_chunk: int = 0
    prefill: str = "rows"
    logits: bool = True
    lookahead: int | None = None
    lookahead_position: str = "gate_in"
    norms: tuple[str, ...] | None = None
    prefill_lookahead: str = "counts"
    sparsities: tuple[float, ...] | None = None
    hidden_sequences: int = 4
    hidden_share: float = 1.0
    hidden_dtype: str = "int8"
    logits_step: float = 1 / 32
    lookahead_step: float = 1 / 32
    weights_step: float = 0.0
    experts_implementation: str = "eager"
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 0
    seed: int = 0
    trust_remote_code: bool = False


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
    missing = [
        name for name, item in known.items() if item.default is MISSING and name not in given
    ]
    if missing:
        raise SettingError(
            f"missing {' and '.join(f'{name}=...' for name in missing)}; they have no default"
        )
    settings = Settings(**given)
    _check_together(settings)
    _check_used(settings)
    return settings


def _check_together(settings: Settings) -> None:
    if settings.hidden_sequences and settings.lookahead == 0 and settings.sparsities == ():
        raise SettingError(
            "hidden_sequences needs lookahead or sparsities; set hidden_sequences=0 for routing"
            " only"
        )
    if settings.batch > 1 and settings.prefill_chunk:
        raise SettingError(
            "prefill_chunk would cut the padding of a batch; set batch=1, or prefill_chunk=0"
        )
    if settings.batch > 1 and settings.prefill == "counts":
        raise SettingError(
            "prefill=counts keeps no padding, which a batch's prompts have; set batch=1"
        )
    if settings.prefill_lookahead == "rows" and settings.prefill == "counts":
        raise SettingError(
            "prefill_lookahead=rows keeps scores of rows that prefill=counts leaves out; choose "
            "prefill_lookahead=counts, or prefill=rows"
        )
    if settings.lookahead and not settings.logits:
        raise SettingError("lookahead is checked against logits; set logits=yes, or lookahead=0")


def _check_used(settings: Settings) -> None:
    """Refuse what was said of something that is not recorded, and would change nothing."""
    usual = {item.name: item.default for item in fields(Settings)}
    for is_used, keys, of in (
        (settings.continuation == "greedy", ("chat",), "continuation=greedy"),
        (settings.hidden_sequences > 0, ("hidden_share", "hidden_dtype"), "hidden_sequences"),
        (settings.logits, ("logits_step",), "logits=yes"),
        (
            settings.lookahead != 0,
            ("lookahead_position", "norms", "lookahead_step", "prefill_lookahead"),
            "lookahead",
        ),
    ):
        for key in keys:
            if not is_used and getattr(settings, key) != usual[key]:
                raise SettingError(f"{key} changes nothing without {of}; leave it out")


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
            raise SettingError(
                f"{key} is {text!r}, must be a whole number of {minimum} or more"
            ) from None
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


def _share(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise SettingError(f"{key} is {text!r}, must be a share above 0, up to 1")
    return value


def _yes_or_no(key: str, text: str) -> bool:
    return _one(("yes", "no"))(key, text) == "yes"


def _or_auto(parse: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    def either(key: str, text: str) -> Any:
        return None if text == AUTO else parse(key, text)

    return either


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
        raise SettingError(
            f"{key} is {text!r}, must be shares such as 0.5,0.8,0.9, or empty"
        ) from None
    if list(values) != sorted(set(values)) or not all(0 < value < 1 for value in values):
        raise SettingError(
            f"{key} is {text!r}, must be ascending shares between 0 and 1, such as 0.5,0.8,0.9"
        )
    return values


def _some(allowed: Sequence[str]) -> Callable[[str, str], tuple[str, ...]]:
    def parse(key: str, text: str) -> tuple[str, ...]:
        values = tuple(text.split(","))
        if not set(values) <= set(allowed) or len(set(values)) != len(values):
            raise SettingError(
                f"{key} is {text!r}, must be some of {', '.join(allowed)}, separated by commas"
            )
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
    "chat": _one(CHATS),
    "batch": _integer(1),
    "prefill_chunk": _integer(0),
    "prefill": _one(PREFILLS),
    "logits": _yes_or_no,
    "lookahead": _or_auto(_integer(0)),
    "lookahead_position": _one(POSITIONS),
    "norms": _or_auto(_some(NORMS)),
    "prefill_lookahead": _one(PREFILL_LOOKAHEADS),
    "sparsities": _or_auto(_shares),
    "hidden_sequences": _integer(0),
    "hidden_share": _share,
    "hidden_dtype": _one(HIDDEN_DTYPES),
    "logits_step": _step_or_exact,
    "lookahead_step": _step,
    "weights_step": _step_or_exact,
    "experts_implementation": _one(IMPLEMENTATIONS),
    "dtype": _one(DTYPES),
    "device": _text,
    "threads": _integer(0),
    "seed": _integer(0),
    "trust_remote_code": _yes_or_no,
}
