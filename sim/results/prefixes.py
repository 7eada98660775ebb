"""What a run reused of prompts, and what that moved: a section of the summary (contract C179)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sim.results.run import Run
from sim.values.types import Found
from sim.values.units import seconds


def prefixes_section(run: Run, waits_ns: int) -> dict[str, Any]:
    """The summary's section of a run whose requests tell what their prompts share, else {}.

    ``waits_ns``: how long the stream stood idle for what dense work needs.
    """
    workload = run.workload
    if workload.tiers is None:
        return {}
    found = [step.found for step in workload.steps if step.found is not None]
    total = Found(*map(sum, zip(*found, strict=True)))
    prompts = sum(item.prompt_tokens for item in workload.sequences)
    token_bytes = run.model.kv_bytes_per_token
    return {
        "prefixes": {
            "prompt_tokens": prompts,
            "read_tokens": prompts - total.tokens,
            "read_again": total.again,
            "reused": {"device": total.device, "ram": total.ram, "disk": total.disk},
            "moved_bytes": {"ram": total.ram * token_bytes, "disk": total.disk * token_bytes},
            "waits_s": seconds(waits_ns),
        }
    }


def tiers_told(run: Run) -> dict[str, Any]:
    """The contracts of such a run, else {}."""
    tiers = run.workload.tiers
    return {} if tiers is None else {"prefixes": asdict(tiers)}
