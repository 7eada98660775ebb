"""The production engine does what the reference does, row by row, on random scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import pairwise, zip_longest
from typing import Any

import pytest

from differential import production, reference
from differential.reference import Timeline
from differential.scenario import Scenario, random_scenario

CHUNKS = 6
ROWS = ("gates", "lookups", "transfers", "sequence_ends")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """As many seeds as asked for, in a few chunks, so that they spread over processes."""
    if "seeds" in metafunc.fixturenames:
        count = -(-metafunc.config.getoption("--scenarios") // 2)
        cuts = [count * chunk // CHUNKS for chunk in range(CHUNKS + 1)]
        chunks = [range(a, b) for a, b in pairwise(cuts) if a < b]
        metafunc.parametrize("seeds", chunks, ids=lambda seeds: f"seeds {seeds.start} to {seeds.stop - 1}")


def given(seed: int, ties: bool) -> Scenario:
    """A random scenario. The link's time is a function of bytes, so variants of equal bytes take equally long."""
    scenario = random_scenario(seed, ties)
    by_bytes = dict(zip(scenario.variant_bytes, scenario.service_ns, strict=True))
    return replace(scenario, service_ns=tuple(by_bytes[size] for size in scenario.variant_bytes))


def first_difference(got: Timeline, expected: Timeline) -> str | None:
    """The first difference in words: where, what the engine has, what the reference has. Rows before sums."""
    return next(_differences(got, expected), None)


def _differences(got: Timeline, expected: Timeline) -> Iterator[str]:
    for column in ROWS:
        rows = zip_longest(getattr(got, column), getattr(expected, column))
        for number, (ours, theirs) in enumerate(rows):
            if ours != theirs:
                yield f"{column}[{number}]: engine {ours}, reference {theirs}{_fields_that_differ(ours, theirs)}"
    for name in ("makespan_ns", "busy_ns"):
        ours, theirs = getattr(got, name), getattr(expected, name)
        if ours != theirs:
            yield f"{name}: engine {ours}, reference {theirs}"
    for name in ("prefetch", "stall"):
        mine, other = getattr(got, name), getattr(expected, name)
        for part in [*other, *(part for part in mine if part not in other)]:
            # A part that one side does not know must be 0 on the other.
            if mine.get(part, 0) != other.get(part, 0):
                yield f"{name}.{part}: engine {mine.get(part, 0)}, reference {other.get(part, 0)}"


def _fields_that_differ(ours: Any, theirs: Any) -> str:
    if ours is None or theirs is None or isinstance(ours, tuple):
        return ""
    return (
        f" (differs in {', '.join(f.name for f in fields(ours) if getattr(ours, f.name) != getattr(theirs, f.name))})"
    )


@pytest.mark.parametrize("ties", [True, False], ids=["ties", "no ties"])
def test_the_engine_does_what_the_reference_does(seeds: range, ties: bool) -> None:
    for seed in seeds:
        scenario = given(seed, ties)
        difference = first_difference(production.run(scenario), reference.run(scenario))
        assert difference is None, f"given({seed}, ties={ties}): {difference}"


def test_the_first_difference_names_the_row_and_both_values() -> None:
    scenario = random_scenario(1, ties=False)
    timeline = reference.run(scenario)
    assert first_difference(timeline, timeline) is None
    late = replace(timeline.lookups[2], ready_ns=timeline.lookups[2].ready_ns + 1)
    later = replace(timeline, lookups=(*timeline.lookups[:2], late, *timeline.lookups[3:]), makespan_ns=-1)
    found = first_difference(later, timeline)
    assert found == f"lookups[2]: engine {late}, reference {timeline.lookups[2]} (differs in ready_ns)"


@pytest.mark.parametrize("column", ROWS)
def test_a_row_that_is_missing_is_a_difference(column: str) -> None:
    timeline = reference.run(random_scenario(1, ties=False))
    rows = getattr(timeline, column)
    assert first_difference(replace(timeline, **{column: rows[:-1]}), timeline) == (
        f"{column}[{len(rows) - 1}]: engine None, reference {rows[-1]}"
    )


@pytest.mark.parametrize("name", ["prefetch", "stall"])
def test_every_count_and_every_part_of_idle_time_is_compared(name: str) -> None:
    timeline = reference.run(random_scenario(1, ties=False))
    for part, value in getattr(timeline, name).items():
        other = replace(timeline, **{name: getattr(timeline, name) | {part: value + 1}})
        assert first_difference(other, timeline) == f"{name}.{part}: engine {value + 1}, reference {value}"
    unknown = replace(timeline, **{name: getattr(timeline, name) | {"cpu": 3}})
    assert first_difference(unknown, timeline) == f"{name}.cpu: engine 3, reference 0"


@pytest.mark.parametrize("name", ["makespan_ns", "busy_ns"])
def test_times_of_the_whole_run_are_compared(name: str) -> None:
    timeline = reference.run(random_scenario(1, ties=False))
    value = getattr(timeline, name)
    assert first_difference(replace(timeline, **{name: value + 1}), timeline) == (
        f"{name}: engine {value + 1}, reference {value}"
    )
