"""The work in progress on a machine with contention: who is active, and how fast each goes.

Work is measured in time at full pace. What is to happen at a point of a piece of work (its end, its
head, the end of a chunk) is set for an amount of work done. When the pace changes, the alarms of
these points are set anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import lcm

from sim.engine.clock import Alarm, Clock, Ring
from sim.machine.contention import FIRST_LINK, WHOLE, Contention


class Mark:
    """A point of a piece of work: ``ring`` is called, with priority ``order``, when no more than
    ``left`` is left to do.

    ``alarm``: the alarm that is set for it, at ``at_ns``. Earlier alarms still ring, and are ignored.
    """

    __slots__ = ("alarm", "at_ns", "left", "order", "ring")

    def __init__(self, left: int, order: int, ring: Ring) -> None:
        self.left, self.order, self.ring = left, order, ring
        self.alarm: Alarm | None = None
        self.at_ns = -1


class Draw:
    """A piece of work of a party. It *draws* on the machine from ``begins_ns`` on.

    ``left``: the work still to do, in the party's unit (see `Contest`). ``work_ns``: all of it, in
    ns. ``pace``: units of work for each ns; 0 before it draws, and while it is ``held``.
    ``order``: the priority of its end. ``marks``: its end, and other points on the way.
    """

    __slots__ = ("begins_ns", "held", "left", "marks", "order", "pace", "party", "work_ns")

    def __init__(self, party: int, begins_ns: int, work_ns: int, order: int, left: int) -> None:
        self.party, self.begins_ns, self.work_ns, self.order, self.left = (
            party,
            begins_ns,
            work_ns,
            order,
            left,
        )
        self.pace, self.held = 0, False
        self.marks: list[Mark] = []


class Contest:
    """All work in progress. Paces change only when a piece begins, ends, is held or goes on.

    The pieces of one party (those of a link's engines) share its pace equally. What is left of a
    piece is counted in units: a ns at the party's full pace is ``WHOLE * lcm(1 .. its engines)``
    units. So every share of every pace is a whole number, and nothing is rounded on the way.

    ``slowed_ns``: by party, by how much the time in which it had work exceeds that work. It is what
    other parties cost it, and waiting for bytes that had not come yet.
    """

    def __init__(self, env: Clock, contention: Contention, engines: Sequence[int] = ()) -> None:
        """``engines``: for each link, how many pieces it may have at once. Other parties have
        one.
        """
        self._env, self._contention = env, contention
        self._draws: dict[Draw, None] = {}  # those that draw, in the order in which they began to
        self._since_ns = 0
        of_links = [lcm(*range(1, count + 1)) for count in engines] or [1] * (
            contention.parties - FIRST_LINK
        )
        self._shares = [1] * FIRST_LINK + of_links
        self._busy_since_ns = [0] * contention.parties
        self._done_ns = [0] * contention.parties  # work done since it became busy
        self.slowed_ns = [0] * contention.parties

    # ---- what a party does

    def begin(
        self, party: int, now: int, latency_ns: int, work_ns: int, order: int, done: Ring
    ) -> Draw:
        """Begin a piece of work: first a latency, which slows nobody down and is not slowed, then
        ``work_ns`` of work. Call ``done``, with priority ``order``, at the first whole ns at which
        nothing of the work remains.
        """
        draw = Draw(party, now + latency_ns, work_ns, order, work_ns * self._unit(party))
        draw.marks.append(Mark(0, order, lambda now: self._end(draw, done, now)))
        if latency_ns:
            Alarm(self._env, lambda now: self._join(draw, now)).set(draw.begins_ns, order)
        else:
            self._join(draw, now)
        return draw

    def mark(self, draw: Draw, now: int, done_ns: int, ring: Ring) -> Mark:
        """Call ``ring`` at the first whole ns at which ``done_ns`` of the work are done, unless
        the piece ends or is stopped before.
        """
        mark = Mark((draw.work_ns - max(0, done_ns)) * self._unit(draw.party), draw.order, ring)
        draw.marks.append(mark)
        self._settle(now)
        self._expect(mark, draw, now)
        return mark

    def forget(self, draw: Draw, mark: Mark) -> None:
        """Take a mark back: it does not ring any more."""
        draw.marks.remove(mark)
        mark.alarm = None

    def hold(self, draw: Draw, now: int, held: bool) -> None:
        """Let a piece of work pause, drawing nothing, or go on."""
        self._settle(now)
        draw.held = held
        self._set_paces(now)

    def stop(self, draw: Draw, now: int) -> None:
        """End a piece of work before its work is done."""
        self._leave(draw, now)

    def done_ns(self, draw: Draw, now: int) -> int:
        """The work done, in whole ns at full pace; -1 if the piece has not begun to draw."""
        if draw not in self._draws:
            return -1
        self._settle(now)
        return draw.work_ns + -draw.left // self._unit(draw.party)

    def left_ns(self, draw: Draw, now: int) -> int | None:
        """The work still to do, in ns at full pace, rounded up; None if the piece has not begun to
        draw.
        """
        done = self.done_ns(draw, now)
        return None if done < 0 else draw.work_ns - done

    def is_done(self, draw: Draw, now: int) -> bool:
        """Whether no work is left: the end rings at this instant, if it has not rung yet."""
        self._settle(now)
        return draw.left <= 0

    # ---- paces

    def _unit(self, party: int) -> int:
        return WHOLE * self._shares[party]

    def _join(self, draw: Draw, now: int) -> None:
        self._settle(now)
        if all(other.party != draw.party for other in self._draws):
            self._busy_since_ns[draw.party] = now
            self._done_ns[draw.party] = 0
        self._draws[draw] = None
        self._set_paces(now)

    def _end(self, draw: Draw, done: Ring, now: int) -> None:
        self._leave(draw, now)
        done(now)

    def _leave(self, draw: Draw, now: int) -> None:
        self._settle(now)
        for mark in draw.marks:
            mark.alarm = None
        draw.marks.clear()
        del self._draws[draw]
        self._set_paces(now)
        party = draw.party
        self._done_ns[party] += draw.work_ns - max(0, draw.left) // self._unit(party)
        if all(other.party != party for other in self._draws):
            self.slowed_ns[party] += max(0, now - self._busy_since_ns[party] - self._done_ns[party])

    def _settle(self, now: int) -> None:
        """Count the work done since the last change, at the paces that held since then."""
        elapsed = now - self._since_ns
        if elapsed:
            for draw in self._draws:
                draw.left -= elapsed * draw.pace
            self._since_ns = now

    def _set_paces(self, now: int) -> None:
        """Work out all paces, and set the alarms anew where a pace has changed."""
        drawing = Counter(draw.party for draw in self._draws if not draw.held)
        paces = self._contention.paces(sum(1 << party for party in drawing))
        for draw in self._draws:
            party = draw.party
            pace = 0 if draw.held else paces[party] * self._shares[party] // drawing[party]
            if draw.pace != pace:
                draw.pace = pace
                for mark in draw.marks:
                    self._expect(mark, draw, now)

    def _expect(self, mark: Mark, draw: Draw, now: int) -> None:
        """Set the alarm of a mark for the time that follows from the pace; none at pace 0."""
        if not draw.pace:
            mark.alarm = None
            return
        at_ns = now + max(0, -((mark.left - draw.left) // draw.pace))
        if mark.alarm is None or mark.at_ns != at_ns:
            alarm = Alarm(self._env, lambda now: self._ring(mark, draw, alarm, now))
            mark.alarm, mark.at_ns = alarm, at_ns
            alarm.set(at_ns, mark.order)

    def _ring(self, mark: Mark, draw: Draw, alarm: Alarm, now: int) -> None:
        if alarm is mark.alarm:
            draw.marks.remove(mark)
            mark.ring(now)
