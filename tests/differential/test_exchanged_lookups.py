"""Lookups that may be written wrongly: the closed form against trying each in plain Python.

The logs are small: two sites whose experts differ in size, a prompt of three rows, then one token a
step. Every lookup with every other expert, and every two lookups in each other's place, go through
the phone's rule (`altered_phone.plain`).
"""

from __future__ import annotations

import inspect
import sys
from itertools import combinations
from types import ModuleType

import numpy as np
import pytest
from altered_phone import plain, with_experts
from faulty_phone import log_of

from sim.checking import exchanged_lookups
from sim.checking.cache_replay import Contract, Replayer
from sim.checking.cache_walk import CacheWalk
from sim.checking.exchanged_lookups import exchanged, swapped
from sim.checking.lookup_order import LookupOrder
from sim.traces.residency_log import ResidencyLog
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape

SITES, EXPERTS, TOP_K, PROMPT, DECODED = 2, 6, 2, 3, 14
SIZES = (10, 13)
BUDGET = 80
CONTRACT = Contract(
    "lru", (("initial", "empty"), ("recency", "rows"), ("retention", "after_batch"))
)


def small_log(seed: int) -> ResidencyLog:
    """A right engine's log of random routes."""
    shape = ModelShape("tiny", "none", SITES, EXPERTS, TOP_K, 8, 8)
    trace = synthesize(
        shape, tokens=DECODED, sequences=1, prompt_tokens=PROMPT, lookahead=0, seed=seed
    )
    cells = [
        (row, site, slot)
        for step in np.unique(trace.step)
        for site in range(SITES)
        for row in np.flatnonzero(trace.step == step)
        for slot in range(TOP_K)
    ]
    row, site, slot = np.array(cells, np.int64).T
    nothing = np.zeros(len(cells), np.int64)
    log = ResidencyLog(
        trace,
        np.arange(len(cells)),
        row,
        site,
        slot,
        trace.ids[row, site, slot].astype(np.int64),
        nothing > 0,
        nothing,
        0,
        (0, 1),
        SIZES,
    )
    return log_of(log, plain(log, lambda batch: BUDGET).tolist())


def harmed(log: ResidencyLog, how: str, rng: np.random.Generator) -> ResidencyLog:
    """With other flags, another expert, or two lookups exchanged."""
    if how.startswith("flags"):
        which = rng.choice(len(log), int(how[-1]), replace=False).tolist()
        return with_experts(log, {}, {lookup: not log.resident[lookup] for lookup in which})
    while True:
        here = int(rng.integers(len(log)))
        if how == "exchanged":
            other = int(rng.integers(EXPERTS))
            if other not in log.trace.ids[log.row[here], log.site[here]]:
                return with_experts(log, {here: other}, {})
        else:
            there = int(rng.integers(len(log)))
            if may_be_swapped(log, here, there):
                return in_each_others_place(log, here, there)


def may_be_swapped(log: ResidencyLog, here: int, there: int) -> bool:
    """Lookups of one site and slot, in two steps of one token, neither of whose rows chose the
    other's expert.
    """
    ids, site = log.trace.ids, log.site[here]
    return bool(
        site == log.site[there]
        and log.slot[here] == log.slot[there]
        and 0 < log.step[here] < log.step[there]
        and log.expert[here] not in ids[log.row[there], site]
        and log.expert[there] not in ids[log.row[here], site]
    )


def in_each_others_place(log: ResidencyLog, here: int, there: int) -> ResidencyLog:
    columns = (log.expert, log.resident, log.loaded_bytes)
    experts, flags, read = (
        {here: column[there].item(), there: column[here].item()} for column in columns
    )
    return with_experts(log, experts, flags, read)


def explains(log: ResidencyLog) -> bool:
    """Every flag is the contract's, and what was read is what the flags say."""
    return not log.at_odds.any() and bool((plain(log, lambda batch: BUDGET) == log.resident).all())


def tried(log: ResidencyLog) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """All lookups with all other experts, and all pairs, that explain the log."""
    alone = {
        (lookup, expert)
        for lookup in range(len(log))
        for expert in range(EXPERTS)
        if expert not in log.trace.ids[log.row[lookup], log.site[lookup]]
        and explains(with_experts(log, {lookup: expert}, {}))
    }
    pairs = {
        (here, there)
        for here, there in combinations(range(len(log)), 2)
        if may_be_swapped(log, here, there) and explains(in_each_others_place(log, here, there))
    }
    return alone, pairs


def told(log: ResidencyLog) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    replayer = Replayer(log)
    order = LookupOrder(CacheWalk(replayer, CONTRACT, BUDGET, replayer.replay(CONTRACT, BUDGET)))
    alone = {(one.lookup, expert) for one in exchanged(order) for expert in one.experts}
    return alone, {(pair.lookup, pair.other) for pair in swapped(order)}


def check(seed: int, how: str, tells_bytes: bool) -> tuple[int, int]:
    """How many lookups and pairs explain one harmed log; they are the same both ways."""
    whole = small_log(seed)
    if not tells_bytes:
        whole = with_experts(whole, {}, {}, dict.fromkeys(range(len(whole)), 0))
    log = harmed(whole, how, np.random.default_rng(seed))
    if (plain(log, lambda batch: BUDGET) == log.resident).all():
        assert told(log) == (set(), set()), "nothing deviates"
        return 0, 0
    alone, pairs = tried(log)
    assert told(log) == (alone, pairs), (seed, how, tells_bytes)
    return len(alone), len(pairs)


# Of 400 logs each those that between them notice every comparison of the closed form turned round
# or moved by one, and every part of a condition left out, that any of them notices. How, and
# whether what was read is told.
TELLING = {
    ("exchanged", True): (0, 2, 7, 11, 33, 47, 48, 90, 98, 107, 152, 335, 370),
    ("exchanged", False): (11, 160),
    ("swapped", True): (12, 14, 18, 24, 25, 30, 32, 34),
    ("swapped", False): (1,),
    ("flags 1", True): (4,),
    ("flags 1", False): (9, 11, 12, 21, 36),
    ("flags 2", True): (0,),
    ("flags 2", False): (0,),
}


@pytest.mark.parametrize(("how", "tells_bytes"), TELLING, ids=lambda value: str(value))
def test_what_is_told_is_all_that_explains_the_log(how: str, tells_bytes: bool) -> None:
    found = [check(seed, how, tells_bytes) for seed in TELLING[how, tells_bytes]]
    if how == "exchanged":
        assert all(alone for alone, _ in found)
    if how == "swapped":
        assert all(pairs for _, pairs in found)


DEFECTS = {
    "an older expert counts as younger": (
        "more = (site.before < older) &",
        "more = (site.before > older) &",
        ("exchanged", True, 48),
    ),
    "what is named since counts as not": (
        "more = site.after_own[:, None] < site",
        "more = site.after_own[:, None] >= site",
        ("exchanged", True, 48),
    ),
    "what was read may contradict the flags": (
        "good &= _reads_agree(site)",
        "pass",
        ("exchanged", True, 11),
    ),
    "an exchange beyond the frontier": (
        "good &= right\n\n\ndef _changed",
        "pass\n\n\ndef _changed",
        ("flags 1", False, 9),
    ),
    "pairs beyond the frontier": ("good &= self._right(near, sign)", "pass", ("swapped", True, 24)),
}
"""Of the closed form: a line, what it is made into, and the log that must notice."""


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_closed_form_is_noticed(
    monkeypatch: pytest.MonkeyPatch, defect: str
) -> None:
    line, instead, (how, tells_bytes, seed) = DEFECTS[defect]
    source = inspect.getsource(exchanged_lookups)
    assert source.count(line) == 1
    edited = ModuleType("edited")
    monkeypatch.setitem(sys.modules, edited.__name__, edited)
    exec(compile(source.replace(line, instead), edited.__name__, "exec"), vars(edited))
    assert seed in TELLING[how, tells_bytes]
    check(seed, how, tells_bytes)
    monkeypatch.setitem(globals(), "exchanged", edited.exchanged)
    monkeypatch.setitem(globals(), "swapped", edited.swapped)
    with pytest.raises(AssertionError):
        check(seed, how, tells_bytes)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["exchanged", "swapped", "flags 1", "flags 2"])
def test_it_is_all_in_many_logs(how: str) -> None:
    for seed in range(100, 160):
        check(seed, how, bool(seed % 2))
