"""The probe's arithmetic; its figures need a GPU."""

from __future__ import annotations

import pytest
import torch

from helpers.fake_runtime import FakeRuntime
from real.cuda.arena import PinnedArena
from real.cuda.probing import REPEATS, copies, gathers, gathers_bytes, quantiles
from real.cuda.timing import summarise


class Clocked(FakeRuntime):
    """A runtime whose link takes 2 ns a byte and 100 ns a copy."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: object) -> None:
        self.run(stream, lambda: target.copy_(source), reads=[source], writes=[target])  # type: ignore[arg-type]
        self.time_ns += 100 + 2 * target.numel()


def test_copies_are_told_by_size_and_kind_of_memory() -> None:
    runtime = Clocked()
    rows = copies(runtime, PinnedArena(runtime, 4096), (1024, 4096))
    assert [(row["memory"], row["bytes"], row["in_a_row"]) for row in rows] == [
        (memory, size, count)
        for memory in ("pinned", "pageable", "back")
        for size in (1024, 4096)
        for count in (1, 8)
    ]
    for row in rows:
        assert row["copy_ns"] == {
            "median": 100 + 2 * row["bytes"],
            "p95": 100 + 2 * row["bytes"],
            "n": REPEATS - 2,
        }
        assert row["bytes_per_s"] == pytest.approx(1e9 * row["bytes"] / (100 + 2 * row["bytes"]))


def test_both_forms_of_the_gather_are_swept_over_columns_and_the_staged_one_over_threads() -> None:
    runtime = FakeRuntime()
    arena = PinnedArena(runtime, gathers_bytes(200, 64, (1, 50), (2, 3)))
    rows = gathers(runtime, arena, 200, 64, (1, 50), (2, 3))
    assert [(row["gather"], row["threads"], row["columns"]) for row in rows] == [
        ("staged", 2, 1),
        ("staged", 2, 50),
        ("staged", 3, 1),
        ("staged", 3, 50),
        ("zero_copy", 1, 1),
        ("zero_copy", 1, 50),
    ]
    assert all(
        row["bytes_per_s"] == pytest.approx(20 * 64 / row["gather_ns"]["median"] * 1e9)
        for row in rows
    )


def test_quantiles_and_shares_by_hand() -> None:
    assert quantiles([3.0, 1.0, 2.0]) == {"median": 2.0, "p95": 3.0, "n": 3}
    timed = summarise("gemv", "small", [100.0, 200.0, 300.0], 4000, 40e9)
    assert (timed.median_ns, timed.p95_ns, timed.bytes_per_s, timed.share) == (
        200.0,
        300.0,
        20e9,
        0.5,
    )
