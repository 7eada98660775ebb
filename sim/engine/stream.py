"""The compute stream and the CPU: compute a gate's needs in order, in waves where they do not all
fit.

The stream needs no alarm for each need: ``_free_ns`` is the time at which it will be through with
everything that it has been given. The keys that it waits for stand in ``awaited``. An idle interval
is written down, with its cause, when the stream goes on. Gates, steps and sequences are in
``sim.engine.engine``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Final

from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.engine.clock import CPU_DONE, NEED_DONE, Alarm, Clock
from sim.engine.pages import make_pages
from sim.engine.written import Written
from sim.machine.durations import Durations
from sim.machine.lanes import LanedDurations, in_proportion
from sim.values.record import CPU_RESULT, HOST_TIME, NotedRecord, Record
from sim.values.types import SKIP, Outcome
from sim.workload.gates import Walker
from sim.workload.steps import Workload

CPU: Final = int(Outcome.CPU)
NOT_COMPUTED: Final = int(Outcome.SKIP)


class Group:
    """Needs that are computed one after another, in need order, once all of them are there.

    ``awaited``: the keys that are not there yet. ``projection``: the one that is computed of a need
    (contract C167); -1: all of them.
    """

    __slots__ = ("awaited", "keys", "rows")
    projection = -1

    def __init__(self, keys: Sequence[int], rows: Sequence[int], awaited: set[int]) -> None:
        self.keys = keys
        self.rows = rows  # the number of each need's lookup
        self.awaited = awaited


class OneProjection(Group):
    """One projection of one need."""

    __slots__ = ("projection",)

    def __init__(self, key: int, row: int, is_awaited: bool, projection: int) -> None:
        super().__init__((key,), (row,), {key} if is_awaited else set())
        self.projection = projection


class Line:
    """What one device computes: needs that are given to it, one after another.

    ``_free_ns``: when it is through with all it was given. ``row`` means the number of a lookup,
    counted over the run.
    """

    # Attributes that every gate uses have slots. On CPython 3.11 an object with thirty or more
    # attributes outside its slots, over all classes of the engine, makes every method call slower.
    __slots__ = (
        "_free_ns",
        "_groups",
        "_is_as_ready",
        "_is_wait_all",
        "_release_alarm",
        "_release_is_set",
        "_release_order",
        "_releases",
    )

    def __init__(self, env: Clock, wait: str, device: int = 0) -> None:
        """``wait``: the loader's; ``device``: its number."""
        self._is_as_ready, self._is_wait_all = wait == "as_ready", wait == "wait_all"
        self._free_ns = 0
        self._groups: deque[Group] = (
            deque()
        )  # wait_all and in_order: groups in the order in which they are computed
        self._releases: deque[tuple[int, int]] = (
            deque()
        )  # in waves: (end of a need's computation, key)
        self._release_alarm, self._release_is_set = Alarm(env, self._on_need_done), False
        self._release_order = NEED_DONE + device

    def _give(self, keys: Sequence[int], rows: Sequence[int], waits: Container[int]) -> None:
        """Needs to compute. ``waits`` has the keys that are not there yet."""
        if self._is_as_ready:
            for key, row in zip(keys, rows, strict=True):
                if key not in waits:
                    self._compute(key, row)
        elif self._is_wait_all:
            self._groups.append(Group(keys, rows, {key for key in keys if key in waits}))
        else:
            self._groups += [
                Group((key,), (row,), {key} if key in waits else set())
                for key, row in zip(keys, rows, strict=True)
            ]

    def take_in(self, key: int, row: int, number: int, now: int) -> bool:
        """Transfer ``number`` has brought a key that a need waits for: whether that lets the device
        go on.
        """
        if now > self._free_ns or self._groups:
            for group in self._groups:
                group.awaited.discard(key)
            if self._groups and self._groups[0].awaited:
                return False
            self._wake(now, number)
        if not self._is_as_ready:
            self._compute_groups()
        else:
            self._compute(key, row)
        if self._releases:
            self._set_release()
        return True

    def _compute_groups(self) -> None:
        """Compute the groups that are complete. They go in order, so that a complete one may have
        to wait for the one before it.
        """
        while self._groups and not self._groups[0].awaited:
            self._compute_group(self._groups.popleft())

    def _compute_group(self, group: Group) -> None:
        for key, row in zip(group.keys, group.rows, strict=True):
            self._compute(key, row)

    def _compute(self, key: int, row: int) -> None:
        """Compute a need after those before it."""
        raise NotImplementedError

    def _wake(self, now: int, cause: int) -> None:
        """Something has arrived for which the device may have stood idle."""
        raise NotImplementedError

    def _set_release(self) -> None:
        if not self._release_is_set:
            self._release_is_set = True
            self._release_alarm.set(self._releases[0][0], self._release_order)

    def _on_need_done(self, now: int) -> None:
        """The computation of a need of a wave has ended."""
        raise NotImplementedError


class Stream(Line):
    """The compute stream and the CPU of one run. An engine derives from it, and says what follows:
    ``settle`` and ``_end_site``.
    """

    __slots__ = (
        "__dict__",
        "_arrivals",
        "_batch_ns",
        "_gate",
        "_gates",
        "_idles",
        "_later_lookups",
        "_one_token_ns",
        "_one_token_of",
        "_row",
        "_step_rows",
        "_units",
        "_waking_ns",
        "awaited",
        "controller",
        "env",
        "other_calls",
    )

    def __init__(
        self, env: Clock, controller: Controller, workload: Workload, durations: Durations
    ) -> None:
        super().__init__(env, controller.loader.wait)
        self.env, self.controller, self.durations = env, controller, durations
        record = NotedRecord()
        self.record: Record = record
        self._notes = record.notes
        self.written = Written(record)
        self._later_lookups = self._notes.later
        self.other_calls = self.written.rows("other_ns")
        self._arrivals = self.written.rows("arrivals")
        self._is_by_projection = controller.loader.wait == "by_projection"
        self.come: dict[int, set[int]] = {}
        self._batch_ns = 0  # wait_all, the short way: how long the needs of the gate take together
        self._waking_ns = durations.host.waking_ns
        self._reroutes = controller.selector.reroutes
        self.pages = make_pages(durations, controller)
        geometry = controller.geometry
        self._units = geometry.units
        self._one_token_of: dict[int, list[int]] = {}  # by the rows of a step
        self._step_rows = 1
        # The time of an expert for one row, by key // units, which is precision * sites + site.
        self._one_token_ns = self._one_token(1)
        # Machine code would take no other class than `StepGate`, and tests have gates of their own.
        make_gate: Callable[[], Walker] = workload.gate
        self._gate = make_gate()
        self.awaited: dict[int, int] = {}  # key -> row of its lookup
        self._cpu: deque[tuple[int, int, int]] = deque()  # of its needs: (end, key, row)
        self._cpu_alarm = Alarm(env, self._on_cpu_done)
        self._cpu_free_ns = 0
        self._cpu_submissions = 0
        self._row = 0  # lookups so far
        self._gates = self.written.rows("gate_ns", "first_rows")
        self._idles = self.written.rows("idle_start_ns", "idle_end_ns", "idle_cause")

    def _one_token(self, rows: int) -> list[int]:
        """The times of experts for one of a step's rows, by precision * sites + site."""
        if rows not in self._one_token_of:
            geometry, expert_ns = self.controller.geometry, self.durations.expert_ns
            variants = range(len(geometry.precisions) * geometry.sites)
            self._one_token_of[rows] = [
                expert_ns(*divmod(variant, geometry.sites), 1, rows) for variant in variants
            ]
        return self._one_token_of[rows]

    # ---- what the engine does

    def settle(self, now: int) -> None:
        """To be called after every call of the controller: poll each link that has room."""
        raise NotImplementedError

    def _end_site(self, now: int) -> None:
        """Every need of the site has been computed, or the end of its computation is known."""
        raise NotImplementedError

    # ---- idleness

    def _idle(self, until_ns: int, cause: int) -> None:
        """Write down that the stream stands idle from ``_free_ns`` until ``until_ns``."""
        self._idles += (self._free_ns, until_ns, cause)
        self._free_ns = until_ns

    def _wake(self, now: int, cause: int) -> None:
        """Something has arrived for which the stream may have stood idle: write that down, and the
        host time that waking takes.
        """
        if now > self._free_ns:
            wake_ns = self._waking_ns(now - self._free_ns)
            self._idle(now, cause)
            if wake_ns:
                self._idle(now + wake_ns, HOST_TIME)

    # ---- the needs of an admission

    def _take(
        self, outcomes: Sequence[int], waits: dict[int, Transfer] | None, row: int, now: int
    ) -> None:
        """Set the needs of an admission to work, and poll the links. ``row``: its first lookup."""
        left_out = self._line_up(outcomes, waits, row, now)
        self.settle(now)
        for key in left_out:
            # A need that the placement leaves out is over at once. Others may wait for its place.
            if self.controller.waiting:
                self._release(key, now)

    def _computed(self, outcomes: Sequence[int]) -> list[int]:
        """Of the needs just admitted, those that the device computes."""
        return [
            key
            for key, outcome in zip(self.controller.admitted, outcomes, strict=True)
            if key != SKIP and outcome != CPU and outcome != NOT_COMPUTED
        ]

    def _line_up(
        self, outcomes: Sequence[int], waits: dict[int, Transfer] | None, row: int, now: int
    ) -> list[int]:
        """Give the needs of an admission to the stream and to the CPU: the keys that are not
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
        if self._is_by_projection:
            self._groups += self._in_projections(sorted(zip(keys, rows, strict=True)), waits)
        else:
            self._give(keys, rows, waits)
        self._compute_groups()
        if self._releases:
            self._set_release()
        return left_out

    def _compute_group(self, group: Group) -> None:
        if group.projection >= 0:
            self._compute_projection(group.keys[0], group.rows[0], group.projection)
        else:
            super()._compute_group(group)

    # ---- projection by projection

    def _in_projections(
        self, needs: Sequence[tuple[int, int]], waits: dict[int, Transfer]
    ) -> list[OneProjection]:
        """What is computed of these needs (key, row), in order: the first projections of all, then
        the second.
        """
        found = []
        for projection in range(max((len(self._shares(key)) for key, _ in needs), default=0)):
            for key, row in needs:
                if projection < len(self._shares(key)):
                    has_come = projection in self.come.get(key, ())
                    is_awaited = key in waits and not has_come
                    found.append(OneProjection(key, row, is_awaited, projection))
        return found

    def _shares(self, key: int) -> Sequence[int]:
        """The bytes of the projections of a key's variant."""
        durations, geometry = self.durations, self.controller.geometry
        assert isinstance(durations, LanedDurations)
        precision, site = divmod(key // self._units, geometry.sites)
        return durations.projection_bytes(precision, site, geometry.key_bytes[key])

    def _compute_projection(self, key: int, row: int, projection: int) -> None:
        precision, site = divmod(key // self._units, self.controller.geometry.sites)
        whole_ns = self._expert_ns(precision, site, self._tokens(row))
        times = in_proportion(whole_ns, self._shares(key))
        self._free_ns += times[projection]
        if self.controller.waiting and projection == len(times) - 1:
            self._releases.append((self._free_ns, key))

    def arrive_projection(self, key: int, projection: int, number: int, now: int) -> None:
        """Transfer ``number`` has brought a projection of a key, and not yet all of it."""
        if key not in self.awaited or not self._is_by_projection:
            return
        for group in self._groups:
            if group.projection == projection:
                group.awaited.discard(key)
        if self._groups[0].awaited:
            return
        self._wake(now, number)
        self._compute_groups()
        if self._releases:
            self._set_release()

    def _compute(self, key: int, row: int) -> None:
        tokens, index = self._tokens(row), key // self._units
        if tokens == 1:
            self._free_ns += self._one_token_ns[index]
        else:
            precision, site = divmod(index, self.controller.geometry.sites)
            self._free_ns += self._expert_ns(precision, site, tokens)
        if self.controller.waiting:
            self._releases.append((self._free_ns, key))

    def _expert_ns(self, precision: int, site: int, tokens: int) -> int:
        return self.durations.expert_ns(precision, site, tokens, self._step_rows)

    def _tokens(self, row: int) -> int:
        """How many tokens of the current gate the need of a lookup is computed for."""
        if self._reroutes:
            return self.controller.lookup_tokens[row]
        return self._gate.tokens[row - self._gates[-1]]

    # ---- waves

    def _on_need_done(self, now: int) -> None:
        self._release_is_set = False
        # A result of the CPU may have admitted the last needs since the alarm was set.
        if self._releases and self._releases[0][0] == now:
            self._release(self._releases.popleft()[1], now)
            self._end_site_if_done(now)
        elif self._releases:
            self._set_release()

    def _release(self, key: int, now: int) -> None:
        """A need has been computed while others wait for admission: admit the next ones."""
        controller = self.controller
        self.other_calls.append(now)
        outcomes, waits = controller.need_done(key)
        if not controller.waiting:
            self._releases.clear()
        if self.pages is not None:
            self.pages.admit(self._computed(outcomes))
        row = self._row
        self._row += len(outcomes)
        self._later_lookups.append((row, self._row, now))
        self._take(outcomes, waits, row, now)

    def _end_site_if_done(self, now: int) -> None:
        if not (self.awaited or self._cpu or self.controller.waiting):
            self._end_site(now)

    # ---- the CPU

    def _submit(self, key: int, row: int, now: int) -> None:
        """Let the CPU compute a need, after those that it has been given before."""
        precision, site = divmod(key // self._units, self.controller.geometry.sites)
        duration = self.durations.cpu_ns(precision, site, self._tokens(row))
        self._cpu_free_ns = max(now, self._cpu_free_ns) + duration
        self._cpu.append((self._cpu_free_ns, key, row))
        if len(self._cpu) == 1:
            self._set_cpu(now)

    def _set_cpu(self, now: int) -> None:
        self._cpu_submissions += 1
        self._cpu_alarm.set(self._cpu[0][0], CPU_DONE + self._cpu_submissions)

    def _on_cpu_done(self, now: int) -> None:
        controller = self.controller
        _, key, row = self._cpu.popleft()
        if self._cpu:
            self._set_cpu(now)
        self._arrivals += (row, now)
        self.other_calls.append(now)
        controller.cpu_done(key)
        if controller.waiting:
            self._wake(now, CPU_RESULT)
            self._release(key, now)
        else:
            self.settle(now)
            if not (self.awaited or self._cpu):
                self._join_cpu(now)
        self._end_site_if_done(now)

    def _join_cpu(self, now: int) -> None:
        """The last result has come of what the CPU computes at a site."""
        self._wake(now, CPU_RESULT)
