"""A summary that has all that commands read of one, and little else."""

from __future__ import annotations

from typing import Any

from sim.results.kept import PREFETCH_ENDS
from sim.results.stalls import STALL_PARTS


def summary_of(**changes: Any) -> dict[str, Any]:
    """The summary, with ``changes`` of its keys; of a section, of the section's keys."""
    found: dict[str, Any] = {
        "schema": 1,
        "system": "lru",
        "model": "m",
        "hardware": "h",
        "workload": "sequential",
        "seed": 0,
        "trace": {"name": "t", "sha256": "0", "numbers": [0], "sequences": 1, "split": "eval"},
        "labels": {},
        "overrides": [],
        "budget": {
            "allowed_bytes": 8,
            "device_bytes": 8,
            "initial_bytes": 8,
            "resident_share": 0.5,
            "slots": {"fp16": 1},
            "slot_bytes": {"fp16": 8},
        },
        "makespan_s": 1.0,
        "compute_busy_s": 1.0,
        "decode_tokens_per_s": 1.0,
        "hit_ratio": 0.5,
        "stall_s": dict.fromkeys(STALL_PARTS, 0.0),
        "prefetch": dict.fromkeys(PREFETCH_ENDS, 0),
        "link_utilisation": {"pcie": 0.5},
        "peak_bytes": {},
        "quality_proxy": {"low_share": None, "skip_share": None},
        "ttft_s": {"mean": None},
        "tpot_s": {"mean": None},
        "gap": None,
        "calibration": {},
        "contracts": {},
        "ci95": {"decode_tokens_per_s": None},
    }
    for key, value in changes.items():
        section = found.get(key)
        both = isinstance(value, dict) and isinstance(section, dict)
        found[key] = {**(section or {}), **value} if both else value
    return found
