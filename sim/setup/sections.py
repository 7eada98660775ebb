"""Two readers of what a user wrote: words of a command become values, and sections of a
configuration become objects. Both name the key that they refuse.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any

SINGLE = re.compile(r"(str|int|float|bool|None)( \| (str|int|float|bool|None))*")
"""The annotations of parameters that take no list and no section."""
SEVERAL = re.compile(r"(tuple|list|Sequence|dict|Mapping)\[.*\]( \| None)?")
"""The annotations of parameters that take a list or a section, and no single value."""
PLAIN = (dict, list, str, int, float, type(None))
"""What a section's values are after they were resolved."""


def make_object(node: Any, place: str = "") -> Any:
    """The object that a section of a configuration describes: every section that has a
    ``_target_`` becomes what the target makes of its other values, innermost first.

    ``node`` is plain values, or a section of OmegaConf's, which is resolved first. ``place`` is its
    dotted key, for messages.

    This is the project's only instantiator. ``hydra.utils.instantiate`` makes the same objects, but
    wraps every section in OmegaConf again. The parts of a run of hobbit take it 40 ms; here they
    take 0.13 ms, and the whole build of a run whose trace is at hand takes 2 ms (best of 30 on
    a server's core). A study builds thousands of runs.

    Raise ValueError for a key that the target does not know, for one that it needs and does not
    get, and for a target that does not exist; OmegaConf's errors for a value that is not set or
    cannot be resolved. What a target itself raises goes through.
    """
    if not isinstance(node, PLAIN):
        # Late: who has plain values needs no OmegaConf, whose import takes longer than a list.
        from omegaconf import DictConfig, OmegaConf

        if isinstance(node, DictConfig):
            node = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    if isinstance(node, list):
        return [make_object(item, f"{place}.{number}") for number, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    made = {
        name: make_object(value, f"{place}.{name}" if place else str(name))
        for name, value in node.items()
        if name != "_target_"
    }
    if "_target_" not in node:
        return made
    target = _target(node["_target_"], place)
    if several := [name for name, value in made.items() if isinstance(value, list | dict)]:
        _check_several(target, node, several, place)
    try:
        return target(**made)
    except TypeError:
        _check_keys(target, node, place)
        _check_single(target, node, place)
        raise


def _check_several(
    target: Callable[..., Any], node: Mapping[str, Any], several: Sequence[str], place: str
) -> None:
    """Raise ValueError for lists and sections where the target's parameters have one value each.

    Of a parameter without an annotation nobody knows.
    """
    parameters = inspect.signature(target).parameters
    for name in several:
        told = str(parameters[name].annotation) if name in parameters else "Any"
        if SINGLE.fullmatch(told):
            raise ValueError(
                f"{place}.{name}={node[name]!r} must be one value; moelab sweep takes several, as"
                f" {place}.{name}=A,B"
            )


def _check_single(target: Callable[..., Any], node: Mapping[str, Any], place: str) -> None:
    """Raise ValueError for one value where the target's parameter has a list or a section."""
    for name, one in inspect.signature(target).parameters.items():
        value, told = node.get(name), str(one.annotation)
        if isinstance(value, int | float) and SEVERAL.fullmatch(told):
            raise ValueError(
                f"{place}.{name}={value!r} must be several values ({told}), as in conf/"
            )


def _check_keys(target: Callable[..., Any], node: Mapping[str, Any], place: str) -> None:
    """Raise ValueError, naming the nearest keys, if the target cannot be called with these
    keys.
    """
    parameters = inspect.signature(target).parameters
    if any(one.kind in (one.VAR_KEYWORD, one.POSITIONAL_ONLY) for one in parameters.values()):
        return
    given = {str(name): value for name, value in node.items() if name != "_target_"}
    where = f"{place}." if place else ""
    if unknown := [name for name in given if name not in parameters]:
        like = [
            f"did you mean {where}{near}?"
            for name in unknown
            for near in get_close_matches(name, parameters, 1)
        ]
        told = ", ".join(f"{where}{name}={given[name]!r}" for name in unknown)
        kind = node["_target_"].rpartition(".")[2]
        raise ValueError(
            f"{told}: unknown; {kind} knows"
            f" {', '.join(parameters)}{''.join(f'; {one}' for one in like)}"
        )
    needed = [name for name, one in parameters.items() if one.default is one.empty]
    if missing := [name for name in needed if name not in given]:
        has = ", ".join(
            f"{name}={value!r}"
            for name, value in given.items()
            if not isinstance(value, dict | list)
        )
        raise ValueError(
            f"not given: {', '.join(where + name for name in missing)} (there is"
            f" {has or 'nothing'})"
        )


@cache
def _target(path: object, place: str) -> Any:
    """The class or function that ``_target_`` names, which may lie inside a class. Raise
    ValueError, with what its module was refused for, if there is none.
    """
    try:
        found = _located(str(path))
    # A module of one's own may fail by any exception.
    except Exception as error:
        own = "; the folder of a module of your own must stand in PYTHONPATH"
        is_absent = isinstance(error, ModuleNotFoundError) and "." not in str(error.name)
        raise ValueError(
            f"{place}._target_={path!r} names nothing that can be imported ({error})"
            f"{own if is_absent else ''}"
        ) from error
    is_named = inspect.isclass(found) or inspect.isroutine(found)
    module = str(getattr(found, "__module__", None) if is_named else path).partition(".")[0]
    if module in sys.stdlib_module_names or not callable(found):
        # Called, such a thing might do anything: os.system, say.
        raise ValueError(
            f"{place}._target_={path!r} is of Python itself, or makes nothing, and is no part of a"
            " run; name a class of this project or of your own"
        )
    return found


def _located(path: str) -> Any:
    """What a dotted path names: an attribute of a module, or of a class in one."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if "." not in module:
            raise
        try:
            return getattr(_located(module), name)
        except (ImportError, AttributeError):
            raise error from None
