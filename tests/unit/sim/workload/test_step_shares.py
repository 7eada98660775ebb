"""What each sequence has of a step, counted from the rows one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from helpers.composed import make_trace, random_lengths
from sim.values.types import Share, Step
from sim.workload.speculation import Speculation
from sim.workload.steps import Workload


def counted(workload: Workload, step: Step) -> dict[int, tuple[int, int]]:
    """The rows of each sequence in a step, and its tokens at the last of them."""
    rows: Counter[int] = Counter()
    tokens: dict[int, int] = {}
    for sequence, so_far in workload.tokens_at(step):
        rows[sequence] += 1
        tokens[sequence] = max(so_far, tokens.get(sequence, 0))
    return {sequence: (rows[sequence], tokens[sequence]) for sequence in step.sequences}


def walked(workload: Workload) -> Iterator[Step]:
    schedule = workload.start()
    while isinstance(step := schedule.next(10**12), Step):
        yield step


@pytest.mark.parametrize("batching", ["recorded", "sequential", "static", "continuous"])
@pytest.mark.parametrize("timed", [False, True], ids=["all there at 0", "arriving over time"])
def test_a_sequence_s_share_of_a_step_is_its_rows_and_its_own_context(
    batching: str, timed: bool
) -> None:
    if timed and batching == "recorded":
        return
    for seed in range(20):
        draw = random.Random(seed)
        lengths = random_lengths(draw)
        composes = batching != "recorded"
        trace = make_trace(lengths, seed, padding=2)
        workload = Workload(
            trace if composes else replace(trace, step=trace.step // 3),
            split="all",
            batching=batching,
            together=1 if batching in ("recorded", "sequential") else draw.randint(1, 4),
            prefill_chunk=draw.choice((None, 1, 3)) if composes else None,
            arrivals=[0] * len(lengths) if timed else None,
        )
        for step in walked(workload):
            found = [(share.rows, share.tokens) for share in step.shares]
            assert found == list(counted(workload, step).values())
            assert step.token == max(share.tokens for share in step.shares)
            assert not any(share.drafts for share in step.shares)


# Contracts: C151
def test_drafts_are_those_of_the_sequence_that_checks_them() -> None:
    """Two sequences decode three and two tokens, with up to two drafts a step: all are right."""
    workload = Workload(
        make_trace({0: (2, 3), 1: (4, 2)}),
        split="all",
        batching="static",
        together=2,
        speculation=Speculation(2),
    )
    assert [step.shares for step in workload.steps] == [
        (Share(2, 2), Share(4, 4)),
        (Share(3, 5, 2), Share(2, 6, 1)),
    ]
    assert workload.steps[1].drafters == (2, 1)
