"""Pools below one token's needs, down to none: needs are loaded through staging.

They are kept as far as there is room.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from helpers.bundled import Configure
from sim.core.slots import Slots
from sim.policies.recency import LRU
from sim.setup.build import build
from sim.setup.execute import execute
from sim.values.types import CapacityError, Geometry

SHORT = (
    "trace.max_sequences=1",
    "workload.prompt_tokens=4",
    "workload.decode_tokens=12",
    "hardware.memory_gib=96",
    "outputs=summary",
)
FATE = ("system=fate", "predictor=none", "precision=fp16")
STAGED = ("loader.staging_slots=2",)


# Contracts: C19
def test_a_quota_of_zero_needs_staging_and_says_so() -> None:
    geometry = Geometry(3, 4, 2, ("fp16",), (16.0,), (10,), 60)
    cache: Any = LRU(scope="site", quotas=(4, 1, 0))
    with pytest.raises(
        CapacityError,
        match=r"pool 1 holds 10 B, .* = 20 B there; .*staging: loader\.staging_slots=2",
    ):
        Slots(geometry, cache, 2)
    assert Slots(geometry, cache, 2, stages=True).is_short == [False, True, True]


def ran(configure: Configure, *words: str) -> Any:
    run = build(configure(*FATE, *SHORT, "bounds=max", *words), "x")
    return run, execute(run)


@pytest.mark.parametrize("cache", ["arc_shallow_first", "lru_per_site"])
def test_layers_without_a_slot_load_every_need_of_every_token(
    configure: Configure, cache: str
) -> None:
    """Fate section 4.4 with c = 0: three layers of eight experts take 24 of 128 slots."""
    quotas = f"cache.quotas=[8,8,8,{','.join('0' * 13)}]"
    words = (
        f"cache={cache}",
        *([quotas] if cache == "lru_per_site" else []),
        "budget.resident_share=0.1875",
    )
    run, result = ran(configure, *words, *STAGED)
    one_expert = run.controller.geometry.variant_bytes[0]
    assert [capacity // one_expert for capacity in run.controller.slots.capacity_bytes] == [
        8,
        8,
        8,
        *[0] * 13,
    ]
    lookups = result.frames.lookups
    assert set(lookups.filter(pl.col("site") < 3)["outcome"]) == {"hit"}
    deep = lookups.filter(pl.col("site") >= 3)
    assert set(deep["outcome"]) == {"miss"}
    moved = result.summary["bytes"]["pcie"]["demand"]
    assert moved == len(deep) * one_expert, "each is a load of its own: nothing stays"
    assert run.controller.staging.most_used <= 2
    assert result.summary["bounds"]["lower_s"] <= result.summary["makespan_s"]


def test_a_pool_of_one_slot_keeps_one_of_two_needs(configure: Configure) -> None:
    """A token's second need finds the slot pinned by its first, and is gone after its gate.

    So there is at most one hit a gate.
    """
    quotas = "cache.quotas=[" + ",".join("1" * 16) + "]"
    _, result = ran(configure, "cache=lru_per_site", quotas, "budget.resident_share=0.125", *STAGED)
    decode = result.frames.lookups.filter(pl.col("phase") == "decode")
    hits = decode.group_by("tick").agg((pl.col("outcome") == "hit").sum())["outcome"]
    assert hits.sum() > 0
    assert hits.max() == 1


# Contracts: C39
def test_prefetches_of_a_layer_without_a_slot_pass_through_the_transient_buffer(
    configure: Configure,
) -> None:
    run, result = ran(
        configure,
        "predictor=foreseen_1",
        "cache.quotas.shallow_sites=3",
        "budget.resident_share=0.1875",
        "loader.staging_slots=4",
        "workload.prompt_tokens=1",
    )
    deep = result.frames.lookups.filter(pl.col("site") >= 4)
    assert set(deep["outcome"]) <= {"hit", "late", "promoted"}
    assert result.summary["prefetch"]["used"] + result.summary["prefetch"]["late"] > 0
    assert 0 < run.controller.staging.most_used <= 4


def test_without_staging_the_run_is_refused_with_both_ways_out(configure: Configure) -> None:
    without = ("loader.destination=pool", "loader.staging_slots=0", "budget.resident_share=0.1875")
    with pytest.raises(
        CapacityError, match=r"pool 3 holds 0 B, .*loader\.staging_slots=2; the smallest budget\."
    ):
        build(configure(*FATE, *SHORT, *without), "fate")
