"""The summaries of random scenarios of every feature, computed again from their tables alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from differential.summaries import files_of, measured_run
from differential.test_engine_against_reference import AMONG_RIVALS, KINDS, MIXTURE, PLAIN, RIVAL_MIXTURE, given
from sim.audit.__main__ import NO_RULE, audit

RARE = (*AMONG_RIVALS, RIVAL_MIXTURE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every feature, with and without ties; as many more as ``--scenarios`` asks for beyond its usual number."""
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", KINDS)


def seeds(kind: str, scenarios: int) -> Iterator[tuple[int, bool]]:
    count = scenarios // 120 * (1 if kind in RARE else 5 if kind in (PLAIN, MIXTURE) else 2)
    yield from ((seed, ties) for seed in range(max(1, count)) for ties in (False, True))


def test_every_key_of_a_summary_is_what_its_tables_say(kind: str, request: pytest.FixtureRequest) -> None:
    for seed, ties in seeds(kind, request.config.getoption("--scenarios")):
        found = audit(files_of(*measured_run(given(kind, seed, ties))))
        told = "\n".join(map(str, found.differences))
        assert not found.differences, f"given({kind!r}, {seed}, ties={ties}):\n{told}"
        assert NO_RULE not in found.not_recomputed, found.not_recomputed[NO_RULE]
