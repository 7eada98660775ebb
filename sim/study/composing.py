"""Compose plain configurations from ``conf/`` without hydra, in a twentieth of its time.

A composition is plain if each choice names a file of a group, if a group's file holds values
(perhaps on top of other files of its group), and if a system holds nothing but choices. Everything
else is left to hydra. The result is equal to hydra's, to the order of keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from sim.values.places import CONF

SELF, DEFAULTS, SYSTEM, OVERRIDE = "_self_", "defaults", "system", "override /"
PACKAGE, WHOLE, INTERPOLATED = "@package", "# @package _global_\n", "${"
OF_HYDRA = {"hydra": None, "output_dir": "unused"}
"""The values that a configuration takes from a running hydra, and their placeholders."""

Values = dict[str, Any]


class NotPlain(Exception):
    """Only hydra can compose this, or refuse it."""


def compose_plainly(words: Sequence[str]) -> tuple[Values, str] | None:
    """The configuration of ``python -m sim`` with these choices of files, and the system's name;
    None where hydra must compose it.

    >>> values, system = compose_plainly(["system=lru", "cache=lfu"])
    >>> system, values["cache"]["_target_"]
    ('lru', 'sim.policies.LFU')
    """
    try:
        return _compose(words)
    except NotPlain:
        return None


def _compose(words: Sequence[str]) -> tuple[Values, str]:
    values, chosen = _whole()
    chosen = dict(chosen)
    asked = dict(_choice(word, chosen) for word in words)
    system = asked.get(SYSTEM) or chosen[SYSTEM]
    assert system is not None
    chosen |= {**_mechanisms(system), **asked}
    composed = deepcopy(values) | {
        group: deepcopy(_option(group, name))
        for group, name in chosen.items()
        if group != SYSTEM and name is not None
    }
    return composed, system


def _choice(word: str, groups: dict[str, str | None]) -> tuple[str, str]:
    """The group and the file that a word chooses. Raise NotPlain for another word."""
    group, _, name = word.partition("=")
    # An experiment is chosen where nothing is chosen by default, and may change anything.
    if groups.get(group) is None or not (CONF / group / f"{name}.yaml").is_file():
        raise NotPlain
    return group, name


@cache
def _whole() -> tuple[Values, dict[str, str | None]]:
    """The own values of ``config.yaml`` without hydra's section, and the file that it chooses of
    each group.
    """
    (own, *defaults), values = _read(CONF / "config.yaml", replaced=OF_HYDRA)
    del values["hydra"]
    chosen: dict[str, str | None] = {}
    for item in defaults:
        if not isinstance(item, dict):
            raise NotPlain
        chosen |= {
            group: name for group, name in item.items() if not group.startswith("override hydra/")
        }
    if own != SELF or set(values) & set(chosen) or not isinstance(chosen.get(SYSTEM), str):
        raise NotPlain
    return values, chosen


@cache
def _mechanisms(system: str) -> dict[str, str]:
    """The files that a system chooses, by group."""
    defaults, values = _read(CONF / SYSTEM / f"{system}.yaml", head=WHOLE)
    found: dict[str, str] = {}
    for item in defaults:
        if not isinstance(item, dict) or not all(key.startswith(OVERRIDE) for key in item):
            raise NotPlain
        found |= {key.removeprefix(OVERRIDE): name for key, name in item.items()}
    if values or SYSTEM in found:
        raise NotPlain
    return found


@cache
def _option(group: str, name: str) -> Values:
    """The values of a group's file, merged over the files that it starts from."""
    defaults, own = _read(CONF / group / f"{name}.yaml")
    found: Values = {}
    for item in defaults or [SELF]:
        if not isinstance(item, str):
            raise NotPlain
        found = _merged(found, own if item == SELF else _option(group, item))
    return found


def _read(
    place: Path, head: str = "", replaced: Mapping[str, Any] = {}
) -> tuple[list[Any], Values]:
    """The defaults list of a file, and its values."""
    try:
        text = place.read_text(encoding="utf-8")
        found = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException):
        raise NotPlain from None
    if (
        not isinstance(found, dict)
        or not text.startswith(head)
        or PACKAGE in text.removeprefix(head)
    ):
        raise NotPlain
    values = {str(key): value for key, value in {**found, **replaced}.items() if key != DEFAULTS}
    defaults = found.get(DEFAULTS, [])
    if INTERPOLATED in str(values) or (values and defaults and SELF not in defaults):
        raise NotPlain
    return list(defaults), values


def _merged(below: Any, above: Any) -> Any:
    """Sections are merged; of other values the upper one holds."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {
        key: _merged(below[key], value) if key in below else value for key, value in above.items()
    }
