"""Caches of engines in the whole engine, against the reference, on random scenarios.

The scenarios are those of `test_engine_against_reference`, each with another cache in the place of
its own: on the device, and in RAM where it has a managed tier.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from differential import production_rows, reference
from differential.features import FEATURES
from differential.scenario import Cache, Scenario
from differential.test_engine_against_reference import MIXTURE, PLAIN, first_difference, given

CACHES = {
    "class_lru": Cache("class_lru", half_life=4),
    "lfru": Cache("lfru"),
}
KINDS = (PLAIN, MIXTURE, *(name for name in FEATURES if name != "recency_rows"))
SEEDS = dict.fromkeys(KINDS, 1) | {PLAIN: 8, MIXTURE: 3}


def with_cache(scenario: Scenario, cache: Cache) -> Scenario:
    ram = scenario.ram and replace(scenario.ram, cache=cache)
    return replace(scenario, cache=cache, ram=ram)


# Contracts: C143, C147
@pytest.mark.alike
@pytest.mark.parametrize("name", CACHES)
def test_the_engine_does_what_the_reference_does_with_caches_of_engines(name: str) -> None:
    differs_from_lru: Counter[bool] = Counter()
    for kind in KINDS:
        for seed, ties in product(
            range(SEEDS[kind]), (True, False) if SEEDS[kind] > 1 else (True,)
        ):
            scenario = with_cache(given(kind, seed, ties), CACHES[name])
            expected = reference.run(scenario)
            difference = first_difference(production_rows.run(scenario), expected)
            assert difference is None, f"given({kind!r}, {seed}, ties={ties}): {difference}"
            if kind == PLAIN:
                lru = reference.run(with_cache(scenario, Cache()))
                differs_from_lru[lru.transfers != expected.transfers] += 1
    assert differs_from_lru[True] >= 5, "or the scenarios show nothing"
