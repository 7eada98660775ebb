"""Every cache policy, by one name: what is worth least when room is needed.

Requests change recency and counts whether they hit or miss; a missed key is pinned until it has arrived, so a policy
may rank it before it is resident: the controller's ``blocked`` keeps it from being offered. ``on_evict`` may name a key
that was requested and never inserted.
"""

from sim.policies.adaptive import ARC
from sim.policies.belady import Belady, CostAwareBelady, Foreseeing
from sim.policies.frequency import LFU
from sim.policies.popular import Popular
from sim.policies.recency import FIFO, LRU, LeastStale, Transient
from sim.policies.scores import (
    ActivationRatio,
    DecayedLFU,
    FrequencyOverDistance,
    Random,
    VisitCount,
    WeightedScore,
)

__all__ = [
    "ARC", "FIFO", "LFU", "LRU", "ActivationRatio", "Belady", "CostAwareBelady", "DecayedLFU", "Foreseeing",
    "FrequencyOverDistance", "LeastStale", "Popular", "Random", "Transient", "VisitCount", "WeightedScore",
]  # fmt: skip
