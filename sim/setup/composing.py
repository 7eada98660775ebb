"""Compose plain configurations from ``conf/`` without hydra, in a hundredth of its time.

A composition is plain if each word chooses a file of a group or sets a value that is there, if a
group's file holds values (perhaps on top of other files of its group), and if a system holds choices
and perhaps values. Everything else is left to hydra. The result is equal to hydra's, to the order
of keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from sim.values.places import CONF, WORDS_OF_YAML

BASE, SELF, DEFAULTS, SYSTEM, OVERRIDE = "config", "_self_", "defaults", "system", "override /"
PACKAGE, WHOLE, HYDRA = "@package", "# @package _global_\n", "hydra"
INTERPOLATED, TO_BE_GIVEN = "${", "???"
OF_HYDRA = {HYDRA: None, "output_dir": "unused"}
"""The values that a configuration takes from a running hydra, and their placeholders."""

Values = dict[str, Any]
_WHOLE = r"-?(?:0|[1-9]\d*)"
_NUMBER = rf"{_WHOLE}(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)"
PLAIN_WORD = re.compile(
    rf"([a-z_]\w*(?:\.[a-z_]\w*)*)=(?:({_WHOLE})|({_NUMBER})|([a-z_/][\w./-]*))",
    re.ASCII | re.IGNORECASE,
)
"""A key, and a whole number, a number or text: hydra reads such words so, too, and no word
otherwise.
"""
SIGNS = re.compile(r"\+{0,2}")
CONSTANTS: dict[str, Any] = {"null": None, "true": True, "false": False}


class NotPlain(Exception):
    """Only hydra can compose this, or refuse it."""


def plain_word(word: str) -> tuple[str, Any] | None:
    """The key and the value of a word; None for one that only hydra can read.

    >>> plain_word("budget.resident_share=0.25"), plain_word("trace.path=/data/mine")
    (('budget.resident_share', 0.25), ('trace.path', '/data/mine'))
    >>> plain_word("trace.max_sequences=null"), plain_word("cache=[lru]")
    (('trace.max_sequences', None), None)
    """
    found = PLAIN_WORD.fullmatch(word)
    if found is None:
        return None
    key, whole, number, text = found.groups()
    if text is None:
        return key, int(whole) if whole else float(number)
    lower = text.lower()
    if lower in CONSTANTS:
        return key, CONSTANTS[lower]
    return None if lower in WORDS_OF_YAML else (key, text)


def compose_plainly(words: Sequence[str], config: str = "config") -> tuple[Values, str] | None:
    """The configuration of ``python -m sim`` with these words, and the system's name; None where
    hydra must compose it. ``config``: the file of ``conf/`` to start from.

    >>> values, system = compose_plainly(["system=lru", "cache=lfu", "budget.resident_share=0.25"])
    >>> system, values["cache"]["_target_"], values["budget"]["resident_share"]
    ('lru', 'sim.policies.LFU', 0.25)
    """
    try:
        return _compose(words, config)
    except (NotPlain, RecursionError):
        return None


def _compose(words: Sequence[str], config: str) -> tuple[Values, str]:
    values, choices, above = _whole(config)
    asked, settings = _told(words, choices)
    system = asked.get(SYSTEM) or choices[SYSTEM]
    assert system is not None
    chosen, own = _of_system(system)
    if not set(chosen) <= set(choices):
        raise NotPlain
    options = {
        group: _option(group, name)
        for group, name in (choices | chosen | asked).items()
        if group != SYSTEM and name is not None
    }
    composed: Values = deepcopy(_merged(_merged(values | options, own), above))
    for key, (sign, value) in settings.items():
        _set(composed, key, sign, value)
    return composed, system


def _told(
    words: Sequence[str], groups: Mapping[str, str | None]
) -> tuple[dict[str, str], dict[str, tuple[str, Any]]]:
    """What words choose, by group, and what they set, by key, in their order: the sign before the
    key, and the value.
    """
    asked: dict[str, str] = {}
    settings: dict[str, tuple[str, Any]] = {}
    for word in words:
        sign = SIGNS.match(word)[0]  # type: ignore[index]
        found = plain_word(word.removeprefix(sign))
        # Of two words for one key hydra may have something to say.
        if found is None or found[0] in {*asked, *settings}:
            raise NotPlain
        key, value = found
        if not (CONF / key).is_dir():
            settings[key] = sign, value
        # An experiment is chosen where nothing is chosen by default, and may change anything.
        elif sign or groups.get(key) is None or not _is_option(key, value):
            raise NotPlain
        else:
            asked[key] = value
    return asked, settings


def _is_option(group: str, value: Any) -> bool:
    """Whether a word may choose this of a group; hydra refuses numbers."""
    return isinstance(value, str) and (CONF / group / f"{value}.yaml").is_file()


def _set(values: Values, key: str, sign: str, value: Any) -> None:
    """Set a value that is there; with ``+`` add one that is not there, with ``++`` do either."""
    *names, last = key.split(".")
    if key == HYDRA:
        raise NotPlain
    node: Any = values
    for name in names:
        node = node.get(name) if isinstance(node, dict) else None
    if not isinstance(node, dict):
        raise NotPlain
    if (sign == "" and last not in node) or (sign == "+" and node.get(last) is not None):
        raise NotPlain
    node[last] = value


def _whole(config: str) -> tuple[Values, dict[str, str | None], Values]:
    """Of ``config.yaml``, without hydra's section: its own values and the file that it chooses of
    each group; and the values that a file on top of it adds.
    """
    if config != BASE:
        return _on_top(config)
    (own, *defaults), values = _read(CONF / f"{BASE}.yaml", replaced=OF_HYDRA)
    values = {key: value for key, value in values.items() if key != HYDRA}
    chosen: dict[str, str | None] = {}
    for item in defaults:
        if not isinstance(item, dict):
            raise NotPlain
        chosen |= {
            group: name for group, name in item.items() if not group.startswith("override hydra/")
        }
    if own != SELF or set(values) & set(chosen) or not isinstance(chosen.get(SYSTEM), str):
        raise NotPlain
    return values, chosen, {}


def _on_top(config: str) -> tuple[Values, dict[str, str | None], Values]:
    """``_whole`` of a file that starts from ``config.yaml`` and chooses otherwise there."""
    values, chosen, _ = _whole(BASE)
    (first, *defaults), above = _read(CONF / f"{config}.yaml")
    if first != BASE or defaults[:1] != [SELF] or set(above) & (set(values) | set(chosen)):
        raise NotPlain
    for group, name in _overridden(defaults[1:], "override ").items():
        if group not in chosen:
            raise NotPlain
        chosen[group] = name
    return values, chosen, above


def _of_system(system: str) -> tuple[dict[str, str], Values]:
    """The files that a system chooses, by group, and the values that it sets."""
    defaults, values = _read(CONF / SYSTEM / f"{system}.yaml", head=WHOLE)
    found = _overridden([item for item in defaults if item != SELF], OVERRIDE)
    if SYSTEM in found or HYDRA in values:
        raise NotPlain
    return found, values


def _overridden(defaults: Sequence[Any], prefix: str) -> dict[str, str]:
    """The files that a defaults list of nothing but overrides chooses, by group."""
    found: dict[str, str] = {}
    for item in defaults:
        if not isinstance(item, dict) or not all(key.startswith(prefix) for key in item):
            raise NotPlain
        if not all(isinstance(name, str) for name in item.values()):
            raise NotPlain
        chosen = {key.removeprefix(prefix): name for key, name in item.items()}
        # Of two for one group hydra takes the first.
        found = chosen | found
    return found


def _option(group: str, name: str) -> Values:
    """The values of a group's file, merged over the files that it starts from."""
    defaults, own = _read(CONF / group / f"{name}.yaml")
    if own and defaults and SELF not in defaults:
        raise NotPlain
    found: Values = {}
    for item in defaults or [SELF]:
        # A folder in a name would be a section of its own.
        if not isinstance(item, str) or "/" in item:
            raise NotPlain
        found = _merged(found, own if item == SELF else _option(group, item))
    return found


def _read(
    place: Path, head: str = "", replaced: Mapping[str, Any] = {}
) -> tuple[list[Any], Values]:
    """The defaults list of a file, and its values. They are kept until the file changes, and nobody
    may change them.
    """
    try:
        state = place.stat()
    except OSError:
        raise NotPlain from None
    defaults, values, text = _parsed(place, state.st_mtime_ns, state.st_size, state.st_ino)
    values = {**values, **replaced}
    if not text.startswith(head) or PACKAGE in text.removeprefix(head):
        raise NotPlain
    if INTERPOLATED in str(values) or defaults.count(SELF) > 1:
        raise NotPlain
    return defaults, values


@cache
def _parsed(place: Path, *state: int) -> tuple[list[Any], Values, str]:
    """The defaults list, the values and the text of a file in this state."""
    try:
        text = place.read_text(encoding="utf-8")
        found = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException):
        raise NotPlain from None
    if not isinstance(found, dict):
        raise NotPlain
    defaults = found.pop(DEFAULTS, [])
    if not isinstance(defaults, list):
        raise NotPlain
    return defaults, {str(key): value for key, value in found.items()}, text


def _merged(below: Any, above: Any) -> Any:
    """Sections are merged; of other values the upper one holds, unless it is still to be given. A
    list and a section do not go together.
    """
    if above == TO_BE_GIVEN:
        return below
    if {type(below), type(above)} == {dict, list}:
        raise NotPlain
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {
        key: _merged(below[key], value) if key in below else value for key, value in above.items()
    }
