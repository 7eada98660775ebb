"""The reference on random scenarios of every feature.

The feature shows, the invariants hold, and a run can be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product

import pytest

from differential.features import CONFLICTS, SIMULATED, random_feature, random_mixture
from differential.reference import run
from differential.rows import OUTCOMES, PREFETCH_OUTCOMES, STALL_PARTS, Timeline
from differential.scenario import Loader, Scenario

SEEDS = range(8)
ENOUGH = 4
"""So many seeds are enough for a feature that three of their runs show."""
Shows = Callable[[Scenario, Timeline], bool]


def called(name: str) -> Shows:
    return lambda scenario, timeline: any(call == name for _, call, _ in timeline.calls)


def stalled(part: str) -> Shows:
    return lambda scenario, timeline: timeline.stall[part] > 0


def without(**changes: object) -> Shows:
    """The run is another one without it."""

    def shows(scenario: Scenario, timeline: Timeline) -> bool:
        loader = {f.name for f in fields(Loader)}
        switches = {name: value for name, value in changes.items() if name in loader}
        rest = {name: value for name, value in changes.items() if name not in loader}
        other = run(replace(scenario, loader=replace(scenario.loader, **switches), **rest))  # type: ignore[arg-type]
        return (other.gates, other.lookups, other.services) != (
            timeline.gates,
            timeline.lookups,
            timeline.services,
        )

    return shows


def several(scenario: Scenario, timeline: Timeline) -> bool:
    return any(len(row.sequences) > 1 for row in timeline.steps)


def on_devices(scenario: Scenario, timeline: Timeline) -> bool:
    """Several links serve, or what devices send to each other takes time."""
    assert scenario.devices is not None
    at_once = replace(scenario.devices, cross_ns=0, cross_row_ns=0)
    links = {row.link for row in timeline.services}
    return len(links) > 1 or without(devices=at_once)(scenario, timeline)


SHOWS: dict[str, Shows] = {
    "engines": lambda scenario, timeline: any(row.engine > 0 for row in timeline.services),
    "two_hops": lambda scenario, timeline: any(len(row.hops) == 2 for row in timeline.transfers),
    "three_hops": lambda scenario, timeline: any(len(row.hops) == 3 for row in timeline.transfers),
    "cut_through": called("head_done"),
    "ram_tier": lambda scenario, timeline: any(found for _, found in timeline.ram_lookups),
    "chunks": called("chunk_done"),
    "write_back": without(write_back=False),
    "staging": lambda scenario, timeline: bool(timeline.exchanged),
    "refusals": without(refused=frozenset(), displace_none=frozenset()),
    "partial": lambda scenario, timeline: any(
        row.moved_bytes < scenario.size(scenario.unpack(row.key)) for row in timeline.transfers
    ),
    "dense": stalled("dense"),
    "site_bytes": without(site_bytes=()),
    "cpu": lambda scenario, timeline: any(row.outcome == "cpu" for row in timeline.lookups),
    "after_batch": lambda scenario, timeline: bool(timeline.trimmed),
    "per_access": without(replay_unit="union"),
    "host": stalled("host"),
    "prediction_latency": called("prediction_ready"),
    "in_order": without(wait="as_ready"),
    "many_sequences": several,
    "encoder_decoder": lambda scenario, timeline: any(step.visits for step in scenario.steps),
    "static": several,
    "continuous": several,
    "prefill_chunk": lambda scenario, timeline: len(timeline.steps) > 1,
    "arrivals": lambda scenario, timeline: any(request.arrival_ns for request in scenario.requests),
    "recency_rows": lambda scenario, timeline: scenario.cache.recency == "rows",
    "reroute": without(reroute=None),
    "forecast_routes": lambda scenario, timeline: any(
        row.outcome == "reroute" for row in timeline.lookups
    ),
    "likeliest": without(prefetch_order="nearest"),
    "own_site": lambda scenario, timeline: without(
        steps=tuple(replace(step, own=()) for step in scenario.steps)
    )(scenario, timeline),
    "short_pools": lambda scenario, timeline: any(map(scenario.is_short, scenario.pools)),
    "held_bytes": without(held_bytes=()),
    "drafts": lambda scenario, timeline: without(batching=replace(scenario.batching, drafts=0))(
        scenario, timeline
    ),
    "spared_forecasts": without(demand_evicts="masked_last"),
    "prefixes": lambda scenario, timeline: without(
        batching=replace(scenario.batching, tiers=(0, 0, 0))
    )(scenario, timeline),
    "draft_sites": lambda scenario, timeline: without(
        batching=replace(scenario.batching, draft_sites=0)
    )(scenario, timeline),
    "rivals": without(rivalry=None),
    "devices": on_devices,
    "owners": on_devices,
    "shrinking": lambda scenario, timeline: bool(timeline.trimmed),
    "until_next_visit": without(retention="after_batch"),
    "swap": without(swap=None),
    "lanes": lambda scenario, timeline: without(
        links=tuple(
            replace(link, pace=1_000_000, wake_ns=0, copy_ns=0, by_projection=False)
            for link in scenario.links
        )
    )(scenario, timeline),
}


@pytest.mark.alike
@pytest.mark.parametrize("name", SIMULATED)
def test_a_feature_shows_where_it_is_switched_on_and_the_invariants_hold(name: str) -> None:
    seen = 0
    for seed, ties in product(SEEDS, (True, False)):
        scenario = random_feature(name, seed, ties)
        timeline = run(scenario)
        if seed == 0:
            assert scenario == random_feature(name, seed, ties)
            assert timeline == run(scenario)
        seen += SHOWS[name](scenario, timeline)
        if seed + 1 >= ENOUGH and seen >= 3:
            break
    assert seen >= 3


@pytest.mark.thorough
def test_mixtures_keep_the_invariants_and_reach_every_outcome_and_part() -> None:
    seen: Counter[str] = Counter()
    for seed, ties in product(range(40), (True, False)):
        timeline = run(random_mixture(seed, ties))
        seen.update(row.outcome for row in timeline.lookups)
        seen.update({f"prefetch {name}": count for name, count in timeline.prefetch.items()})
        seen.update({f"stall {name}": ns for name, ns in timeline.stall.items()})
        seen.update(f"call {call}" for _, call, _ in timeline.calls)
    wanted = [
        *OUTCOMES,
        *(f"prefetch {name}" for name in PREFETCH_OUTCOMES),
        *(f"stall {name}" for name in STALL_PARTS),
    ]
    calls = (
        "gate",
        "need_done",
        "cpu_done",
        "prediction_ready",
        "transfer_done",
        "head_done",
        "chunk_done",
    )
    assert not [name for name in [*wanted, *(f"call {call}" for call in calls)] if not seen[name]]


def test_what_is_refused_together_is_never_drawn() -> None:
    for seed, ties in product(range(40), (True, False)):
        scenario = random_mixture(seed, ties)
        loader = scenario.loader
        several_engines = any(link.engines > 1 for link in scenario.links)
        stages = bool(loader.staging_slots)
        assert not (
            loader.chunk_bytes and (not loader.demand_first or loader.write_back or several_engines)
        )
        assert not any(link.head_bytes and link.engines > 1 for link in scenario.links)
        assert not scenario.links[0].head_bytes
        assert not (loader.write_back and (stages or loader.retention != "strict"))
        assert not (scenario.moves_partially and (scenario.precisions > 1 or not stages))
        assert stages or not scenario.refuses
        assert stages or loader.destination == "pool"
        assert loader.dense_slots < max(1, scenario.sites)
        assert not loader.dense_slots or len(scenario.dense_bytes) == scenario.sites
        batching = scenario.batching
        assert not (
            scenario.reroute and (scenario.moves_partially or scenario.cache.name == "belady")
        )
        assert not (batching and batching.prefill_chunk and batching.encoder_sites)
        assert not (
            scenario.cache.name == "belady"
            and any(request.arrival_ns for request in scenario.requests)
        )


def test_features_that_exclude_each_other_are_named_as_they_are_drawn() -> None:
    assert {name for first, others in CONFLICTS for name in (first, *others)} <= set(SIMULATED)
    assert set(SHOWS) == set(SIMULATED)
