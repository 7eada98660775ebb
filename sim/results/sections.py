"""The parts of a summary that only some runs have: drafts, contention, paging, slots that shrink."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from sim.machine.swap import SwappedDurations
from sim.results.frames import Frames
from sim.results.hits import hit_ratio
from sim.results.run import Run
from sim.values.types import Event
from sim.values.units import seconds


def drafts_section(frames: Frames) -> dict[str, float | None] | None:
    """The drafts that were checked and kept, and the tokens that a step of a sequence gave.

    Where drafts offload their experts, also the hits of their lookups, and the time of their steps.
    None where no token is drafted.
    """
    if not frames.workload.speculation.tokens:
        return None
    decoded = frames.tokens.filter(pl.col("phase") == "decode")
    given = int(decoded["new_tokens"].sum())
    return {
        "checked": int(decoded["drafts"].sum()),
        "kept": given - len(decoded),
        "tokens_per_step": given / len(decoded) if len(decoded) else None,
        **_drafting(frames),
    }


def _drafting(frames: Frames) -> dict[str, float | None]:
    """The hits of the lookups of drafts, and the time of their steps; {} where experts stay."""
    if not frames.workload.speculation.sites:
        return {}
    steps = frames.tokens.filter(pl.col("phase") == "draft").unique("step")
    return {
        "hit_ratio": hit_ratio(frames.needs.filter(pl.col("phase") == "draft")),
        "time_s": seconds(int((steps["end_ns"] - steps["start_ns"]).sum())),
    }


def slowed_section(run: Run, frames: Frames) -> dict[str, float] | None:
    """How much longer each party's work took than alone, in seconds.

    None on a machine without contention.
    """
    parties = ("compute", "cpu", *run.hardware.link_names)
    slowed = frames.record.slowed_ns
    return (
        {party: seconds(ns) for party, ns in zip(parties, slowed, strict=True)} if slowed else None
    )


def paging_section(run: Run, frames: Frames) -> dict[str, Any]:
    """The section of a run whose weights are swapped, else {} (contract C183)."""
    durations = run.durations
    paging = durations.paging if isinstance(durations, SwappedDurations) else None
    if paging is None:
        return {}
    came, went = frames.record.paged
    told = {
        "in_pages": came,
        "out_pages": went,
        "seconds": seconds(came * paging.in_ns + went * paging.out_ns),
        "room_bytes": paging.room_bytes,
    }
    return {"paging": told}


def growing_section(frames: Frames) -> dict[str, Any]:
    """The fewest and most bytes of the pools, and how many keys gave way, where slots shrink."""
    if frames.kv_room is None:
        return {}
    slot_bytes, events = frames.ledger["slot_bytes"], frames.controller.event_columns
    kinds, made_room_for = np.asarray(events["kind"]), np.asarray(events["value"])
    trimmed = int(((kinds == Event.EVICT) & (made_room_for < 0)).sum())
    told = {"least_bytes": min(slot_bytes), "most_bytes": max(slot_bytes), "trimmed": trimmed}
    return {"growing": told}
