"""FloE's gather: kept rows arrive in order, in any number of pieces and streams."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from helpers.fake_runtime import FakeRuntime, OrderError
from real.cuda.arena import PinnedArena
from real.cuda.gather import Gatherer, arena_bytes, kept_rows

ROW_BYTES = 24


def pairs(neurons: int = 100) -> Tensor:
    return torch.randint(
        0, 256, (neurons, ROW_BYTES), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )


def gatherer(runtime: FakeRuntime, threads: int, columns: int) -> Gatherer:
    return Gatherer(
        runtime,
        PinnedArena(runtime, arena_bytes(threads, columns, ROW_BYTES)),
        threads,
        columns,
        ROW_BYTES,
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("columns", [1, 7, 50, 200])
@pytest.mark.parametrize("count", [0, 1, 49, 100])
def test_the_kept_rows_arrive_in_their_order(threads: int, columns: int, count: int) -> None:
    runtime, source = FakeRuntime(), pairs()
    kept = torch.randperm(100, generator=torch.Generator().manual_seed(count))[:count].sort().values
    target = runtime.allocate(120 * ROW_BYTES).view(120, ROW_BYTES)
    worker = gatherer(runtime, threads, columns)
    ends = worker.gather(source, kept, target)
    worker.close()
    compute = runtime.stream("compute")
    for end in ends:
        runtime.wait(compute, end)
    seen = runtime.run(compute, lambda: target[:count].clone(), reads=[target])
    assert torch.equal(seen, source[kept])
    assert bool((target[count:] == 0xFF).all()), "written past the kept rows"
    copies = [line.rpartition(" ")[0] for line in runtime.log]
    groups = -(-count // columns)
    assert len(copies) == groups
    assert len(set(copies)) == min(threads, groups), "each worker has a stream of its own"


def test_rows_that_are_read_before_every_stream_has_ended_are_found() -> None:
    runtime = FakeRuntime(strict=True)
    target = runtime.allocate(100 * ROW_BYTES).view(100, ROW_BYTES)
    # Buffers for all groups: on a strict runtime the host's waits order nothing, so none may be
    # used twice.
    arena = PinnedArena(runtime, arena_bytes(5, 10, ROW_BYTES))
    worker = Gatherer(runtime, arena, 5, 10, ROW_BYTES)
    ends = worker.gather(pairs(), torch.arange(100), target)
    worker.close()
    compute = runtime.stream("compute")
    for end in ends[1:]:
        runtime.wait(compute, end)
    with pytest.raises(OrderError, match="compute reads memory that stream 1 may still be writing"):
        runtime.run(compute, lambda: None, reads=[target])


def test_a_target_is_overwritten_behind_the_events_that_are_named() -> None:
    runtime = FakeRuntime(strict=True)
    target = runtime.allocate(10 * ROW_BYTES).view(10, ROW_BYTES)
    compute = runtime.stream("compute")
    runtime.run(compute, lambda: None, reads=[target])
    last = runtime.event()
    runtime.record(last, compute)
    worker = gatherer(runtime, 2, 5)
    with pytest.raises(OrderError, match="writes memory that stream 1 may still be reading"):
        worker.gather(pairs(), torch.arange(10), target)
    worker = gatherer(runtime, 2, 5)
    worker.gather(pairs(), torch.arange(10), target, after=[last])


def test_what_does_not_fit_is_refused_before_anything_moves() -> None:
    runtime = FakeRuntime()
    target = runtime.allocate(10 * ROW_BYTES).view(10, ROW_BYTES)
    worker = gatherer(runtime, 2, 5)
    with pytest.raises(ValueError, match="11 rows are kept, but the buffer holds 10"):
        worker.gather(pairs(), torch.arange(11), target)
    with pytest.raises(ValueError, match="rows 0 to 100 are kept of 100"):
        worker.gather(pairs(), torch.tensor([0, 100]), target)
    with pytest.raises(ValueError, match="rows are of 23 and 24 B, not of 24"):
        worker.gather(pairs()[:, 1:], torch.arange(2), target)
    with pytest.raises(ValueError, match="columns=0 must be at least 1"):
        gatherer(runtime, 1, 0)
    assert not runtime.log
    worker.close()


def test_the_kept_neurons_are_those_at_least_as_large_as_the_threshold() -> None:
    v = torch.tensor([0.5, -2.0, 1.0, -1.0, 0.0])
    assert kept_rows(v, 1.0).tolist() == [1, 2, 3]
    assert all(a < b for a, b in pairwise(kept_rows(torch.randn(50), 0.3).tolist()))
