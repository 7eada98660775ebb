"""Tells a key's past in sentences: when and why it came and went, and why it was not prefetched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl

from sim.answers.lookahead_ranks import Forecast
from sim.results.run_log import Event, Move, RunLog, Stay

LOOKED_THROUGH = 64
"""How many later evictions are looked through for the next key that was evicted."""
SHOWN = 4
"""How many keys a list names before it only counts."""
PLURAL = {"demand": "demands", "prefetch": "prefetches", "dense": "dense blocks"}
ARRIVED = ("hit", "high_for_low", "low_for_high")
REFUSING = ("Popular", "Belady")
"""Cache policies that may refuse what was loaded on demand."""
BY_RANK = ("GateLookahead", "ConfidentLookahead")
"""Predictors whose forecasts are the highest ranks of the lookahead scores."""


def ms(duration_ns: int) -> str:
    """Nanoseconds as text in ms."""
    return f"{duration_ns / 1e6:.3f} ms"


class Names:
    """Names sites, gates and keys; ``layers`` has each site's layer, if a trace tells it."""

    def __init__(self, run: RunLog, layers: Sequence[int] | None) -> None:
        self._run, self._layers = run, layers

    def site(self, site: int) -> str:
        if self._layers is None:
            return f"site {site}"
        layer = self._layers[site]
        return f"layer {layer}" if layer == site else f"layer {layer} (site {site})"

    def gate(self, tick: int) -> str:
        if not self._run.is_gate(tick):
            return f"tick {tick}" if tick >= 0 else "the start"
        step, site, _ = self._run.gate(tick)
        return f"tick {tick} (step {step}, {self.site(site)})"

    def key(self, key: int) -> str:
        """``layer 3 expert 5``, with its precision where several are in play."""
        run = self._run
        precision, site, unit = key // run.plane, key // run.units % run.sites, key % run.units
        if unit == run.experts:
            return f"the dense block of {self.site(site)}"
        names = run.precision_names
        which = (
            f" {names.get(precision, f'at precision {precision}')}"
            if len(names) > 1 or precision
            else ""
        )
        return f"{self.site(site)} expert {unit}{which}"

    def keys(self, keys: Sequence[int]) -> str:
        shown = ", ".join(self.key(key) for key in keys[:SHOWN])
        return shown + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")


# ---- residency


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
    if (
        last.came is not None
        and last.gone is None
        and last.came.end_ns <= row["gate_ns"]
        and not on_its_way
    ):
        return [_not_kept(run, names, last.came)]
    past = [stay for stay in before if stay.gone is not None]
    if not past:
        # A need that was sent elsewhere or left out has no row that tells whether its key was
        # there from the start.
        if on_its_way or before or by_selector:
            return []
        return [
            f"{_capital(names.key(key))} had never been there: it was not resident at the start,"
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
        f"{_capital(names.key(move.key))} had last come by a {move.kind} issued after"
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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


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
        f"{_capital(names.key(key))} was last there {came}, {used}, until"
        f" {names.gate(stay.gone.tick)}."
    )


def _evicted(run: RunLog, names: Names, key: int, gone: Event) -> str:
    """What the key was evicted for, what was pinned then, and which other key went next."""
    kind = ""
    if gone.other is None:
        who = (
            "It was evicted to trim the pool to its capacity"
            if run.choice("loader", "retention") == "after_batch"
            else "It was evicted; no row tells for whom"
        )
    else:
        moves = [move for move in run.moves_of(gone.other) if move.call <= gone.call]
        kind = moves[-1].kind if moves else "transfer"
        who = f"It was evicted for a {kind} of {names.key(gone.other)}"
    spares = kind == "prefetch" or run.choice("loader", "demand_evicts") == "unmasked"
    free = "neither pinned nor forecast" if spares else "not pinned, what was forecast coming last"
    parts = [f"{who}: {run.mechanism('cache')} ranked it lowest of what was {free}."]
    pinned = [k for k, _ in run.needs_at(gone.tick) if k >= 0] if run.is_gate(gone.tick) else []
    if pinned:
        parts.append(f"Pinned then, as that gate's needs: {names.keys(pinned)}.")
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


def prefetch_story(
    run: RunLog, names: Names, key: int, row: dict[str, Any], foreseen: Sequence[Forecast] | None
) -> list[str]:
    """What became of the prefetch for this need, or why there was none."""
    tick = int(row["tick"])
    step, site = int(row["step"]), int(row["site"])
    # A prefetch queued before the site's previous gate was queued for that gate.
    since = run.last_gate(site, tick)
    queued = [
        e for e in run.events_of(key) if e.kind == "queue_prefetch" and since <= e.tick < tick
    ]
    stories = [_of_queued(run, names, key, queued[-1], row)] if queued else []
    if row["outcome"] == "late" and not queued:
        moves = [move for move in run.moves_of(key) if move.tick < tick]
        stories += [_waiting(run, names, moves[-1], row)] if moves else []
    if row["outcome"] == "miss":
        demands = [
            move for move in run.moves_of(key) if move.kind == "demand" and move.tick >= tick
        ]
        stories += [_demand(run, names, demands[0])] if demands else []
    if row["outcome"] in ("miss", "cpu", "skip") and not queued:
        stories.append(_why_none(run, names, row, step, site, foreseen))
    return stories


def _of_queued(run: RunLog, names: Names, key: int, queued: Event, row: dict[str, Any]) -> str:
    tick = int(row["tick"])
    asked_ns = run.gate(queued.tick)[2]
    ahead = int(row["site"]) - run.gate(queued.tick)[1]
    start = (
        f"A prefetch was queued at {names.gate(queued.tick)}, {ahead}"
        f" site{'s' if ahead != 1 else ''} ahead"
    )
    after = [
        e
        for e in run.events_of(key)
        if e.call >= queued.call and e.tick <= tick and e.kind != "queue_prefetch"
    ]
    issued = next((e for e in after if e.kind == "issue"), None)
    if issued is not None and row["outcome"] != "promoted":
        move = next(move for move in run.moves_of(key) if move.call == issued.call)
        if move.kind == "prefetch":
            return f"{start}. {_waiting(run, names, move, row)}"
    given_up = next((e for e in after if e.kind in ("cancel", "drop_no_slot")), None)
    link = run.moves[0].link if run.moves else ""
    until_ns = int(row["gate_ns"])
    meanwhile = _served(run, names, link, asked_ns, until_ns)
    if row["outcome"] == "promoted":
        return (
            f"{start}, and had not started {ms(until_ns - asked_ns)} later, when it became a"
            f" demand; {meanwhile}."
        )
    if given_up is None:
        return f"{start}, and nothing more is told of it; {meanwhile}."
    if given_up.kind == "drop_no_slot":
        return (
            f"{start}, and dropped after {names.gate(given_up.tick)}: everything that could have"
            " made room was pinned or forecast."
        )
    rule = (
        "a newer forecast replaced the queue"
        if run.choice("loader", "queue") == "replace"
        else (
            "its site's gate did not ask for this variant"
            if given_up.tick == tick
            else "a gate overtook it"
        )
    )
    return f"{start}, and cancelled at {names.gate(given_up.tick)} ({rule}); {meanwhile}."


def _waiting(run: RunLog, names: Names, move: Move, row: dict[str, Any]) -> str:
    """When a transfer that was issued before the gate began and ended, and what it waited for."""
    gate_ns = int(row["gate_ns"])
    waited = move.start_ns - move.queued_ns
    link = _first_link(run, move)
    text = (
        f"The {move.kind} waited {ms(waited)} for {link} and moved from {ms(move.start_ns)} to"
        f" {ms(move.end_ns)}"
    )
    if waited:
        text += f"; {_served(run, names, link, move.queued_ns, move.start_ns)}"
    if move.end_ns > gate_ns:
        return f"{text}. It came {ms(move.end_ns - gate_ns)} after the gate asked."
    return f"{text}, {ms(gate_ns - move.end_ns)} before the gate asked."


def _demand(run: RunLog, names: Names, move: Move) -> str:
    waited, link = move.start_ns - move.queued_ns, _first_link(run, move)
    text = f"The demand waited {ms(waited)} for {link} and took {ms(move.end_ns - move.start_ns)}"
    return (
        f"{text}; {_served(run, names, link, move.queued_ns, move.start_ns)}."
        if waited
        else f"{text}."
    )


def _first_link(run: RunLog, move: Move) -> str:
    return str(
        run.transfers.filter((pl.col("number") == move.number) & (pl.col("hop") == 0))["link"][0]
    )


def _served(run: RunLog, names: Names, link: str, start_ns: int, end_ns: int) -> str:
    """What ``link`` served from ``start_ns`` to ``end_ns``, in words."""
    served = run.served_between(link, start_ns, end_ns)
    if not served:
        return f"{link} served nothing meanwhile"
    kinds = Counter(kind for _, kind, _ in served)
    count = " and ".join(
        f"{number} {PLURAL[kind] if number > 1 else kind}" for kind, number in sorted(kinds.items())
    )
    busy = sum(inside for _, _, inside in served)
    return (
        f"meanwhile {link} served {count} ({ms(busy)}): {names.keys([key for key, _, _ in served])}"
    )


def _why_none(
    run: RunLog,
    names: Names,
    row: dict[str, Any],
    step: int,
    site: int,
    foreseen: Sequence[Forecast] | None,
) -> str:
    """Why no prefetch was queued for this need in its step."""
    predictor = run.mechanism("predictor")
    if predictor == "NoPrediction":
        return "No prefetch was queued: the run has no predictor."
    depth = run.choice("predictor", "sites")
    if run.ticks_of_step(step)[0] == row["tick"]:
        return (
            "No prefetch was queued: its gate is the step's first, and lookahead stays inside a"
            " step."
        )
    if row["phase"] == "prefill" and run.choice("predictor", "prompts") is False:
        return "No prefetch was queued: the system forecasts decoded tokens only."
    if predictor not in BY_RANK:
        return (
            f"No prefetch was queued for it in this step; what {predictor} forecast no row tells."
        )
    if foreseen is None or not foreseen:
        what = (
            "the trace cannot be read"
            if foreseen is None
            else "the trace has no lookahead scores for this gate"
        )
        return f"No prefetch was queued; {what}, so what {predictor} forecast is not told."
    parts = ["No prefetch was queued for it in this step."]
    top_k = run.choice("model", "top_k")
    ticks = dict(run.lookups.filter(pl.col("step") == step).select("site", "tick").unique().rows())
    for forecast in foreseen:
        if type(depth) is int and forecast.ahead > depth:
            continue
        rows = "" if forecast.rows == 1 else f" at best (of {forecast.rows} tokens)"
        where = (
            f"{forecast.ahead} site{'s' if forecast.ahead > 1 else ''} before"
            f" ({names.site(site - forecast.ahead)})"
        )
        rank = f"{where} the lookahead ranked it {forecast.rank} of {run.experts}{rows}"
        if forecast.rank is None:
            rank = (
                f"{where} {forecast.chosen_by or 'none'} of the prompt's {forecast.rows} tokens"
                " named it"
            )
        if not forecast.chosen_by:
            parts.append(_capital(f"{rank}, outside the {top_k} forecast."))
        else:
            tick = ticks[site - forecast.ahead]
            parts.append(
                _capital(
                    f"{rank}, among those forecast, but"
                    f" {_not_queued(run, names, row, tick, forecast, foreseen)}."
                )
            )
    return " ".join(parts)


def _not_queued(
    run: RunLog,
    names: Names,
    row: dict[str, Any],
    tick: int,
    forecast: Forecast,
    foreseen: Sequence[Forecast],
) -> str:
    """Why an expert that was forecast at gate ``tick`` was not queued there."""
    site, expert = int(row["site"]), int(row["expert"])
    planes = sorted(run.precision_names) or [0]
    keys = [plane * run.plane + site * run.units + expert for plane in planes]
    there = [key for key in keys if run.is_there(key, tick)]
    if there:
        return f"{names.key(there[0])} was there then"
    at = run.gate(tick)[2]
    moving = [
        move.key for key in keys for move in run.moves_of(key) if move.queued_ns <= at < move.end_ns
    ]
    if moving:
        return f"{names.key(moving[0])} was on its way then"
    since = run.last_gate(site, int(row["tick"]))
    for key in keys:
        if earlier := [
            e for e in run.events_of(key) if e.kind == "queue_prefetch" and since <= e.tick <= tick
        ]:
            return (
                f"{names.key(key)} was queued, at {names.gate(earlier[-1].tick)}, where"
                f" {row['wanted']} is wanted now"
            )
    queued = run.decisions.filter((pl.col("kind") == "queue_prefetch") & (pl.col("tick") == tick))[
        "key"
    ].to_list()
    nearer = [key for key in queued if key // run.units % run.sites < site]
    if run.choice("loader", "depth") == "first_missing":
        if nearer:
            return (
                f"the walk had stopped at a nearer site, where {names.key(nearer[0])} was missing"
            )
        if stopped := _on_its_way(run, tick, site, planes):
            return (
                f"the walk had stopped at a nearer site, where {names.key(stopped)} was still on"
                " its way"
            )
    budget = run.choice("loader", "prefetch_budget")
    if type(budget) is int and len(queued) >= budget:
        return (
            f"the budget of {budget} was used up ({names.keys(queued)})"
            if budget
            else "the budget is 0"
        )
    return "no row tells why (the selector may have left it out)"


def _on_its_way(run: RunLog, tick: int, site: int, planes: Sequence[int]) -> int | None:
    """A key of a site between the gate's site and ``site`` that was queued or moving then."""
    _, here, at = run.gate(tick)
    for move in run.moves:
        of = move.key // run.units % run.sites
        if (
            here < of < site
            and move.queued_ns <= at < move.end_ns
            and move.key // run.plane in planes
        ):
            return move.key
    return None
