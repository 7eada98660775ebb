"""FloE's gather by a kernel that reads pinned memory: kept rows, in legal order.

Each rule is broken once, and the test sees it fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from helpers.fake_runtime import FakeRuntime, OrderError
from helpers.lanes import at_once, give_whole, lane_of
from real.cuda.arena import PinnedArena
from real.cuda.gather import Gatherer
from real.cuda.zero_copy import ZeroCopyGatherer, gatherer_bytes, gatherer_of
from real.driver.settings import Engine

ROW_BYTES, NEURONS = 24, 100


class Bench:
    """An expert that rests in pinned memory, room for it on the device, and a gatherer."""

    def __init__(self, *, strict: bool = True, columns: int = 7, form: str = "zero_copy") -> None:
        self.runtime = FakeRuntime(strict=strict)
        engine = Engine(gather=form, gather_columns=columns, gather_threads=2)
        size = gatherer_bytes(engine, NEURONS, ROW_BYTES)
        self.arena = PinnedArena(self.runtime, size + (1 << 14))
        self.worker = gatherer_of(self.runtime, self.arena, engine, at_once, NEURONS, ROW_BYTES)
        self.lane = lane_of(self.runtime, "copies")
        self.pairs = self.arena.take(NEURONS * ROW_BYTES).view(NEURONS, ROW_BYTES)
        self.pairs.random_(0, 256, generator=torch.Generator().manual_seed(0))
        self.target = self.runtime.allocate(120 * ROW_BYTES).view(120, ROW_BYTES)
        self.compute = lane_of(self.runtime, "compute")

    def gather(self, kept: Tensor, target: Tensor | None = None) -> None:
        target = self.target if target is None else target
        give_whole(self.worker.gather(self.pairs, kept, target, self.lane), self.lane)

    def read(self, count: int) -> Tensor:
        return self.look(self.target[:count])

    def look(self, rows: Tensor) -> Tensor:
        return self.runtime.run(self.compute.stream, rows.clone, reads=[rows])


@pytest.mark.parametrize("form", ["zero_copy", "staged"])
@pytest.mark.parametrize("columns", [1, 7, 50, 200])
def test_both_forms_bring_the_kept_rows_in_their_order(columns: int, form: str) -> None:
    for count in (0, 1, 49, 100):
        b = Bench(columns=columns, form=form, strict=False)
        kept = (
            torch.randperm(NEURONS, generator=torch.Generator().manual_seed(count))[:count]
            .sort()
            .values
        )
        b.gather(kept)
        b.compute.follow(b.lane.moment)
        assert torch.equal(b.read(count), b.pairs[kept])
        assert bool((b.target[count:] == 0xFF).all()), "written past the kept rows"


def test_no_row_is_copied_by_the_host() -> None:
    b = Bench()
    b.gather(torch.arange(0, NEURONS, 3))
    assert not b.runtime.log, "a copy was issued"


def test_many_gathers_reuse_the_lists_of_rows_behind_the_kernels_that_read_them() -> None:
    b = Bench()
    for seed in range(6):
        kept = torch.randperm(NEURONS, generator=torch.Generator().manual_seed(seed))[:20]
        place = b.target[20 * (seed % 5) :][:20]
        b.gather(kept, place)
        b.compute.follow(b.lane.moment)
        assert torch.equal(b.look(place), b.pairs[kept])
        # The next gather overwrites these rows, and must come behind their reader.
        b.lane.follow(b.compute.moment)


def test_a_list_that_is_written_while_a_kernel_reads_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = Bench()
    assert isinstance(b.worker, ZeroCopyGatherer)
    monkeypatch.setattr(b.runtime, "synchronize", lambda event: None)
    for _ in range(2):
        b.gather(torch.arange(5))
    with pytest.raises(
        OrderError, match=r"the host writes memory that stream \d may still be reading"
    ):
        b.gather(torch.arange(5))


def test_rows_that_are_read_before_the_kernel_has_ended_are_found() -> None:
    b = Bench()
    b.gather(torch.arange(10))
    with pytest.raises(
        OrderError, match=r"compute reads memory that stream \d may still be writing"
    ):
        b.read(10)


def test_a_target_is_overwritten_behind_what_its_lane_follows() -> None:
    b = Bench()
    b.read(10)
    with pytest.raises(OrderError, match=r"writes memory that stream \d may still be reading"):
        b.gather(torch.arange(10))
    b.lane.follow(b.compute.moment)
    b.gather(torch.arange(10))


def test_an_expert_that_rests_in_memory_which_is_not_pinned_is_found() -> None:
    b = Bench()
    with pytest.raises(OrderError, match="a kernel is to read host memory that is not pinned"):
        b.worker.gather(b.pairs.clone(), torch.arange(10), b.target, b.lane)


def test_what_does_not_fit_is_refused_before_anything_moves() -> None:
    b = Bench()
    gather: Callable[..., object] = partial(b.worker.gather, lane=b.lane)
    with pytest.raises(ValueError, match="rows 0 to 100 are kept of 100"):
        gather(b.pairs, torch.tensor([0, 100]), b.target)
    with pytest.raises(ValueError, match="11 rows are kept, but the buffer holds 10"):
        gather(b.pairs, torch.arange(11), b.target[:10])
    with pytest.raises(ValueError, match="101 rows are kept, but their list holds 100"):
        gather(b.pairs, torch.zeros(101, dtype=torch.int64), b.target)
    with pytest.raises(ValueError, match="rows are of 23 and 24 B, not of 24"):
        gather(b.pairs[:, 1:], torch.arange(2), b.target)
    with pytest.raises(ValueError, match="columns=0 must be at least 1"):
        ZeroCopyGatherer(b.runtime, b.arena, NEURONS, 0, ROW_BYTES)
    assert bool((b.target == 0xFF).all())


def test_the_form_is_what_the_engine_is_told() -> None:
    assert isinstance(Bench(form="zero_copy").worker, ZeroCopyGatherer)
    assert isinstance(Bench(form="staged").worker, Gatherer)
    with pytest.raises(
        ValueError, match=r"unknown engine.gather=copied; allowed: staged, zero_copy"
    ):
        Engine(gather="copied")


def test_memory_may_be_had_again_once_the_host_has_waited_for_its_last_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gatherer's first calls write memory that is given back; the next one may lie there."""
    place = torch.zeros(64, dtype=torch.uint8)
    monkeypatch.setattr(torch, "full", lambda *given, **words: place)
    for has_waited in (True, False):
        runtime = FakeRuntime(strict=True)
        first, second = runtime.stream("first"), runtime.stream("second")
        memory, end = runtime.allocate(64), runtime.event()
        runtime.run(first, memory.zero_, writes=[memory])
        runtime.record(end, first)
        if has_waited:
            runtime.synchronize(end)
        again = runtime.allocate(64)
        if has_waited:
            runtime.run(second, again.zero_, writes=[again])
        else:
            with pytest.raises(OrderError, match="memory that stream 1 may still be writing"):
                runtime.run(second, again.zero_, writes=[again])
