"""Who works while others do: everybody's pace follows from who is at work, and ends follow from the paces."""

from __future__ import annotations

import math
from fractions import Fraction

import simpy

from differential.ref_clock import Clock, Process, Rank
from differential.scenario import Rivalry


class Rivals:
    """Each at work is a process that waits for its end, or for anybody to begin or end."""

    def __init__(self, rivalry: Rivalry, clock: Clock) -> None:
        self.rivalry, self.clock = rivalry, clock
        self.at_work: set[int] = set()
        self.news: simpy.Event = clock.env.event()

    def pace(self, party: int) -> Fraction:
        """Of its own pace: what compute leaves of a link, and its part of a memory from which more is asked."""
        pace = Fraction(1)
        if party >= 2 and 0 in self.at_work:
            pace = Fraction(self.rivalry.overlapped[party - 2], 10**6)
        asked = sum(self.rivalry.draws[other] for other in self.at_work)
        if self.rivalry.draws[party] and asked > self.rivalry.memory:
            pace *= Fraction(self.rivalry.memory, asked)
        return max(Fraction(1, 10**6), Fraction(math.floor(pace * 10**6), 10**6))

    def change(self) -> None:
        news, self.news = self.news, self.clock.env.event()
        news.succeed()

    def work(self, party: int, latency: int, duration: int, rank: Rank, number: int = 0) -> Process:
        """A latency in which the party is not at work, and then as long as it takes. One piece a party at a time."""
        if latency:
            yield self.clock.env.timeout(latency)
        self.at_work.add(party)
        self.change()
        left = Fraction(duration)
        while True:
            since, pace = self.clock.now, self.pace(party)
            end = self.clock.at(rank, number, delay=math.ceil(left / pace))
            yield end | self.news
            left = max(Fraction(0), left - (self.clock.now - since) * pace)
            if end.processed:
                break
        self.at_work.remove(party)
        self.change()
