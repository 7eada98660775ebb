"""Settings of policies: the least and the most that each may be, and what comes just beyond.

A default of a class is what a file of ``conf/`` says, so that code and command line do not part.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from math import inf, nan
from typing import Any

import pytest
import yaml

from sim.policies.belady import Belady, CostAwareBelady
from sim.policies.expected_needs import ExpectedNeeds
from sim.policies.expected_reuse import ExpectedReuse
from sim.policies.frequency_classes import ClassLRU, DecayedLFU
from sim.policies.importance import RecentImportance
from sim.policies.large_gates import LargeGatesOnlyRead
from sim.policies.learned import LearnedPerSite
from sim.policies.lookahead import ConfidentLookahead, GateLookahead
from sim.policies.matching import ActivationMatching
from sim.policies.payloads import ActiveShare
from sim.policies.placements import AbsentOnCpu, CpuByCost, CpuForSmallBatches
from sim.policies.precisions import LowForFew, PerExpert, SkipLight
from sim.policies.queues import S3FIFO, WTinyLFU
from sim.policies.quotas import ExpectedLoads, ShallowFirst
from sim.policies.recency import LRU
from sim.policies.references import Foreseen, StatedAccuracy
from sim.policies.scores import ActivationRatio, Random
from sim.policies.tensor_overrides import TensorOverrides
from sim.policies.token_routes import TokenRoutes
from sim.values.places import CONF

NO_NUMBER = (True, "1", None)
NO_COUNT = (*NO_NUMBER, 1.5)
SHARES = ((0, 0.5, 1), (-0.001, 1.001, nan, *NO_NUMBER))
COUNTS = ((1, 2), (0, *NO_COUNT))
FROM_ZERO = ((0, 1, 99), (-1, *NO_COUNT))
AMOUNTS = ((0, 0.5, 1e9), (-0.001, inf, nan, *NO_NUMBER))
POSITIVE = ((0.001, 1e9), (0, -1, inf, nan, *NO_NUMBER))
FLAGS = ((True, False), (0, 1, "true", None))
NAMED = ((1, 99, "top_k", "all"), (0, -1, True, 1.5, "most", None))
MAYBE_COUNT = ((1, 2, None), (0, True, 1.5, "1"))


def costs(**given: Any) -> CpuByCost:
    return CpuByCost(**({"cpu_per_token": 7, "load": 70, "objective": "sum"} | given))


def low_for_few(**given: Any) -> LowForFew:
    return LowForFew("fp16", "int4", **({"low_share": 0.5} | given))


def stated(**given: Any) -> StatedAccuracy:
    return StatedAccuracy(**({"recall": 1, "precision": 1} | given))


def skip_light(**given: Any) -> SkipLight:
    return SkipLight("fp16", **({"skip_above": None} | given))


Edges = tuple[Sequence[Any], Sequence[Any]]
SETTINGS: list[tuple[Callable[..., Any], str, Edges]] = [
    (ActivationRatio, "cache.epsilon", POSITIVE),
    (ClassLRU, "cache.half_life_steps", COUNTS),
    (ClassLRU, "cache.classes", COUNTS),
    (Belady, "cache.bypass", FLAGS),
    (CostAwareBelady, "cache.overhead_bytes", FROM_ZERO),
    (DecayedLFU, "cache.decay", ((0.001, 1), (0, 1.001, nan, *NO_NUMBER))),
    (ExpectedReuse, "cache.half_life_visits", POSITIVE),
    (ExpectedReuse, "cache.followers_share", SHARES),
    (ExpectedReuse, "cache.prior_visits", POSITIVE),
    (ExpectedReuse, "cache.distance_weight", AMOUNTS),
    (lambda **g: LargeGatesOnlyRead(LRU(), **g), "cache.up_to_rows", FROM_ZERO),
    (Random, "cache.seed", FROM_ZERO),
    (S3FIFO, "cache.small_share", SHARES),
    (S3FIFO, "cache.ghost_share", SHARES),
    (S3FIFO, "cache.threshold", ((1, 3), (0, 4, *NO_COUNT))),
    (WTinyLFU, "cache.window_share", SHARES),
    (WTinyLFU, "cache.protected_share", SHARES),
    (WTinyLFU, "cache.sample", COUNTS),
    (ShallowFirst, "cache.quotas.shallow_sites", FROM_ZERO),
    (ExpectedLoads, "cache.quotas.prefetch_accuracy", ((0, 0.5, 1), (*SHARES[1], [], [0.5, 2]))),
    (
        lambda **g: ExpectedLoads(0.5, **g),
        "cache.quotas.single_share",
        ((0, 0.5, 1), (*SHARES[1], [], [-1, 0.5])),
    ),
    (
        TensorOverrides,
        "cache.quotas.n_cpu_moe",
        ((0, 1, "all", "fewest"), (-1, True, 1.5, "most", None)),
    ),
    (ConfidentLookahead, "predictor.percentile", ((0, 99.9), (-1, 100, nan, *NO_NUMBER))),
    (ConfidentLookahead, "predictor.experts", NAMED),
    (GateLookahead, "predictor.sites", COUNTS),
    (lambda **g: GateLookahead(1, **g), "predictor.experts", MAYBE_COUNT),
    (lambda **g: GateLookahead(1, **g), "predictor.prompts", FLAGS),
    (ExpectedNeeds, "predictor.sites_ahead", COUNTS),
    (ExpectedNeeds, "predictor.times_chance", AMOUNTS),
    (ExpectedNeeds, "predictor.rate", SHARES),
    (ExpectedNeeds, "predictor.half_life_visits", ((0.1, 9), (0.09, inf, nan, *NO_NUMBER))),
    (ExpectedNeeds, "predictor.prior_visits", ((0.1, 9), (0.09, inf, nan, *NO_NUMBER))),
    (RecentImportance, "predictor.decay", SHARES),
    (RecentImportance, "predictor.experts", NAMED),
    (RecentImportance, "predictor.prompts", FLAGS),
    (LearnedPerSite, "predictor.stride", COUNTS),
    (LearnedPerSite, "predictor.history", FROM_ZERO),
    (LearnedPerSite, "predictor.score_sites", COUNTS),
    (ActivationMatching, "predictor.best", MAYBE_COUNT),
    (ActivationMatching, "predictor.own_site", FLAGS),
    (Foreseen, "predictor.sites", MAYBE_COUNT),
    (stated, "predictor.sites", MAYBE_COUNT),
    (stated, "predictor.seed", FROM_ZERO),
    (TokenRoutes, "predictor.sites", MAYBE_COUNT),
    (ActiveShare, "payload.sparsity", ((0, 0.5, 0.999), (-0.001, 1, nan, *NO_NUMBER))),
    (AbsentOnCpu, "placement.up_to_tokens", MAYBE_COUNT),
    (CpuForSmallBatches, "placement.min_rows", FROM_ZERO),
    (costs, "placement.cpu_per_token", AMOUNTS),
    (costs, "placement.load", AMOUNTS),
    (costs, "placement.us_per_assignment", AMOUNTS),
    (low_for_few, "precision.low_share", SHARES),
    (low_for_few, "precision.low_if_absent", FLAGS),
    (lambda **g: PerExpert("fp16", "int4", **g), "precision.low_share", SHARES),
    (skip_light, "precision.skip_above", ((0, 0.5, 1), (-0.001, 1.001, nan, True, "1"))),
    (skip_light, "precision.quantile", ((0, 0.5, 1), (-0.001, 1.001, nan, True, "1"))),
]


def each(which: int) -> list[Any]:
    return [
        pytest.param(make, name, value, id=f"{number} {name}={value!r}")
        for number, (make, name, edges) in enumerate(SETTINGS)
        for value in edges[which]
    ]


@pytest.mark.parametrize(("make", "name", "value"), each(0))
def test_a_setting_within_its_bounds_is_kept(
    make: Callable[..., Any], name: str, value: Any
) -> None:
    attribute = name.rsplit(".", 1)[1]
    assert getattr(make(**{attribute: value}), attribute) == value


@pytest.mark.parametrize(("make", "name", "value"), each(1))
def test_a_setting_beyond_its_bounds_is_refused_by_name_and_value(
    make: Callable[..., Any], name: str, value: Any
) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(f"{name}={value!r} must be ")):
        make(**{name.rsplit(".", 1)[1]: value})


IN_CODE_ONLY = {
    ("ARC", "scope"): "Fate's ARC is in each site by itself",
    ("PerExpert", "low_share"): "a table or a file says which are low",
    ("SkipLight", "quantile"): "one of two thresholds is given",
    ("RecentImportance", "prompts"): "the file leaves it out",
}
"""Defaults that no file has, and why."""


def made_by(settings: Any) -> Iterator[dict[str, Any]]:
    """The objects that a file makes, those inside others, too."""
    if isinstance(settings, dict):
        if "_target_" in settings:
            yield settings
        for part in settings.values():
            yield from made_by(part)


def test_a_default_of_a_class_is_that_of_a_file() -> None:
    """Empty lists are left out: files do not name what is not divided."""
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    defaults: dict[tuple[str, str], Any] = {}
    for group in ("cache", "predictor", "precision", "placement", "payload"):
        for path in (CONF / group).glob("*.yaml"):
            for settings in made_by(yaml.safe_load(path.read_text(encoding="utf-8"))):
                module, name = settings["_target_"].rsplit(".", 1)
                parameters = inspect.signature(getattr(import_module(module), name)).parameters
                for option, parameter in parameters.items():
                    if parameter.default not in (inspect.Parameter.empty, ()):
                        defaults[name, option] = parameter.default
                        found[name, option].append(settings.get(option))
    assert len(defaults) > 80
    apart = {
        at
        for at, default in defaults.items()
        if (list(default) if isinstance(default, tuple) else default) not in found[at]
    }
    assert apart == set(IN_CODE_ONLY)
    assert [defaults[at] for at in IN_CODE_ONLY] == ["global", 0.0, None, True]
