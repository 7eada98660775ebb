"""What there is to choose from in ``conf/``, and the name nearest to a wrong one.

The files are read as they lie there, without composing them: that takes milliseconds, and a refusal
needs no more. What passes here is composed, and checked, by Hydra.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from sim.values.places import CONF
from sim.values.units import GIB

WHOLE = ("system", "experiment")
"""Groups whose files have values of other sections."""


def names(group: str, folder: Path | None = None) -> tuple[str, ...]:
    """The names of a group of ``conf/``, or of another ``folder``, in order; () where there is no
    such group.
    """
    return tuple(sorted(path.stem for path in ((folder or CONF) / group).glob("*.yaml")))


def nearest(word: str, known: Iterable[str]) -> str:
    """``; did you mean X?``, empty where nothing is near."""
    found = get_close_matches(word, list(known), 1)
    return f"; did you mean {found[0]}?" if found else ""


def sections(config: str) -> dict[str, Any]:
    """The top level of a configuration: its groups (None), and its own values."""
    text = read(CONF / f"{config}.yaml")
    found: dict[str, Any] = {}
    for one in text.get("defaults", ()):
        if isinstance(one, str) and one != "_self_":
            found |= sections(one)
        for key in one if isinstance(one, dict) else ():
            if not str(key).startswith("override "):
                found.setdefault(str(key), None)
    return found | {key: value for key, value in text.items() if key not in ("defaults", "hydra")}


def section(config: str, group: str, chosen: str | None) -> Any:
    """The values of a section as nested dictionaries: those of the file ``chosen``, else those of
    all files of the group together, and what systems and experiments put into it.
    """
    own = sections(config).get(group)
    found = dict(own) if isinstance(own, dict) else {}
    if not (CONF / group).is_dir():
        return found
    for name in [chosen] if chosen in names(group) else names(group):
        found = merged(found, of_file(group, str(name)))
    for whole in WHOLE:
        for name in names(whole):
            found = merged(found, read(CONF / whole / f"{name}.yaml").get(group) or {})
    return found


def of_file(group: str, name: str, folders: Sequence[Path] = ()) -> dict[str, Any]:
    """The values of one file of a group, with those of the files that it begins from. Of several
    ``folders`` (none: ``conf/``) the first that has a file counts.
    """
    places = [folder / group / f"{name}.yaml" for folder in folders or (CONF,)]
    text = read(next((place for place in places if place.is_file()), places[0]))
    found: dict[str, Any] = {}
    for one in text.get("defaults", ()):
        if isinstance(one, str) and one != "_self_":
            found = merged(found, of_file(group, one, folders))
    return merged(found, {key: value for key, value in text.items() if key != "defaults"})


def chosen(config: str, group: str, words: Mapping[str, str]) -> str | None:
    """The file of a group that a command line chooses, or the configuration's own choice. None
    where a system may have chosen.
    """
    if group in words:
        return words[group]
    for name in (config, "config"):
        for one in read(CONF / f"{name}.yaml").get("defaults", ()):
            if isinstance(one, dict):
                for key in (group, f"override {group}"):
                    if key in one:
                        by_system = (chosen_by(of, group) for of in names("system"))
                        return None if any(by_system) else str(one[key])
    return None


def chosen_by(system: str, group: str) -> str | None:
    """The file of a group that a system's file chooses; None where it leaves that to others."""
    for one in read(CONF / "system" / f"{system}.yaml").get("defaults", ()):
        if isinstance(one, dict) and f"override /{group}" in one:
            return str(one[f"override /{group}"])
    return None


def chosen_part(run: str, group: str) -> str | None:
    """The file of a run's mechanism, by the run's name: its own word, or what its system chooses.

    >>> chosen_part("sida", "predictor"), chosen_part("lru cache=lfu", "cache")
    ('token_routes', 'lfu')
    """
    system, *words = run.split() or [""]
    own = [word.partition("=")[2] for word in words if word.startswith(f"{group}=")]
    return own[-1] if own else chosen_by(system, group)


def merged(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested dictionaries; a section stays one where the other has null."""
    found = dict(base)
    for key, value in over.items():
        old = found.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            found[key] = merged(old, value)
        elif not isinstance(old, dict) or value is not None:
            found[key] = value
    return found


def lost(key: str, values: Any) -> tuple[str, Sequence[str]] | None:
    """The part of a dotted key that is not there, and what is there instead; None if all is.

    Below a value that is no section anything may stand: what composes the configuration judges.
    """
    node = values
    for part in key.split("."):
        if not isinstance(node, dict):
            return None
        if part not in node:
            return part, [str(name) for name in node if not str(name).startswith("_")]
        node = node[part]
    return None


@cache
def read(path: Path) -> dict[str, Any]:
    """A file of ``conf/`` as it stands; {} for one that cannot be read."""
    import yaml  # type: ignore[import-untyped]

    try:
        found = yaml.load(
            path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


MEMORY_GIB = 24.0
"""What the machine of ``conf/config.yaml`` holds."""
SIZES = ("sites", "experts", "top_k", "hidden", "expert_intermediate")
"""Of a model, what a trace tells, too."""


def models_for(sites: int, experts: int, top_k: int, hidden: int, intermediate: int) -> str:
    """The words that choose a model for gates of this shape: one that has it, else a part of one
    with as many experts of which so many are chosen, else a stand-in and the way to make one.

    ``hidden`` and ``intermediate`` are those of an expert; a stand-in gets them, too.

    >>> models_for(27, 64, 6, 2048, 1408)
    'model=deepseek_moe_16b'
    >>> models_for(8, 64, 6, 2048, 1408)
    'model=deepseek_moe_16b model.sites=8 (8 of its 27 layers with experts)'
    >>> models_for(12, 64, 4, 2048, 1408).partition(", or")[0]
    'model=qwen1_5_moe_a2_7b model.sites=12 model.experts=64 (all but the experts as of qwen1_5_moe_a2_7b)'
    """
    files = {name: read(CONF / "model" / f"{name}.yaml") for name in names("model")}
    alike = [
        name
        for name, own in files.items()
        if (own.get("experts"), own.get("top_k")) == (experts, top_k)
    ]
    whole = [name for name in alike if files[name].get("sites") == sites]
    if whole:
        return " or ".join(f"model={name}" for name in whole)
    if larger := [name for name in alike if files[name].get("sites", 0) > sites]:
        own = files[larger[0]]["sites"]
        return f"model={larger[0]} model.sites={sites} ({sites} of its {own} layers with experts)"
    return (
        f"{_stand_in(files, (sites, experts, top_k, hidden, intermediate))}, or the model that it is"
        " of (moelab models from=config.json output=FILE makes its file)"
    )


def run_of(shape: Mapping[str, Any], place: Path) -> str:
    """The command that runs the trace at ``place``, of a model of this shape: with the model that
    has its sizes, else with a stand-in that gets them, which a comment of the shell explains. Half of
    the experts, as runs have by default, may be too many for the machine that they have by default.

    >>> run_of(dict(zip(SIZES, (27, 64, 6, 2048, 1408))), Path("mine"))
    'moelab run system=lru model=deepseek_moe_16b trace.path=mine budget=fit'
    >>> run_of(dict(zip(SIZES, (16, 64, 8, 2048, 1024))), Path("mine"))
    'moelab run system=lru model=olmoe_1b_7b trace.path=mine'
    >>> run_of(dict(zip(SIZES, (27, 64, 4, 2048, 1408))), Path("mine")).partition("  # ")[2]
    'no listed model has these sizes: all but the experts as of qwen1_5_moe_a2_7b'
    """
    sizes = [shape[key] for key in SIZES]
    files = {name: read(CONF / "model" / f"{name}.yaml") for name in names("model")}
    alike = [name for name, own in files.items() if [own.get(key) for key in SIZES] == sizes]
    path = shlex.quote(f"trace.path={place}")
    if _bytes_of(shape) > MEMORY_GIB * GIB:
        path += " budget=fit"
    if alike:
        return f"moelab run system=lru model={alike[0]} {path}"
    model, _, why = _stand_in(files, sizes).removesuffix(")").partition(" (")
    none = f"no listed model has these sizes: {why}"
    return f"moelab run system=lru {model} {path}  # {none}"


def _bytes_of(shape: Mapping[str, Any]) -> int:
    """What all experts of a shape take at 16 bits, of three matrices each."""
    each = 3 * shape["hidden"] * shape["expert_intermediate"] * 2
    return int(shape["sites"] * shape["experts"] * each)


def _stand_in(files: Mapping[str, Mapping[str, Any]], wanted: Sequence[int]) -> str:
    """The words that give the sizes that are wanted to the model whose own are nearest: the width of
    an expert counts most, then hidden size, ``top_k``, experts and sites.
    """
    whole = {
        name: [own[key] for key in SIZES]
        for name, own in files.items()
        if set(SIZES) <= set(own) and "encoder_sites" not in own
    }
    name = min(
        whole, key=lambda one: [abs(a - b) for a, b in zip(whole[one], wanted, strict=True)][::-1]
    )
    words = [
        f"model.{key}={value}"
        for key, value, own in zip(SIZES, wanted, whole[name], strict=True)
        if value != own
    ]
    return f"{' '.join([f'model={name}', *words])} (all but the experts as of {name})"
