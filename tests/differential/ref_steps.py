"""The steps of a run in the reference: recorded, or composed of single sequences (section 7)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from differential.scenario import Fixed, Key, Row, Scenario, Step, scored, union, union_forecast


@dataclass(frozen=True)
class Planned:
    """A step with the sequences whose first and last one it is."""

    step: Step
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    brought: tuple[int, int] = (0, 0)
    """Tokens whose keys and values come from RAM, and from disk."""


class Steps(Protocol):
    def next(self, now: int) -> Planned | None:
        """The next step, from what has arrived by now; None if there is nothing to run."""

    def next_arrival(self) -> int | None:
        """When the next sequence arrives that has not been seen; None if there is none."""


class Recorded:
    """The scenario's own steps, one after another."""

    def __init__(self, scenario: Scenario) -> None:
        self._steps = self._plan(scenario.steps)

    def _plan(self, steps: tuple[Step, ...]) -> Iterator[Planned]:
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, step in enumerate(steps):
            for sequence in step.members:
                first.setdefault(sequence, index)
                last[sequence] = index
        for index, step in enumerate(steps):
            if step.sequences:
                begins = tuple(sorted(s for s in step.members if first[s] == index))
                ends = tuple(sorted(s for s in step.members if last[s] == index))
            else:
                begins, ends = (step.sequence,) * step.begins, (step.sequence,) * step.ends
            yield Planned(step, begins, ends)

    def next(self, now: int) -> Planned | None:
        return next(self._steps, None)

    def next_arrival(self) -> int | None:
        return None


class Composed:
    """First come first served. `running` stands in the order of turns; `done` counts a
    sequence's rows.
    """

    def __init__(self, scenario: Scenario) -> None:
        assert scenario.batching is not None
        self.scenario = scenario
        self.batching = scenario.batching
        self.requests = scenario.requests
        self.waiting = sorted(
            range(len(self.requests)), key=lambda s: (self.requests[s].arrival_ns, s)
        )
        self.running: list[int] = []
        self.done: Counter[int] = Counter()
        self.recent: list[int] = []
        """Blocks of prompts, the one used last first. Each tier holds as many as it can."""
        self.reading: list[int] = []
        self.unread = set(range(len(self.requests)))
        self.brought: dict[int, list[int]] = {}
        """By sequence: tokens that come from RAM, and from disk."""
        self.planned: list[Planned] = []
        """Drafts of a step, and the step that checks them, in the order in which they run."""

    def next_arrival(self) -> int | None:
        return self.requests[self.waiting[0]].arrival_ns if self.waiting else None

    def next(self, now: int) -> Planned | None:
        if self.planned:
            return self.planned.pop(0)
        self.remember()
        self.running = [s for s in self.running if self.done[s] < self.length(s)]
        if self.batching.kind == "continuous" or not self.running:
            self.join(now)
        if not self.running:
            return None
        shares = self.share_out()
        if self.batching.draft_sites:
            self.planned = list(self.drafts(shares))
        self.planned.append(self.compose(shares))
        return self.planned.pop(0)

    def drafts(self, shares: dict[int, int]) -> Iterator[Planned]:
        """Draft n reads the token that stands n - 1 behind the next one of each sequence that checks
        n drafts. A context goes to the end of what will be checked.
        """
        for place in range(1, max(shares.values())):
            drawn = [s for s, rows in shares.items() if rows > place and not self.prompt_left(s)]
            if not drawn:
                return
            at = [self.done[s] + place - 1 for s in drawn]
            every = [self.requests[s].prompt + self.requests[s].decode for s in drawn]
            rows = [mine[row] for mine, row in zip(every, at, strict=True)]
            begins = tuple(sorted(s for s in drawn if s in self.unread))
            self.unread -= set(drawn)
            token = max(self.done[s] + shares[s] for s in drawn)
            last = range(self.scenario.sites)[-self.batching.draft_sites :]
            yield Planned(self.step(tuple(drawn), rows, last, token), begins, ())

    def join(self, now: int) -> None:
        while self.waiting and len(self.running) < self.batching.size:
            if self.requests[self.waiting[0]].arrival_ns > now:
                return
            self.running.append(self.waiting.pop(0))
            self.look_up(self.running[-1])

    # ---- prefixes (contracts C177 and C178)

    def remember(self) -> None:
        """Prompts that have been read to their end stand before all others, in the order of turns;
        of a prompt the first block stands first.
        """
        for sequence in [s for s in self.reading if not self.prompt_left(s)]:
            self.reading.remove(sequence)
            mine = list(self.requests[sequence].blocks)
            self.recent = mine + [block for block in self.recent if block not in mine]
        del self.recent[max(self.batching.tiers) :]

    def look_up(self, sequence: int) -> None:
        self.reading.append(sequence)
        self.brought[sequence] = [0, 0]
        size, rows = self.batching.block_tokens, len(self.requests[sequence].prompt)
        for number, block in enumerate(self.requests[sequence].blocks, start=1):
            if number * size >= rows or block not in self.recent:
                return
            place = self.recent.index(block)
            tier = [place < capacity for capacity in self.batching.tiers].index(True)
            self.done[sequence] += size
            if tier:
                self.brought[sequence][tier - 1] += size

    def length(self, sequence: int) -> int:
        return len(self.requests[sequence].prompt) + len(self.requests[sequence].decode)

    def prompt_left(self, sequence: int) -> int:
        return max(0, len(self.requests[sequence].prompt) - self.done[sequence])

    def share_out(self) -> dict[int, int]:
        """How many rows of which sequence, in the order of their turns."""
        chunk = self.batching.prefill_chunk
        reading = [s for s in self.running if self.prompt_left(s)]
        if not reading:
            return {s: self.checked(s) for s in self.running}
        if not chunk:
            return {s: self.prompt_left(s) for s in reading}
        shares = {}
        for s in self.running:
            if s in reading:
                shares[s] = min(chunk, self.prompt_left(s))
                chunk -= shares[s]
            elif self.batching.kind == "continuous":
                shares[s] = self.checked(s)
        return {s: rows for s, rows in shares.items() if rows}

    def checked(self, sequence: int) -> int:
        """The rows of a sequence that decodes: its next token, and drafts while it has tokens."""
        return min(1 + self.batching.drafts, self.length(sequence) - self.done[sequence])

    def kept(self, sequence: int, count: int) -> int:
        """After how many of the rows just read the sequence goes on."""
        if self.prompt_left(sequence) or not self.batching.drafts:
            return count
        dice = random.Random(f"{self.batching.draft_seed} {sequence}")
        luck = [dice.random() for _ in self.requests[sequence].decode]
        token = self.done[sequence] - len(self.requests[sequence].prompt)
        before = 1.0
        for place in range(1, count):
            share = self.batching.accepted[place - 1]
            if not before or luck[token + place] >= share / before:
                return place
            before = share
        return count

    def compose(self, shares: dict[int, int]) -> Planned:
        begins = tuple(sorted(s for s in shares if s in self.unread))
        self.unread -= set(shares)
        rows: list[Row] = []
        decoding, token = True, 0
        for s, count in shares.items():
            request = self.requests[s]
            decoding = self.prompt_left(s) == 0
            rows += (request.prompt + request.decode)[self.done[s] : self.done[s] + count]
            token = max(token, self.done[s] + count)
            self.done[s] += self.kept(s, count)
        ends = tuple(sorted(s for s in shares if self.done[s] == self.length(s)))
        ram, disk = (sum(self.brought[s][tier] for s in begins) for tier in (0, 1))
        visits = range(self.scenario.sites - self.batching.draft_sites)
        if encoder := self.batching.encoder_sites:
            visits = visits[encoder:] if decoding else visits[:encoder]
        return Planned(self.step(tuple(shares), rows, visits, token), begins, ends, (ram, disk))

    def step(self, members: tuple[int, ...], rows: list[Row], visits: range, token: int) -> Step:
        sites = range(self.scenario.sites)
        lookahead = self.scenario.loader.lookahead
        return Step(
            sequence=members[0],
            begins=False,
            ends=False,
            rows=len(rows),
            token=token,
            dense_ns=tuple(self.batching.dense_work_ns(site, len(rows)) for site in sites),
            tail_ns=self.batching.tail_ns,
            needs=tuple(
                union([scored(row.routed[site]) for row in rows]) if site in visits else ()
                for site in sites
            ),
            forecasts=tuple(
                tuple(
                    union_forecast([row.forecasts[site][ahead] for row in rows])
                    for ahead in range(lookahead)
                )
                if site in visits
                else ()
                for site in sites
            ),
            sequences=members,
            visits=tuple(visits),
            ranks=tuple(
                tuple(tuple(e for e, _ in scored(row.routed[site])) for row in rows)
                if site in visits
                else ()
                for site in sites
            ),
        )


def steps_of(scenario: Scenario) -> Steps:
    return Composed(scenario) if scenario.batching else Recorded(scenario)


def future(scenario: Scenario) -> list[Key]:
    """The wanted keys of the run, in the order in which they are asked for; without arrivals
    over time only.
    """
    assert not any(request.arrival_ns for request in scenario.requests)
    assert isinstance(scenario.selector, Fixed)
    steps, keys = steps_of(scenario), []
    while planned := steps.next(0):
        for site in planned.step.sites:
            keys += [
                (scenario.selector.precision, site, need.expert)
                for need in planned.step.needs[site]
            ]
    return keys
