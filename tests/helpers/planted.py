"""Plants defects: an edit of one line of the source. The changed functions get the code that the edited
text compiles to, so whoever uses them, by whatever name, runs the defect.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, FunctionType, ModuleType

import pytest


@dataclass(frozen=True)
class Defect:
    """In ``sim.policies.MODULE`` (or another module of ``sim``) ``old`` becomes ``new``.

    ``table`` is ``FOLDER.FILE:TEST``, a test that must then fail.
    """

    module: str
    old: str
    new: str
    table: str


def module_of(name: str) -> ModuleType:
    return import_module(name if name.startswith("sim.") else f"sim.policies.{name}")


def functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Every function and method that the module defines."""
    for value in vars(module).values():
        of = (
            vars(value).values()
            if inspect.isclass(value) and value.__module__ == module.__name__
            else (value,)
        )
        for one in of:
            found = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
            if isinstance(found, FunctionType) and found.__module__ == module.__name__:
                yield inspect.unwrap(found)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from codes_in(constant)


def plant(defect: Defect, patch: pytest.MonkeyPatch) -> int:
    """Rewrite the line; returns how many functions it changed."""
    module = module_of(defect.module)
    source = inspect.getsource(module)
    assert source.count(defect.old) == 1, (
        f"{defect.old!r} stands {source.count(defect.old)} times in {module.__name__}"
    )
    edited = compile(source.replace(defect.old, defect.new), str(module.__file__), "exec")
    new = {code.co_qualname: code for code in codes_in(edited)}
    changed = 0
    for function in functions_of(module):
        code = new.get(function.__qualname__)
        if code is not None and code != function.__code__:
            patch.setattr(function, "__code__", code)
            changed += 1
    return changed
