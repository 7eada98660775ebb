"""What a module of ``sim`` hands to another cannot be changed there."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from importlib import import_module

import pytest

from sim.values.places import ROOT

CLASS = re.compile(r"^@dataclass.*\n(?:@.*\n)*class (\w+)", re.MULTILINE)
GROWS = {
    "sim.answers.time_parts.Interval": "the parts of an interval are cut off one by one",
    "sim.results.forecasts.Counts": "sums over gates",
    "sim.values.record.Notes": "a run appends to its columns",
    "sim.values.record.Record": "a run appends to its columns",
}
"""Dataclasses that are changed while they are filled."""


def dataclasses() -> list[str]:
    """The dataclasses of ``sim``, by module and name."""
    return [
        ".".join((*path.relative_to(ROOT).with_suffix("").parts, name))
        for path in sorted((ROOT / "sim").rglob("*.py"))
        for name in CLASS.findall(path.read_text(encoding="utf-8"))
    ]


FOUND = dataclasses()


def test_what_is_said_to_grow_is_a_dataclass() -> None:
    assert set(FOUND) > set(GROWS)


@pytest.mark.parametrize("name", FOUND)
def test_only_what_grows_can_be_changed(name: str) -> None:
    module, _, called = name.rpartition(".")
    kind = getattr(import_module(module), called)
    one, field = object.__new__(kind), fields(kind)[0].name
    if name in GROWS:
        object.__setattr__(one, field, None)
        setattr(one, field, 1)
        assert getattr(one, field) == 1
        return
    with pytest.raises(FrozenInstanceError):
        setattr(one, field, 1)
