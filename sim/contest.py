"""Work in progress of those who hold each other up: each rings when its work is done, whenever that is."""

from __future__ import annotations

from collections.abc import Callable

from sim.alarms import Alarm, Clock
from sim.contention import WHOLE, Contention

Done = Callable[[Alarm], None]


class Draw:
    """A piece of work of a party. ``left``: what there is still to do, in ns of its own pace times ``WHOLE``.

    ``pace`` is 0 until it begins to draw, at ``begins_ns``. ``alarm``: the one that counts; others ring in vain.
    """

    __slots__ = ("alarm", "begins_ns", "done", "left", "order", "pace", "party", "work_ns")

    def __init__(self, party: int, begins_ns: int, work_ns: int, order: int, done: Done) -> None:
        self.party, self.begins_ns, self.work_ns, self.order, self.done = party, begins_ns, work_ns, order, done
        self.left, self.pace = work_ns * WHOLE, 0
        self.alarm: Alarm | None = None


class Contest:
    """All work in progress, one piece a party. Paces change only when somebody begins or ends.

    ``slowed_ns``: by party, how much longer its finished work took than alone.
    """

    def __init__(self, env: Clock, contention: Contention) -> None:
        self._env, self._contention = env, contention
        self._draws: dict[int, Draw] = {}
        self._since_ns = 0
        self.slowed_ns = [0] * contention.parties

    def begin(self, party: int, now: int, latency_ns: int, work_ns: int, order: int, done: Done) -> None:
        """Call ``done``, with priority ``order``, after ``latency_ns`` that nobody is held up by, and the work: at the
        first whole ns at which nothing of it remains.
        """
        draw = Draw(party, now + latency_ns, work_ns, order, done)
        if latency_ns:
            Alarm(self._env, lambda alarm: self._join(draw, alarm.at_ns)).set(draw.begins_ns, order)
        else:
            self._join(draw, now)

    def left_ns(self, party: int, now: int) -> int | None:
        """What a party has still to do, in ns of its own pace, rounded up; None where it draws nothing."""
        self._settle(now)
        draw = self._draws.get(party)
        return None if draw is None else -(-draw.left // WHOLE)

    def _join(self, draw: Draw, now: int) -> None:
        self._settle(now)
        self._draws[draw.party] = draw
        self._set_paces(now)

    def _end(self, draw: Draw, alarm: Alarm) -> None:
        if alarm is not draw.alarm:
            return
        now, draw.alarm = alarm.at_ns, None
        self._settle(now)
        del self._draws[draw.party]
        self._set_paces(now)
        self.slowed_ns[draw.party] += now - draw.begins_ns - draw.work_ns
        draw.done(alarm)

    def _settle(self, now: int) -> None:
        """What was done since the last change."""
        elapsed = now - self._since_ns
        if elapsed:
            for draw in self._draws.values():
                draw.left -= elapsed * draw.pace
            self._since_ns = now

    def _set_paces(self, now: int) -> None:
        """Ring at another time where the pace has changed."""
        paces = self._contention.paces(sum(1 << party for party in self._draws))
        for draw in self._draws.values():
            pace = paces[draw.party]
            if draw.pace != pace:
                draw.pace = pace
                at_ns = now + max(0, -(-draw.left // pace))
                if draw.alarm is None or draw.alarm.at_ns != at_ns:
                    draw.alarm = self._alarm_of(draw)
                    draw.alarm.set(at_ns, draw.order)

    def _alarm_of(self, draw: Draw) -> Alarm:
        return Alarm(self._env, lambda alarm: self._end(draw, alarm))
