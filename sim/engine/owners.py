"""The engine for devices that own experts: each computes its own needs of a gate, beside the others
(contracts C170 and C171).

The first device, home, is the compute stream of `sim.engine.engine`. Each other one is a line of
needs of its own. What a line will be through with is known as soon as all that it waits for has
come, so that a message home needs no alarm: the site ends at the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from sim.core.controller import Controller
from sim.core.transfer import Transfer
from sim.engine.clock import Clock
from sim.engine.engine import Engine
from sim.engine.stream import Line
from sim.machine.durations import Durations, OwnedDurations
from sim.values.record import CPU_RESULT, HOST_TIME
from sim.workload.steps import Workload

OWNER_COLUMNS = ("owner_device", "owner_key", "owner_start_ns", "owner_end_ns")


class Owner(Line):
    """What a device other than home computes of a gate.

    ``is_asked``: it has needs of this gate. ``begun_ns`` and ``cause``: when a transfer came with
    which its last stretch of computing began, and which one; -1 where it began with the activations.
    """

    def __init__(self, engine: OwnedEngine, device: int) -> None:
        super().__init__(engine.env, engine.controller.loader.wait, device)
        self.engine, self.device = engine, device
        self.is_asked, self.begun_ns, self.cause = False, -1, -1

    @property
    def free_ns(self) -> int:
        return self._free_ns

    def ask(
        self,
        keys: Sequence[int],
        rows: Sequence[int],
        waits: Container[int],
        now: int,
        lead_ns: int,
    ) -> None:
        """Needs of the current gate. Activations come ``lead_ns`` after the call that is first."""
        if not self.is_asked:
            self.is_asked, self.begun_ns, self.cause = True, -1, -1
            self._free_ns = now + lead_ns
        self._free_ns = max(self._free_ns, now)
        self._give(keys, rows, waits)
        self._compute_groups()
        if self._releases:
            self._set_release()

    def forget_releases(self) -> None:
        self._releases.clear()

    def _compute(self, key: int, row: int) -> None:
        start_ns = self._free_ns
        self._free_ns += self.engine.expert_on_ns(self.device, key, row)
        self.engine.computed += (self.device, key, start_ns, self._free_ns)
        if self.engine.controller.waiting:
            self._releases.append((self._free_ns, key))

    def _wake(self, now: int, cause: int) -> None:
        if now > self._free_ns:
            self.begun_ns, self.cause = now, cause
            self._free_ns = now + self.engine.durations.host.waking_ns(now - self._free_ns)

    def _on_need_done(self, now: int) -> None:
        self._release_is_set = False
        if self._releases and self._releases[0][0] == now:
            self.engine.release_of(self, self._releases.popleft()[1], now)
        if self._releases:
            self._set_release()


class OwnedEngine(Engine):
    """An engine whose devices own experts. Decisions and records are those of `Engine`; the compute
    stream, its idle time and the end of a site are home's.
    """

    is_arithmetic = False  # home may wait for others, so that no gate is a sum

    def __init__(
        self,
        env: Clock,
        controller: Controller,
        workload: Workload,
        durations: Durations,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        assert isinstance(durations, OwnedDurations)
        self._owned = durations
        super().__init__(env, controller, workload, durations, progress)
        self._others = [Owner(self, device) for device in range(1, durations.devices)]
        self.computed = self.written.rows(*OWNER_COLUMNS)
        """What the others computed: rows of the record's columns ``owner_*``."""

    def expert_on_ns(self, device: int, key: int, row: int) -> int:
        precision, site = divmod(key // self._units, self.controller.geometry.sites)
        return self._owned.expert_on_ns(device, precision, site, self._tokens(row), self._step_rows)

    def _line_of(self, key: int) -> Line:
        device = self.controller.geometry.on_device(key)
        return self._others[device - 1] if device else self

    def _message_ns(self) -> int:
        assert self._step is not None
        return self._owned.message_ns(self._step.rows)

    # ---- the needs of an admission

    def _enter_gate(self, now: int, waits: dict[int, Transfer] | None) -> None:
        for other in self._others:
            other.is_asked = False
        super()._enter_gate(now, waits)

    def _give(self, keys: Sequence[int], rows: Sequence[int], waits: Container[int]) -> None:
        now = int(self.env.now)
        by_line: dict[Line, tuple[list[int], list[int]]] = {self: ([], [])}
        for key, row in zip(keys, rows, strict=True):
            mine = by_line.setdefault(self._line_of(key), ([], []))
            mine[0].append(key)
            mine[1].append(row)
        for line, (own, of) in by_line.items():
            if isinstance(line, Owner):
                line.ask(own, of, waits, now, self._message_ns())
        super()._give(*by_line[self], waits)

    # ---- waves

    def _release(self, key: int, now: int) -> None:
        super()._release(key, now)
        if not self.controller.waiting:
            for other in self._others:
                other.forget_releases()

    def release_of(self, other: Owner, key: int, now: int) -> None:
        """Another device has computed a need while others wait for admission."""
        self._wait_for(other, now)
        self._release(key, now)
        self._end_site_if_done(now)

    # ---- waiting for other devices

    def _back(self) -> tuple[int, Owner] | None:
        """When the last message is home, and whose it is; None where no other device was asked."""
        asked = [other for other in self._others if other.is_asked]
        if not asked:
            return None
        last = max(asked, key=lambda other: (other.free_ns, other.device))
        return last.free_ns + self._message_ns(), last

    def _join_cpu(self, now: int) -> None:
        back = self._back()
        if back is None or back[0] < now:
            super()._join_cpu(now)

    def _end_site(self, now: int) -> None:
        if (back := self._back()) is not None:
            until_ns, other = back
            self._wait_for(other, until_ns)
        super()._end_site(now)

    def _wait_for(self, other: Owner, until_ns: int) -> None:
        """Home waits until another device's result is there (contract C171)."""
        since_ns = self._free_ns
        if until_ns <= since_ns:
            return
        if other.begun_ns > since_ns:
            self._idle(other.begun_ns, other.cause)
        if until_ns > self._free_ns:
            self._idle(until_ns, CPU_RESULT)
        if wake_ns := self._waking_ns(until_ns - since_ns):
            self._idle(until_ns + wake_ns, HOST_TIME)
