"""Altered copies of a phone's residency log, and where each first contradicts the phone's rule.

An alteration changes a flag, an expert, two lookups, or all flags since another budget holds. The
rule in plain Python (`test_phone_trace` has it in words) says at which lookup an altered log first
contradicts the contract, if at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from faulty_phone import log_of
from numpy.typing import NDArray

from sim.checking.cache_replay import Contract
from sim.traces.residency_log import ResidencyLog

ROUTES = (
    Path(__file__).parents[2] / ".." / "shared" / "traces" / "phone_qwen3_30b" / "qwen.route.csv"
)
BUDGET = 4000 << 20
CONTRACT = Contract(
    "lru", (("initial", "empty"), ("recency", "rows"), ("retention", "after_batch"))
)
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Altered:
    """``lookups`` of the log were altered; ``first``: the lookup that first contradicts the
    contract, or None.
    """

    kind: str
    log: ResidencyLog
    lookups: tuple[int, ...]
    first: int | None


def first_steps(log: ResidencyLog, decoded: int) -> ResidencyLog:
    """The log up to so many decoded tokens."""
    rows, lookups = log.trace.step <= decoded, log.step <= decoded
    columns = ("step", "phase", "sequence", "position", "token", "valid", "ids", "weights")
    trace = replace(log.trace, **{name: getattr(log.trace, name)[rows] for name in columns})
    told = ("line", "row", "site", "slot", "expert", "resident", "loaded_bytes")
    return replace(log, trace=trace, **{name: getattr(log, name)[lookups] for name in told})


def plain(log: ResidencyLog, budget_of: Callable[[int], int] = lambda batch: BUDGET) -> Flags:
    """The phone's rule in plain Python: each lookup's flag, with the budget that holds after
    each batch.
    """
    sites = len(log.layers)
    batch_of = log.step * sites + log.site
    starts = np.flatnonzero(np.diff(batch_of, prepend=-1)).tolist()
    keys = (log.site * 1000 + log.expert).tolist()
    sizes, site_of = log.expert_bytes, log.site.tolist()
    cache: OrderedDict[int, int] = OrderedDict()
    used, flags = 0, []
    for batch, (start, stop) in enumerate(zip(starts, [*starts[1:], len(keys)], strict=True)):
        mine = keys[start:stop]
        flags += [key in cache for key in mine]
        for key in mine:
            if key not in cache:
                cache[key] = sizes[site_of[start]]
                used += cache[key]
            cache.move_to_end(key)
        spared, budget = set(mine), budget_of(batch)
        for key in [key for key in cache if key not in spared] if used > budget else ():
            if used <= budget:
                break
            used -= cache.pop(key)
    return np.array(flags)


def contradiction(log: ResidencyLog) -> int | None:
    found = np.flatnonzero(plain(log) != log.resident)
    return int(found[0]) if len(found) else None


def with_experts(
    log: ResidencyLog,
    experts: dict[int, int],
    resident: dict[int, bool],
    loaded_bytes: dict[int, int] | None = None,
) -> ResidencyLog:
    """Other experts (and flags, and bytes) at some lookups, in the routes as in the residency
    log.
    """
    expert, flags, ids, loaded = (
        log.expert.copy(),
        log.resident.copy(),
        log.trace.ids.copy(),
        log.loaded_bytes.copy(),
    )
    for lookup, other in experts.items():
        expert[lookup] = other
        ids[log.row[lookup], log.site[lookup], log.slot[lookup]] = other
    for lookup, flag in resident.items():
        flags[lookup] = flag
    for lookup, read in (loaded_bytes or {}).items():
        loaded[lookup] = read
    return replace(
        log, expert=expert, resident=flags, loaded_bytes=loaded, trace=replace(log.trace, ids=ids)
    )


def flip(log: ResidencyLog, rng: np.random.Generator) -> Altered:
    """One flag is the other."""
    lookup = int(rng.integers(len(log)))
    altered = with_experts(log, {}, {lookup: not log.resident[lookup]})
    return Altered("flag flipped", altered, (lookup,), contradiction(altered))


def exchange(log: ResidencyLog, rng: np.random.Generator) -> Altered:
    """One lookup has the id of an expert that its token did not choose there; the flag stays,
    and what was read.
    """
    lookup = int(rng.integers(len(log)))
    chosen = log.trace.ids[log.row[lookup], log.site[lookup]]
    others = np.setdiff1d(np.arange(log.trace.header.model.experts), chosen)
    altered = with_experts(log, {lookup: int(rng.choice(others))}, {})
    return Altered("expert exchanged", altered, (lookup,), contradiction(altered))


def move(log: ResidencyLog, rng: np.random.Generator) -> Altered:
    """A lookup stands, with its flag and what was read, with another decoded token, and that
    token's of the layer and slot with its."""
    prompt = int(np.flatnonzero(log.step == 0)[-1]) + 1
    while True:
        here = int(rng.integers(prompt, len(log)))
        alike = np.flatnonzero(
            (log.site == log.site[here]) & (log.slot == log.slot[here]) & (log.step > 0)
        )
        there = int(rng.choice(alike[alike != here]))
        ids, site = log.trace.ids, log.site[here]
        a, b = int(log.expert[here]), int(log.expert[there])
        if b not in ids[log.row[here], site] and a not in ids[log.row[there], site]:
            break
    flags = {here: bool(log.resident[there]), there: bool(log.resident[here])}
    read = {here: int(log.loaded_bytes[there]), there: int(log.loaded_bytes[here])}
    altered = with_experts(log, {here: b, there: a}, flags, read)
    return Altered("lookup moved", altered, (here, there), contradiction(altered))


def resize(log: ResidencyLog, rng: np.random.Generator) -> Altered:
    """From some batch on the engine's budget is one expert more, or less: its flags and reads
    are what it finds.
    """
    batches = len(np.unique(log.step * len(log.layers) + log.site))
    since, change = int(rng.integers(batches)), int(rng.choice([-1, 1])) * max(log.expert_bytes)
    altered = log_of(log, plain(log, lambda batch: BUDGET + change * (batch >= since)).tolist())
    changed = np.flatnonzero(altered.resident != log.resident)
    return Altered("budget changed", altered, tuple(changed[:1].tolist()), contradiction(altered))


ALTERATIONS = (flip, exchange, move, resize)
