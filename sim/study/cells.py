"""From overrides to cells, the configurations that a study runs.

Overrides that choose files are composed as hydra does it, once for every choice. Plain values are
then set in a copy of the result by hydra's rules (a key must exist, a section is merged), which
takes a hundredth of hydra's time. Every other override goes through hydra.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from os.path import isfile
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sim.setup.composing import compose_plainly, plain_word
from sim.setup.configure import configure, system_name
from sim.setup.own_gates import with_gates
from sim.setup.traces import trace_directory
from sim.study.plan import Plan, Values, nearest
from sim.traces.header import trace_sha256
from sim.traces.header_text import parse_header
from sim.values.code import files_digest, foreign_files
from sim.values.places import ASSETS, CONF
from sim.values.version import VERSION
from sim.verbs.words import without

NOT_IN_KEY = ("output_dir", "outputs", "timeline_steps")
"""Settings on which no number of a run depends."""
KEY_DIGITS = 20


@dataclass(frozen=True)
class Cell:
    """One configuration to run.

    ``key`` is the digest of all that its numbers depend on. ``words`` are its overrides; ``axes``
    are the values that the study varies, by key; ``config`` is the whole configuration, resolved.
    """

    key: str
    system: str
    words: tuple[str, ...]
    axes: dict[str, Any]
    config: dict[str, Any]
    trace_sha256: str | None


def plan_cells(plan: Plan) -> list[Cell]:
    """Every cell of a study's grids and lists, each configuration once. Raise ValueError for
    overrides that cannot be.
    """
    found: dict[str, Cell] = {}
    for values, words in plan.cells():
        cell = make_cell(plan, values, words)
        found.setdefault(cell.key, cell)
    return list(found.values())


def make_cell(plan: Plan, values: Values, words: Sequence[str] = ()) -> Cell:
    """A cell of ``plan``. Its overrides are, in this order: the plan's base, ``values`` by key,
    ``words``, and the plan's last. The later of two for one key holds.
    """
    settings: dict[str, Any] = {}
    choices: dict[str, str] = {}
    told = (
        *plan.base,
        *(f"{key}={_text(value)}" for key, value in values.items()),
        *words,
        *plan.last,
    )
    for key, value, word in (
        *map(_taken_apart, plan.base),
        *((key, value, None) for key, value in values.items()),
        *map(_taken_apart, (*words, *plan.last)),
    ):
        if word is None and not _is_for_hydra(key):
            settings[key] = value
        elif value is None and (CONF / key).is_dir():
            raise ValueError(f"{key}: null: {key} is chosen by the name of a file; {without(key)}")
        else:
            # The later of two words about one group holds.
            choices[key] = word or f"{key}={value}"
    composed, chosen = _compose(tuple(choices.values()))
    config = composed
    for key, value in settings.items():
        config = _with(config, key.split("."), value)
    config = _with_gates(config)
    axes = {**dict(values), **{key: value for key, value, _ in map(_taken_apart, words)}}
    axes |= {key: value for key, value, _ in map(_taken_apart, plan.last) if key in axes}
    system, sha256 = system_name(chosen, told), _trace_sha256(str(config["trace"].get("path")))
    return Cell(cell_key(config, str(chosen), sha256), system, told, axes, config, sha256)


def cell_key(config: Mapping[str, Any], system: str, sha256: str | None) -> str:
    """The digest of all that a run's numbers depend on, the program's version included.

    Classes of somebody's own, and files that the configuration names, count by their bytes.
    """
    kept = {name: value for name, value in config.items() if name not in NOT_IN_KEY}
    files = [*foreign_files(kept), *_files_named(kept)]
    own = [files_digest(files)] if files else []
    text = json.dumps([VERSION, sha256, system, kept, *own], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def _files_named(config: object) -> Iterator[Path]:
    """The files whose paths stand in nested values: fits, arrivals, requests. What is bundled is a
    part of the version.
    """
    if isinstance(config, Mapping):
        config = list(config.values())
    if isinstance(config, list | tuple):
        for value in config:
            yield from _files_named(value)
    elif isinstance(config, str) and "." in config and isfile(config):
        path = Path(config).absolute()
        if not path.is_relative_to(ASSETS):
            yield path


@cache
def _compose(choices: tuple[str, ...]) -> tuple[dict[str, Any], str | None]:
    """The configuration of these choices of files as plain values, and the chosen system."""
    if plainly := compose_plainly(choices):
        return plainly
    try:
        cfg, name = configure(*choices)
        plain = OmegaConf.to_container(cfg, resolve=True)
    except (ValueError, OmegaConfBaseException) as error:
        raise ValueError(f"{' '.join(choices)}: {' '.join(str(error).split())}") from None
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}, name.split(" ")[0]


@cache
def _parse(word: str) -> Any:
    """An override as hydra parses it. Raise ValueError for none, and for a sweep."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException as error:
        raise ValueError(f"{word!r} is no override: {str(error).splitlines()[0]}") from None
    if override.is_sweep_override():
        raise ValueError(f"{word} sweeps over values; put them into the study's grid")
    return override


def _taken_apart(word: str) -> tuple[str, Any, str | None]:
    """Key and value of an override; and the word itself if hydra must compose it, else None."""
    if plain := plain_word(word):
        key, value = plain
        return key, value, word if _is_for_hydra(key) else None
    from hydra.core.override_parser.types import OverrideType

    override = _parse(word)
    key = override.key_or_group
    value = None if override.type is OverrideType.DEL else override.value()
    if override.type is not OverrideType.CHANGE or override.package is not None or "$" in word:
        return word, value, word
    return key, value, word if _is_for_hydra(key) else None


@cache
def _is_for_hydra(key: str) -> bool:
    """Only hydra can follow it: it chooses a file, or says where hydra looks for files."""
    return (CONF / key.split("@")[0]).is_dir() or key.startswith("hydra.")


def _with(node: Any, names: Sequence[str], value: Any, depth: int = 0) -> dict[str, Any]:
    """A copy of a section in which the value at ``names`` is replaced. Sections beside the path are
    shared, not copied.

    Raise ValueError, with the nearest key, for a key that does not exist.
    """
    name, key = names[depth], ".".join(names)
    old = _child(node, name, names[:depth], key)
    if depth + 1 < len(names):
        return {**node, name: _with(old, names, value, depth + 1)}
    if not (isinstance(value, dict) and isinstance(old, dict)):
        return {**node, name: value}
    found: dict[str, Any] = node
    for inner, its in value.items():
        found = _with(found, (*names, str(inner)), its, depth)
    return found


def _child(node: Any, name: str, path: Iterable[str], key: str) -> Any:
    if not isinstance(node, dict) or name not in node:
        place = ".".join(path) or "the configuration"
        has = sorted(map(str, node)) if isinstance(node, dict) else []
        raise ValueError(
            f"{key} is no setting: {place} has no {name}{nearest(name, has)}; it has"
            f" {', '.join(has)}"
        )
    return node[name]


def _text(value: Any) -> str:
    """A value as an override writes it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _with_gates(config: dict[str, Any]) -> dict[str, Any]:
    """`with_gates`; the same configuration where there are none, for its run says why."""
    try:
        return with_gates(config)
    except ValueError:
        return config


@cache
def _trace_sha256(path: str) -> str | None:
    """The digest of a trace. None for a trace that cannot be read; its run will say why."""
    try:
        return trace_sha256(parse_header((trace_directory(path) / "header.json").read_bytes()))
    except (OSError, ValueError):
        return None
