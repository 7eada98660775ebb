"""FloE's gather: kept rows arrive in order, in any number of groups, gathered by any thread."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.fake_runtime import FakeRuntime, OrderError
from helpers.lanes import Threads, at_once, give_whole, lane_of
from real.cuda.arena import PinnedArena
from real.cuda.copies import Submit
from real.cuda.gather import Gatherer, arena_bytes

ROW_BYTES = 24


def pairs(neurons: int = 100) -> Tensor:
    return torch.randint(
        0, 256, (neurons, ROW_BYTES), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )


def gatherer(
    runtime: FakeRuntime, threads: int, columns: int, submit: Submit = at_once
) -> Gatherer:
    arena = PinnedArena(runtime, arena_bytes(threads, columns, ROW_BYTES))
    return Gatherer(runtime, arena, submit, threads, columns, ROW_BYTES)


def target_of(runtime: FakeRuntime, rows: int) -> Tensor:
    return runtime.allocate(rows * ROW_BYTES).view(rows, ROW_BYTES)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("columns", [1, 7, 50, 200])
@pytest.mark.parametrize("count", [0, 1, 49, 100])
def test_the_kept_rows_arrive_in_their_order(threads: int, columns: int, count: int) -> None:
    """Threads end their groups in any order, and events end late."""
    runtime, source = FakeRuntime(strict=True, late=1), pairs()
    kept = torch.randperm(100, generator=torch.Generator().manual_seed(count))[:count].sort().values
    target, lane, working = target_of(runtime, 120), lane_of(runtime, "copies"), Threads(threads)
    worker = gatherer(runtime, threads, columns, working.submit)
    give_whole(worker.gather(source, kept, target, lane), lane, working.take)
    working.end()
    compute = lane_of(runtime, "compute")
    compute.follow(lane.moment)
    seen = runtime.run(compute.stream, lambda: target[:count].clone(), reads=[target])
    assert torch.equal(seen, source[kept])
    assert bool((target[count:] == 0xFF).all()), "written past the kept rows"
    assert len(runtime.log) == -(-count // columns), "a copy for each group"


def test_rows_that_are_read_before_their_copies_have_ended_are_found() -> None:
    runtime = FakeRuntime(strict=True)
    target, lane = target_of(runtime, 100), lane_of(runtime, "copies")
    give_whole(gatherer(runtime, 5, 10).gather(pairs(), torch.arange(100), target, lane), lane)
    with pytest.raises(OrderError, match="compute reads memory that stream 1 may still be writing"):
        runtime.run(runtime.stream("compute"), lambda: None, reads=[target])


def test_a_target_is_overwritten_behind_what_its_lane_follows() -> None:
    runtime = FakeRuntime(strict=True)
    target, compute = target_of(runtime, 10), lane_of(runtime, "compute")
    runtime.run(compute.stream, lambda: None, reads=[target])
    lane, worker = lane_of(runtime, "copies"), gatherer(runtime, 2, 5)
    with pytest.raises(OrderError, match="writes memory that stream 1 may still be reading"):
        worker.gather(pairs(), torch.arange(10), target, lane).advance()
    lane = lane_of(runtime, "more copies")
    lane.follow(compute.moment)
    give_whole(gatherer(runtime, 2, 5).gather(pairs(), torch.arange(10), target, lane), lane)


def test_what_does_not_fit_is_refused_before_anything_moves() -> None:
    runtime = FakeRuntime()
    target, lane = target_of(runtime, 10), lane_of(runtime, "copies")
    worker = gatherer(runtime, 2, 5)
    with pytest.raises(ValueError, match="11 rows are kept, but the buffer holds 10"):
        worker.gather(pairs(), torch.arange(11), target, lane)
    with pytest.raises(ValueError, match="rows 0 to 100 are kept of 100"):
        worker.gather(pairs(), torch.tensor([0, 100]), target, lane)
    with pytest.raises(ValueError, match="rows are of 23 and 24 B, not of 24"):
        worker.gather(pairs()[:, 1:], torch.arange(2), target, lane)
    with pytest.raises(ValueError, match="columns=0 must be at least 1"):
        gatherer(runtime, 1, 0)
    assert not runtime.log
