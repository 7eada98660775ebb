"""All that the audit's rules give for one run whose files are written by hand. Times are in ns.

Two sites of three experts at two precisions; 60 B and 15 B. Two links; three requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from sim.audit import lookups, times, traffic
from sim.audit.files import RunFiles
from sim.audit.rules import Between, Holds, Left, Rule, agrees, flat

TOKENS = [
    (0, 0, 1, "prefill", 10, 100, 60),
    (1, 1, 1, "prefill", 100, 160, 50),
    (2, 0, 2, "decode", 160, 200, 40),
    (2, 1, 2, "decode", 160, 200, 40),
    (3, 0, 3, "decode", 200, 230, 20),
    (4, 2, 0, "prefill", 235, 250, 15),
]
SEQUENCES = [(0, 3, 2, 5, 100, 230), (1, 2, 1, 50, 160, 200), (2, 1, 0, 60, 250, 250)]
LOOKUPS = [
    # tick, step, phase, site, key, expert, wanted, served, outcome, skips, weight
    (0, 0, "prefill", 0, 0, 0, "fp16", "fp16", "miss", "never", 0.5),
    (0, 0, "prefill", 0, 1, 1, "fp16", "fp16", "hit", "never", 0.5),
    (4, 2, "decode", 0, 0, 0, "fp16", "fp16", "hit", "never", 0.5),
    (4, 2, "decode", 0, 1, 1, "int4", "fp16", "high_for_low", "never", 0.125),
    (4, 2, "decode", 0, 10, 2, "int4", "int4", "miss", "never", 0.125),
    (5, 2, "decode", 1, -1, 2, None, None, "skip", "always", 0.0625),
    (5, 2, "decode", 1, -1, 1, None, None, "skip", "if_absent", 0.0625),
    (6, 3, "decode", 0, 1, 2, "fp16", "fp16", "reroute", "never", 0.0625),
    (6, 3, "decode", 0, 0, 0, "fp16", "fp16", "late", "never", 0.03125),
    (7, 3, "decode", 1, 5, 1, "fp16", "fp16", "promoted", "never", 0.03125),
]
TRANSFERS = [
    # number, link, hop, key, class, moved_bytes, start_ns, end_ns, outcome
    (0, "nvme", 0, 0, "demand", 60, 20, 40, None),
    (0, "pcie", 1, 0, "demand", 60, 30, 50, None),
    (1, "pcie", 0, 1, "prefetch", 60, 60, 80, "used"),
    (2, "nvme", 0, 5, "prefetch", 7, 70, 90, "dropped"),
    (2, "pcie", 1, 5, "prefetch", 4, 90, 95, "dropped"),
    (3, "pcie", 0, 2, "prefetch", 60, 100, 130, "evicted_unused"),
    (4, "pcie", 0, 10, "demand", 15, 120, 140, None),
    (5, "pcie", 0, 3, "dense", 33, 150, 155, None),
    (6, "nvme", 0, 7, "dense", 21, 150, 160, None),
    (7, "pcie", 0, 6, "prefetch", 60, 230, 250, "unused_at_end"),
]
DECISIONS = [
    (1, "queue_prefetch", 0, 1, None, None),
    (1, "queue_prefetch", 0, 5, None, None),
    (1, "queue_prefetch", 0, 2, None, None),
    (1, "queue_prefetch", 0, 6, None, None),
    (1, "queue_prefetch", 0, 4, None, None),
    (1, "queue_prefetch", 0, 9, None, None),
    (1, "queue_prefetch", 0, 12, None, None),
    (1, "queue_prefetch", 0, 13, None, None),
    (2, "lookup", 0, 0, None, "miss"),
    (2, "issue", 0, 0, None, None),
    (3, "issue", 0, 1, 4, None),
    (4, "issue", 0, 5, None, None),
    (4, "lookup", 0, 9, None, "hit"),
    (4, "lookup", 0, 9, None, "promoted"),
    (4, "lookup", 0, 9, None, "promoted"),
    (5, "cancel", 0, 12, None, None),
    (5, "drop_no_slot", 0, 13, None, None),
    (6, "issue", 0, 2, 5, None),
    (6, "evict", 0, 8, None, None),
    (7, "issue", 0, 6, 1, None),
]
COLUMNS = {
    "sequences": "sequence prompt_tokens decode_tokens arrival_ns first_token_ns end_ns",
    "tokens": "step sequence position phase start_ns end_ns compute_ns",
    "lookups": "tick step phase site key expert wanted served outcome skips weight",
    "transfers": "number link hop key class moved_bytes start_ns end_ns outcome",
    "decisions": "call kind tick key victim outcome",
}
PARTS = "demand behind_demand late_prefetch storage dense cpu_join predictor host no_request"


def files(**config: Any) -> RunFiles:
    rows: dict[str, Any] = {
        "sequences": SEQUENCES,
        "tokens": TOKENS,
        "lookups": LOOKUPS,
        "transfers": TRANSFERS,
        "decisions": DECISIONS,
    }
    summary: dict[str, Any] = {
        "budget": {"slots": {"fp16": 2, "int4": 0}, "device_bytes": 120},
        "lookups": {"hit": 0, "cpu": 0},
        "prediction": {"top1": 0.5},
        "stall_s": dict.fromkeys(PARTS.split(), 0.5),
        "compute_busy_s": 1.0,
    } | config.pop("summary", {})
    sections: dict[str, Any] = {
        "model": {"sites": 2, "experts": 3, "hidden": 2, "expert_intermediate": 5},
        "hardware": {
            "links": {"pcie": {}, "nvme": {}},
            "ram": {"capacity_gib": 0.5, "filled_by": "nvme"},
        },
        "workload": {"arrivals_per_s": 2.0},
        "loader": {"write_back": True, "staging_slots": 3},
        "precision": {},
        "ram_cache": {"scope": "global"},
        "payload": {"_target_": "sim.policies.Whole"},
    }
    tables = {
        name: pl.DataFrame(of, COLUMNS[name].split(), orient="row", infer_schema_length=None)
        for name, of in rows.items()
    }
    return RunFiles(summary, sections | config, **tables)


def given(rules: Iterable[Rule | Left]) -> dict[str, Any]:
    """By key what is expected; of what is not recomputed, nothing but that."""
    return {
        one.key: Left
        if isinstance(one, Left)
        else pytest.approx(one.expected, rel=1e-12)
        if isinstance(one.expected, float)
        else one.expected
        for one in rules
    }


def test_times_and_rates_of_requests_are_those_of_their_tokens() -> None:
    """Between steps: 10 at first, of which 5 are before the first arrival, and 5 before step 4."""
    expected = {
        "makespan_s": 245e-9,
        # 95, 110, 190
        "ttft_s.mean": 395e-9 / 3,
        "ttft_s.p50": 110e-9,
        "ttft_s.p95": 182e-9,
        # 130 / 2, 40 / 1
        "tpot_s.mean": 52.5e-9,
        "tpot_s.p50": 52.5e-9,
        "tpot_s.p95": 63.75e-9,
        "tpot_s.p99": 64.75e-9,
        # 100, 40, 30
        "itl_s.mean": 170e-9 / 3,
        "itl_s.p50": 40e-9,
        "itl_s.p95": 94e-9,
        "itl_s.p99": 98.8e-9,
        # 225, 150, 190
        "latency_s.mean": 565e-9 / 3,
        "latency_s.p50": 190e-9,
        "latency_s.p95": 221.5e-9,
        # Steps of 90, 60 and 15; of 40 and 30.
        "prefill_tokens_per_s": 6 / 165e-9,
        "decode_tokens_per_s": 3 / 70e-9,
        "drafts": None,
        "compute_busy_s": 185e-9,
        "stall_s": 60e-9,
        **dict.fromkeys(("stall_s.demand", "stall_s.behind_demand"), Left),
        **dict.fromkeys(("stall_s.late_prefetch", "stall_s.storage", "stall_s.dense"), Left),
        **dict.fromkeys(("stall_s.cpu_join", "stall_s.predictor", "stall_s.host"), 0.0),
        "stall_s.no_request": 10e-9,
    }
    assert given(times.rules(files())) == expected


def test_prefetches_bytes_and_tiers_are_those_of_the_transfers() -> None:
    """Written back: keys 4, 5 and 1 of 60 B, and 8 of 15 B; but the run's end may have cut the last.

    RAM: two misses and eight prefetches asked; of 0, 1, 2, 3, 4 and 7 four begin there. Key 4 waits
    to the end.
    """
    expected = {
        "prefetch.queued": 8,
        "prefetch.started": 4,
        "prefetch.used": 1,
        "prefetch.late": 0,
        "prefetch.dropped": 1,
        "prefetch.evicted_unused": 1,
        "prefetch.unused_at_end": 1,
        "prefetch.promoted": 1,
        "prefetch.cancelled": 2,
        "prefetch.dropped_no_slot": 1,
        "prefetch.wasted_bytes": 124,
        "bytes.pcie.demand": 75,
        "bytes.pcie.prefetch": 184,
        "bytes.pcie.dense": 33,
        "bytes.pcie.activation": 0,
        "bytes.pcie.write_back": Between(0, 195),
        "bytes.nvme.demand": 60,
        "bytes.nvme.prefetch": 7,
        "bytes.nvme.dense": 21,
        "bytes.nvme.activation": 0,
        "bytes.nvme.write_back": 0,
        # 30..50, 60..80, 90..95, 100..140, 150..155, 230..250
        "link_utilisation.pcie": 110 / 245,
        "link_utilisation.nvme": 50 / 245,
        "ram.capacity_bytes": 1 << 29,
        "ram.lookups": 10,
        "ram.hits": Between(4, 7),
        "ram.hit_ratio": Between(0.4, 0.7),
        "peak_bytes.device": Left,
        "peak_bytes.staging": Between(0, 180),
        "peak_bytes.ram": Between(0, 1 << 29),
    }
    assert given(traffic.rules(files())) == expected


def test_without_a_tier_staging_or_writing_back_there_is_nothing_of_it() -> None:
    found = given(traffic.rules(files(hardware={"links": {"pcie": {}, "nvme": {}}}, loader={})))
    assert found["bytes.pcie.write_back"] == 0
    assert found["ram"] is None
    assert (found["peak_bytes.staging"], found["peak_bytes.ram"]) == (Between(0, 0), Between(0, 0))


def test_ratios_over_needs_are_those_of_the_lookups() -> None:
    """Decoded needs: eight, of which seven are asked for. Gates: ten of two sites in five steps."""
    bits = (16 * 0.25 + 16) / 16
    expected = {
        "lookups.hit": 2,
        "lookups.cpu": 0,
        "lookups.miss": 2,
        "lookups.high_for_low": 1,
        "lookups.skip": 2,
        "lookups.reroute": 1,
        "lookups.late": 1,
        "lookups.promoted": 1,
        "hit_ratio": 2 / 7,
        "hit_ratio_prefill": 0.5,
        "hit_ratio_by_precision.fp16": 1 / 4,
        "hit_ratio_by_precision.int4": 1 / 2,
        "miss_penalty": bits / 7,
        "quality_proxy.low_share": 1 / 8,
        "quality_proxy.low_mass": 0.125,
        "quality_proxy.skip_share": 2 / 8,
        "quality_proxy.skip_mass": 0.125,
        "quality_proxy.reroute_share": 1 / 8,
        "quality_proxy.reroute_mass": 0.0625,
        # 1, 1.5, 1, 1, 0.5 and five of 0: the place 8.55 is between 1 and 1.5.
        "union_over_capacity.mean": 0.5,
        "union_over_capacity.p95": 1.275,
        "prediction.top1": Left,
        "prediction.recall_at_issued": Left,
        "prediction.precision": Left,
        "prediction.exact_set": Left,
        "prediction.prefill": Left,
        "prediction.prompts": Left,
        "prediction.fitted_on": Left,
        # One used; two misses, one late and one promoted.
        "prediction.timely_recall": 1 / 5,
    }
    assert given(lookups.rules(files())) == expected
    silent = files(summary={"prediction": {"top1": None}})
    assert given(lookups.rules(silent))["prediction.timely_recall"] is None


def test_with_one_precision_every_need_asked_for_counts_at_it() -> None:
    """Five are, of which one is left out for being absent and has no wanted precision."""
    run = files(summary={"budget": {"slots": {"fp16": 2}, "device_bytes": 120}})
    fp16 = run.lookups.filter(pl.col("wanted").ne_missing("int4"))
    found = given(lookups.rules(replace(run, lookups=fp16)))
    assert found["hit_ratio_by_precision.fp16"] == found["hit_ratio"] == 1 / 5


def test_lookups_of_steps_that_draft_have_a_ratio_and_gates_of_their_own() -> None:
    """A step more, of one gate at site 2: two needs of 60 B, over 120. So 6 over 11 gates."""
    run = files(workload={"draft_experts": "offloaded", "draft_tokens": 2, "draft_layers": 1})
    needs: list[tuple[Any, ...]] = [
        (8, 5, "draft", 2, 8, 0, "fp16", "fp16", "hit", "never", 0.5),
        (8, 5, "draft", 2, 9, 1, "fp16", "fp16", "miss", "never", 0.5),
    ]
    step = [(5, 0, 3, "draft", 230, 232, 2)]
    more = (
        pl.concat([run.lookups, pl.DataFrame(needs, run.lookups.schema, orient="row")]),
        pl.concat([run.tokens, pl.DataFrame(step, run.tokens.schema, orient="row")]),
    )
    found = given(lookups.rules(replace(run, lookups=more[0], tokens=more[1])))
    assert (found["drafts.hit_ratio"], found["hit_ratio"]) == (1 / 2, 2 / 7)
    assert found["union_over_capacity.mean"] == pytest.approx(6 / 11)
    assert "drafts.hit_ratio" not in given(lookups.rules(files()))


@pytest.mark.parametrize(
    ("found", "expected", "is_same"),
    [
        (1.0, 1, True),
        (1.0, 1 + 0.9e-9, True),
        (1.0, 1 + 1.1e-9, False),
        (True, 1, False),
        (1, True, False),
        ("1", 1, False),
        ("a", "a", True),
        (None, None, True),
        (None, 0, False),
        ([1], [1], True),
        ([1], [2], False),
        (2.0, Between(2.0, 3.0), True),
        (3.0, Between(2.0, 3.0), True),
        (1.9, Between(2.0, 3.0), False),
        (3.1, Between(2.0, 3.0), False),
        (True, Between(0, 3), False),
        ((2.0, 3.0), Holds(2.0), True),
        ((2.0, 3.0), Holds(3.0), True),
        ((2.0, 3.0), Holds(3.1), False),
        ((2.0, 3.0), Holds(1.9), False),
        ((2.0,), Holds(2.0), False),
        ((2.0, None), Holds(2.0), False),
        (2.0, Holds(2.0), False),
    ],
)
def test_a_value_agrees_within_a_billionth_and_is_of_its_own_kind(
    found: Any, expected: Any, is_same: bool
) -> None:
    assert agrees(found, expected) is is_same


def test_a_summary_is_flat_by_dotted_keys_where_a_list_is_one_value() -> None:
    told = {"a": {"b": {"c": 1, "d": [2, {}]}, "e": {}}, "f": None}
    assert list(flat(told)) == [("a.b.c", 1), ("a.b.d", [2, {}]), ("a.e", {}), ("f", None)]
