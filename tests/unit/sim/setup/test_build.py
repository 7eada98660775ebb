"""What of a build needs no run: how much a layer's time prefetches, and where a trace lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.machine.durations import FixedDurations
from sim.setup.build import prefetches_within_layer, trace_directory
from sim.values.places import ROOT
from sim.values.types import Geometry, Step


def step(decode: bool, *sites: int) -> Step:
    return Step(0, 0, 1, (0,), 1, decode, (), (), sites)


class Steps:
    """The steps of a workload: a prompt at all sites, and tokens that visit the last two."""

    def __init__(self, *steps: Step, is_timed: bool = False) -> None:
        self.steps, self.is_timed = list(steps), is_timed


PROMPT, TOKEN = step(False, 0, 1, 2), step(True, 1, 2)
GEOMETRY = Geometry(3, 4, 2, ("fp16", "int4"), (16.0, 4.0), (8, 2), 100)


@pytest.mark.parametrize(
    ("steps", "hop_ns", "prefetches"),
    [
        # Of the dense times 10, 20 and 40 ns a token's have the mean 30. Two experts of 7 ns are 14.
        ((PROMPT, TOKEN), 8, 44 // 8),
        ((PROMPT, TOKEN), 11, 4),
        ((PROMPT, TOKEN), 12, 3),
        # A prompt's have the mean 23.
        ((PROMPT,), 8, 37 // 8),
        # One token needs two experts; and what takes no time counts as 1 ns.
        ((PROMPT, TOKEN), 1_000, 2),
        ((PROMPT, TOKEN), 0, 44),
    ],
)
def test_the_link_moves_so_many_experts_while_a_layer_is_computed(
    steps: tuple[Step, ...], hop_ns: int, prefetches: int
) -> None:
    durations = FixedDurations((10, 20, 40), 0, (7, 1), {8: hop_ns, 2: 1})
    workload: Any = Steps(*steps)
    assert prefetches_within_layer(workload, durations, GEOMETRY) == prefetches


def test_what_a_layer_takes_is_not_known_before_steps_that_depend_on_time() -> None:
    workload: Any = Steps(is_timed=True)
    with pytest.raises(
        ValueError,
        match=r"^loader\.prefetch_budget=within_layer is a mean of steps that do not depend on time;"
        r" set workload\.arrivals_per_s=null .*, or loader\.prefetch_budget to a number$",
    ):
        prefetches_within_layer(workload, FixedDurations((1,), 0, (1,), {}), GEOMETRY)


def test_a_trace_is_looked_for_where_one_stands_and_then_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trace_directory("mine") == ROOT / "mine"
    assert trace_directory("/mine") == Path("/mine")
    (tmp_path / "mine").mkdir()
    assert trace_directory("mine") == Path("mine")
