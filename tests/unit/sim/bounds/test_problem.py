"""What bounds take as the least of work and of transfers, from figures by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.bounds import problem
from sim.bounds.problem import work_of
from sim.bounds.relaxation import Problem, Requests, _solved, relaxed_ns
from sim.values.types import Place

NONE = np.zeros(0, np.int64)


@pytest.mark.parametrize(("wait", "after"), [("all", [11, 63, 14]), ("by_projection", [11, 23, 7])])
def test_of_a_need_that_is_computed_as_it_comes_nothing_must_follow_its_arrival(
    wait: str, after: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gates: dense work of 10 and 20, a tail of 5; needs of 100 and 40 at one, 7 at the other."""
    monkeypatch.setattr(problem, "_cheapest_ns", lambda *words: np.array([100, 40, 7]))
    workload: Any = SimpleNamespace(
        num_gates=2,
        steps=[SimpleNamespace(sites=(0, 1))],
        needs=SimpleNamespace(tick=np.array([0, 0, 1])),
    )
    durations: Any = SimpleNamespace(
        host=SimpleNamespace(sync_ns=1, post_ns=2, issue_ns=3),
        dense_ns=lambda step: [10, 20],
        tail_ns=lambda step: 5,
    )
    controller: Any = SimpleNamespace(
        placement=SimpleNamespace(constant=Place.LOAD), loader=SimpleNamespace(wait=wait)
    )
    found = work_of(workload, durations, controller, Any)  # type: ignore[arg-type]
    assert found.compute_ns.tolist() == [11, 166, 17]
    assert found.after_ns.tolist() == after


@pytest.mark.parametrize(
    ("chunk", "times"), [(None, [40, 8, 0]), (30, [36, 7, 0]), (1, [0, 0, 0]), (100, [39, 7, 0])]
)
def test_each_chunk_may_save_a_nanosecond_of_a_transfer(
    chunk: int | None, times: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 bytes four chunks of 30 are made, of 20 bytes one."""
    monkeypatch.setattr(
        problem, "link_time_ns", lambda durations, controller, size, link: size * 2 // 5
    )
    geometry = SimpleNamespace(
        precisions=("high", "low"),
        sites=1,
        key=lambda precision, site, expert: precision,
        bytes_of=[100, 20].__getitem__,
    )
    controller: Any = SimpleNamespace(geometry=geometry, loader=SimpleNamespace(chunk_bytes=chunk))
    sizes, found = problem._least_sizes(None, controller, 0)  # type: ignore[arg-type]
    assert sizes[:, 0].tolist() == [100, 20, 0]
    assert found[:, 0].tolist() == times


def test_without_anything_to_load_the_bound_is_all_computing_and_is_worked_out_once() -> None:
    def made(*compute_ns: int) -> Problem:
        kept = Requests(NONE, NONE, NONE, NONE, NONE.astype(bool))
        return Problem(np.array(compute_ns), np.zeros(3, np.int64), np.full(2, 9), kept)

    _solved.cache_clear()
    assert [relaxed_ns(made(5, 7, 11)) for _ in range(3)] == [23] * 3
    assert (_solved.cache_info().hits, _solved.cache_info().misses) == (2, 1)
    assert relaxed_ns(made(5, 7, 12)) == 24
    one = np.array([1])
    free = replace(made(5, 7, 11), requests=Requests(one, one, one * 0, one, one > 0))
    assert relaxed_ns(free) == 23, "what takes no time waits for nothing"
