"""Copies that are issued before their service begins.

They come behind what stands before them and never sooner, and no thread is left over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock, Thread

import pytest
import torch
from torch import Tensor

from real.cuda.copies import Pinned
from real.cuda.feeder import Feeder
from sim.core.slots import RESIDENT
from unit.real.cuda.test_copies import SIZE, Bench, bench, content

PATIENCE_S = 20.0


class Fed:
    """A running feeder on a bench whose variants rest in pinned memory."""

    def __init__(self) -> None:
        self.bench: Bench = bench()
        self.is_over = False
        self.news = Condition(Lock())
        self.home: dict[int, Tensor] = {}
        for key in (0, 1):
            self.home[key] = self.bench.arena.take(SIZE)
            self.home[key].copy_(content(key))
            self.bench.held.state[key] = RESIDENT
        b = self.bench
        self.feeder = Feeder(
            b.runtime,
            b.slots,
            b.engine,
            lambda key: Pinned((self.home[key],)),
            self.news,
            lambda: self.is_over,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = Thread(target=self.feeder.loop)
        thread.start()
        try:
            yield
        finally:
            with self.news:
                self.is_over = True
                self.news.notify_all()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def announce(self, number: int, key: int, behind: int) -> None:
        with self.news:
            self.feeder.announce(number, key, SIZE, behind)

    def copies(self) -> int:
        return sum("copies copies" in line for line in self.bench.runtime.log)

    def wait_for(self, count: int) -> None:
        """Wait until so many pieces have been issued."""
        with self.news:
            assert self.news.wait_for(lambda: self.copies() >= count, PATIENCE_S)


# Contracts: C124
def test_what_is_announced_is_issued_behind_what_stands_before_it_and_can_be_read_at_its_end() -> (
    None
):
    fed = Fed()
    with fed.running():
        fed.announce(8, 1, behind=7)
        with fed.news:
            assert not fed.news.wait_for(lambda: fed.copies() > 0, 0.1), (
                "transfer 7 has not been issued"
            )
        fed.feeder.was_issued(7)
        assert fed.feeder.await_end(8, PATIENCE_S)
    b = fed.bench
    assert fed.copies() == 4
    compute, slot = b.runtime.stream("compute"), b.slots.of(1)
    b.slots.begin_read(slot, compute)
    seen = b.runtime.run(compute, lambda: slot.memory[:SIZE].clone(), reads=[slot.memory])
    assert torch.equal(seen, content(1))


def test_one_behind_another_that_was_announced_itself() -> None:
    fed = Fed()
    with fed.running():
        fed.announce(8, 0, behind=7)
        fed.feeder.was_issued(7)
        fed.wait_for(4)
        fed.announce(9, 1, behind=8)
        assert fed.feeder.await_end(8, PATIENCE_S)
        assert fed.feeder.await_end(9, PATIENCE_S)
    assert fed.copies() == 8


def test_what_was_not_announced_is_its_services_own_and_announcing_again_changes_nothing() -> None:
    fed = Fed()
    with fed.running():
        assert fed.feeder.await_end(7, PATIENCE_S) is False
        for _ in range(2):
            fed.announce(8, 1, behind=7)
        fed.feeder.was_issued(7)
        assert fed.feeder.await_end(8, PATIENCE_S)
        assert fed.feeder.await_end(8, PATIENCE_S) is False
    assert fed.copies() == 4


def test_when_the_run_is_over_nothing_waits() -> None:
    fed = Fed()
    with fed.running():
        fed.announce(8, 1, behind=7)
    assert fed.feeder.await_end(8, PATIENCE_S)
    assert fed.copies() == 0


def test_what_is_never_issued_runs_out_of_patience() -> None:
    fed = Fed()
    with fed.running():
        fed.announce(8, 1, behind=7)
        with pytest.raises(
            RuntimeError, match="transfer 8 was announced, but its copy is not issued"
        ):
            fed.feeder.await_end(8, 0.05)
