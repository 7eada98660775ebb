"""A run's files written by hand, for the audit's rules. Times are in ns.

Two sites of three experts at two precisions; 60 B and 15 B. Two links; three requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl
import pytest

from sim.audit.files import RunFiles
from sim.audit.rules import Left, Rule

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
