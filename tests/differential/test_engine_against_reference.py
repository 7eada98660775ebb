"""The production engine does what the reference does, row by row, on random scenarios.

The scenarios have every feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import pairwise, zip_longest
from typing import Any

import pytest

from differential import production_rows, reference
from differential.features import (
    COMPANIONS,
    DEVICES,
    OWNERS,
    SIMULATED,
    random_companions,
    random_feature,
    random_mixture,
)
from differential.rows import Timeline
from differential.scenario import Scenario, random_scenario

PLAIN, MIXTURE = "plain", "mixture"
RIVAL_MIXTURE = "mixture with rivals"
DEVICE_MIXTURE = "mixture with devices"
AMONG_RIVALS = {f"{name} among rivals": name for name in COMPANIONS}
OWNER_MIXTURE = "mixture with owners"
LANE_MIXTURE = "mixture with lanes"
SHRINKING_MIXTURE = "mixture with shrinking"
PREFIX_MIXTURE = "mixture with prefixes"
DRAFT_MIXTURE, DRAFT_PREFIXES = "mixture with draft sites", "draft sites and prefixes"
DRAFT_RIVALS, DRAFT_LANES = "draft sites among rivals", "draft sites with lanes"
DRAFT_SHRINKING = "draft sites and shrinking"
SWAP_MIXTURE = "mixture with swap"
PREFIX_RIVALS, PREFIX_LANES = "prefixes among rivals", "prefixes with lanes"
MIXTURES: dict[str, dict[str, Any]] = {
    MIXTURE: {},
    RIVAL_MIXTURE: {"rivals": True},
    DEVICE_MIXTURE: {"devices": DEVICES},
    OWNER_MIXTURE: {"devices": OWNERS},
    LANE_MIXTURE: {"lanes": True},
    SHRINKING_MIXTURE: {"shrinks": True},
    PREFIX_MIXTURE: {"prefixes": True},
    SWAP_MIXTURE: {"swaps": True},
    PREFIX_RIVALS: {"prefixes": True, "rivals": True},
    PREFIX_LANES: {"prefixes": True, "lanes": True},
    DRAFT_MIXTURE: {"drafts": True},
    DRAFT_PREFIXES: {"drafts": True, "prefixes": True},
    DRAFT_RIVALS: {"drafts": True, "rivals": True},
    DRAFT_LANES: {"drafts": True, "lanes": True},
    DRAFT_SHRINKING: {"drafts": True, "shrinks": True},
}
KINDS = (PLAIN, *SIMULATED, *AMONG_RIVALS, *MIXTURES)
CHUNK = {PLAIN: 50, MIXTURE: 25}
"""Seeds of one test, so that tests take a few seconds each and spread over processes; 30 where
none are given.
"""

ROWS = (
    "gates",
    "lookups",
    "transfers",
    "services",
    "idle",
    "steps",
    "sequence_ends",
    "ram_lookups",
    "ram_evictions",
)
TIMES = ("makespan_ns", "busy_ns")
SUMS = ("prefetch", "stall")
HELPS = ("trimmed", "exchanged", "calls")
"""Told by the reference alone."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """As many scenarios as asked for; beside them a tenth as many of each feature, and half as many
    mixtures. Where parties hold each other up the reference is slow: fewer."""
    if "seeds" in metafunc.fixturenames:
        plain = -(-metafunc.config.getoption("--scenarios") // 2)
        counts = dict.fromkeys(KINDS, -(-plain // 10)) | {PLAIN: plain, MIXTURE: -(-plain // 2)}
        counts |= dict.fromkeys(AMONG_RIVALS, -(-plain // 50)) | {RIVAL_MIXTURE: -(-plain // 20)}
        counts |= {DEVICE_MIXTURE: -(-plain // 5), OWNER_MIXTURE: -(-plain // 5)}
        some = (LANE_MIXTURE, SHRINKING_MIXTURE, PREFIX_MIXTURE, DRAFT_MIXTURE, SWAP_MIXTURE)
        counts |= dict.fromkeys(some, -(-plain // 4))
        few = (PREFIX_RIVALS, PREFIX_LANES, DRAFT_PREFIXES, DRAFT_RIVALS, DRAFT_LANES)
        counts |= dict.fromkeys((*few, DRAFT_SHRINKING), -(-plain // 20))
        cases = [
            (kind, seeds) for kind in KINDS for seeds in _chunks(counts[kind], CHUNK.get(kind, 30))
        ]
        metafunc.parametrize(
            ("kind", "seeds"),
            cases,
            ids=[f"{kind} {seeds.start} to {seeds.stop - 1}" for kind, seeds in cases],
        )


def _chunks(count: int, size: int) -> list[range]:
    """About ``size`` seeds each."""
    number = max(1, -(-count // size))
    cuts = [count * chunk // number for chunk in range(number + 1)]
    return [range(a, b) for a, b in pairwise(cuts)]


def given(kind: str, seed: int, ties: bool) -> Scenario:
    """A random scenario, a random one with a feature, or a random mixture of features."""
    if kind == PLAIN:
        return random_scenario(seed, ties)
    if kind in MIXTURES:
        return random_mixture(seed, ties, **MIXTURES[kind])
    if kind in AMONG_RIVALS:
        return random_companions(AMONG_RIVALS[kind], seed, ties)
    return random_feature(kind, seed, ties)


def first_difference(got: Timeline, expected: Timeline) -> str | None:
    """The first difference in words: where, what the engine has, what the reference has. Rows
    before sums.
    """
    return next(_differences(got, expected), None)


def _differences(got: Timeline, expected: Timeline) -> Iterator[str]:
    for column in ROWS:
        rows = zip_longest(getattr(got, column), getattr(expected, column))
        for number, (ours, theirs) in enumerate(rows):
            if ours != theirs:
                yield (
                    f"{column}[{number}]: engine {ours}, reference"
                    f" {theirs}{_fields_that_differ(ours, theirs)}"
                )
    for name in TIMES:
        ours, theirs = getattr(got, name), getattr(expected, name)
        if ours != theirs:
            yield f"{name}: engine {ours}, reference {theirs}"
    for name in SUMS:
        mine, other = getattr(got, name), getattr(expected, name)
        for part in [*other, *(part for part in mine if part not in other)]:
            # A part that one side does not know must be 0 on the other.
            if mine.get(part, 0) != other.get(part, 0):
                yield f"{name}.{part}: engine {mine.get(part, 0)}, reference {other.get(part, 0)}"


def _fields_that_differ(ours: Any, theirs: Any) -> str:
    if ours is None or theirs is None or isinstance(ours, int | tuple):
        return ""
    names = ", ".join(
        f.name for f in fields(ours) if getattr(ours, f.name) != getattr(theirs, f.name)
    )
    return f" (differs in {names})"


# Contracts: C15, C75, C165, C166
@pytest.mark.alike
@pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
def test_the_engine_does_what_the_reference_does(kind: str, seeds: range, ties: bool) -> None:
    for seed in seeds:
        scenario = given(kind, seed, ties)
        difference = first_difference(production_rows.run(scenario), reference.run(scenario))
        assert difference is None, f"given({kind!r}, {seed}, ties={ties}): {difference}"


# ---- the comparison itself


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    """The first run with rows of every kind."""
    runs = (reference.run(given("ram_tier", seed, ties=False)) for seed in range(20))
    return next(found for found in runs if all(getattr(found, column) for column in ROWS))


def test_everything_is_compared_but_what_only_helps_to_find_a_difference() -> None:
    assert {field.name for field in fields(Timeline)} == {*ROWS, *TIMES, *SUMS, *HELPS}


def test_the_first_difference_names_the_row_and_both_values(timeline: Timeline) -> None:
    assert first_difference(timeline, timeline) is None
    late = replace(timeline.lookups[2], ready_ns=timeline.lookups[2].ready_ns + 1)
    later = replace(
        timeline, lookups=(*timeline.lookups[:2], late, *timeline.lookups[3:]), makespan_ns=-1
    )
    found = first_difference(later, timeline)
    assert (
        found == f"lookups[2]: engine {late}, reference {timeline.lookups[2]} (differs in ready_ns)"
    )


@pytest.mark.parametrize("column", ROWS)
def test_a_row_that_is_missing_is_a_difference(timeline: Timeline, column: str) -> None:
    rows = getattr(timeline, column)
    assert (
        first_difference(replace(timeline, **{column: rows[:-1]}), timeline)
        == f"{column}[{len(rows) - 1}]: engine None, reference {rows[-1]}"
    )


@pytest.mark.parametrize("name", SUMS)
def test_every_count_and_every_part_of_idle_time_is_compared(timeline: Timeline, name: str) -> None:
    for part, value in getattr(timeline, name).items():
        other = replace(timeline, **{name: getattr(timeline, name) | {part: value + 1}})
        assert (
            first_difference(other, timeline)
            == f"{name}.{part}: engine {value + 1}, reference {value}"
        )
    unknown = replace(timeline, **{name: getattr(timeline, name) | {"else": 3}})
    assert first_difference(unknown, timeline) == f"{name}.else: engine 3, reference 0"


@pytest.mark.parametrize("name", TIMES)
def test_times_of_the_whole_run_are_compared(timeline: Timeline, name: str) -> None:
    value = getattr(timeline, name)
    assert (
        first_difference(replace(timeline, **{name: value + 1}), timeline)
        == f"{name}: engine {value + 1}, reference {value}"
    )
