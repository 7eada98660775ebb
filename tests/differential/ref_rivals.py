"""The contention of the reference: parties at work slow each other down.

Each party's pace follows from which parties are at work, and the ends of their work follow from the
paces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import simpy

from differential.ref_clock import Clock, Process, Rank
from differential.scenario import Rivalry


@dataclass(eq=False)
class Piece:
    """Work in progress of a party. `left`: in ns of the party's own pace. `held`: it stands
    still.
    """

    party: int
    left: Fraction
    held: bool = False


class Rivals:
    """Each at work is a process that waits until so much is left of its work, or for anybody to
    begin, end or stop.
    """

    def __init__(self, rivalry: Rivalry, clock: Clock) -> None:
        self.rivalry, self.clock = rivalry, clock
        self.at_work: list[Piece] = []
        self.settled_ns = 0
        self.news: simpy.Event = clock.env.event()

    def pace(self, piece: Piece) -> Fraction:
        """Of its own pace: what each other party at work leaves of it, its part of a memory from
        which more is asked, and of that the part of one engine of several."""
        if piece.held:
            return Fraction(0)
        drawing = [other.party for other in self.at_work if not other.held]
        pace = Fraction(1)
        for party, rival, kept in self.rivalry.kept:
            if party == piece.party and rival in drawing:
                pace *= Fraction(kept, 10**6)
        most, own = self.rivalry.memory, self.rivalry.draws[piece.party]
        asked = sum(min(self.rivalry.draws[party], most) for party in set(drawing))
        if own > most:
            pace *= Fraction(most, own)
        if own and asked > most:
            pace *= Fraction(most, asked)
        return max(Fraction(1, 10**6), Fraction(math.floor(pace * 10**6), 10**6)) / drawing.count(
            piece.party
        )

    def settle(self) -> None:
        """What was done since the last change."""
        past, self.settled_ns = self.clock.now - self.settled_ns, self.clock.now
        if past:
            for piece in self.at_work:
                piece.left -= past * self.pace(piece)

    def change(self) -> None:
        news, self.news = self.news, self.clock.env.event()
        news.succeed()

    def join(self, piece: Piece) -> None:
        self.settle()
        self.at_work.append(piece)
        self.change()

    def leave(self, piece: Piece) -> None:
        self.settle()
        self.at_work.remove(piece)
        self.change()

    def hold(self, piece: Piece, held: bool) -> None:
        self.settle()
        piece.held = held
        self.change()

    def until(self, piece: Piece, left: Fraction, rank: Rank, number: int = 0) -> Process:
        """Until no more than that is left of the work, or it has been given up."""
        while piece in self.at_work:
            self.settle()
            if piece.held:
                yield self.news
                continue
            end = self.clock.at(
                rank, number, delay=max(0, math.ceil((piece.left - left) / self.pace(piece)))
            )
            yield end | self.news
            if end.processed:
                self.settle()
                return

    def work(self, party: int, latency: int, duration: int, rank: Rank, number: int = 0) -> Process:
        """A latency in which the party is not at work, and then as long as it takes."""
        if latency:
            yield self.clock.env.timeout(latency)
        piece = Piece(party, Fraction(duration))
        self.join(piece)
        yield from self.until(piece, Fraction(0), rank, number)
        self.leave(piece)
