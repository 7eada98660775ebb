"""Measures what the GPU's engine costs its host: the Python of a decode gate, beside the controller's.

The runtime does nothing, so every event is over at once and no work takes time.
Routing is synthetic, in the shape of Qwen3-30B: 48 sites of 128 experts, of which 8 are chosen. It
prints microseconds of CPU time a gate, the controller's own apart, and what timing it took. A turn of
Python's empty loop stands beside them: it tells how fast this machine is just now. ``--count`` counts
what Python and the runtime are asked to do instead, which no other process on the machine changes.
``bare_`` are the same
figures of a loop that makes these calls and keeps an LRU list, and does nothing else
(`real.cuda.bare_loop`).
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from types import FrameType
from typing import Any

import torch

import real.cuda.device
from real.cuda.bare_loop import BareLoop
from real.cuda.host import HostEvent, HostRuntime
from real.setup.execute import replay_driver
from real.setup.prepare import prepare_replay
from real.validation.cases import request_of
from sim.core.controller import Controller
from sim.traces.synthesis import PRESETS, synthesize

CALLS = (
    "gate",
    "poll",
    "transfer_done",
    "need_done",
    "cpu_done",
    "prediction_ready",
    "begin_sequence",
    "end_sequence",
)
TRIED = 20_000
"""How often an empty call is timed, to know what timing takes."""
SMALL = (64, 32)
"""Hidden size and neurons of experts: no byte is moved, so none need be there."""


class NullRuntime(HostRuntime):
    """From the beginning of the run on it does nothing."""

    made: NullRuntime

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = False
        NullRuntime.made = self

    def make_current(self, stream: Any) -> Any:
        self.has_begun = not self.has_begun
        return super().make_current(stream)

    def record(self, event: HostEvent, stream: Any) -> None:
        pass

    def wait(self, stream: Any, event: HostEvent) -> None:
        pass

    def query(self, event: HostEvent) -> bool:
        return True

    def elapsed_ns(self, first: HostEvent, last: HostEvent) -> int:
        return 0

    def synchronize(self, event: HostEvent) -> None:
        pass

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        pass

    def move(self, target: Any, source: Any, num_bytes: int, stream: Any) -> None:
        pass

    def run(self, stream: Any, work: Callable[[], Any], **uses: Any) -> Any:
        return None if self.has_begun else work()

    def replay(self, graph: Any, stream: Any, **uses: Any) -> None:
        pass


RUNTIME_CALLS = ("record", "wait", "query", "elapsed_ns", "copy", "move", "run", "replay")


class Timer:
    """The time inside some calls, of which one may make another.

    ``ns`` takes every call of a kind to be as long as their median, for another process may have
    had the processor during some of them. ``own_ns`` is what telling the time took besides.
    """

    def __init__(self) -> None:
        self._took: dict[str, list[int]] = {}
        self._depth = 0

    @property
    def ns(self) -> float:
        return sum(median(took) * len(took) for took in self._took.values() if took)

    @property
    def own_ns(self) -> float:
        calls = sum(map(len, self._took.values()))
        other = Timer()
        timed = other.around("nothing", lambda *values, **named: None)
        began_ns = time.perf_counter_ns()
        for _ in range(TRIED):
            timed(0)
        return calls * ((time.perf_counter_ns() - began_ns - other.ns) / TRIED)

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        took = self._took.setdefault(name, [])

        def timed(*values: Any, **named: Any) -> Any:
            if self._depth:
                return call(*values, **named)
            self._depth = 1
            began_ns = time.perf_counter_ns()
            try:
                return call(*values, **named)
            finally:
                took.append(time.perf_counter_ns() - began_ns)
                self._depth = 0

        return timed


class Count:
    """Counts Python's calls, those of C, and opcodes, but for what is inside the controller."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self._controllers = {getattr(Controller, name).__code__ for name in CALLS}
        self._runtimes = {getattr(NullRuntime, name).__code__: name for name in RUNTIME_CALLS}
        self._depth = 0

    def run(self, work: Callable[[], object]) -> None:
        sys.settrace(self._enter)
        sys.setprofile(self._see)
        try:
            work()
        finally:
            sys.setprofile(None)
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_lines = False
        if frame.f_code in self._controllers:
            self._depth += 1
            return self._leave
        if self._depth:
            return None
        if frame.f_code in self._runtimes:
            self.found[self._runtimes[frame.f_code]] += 1
        self.found["python"] += 1
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.found["opcodes"] += event == "opcode"
        return self._step

    def _leave(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._depth -= event == "return"
        return self._leave

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        self.found["c"] += event == "c_call" and not self._depth


def measure(
    share: float, tokens: int, folder: str, profile: bool, count: Count | None = None
) -> dict[str, Any]:
    shape = replace(PRESETS["qwen3_30b_a3b"], hidden=SMALL[0], expert_intermediate=SMALL[1])
    trace = synthesize(shape, tokens=tokens, skew=1.2)
    request = request_of(
        (
            "model=qwen3_30b_a3b",
            f"model.hidden={SMALL[0]}",
            f"model.expert_intermediate={SMALL[1]}",
            "model.vocab=1024",
            "device=cuda",
            "engine.weights=stand_in",
            "engine.stand_in_gib=0.01",
            f"engine.store_dir={folder}",
            "engine.links=free",
            "engine.compute=free",
            "hardware=rtx4090_pcie4",
            "trace.split=all",
        ),
        "lru",
        share,
    )
    prepared = prepare_replay(request, trace)
    driver = replay_driver(prepared)
    timer = Timer()
    own = {name: getattr(Controller, name) for name in CALLS} if count is None else {}
    for name, call in own.items():
        setattr(Controller, name, timer.around(name, call))
    took_ns = 0
    run = driver.run

    def timed_run() -> None:
        nonlocal took_ns
        gc.collect()
        gc.disable()
        began_ns = time.process_time_ns()
        if count is not None:
            count.run(run)
        elif profile:
            import cProfile
            import pstats

            with cProfile.Profile() as found:
                run()
            pstats.Stats(found).sort_stats("tottime").print_stats(35)
        else:
            run()
        took_ns = time.process_time_ns() - began_ns
        gc.enable()

    driver.run = timed_run  # type: ignore[method-assign]
    try:
        record = driver.drive()
    finally:
        for name, call in own.items():
            setattr(Controller, name, call)
    gates = len(record.gate_ns)
    model = prepared.run.model
    bare_count = None if count is None else Count()
    loop = BareLoop(NullRuntime(), model, int(model.sites * model.experts * share))
    NullRuntime.made.has_begun = True
    bare_ns = bare(loop, [row.tolist() for row in trace.ids], bare_count)
    if count is not None and bare_count is not None:
        return {
            "resident_share": share,
            "misses_a_gate": round(len(record.service_number) / gates, 3),
            **{f"{what}_a_gate": round(n / gates, 1) for what, n in sorted(count.found.items())},
            **{
                f"bare_{what}_a_gate": round(n / gates, 1)
                for what, n in sorted(bare_count.found.items())
            },
        }
    began_ns = time.thread_time_ns()
    for _ in range(1_000_000):
        pass
    loop_ns = time.thread_time_ns() - began_ns
    return {
        "resident_share": share,
        "gates": gates,
        "misses_a_gate": round(len(record.service_number) / gates, 3),
        "us_a_gate": round((took_ns - timer.ns - timer.own_ns) / gates / 1e3, 2),
        "bare_us_a_gate": round(bare_ns / gates / 1e3, 2),
        "controller_us_a_gate": round(timer.ns / gates / 1e3, 2),
        "ns_of_an_empty_loop": round(loop_ns / 1e6, 1),
    }


def bare(loop: BareLoop, tokens: list[Any], count: Count | None) -> int:
    """The ns of CPU time that the bare loop takes for some tokens."""
    gc.collect()
    gc.disable()
    began_ns = time.process_time_ns()
    if count is None:
        loop.run(iter(tokens))
    else:
        count.run(lambda: loop.run(iter(tokens)))
    took_ns = time.process_time_ns() - began_ns
    gc.enable()
    loop.close()
    return took_ns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--count", action="store_true", help="Python's calls and opcodes instead")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    given = parser.parse_args()
    real.cuda.device.CudaRuntime = NullRuntime  # type: ignore[misc, assignment]
    with tempfile.TemporaryDirectory() as folder:
        for share in (0.25, 0.5):
            count = Count() if given.count else None
            print(json.dumps(measure(share, given.tokens, folder, given.profile, count)))


if __name__ == "__main__":
    main()
