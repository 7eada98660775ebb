"""Compositions of ``conf/`` without hydra's machinery, in a twentieth of its time, where files are
as plain as there.

Plain is: a choice names a file of a group; a group's file has values, maybe on top of other files
of its group; a system has nothing but choices. Whatever is not is left to hydra, and what comes out
is hydra's, to the order of keys.
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
"""What the configuration takes from a running hydra, and what stands there without one."""

Values = dict[str, Any]


class NotPlain(Exception):
    """Something that only hydra composes, or refuses."""


def compose_plainly(words: Sequence[str]) -> tuple[Values, str] | None:
    """The values of ``python -m sim`` with these choices of files, and the system; None where hydra
    must be asked.

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
    """Group and file of a word that is such a choice."""
    group, _, name = word.partition("=")
    # What is chosen where nothing stands (an experiment) may change anything.
    if groups.get(group) is None or not (CONF / group / f"{name}.yaml").is_file():
        raise NotPlain
    return group, name


@cache
def _whole() -> tuple[Values, dict[str, str | None]]:
    """Of ``config.yaml`` its own values, but for what is hydra's, and the file that it chooses
    of every group.
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
    """The values of a group's file, on top of those that it starts from."""
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
    """Sections are merged; of anything else the upper one holds."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {
        key: _merged(below[key], value) if key in below else value for key, value in above.items()
    }
