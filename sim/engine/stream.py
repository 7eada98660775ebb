"""What the needs of a gate come to: the compute stream that computes them in their order, waves of
them, and the CPU.

The stream is arithmetic: ``_free_ns`` is when it will be through with what it has been given. What
it waits for stands in ``awaited``; what it stood idle for is noted when it goes on. Gates, steps
and sequences: ``sim.engine.engine``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.engine.clock import CPU_DONE, NEED_DONE, Alarm, Clock
from sim.machine.costs import Durations
from sim.values.record import CPU_RESULT, HOST_TIME, NotedRecord, Record
from sim.values.types import SKIP, Outcome
from sim.workload.steps import Workload

CPU, NOT_COMPUTED = int(Outcome.CPU), int(Outcome.SKIP)


class Group:
    """Needs that are computed together, in need order, once nothing of them is awaited any more."""

    __slots__ = ("awaited", "keys", "rows")

    def __init__(self, keys: Sequence[int], rows: Sequence[int], awaited: set[int]) -> None:
        self.keys = keys
        self.rows = rows  # of their lookups
        self.awaited = awaited


class Stream:
    """The compute stream and the CPU of one run. An engine says what follows: ``settle`` and
    ``_end_site``.
    """

    # What the common gate uses. Of what is left there must be less than 30, the engine's own
    # included: a larger dict makes each call slower.
    __slots__ = (
        "__dict__",
        "_arrivals",
        "_free_ns",
        "_gate",
        "_gates",
        "_groups",
        "_idles",
        "_is_as_ready",
        "_later_lookups",
        "_one_token_ns",
        "_releases",
        "_row",
        "_units",
        "_wake_ns",
        "awaited",
        "controller",
        "env",
        "other_calls",
    )

    def __init__(
        self, env: Clock, controller: Controller, workload: Workload, durations: Durations
    ) -> None:
        self.env, self.controller, self.durations = env, controller, durations
        record = NotedRecord()
        self.record: Record = record
        self._notes = record.notes
        self.other_calls = self._notes.other_ns
        self._later_lookups, self._arrivals = self._notes.later, self._notes.arrivals
        self._wait = controller.loader.wait
        self._is_as_ready = self._wait == "as_ready"
        self._wake_ns = durations.host.wake_ns
        self._reroutes = controller.selector.reroutes
        geometry = controller.geometry
        self._units = geometry.units
        # By key // units, which is precision * sites + site.
        self._one_token_ns = [
            durations.expert_ns(p, site, 1)
            for p in range(len(geometry.precisions))
            for site in range(geometry.sites)
        ]
        self._gate = workload.gate()
        self.awaited: dict[int, int] = {}  # key -> row of its lookup
        self._groups: deque[Group] = (
            deque()
        )  # wait_all, in_order: in the order of their computation
        self._releases: deque[tuple[int, int]] = (
            deque()
        )  # waves: (end of a need's computation, key)
        self._release_alarm, self._release_is_set = Alarm(env, self._on_need_done), False
        self._cpu: deque[tuple[int, int, int]] = deque()  # (end, key, row) of what the CPU computes
        self._cpu_alarm = Alarm(env, self._on_cpu_done)
        self._cpu_free_ns = 0
        self._cpu_submissions = 0
        self._free_ns = 0  # when the compute stream is through with what it was given
        self._row = 0  # lookups so far
        # Flat: one append a gate, or an idle interval.
        self._gates: list[int] = []  # time, first row
        self._idles: list[int] = []  # from, to, cause

    # ---- what the engine does

    def settle(self, now: int) -> None:
        """After a call of the controller: give each link that has room what may be issued."""
        raise NotImplementedError

    def _end_site(self, now: int) -> None:
        """Every need of the site is computed or its end is known."""
        raise NotImplementedError

    # ---- idleness

    def _idle(self, until_ns: int, cause: int) -> None:
        """The compute stream has nothing to do from when it was free until then."""
        self._idles += (self._free_ns, until_ns, cause)
        self._free_ns = until_ns

    def _wake(self, now: int, cause: int) -> None:
        """Something has come that the stream stood idle for, if it did."""
        if now > self._free_ns:
            self._idle(now, cause)
            if self._wake_ns:
                self._idle(now + self._wake_ns, HOST_TIME)

    # ---- the needs of an admission

    def _take(
        self, outcomes: Sequence[int], waits: dict[int, Transfer] | None, row: int, now: int
    ) -> None:
        """Set to work what an admission found (its first lookup is ``row``), and poll."""
        left_out = self._line_up(outcomes, waits, row, now)
        self.settle(now)
        for key in left_out:
            # What the placement leaves out is over at once; others may wait for its place.
            if self.controller.waiting:
                self._release(key, now)

    def _line_up(
        self, outcomes: Sequence[int], waits: dict[int, Transfer] | None, row: int, now: int
    ) -> list[int]:
        """Give the needs of an admission to the stream and the CPU; the keys that are not
        computed at all.
        """
        awaited = self.awaited
        waits = waits or {}
        keys: list[int] = []
        rows: list[int] = []
        left_out: list[int] = []
        for key, outcome in zip(self.controller.admitted, outcomes, strict=True):
            if outcome == CPU:
                self._submit(key, row, now)
            elif key == SKIP:
                pass
            elif outcome != NOT_COMPUTED:
                keys.append(key)
                rows.append(row)
                if key in waits:
                    awaited[key] = row
            else:
                left_out.append(key)
            row += 1
        if self._is_as_ready:
            for key, of in zip(keys, rows, strict=True):
                if key not in waits:
                    self._compute(key, of)
        elif self._wait == "wait_all":
            self._groups.append(Group(keys, rows, set(waits)))
        else:
            self._groups += [
                Group((key,), (of,), {key} & waits.keys())
                for key, of in zip(keys, rows, strict=True)
            ]
        self._compute_groups()
        if self._releases:
            self._set_release(now)
        return left_out

    def _compute_groups(self) -> None:
        """Groups are computed in order, so a complete one may wait for the one before it."""
        while self._groups and not self._groups[0].awaited:
            group = self._groups.popleft()
            for key, row in zip(group.keys, group.rows, strict=True):
                self._compute(key, row)

    def _compute(self, key: int, row: int) -> None:
        tokens, index = self._tokens(row), key // self._units
        if tokens == 1:
            self._free_ns += self._one_token_ns[index]
        else:
            precision, site = divmod(index, self.controller.geometry.sites)
            self._free_ns += self.durations.expert_ns(precision, site, tokens)
        if self.controller.waiting:
            self._releases.append((self._free_ns, key))

    def _tokens(self, row: int) -> int:
        """For how many rows of the current gate the need of this lookup is computed."""
        if self._reroutes:
            return self.controller.lookup_tokens[row]
        return self._gate.tokens[row - self._gates[-1]]

    # ---- waves

    def _set_release(self, now: int) -> None:
        if not self._release_is_set:
            self._release_is_set = True
            self._release_alarm.set(self._releases[0][0], NEED_DONE)

    def _on_need_done(self, alarm: Alarm) -> None:
        now = alarm.at_ns
        self._release_is_set = False
        # A result of the CPU may have let the last needs in since the alarm was set.
        if self._releases and self._releases[0][0] == now:
            self._release(self._releases.popleft()[1], now)
            self._end_site_if_done(now)
        elif self._releases:
            self._set_release(now)

    def _release(self, key: int, now: int) -> None:
        """A need of a union served in waves has been computed: let the next ones in."""
        controller = self.controller
        self.other_calls.append(now)
        outcomes, waits = controller.need_done(key)
        if not controller.waiting:
            self._releases.clear()
        row = self._row
        self._row += len(outcomes)
        self._later_lookups.append((row, self._row, now))
        self._take(outcomes, waits, row, now)

    def _end_site_if_done(self, now: int) -> None:
        if not (self.awaited or self._cpu or self.controller.waiting):
            self._end_site(now)

    # ---- the CPU

    def _submit(self, key: int, row: int, now: int) -> None:
        """Have a need computed on the CPU, after those it has been given before."""
        precision, site = divmod(key // self._units, self.controller.geometry.sites)
        duration = self.durations.cpu_ns(precision, site, self._tokens(row))
        self._cpu_free_ns = max(now, self._cpu_free_ns) + duration
        self._cpu.append((self._cpu_free_ns, key, row))
        if len(self._cpu) == 1:
            self._set_cpu(now)

    def _set_cpu(self, now: int) -> None:
        self._cpu_submissions += 1
        self._cpu_alarm.set(self._cpu[0][0], CPU_DONE + self._cpu_submissions)

    def _on_cpu_done(self, alarm: Alarm) -> None:
        now, controller = alarm.at_ns, self.controller
        _, key, row = self._cpu.popleft()
        if self._cpu:
            self._set_cpu(now)
        self._arrivals.append((row, now))
        self.other_calls.append(now)
        controller.cpu_done(key)
        if controller.waiting:
            self._wake(now, CPU_RESULT)
            self._release(key, now)
        else:
            self.settle(now)
            if not (self.awaited or self._cpu):
                self._wake(now, CPU_RESULT)
        self._end_site_if_done(now)
