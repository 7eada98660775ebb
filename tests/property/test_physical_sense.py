"""Twice as much and half of every figure of a machine and of a model: does a run answer as physics says?

`figures.FIGURES` says what each figure does, and in which of `small_runs.RUNS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

import pytest

import sim.machine
from property.figures import (
    FEWER_HITS,
    FIGURES,
    HITS,
    NOTHING,
    OTHER,
    REFUSED,
    ROOM,
    SLOWER,
    TOLD,
    Figure,
    owner_of,
)
from property.small_runs import PLAIN, RUNS, Answer, answer_of, config_of, got, summary_of
from sim.machine.hardware import Hardware
from sim.machine.kernels import Kernels
from sim.machine.model import Model
from sim.verbs.names import names, of_file


def classes(kind: type) -> Iterator[type]:
    """A class of a machine or a model, and those of its parts."""
    yield kind
    for hint in get_type_hints(kind, localns=vars(sim.machine)).values():
        for part in parts_of(hint):
            yield from classes(part)


def parts_of(hint: Any) -> Iterator[type]:
    """The classes with fields that a type is made of."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from parts_of(inner)


DEFAULTS = {
    kind.__name__: {one.name: one.default for one in fields(kind)}
    for whole in (Hardware, Model, Kernels)
    for kind in classes(whole)
}
"""By class and field, what a figure is where nobody gives it."""


def is_part(owner: str) -> bool:
    """Whether a field is itself a section, whose figures have rows of their own."""
    kind, _, name = owner.partition(".")
    hint = get_type_hints(getattr(sim.machine, kind), localns=vars(sim.machine))[name]
    return any(True for _ in parts_of(hint))


def leaves(values: Mapping[str, Any], way: tuple[str, ...] = ()) -> Iterator[str]:
    """The dotted keys of the figures of a file."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*way, name))
        elif name != "_target_":
            yield ".".join((*way, name))


def scaled(value: Any, factor: float) -> Any:
    """So many times as much of a figure, of all of a list, or of the last of each point of a table."""
    if isinstance(value, list | tuple):
        if isinstance(value[0], list | tuple):
            return [[*point[:-1], scaled(point[-1], factor)] for point in value]
        return [scaled(one, factor) for one in value]
    return int(value * factor) if isinstance(value, int) else value * factor


def stated(figure: Figure) -> Any:
    """What the figure is in its run: as its configuration says, or by default."""
    try:
        return got(config_of(figure.run), figure.key)
    except KeyError:
        kind, _, name = figure.owner.partition(".")
        return DEFAULTS[kind][name]


def is_silent(run: str) -> bool:
    """Whether nothing is forecast, so that no decision depends on a time."""
    return bool(config_of(run)["predictor"] == PLAIN["predictor"])


@cache
def plain(run: str) -> Answer:
    return answer_of(config_of(run))


def changed(figure: Figure, value: Any) -> Answer:
    return answer_of(config_of(figure.run, {figure.key: value}))


def ids(some: list[Figure]) -> list[str]:
    return [f"{one.run}-{one.key}" for one in some]


SCALED = [one for one in FIGURES if not one.values and one.effect is not ROOM]
CHANGED = [one for one in FIGURES if one.values and one.effect is not REFUSED]
BOUNDED = [one for one in FIGURES if one.effect in (ROOM, REFUSED)]


@pytest.mark.parametrize("figure", SCALED, ids=ids(SCALED))
def test_half_of_a_figure_and_twice_as_much_do_what_physics_says(figure: Figure) -> None:
    value = stated(figure)
    told = [
        changed(figure, scaled(value, 0.5)),
        plain(figure.run),
        changed(figure, scaled(value, 2)),
    ]
    if figure.effect in (SLOWER, FEWER_HITS):
        told.reverse()
    times = [one.makespan_ns for one in told]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
    if figure.effect in (HITS, FEWER_HITS):
        hits = [one.hits for one in told]
        assert hits == sorted(hits)
        assert hits[0] < hits[-1]
    elif figure.key.startswith("hardware") and is_silent(figure.run):
        assert all(one.outcomes == told[0].outcomes for one in told)


@pytest.mark.parametrize("figure", CHANGED, ids=ids(CHANGED))
def test_another_value_takes_another_time_or_is_told_or_is_said_to_do_nothing(
    figure: Figure,
) -> None:
    for value in figure.values:
        answer = changed(figure, value)
        if figure.effect is OTHER:
            assert answer.makespan_ns != plain(figure.run).makespan_ns
            continue
        assert answer == plain(figure.run)
        told, before = (
            summary_of(config_of(figure.run, changes)) for changes in ({figure.key: value}, {})
        )
        assert (told == before) == (figure.effect is NOTHING)


@pytest.mark.parametrize("figure", BOUNDED, ids=ids(BOUNDED))
def test_what_only_bounds_a_run_refuses_it_or_leaves_it_as_it_is(figure: Figure) -> None:
    for value in figure.values or (scaled(stated(figure), 0.5),):
        with pytest.raises(ValueError, match=r"holds|choose"):
            changed(figure, value)
    if figure.effect is ROOM:
        assert changed(figure, scaled(stated(figure), 2)) == plain(figure.run)


# What the table has


def test_every_figure_of_a_machine_and_of_a_model_is_in_the_table() -> None:
    known = {f"{kind}.{name}" for kind, of in DEFAULTS.items() for name in of}
    figures_alone = {owner for owner in known if not is_part(owner)}
    assert {figure.owner for figure in FIGURES} == figures_alone


@pytest.mark.parametrize(("group", "whole"), [("hardware", "Hardware"), ("model", "Model")])
def test_every_figure_of_a_file_is_in_the_table(group: str, whole: str) -> None:
    owners = {figure.owner for figure in FIGURES}
    seen = set()
    for name in names(group):
        config = {group: {"_target_": whole, **of_file(group, name)}}
        seen |= {owner_of(config, key) for key in leaves(config)}
    assert len(seen) > 30
    assert {owner for owner in seen if not is_part(owner)} <= owners


def test_every_run_and_every_reason_is_at_work() -> None:
    assert {figure.run for figure in FIGURES} == set(RUNS)
    for figure in FIGURES:
        assert bool(figure.why) == (figure.effect in (ROOM, REFUSED, TOLD, NOTHING)), figure.key
