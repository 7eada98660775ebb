"""Searches for single faults, of an engine's cache or of its log, that explain every flag of a log.

1. Evidence proposes faults. The first needs whose flags differ from the contract name the experts
   that the engine may have dropped or kept. What the contract did to these experts says when.
2. A walk with the fault decides: a fault is an explanation only if its walk gives every flag.
3. Where a fault may have happened in any of several batches, the first and the last of them are
   found by halving. Both have been walked; that the batches between them explain the log, too, is
   inferred.

docs/check.md has the kinds of faults and how often they are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sim.checking.cache_walk import (
    BUDGET,
    LOST,
    PINNED,
    UNREFRESHED,
    VICTIM,
    CacheWalk,
    Difference,
    Fault,
)
from sim.policies.recency import LRU

FLAG = "flag"
"""The kind of fault that is the log's alone: a flag written wrongly."""
MOST_NEEDS = 6_000_000
"""The most needs that one search walks through, over all faults.

It is a count, not a time, so that a search ends alike on every machine.
"""
SUSPECTS = 3
"""How many missing experts, and how many unexpectedly resident ones, are suspected."""
PLACES = 9
"""How many batches between are tried where neither the first nor the last explains the log."""
UNSEEN = 6
"""How many experts are tried as the one that was evicted and never asked for again."""
REFRESHES = 4
"""How many of an expert's latest lookups are tried as one that did not refresh it."""


@dataclass(frozen=True)
class Explanation:
    """A fault that gives every flag of the log.

    It may have happened at any time from ``first`` to ``last``, which differ only in their batch
    (and in the expert that they spare). ``shown`` is the batch whose flag shows the fault;
    ``since`` is the batch of the expert's lookup before that (-1: none).
    """

    kind: str
    first: Fault
    last: Fault
    since: int
    shown: int


@dataclass(frozen=True)
class Found:
    """The result of a search.

    ``explanations`` stand by the number of possible batches, fewest first. ``is_complete`` says
    whether the search tried everything before `MOST_NEEDS` ran out. ``untried`` counts experts that
    may equally have been evicted too soon, because they were there and never asked for again.
    """

    explanations: tuple[Explanation, ...]
    is_complete: bool
    untried: int = 0


class _Spent(Exception):
    """The search has walked through as many needs as it may."""


class FaultSearch:
    """The search for one log, under one contract that does not explain every flag."""

    def __init__(self, walk: CacheWalk, most_needs: int = MOST_NEEDS) -> None:
        self._walk, self._most = walk, walk.walked + most_needs
        self._differences = list(walk.differences())
        replayer, first = walk.replayer, int(walk.wrong[0])
        # A batch's lookups of one expert may have different flags; the walk takes the first one.
        self._shown = Difference(
            int(replayer.tick[first]), int(replayer.keys[first]), not replayer.log.resident[first]
        )
        self._asked: dict[int, list[int]] = {}
        for tick, keys in enumerate(walk.keys):
            for key in keys:
                self._asked.setdefault(key, []).append(tick)
        self._gone: dict[int, list[int]] = {}
        self._untried = 0
        for tick, key in walk.evictions:
            self._gone.setdefault(key, []).append(tick)

    def search(self) -> Found:
        """Every explanation that the evidence proposes."""
        found: list[Explanation] = []
        families = [
            self._lost,
            self._kept,
            self._unseen,
            self._pinned,
            self._budgets,
        ]
        if self._flag_alone():
            fault = Fault(FLAG, self._shown.tick, self._shown.key)
            found.append(
                Explanation(FLAG, fault, fault, self._since(self._shown), self._shown.tick)
            )
            if self._walk.replayer.log.tells_bytes:
                return Found(tuple(found), True)
        if not self._differences or self._differences[0].key != self._shown.key:
            return Found(tuple(found), True)
        try:
            for family in families:
                for explanation in family():
                    if explanation not in found:
                        found.append(explanation)
        except _Spent:
            return Found(_sorted(found), False, self._untried)
        return Found(_sorted(found), True, self._untried)

    def _flag_alone(self) -> bool:
        """Whether only one expert's flags in one batch are wrong, and bytes do not confirm them.

        What was read for the expert contradicts the flags, or the log does not tell what was read.
        """
        replayer, wrong = self._walk.replayer, self._walk.wrong
        if (
            len(set(zip(replayer.tick[wrong].tolist(), replayer.keys[wrong].tolist(), strict=True)))
            > 1
        ):
            return False
        return not replayer.log.tells_bytes or bool(replayer.log.at_odds[wrong].all())

    # ---- evidence

    def _suspects(self, found: bool) -> Iterator[Difference]:
        """The first differences of `SUSPECTS` experts that the contract has and the log lacks.

        Without ``found`` those that the log has and the contract lacks.
        """
        keys: set[int] = set()
        for difference in self._differences:
            if difference.found is found and difference.key not in keys:
                keys.add(difference.key)
                yield difference
                if len(keys) == SUSPECTS:
                    return

    def _asked_before(self, key: int, tick: int) -> list[int]:
        return [at for at in self._asked.get(key, ()) if at < tick]

    def _since(self, difference: Difference) -> int:
        asked = self._asked_before(difference.key, difference.tick)
        return asked[-1] if asked else -1

    def _may_go_for(self, key: int, other: int) -> bool:
        """Whether ``key`` may be evicted instead of ``other``: only within one pool."""
        pool_of = self._walk.pool_of
        return key != other and pool_of[key] == pool_of[other]

    def _explains(self, fault: Fault) -> bool:
        if self._walk.walked > self._most:
            raise _Spent
        return self._walk.first_difference(fault) is None

    def _span(self, faults: Sequence[Fault]) -> tuple[Fault, Fault] | None:
        """The first and the last of ``faults`` that explain the log; None if none tried does.

        It is assumed that those that explain it follow each other without a gap.
        """
        if not faults:
            return None
        last = len(faults) - 1
        known: dict[int, bool] = {}
        for place in (last, 0, *(last * part // (PLACES + 1) for part in range(1, PLACES + 1))):
            if place not in known:
                known[place] = self._explains(faults[place])
            if known[place]:
                break
        else:
            return None
        low = self._edge(place, max((p for p in known if p < place), default=-1), faults)
        high = self._edge(place, min((p for p in known if p > place), default=last + 1), faults)
        return faults[low], faults[high]

    def _edge(self, good: int, bad: int, faults: Sequence[Fault]) -> int:
        """The farthest place from ``good`` towards ``bad`` that explains the log.

        ``bad`` itself does not. Its neighbour is tried first, then the rest by halving.
        """
        end = bad + (1 if bad < good else -1)
        if end == good or self._explains(faults[end]):
            return end
        bad = end
        while abs(bad - good) > 1:
            middle = (good + bad) // 2
            if self._explains(faults[middle]):
                good = middle
            else:
                bad = middle
        return good

    # ---- families

    def _lost(self) -> Iterator[Explanation]:
        """An expert that should be there is not.

        It was not refreshed, or it was dropped, or it was evicted instead of another.
        """
        end = self._shown.tick
        for lost in self._suspects(True):
            asked, since = self._asked_before(lost.key, lost.tick), self._since(lost)
            for at in [at for at in asked[::-1] if at < end][:REFRESHES]:
                was_there = self._walk.found[at][self._walk.keys[at].index(lost.key)]
                kinds = (UNREFRESHED, LOST) if was_there else (LOST,)
                for kind in kinds:
                    fault = Fault(kind, at, lost.key)
                    if (kind == UNREFRESHED or at == since) and self._explains(fault):
                        yield Explanation(kind, fault, fault, since, lost.tick)
            instead = [
                Fault(VICTIM, tick, lost.key, other)
                for tick, other in self._walk.evictions
                if since < tick < min(end, lost.tick) and self._may_go_for(lost.key, other)
            ]
            if span := self._span(instead):
                yield Explanation(VICTIM, *span, since, lost.tick)
            dropped = [
                Fault(LOST, tick, lost.key) for tick in range(since + 1, min(end, lost.tick))
            ]
            if span := self._span(dropped):
                yield Explanation(LOST, *span, since, lost.tick)

    def _kept(self) -> Iterator[Explanation]:
        """An expert that should have been evicted is there: another was evicted in its place."""
        for kept in self._suspects(False):
            gone = [
                tick
                for tick in self._gone.get(kept.key, ())
                if tick < min(kept.tick, self._shown.tick + 1)
            ]
            if not gone:
                continue
            instead = [-1, *(lost.key for lost in self._suspects(True))]
            for key in instead:
                fault = Fault(VICTIM, gone[-1], key, kept.key)
                if (key < 0 or self._may_go_for(key, kept.key)) and self._explains(fault):
                    yield Explanation(VICTIM, fault, fault, self._since(kept), kept.tick)

    def _unseen(self) -> Iterator[Explanation]:
        """An expert that should have been evicted is there, because another was evicted earlier.

        The other one was not asked for again, so no flag of its own shows that.
        """
        for kept in self._suspects(False):
            gone = [tick for tick in self._gone.get(kept.key, ()) if tick <= self._shown.tick]
            if not gone:
                continue
            end, until = gone[-1], self._differences[-1].tick
            last = {
                key: max(at for at in asked if at < end)
                for key, asked in self._asked.items()
                if asked[0] < end and not any(end <= at <= until for at in asked)
            }
            there = [
                key
                for key in last
                if not any(last[key] < tick <= end for tick in self._gone.get(key, ()))
            ]
            for key in sorted(there, key=last.__getitem__, reverse=True)[:UNSEEN]:
                faults = [
                    Fault(VICTIM, tick, key, other)
                    for tick, other in self._walk.evictions
                    if last[key] < tick <= end and self._may_go_for(key, other)
                ]
                if span := self._span(faults):
                    self._untried = max(self._untried, len(there) - UNSEEN)
                    yield Explanation(VICTIM, *span, last[key], kept.tick)

    def _pinned(self) -> Iterator[Explanation]:
        """An expert is never evicted from some batch on."""
        for kept in self._suspects(False):
            gone = [tick for tick in self._gone.get(kept.key, ()) if tick < kept.tick]
            faults = [
                Fault(PINNED, tick, other=kept.key) for tick in gone if tick <= self._shown.tick
            ]
            if span := self._span(faults):
                first, last = span
                before = [tick for tick in self._gone[kept.key] if tick < first.tick]
                begin = before[-1] + 1 if before else 0
                loaded = [at for at in self._asked.get(kept.key, ()) if begin <= at <= first.tick]
                first = Fault(PINNED, loaded[0] if loaded else begin, other=kept.key)
                yield Explanation(PINNED, first, last, first.tick, kept.tick)

    def _budgets(self) -> Iterator[Explanation]:
        """From some batch on the engine's budget is an expert's bytes larger, or smaller."""
        if len(self._walk.pools) > 1:
            return
        sizes = sorted(set(self._walk.replayer.log.expert_bytes))
        end = self._shown.tick
        # What LRU holds in fewer bytes it also holds in more. So the first wrong flag tells whether
        # the budget is smaller or larger.
        signs = (
            (-1, 1) if type(self._walk.policy) is not LRU else (-1,) if self._shown.found else (1,)
        )
        for change in [sign * size for size in sizes for sign in signs]:
            faults = [Fault(BUDGET, tick, change_bytes=change) for tick in range(end)]
            if span := self._last_span(faults):
                yield Explanation(BUDGET, *span, -1, end)

    def _last_span(self, faults: Sequence[Fault]) -> tuple[Fault, Fault] | None:
        """As `_span`, for faults that show the sooner, the sooner they begin."""
        good = self._find(faults, 0, len(faults))
        if good is None:
            return None
        return faults[self._edge(good, -1, faults)], faults[self._edge(good, len(faults), faults)]

    def _find(self, faults: Sequence[Fault], low: int, high: int) -> int | None:
        """The index of a fault that explains the log, found by halving; None if there is none.

        Faults before it show before the log's first wrong flag, faults after it show later.
        """
        while low < high:
            middle = (low + high) // 2
            if self._walk.walked > self._most:
                raise _Spent
            wrong = self._walk.first_difference(faults[middle])
            if wrong is None:
                return middle
            if wrong.tick < self._shown.tick:
                low = middle + 1
            else:
                high = middle
        return None


def _sorted(found: Sequence[Explanation]) -> tuple[Explanation, ...]:
    order: Callable[[Explanation], tuple[int, int]] = lambda e: (  # noqa: E731
        e.last.tick - e.first.tick,
        e.first.tick,
    )
    return tuple(sorted(found, key=order))
