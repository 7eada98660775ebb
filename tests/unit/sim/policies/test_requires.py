"""Policies declare what they need: nobody who builds or measures a run knows one by its class."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.policies import __all__ as NAMES
from sim.policies.requires import NOTHING, Given, Requires, Shape
from sim.values.places import ROOT

FOLDERS = ("setup", "fitting", "results", "study", "screening")
QUESTIONS = ("predict", "victims", "select", "place", "moved_bytes")
ATTRIBUTES = frozenset(
    name
    for policy in NAMES
    for name in dir(getattr(importlib.import_module("sim.policies"), policy))
    if not name.startswith("__")
)
"""What any policy of the project may be asked for."""
HOLDERS = (
    "predictor",
    "cache",
    "ram_cache",
    "selector",
    "precision",
    "placement",
    "payload",
    "policy",
)
"""What a policy is called where it is held."""


def sources() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for place in sorted((ROOT / "sim" / folder).glob("*.py")):
            yield str(place.relative_to(ROOT)), place.read_text(encoding="utf-8")
    fit = Path("sim") / "fit.py"
    yield str(fit), (ROOT / fit).read_text(encoding="utf-8")


def known_policies(source: str) -> list[str]:
    """Where a module tells policies apart: a policy's class that it imports, and what it looks for
    in a policy without knowing that it is there.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if (
                module.startswith("sim.policies") and module != "sim.policies.base"
            ):
                holder = importlib.import_module(module)
                found += [
                    f"imports {name.name}"
                    for name in names
                    if any(hasattr(getattr(holder, name.name), one) for one in QUESTIONS)
                ]
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" as asks), args=[of, what, *_]):
                named = isinstance(what, ast.Constant) and what.value in ATTRIBUTES
                if named or ast.unparse(of).rpartition(".")[2] in HOLDERS:
                    found.append(f"{asks} {ast.unparse(what)} of {ast.unparse(of)}")
            case ast.Call(func=ast.Name(id="isinstance"), args=[of, _]):
                if ast.unparse(of).rpartition(".")[2] in HOLDERS:
                    found.append(f"isinstance of {ast.unparse(of)}")
    return found


@pytest.mark.parametrize(
    ("place", "source"), [pytest.param(*found, id=found[0]) for found in sources()]
)
def test_nobody_who_builds_or_measures_a_run_knows_a_policy_by_its_class(
    place: str, source: str
) -> None:
    assert known_policies(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "from sim.policies.belady import Foreseeing",
        "from sim.policies import NoPrediction",
        "getattr(parts.anything, 'needs_profile', False)",
        "hasattr(run.controller.cache, name)",
        "isinstance(run.controller.predictor, kinds)",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert known_policies(source)


@pytest.mark.parametrize(
    ("what", "declaration"),
    [
        ("fit", r"fit=FitFile\(\.\.\.\)"),
        ("profile", "profile=True"),
        ("future", "future=True"),
        ("sparsities", "active_shares=True"),
    ],
)
def test_a_policy_is_given_nothing_that_it_did_not_ask_for(what: str, declaration: str) -> None:
    """So that a policy which uses the future is labelled."""
    with pytest.raises(RuntimeError, match=rf"declare requires = Requires\({declaration}\)"):
        getattr(Given(Shape(2, 4, 1)), what)


def test_a_selector_is_prepared_before_there_is_a_geometry() -> None:
    with pytest.raises(RuntimeError, match="before there is a geometry"):
        _ = Given(Shape(2, 4, 1)).geometry


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("LRU", ()),
        ("NoPrediction", ()),
        ("Fixed", ("fp16",)),
        ("Load", ()),
        ("Whole", ()),
    ],
)
def test_a_policy_that_says_nothing_needs_nothing(name: str, arguments: tuple[Any, ...]) -> None:
    policy = getattr(importlib.import_module("sim.policies"), name)(*arguments)
    assert policy.requires == NOTHING
    policy.prepare(Given(Shape(2, 4, 1)))
    assert policy.told([0]) == {}


@pytest.mark.parametrize("words", ["rows", ("row",), ["rows"]])
def test_what_a_recording_cannot_leave_out_is_no_requirement(words: Any) -> None:
    """A misspelt word was never looked for, so a recording without rows served a policy of rows."""
    with pytest.raises(ValueError, match="must be a tuple of rows, order, sequences"):
        Requires(recorded=words)
    assert Requires(recorded=("rows", "order")).recorded == ("rows", "order")


@pytest.mark.parametrize("sites", [-1, "2", 1.5])
def test_lookahead_of_no_number_of_sites_is_no_requirement(sites: Any) -> None:
    with pytest.raises(ValueError, match="lookahead_sites="):
        Requires(lookahead_sites=sites)
