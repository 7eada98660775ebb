"""Parts of a summary, each of few numbers that are made by hand and all differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from helpers.worked import make_run
from sim.core.loader import Loader
from sim.machine.recorded_bytes import RecordedBytes
from sim.results.metrics import (
    _all_bytes,
    _arrivals,
    _budget,
    _contracts,
    _expert_bytes,
    _findings,
    _load_ns,
    _outcome_counts,
    _peak_bytes,
    _prefetch,
    _quality,
    _ram,
    _trace,
    _union_over_capacity,
)
from sim.results.prefixes import prefixes_section, tiers_told
from sim.results.sections import growing_section, paging_section, slowed_section
from sim.traces.header import Finding
from sim.traces.trace import trace_sha256
from sim.values.types import Event, Found, Geometry, PrefetchOutcome
from sim.workload.prefixes import Tiers

GEOMETRY = Geometry(
    2,
    3,
    1,
    ("fp16", "int4"),
    (16.0, 4.0),
    (80, 20),
    500,
    site_bytes=((80, 60), (20, 10)),
    null_experts=1,
)
"""Four units a site, the last a dense block; so 8 keys a precision. An expert of three is none."""


def like(**parts: Any) -> Any:
    return SimpleNamespace(**parts)


def run(**controller: Any) -> Any:
    told = {"geometry": GEOMETRY, "ram": None, "route": like(link_of=(), links=3)} | controller
    return like(controller=like(**told))


def test_a_pool_counts_slots_of_the_highest_precision_that_it_holds() -> None:
    """One pool of both precisions at site 0: 250 / 90; two at site 1: 170 / 90 and 75 / 40."""
    held = replace(GEOMETRY, held_bytes=(90, 40))
    slots = like(
        capacity_bytes=[250, 170, 75],
        pool_of=[0] * 4 + [1] * 4 + [0] * 4 + [2] * 4,
        slot_bytes=held.slot_bytes,
        initial=[0, 5, 13],
    )
    found = run(geometry=held, slots=slots)
    found.resident_share = 0.375
    assert _budget(found) == {
        "device_bytes": 495,
        "allowed_bytes": 500,
        "slots": {"fp16": 3, "int4": 1},
        "slot_bytes": {"fp16": 90, "int4": 40},
        "initial_bytes": 220,
        "resident_share": 0.375,
    }
    slots.pool_of, slots.capacity_bytes, slots.initial = [0] * 16, [449], []
    assert _budget(found)["slots"] == {"fp16": 4, "int4": 0}


def test_all_experts_are_those_with_weights_at_every_precision_and_site() -> None:
    assert _all_bytes(GEOMETRY) == 2 * (80 + 60 + 20 + 10)


def hop_ns(link: int, size: int) -> int:
    """A link in each three digits."""
    return int(1000**link * size)


@pytest.mark.parametrize(
    ("ram", "expected_ns"),
    [
        (None, 116_116_116),
        # RAM's 5 B over links 1 and 2; key 1, which is there, over link 0 alone.
        (like(link=1, initial=[1], key_bytes={1: 5}), 114_114_116),
        # RAM's 5 and 6 B over link 2; key 1 over links 0 and 1.
        (like(link=2, initial=[1, 9], key_bytes={1: 5, 9: 6}), 120_116_116),
    ],
)
def test_a_cold_start_takes_every_link_that_is_crossed(ram: Any, expected_ns: int) -> None:
    """100 B of dense weights, and the device's keys 1 and 2 of 7 and 9 B."""
    slots = like(initial=[1, 2], key_bytes={1: 7, 2: 9})
    found = run(slots=slots, ram=ram)
    found.durations, found.ledger = like(hop_ns=hop_ns), like(dense_bytes=100)
    found.hardware = like(devices=None)
    assert _load_ns(found) == expected_ns


def test_of_several_devices_each_has_its_contents_over_its_own_link() -> None:
    """Keys 1 and 12, which is 4 of the second precision."""
    route = like(link_of=(0, 0, 0, 0, 1, 1, 1, 1), links=2)
    found = run(slots=like(initial=[1, 12], key_bytes={1: 7, 12: 9}), route=route)
    found.durations, found.ledger = like(hop_ns=hop_ns), like(dense_bytes=100)
    found.hardware = like(devices=like(copies=1))
    assert _load_ns(found) == 9_107


def test_a_copy_of_the_dense_weights_is_loaded_in_equal_parts() -> None:
    found = run(slots=like(initial=[], key_bytes={}))
    found.durations, found.ledger = like(hop_ns=hop_ns), like(dense_bytes=100)
    found.hardware = like(devices=like(copies=3))
    assert _load_ns(found) == 34_034_034


def test_a_ram_tier_tells_its_capacity_and_the_share_of_hits() -> None:
    tier = like(capacity_bytes=[3, 4], lookups=8, hits=2, peak_bytes=33)
    told = {"capacity_bytes": 7, "lookups": 8, "hits": 2, "hit_ratio": 0.25}
    assert _ram(run(ram=tier)) == told
    tier.lookups = tier.hits = 0
    assert _ram(run(ram=tier)) == told | {"lookups": 0, "hits": 0, "hit_ratio": None}
    assert _ram(run()) is None


@pytest.mark.parametrize(("peak", "device"), [(400, 900), (520, 930), (590, 1000), (700, 1000)])
def test_of_what_is_set_aside_for_an_overflow_only_what_was_used_counts(
    peak: int, device: int
) -> None:
    """1000 B in all, 100 of them for an overflow over pools of 490."""
    slots, staging = like(peak_bytes=peak, capacity_bytes=[200, 290]), like(most_used=2)
    found = run(slots=slots, staging=staging, ram=like(peak_bytes=33))
    found.ledger = like(total_bytes=1000, overflow_bytes=100)
    assert _peak_bytes(found) == {"device": device, "ram": 33, "staging": 160}
    found.controller.ram = None
    assert _peak_bytes(found)["ram"] == 0


def test_unions_are_bytes_at_their_own_site_over_those_of_all_slots() -> None:
    """2 x 80, 1 x 60, 3 x 80 and 0 of 240: the 95th percentile stands 0.85 of the way to the 1."""
    found = run(slots=like(capacity_bytes=[100, 140]))
    needs = like(tick=np.array([0, 0, 1, 2, 2, 2]))
    found.workload = like(needs=needs, num_gates=4, gate_site=np.array([0, 1, 0, 1]))
    assert _union_over_capacity(found) == {
        "mean": pytest.approx(460 / 240 / 4),
        "p95": pytest.approx(2 / 3 + 0.85 / 3),
    }
    found.controller.slots.capacity_bytes = [0]
    assert _union_over_capacity(found) is None


def test_prefetches_are_counted_by_outcome() -> None:
    controller = like(
        prefetch_counts={outcome: 10 + outcome for outcome in PrefetchOutcome},
        num_prefetches_queued=9,
        issued=like(column=lambda name: np.array({"prefetch": [True, False, True]}[name])),
    )
    found = like(controller=controller, traffic=like(wasted_bytes=lambda: 14))
    assert _prefetch(found) == {
        "queued": 9,
        "started": 2,
        **{outcome.name.lower(): 10 + outcome for outcome in PrefetchOutcome},
        "wasted_bytes": 14,
    }


SERVED: Sequence[tuple[Any, ...]] = [
    ("hit", 0.5, "fp16", 1, 1),
    ("hit", 0.25, "int4", 9, 1),
    ("skip", 0.125, None, -1, 2),
    ("reroute", 0.03125, "fp16", 3, 2),
    ("hit", 0.0625, "int4", 10, 0),
    ("miss", 0.03125, "fp16", 6, 2),
]
NAMES = ["outcome", "weight", "served", "key", "expert"]


def test_what_was_not_served_in_full_is_a_share_of_needs_and_of_gate_weight() -> None:
    """The fifth is low and another expert; key 6 is expert 2 of site 1."""
    served = pl.DataFrame(SERVED, NAMES, orient="row")
    assert _quality(served, GEOMETRY) == {
        "low_share": 2 / 6,
        "skip_share": 1 / 6,
        "reroute_share": 2 / 6,
        "low_mass": 0.3125,
        "skip_mass": 0.125,
        "reroute_mass": 0.09375,
    }
    nothing = dict.fromkeys(
        f"{k}_{w}" for w in ("share", "mass") for k in ("low", "skip", "reroute")
    )
    weightless = [(outcome, 0.0, *rest) for outcome, _, *rest in SERVED]
    for rows in (weightless, []):
        table = pl.DataFrame(rows, served.schema, orient="row")
        assert _quality(table, GEOMETRY) == nothing


# The trace and how requests came


def test_serious_findings_of_these_sequences_or_of_the_whole_trace_are_said() -> None:
    found = (
        Finding("a", True, "of all"),
        Finding("b", True, "of one", (2, 3)),
        Finding("c", True, "of others", (3,)),
        Finding("d", False, "slight"),
        Finding("e", False, "slight", (1,)),
    )
    told = ["a: of all", "b: of one (here: 1 of 2 sequences)"]
    assert _findings(like(findings=found), {1, 2}) == told
    assert _findings(like(findings=()), {1}) == []
    assert _findings(like(findings=None), {1}) is None


def test_recorded_bytes_say_their_range_and_whether_they_are_taken() -> None:
    found = run()
    found.recorded_bytes = None
    assert _expert_bytes(found) is None
    found.recorded_bytes = RecordedBytes((30, 10, 20), "INT4")
    told = {"stored_as": "INT4", "least": 10, "most": 30, "taken": True, "note": None}
    assert _expert_bytes(found) == told
    found.recorded_bytes = own = RecordedBytes((30, 10, 20), "int8")
    note = own.told(("fp16", "int4"))
    assert note is not None
    assert _expert_bytes(found) == told | {"stored_as": "int8", "taken": False, "note": note}


def test_a_trace_tells_what_was_replayed_of_it() -> None:
    found = make_run()
    backwards = like(sequences=found.workload.sequences[::-1], split="eval")
    told: dict[str, Any] = {
        "name": "by_hand",
        "sha256": trace_sha256(found.trace.header),
        "sequences": 2,
        "numbers": [0, 1],
        "prefill_tokens": 3,
        "decode_tokens": 4,
        "source": "synthetic",
        "gates": "tiny",
        "split": "eval",
        "findings": None,
        "expert_bytes": None,
    }
    assert _trace(replace(found, workload=backwards)) == told
    moved = replace(found, model=like(transplant="of x"))
    assert _trace(moved) == told | {"gates": "of x"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"requests": "file.jsonl"}, {"requests": "file.jsonl"}),
        ({"requests": [{"at_s": 1}, {"at_s": 2}, {}]}, {"requests": 3}),
        ({"requests": None}, {"per_s": 0.5, "seed": 7}),
        ({}, {"per_s": 0.5, "seed": 7}),
        ({"arrivals_per_s": None}, {"given_s": [0, 1]}),
    ],
)
def test_arrivals_are_read_drawn_or_given(words: dict[str, Any], told: dict[str, Any]) -> None:
    drawn = {"arrivals_per_s": 0.5, "arrival_seed": 7, "arrivals_s": [0, 1]}
    assert _arrivals(drawn | words) == told


def test_every_switch_of_a_run_is_told_an_unsaid_one_by_its_default() -> None:
    """The first run of docs/metrics.md: its configuration says nothing of contexts and drafts."""
    found = make_run()
    loader = {
        switch.name: getattr(Loader(wait="as_ready"), switch.name) for switch in fields(Loader)
    }
    told = loader | {
        "batching": "sequential",
        "together": 1,
        "prefill_chunk": None,
        "arrivals": None,
        "context_tokens": None,
        "draft_tokens": 0,
        "draft_accepted": 1.0,
        "draft_seed": 0,
        "draft_layers": 0,
        "waves": 0,
        "loop": "open",
        "initial_cache": "empty",
        "carry_over": "cache contents stay between sequences",
        "warmup_tokens": 0,
        "score_thresholds": {"low_above": 0.5, "skip_above": 0.8, "from": "given"},
    }
    assert _contracts(found) == told
    # By call how many needs it admitted: a wave is one that admitted any.
    found.controller.wave_calls.extend([3, 0, 5, 2, 6, 1])
    words = {"arrivals_per_s": 0.5, "arrival_seed": 7, "draft_tokens": 2, "draft_seed": 3}
    workload = like(
        batching="continuous",
        together=4,
        prefill_chunk=8,
        is_timed=True,
        speculation=like(sites=(1,)),
        tiers=None,
        sequences=[],
    )
    other = replace(found, workload=workload, config={"workload": words})
    assert _contracts(other) == told | {
        "batching": "continuous",
        "together": 4,
        "prefill_chunk": 8,
        "arrivals": {"per_s": 0.5, "seed": 7},
        "draft_tokens": 2,
        "draft_seed": 3,
        "draft_experts": "offloaded",
        "waves": 2,
    }


def test_an_outcome_that_no_lookup_had_is_0() -> None:
    found = _outcome_counts(pl.DataFrame({"outcome": ["late", "hit", "late", "reroute"]}))
    assert found == [1, 0, 0, 2, 0, 0, 0, 0, 1]


# What only some runs have


def test_each_party_that_contention_slowed_has_its_own_seconds() -> None:
    found = like(hardware=like(link_names=("pcie", "nvme")))
    record = like(slowed_ns=[1_000_000_000, 2_500_000_000, 0, 250_000_000])
    told = {"compute": 1.0, "cpu": 2.5, "pcie": 0.0, "nvme": 0.25}
    assert slowed_section(found, like(record=record)) == told
    assert slowed_section(found, like(record=like(slowed_ns=[]))) is None


def test_pages_that_came_and_went_took_their_own_times() -> None:
    paging = like(in_ns=3_000, out_ns=500_000, room_bytes=77)
    frames = like(record=like(paged=(4, 2)))
    assert paging_section(like(durations=like(paging=paging)), frames) == {
        "paging": {"in_pages": 4, "out_pages": 2, "seconds": 0.001012, "room_bytes": 77}
    }
    assert paging_section(like(durations=like(paging=None)), frames) == {}
    assert paging_section(like(durations=like()), frames) == {}


def test_slots_that_shrink_tell_their_range_and_what_gave_way_for_no_key() -> None:
    kinds = [Event.EVICT, Event.EVICT, Event.ISSUE, Event.EVICT, Event.EVICT]
    events = {"kind": kinds, "value": [-1, 0, -1, 5, -1]}
    ledger = pl.DataFrame({"slot_bytes": [70, 90, 50, 60]})
    found = like(kv_room=1, ledger=ledger, controller=like(event_columns=events))
    told = {"growing": {"least_bytes": 50, "most_bytes": 90, "trimmed": 2}}
    assert growing_section(found) == told
    assert growing_section(like(kv_room=None)) == {}


def test_prompts_that_share_a_beginning_tell_what_was_read_and_moved() -> None:
    steps = [Found(1, 20, 300, 5), None, Found(2, 10, 200, 0)]
    workload = like(
        tiers=Tiers(16, 1, 2),
        steps=[like(found=found) for found in steps],
        sequences=[like(prompt_tokens=1_000), like(prompt_tokens=500)],
    )
    found = like(workload=workload, model=like(kv_bytes_per_token=4))
    assert prefixes_section(found, 1_500_000_000) == {
        "prefixes": {
            "prompt_tokens": 1_500,
            "read_tokens": 967,
            "read_again": 5,
            "reused": {"device": 3, "ram": 30, "disk": 500},
            "moved_bytes": {"ram": 120, "disk": 2_000},
            "waits_s": 1.5,
        }
    }
    assert tiers_told(found) == {"prefixes": {"block_tokens": 16, "device": 1, "ram": 2, "disk": 0}}
    workload.tiers = None
    assert (prefixes_section(found, 1), tiers_told(found)) == ({}, {})
