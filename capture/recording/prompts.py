"""Prompts for a capture: how their file is read and how its texts are cut into sequences.

The file has JSON lines ``{domain, document, split, text, licence}``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from capture.models.refusal import CaptureError
from sim.traces.header import SPLITS
from sim.values.places import ASSETS

BUNDLED = ASSETS / "prompts"
KEYS = ("domain", "document", "split", "text", "licence")
# A text in a loop repeats most of its 4-grams, running text hardly any.
REPETITION_NGRAM, REPETITION_SHARE = 4, 0.5


@dataclass(frozen=True)
class Prompt:
    """One line of the file."""

    domain: str
    document: str
    split: str
    text: str
    licence: str


@dataclass(frozen=True)
class Passage:
    """A prompt in tokens: ``prefill``, and the tokens ``following`` it in the document."""

    prompt: Prompt
    prefill: tuple[int, ...]
    following: tuple[int, ...]


def prompts_file(named: Path) -> Path:
    """The file ``named``, or the bundled set of that name.

    Raise `CaptureError` if there is neither.
    """
    bundled = BUNDLED / f"{named}.jsonl"
    if named.is_file():
        return named
    if len(named.parts) == 1 and bundled.is_file():
        return bundled
    sets = sorted(path.stem for path in BUNDLED.glob("*.jsonl"))
    raise CaptureError(
        f"{named}: cannot be read (no such file); name a file of JSON lines, or one of the sets"
        f" {sets}"
    )


def read_prompts(path: Path) -> list[Prompt]:
    """The lines of ``path``. Raise `CaptureError` naming the line and field that is wrong."""
    try:
        # Not splitlines: a text may have marks at which it splits, too.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CaptureError(f"{path}: cannot be read ({error}); name a file of JSON lines") from None
    return [
        _prompt(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()
    ]


def _prompt(path: Path, number: int, line: str) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CaptureError(
            f"{path}:{number}: not JSON ({error}); each line is an object with {KEYS}"
        ) from None
    if not isinstance(value, dict) or not all(isinstance(value.get(key), str) for key in KEYS):
        raise CaptureError(
            f"{path}:{number}: must be an object with text for each of {KEYS}; docs/captures.md has a line"
        )
    if value["split"] not in SPLITS:
        raise CaptureError(f"{path}:{number}: split is {value['split']!r}, must be one of {SPLITS}")
    return Prompt(**{key: value[key] for key in KEYS})


def cut_passages(
    prompts: Sequence[Prompt],
    tokenize: Callable[[str], Sequence[int]],
    *,
    sequences: int,
    prompt_tokens: tuple[int, int],
    following_tokens: int,
    seed: int,
    words: tuple[str, str] = ("prompt_tokens", "decode_tokens"),
) -> list[Passage]:
    """``sequences`` passages, half of each split (fit first), in file order.

    The length of each prompt is drawn with ``seed`` from the range ``prompt_tokens``, both ends
    included. Each passage also has the ``following_tokens`` tokens of its document. Raise
    `CaptureError` if there are too few prompts, if one is too short, or if a document is in both
    splits. ``words`` are those by which the caller's user says the two lengths.
    """
    splits: dict[str, set[str]] = {}
    for prompt in prompts:
        splits.setdefault(prompt.document, set()).add(prompt.split)
    shared = sorted(document for document, found in splits.items() if len(found) > 1)
    if shared:
        raise CaptureError(
            f"documents {shared[:3]} are in both splits; fit and eval must not share text"
        )
    wanted = dict(zip(SPLITS, ((sequences + 1) // 2, sequences // 2), strict=True))
    chosen: list[Prompt] = []
    for split, count in wanted.items():
        mine = [prompt for prompt in prompts if prompt.split == split]
        if len(mine) < count:
            rule = f"only {len(mine)} prompts have split={split}"
            raise CaptureError(
                f"sequences={sequences} needs {count} of each split, but {rule}; ask for fewer"
            )
        chosen += mine[:count]
    generator = np.random.default_rng(seed)
    lengths = generator.integers(prompt_tokens[0], prompt_tokens[1] + 1, len(chosen)).tolist()
    return [
        _passage(prompt, tokenize(prompt.text), length, following_tokens, words)
        for prompt, length in zip(chosen, lengths, strict=True)
    ]


def _passage(
    prompt: Prompt,
    tokens: Sequence[int],
    length: int,
    following: int,
    words: tuple[str, str],
) -> Passage:
    if len(tokens) < length + following:
        raise CaptureError(
            f"a text of {prompt.document!r} has {len(tokens)} tokens, needs {length} + {following};"
            f" lower {words[0]} or {words[1]}, or give longer texts"
        )
    return Passage(prompt, tuple(tokens[:length]), tuple(tokens[length : length + following]))


def wrapped(
    passages: Sequence[Passage], wrap: Callable[[Sequence[int]], Sequence[int]]
) -> list[Passage]:
    """Passages whose prompts went through ``wrap``, such as a chat template.

    They have no following tokens.
    """
    return [
        replace(passage, prefill=tuple(wrap(passage.prefill)), following=()) for passage in passages
    ]


def has_repetition(tokens: Sequence[int]) -> bool:
    """Whether more than half of the 4-grams of ``tokens`` occurred before.

    It matters because text in a loop routes unlike other text.
    """
    grams = [
        tuple(tokens[start : start + REPETITION_NGRAM])
        for start in range(len(tokens) - REPETITION_NGRAM + 1)
    ]
    repeats = len(grams) - len(Counter(grams))
    return bool(grams) and repeats > REPETITION_SHARE * len(grams)
