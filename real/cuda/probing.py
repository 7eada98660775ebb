"""Measures a machine's link to its GPU, and what calls cost its host."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from statistics import median
from typing import Any

import torch
from torch import Tensor

from real.cuda.arena import ALIGNMENT, PinnedArena, ring_bytes
from real.cuda.copies import RowGatherer
from real.cuda.lanes import Lane
from real.cuda.runtime import Runtime
from real.cuda.zero_copy import gatherer_bytes, gatherer_of
from real.driver.machine import processor
from real.driver.polled import BRIEF_S, Crew
from real.driver.settings import Engine
from real.driver.timers import sharpen_timers
from sim.values.units import part_of

KEPT = 0.1
"""Which share of an expert's neurons a transfer brings (FloE)."""
REPEATS = 12


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile, and number of values."""
    ranked = sorted(values)
    return {
        "median": median(ranked),
        "p95": ranked[min(len(ranked) - 1, part_of(len(ranked), 0.95))],
        "n": len(ranked),
    }


def copies(runtime: Runtime, arena: PinnedArena, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each size and kind of memory: ns of a copy alone, and of each of 8 in a row.

    The kinds are copies from pinned memory, from pageable memory (as the runtime does them), and
    ``back``, from the device to pinned memory.
    """
    stream, rows = runtime.stream("probe"), []
    device, pinned = runtime.allocate(max(sizes)), arena.take(max(sizes))
    pageable = torch.ones(max(sizes), dtype=torch.uint8)
    for memory, target, source in (
        ("pinned", device, pinned),
        ("pageable", device, pageable),
        ("back", pinned, device),
    ):
        for size in sizes:
            for count in (1, 8):
                taken = [
                    timed_copies(runtime, stream, target[:size], source[:size], count)
                    for _ in range(REPEATS)
                ]
                told = quantiles([ns / count for ns in taken[2:]])
                rows.append(
                    {
                        "memory": memory,
                        "bytes": size,
                        "in_a_row": count,
                        "copy_ns": told,
                        "bytes_per_s": size / told["median"] * 1e9,
                    }
                )
    return rows


def timed_copies(runtime: Runtime, stream: Any, target: Tensor, source: Tensor, count: int) -> int:
    """The ns on the device from before the first of ``count`` copies until after the last."""
    begin, end = runtime.event(timed=True), runtime.event(timed=True)
    runtime.record(begin, stream)
    for _ in range(count):
        runtime.copy(target, source, stream)
    runtime.record(end, stream)
    runtime.synchronize(end)
    return runtime.elapsed_ns(begin, end)


def gathers(
    runtime: Runtime,
    arena: PinnedArena,
    pairs: int,
    row_bytes: int,
    columns: Sequence[int],
    threads: Sequence[int],
) -> list[dict[str, Any]]:
    """FloE's Fig. 7: bytes per second of a gather of a tenth of an expert's neurons.

    ``staged``: by columns a group, for several numbers of threads. ``zero_copy``: by columns a
    program, for a kernel that reads the neurons from pinned memory.
    """
    source = arena.take(pairs * row_bytes).view(pairs, row_bytes).fill_(1)
    kept = (
        torch.randperm(pairs, generator=torch.Generator().manual_seed(0))[: part_of(pairs, KEPT)]
        .sort()
        .values
    )
    target = runtime.allocate(len(kept) * row_bytes).view(len(kept), row_bytes)
    rows = []
    for form, number, engine in _gather_forms(columns, threads):
        results: SimpleQueue[partial[object]] = SimpleQueue()
        crew = Crew("gatherers", results, number)
        gatherer = gatherer_of(runtime, arena, engine, crew.submit, pairs, row_bytes)
        lane = Lane(runtime, "gather", 8)

        def gather(gatherer: RowGatherer = gatherer, lane: Lane = lane) -> None:
            feed = gatherer.gather(source, kept, target, lane)
            while feed is not None and not feed.advance():
                if results.empty():  # noqa: B023
                    # A thread that only asks would keep Python's lock from those that gather.
                    time.sleep(BRIEF_S)
                while not results.empty():  # noqa: B023
                    results.get()()  # noqa: B023
                lane.ask()
            lane.finish()

        taken = [_host_ns(gather) for _ in range(REPEATS)]
        crew.dismiss()
        told = quantiles(taken[2:])
        rows.append(
            {
                "gather": form,
                "threads": number,
                "columns": engine.gather_columns,
                "gather_ns": told,
                "bytes_per_s": target.numel() / told["median"] * 1e9,
            }
        )
    return rows


def _gather_forms(
    columns: Sequence[int], threads: Sequence[int]
) -> Iterator[tuple[str, int, Engine]]:
    """The form of each gather, the host threads it takes, and its settings."""
    for number in threads:
        for group in columns:
            yield "staged", number, Engine(gather_threads=number, gather_columns=group)
    for group in columns:
        yield "zero_copy", 1, Engine(gather="zero_copy", gather_columns=group)


def gathers_bytes(
    pairs: int,
    row_bytes: int,
    columns: Sequence[int],
    threads: Sequence[int],
) -> int:
    """How many bytes of a pinned arena ``gathers`` takes.

    That is an expert, and buffers of its own for each combination.
    """
    forms = _gather_forms(columns, threads)
    return ring_bytes(1, pairs * row_bytes) + sum(
        gatherer_bytes(engine, pairs, row_bytes) for *_, engine in forms
    )


def host_costs(runtime: Runtime, arena: PinnedArena) -> dict[str, dict[str, float]]:
    """The ns that the host is busy with one call of each kind, on a stream of its own.

    Of the read-out and the round trip: the ns until the host goes on.
    """
    device, stream, event = runtime.device, runtime.stream("host costs"), runtime.event()
    x, gate = (
        torch.randn(*shape, device=device, dtype=torch.bfloat16) for shape in ((4096,), (8, 4096))
    )
    ids = arena.take(16).view(torch.int64)
    target, pinned = runtime.allocate(4096), arena.take(4096)

    def wait_for_all() -> None:
        runtime.record(event, stream)
        runtime.synchronize(event)

    def read_out() -> None:
        top = runtime.run(stream, lambda: torch.topk((gate @ x).float(), 2).indices)
        runtime.copy(ids, top, stream)
        wait_for_all()

    wait_for_all()
    calls: dict[str, Callable[[], object]] = {
        "launch": lambda: runtime.run(stream, lambda: x.add_(0)),
        "matmul": lambda: runtime.run(stream, lambda: gate @ x),
        "copy": lambda: runtime.copy(target, pinned, stream),
        "event_record": lambda: runtime.record(event, stream),
        "stream_wait": lambda: runtime.wait(stream, event),
        "round_trip": wait_for_all,
        "routing_read_out": read_out,
    }
    return {name: quantiles(_repeated_ns(call, wait_for_all)) for name, call in calls.items()}


def _host_ns(call: Callable[[], object]) -> float:
    begin_ns = time.perf_counter_ns()
    call()
    return float(time.perf_counter_ns() - begin_ns)


def _repeated_ns(
    call: Callable[[], object], wait_for_all: Callable[[], object], count: int = 300
) -> list[float]:
    for _ in range(20):
        call()
    wait_for_all()
    taken = []
    for number in range(count):
        taken.append(_host_ns(call))
        # A full queue would make the host wait in a call.
        if number % 50 == 49:
            wait_for_all()
    return taken


def clocks(runtime: Runtime, count: int = 20, apart_s: float = 0.02) -> dict[str, float]:
    """How far the device's clock strays from the host's between two events, in ns.

    Timelines that are merged from both clocks are off by as much.
    """
    stream = runtime.stream("clocks")
    first = runtime.event(timed=True)
    runtime.record(first, stream)
    runtime.synchronize(first)
    began_ns, strayed = time.perf_counter_ns(), []
    for _ in range(count):
        time.sleep(apart_s)
        event = runtime.event(timed=True)
        runtime.record(event, stream)
        runtime.synchronize(event)
        strayed.append(
            float(runtime.elapsed_ns(first, event) - (time.perf_counter_ns() - began_ns))
        )
    return {**quantiles(strayed), "over_s": count * apart_s}


def machine_facts(runtime: Runtime) -> dict[str, Any]:
    """The machine that is measured, and its versions."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": runtime.name,
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "system": platform.platform(),
        },
    }


def links_and_host(
    runtime: Runtime,
    sizes: Sequence[int],
    pairs: int,
    row_bytes: int,
    columns: Sequence[int],
    threads: Sequence[int],
) -> dict[str, Any]:
    """Measure everything but the kernels. Takes half a minute on a GPU."""
    sharpen_timers()
    began_ns = time.perf_counter_ns()
    arena = PinnedArena(
        runtime, max(sizes) + gathers_bytes(pairs, row_bytes, columns, threads) + 4 * ALIGNMENT
    )
    pin_ns = time.perf_counter_ns() - began_ns
    try:
        return {
            **machine_facts(runtime),
            "pinning": {"bytes": arena.num_bytes, "ns": pin_ns},
            "copies": copies(runtime, arena, sizes),
            "host": host_costs(runtime, arena),
            "clocks": clocks(runtime),
            "gather": gathers(runtime, arena, pairs, row_bytes, columns, threads),
        }
    finally:
        arena.close()
