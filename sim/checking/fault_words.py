"""Puts faults that explain a log into sentences: what went wrong, with which expert, when."""

from __future__ import annotations

from collections.abc import Iterator

from sim.checking.cache_replay import Replayer
from sim.checking.cache_walk import BUDGET, LOST, PINNED, UNREFRESHED, VICTIM, CacheWalk
from sim.checking.fault_search import FLAG, Explanation, Found
from sim.traces.residency_log import ResidencyLog


def layer_name(log: ResidencyLog, site: int) -> str:
    """A layer by its number in the model, and by its site's number where that differs."""
    layer = log.layers[site]
    return f"layer {layer}" if layer == site else f"layer {layer} (site {site})"


def step_of(replayer: Replayer, tick: int) -> int:
    """The trace's number of a gate's step."""
    workload = replayer.workload
    return int(
        replayer.log.trace.step[workload.row[workload.steps[int(workload.gate_step[tick])].start]]
    )


def where(replayer: Replayer, tick: int) -> str:
    """A gate in words: its step and layer."""
    return (
        f"step {step_of(replayer, tick)},"
        f" {layer_name(replayer.log, int(replayer.workload.gate_site[tick]))}"
    )


def name(replayer: Replayer, key: int) -> str:
    """An expert in words: its id and layer."""
    site, expert = divmod(key, replayer.units)
    return f"expert {expert} of {layer_name(replayer.log, site)}"


def tell_faults(walk: CacheWalk, found: Found) -> Iterator[str]:
    """Lines that name each single fault that explains every flag of the log."""
    if not found.explanations:
        yield "no single fault of the engine or the log that was tried explains every flag"
    elif len(found.explanations) == 1:
        yield "one fault explains every flag:"
    else:
        yield (
            f"each of {len(found.explanations)} faults explains every flag; this log cannot tell"
            " them apart:"
        )
    for explanation in found.explanations:
        yield f"  {tell(walk, explanation)}"
    if found.untried:
        yield (
            f"{found.untried} more experts were there and not asked for since: that any of them"
            " went too soon shows nowhere else, and was not tried"
        )
    if not found.is_complete:
        yield "not every fault was tried: the search has a limit"


def tell(walk: CacheWalk, explanation: Explanation) -> str:
    """One explanation as a sentence, without the full stop."""
    replayer, first, last = walk.replayer, explanation.first, explanation.last
    log = replayer.log
    at = f"at {where(replayer, first.tick)}"
    if first.tick < last.tick:
        at = f"once from {where(replayer, first.tick)} to {where(replayer, last.tick)}"
    key = name(replayer, first.key) if first.key >= 0 else ""
    if explanation.kind == FLAG:
        read = "what was read says the contrary" if log.tells_bytes else "nothing else is wrong"
        row = log.line[walk.lookup(first.tick, first.key)]
        return (
            f"flag: row {row}, {where(replayer, first.tick)}, {key}: the flag alone is wrong"
            f" ({read})"
        )
    if explanation.kind == VICTIM:
        instead = (
            f"instead of {name(replayer, first.other)}"
            if first == last
            else "instead of what the contract chose"
        )
        if first.key < 0:
            return f"victim: {at} {name(replayer, first.other)} was spared and the next one went"
        return f"victim: {at} {key} was evicted {instead}"
    if explanation.kind == UNREFRESHED:
        return f"recency: {at} {key} was asked for and the policy not told"
    if explanation.kind == LOST:
        loaded = first == last and key in _loaded(walk, first.tick)
        return (
            f"admission: {at} {key} was loaded and not kept"
            if loaded
            else f"dropped: {at} {key}, for nobody"
        )
    if explanation.kind == PINNED:
        return (
            f"pin: {at.replace('once', 'some time')} {name(replayer, first.other)} ceased to be"
            " evicted"
        )
    assert explanation.kind == BUDGET
    since = f"from {where(replayer, first.tick)}"
    if first.tick < last.tick:
        since = f"beginning between {where(replayer, first.tick)} and {where(replayer, last.tick)},"
    change = first.change_bytes
    return f"budget: {since} the engine held {abs(change)} B {'more' if change > 0 else 'less'}"


def _loaded(walk: CacheWalk, tick: int) -> list[str]:
    return [
        name(walk.replayer, key)
        for key, there in zip(walk.keys[tick], walk.found[tick], strict=True)
        if not there
    ]
