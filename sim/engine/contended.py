"""The engine for machines with contention: an operation's end depends on who else is active.

*Parties* are the compute stream, the CPU and the links. They slow each other down while they work
(`sim.machine.contention`), so that no end is known when an operation begins. Each operation has an
alarm, which is set anew whenever the set of active parties changes (`sim.engine.contest`).
Decisions, order and records are those of `sim.engine.engine.Engine`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from sim.core.controller import Controller
from sim.engine.clock import CPU_DONE, GATE, NEED_DONE, SEQUENCE_END, Clock, Ring
from sim.engine.contended_links import ContendedLink, make_links
from sim.engine.contest import Contest
from sim.engine.engine import Engine
from sim.machine.contention import COMPUTE, CPU
from sim.machine.durations import ContendedDurations, Durations
from sim.workload.steps import Workload

AT_WORK = 1 << 62
"""``_free_ns`` while the stream works: later than every time, because the end is not known."""


class ContendedEngine(Engine):
    """An engine whose operations slow each other down.

    ``_free_ns`` is `AT_WORK` while the stream works. While it stands idle, ``_free_ns`` is the time
    at which it became free, or at which its host time will be over.
    """

    is_arithmetic = False

    def __init__(
        self,
        env: Clock,
        controller: Controller,
        workload: Workload,
        durations: Durations,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        assert isinstance(durations, ContendedDurations)
        assert durations.contention is not None
        self.contest = Contest(env, durations.contention, controller.route.engines)
        self._cpu_latency_ns = durations.cpu_latency_ns
        self._given: deque[tuple[int, int]] = (
            deque()
        )  # (duration, key) of the needs that are ready and have not begun
        super().__init__(env, controller, workload, durations, progress)
        self._work_ends = self.written.rows("work_end_ns")

    def _make_links(self) -> Sequence[ContendedLink]:
        return make_links(self)

    # ---- the compute stream

    def _work(self, work_ns: int, order: int, done: Ring) -> None:
        """Let the stream begin an operation when its host time is over. ``order``: the priority of
        its end.
        """
        now, begins_ns = int(self.env.now), self._free_ns
        self._free_ns = AT_WORK

        def over(now: int) -> None:
            self._work_ends.append(now)
            done(now)

        self.contest.begin(COMPUTE, now, begins_ns - now, work_ns, order, over)

    def _begin_site(self) -> None:
        if not self._awaits_blocks or self._has_blocks():
            self._work(self._lead_ns - self._sync_ns, NEED_DONE, self._on_dense_end)

    def _on_dense_end(self, now: int) -> None:
        self._free_ns = now
        self._gate_alarm.set(now + self._sync_ns, GATE)

    def _compute(self, key: int, row: int) -> None:
        precision, site = divmod(key // self._units, self.controller.geometry.sites)
        self._given.append((self._expert_ns(precision, site, self._tokens(row)), key))
        self._begin_need()

    def _begin_need(self) -> None:
        if self._given and self._free_ns != AT_WORK:
            duration, key = self._given.popleft()
            self._work(duration, NEED_DONE, lambda now: self._on_need_end(key, now))

    def _on_need_end(self, key: int, now: int) -> None:
        self._free_ns = now
        if self.controller.waiting:
            self._release(key, now)
        self._begin_need()
        self._end_site_if_done(now)

    def _end_site_if_done(self, now: int) -> None:
        if self._free_ns != AT_WORK:
            super()._end_site_if_done(now)

    def _begin_tail(self, now: int) -> None:
        assert self._step is not None
        self._work(self.durations.tail_ns(self._step), SEQUENCE_END, self._on_tail_end)

    def _on_tail_end(self, now: int) -> None:
        self._free_ns = now
        self._end_step(now)

    # ---- the CPU

    def _submit(self, key: int, row: int, now: int) -> None:
        precision, site = divmod(key // self._units, self.controller.geometry.sites)
        self._cpu.append((self.durations.cpu_ns(precision, site, self._tokens(row)), key, row))
        if len(self._cpu) == 1:
            self._set_cpu(now)

    def _set_cpu(self, now: int) -> None:
        self._cpu_submissions += 1
        duration = self._cpu[0][0]
        latency = min(self._cpu_latency_ns, duration)
        self.contest.begin(
            CPU,
            now,
            latency,
            duration - latency,
            CPU_DONE + self._cpu_submissions,
            self._on_cpu_done,
        )

    # ---- the end

    def _close(self, now: int) -> None:
        super()._close(now)
        self.record.slowed_ns = self.contest.slowed_ns
