"""Sections of a configuration become objects; a key that a target cannot take is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from omegaconf import OmegaConf

from sim.setup.sections import make_object

HERE = f"{__name__}.Pool"


@dataclass
class Pool:
    slots: int
    scope: str
    parts: Any = ()


class Outer:
    class Inner:
        def __init__(self, **values: int) -> None:
            self.values = values


def breaks(one: int, /, *, two: int = 0) -> int:
    return one + two


def broken(two: int) -> int:
    raise TypeError(f"broken {two}")


def wide(one: int, **others: int) -> int:
    return one


def test_a_section_with_a_target_is_made_innermost_first_and_all_else_stays() -> None:
    inner = {"_target_": HERE, "slots": 1, "scope": "site"}
    node = {"a": {"b": [1, None, inner]}, "c": {**inner, "slots": 2, "parts": [inner]}, "d": 1.5}
    pool = Pool(1, "site")
    made = {"a": {"b": [1, None, pool]}, "c": Pool(2, "site", [pool]), "d": 1.5}
    assert make_object(node) == made
    assert make_object(OmegaConf.create({**node, "d": "${c.slots}"})) == {**made, "d": 2}
    assert make_object({"_target_": f"{__name__}.Outer.Inner", "x": 1}).values == {"x": 1}


@pytest.mark.parametrize(
    ("node", "place", "told"),
    [
        (
            {"_target_": HERE, "slot": 3, "scope": "x", "zz": [1]},
            "cache",
            "cache.slot=3, cache.zz=[1]: unknown; Pool knows slots, scope, parts; did you mean"
            " cache.slots?",
        ),
        (
            {"_target_": HERE, "slotz": 3},
            "",
            "slotz=3: unknown; Pool knows slots, scope, parts; did you mean slots?",
        ),
        (
            {"_target_": HERE, "scope": "x", "parts": [1]},
            "a.b",
            "not given: a.b.slots (there is scope='x')",
        ),
        (
            {"a": [{"_target_": HERE, "parts": {}}]},
            "",
            "not given: a.0.slots, a.0.scope (there is nothing)",
        ),
        (
            {"_target_": "nowhere.Thing"},
            "cache",
            "cache._target_='nowhere.Thing' names nothing that can be imported (No module named"
            " 'nowhere'); the folder of a module of your own must stand in PYTHONPATH",
        ),
        (
            {"_target_": "sim.nowhere.Thing"},
            "cache",
            "cache._target_='sim.nowhere.Thing' names nothing that can be imported (No module named"
            " 'sim.nowhere')",
        ),
        (
            {"_target_": f"{HERE}.none"},
            "c",
            f"c._target_='{HERE}.none' names nothing that can be imported (No module named"
            f" '{HERE}'; '{__name__}' is not a package)",
        ),
    ],
)
def test_a_key_that_is_unknown_or_not_given_is_named(
    node: dict[str, Any], place: str, told: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        make_object(node, place)


@pytest.mark.parametrize("value", [[], [1, 2], {}, {"a": 1}])
def test_several_values_where_one_is_meant_are_refused(value: object) -> None:
    told = (
        f"cache.slots={value!r} must be one value; moelab sweep takes several, as cache.slots=A,B"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        make_object({"_target_": HERE, "slots": value, "scope": "x"}, "cache")
    made = make_object({"_target_": HERE, "slots": 1, "scope": "x", "parts": value}, "cache")
    assert made.parts == value


@dataclass
class Shared:
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        self.shares = tuple(self.shares)


def test_one_value_where_several_are_meant_is_refused_by_its_key() -> None:
    told = "cache.shares=0.5 must be several values (tuple[float, ...]), as in conf/"
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        make_object({"_target_": f"{__name__}.Shared", "shares": 0.5}, "cache")


def test_what_a_target_raises_itself_goes_through() -> None:
    for name, values in (("breaks", {"two": 1}), ("broken", {"two": 1}), ("wide", {"two": 1})):
        with pytest.raises(TypeError, match=name):
            make_object({"_target_": f"{__name__}.{name}", **values})
