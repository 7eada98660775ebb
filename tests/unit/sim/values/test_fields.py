"""Fields of JSON objects: each has a type and a range, and a refusal tells both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sim.values.fields import (
    INT32_MAX,
    RECAPTURE,
    Fields,
    TraceError,
    is_number,
    is_scalar,
    is_sha256,
    load_object,
)

LONE = "a\ud800"


@dataclass
class Shape:
    a: object
    b: object = None


def of(value: object) -> Fields:
    return Fields({"a": value}, "part", Shape, {"b": 7})


def test_whole_numbers_fit_32_bits() -> None:
    assert INT32_MAX == 2_147_483_647


def test_what_is_optional_has_its_value_and_what_is_given_goes_before_it() -> None:
    assert of(1).value == {"a": 1, "b": 7}
    assert Fields({"a": 1, "b": 2}, "", Shape, {"b": 7}).value == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("value", "path", "told"),
    [
        ([], "part", "part is [], must be a JSON object"),
        ("x", "", "text is 'x', must be a JSON object"),
        (
            {"a": 1, "d": 2, "c": 3},
            "",
            "fields is ['a', 'c', 'd'], must have exactly the known fields (missing ['b'], unknown"
            " ['c', 'd'])",
        ),
    ],
)
def test_an_object_has_exactly_the_fields_of_its_class(value: object, path: str, told: str) -> None:
    with pytest.raises(TraceError) as refused:
        Fields(value, path, Shape)
    assert str(refused.value) == f"header.json: {told}; {RECAPTURE}"


Ask = Callable[[Fields], object]
TAKEN: list[tuple[Ask, list[Any], list[Any], str]] = [
    (lambda f: f.text("a"), ["", "x"], [1, None, LONE], "must be text"),
    (lambda f: f.text("a", ("x", "y")), ["x", "y"], ["z", 1], "must be one of ('x', 'y')"),
    (
        lambda f: f.line("a"),
        ["", "x y", "漢字 $"],
        [1, "x\n", "x\ny", "x\u2028y"],
        "must be text",
    ),
    (
        lambda f: f.integer("a", 2, 5),
        [2, 3, 5],
        [1, 6, True, 3.0, "3"],
        "must be an int in 2..5",
    ),
    (lambda f: f.integer("a", 0), [0, INT32_MAX], [-1, INT32_MAX + 1], f"int in 0..{INT32_MAX}"),
    (
        lambda f: f.number("a", 1.5),
        [0, 0.0, 1.5, 1],
        [-0.1, 1.6, math.nan, True, "1", None, 10**400],
        "must be a number in 0..1.5;",
    ),
    (
        lambda f: f.number("a", 2.0, above=0.5),
        [0.6, 2],
        [0.5, 0, 2.1],
        "must be a number in 0..2.0, > 0.5;",
    ),
    (lambda f: f.flag("a"), [True, False], [0, 1, "yes", None], "must be true or false"),
    (
        lambda f: list(f.integers("a")),
        [[], [0, INT32_MAX]],
        [[-1], [INT32_MAX + 1], [True], [1.0], 3, {}],
        f"must be a list of ints in 0..{INT32_MAX}",
    ),
    (
        lambda f: f.table("a", "text by name", lambda item: isinstance(item, str)),
        [{}, {"x": "y"}],
        [{"x": 1}, {LONE: "y"}, [], "x"],
        "must be an object of text by name",
    ),
]


@pytest.mark.parametrize(("ask", "good", "bad", "rule"), TAKEN, ids=[one[3] for one in TAKEN])
def test_a_field_is_of_its_type_and_in_its_range(
    ask: Ask, good: list[Any], bad: list[Any], rule: str
) -> None:
    for value in good:
        assert ask(of(value)) == value
    for value in bad:
        with pytest.raises(TraceError) as refused:
            ask(of(value))
        assert f"{refused.value}".startswith("header.json: part.a is ")
        assert rule in f"{refused.value}"
        assert (refused.value.file, refused.value.field) == ("header.json", "part.a")


def test_the_items_of_a_list_are_read_by_their_places() -> None:
    read = lambda item, path: (path, item)  # noqa: E731
    assert of([5, 6]).array("a", read) == (("part.a[0]", 5), ("part.a[1]", 6))
    assert Fields({"a": [5], "b": 1}, "", Shape).array("a", read) == (("a[0]", 5),)
    with pytest.raises(TraceError, match="a is '56', must be a list"):
        Fields({"a": "56", "b": 1}, "", Shape).array("a", read)


def test_a_number_is_neither_a_flag_nor_more_than_its_most() -> None:
    assert is_number(2, 2)
    assert not is_number(2, 2, above=2)
    assert not is_number(False, 2)


def test_a_scalar_is_text_a_flag_or_a_finite_number() -> None:
    assert all(map(is_scalar, ("x", True, 3, -9.5e299)))
    assert not any(map(is_scalar, (LONE, None, [], 1e300, -1e300, math.inf, math.nan)))


def test_a_digest_is_of_64_hexadecimal_letters() -> None:
    assert is_sha256("0123456789abcdef" * 4)
    assert not any(map(is_sha256, ("a" * 63, "a" * 65, "g" + "a" * 63, "A" * 64, None)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "must be JSON"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ('{"x": {"a": 1, "b": 2, "a": 1}}', "a key comes twice among ['a', 'b', 'a']"),
        ("[" * 100_000, "must be JSON"),
    ],
)
def test_text_that_is_no_json_or_can_be_read_in_two_ways_is_refused(text: str, why: str) -> None:
    assert load_object('{"x": [1, null]}') == {"x": [1, None]}
    with pytest.raises(TraceError) as refused:
        load_object(text)
    assert why in str(refused.value)


def test_what_is_shown_is_short_and_can_be_printed() -> None:
    told = str(TraceError("f", "n", "a\n" + "b" * 300, "no", "undo it"))
    assert told == f"f: n is 'a?{'b' * 198}', no; undo it"
    assert str(TraceError("f", "n", 10**5000, "no", "x")) == "f: n is <int>, no; x"
