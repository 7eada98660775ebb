"""Tells in sentences what became of a prefetch, or why there was none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl

from sim.answers.explain_names import Names, capital, ms
from sim.answers.lookahead_ranks import Forecast
from sim.results.run_log import Event, Move, RunLog

PLURAL = {"demand": "demands", "prefetch": "prefetches", "dense": "dense blocks"}
BY_RANK = ("GateLookahead", "ConfidentLookahead")
"""Predictors whose forecasts are the highest ranks of the lookahead scores."""


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
    of_step, of_site, asked_ns = run.gate(queued.tick)
    ahead, what = int(row["site"]) - of_site, "site"
    if of_step != row["step"]:
        ahead, what = tick - queued.tick, "gate"
    start = (
        f"A prefetch was queued at {names.gate(queued.tick)}, {ahead}"
        f" {what}{'s' if ahead != 1 else ''} ahead"
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
    link = _link_for(run, queued, key)
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
    return f"{text}. It came {ms(gate_ns - move.end_ns)} before the gate asked."


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


def _link_for(run: RunLog, queued: Event, key: int) -> str:
    """The link that a queued prefetch waited for: that of the next transfer of its key, without one
    that of another transfer of the key, of its site, or of any.
    """
    own = run.moves_of(key)
    later = [move for move in own if move.call >= queued.call]
    site = key // run.units % run.sites
    of_site = [move for move in run.moves if move.key // run.units % run.sites == site]
    known = later or own or of_site or run.moves
    return _first_link(run, known[0]) if known else ""


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
    if run.choice("loader", "prefetch_budget") == "in_time" and not len(_queues(run)):
        return "No prefetch was queued in the whole run, whose loader.prefetch_budget is in_time."
    if run.ticks_of_step(step)[0] == row["tick"] and not _goes_round(run):
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
            parts.append(capital(f"{rank}, outside the {top_k} forecast."))
        else:
            tick = ticks[site - forecast.ahead]
            parts.append(
                capital(
                    f"{rank}, among those forecast, but"
                    f" {_not_queued(run, names, row, tick, forecast, foreseen)}."
                )
            )
    return " ".join(parts)


def _queues(run: RunLog) -> pl.DataFrame:
    """Every prefetch that was queued: its key, and the gate after which it was."""
    return run.decisions.filter(pl.col("kind") == "queue_prefetch").select("key", "tick")


def _goes_round(run: RunLog) -> bool:
    """Whether a gate of the run had prefetches queued for its own site's next gate, or for that of a
    site before it: its predictor looks past the end of a step.
    """
    of_gate = run.lookups.select("tick", here="site").unique()
    site = pl.col("key") // run.units % run.sites
    queued = _queues(run).join(of_gate, on="tick")
    return bool((queued.select(site <= pl.col("here"))).to_series().any())


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
                f" {row['wanted'] or 'a skip'} is wanted now"
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
