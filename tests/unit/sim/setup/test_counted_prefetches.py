"""How many experts a link moves while layers are computed, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from sim.machine.durations import FixedDurations
from sim.policies.predictors import NoPrediction
from sim.setup.counted_prefetches import counted_prefetches
from sim.study.trials import prepared
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
    found = counted_prefetches("within_layer", None, workload, durations, GEOMETRY)
    assert found == prefetches


@pytest.mark.parametrize(("hop_ns", "prefetches"), [(44, 3), (67, 1), (132, 1), (133, 0)])
def test_the_link_moves_so_many_experts_until_the_gate_of_a_forecast(
    hop_ns: int, prefetches: int
) -> None:
    """A token's mean layer takes 30 + 2 * 7 = 44 ns; the forecast is made three gates before."""
    durations = FixedDurations((10, 20, 40), 0, (7, 1), {8: hop_ns, 2: 1})
    workload: Any = Steps(PROMPT, TOKEN)
    assert counted_prefetches("in_time", 3, workload, durations, GEOMETRY) == prefetches


def test_what_arrives_in_time_is_not_known_of_a_predictor_without_a_reach() -> None:
    durations = FixedDurations((10, 20, 40), 0, (7, 1), {8: 1, 2: 1})
    workload: Any = Steps(PROMPT, TOKEN)
    with pytest.raises(ValueError, match=r"in_time needs .*predictor=expected_needs, or set"):
        counted_prefetches("in_time", None, workload, durations, GEOMETRY)
    nobody = NoPrediction().reach
    assert counted_prefetches("in_time", nobody, workload, durations, GEOMETRY) == 0


def test_what_a_layer_takes_is_not_known_before_steps_that_depend_on_time() -> None:
    workload: Any = Steps(is_timed=True)
    durations = FixedDurations((1,), 0, (1,), {})
    with pytest.raises(
        ValueError,
        match=r"^loader\.prefetch_budget=within_layer is a mean of steps that do not depend on time;"
        r" set workload\.arrivals_per_s=null .*, or loader\.prefetch_budget to a number$",
    ):
        counted_prefetches("within_layer", None, workload, durations, GEOMETRY)


# Contracts: C30, C64
def test_a_load_that_looks_through_all_slots_takes_that_long_when_prefetches_are_counted() -> None:
    """Half of 128 experts are 64 slots. To look through them takes 64 times 200 us: 12.8 ms more."""
    words = ["system=lru", "model=tiny_mixtral", "hardware=paced_cpu", "trace.max_sequences=1"]
    words += ["predictor=expected_needs", "loader.prefetch_budget=in_time"]
    counted = []
    for slot_us in (0, 200):
        run = prepared([*words, f"+hardware.links.loader.slot_us={slot_us}"])
        load_ns = run.durations.hop_ns(0, run.controller.geometry.variant_bytes[0])
        decode = [step for step in run.workload.steps if step.decode]
        dense = [run.durations.dense_ns(step)[site] for step in decode for site in step.sites]
        layer_ns = sum(dense) // len(dense) + 2 * run.durations.expert_ns(0, 0, 1)
        counted.append(run.controller.loader.prefetch_budget)
        assert run.controller.predictor.reach * layer_ns // load_ns == counted[-1]
    assert counted[0] > counted[1]
