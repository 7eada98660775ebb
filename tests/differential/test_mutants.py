"""The comparison with the reference finds every defect that is planted in the production code.

The comments at ``MUTANTS`` say how many random scenarios of its kind it took to find each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import pytest

from differential import (
    draft_mutants,
    engine_mutants,
    mutants,
    prefix_mutants,
    production_rows,
    reference,
)
from differential.mutants import Plant, always, batched, nothing, replaced, switched
from differential.rows import Timeline
from differential.scenario import Cache, Scenario
from differential.test_engine_against_reference import (
    PLAIN,
    PREFIX_MIXTURE,
    first_difference,
    given,
)
from sim.core.controller import Controller
from sim.core.slots import Slots
from sim.core.transfer import Transfer
from sim.engine import engine, links, stream
from sim.engine.clock import TRANSFER_END
from sim.engine.contended_links import ContendedLink
from sim.engine.contest import Contest
from sim.engine.links import SharedLink
from sim.engine.pages import PageLedger
from sim.machine.devices_costs import OnOwners
from sim.machine.lanes import Lanes
from sim.policies.recency import LRU
from sim.values.types import Geometry, HostCosts, Route
from sim.workload.speculation import Speculation

LIMIT = 120
"""Random scenarios in which a defect must show."""
EARLY = TRANSFER_END >> 1
KEPT = Speculation.kept
"""Before everything else of an instant."""


# ---- what scenarios are made into, so that a defect can show


def as_it_is(scenario: Scenario) -> Scenario:
    return scenario


def one_queue(scenario: Scenario) -> Scenario:
    """First in first out, nothing cancelled: only the time of the claim distinguishes issue from
    queueing.
    """
    loader = replace(
        scenario.loader,
        in_flight=1,
        demand_first=False,
        cancel_stale=False,
        queue="append",
        prefetch_budget="all",
    )
    return replace(scenario, loader=loader)


def one_queue_for_two(scenario: Scenario) -> Scenario:
    """The same with two in flight: a claim at the service is one that issues when the one before
    it ends.
    """
    scenario = one_queue(scenario)
    return replace(scenario, loader=replace(scenario.loader, in_flight=2))


def lru_at_every_site(scenario: Scenario) -> Scenario:
    return replace(scenario, cache=Cache("lru"))


def arriving_at_ends(scenario: Scenario) -> Scenario:
    """There is room for all, and each request but the first comes where a step of those before
    it ends.
    """
    assert scenario.batching is not None
    batching = replace(scenario.batching, size=len(scenario.requests))
    requests = [replace(scenario.requests[0], arrival_ns=0)]
    for request in scenario.requests[1:]:
        before = reference.run(replace(scenario, batching=batching, requests=tuple(requests)))
        after = [step.end_ns for step in before.steps if step.end_ns > requests[-1].arrival_ns]
        requests.append(replace(request, arrival_ns=after[0] if after else before.makespan_ns))
    return replace(scenario, batching=batching, requests=tuple(requests))


ONE_TOKEN = stream.Stream._one_token

# ---- the list


@dataclass(frozen=True)
class Mutant:
    """A defect, and of what kind the random scenarios are in which it must show."""

    plant: Plant
    kind: str = PLAIN
    ties: bool = False
    change: Callable[[Scenario], Scenario] = as_it_is


MUTANTS = {
    "gates before transfer ends": Mutant(replaced(engine, "GATE", EARLY), ties=True),  # 10
    "pins ignored": Mutant(mutants.pins_ignored),  # 2
    "promotion lost": Mutant(mutants.promotion_lost),  # 15
    "slots claimed at queueing": Mutant(mutants.claimed_at_queueing, change=one_queue),  # 1
    "slots claimed at the service": Mutant(switched(in_flight=1), change=one_queue_for_two),  # 7
    "high serves no low": Mutant(mutants.high_serves_no_low),  # 19
    "stale prefetches kept": Mutant(switched(cancel_stale=False)),  # 56
    "masks ignored": Mutant(mutants.masks_ignored),  # 1
    "recency at arrival": Mutant(mutants.recency_at_arrival, change=lru_at_every_site),  # 1
    "waves admitted early": Mutant(mutants.waves_admitted_early),  # 7
    "an expert's rows are the step's": Mutant(
        replaced(
            stream.Stream, "_expert_ns", lambda self, *need: self.durations.expert_ns(*need, 1)
        )
    ),  # 6
    "one row of a step is all of it": Mutant(
        replaced(stream.Stream, "_one_token", lambda self, _: ONE_TOKEN(self, 1))
    ),  # 8
    "half the rate alone": Mutant(engine_mutants.half_rate_alone, "engines"),  # 1
    "latency draws bandwidth": Mutant(
        replaced(SharedLink, "_latency_ns", always(0)), "engines"
    ),  # 1
    "forecasts evicted by demands": Mutant(
        switched(demand_evicts="masked_last"), "spared_forecasts"
    ),  # 1
    "urgency lost on the way": Mutant(
        replaced(Transfer, "is_needed", property(mutants.is_demand, mutants.forget)), "two_hops"
    ),  # 5
    "hops behind prefetches": Mutant(engine_mutants.hops_behind_prefetches, "three_hops"),  # 37
    "cut-through stores and forwards": Mutant(
        engine_mutants.stored_and_forwarded, "cut_through"
    ),  # 1
    "head of a slow link handed on at once": Mutant(
        engine_mutants.head_of_a_slow_link, "cut_through"
    ),  # 1
    "RAM pins ignored": Mutant(mutants.ram_pins_ignored, "ram_tier"),  # 5
    "cut for a demand without a slot": Mutant(
        replaced(Controller, "_could_claim", lambda *_: True), "chunks"
    ),  # 7
    "late prefetches give way": Mutant(engine_mutants.late_prefetches_give_way, "chunks"),  # 1
    "chunk ends after a submission": Mutant(
        replaced(links, "bisect_right", bisect_left), "chunks", ties=True
    ),  # 4
    "write-back forgotten": Mutant(switched(write_back=False), "write_back"),  # 1
    "exchange moves bytes": Mutant(mutants.exchange_moves_bytes, "staging"),  # 1
    "staged variants kept": Mutant(mutants.staged_variants_kept, "staging"),  # 2
    "everybody enters": Mutant(mutants.everybody_enters, "refusals"),  # 1
    "offered while pinned": Mutant(mutants.offered_while_pinned, "refusals"),  # 1
    "partial moves hit later": Mutant(mutants.partial_moves_hit_later, "partial"),  # 1
    "overtaken prefetches serve later": Mutant(
        replaced(Transfer, "overtaken", always(False)), "partial"
    ),  # 0
    "rest of a partial move forgotten": Mutant(
        replaced(Transfer, "rest_bytes", always(0)), "partial"
    ),  # 1
    "dense blocks behind prefetches": Mutant(engine_mutants.dense_behind_prefetches, "dense"),  # 27
    "one size for every site": Mutant(
        replaced(Geometry, "key_bytes", property(mutants.one_size)), "site_bytes"
    ),  # 1
    "CPU results before transfer ends": Mutant(
        replaced(stream, "CPU_DONE", EARLY), "cpu", ties=True
    ),  # 40
    "policies not told": Mutant(mutants.policies_not_told, "cpu"),  # 1
    "overflow kept": Mutant(replaced(Slots, "excess", lambda slots, pools: []), "after_batch"),  # 1
    "two accesses at a time": Mutant(mutants.two_at_a_time, "per_access"),  # 1
    "waking from no sleep": Mutant(engine_mutants.waking_from_no_sleep, "host", ties=True),  # 8
    "predictions at once": Mutant(engine_mutants.predictions_at_once, "prediction_latency"),  # 1
    "predictions of the past": Mutant(
        engine_mutants.predictions_of_the_past, "prediction_latency"
    ),  # 2
    "needs computed as they come": Mutant(switched(wait="as_ready"), "in_order"),  # 1
    "sequences not told": Mutant(engine_mutants.sequences_not_told, "many_sequences"),  # 11
    "a group filled up": Mutant(batched(batching="continuous"), "static"),  # 1
    "batches that wait for the last": Mutant(batched(batching="static"), "continuous"),  # 4
    "chunks for each prompt": Mutant(engine_mutants.chunks_for_each_prompt, "prefill_chunk"),  # 1
    "every draft kept": Mutant(
        replaced(Speculation, "kept", lambda drafting, draws: len(draws)), "drafts"
    ),  # 1
    "the wrong draft kept": Mutant(
        replaced(
            Speculation, "kept", lambda drafting, draws: min(len(draws), KEPT(drafting, draws) + 1)
        ),
        "drafts",
    ),  # 1
    "arrivals after composing": Mutant(
        engine_mutants.arrivals_after_composing, "arrivals", change=arriving_at_ends
    ),  # 2
    "recency by need order": Mutant(
        replaced(LRU, "_by_last_row", lambda lru, keys, gate: keys), "recency_rows"
    ),  # 1
    "rows of what joins forgotten": Mutant(
        mutants.served_otherwise(mutants.own_rows), "reroute"
    ),  # 1
    "one expert asked for twice": Mutant(
        mutants.served_otherwise(mutants.nobody_joins), "reroute"
    ),  # 1
    "the worst forecast serves": Mutant(
        replaced(
            Controller,
            "foreseen",
            property(lambda c: [c.expert_of(key) for key in c.protection.unmasked][::-1]),
        ),
        "forecast_routes",
    ),  # 1
    "nothing found of a prompt": Mutant(prefix_mutants.nothing_found, "prefixes"),
    "prompts kept before they are read": Mutant(prefix_mutants.kept_when_they_join, "prefixes"),
    "first blocks go first": Mutant(prefix_mutants.first_blocks_go_first, "prefixes"),
    "disk as near as RAM": Mutant(prefix_mutants.disk_is_as_near_as_ram, PREFIX_MIXTURE),
    "dense work waits for nothing": Mutant(prefix_mutants.dense_work_does_not_wait, "prefixes"),
    "keys and values among prefetches": Mutant(prefix_mutants.experts_first, "prefixes"),
    "others leave a link alone": Mutant(engine_mutants.links_left_alone, "rivals"),  # 2
    "others leave computing alone": Mutant(engine_mutants.compute_left_alone, "rivals"),  # 2
    "only the worst rival counts": Mutant(
        engine_mutants.only_the_worst_rival, "cut_through among rivals"
    ),  # 2
    "a latency holds others up": Mutant(engine_mutants.latencies_draw, "rivals"),  # 2
    "a pace kept until the end": Mutant(engine_mutants.paces_kept, "rivals"),  # 2
    "every engine alone": Mutant(engine_mutants.every_engine_alone, "engines among rivals"),  # 1
    "a link overtakes the one before": Mutant(
        replaced(ContendedLink, "_on_overtaking", lambda *_: None), "cut_through among rivals"
    ),  # 1
    "chunks by the clock": Mutant(engine_mutants.chunks_by_the_clock, "chunks among rivals"),  # 2
    "a lane as fast as its link": Mutant(engine_mutants.lanes_of_any_pace, "lanes"),  # 2
    "lanes that never sleep": Mutant(engine_mutants.lanes_that_never_sleep, "lanes"),  # 1
    "copies in no time": Mutant(replaced(Lanes, "copy_ns", lambda *_: 0), "lanes"),  # 1
    "books of a load whatever its bytes": Mutant(
        replaced(HostCosts, "loading_ns", lambda self, _: self.load_ns), "lanes"
    ),  # 1
    "reads in order of experts": Mutant(engine_mutants.reads_in_order_of_experts, "lanes"),  # 1
    "projections come with the whole": Mutant(
        replaced(engine.Engine, "arrive_projection", lambda *_: None), "lanes"
    ),  # 2
    "what has come of a prefetch forgotten": Mutant(engine_mutants.nothing_has_come, "lanes"),  # 2
    "a transfer takes the first device's link": Mutant(
        replaced(Controller, "_begin_link", lambda *_: 0), "devices"
    ),  # 1
    "only link 0 ends at a device": Mutant(replaced(Route, "ends", always(1)), "devices"),  # 1
    "activations cross for nothing": Mutant(engine_mutants.nothing_crosses, "devices"),  # 1
    "every site's device is the first": Mutant(engine_mutants.work_on_the_first, "devices"),  # 1
    "the head is where the last site is": Mutant(engine_mutants.head_with_last, "devices"),  # 3
    "a need computed by the wrong device": Mutant(
        replaced(OnOwners, "expert_on_ns", lambda self, device, *need: self.expert_ns(*need)),
        "owners",
    ),  # 1
    "activations are there at once": Mutant(engine_mutants.activations_at_once, "owners"),  # 1
    "another device's wave wakes nobody": Mutant(engine_mutants.home_never_woken, "owners"),  # 7
    "loads of another device untold": Mutant(engine_mutants.loads_untold, "owners"),  # 2
    "another device never sleeps": Mutant(
        engine_mutants.others_never_sleep, "mixture with owners"
    ),  # 1
    "shrunk pools keep what they hold": Mutant(
        replaced(Slots, "excess", lambda slots, pools: []), "shrinking"
    ),  # 1
    "slots never come back": Mutant(mutants.slots_never_back, "shrinking"),  # 1
    "the step before protects its needs": Mutant(
        mutants.needs_of_before_protected, "shrinking"
    ),  # 1
    "room is made a step late": Mutant(mutants.room_of_the_step_before, "shrinking"),  # 1
    "forecasts first to shrink": Mutant(
        mutants.forecasts_first_to_shrink, "mixture with shrinking"
    ),  # 1
    "pools shrink alike": Mutant(mutants.pools_shrink_alike, "shrinking"),  # 1
    "drafts read what they draft": Mutant(
        draft_mutants.drafts_read_what_they_draft, "draft_sites"
    ),  # 1
    "all drafts at once": Mutant(draft_mutants.all_drafts_at_once, "draft_sites"),  # 2
    "drafts follow what checks them": Mutant(draft_mutants.drafts_follow, "draft_sites"),  # 1
    "a draft with too short a context": Mutant(draft_mutants.short_context, "draft_sites"),  # 39
    "a batch goes at the next gate": Mutant(
        switched(retention="after_batch"), "until_next_visit"
    ),  # 1
    "dense weights have no pages": Mutant(replaced(PageLedger, "visit", lambda *_: None), "swap"),
    "the newest pages go first": Mutant(engine_mutants.newest_pages_first, "swap"),
    "what is evicted keeps its pages": Mutant(engine_mutants.pages_kept, "mixture with swap"),
    "what was done before forgotten": Mutant(
        replaced(Contest, "_settle", lambda contest, now: None), "rivals"
    ),  # 1
}


# ---- the finding


@cache
def expected(mutant: Mutant, seed: int) -> tuple[Scenario, Timeline]:
    scenario = mutant.change(given(mutant.kind, seed, mutant.ties))
    return scenario, reference.run(scenario)


def difference(mutant: Mutant, seed: int) -> str | None:
    """Where production and reference part; a run that breaks down is a difference, too."""
    scenario, timeline = expected(replace(mutant, plant=nothing), seed)
    try:
        return first_difference(production_rows.run(scenario), timeline)
    except (AssertionError, KeyError, IndexError, ValueError, RuntimeError) as error:
        return f"breaks down: {error!r}"


@pytest.mark.alike
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name].plant(monkeypatch)
    for seed in range(LIMIT):
        found = difference(MUTANTS[name], seed)
        if found is not None:
            print(f"{name}, scenario {seed + 1}: {found}")
            return
    pytest.fail(f"{name}: not found in {LIMIT} scenarios")


@pytest.mark.alike
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (PLAIN, one_queue),
        (PLAIN, one_queue_for_two),
        (PLAIN, lru_at_every_site),
        ("arrivals", arriving_at_ends),
    ],
)
def test_without_a_defect_the_changed_scenarios_show_no_difference(
    kind: str, change: Callable[[Scenario], Scenario]
) -> None:
    """Those that are not changed are compared in the other file."""
    for seed, ties in product(range(20), (True, False)):
        assert difference(Mutant(nothing, kind, ties, change), seed) is None, (seed, ties)
