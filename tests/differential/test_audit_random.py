"""Summaries of random scenarios with every feature, computed again from their tables alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from differential.summaries import files_of, measured_run
from differential.test_engine_against_reference import KINDS, MIXTURE, PLAIN, given
from sim.audit.__main__ import NO_RULE, audit

USUALLY = 240
"""As many scenarios of each feature as ``--scenarios`` has of these."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", KINDS)


def seeds(kind: str, scenarios: int) -> Iterator[tuple[int, bool]]:
    """Seed and ties of as many scenarios as asked for: one of a feature, more of those that any
    feature may be in.
    """
    count = -(-scenarios * (8 if kind in (PLAIN, MIXTURE) else 1) // USUALLY)
    yield from ((seed, seed % 2 == 0) for seed in range(count))


# Contracts: C104, C106
@pytest.mark.alike
def test_every_key_of_a_summary_is_what_its_tables_say(
    kind: str, request: pytest.FixtureRequest
) -> None:
    for seed, ties in seeds(kind, request.config.getoption("--scenarios")):
        found = audit(files_of(*measured_run(given(kind, seed, ties))))
        told = "\n".join(map(str, found.differences))
        assert not found.differences, f"given({kind!r}, {seed}, ties={ties}):\n{told}"
        assert NO_RULE not in found.not_recomputed, found.not_recomputed[NO_RULE]
