"""Published negative results: what was expected to help and did not.

Only signs are compared, with the paired 95 % interval; sources are at each test. Sizes and machine
are those of half of Mixtral's layers on an RTX 4090, gates those of the bundled model
(TRANSPLANTED), so factors mean nothing. docs/whatif.md has a table of them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from helpers.bundled import Configure
from sim.answers.breakeven import crossing
from sim.results.latency import decode_time_and_tokens
from sim.results.paired import FASTER, SLOWER, Paired, paired
from sim.setup.build import build
from sim.setup.execute import execute
from sim.study.trials import Trial, trial
from sim.traces.trace import Trace
from sim.values.places import ROOT

PAGE = (ROOT / "docs" / "whatif.md").read_text(encoding="utf-8")
SHORT = ("trace.max_sequences=4", "hardware.memory_gib=96")


@cache
def ran(*words: str) -> Trial:
    return trial([*words, *SHORT])


def against(one: Trial, other: Trial) -> Paired:
    """How many times as fast ``one`` decodes."""
    return paired(decode_time_and_tokens(one)[0], decode_time_and_tokens(other)[0])


def at(share: float) -> str:
    return f"budget.resident_share={share!r}"


@pytest.mark.thorough
def test_a_prefetcher_raises_the_hit_ratio_and_lowers_the_speed() -> None:
    """colibri's PILOT: +3.3 points of hits, -4.1 % tokens/s.

    Nine of ten needs are forecast, and as many other experts, into slots of their own. The bytes of
    the others are ahead of demands on the link.
    """
    prefetch = (
        "predictor=stated_accuracy",
        "predictor.recall=0.9",
        "predictor.precision=0.5",
        "loader.destination=staging",
        "loader.staging_slots=2",
    )
    with_it, without = ran("system=lru", at(0.5), *prefetch), ran("system=lru", at(0.5))
    assert with_it.summary["hit_ratio"] > without.summary["hit_ratio"]
    assert against(with_it, without).verdict == SLOWER
    assert with_it.summary["stall_s"]["behind_prefetch"] > 0
    moved = [sum(one.summary["bytes"]["pcie"].values()) for one in (with_it, without)]
    assert moved[0] > moved[1]
    hits = " to ".join(f"{one.summary['hit_ratio']:.3f}" for one in (without, with_it))
    assert f"{hits} hits, {against(with_it, without).speedup:.2f} times as fast" in PAGE


@pytest.mark.thorough
def test_prefetching_by_what_often_follows_is_slower_than_on_demand_below_a_budget() -> None:
    """Fate (arXiv:2502.12224): EAP is slower than on demand where its cache keeps too little.

    With one LRU for all layers that is where a token's needs evict those of the next token: near
    two slots for each of 16 layers, 1/4.
    """
    below = eap_on_demand(0.2)
    assert below.verdict == SLOWER
    assert f"at a fifth resident: {below.speedup:.2f} times" in PAGE
    assert eap_on_demand(0.35).verdict == FASTER


@pytest.mark.thorough
def test_the_budget_from_which_that_prefetching_pays_is_just_above_a_tokens_cycle() -> None:
    found = crossing(lambda share: eap_on_demand(share).speedup - 1, 0.2, 0.35, steps=5)
    assert found.value is not None
    assert 0.25 < found.low < found.high < 0.3


def eap_on_demand(share: float) -> Paired:
    return against(
        ran("system=eap", "cache=lru", at(share)),
        ran("system=load_on_demand", "precision=int4", at(0.5)),
    )


def test_experts_on_the_cpu_are_slower_than_loading_them_where_host_memory_is_weak() -> None:
    """FreeToken #151: hybrid 0.67 against 5.58 tokens/s (8.3 times slower) on weak DRAM.

    Fiddler is faster on strong DRAM.
    """
    loaded = ran("system=lru", at(0.5))
    weak, strong = (
        ran(
            "system=lru", at(0.5), "placement=absent_on_cpu", f"hardware.cpu.memory_gb_per_s={rate}"
        )
        for rate in (12.0, 117.0)
    )
    slower, faster = against(weak, loaded), against(strong, loaded)
    assert (slower.verdict, faster.verdict) == (SLOWER, FASTER)
    told = f"12 GB/s: {slower.speedup:.2f} times; 117 GB/s: {faster.speedup:.1f} times"
    assert told in PAGE
    assert weak.summary["hit_ratio"] == strong.summary["hit_ratio"], (
        "what is absent stays absent at any speed"
    )


@pytest.mark.parametrize(("slots", "hits"), [(2, False), (30, False), (31, True)])
def test_one_lru_for_all_layers_hits_nothing_at_all_below_one_tokens_cycle(
    slots: int, hits: bool
) -> None:
    """Between two uses of an expert are at least the needs of the other 15 sites, two each.

    With 30 slots the expert has always just gone. (FreeToken #174: LRU hits 8-18 % where a static
    set would hit 46 %.)
    """
    found = ran("system=lru", at((slots + 0.5) / 128)).summary
    assert (found["hit_ratio"] > 0) == hits
    assert (found["lookups"]["hit"] > 0) or not hits


@pytest.mark.thorough
def test_lfu_is_faster_on_one_prompt_and_slower_on_a_mix(
    configure: Configure, bundled_trace: Trace
) -> None:
    """Counts that are never forgotten fit the prompt that they were made on.

    colibri: LFRU is 5 points above LRU at one size, below it at others. tinyserve: LFU hits 76.4 %,
    LRU 87.8 %, over a day's prompts.
    """
    words = [
        ("system=lru", at(0.25), f"cache={cache}", "hardware.memory_gib=96")
        for cache in ("lfu_model", "lru")
    ]
    (prompt,) = [s for s in bundled_trace.header.sequences if s.sequence == 41]
    alone = replace(bundled_trace, header=replace(bundled_trace.header, sequences=(prompt,)))
    speed = [
        execute(build(configure(*one), "x", alone)).summary["decode_tokens_per_s"] for one in words
    ]
    assert speed[0] > 1.1 * speed[1]
    mix = [trial([*one, "trace.max_sequences=12"]) for one in words]
    of_mix = against(*mix)
    assert of_mix.verdict == SLOWER
    assert of_mix.interval is not None
    low, high = of_mix.interval
    told = f"{speed[0] / speed[1]:.2f} times on one of twelve prompts alone"
    assert f"{told}, {of_mix.speedup:.3f} [{low:.3f}, {high:.3f}] on the mix" in PAGE


def zipf(trace: Trace, exponent: float) -> Trace:
    """The trace with every choice drawn anew and independently.

    The r-th expert of a site is drawn with weight r ** -exponent.
    """
    rng = np.random.default_rng(0)
    experts = trace.header.model.experts
    ranks = np.argsort(rng.random((trace.ids.shape[1], experts)), axis=1)
    likely = np.log((ranks + 1.0) ** -exponent)
    # The largest of logarithms with Gumbel noise are draws without replacement.
    drawn = likely - np.log(-np.log(rng.random((*trace.ids.shape[:2], experts))))
    ids = np.argsort(-drawn, axis=2)[:, :, : trace.ids.shape[2]].astype(trace.ids.dtype)
    return replace(trace, ids=np.where(trace.ids >= 0, ids, trace.ids))


def test_synthetic_popularity_flatters_a_cache(configure: Configure, bundled_trace: Trace) -> None:
    """MER: 94.7 % hits on synthetic Zipf (s = 1.2), 53.0 % on real routing, with the same slots."""
    cfg = configure("system=lru", at(0.5), *SHORT)
    results = [
        execute(build(cfg.copy(), "x", one)) for one in (zipf(bundled_trace, 1.2), bundled_trace)
    ]
    synthetic, real = (result.summary for result in results)
    assert synthetic["hit_ratio"] > real["hit_ratio"]
    times = [decode_time_and_tokens(result.frames)[0] for result in results]
    assert paired(times[0], times[1]).speedup > 1
    hits = [summary["hit_ratio"] for summary in (synthetic, real)]
    assert f"Zipf 1.2: {hits[0]:.3f} hits, the trace's own gates: {hits[1]:.3f}" in PAGE
