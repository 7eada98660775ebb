"""The phone's cache in plain Python, right or with one fault, and the logs of such engines.

It is the oracle of the fault search, and shares no code with the simulator. The rule is
`test_phone_trace`'s: the lookups of a batch refresh their experts. Then the batch's absent experts
enter. Then the least recent experts that are none of the batch's leave while the bytes exceed the
budget.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sim.checking.cache_walk import BUDGET, LOST, PINNED, UNREFRESHED, VICTIM
from sim.checking.fault_search import FLAG, Explanation
from sim.traces.residency_log import ResidencyLog

Key = tuple[int, int]
"""(site, expert)."""
KINDS = (
    "wrong victim",
    "not refreshed",
    "not admitted",
    "never evicted",
    "spared once",
    "flag",
    "budget",
)
TOLD_AS = {
    "wrong victim": VICTIM,
    "not refreshed": UNREFRESHED,
    "not admitted": LOST,
    "never evicted": PINNED,
    "budget": BUDGET,
    "flag": FLAG,
}


@dataclass(frozen=True)
class Wrong:
    """What goes wrong in a batch: ``key`` goes for ``other``, is not refreshed, or not kept;
    ``other`` stays.
    """

    kind: str
    batch: int = -1
    key: Key | None = None
    other: Key | None = None
    change_bytes: int = 0


RIGHT = Wrong("none")


@dataclass(frozen=True)
class Course:
    """What an engine did: a flag for each lookup; by batch its lookups, what was evicted and what
    it then held (of the right engine)."""

    flags: list[bool]
    batches: list[list[Key]]
    found: list[dict[Key, bool]]
    evicted: list[list[Key]]
    held: list[list[Key]]


def course(log: ResidencyLog, budget: int, wrong: Wrong = RIGHT) -> Course:
    """Every batch of the log through the phone's cache."""
    place = log.step * len(log.layers) + log.site
    cuts = [*np.flatnonzero(np.diff(place, prepend=-1)).tolist(), len(place)]
    keys: list[Key] = list(zip(log.site.tolist(), log.expert.tolist(), strict=True))
    cache: OrderedDict[Key, int] = OrderedDict()
    result = Course([], [], [], [], [])
    used = 0
    for batch, (start, stop) in enumerate(pairwise(cuts)):
        mine = keys[start:stop]
        found = {key: key in cache for key in mine}
        now = wrong if wrong.batch == batch else RIGHT
        for key in mine:
            if key not in cache:
                cache[key] = log.expert_bytes[key[0]]
                used += cache[key]
            if not (now.kind == "not refreshed" and key == now.key):
                cache.move_to_end(key)
        if now.kind == "not admitted" and now.key is not None:
            used -= cache.pop(now.key)
        limit = budget + (
            wrong.change_bytes if wrong.kind == "budget" and batch >= wrong.batch else 0
        )
        spared: set[Key | None] = {*mine}
        if now.kind in ("wrong victim", "spared once") or (
            wrong.kind == "never evicted" and batch >= wrong.batch
        ):
            spared.add(wrong.other)
        evicted: list[Key] = []
        while used > limit:
            goes = next(key for key in cache if key not in spared)
            if now.kind == "wrong victim" and now.key in cache:
                goes = now.key
            evicted.append(goes)
            used -= cache.pop(goes)
        result.flags.extend(found[key] for key in mine)
        result.batches.append(mine)
        result.found.append(found)
        result.evicted.append(evicted)
        result.held.append(list(cache) if wrong is RIGHT else [])
    return result


def draw(kind: str, right: Course, log: ResidencyLog, rng: np.random.Generator) -> Wrong:
    """A fault of this kind at random: in any batch where it can be."""
    batches = range(len(right.batches))
    if kind == "budget":
        size = int(rng.choice([-1, -1, -1, 1])) * max(log.expert_bytes)
        return Wrong(kind, int(rng.integers(len(batches))), change_bytes=size)
    while True:
        batch = int(rng.choice(batches))
        found, evicted = right.found[batch], right.evicted[batch]
        if kind in ("not refreshed", "not admitted"):
            keys = [key for key, there in found.items() if there is (kind == "not refreshed")]
            if keys:
                return Wrong(kind, batch, keys[int(rng.integers(len(keys)))])
        elif evicted:
            other = evicted[int(rng.integers(len(evicted)))]
            if kind != "wrong victim":
                return Wrong(kind, batch, other=other)
            held = [key for key in right.held[batch] if key not in found]
            return Wrong(kind, batch, held[int(rng.integers(len(held)))], other)


def log_of(log: ResidencyLog, flags: list[bool]) -> ResidencyLog:
    """The log as an engine that finds this writes it: what is absent is read, once a batch."""
    seen: set[tuple[int, int, int]] = set()
    read = []
    for step, site, expert, flag in zip(
        log.step.tolist(), log.site.tolist(), log.expert.tolist(), flags, strict=True
    ):
        read.append(0 if flag or (step, site, expert) in seen else log.expert_bytes[site])
        seen.add((step, site, expert))
    return replace(log, resident=np.array(flags), loaded_bytes=np.array(read))


def stay(right: Course, wrong: Wrong) -> tuple[int, int]:
    """The batches of the last lookup of the fault's expert at or before it, and of the first
    after it (or -1).
    """
    asked = [batch for batch, found in enumerate(right.found) if wrong.key in found]
    return (
        max((at for at in asked if at <= wrong.batch), default=-1),
        min((at for at in asked if at > wrong.batch), default=-1),
    )


@dataclass(frozen=True)
class Case:
    """A faulty engine's log; whether a flag of the fault's own expert tells of it."""

    wrong: Wrong
    log: ResidencyLog
    decidable: bool


def draw_case(kind: str, seed: int, right: Course, log: ResidencyLog, budget: int) -> Case | None:
    """The log of an engine with a fault of this kind; None if it is the right engine's."""
    rng = np.random.default_rng((KINDS.index(kind), seed))
    if kind == "flag":
        lookup = int(rng.integers(len(log)))
        flags = log.resident.copy()
        flags[lookup] = not flags[lookup]
        place = (int(log.site[lookup]), int(log.expert[lookup]))
        batch = int(np.flatnonzero([place in found for found in right.found])[0])
        return Case(Wrong(kind, batch, place), replace(log, resident=flags), True)
    wrong = draw(kind, right, log, rng)
    found = course(log, budget, wrong).flags
    changed = [i for i, (a, b) in enumerate(zip(found, right.flags, strict=True)) if a is not b]
    if not changed:
        return None
    about = wrong.key or wrong.other
    own = any((int(log.site[i]), int(log.expert[i])) == about for i in changed)
    return Case(wrong, log_of(log, found), own or kind == "budget")


def is_told(explanation: Explanation, wrong: Wrong, right: Course, units: int) -> bool:
    """The explanation is the fault: its kind, its expert and that one's lookups around it, and its
    batch among those that it leaves open."""
    if (
        explanation.kind != TOLD_AS[wrong.kind]
        or not explanation.first.tick <= wrong.batch <= explanation.last.tick
    ):
        return False
    if wrong.kind == "budget":
        return explanation.first.change_bytes == wrong.change_bytes

    def number(key: Key | None) -> int:
        assert key is not None
        return key[0] * units + key[1]

    if wrong.kind == "never evicted":
        return explanation.first.other == number(wrong.other)
    return explanation.first.key == number(wrong.key) and (
        explanation.since,
        explanation.shown,
    ) == stay(right, wrong)
