"""Policies: caches, predictors, precision selectors, placements and payloads.

They are pure deciders: they see no clock, tensor, configuration, global randomness or simulator,
and import the standard library and numpy only. Their contracts are in :mod:`sim.policies.base`.
The names exported here are public: configurations use them.

| kind | modules |
|---|---|
| caches | recency, frequency, frequency_classes, queues, scores, expected_reuse, adaptive (ARC), popular, belady |
| of caches | pools (their base class), scored (that of caches by score), quotas and tensor_overrides, large_gates |
| predictors | lookahead, learned, paths, matching, importance, token_routes, expected_needs, references |
| of predictors | predictors (no prediction), fitted (their base class), row_forecast |
| precision selectors | precisions, reroutes, profile (what one is fitted with) |
| placements, payloads | placements, payloads |
| of all | base (the interfaces), requires (what a policy declares that it needs) |

A new cache policy is a subclass of `Pooled`, or of `scored.Scored` if it ranks by a number. It has a
file ``conf/cache/NAME.yaml`` that names its class, and a test (docs/add_policy.md).
"""

from sim.policies.adaptive import ARC
from sim.policies.belady import Belady, CostAwareBelady
from sim.policies.expected_needs import ExpectedNeeds
from sim.policies.expected_reuse import ExpectedReuse
from sim.policies.frequency import LFU
from sim.policies.frequency_classes import LFRU, ClassLRU, DecayedLFU
from sim.policies.importance import RecentImportance
from sim.policies.large_gates import LargeGatesOnlyRead
from sim.policies.learned import LearnedPerSite
from sim.policies.lookahead import ConfidentLookahead, GateLookahead
from sim.policies.matching import ActivationMatching
from sim.policies.paths import ExpertPaths, NextSiteConditional
from sim.policies.payloads import ActiveShare, ReusedChannels, Whole, WholeLayer
from sim.policies.placements import AbsentOnCpu, CpuByCost, CpuForSmallBatches, Load, SkipAbsent
from sim.policies.popular import Popular
from sim.policies.precisions import Fixed, LowForFew, PerExpert, ScoreThreshold, SkipLight
from sim.policies.predictors import NoPrediction
from sim.policies.queues import S3FIFO, Sieve, WTinyLFU
from sim.policies.quotas import ExpectedLoads, MeasuredLoads, ShallowFirst
from sim.policies.recency import FIFO, LRU, LeastStale, Transient
from sim.policies.references import Foreseen, StatedAccuracy
from sim.policies.reroutes import ForecastRoutes, MaskedGate
from sim.policies.scores import (
    ActivationRatio,
    FrequencyOverDistance,
    Random,
    VisitCount,
)
from sim.policies.tensor_overrides import TensorOverrides
from sim.policies.token_routes import TokenRoutes
from sim.policies.weighted_score import WeightedScore

__all__ = [
    "ARC",
    "FIFO",
    "LFRU",
    "LFU",
    "LRU",
    "S3FIFO",
    "AbsentOnCpu",
    "ActivationMatching",
    "ActivationRatio",
    "ActiveShare",
    "Belady",
    "ClassLRU",
    "ConfidentLookahead",
    "CostAwareBelady",
    "CpuByCost",
    "CpuForSmallBatches",
    "DecayedLFU",
    "ExpectedLoads",
    "ExpectedNeeds",
    "ExpectedReuse",
    "ExpertPaths",
    "Fixed",
    "ForecastRoutes",
    "Foreseen",
    "FrequencyOverDistance",
    "GateLookahead",
    "LargeGatesOnlyRead",
    "LearnedPerSite",
    "LeastStale",
    "Load",
    "LowForFew",
    "MaskedGate",
    "MeasuredLoads",
    "NextSiteConditional",
    "NoPrediction",
    "PerExpert",
    "Popular",
    "Random",
    "RecentImportance",
    "ReusedChannels",
    "ScoreThreshold",
    "ShallowFirst",
    "Sieve",
    "SkipAbsent",
    "SkipLight",
    "StatedAccuracy",
    "TensorOverrides",
    "TokenRoutes",
    "Transient",
    "VisitCount",
    "WTinyLFU",
    "WeightedScore",
    "Whole",
    "WholeLayer",
]
