"""Prompts in a pipeline: devices that have layers read different chunks at the same time.

A run's steps follow each other (contract C159). Engines with split layers overlap the chunks of a
prompt: while one device reads a chunk, the one before it reads the next. What that takes follows
from what each device's part of each step took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.machine.devices import OWN
from sim.results.frames import Frames, Ints
from sim.results.run import Run
from sim.traces.trace import DECODE
from sim.values.types import Outcome
from sim.values.units import seconds


def overlapped_ns(chunks: Iterable[tuple[Sequence[int], int]]) -> int:
    """When the last device has read the last chunk, in ns after the first one begins.

    Each chunk has the time that each device takes for its part, in the order of the devices, and
    the time of the message that hands it on to the next one. A device reads chunks in order. It
    begins when the chunk has come and the chunk before it is read.

    >>> overlapped_ns([([220, 270], 7)] * 3)
    1037
    """
    free: list[int] = []
    for parts, message_ns in chunks:
        free = free or [0] * len(parts)
        come = 0
        for device, part in enumerate(parts):
            free[device] = max(come, free[device]) + part
            come = free[device] + message_ns
    return free[-1] if free else 0


@dataclass(frozen=True)
class Parts:
    """What each device did of each step: ``starts`` and ``ends`` [steps, devices], in ns.

    The part of a device other than the first begins with the message of the one before it, which
    takes ``message_ns`` by step. ``is_prompt``: by step, whether no row of it is decoded.
    """

    starts: Ints
    ends: Ints
    message_ns: Ints
    is_prompt: NDArray[np.bool_]

    def groups(self) -> Iterator[range]:
        """Steps that can overlap: prompts' steps, of which each begins when the last one ends."""
        first = 0
        for step in range(1, len(self.is_prompt) + 1):
            if (
                step < len(self.is_prompt)
                and self.is_prompt[step - 1]
                and self.is_prompt[step]
                and self.starts[step, 0] == self.ends[step - 1, -1]
            ):
                continue
            if self.is_prompt[first]:
                yield range(first, step)
            first = step

    def overlapped_ns(self, group: range) -> int:
        """What a group's steps take where devices overlap."""
        at = slice(group.start, group.stop)
        times = self.ends[at] - self.starts[at]
        times[:, 1:] -= self.message_ns[at, None]
        return overlapped_ns(zip(times.tolist(), self.message_ns[at].tolist(), strict=True))

    def touched(self, start: Ints, end: Ints) -> NDArray[np.bool_]:
        """Of intervals, whether any part of each is inside a prompt's step."""
        first = np.searchsorted(self.ends[:, -1], start, side="right")
        stop = np.searchsorted(self.starts[:, 0], end, side="left")
        prompts = np.concatenate([[0], np.cumsum(self.is_prompt)])
        return prompts[np.maximum(first, stop)] > prompts[first]

    def hold(self, device: Ints, start: Ints, end: Ints) -> NDArray[np.bool_]:
        """Of intervals, whether each is inside one step's part of its device."""
        step = np.searchsorted(self.starts[:, 0], start, side="right") - 1
        inside: NDArray[np.bool_] = (start >= self.starts[step, device]) & (
            end <= self.ends[step, device]
        )
        return inside


def parts_of(run: Run, frames: Frames) -> Parts:
    """The parts of a run whose devices have layers."""
    devices, workload, record = run.hardware.devices, frames.workload, frames.record
    assert devices is not None
    assert devices.has_layers
    rows = np.array([step.rows for step in workload.steps])
    step_of_row = np.repeat(np.arange(len(rows)), rows)
    decoded = np.bincount(step_of_row, workload.phase[workload.row] == DECODE, len(rows))
    ends = np.zeros((len(rows), devices.count), np.int64)
    device_of = np.array(devices.device_of(run.model))
    at = workload.gate_step, device_of[workload.gate_site]
    np.maximum.at(ends, at, record.array("end_ns"))
    ends[:, -1] = record.array("step_end_ns")
    message_ns = {count: devices.crossing_ns(run.model, count) for count in np.unique(rows)}
    return Parts(
        np.column_stack([record.array("step_start_ns"), ends[:, :-1]]),
        ends,
        np.array([message_ns[count] for count in rows]),
        decoded == 0,
    )


def pipelined_section(run: Run, frames: Frames) -> dict[str, Any]:
    """The section of a run whose devices have layers and read prompts, else {} (contract C159)."""
    devices = run.hardware.devices
    if devices is None or not devices.has_layers:
        return {}
    parts = parts_of(run, frames)
    groups = list(parts.groups())
    if not groups:
        return {}
    steps = frames.workload.steps
    tokens = sum(steps[step].rows for group in groups for step in group)
    took = sum(int(parts.ends[group[-1], -1] - parts.starts[group[0], 0]) for group in groups)
    overlapped = sum(map(parts.overlapped_ns, groups))
    told = {
        "steps": sum(map(len, groups)),
        "time_s": seconds(overlapped),
        "prefill_tokens_per_s": tokens / seconds(overlapped),
        "times_as_fast": took / overlapped,
        "exact": _is_exact(frames, parts, is_own=devices.links == OWN),
    }
    return {"pipelined": told}


def _is_exact(frames: Frames, parts: Parts, *, is_own: bool) -> bool:
    """Whether devices that overlap would take the times that they took one after another.

    So it is where no transfer of a prompt reaches beyond its device's part of a step, and nothing
    is shared: neither a link over which prompts' experts come, nor the CPU.
    """
    prompts = pl.col("phase") == "prefill"
    if frames.needs.filter(prompts & (pl.col("outcome") == Outcome.CPU.name.lower())).height:
        return False
    table = frames.transfers
    number = {name: device for device, name in enumerate(frames.link_names)}
    device = table["link"].cast(pl.String).replace_strict(number, return_dtype=pl.Int64).to_numpy()
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    touched = parts.touched(start, end)
    # Behind a shared link a transfer may meet that of another device.
    return not bool((touched & ~parts.hold(device, start, end) if is_own else touched).any())
