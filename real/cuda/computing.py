"""What a GPU's device computes: everything that its compute lane is given, and when that ended.

Needs are given to the lane as soon as they are there, all in one launch where they can be. The host
waits for the read-out of the next gate and for nothing else. When each need was computed is read
from timed events later. Padded work is waited for piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

import torch
from torch import Tensor

from real.cuda.homes import Homes
from real.cuda.lanes import Lane
from real.cuda.runtime import Graph, Runtime
from real.cuda.slots import DeviceSlots
from real.cuda.times import Times
from real.cuda.work import Captured, DeviceWork
from real.driver.device import TAIL
from real.driver.polled import PolledDevice
from real.store.neurons import Arrivals
from real.store.work import SiteInputs
from sim.core.controller import Controller

NO_EXPERT = -1
"""The kind of work that is no expert's: dense blocks, and what comes after the last site."""


class ComputingDevice(PolledDevice):
    """The half of a GPU's device that computes; `real.cuda.device` makes what it computes with.

    That is its lane with the work's times, the slots, and the graphs: ``_captured`` of experts, where
    their form has graphs, and ``_dense`` by key of a dense block.
    """

    _lane: Lane
    _clock: Tensor
    _times: Times
    _work_of: DeviceWork
    _captured: Captured | None
    _dense: dict[int, Graph]
    homes: Homes

    def __init__(
        self,
        controller: Controller,
        runtime: Runtime,
        slots: DeviceSlots,
        arrivals: Arrivals,
        *,
        patience_s: float,
        is_padded: bool,
    ) -> None:
        super().__init__(patience_s, is_padded=is_padded)
        self._controller, self._runtime, self.slots = controller, runtime, slots
        self.arrivals, self._is_live = arrivals, False
        g = controller.geometry
        # By key the precision of an expert; the last one is that of TAIL.
        self._kind_of = [
            g.precision_of(key) if g.expert_of(key) < g.experts else NO_EXPERT
            for key in range(g.num_keys)
        ] + [NO_EXPERT]
        self._has_one_precision = len(g.variant_bytes) == 1

    def _warm_up(self, most_rows: int, *, is_paced: bool) -> None:
        """Make each kind of call once before the run, which must not pay for first calls.

        A first call takes workspaces of libraries, which stay allocated, and compiles kernels, once
        for each kind of number among their arguments (0, 1, multiples of 16, others).
        ``most_rows``: how many rows of one expert a gate may have.
        """
        g = self._controller.geometry
        if self._captured is not None:
            self._captured.warm_up(most_rows)
        for rows in (1, 2):
            for key in self._controller.slots.initial[:1]:
                self._give((key,), (rows,), 0)
            if not self.is_padded:
                for key in (g.key(0, 0, g.experts), TAIL):
                    self._compute_dense(key, rows)
        if is_paced or self.is_padded:
            for due_ns in (0, 1, 3):
                self._runtime.stamp(self._clock, self._lane.stream)
                self._spin(due_ns)

    # ---- works of the compute stream

    def _idle_turn(self) -> None:
        self._times.read_one()

    def begin(self, keys: Sequence[int], rows: Sequence[int]) -> None:
        done, count = 0, len(keys)
        while done < count:
            given_ns = self.now_ns()
            given = self._give(keys, rows, done)
            self._times.note(given_ns, given)
            done += given

    def settle(self) -> None:
        mark = self._times.last
        if not mark:
            return
        idle_ns = 0
        while not self._lane.has_passed(mark):
            idle_ns = 0 if self.poll() else self._idle(idle_ns, lambda: "the GPU computes")
        self._times.read_out(self.now_ns())
        # What has ended by now is handed over before the host goes on.
        self.poll()

    def spans(self) -> list[tuple[int, int]]:
        return self._times.spans()

    def compute(self, key: int, rows: int, nominal_ns: int) -> None:
        """Compute one work and wait for its end; padded, it lasts for its nominal time."""
        start_ns = self.now_ns()
        if self.is_padded:
            self._runtime.stamp(self._clock, self._lane.stream)
        self._give((key,), (rows,), 0)
        if self.is_padded:
            self._spin(nominal_ns - (self.now_ns() - start_ns))
        self._times.note(start_ns, 1)
        self.settle()

    def _spin(self, due_ns: int) -> None:
        self._runtime.spin_until(self._clock, due_ns, self._lane.stream)

    def _give(self, keys: Sequence[int], rows: Sequence[int], first: int) -> int:
        """Give works to the stream from the first on, in one launch; return how many they are."""
        key, count = keys[first], rows[first]
        kind = self._kind_of[key]
        if kind == NO_EXPERT:
            # In a live run the model has given its own work to this stream.
            if not self._is_live and not self.is_padded:
                self._compute_dense(key, count)
            return 1
        if self._captured is None or count != 1 or self._is_live:
            self._compute_expert(key, count)
            return 1
        if first:
            keys, rows = keys[first:], rows[first:]
        if not (self._has_one_precision and rows.count(1) == len(rows)):
            keys = keys[: self._num_alike(keys, rows)]
        return self._launch(self._captured, kind, keys)[0]

    def _num_alike(self, keys: Sequence[int], rows: Sequence[int]) -> int:
        """How many experts, from the first on, are of its precision and have one row."""
        kinds = list(map(self._kind_of.__getitem__, keys))
        return len(list(takewhile((kinds[0], 1).__eq__, zip(kinds, rows, strict=True))))

    def _compute_dense(self, key: int, rows: int) -> None:
        if rows == 1 and key in self._dense:
            self._runtime.replay(self._dense[key], self._lane.stream)
        else:
            site = -1 if key == TAIL else self._controller.geometry.site_of(key)
            self._runtime.run(self._lane.stream, partial(self._work_of.run_dense, site, rows))

    def _launch(self, captured: Captured, kind: int, keys: Sequence[int]) -> tuple[int, Tensor]:
        return captured.launch(kind, keys)

    def _compute_expert(self, key: int, rows: int) -> None:
        """Compute an expert of any form and for any number of rows, live as the model does."""
        kind, captured = self._kind_of[key], self._captured
        if captured is not None and not self._is_live and captured.takes_rows(kind):
            captured.compute_rows(kind, key, rows)
            return
        slot, work = self.slots.of(key), self._work_of
        self.slots.begin_read(slot, self._lane)
        neurons = self.arrivals.held(key)
        pieces = list(slot.parts(0, self._bytes_of(key)))

        def run() -> None:
            blob = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            work.run(key, blob, work.rows(key, rows), neurons)

        self._runtime.run(self._lane.stream, run, reads=pieces)
        self.slots.end_read((slot,), self._lane)

    def compute_on_cpu(self, key: int, tokens: int, nominal_ns: int) -> None:
        # This copy to the host waits for the compute stream only.
        rows = self._runtime.run(
            self._lane.stream, partial(self._work_of.rows_at_home, key, tokens)
        )
        work: Callable[[], None] = lambda: self._work_of.run_on_cpu(  # noqa: E731
            key, self.homes.blob(key), rows
        )
        self.on_cpu(key, work, nominal_ns)

    def _bytes_of(self, key: int) -> int:
        return self._controller.geometry.bytes_of(key)

    # ---- live runs

    def begin_site(self, inputs: SiteInputs) -> None:
        """Live runs: take the next gate's inputs, made on this device's stream."""
        if inputs.hidden.device != self._clock.device:
            raise RuntimeError(
                f"the model computes on {inputs.hidden.device}, its experts on"
                f" {self._clock.device}: move it there"
            )
        self._is_live = True
        self._work_of.begin_site(inputs)

    def end_site(self) -> Tensor:
        """Live runs: the sum [T, H] of the site's experts."""
        self._runtime.run(self._lane.stream, self._work_of.join)
        return self._runtime.run(self._lane.stream, self._work_of.end_site)

    def up_of(self, site: int, expert: int) -> Tensor:
        """Live runs of experts stored by neuron: an expert's up projection [I, H]."""
        return self._work_of.up_of(site, expert)
