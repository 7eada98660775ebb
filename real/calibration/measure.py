"""Measures everything that a calibration needs, as facts: nothing is fitted here."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import torch

from real.calibration.bench import DeviceBench, medians
from real.calibration.facts import Facts, Points
from real.calibration.in_run import in_run
from real.kernels.stacked_gates import stacked_gates
from real.setup.prepare import Prepared, prepare_replay
from real.store.reading import DirectReader
from real.store.variants import StoreError
from real.validation.cases import measure_run, request_of
from real.validation.constants import Constants
from sim.answers.time_parts import Tables
from sim.machine.model import Model

SYSTEM, SHARE = "lru", 0.5
ON_CPU = "fiddler"
"""The system whose absent experts the CPU computes."""


@dataclass(frozen=True)
class Plan:
    """What is measured.

    - ``words`` configure the runs.
    - ``precisions`` of experts. The first serves for links and runs, too; those after it are
      measured with ``other_words``.
    - ``rows`` of an expert's computations.
    - ``repeats`` of every measurement.
    - ``has_cpu``: whether a CPU computes beside the device.
    - ``blocks``, ``depths``: bytes of the drive's reads, and how many threads read.
    - ``has_time(seconds)`` is asked before each part that can be done without. What it refuses is
      left out.
    """

    words: tuple[str, ...]
    precisions: tuple[str, ...] = ("fp16", "int8", "int4", "int2")
    other_words: tuple[str, ...] = ()
    rows: tuple[int, ...] = (1, 2, 4, 16, 64)
    least_bytes: int = 4096
    has_cpu: bool = True
    repeats: int = 7
    blocks: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
    depths: tuple[int, ...] = (1, 2, 4)
    has_time: Callable[[float], bool] = lambda seconds: True


def measure(plan: Plan, say: Callable[[str], None]) -> tuple[Facts, Prepared]:
    """All facts, and one of the runs that they come from, closed."""
    facts = Facts()
    say("copies and computation inside the engine")
    prepared = prepared_with(plan, plan.precisions[0])
    with DeviceBench(prepared).opened() as bench:
        _one_precision(bench, prepared, plan, facts, plan.precisions[0])
        if bench.gives_together:
            counts = range(1, prepared.run.model.top_k + 1)
            facts.together = medians(counts, bench.together_ns, plan.repeats)
        _links(bench, plan, facts)
        _dense(bench, prepared, plan, facts)
        facts.on_cpu = medians(
            plan.rows[:1], lambda rows: bench.on_cpu_ns(bench.key, rows), plan.repeats
        )
        facts.operation = _operation_ns(bench, plan)
        facts.gates = _gates(bench, prepared, plan)
    _if_time(plan, facts, "host's gaps", 10, lambda: _host(plan, facts, prepared.run.model))
    if plan.has_cpu:
        _if_time(plan, facts, "experts on the CPU in a run", 10, lambda: _cpu_in_run(plan, facts))
    _if_time(plan, facts, "reads of the drive", 8, lambda: _reads(prepared, plan, facts))
    for precision in plan.precisions[1:]:
        say(f"experts in {precision}")
        _if_time(plan, facts, f"experts in {precision}", 10, lambda: _other(plan, facts, precision))  # noqa: B023
    return facts, prepared


def _if_time(plan: Plan, facts: Facts, what: str, seconds: float, work: Callable[[], None]) -> None:
    if plan.has_time(seconds):
        work()
        gc.collect()
    else:
        facts.left_out.append(what)


def prepared_with(plan: Plan, precision: str, *words: str) -> Prepared:
    return prepare_replay(
        request_of((*plan.words, f"precision={precision}", *words), SYSTEM, SHARE)
    )


def _one_precision(
    bench: DeviceBench, prepared: Prepared, plan: Plan, facts: Facts, precision: str
) -> None:
    """Measure experts by rows, and reading the weights alone."""
    facts.experts[precision] = medians(
        plan.rows, lambda rows: bench.compute_ns(bench.key, rows), plan.repeats
    )
    facts.expert_bytes[precision] = bench.geometry.bytes_of(bench.key)
    assert prepared.weights is not None
    store, dtype = prepared.weights.store, prepared.weights.dtype
    blob = _like(bench)
    settle = _settler(blob)

    def decode(_: int) -> int:
        began_ns = time.perf_counter_ns()
        store.decode(0, blob, dtype)
        settle()
        return time.perf_counter_ns() - began_ns

    ((_, facts.dequantise[precision]),) = medians([0], decode, plan.repeats)


def _other(plan: Plan, facts: Facts, precision: str) -> None:
    try:
        prepared = prepared_with(plan, precision, *plan.other_words)
    except StoreError as error:
        facts.left_out.append(f"experts in {precision}: {error}")
        return
    with DeviceBench(prepared).opened() as bench:
        _one_precision(bench, prepared, plan, facts, precision)


def _links(bench: DeviceBench, plan: Plan, facts: Facts) -> None:
    """Measure copies by size, alone and beside computation."""
    whole, sizes = bench.geometry.bytes_of(bench.key), []
    size = plan.least_bytes
    # Beyond the last two points the table goes on along their line, so these must lie apart.
    while 2 * size <= whole:
        sizes.append(size)
        size *= 4
    sizes.append(whole)
    facts.copy = medians(sizes, bench.service_ns, plan.repeats)
    facts.overlapped, facts.beside_copy = _both(
        bench, whole, lambda: bench.compute_ns(bench.other, 1), plan.repeats
    )
    facts.beside_cpu, facts.cpu_beside_copy = _both(
        bench, whole, lambda: bench.on_cpu_ns(bench.other, 1), plan.repeats
    )


def _both(
    bench: DeviceBench, size: int, compute_ns: Callable[[], int], repeats: int
) -> tuple[Points, float | None]:
    """A service beside computing, and computing beside a service; None if none lay inside one."""
    both = [bench.overlapped_ns(size, compute_ns) for _ in range(repeats)]
    covered = [ns for _, took in both for ns in took]
    return [(size, median(ns for ns, _ in both))], median(covered) if covered else None


def _dense(bench: DeviceBench, prepared: Prepared, plan: Plan, facts: Facts) -> None:
    from real.driver.device import TAIL

    g = bench.geometry
    ((_, facts.dense),) = medians(
        [1], lambda rows: bench.compute_ns(g.key(0, 0, g.experts), rows), plan.repeats
    )
    ((_, facts.tail),) = medians([1], lambda rows: bench.compute_ns(TAIL, rows), plan.repeats)


def _operation_ns(bench: DeviceBench, plan: Plan) -> float:
    """The ns of the smallest operation, launched and waited for in a queue of them."""
    x = torch.zeros(8, device=_like(bench).device)
    settle = _settler(x)

    def one(count: int) -> int:
        began_ns = time.perf_counter_ns()
        for _ in range(count):
            x.add_(1)
        settle()
        return time.perf_counter_ns() - began_ns

    count = 200
    ((_, took),) = medians([count], one, plan.repeats)
    return took / count


def _like(bench: DeviceBench) -> torch.Tensor:
    """A variant's bytes, where experts are computed from."""
    slots, size = bench.device.slots, bench.geometry.bytes_of(bench.key)
    found: torch.Tensor = (
        slots.blob(bench.key) if hasattr(slots, "blob") else slots.of(bench.key).memory[:size]
    )
    return found


def _settler(like: torch.Tensor) -> Callable[[], object]:
    """A function that waits for all that has been launched on the device of a tensor."""
    wait: Any = torch.cuda.synchronize
    return wait if like.is_cuda else lambda: None


def _gates(bench: DeviceBench, prepared: Prepared, plan: Plan) -> Points:
    """Measure the gates of 1 to 4 layers for one token, stacked."""
    model, like = prepared.run.model, _like(bench)
    settle = _settler(like)
    x_1H = torch.randn(1, model.hidden).to(like.device, torch.bfloat16)

    def gates(layers: int) -> int:
        weight = torch.randn(layers, model.experts, model.hidden).to(like.device, torch.bfloat16)
        settle()
        began_ns = time.perf_counter_ns()
        stacked_gates(x_1H, weight, model.top_k)
        settle()
        return time.perf_counter_ns() - began_ns

    return medians([1, 2, 3, 4], gates, plan.repeats)


def _host(plan: Plan, facts: Facts, model: Model) -> None:
    """Measure the driver's gaps, in a run of the engine, and what else it adds to loops."""
    request = request_of((*plan.words, f"precision={plan.precisions[0]}"), SYSTEM, SHARE)
    measured = measure_run(request, SHARE, SYSTEM)
    host = Constants.learn(measured.pairs).host
    facts.host = {
        "sync": host.sync_ns,
        "issue": host.issue_ns,
        "wake": host.wake_ns,
        "post": host.post_ns,
    }
    frames = measured.frames
    tables = Tables(frames.lookups, frames.transfers, frames.tokens, frames.controller.loader.wait)
    try:
        slots = frames.controller.slots.count
        facts.runs.append(in_run(tables, model.block_params(0), slots))
    except ValueError as error:
        facts.left_out.append(f"what a run adds: {error}")


def _cpu_in_run(plan: Plan, facts: Facts) -> None:
    """Measure experts of one row on the CPU in a run: gates' waits for them, shared out evenly."""
    request = request_of((*plan.words, f"precision={plan.precisions[0]}"), ON_CPU, SHARE)
    lookups = measure_run(request, SHARE, ON_CPU).frames.lookups
    gates = (
        lookups.filter((pl.col("outcome") == "cpu") & (pl.col("phase") == "decode"))
        .group_by("tick")
        .agg(pl.len().alias("needs"), (pl.col("ready_ns") - pl.col("gate_ns")).max().alias("ns"))
    )
    if gates.is_empty():
        facts.left_out.append("experts on the CPU in a run: no gate of a decode step had any")
    else:
        facts.cpu_in_run = sum(gates["ns"].to_list()) / sum(gates["needs"].to_list())


def _reads(prepared: Prepared, plan: Plan, facts: Facts) -> None:
    """Measure unbuffered reads of the store at random places, by block and number of threads."""
    assert prepared.weights is not None
    path, size = prepared.weights.store.path, prepared.weights.store.header.num_bytes
    try:
        DirectReader(path, 4096).close()
    except StoreError as error:
        facts.left_out.append(f"reads of the drive: {error}")
        return
    for block in (block for block in plan.blocks if block <= size):
        for depth in plan.depths:
            facts.reads.append((block, depth, _read_rate(path, size, block, depth)))


def _read_rate(path: Path, size: int, block: int, depth: int) -> float:
    """The bytes per second of ``depth`` threads that read blocks for a fifth of a second."""
    counts, until = [0] * depth, time.perf_counter() + 0.2

    def read(number: int) -> None:
        reader, into = DirectReader(path, block), np.empty(block, np.uint8)
        places = np.random.default_rng(number).integers(0, max(1, size // block), 4096) * block
        try:
            for place in places:
                if time.perf_counter() >= until:
                    break
                reader.read(int(min(place, size - block)), into)
                counts[number] += 1
        finally:
            reader.close()

    began = time.perf_counter()
    threads = [threading.Thread(target=read, args=(number,)) for number in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) * block / (time.perf_counter() - began)


def rates(points: Points) -> Sequence[float]:
    """Bytes per second at each size."""
    return [size / ns * 1e9 for size, ns in points]
