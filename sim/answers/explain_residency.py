"""Tells in sentences when and why a key came to its slot, and when and why it went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from sim.answers.explain_names import Names, capital, ms
from sim.results.run_log import Event, Move, RunLog, Stay

LOOKED_THROUGH = 64
"""How many later evictions are looked through for the next key that was evicted."""
ARRIVED = ("hit", "high_for_low", "low_for_high")
REFUSING = ("Popular", "Belady")
"""Cache policies that may refuse what was loaded on demand."""


def residency_story(run: RunLog, names: Names, key: int, row: dict[str, Any]) -> list[str]:
    """When and how the key came and went before the gate of this ``row`` of lookups."""
    tick = int(row["tick"])
    before = [stay for stay in run.stays_of(key) if stay.came is None or stay.came.tick < tick]
    if row["outcome"] in ARRIVED:
        return [_came(run, names, before[-1], row)] if before else []
    on_its_way = row["outcome"] in ("late", "promoted")
    last = before[-1] if before else Stay(None, None)
    by_selector = row["outcome"] == "reroute" or (
        row["outcome"] == "skip" and row["wanted"] is None
    )
    if by_selector and before and run.is_there(key, tick):
        if _may_have_left(run, last.came):
            return []
        there = "" if row["outcome"] == "reroute" else "A copy was there all the same. "
        return [f"{there}{_came(run, names, last, row)}"]
    # A key that is on its way has a stay of its own, which the story of its prefetch tells.
    coming = row["outcome"] == "late" and last.came is not None
    earlier = before[:-1] if coming else before
    came = earlier[-1].came if earlier and earlier[-1].gone is None else None
    if came is not None and came.end_ns <= row["gate_ns"]:
        return [_not_kept(run, names, came)]
    # What was on its way at the gate came and went after it, and is no part of what was before.
    past = [
        stay
        for stay in before
        if stay.gone is not None and (stay.came is None or stay.came.end_ns <= row["gate_ns"])
    ]
    if not past:
        # A need that was sent elsewhere or left out has no row that tells whether its key was
        # there from the start.
        if on_its_way or before or by_selector:
            return []
        return [
            f"{capital(names.key(key))} had never been there: it was not resident at the start,"
            " and nothing moved it."
        ]
    stay = past[-1]
    assert stay.gone is not None
    return [f"{_last_there(run, names, key, stay, tick)} {_evicted(run, names, key, stay.gone)}"]


def _may_have_left(run: RunLog, move: Move | None) -> bool:
    """Whether the key of ``move`` may have left from staging, which no row tells."""
    if move is None or not run.choice("loader", "staging_slots"):
        return False
    if move.kind == "prefetch":
        return move.outcome == "dropped" or run.choice("loader", "destination") != "pool"
    is_whole, spares = (
        run.mechanism("payload") == "Whole",
        run.choice("loader", "demand_evicts") == "unmasked",
    )
    return not is_whole or spares or run.mechanism("cache") in REFUSING


def _not_kept(run: RunLog, names: Names, move: Move) -> str:
    """The story of a key that came and left without an eviction: it was in staging."""
    came = (
        f"{capital(names.key(move.key))} had last come by a {move.kind} issued after"
        f" {names.gate(move.tick)}"
    )
    if move.kind == "prefetch" and move.outcome not in ("used", "late"):
        return f"{came}, into staging, and left it unused."
    is_whole = run.mechanism("payload").startswith("Whole")
    why = (
        f"{run.mechanism('cache')} did not keep it"
        if is_whole
        else "what had been moved of it was for that gate"
    )
    if is_whole and run.choice("loader", "demand_evicts") == "unmasked":
        why = "everything that could have made room was pinned or forecast"
    return f"{came}, and was served from staging: {why}."


def _came(run: RunLog, names: Names, stay: Stay, row: dict[str, Any]) -> str:
    if stay.came is None:
        return "It was there from the start, and had not been evicted."
    move = stay.came
    uses = [tick for tick in run.uses_of(move.key) if move.tick <= tick < row["tick"]]
    used = (
        f", and was used at {len(uses)} gate{'s' if len(uses) != 1 else ''} since" if uses else ""
    )
    return (
        f"It had come as a {move.kind} over {move.link}, issued after {names.gate(move.tick)},"
        f" arrived at {ms(move.end_ns)}, {ms(row['gate_ns'] - move.end_ns)} before this gate{used}."
    )


def _last_there(run: RunLog, names: Names, key: int, stay: Stay, tick: int) -> str:
    """How the key had come for its last stay, and when it was last used."""
    assert stay.gone is not None
    came = "from the start"
    if stay.came is not None:
        came = (
            f"since {ms(stay.came.end_ns)}, by a {stay.came.kind} issued after"
            f" {names.gate(stay.came.tick)}"
        )
    since = -1 if stay.came is None else stay.came.tick
    uses = [at for at in run.uses_of(key) if since <= at <= stay.gone.tick and at < tick]
    used = f"last used at {names.gate(uses[-1])}" if uses else "not used"
    return (
        f"{capital(names.key(key))} was last there {came}, {used}, until"
        f" {names.gate(stay.gone.tick)}."
    )


def _evicted(run: RunLog, names: Names, key: int, gone: Event) -> str:
    """What the key was evicted for, what was pinned then, and which other key went next."""
    kind = ""
    if gone.other is None:
        who = (
            "It was evicted to trim the pool to its capacity"
            if run.trims_at(gone.call)
            else "It was evicted; no row tells for whom"
        )
    else:
        moves = [move for move in run.moves_of(gone.other) if move.call <= gone.call]
        kind = moves[-1].kind if moves else "transfer"
        who = f"It was evicted for a {kind} of {names.key(gone.other)}"
    spares = kind == "prefetch" or run.choice("loader", "demand_evicts") == "unmasked"
    free = "neither pinned nor forecast" if spares else "not pinned, what was forecast coming last"
    parts = [f"{who}: {run.mechanism('cache')} ranked it lowest of what was {free}."]
    pinned = run.admitted_by(gone.tick, gone.call) if run.is_gate(gone.tick) else []
    if pinned:
        until = ", each until it was computed" if run.has_waves(gone.tick) else ""
        parts.append(f"Pinned then, as that gate's needs{until}: {names.keys(pinned)}.")
    if kept := _kept(run, key, gone, pinned):
        parts.append(
            f"Of what it kept then, the first to go was {names.key(kept[0])}, at"
            f" {names.gate(kept[1])}."
        )
    return " ".join(parts)


def _kept(run: RunLog, key: int, gone: Event, pinned: Sequence[int]) -> tuple[int, int] | None:
    """The key that was evicted next from the same pool, and its tick.

    Only keys that were there and not pinned when ``key`` went count.
    """
    later = run.decisions.filter((pl.col("call") > gone.call) & pl.col("victim").is_not_null())
    scope = run.choice("cache", "scope")
    period = run.plane if scope == "precision" else run.units if scope == "site" else None
    if period is not None:
        later = later.filter(pl.col("victim") // period == key // period)
    for victim, tick in later.head(LOOKED_THROUGH).select("victim", "tick").iter_rows():
        if (
            victim not in (key, gone.other, *pinned)
            and run.is_gate(gone.tick)
            and run.is_there(victim, gone.tick)
        ):
            return victim, tick
    return None


# ---- prefetches
