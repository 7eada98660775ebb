"""What `sim.explain` says of runs so small that the reason for each miss is known by hand.

An expert takes 1 ms on the link. A site is computed in 0.4 ms, of which its expert takes next to
nothing. Experts are named ``site.expert``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from helpers.bundled import Configure
from sim.explain import Explained, Question
from sim.results.outputs import write_outputs
from sim.results.run_log import RunLog
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.synthesis import RULE, synthesize
from sim.traces.trace import ModelShape, write_trace

EXPERTS = 4
HIGH = 8.0
HARDWARE = (
    "hardware.links.pcie.peak_gb_per_s=0.09216",
    "hardware.links.pcie.efficiency=1",
    "hardware.links.pcie.overhead_us=0",
    "hardware.compute.launch_us=100",
    "hardware.compute.dense_launches=4",
    "hardware.compute.expert_launches=0",
    "hardware.compute.tail_launches=0",
)
Needs = Sequence[Sequence[Sequence[int]]]
Forecasts = Mapping[tuple[int, int, int], Sequence[int]]


def logits_of(experts: Sequence[int]) -> list[float]:
    """Scores whose best are these experts, in this order, each 1 above the next.

    With two of them the weights are 0.73 and 0.27.
    """
    return [HIGH - experts.index(expert) if expert in experts else 0.0 for expert in range(EXPERTS)]


def run_by_hand(
    folder: Path,
    configure: Configure,
    needs: Needs,
    forecasts: Forecasts,
    slots: float,
    *overrides: str,
) -> Explained:
    """Replay one sequence of one-token steps, with ``needs`` by step and site.

    ``forecasts``: by step, site and distance what the lookahead names there; what is not given is
    what is needed. ``slots``: how many experts fit the budget.
    """
    steps, sites, top_k = len(needs), len(needs[0]), len(needs[0][0])
    depth = sites - 1
    shape = ModelShape("hand", "none", sites, EXPERTS, top_k, 128, 120)
    base = synthesize(shape, tokens=steps, sequences=1, lookahead=depth)
    logits = np.array([[logits_of(experts) for experts in step] for step in needs], np.float32)
    lookahead = np.full((steps, sites, depth, EXPERTS), np.nan, np.float32)
    for step in range(steps):
        for site in range(sites):
            for ahead in range(1, min(depth, sites - 1 - site) + 1):
                named = forecasts.get((step, site, ahead), needs[step][site + ahead])
                lookahead[step, site, ahead - 1] = logits_of(named)
    routed = [RULE.route(logits[:, site], top_k) for site in range(sites)]
    ids, weights = (np.stack([part[i] for part in routed], axis=1) for i in range(2))
    trace = replace(
        base,
        ids=ids.astype(np.int16),
        weights=weights.astype(np.float32),
        logits=logits,
        lookahead={"raw": lookahead},
    )
    write_trace(folder / "trace", trace)
    config = configure(
        "system=lru",
        "model=tiny_mixtral",
        "model.name=hand",
        f"model.sites={sites}",
        f"model.experts={EXPERTS}",
        f"model.top_k={top_k}",
        f"trace.path={folder / 'trace'}",
        f"budget.resident_share={slots / sites / EXPERTS}",
        *HARDWARE,
        *overrides,
    )
    run = build(config, "any")
    result = execute(run)
    write_outputs(
        folder / "run", result.summary, run.config, result.frames, run.controller.loader.wait, 1
    )
    return Explained(RunLog(folder / "run"))


def told(explained: Explained, step: int, site: int, expert: int) -> str:
    return "\n".join(explained.explain(Question(step, site, expert)))


AHEAD_1, AHEAD_2 = "predictor=gate_lookahead_1", "predictor=gate_lookahead_2"
TWO_PRECISIONS = (
    "precision=score_threshold",
    "precision.low_above=0.5",
    "precision.skip_above=0.9",
    "cache=lru",
    "cache.scope=precision",
    "+cache.shares=[0.75,0.25]",
)
"""Of two experts the better is wanted at fp16, the other at int4 unless it is there at fp16."""


@dataclass(frozen=True)
class Story:
    """A run (needs, forecasts, slots, choices), a lookup in it, and what must be said of that."""

    needs: Needs
    forecasts: Forecasts
    slots: float
    choices: tuple[str, ...]
    asked: tuple[int, int, int]
    said: tuple[str, ...]


STORIES = {
    # 0.0, 0.1 and 0.2 are resident. 1.0 replaces 0.1, the oldest of those not needed now. Then 0.1
    # is needed.
    "evicted": Story(
        [[[0], [0]], [[1], [0]]],
        {},
        3,
        (),
        (1, 0, 1),
        (
            ": MISS at ",
            (
                "Layer 0 expert 1 was last there from the start, not used, until tick 1 (step 0,"
                " layer 1)."
            ),
            "It was evicted for a demand of layer 1 expert 0: LRU ranked it lowest",
            "the first to go was layer 0 expert 2, at tick 2",
            "the run has no predictor",
        ),
    ),
    # 1.1 has the second best score, and only one expert is forecast.
    "not prefetched: not forecast": Story(
        [[[0], [1]]],
        {(0, 0, 1): [2, 1]},
        2,
        (AHEAD_1,),
        (0, 1, 1),
        (
            ": MISS at ",
            "the lookahead ranked it 2 of 4, outside the 1 forecast",
            "meanwhile pcie served 1 prefetch (0.600 ms): layer 1 expert 2",
        ),
    ),
    # 1.1, forecast wrongly, is the one prefetch that a gate may queue.
    "not prefetched: the budget": Story(
        [[[0], [0], [1]]],
        {(0, 0, 1): [1], (0, 1, 1): [2]},
        5,
        (AHEAD_2, "loader.prefetch_budget=1"),
        (0, 2, 1),
        (
            ": MISS at ",
            "1 site before (layer 1) the lookahead ranked it 2 of 4, outside the 1 forecast",
            (
                "2 sites before (layer 0) the lookahead ranked it 1 of 4, among those forecast, but"
                " the budget of 1 was used up (layer 1 expert 1)"
            ),
        ),
    ),
    # The walk ends at layer 1, where 1.1 is missing.
    "not prefetched: the walk": Story(
        [[[0], [0], [1]]],
        {(0, 0, 1): [1], (0, 1, 1): [2]},
        5,
        (AHEAD_2, "loader.depth=first_missing"),
        (0, 2, 1),
        ("but the walk had stopped at a nearer site, where layer 1 expert 1 was missing",),
    ),
    "not prefetched: the first gate": Story(
        [[[0], [0]], [[1], [0]]],
        {},
        3,
        (AHEAD_1,),
        (1, 0, 1),
        ("its gate is the step's first, and lookahead stays inside a step",),
    ),
    # Queued 0.4 ms before it is asked for, an expert of 1 ms comes 0.6 ms late.
    "late": Story(
        [[[0], [1]]],
        {},
        2,
        (AHEAD_1,),
        (0, 1, 1),
        (
            ": LATE at 0.800 ms",
            "queued at tick 0 (step 0, layer 0), 1 site ahead",
            "moved from 0.400 ms to 1.400 ms",
            "It came 0.600 ms after the gate asked",
        ),
    ),
    # The one slot is the current gate's.
    "refused: no slot": Story(
        [[[0], [1]]],
        {},
        1,
        (AHEAD_1,),
        (0, 1, 1),
        (
            ": MISS at ",
            (
                "queued at tick 0 (step 0, layer 0), 1 site ahead, and dropped after tick 0 (step"
                " 0, layer 0): everything that could have made room was pinned or forecast"
            ),
        ),
    ),
    # 1.1 is ahead of 2.1 on the link; 0.2 ms of it are left when 2.1 is asked for.
    "promoted": Story(
        [[[0], [0], [1]]],
        {(0, 0, 1): [1]},
        5,
        (AHEAD_2,),
        (0, 2, 1),
        (
            ": PROMOTED at 1.201 ms",
            "It was there 1.200 ms later",
            (
                "2 sites ahead, and had not started 0.800 ms later, when it became a demand;"
                " meanwhile pcie served 1 prefetch (0.800 ms): layer 1 expert 1"
            ),
        ),
    ),
    # It waits for 1.1, until layer 1 forecasts 2.2 in its place.
    "cancelled": Story(
        [[[0], [0], [1]]],
        {(0, 0, 1): [1], (0, 0, 2): [1], (0, 1, 1): [2]},
        5,
        (AHEAD_2, "loader.queue=replace"),
        (0, 2, 1),
        (
            ": MISS at ",
            (
                "2 sites ahead, and cancelled at tick 1 (step 0, layer 1) (a newer forecast"
                " replaced the queue)"
            ),
        ),
    ),
    # Three experts fit at fp16, all of layer 0. 0.2, the oldest, is replaced by 1.1, which is
    # needed with 1.2 (resident at int4).
    "evicted, two precisions": Story(
        [[[0, 1], [1, 2]], [[2, 1], [1, 2]]],
        {},
        4,
        TWO_PRECISIONS,
        (1, 0, 2),
        (
            ": MISS at ",
            "fp16 was wanted, fp16 served",
            (
                "Layer 0 expert 2 fp16 was last there from the start, not used, until tick 1 (step"
                " 0, layer 1)."
            ),
            "It was evicted for a demand of layer 1 expert 1 fp16: LRU ranked it lowest",
        ),
    ),
    # Six fit at fp16: all of layer 0, 1.0 and 1.1. As in "promoted", with 1.2 before it.
    "promoted, two precisions": Story(
        [[[0, 1], [0, 1], [1, 2]]],
        {(0, 0, 1): [2, 3]},
        8,
        (*TWO_PRECISIONS, AHEAD_2),
        (0, 2, 1),
        (
            ": PROMOTED at 1.201 ms",
            "fp16 was wanted, fp16 served",
            (
                "had not started 0.801 ms later, when it became a "
                "demand; meanwhile pcie served 1 prefetch (0.801 ms): layer 1 expert 2 fp16"
            ),
        ),
    ),
    # Five experts fit at fp16 and two at int4, none of layer 2. 2.2 is queued at fp16 and 2.1 at
    # int4, but they are needed the other way round.
    "not prefetched, two precisions": Story(
        [[[0, 1], [0, 1], [1, 2]]],
        {(0, 0, 1): [2, 3], (0, 0, 2): [2, 1], (0, 1, 1): [2, 1]},
        6,
        (*TWO_PRECISIONS[:-1], "+cache.shares=[0.9,0.1]", AHEAD_2),
        (0, 2, 1),
        (
            ": MISS at 1.201 ms",
            (
                "2 sites before (layer 0) the lookahead ranked it 2 of 4, among those forecast, but"
                " layer 2 expert 1 int4 was queued, at tick 0 (step 0, layer 0), where fp16 is"
                " wanted now"
            ),
        ),
    ),
    "cancelled, two precisions": Story(
        [[[0, 1], [0, 1], [1, 2]]],
        {(0, 0, 1): [2, 3], (0, 0, 2): [2, 1], (0, 1, 1): [2, 1]},
        6,
        (*TWO_PRECISIONS[:-1], "+cache.shares=[0.9,0.1]", AHEAD_2),
        (0, 2, 2),
        (
            ": MISS at 1.201 ms",
            "int4 was wanted, int4 served",
            (
                "but layer 2 expert 2 fp16 was queued, at tick 0 (step "
                "0, layer 0), where int4 is wanted now"
            ),
        ),
    ),
    "late, two precisions": Story(
        [[[0, 1], [2, 1]]],
        {},
        6,
        (*TWO_PRECISIONS, AHEAD_1),
        (0, 1, 2),
        (": LATE at 0.8", "0.600 ms after the gate"),
    ),
    # 1.2 came in vain for step 0. For step 1 it is forecast again, and on its way at its gate.
    "late: it had come in vain": Story(
        [[[0], [1]], [[0], [2]]],
        {(0, 0, 1): [2]},
        1,
        (AHEAD_1, "loader.staging_slots=2", "loader.destination=staging"),
        (1, 1, 2),
        (
            ": LATE at ",
            (
                "Layer 1 expert 2 had last come by a prefetch issued after tick 0 (step 0, layer 0),"
                " into staging, and left it unused."
            ),
        ),
    ),
    # 0.0, in the one slot, is always needed before 1.1 is again.
    "refused: by the policy": Story(
        [[[0], [1]], [[0], [1]], [[0], [1]]],
        {},
        1,
        ("cache=belady_bypass", "cache.initial=ascending", "loader.staging_slots=2"),
        (1, 1, 1),
        (
            ": MISS at ",
            (
                "Layer 1 expert 1 had last come by a demand issued after tick 1 (step 0, layer 1),"
                " and was served from staging: Belady did not keep it."
            ),
        ),
    ),
}


ONE_MORE = (
    "not prefetched: the budget",
    "not prefetched: the first gate",
    "promoted, two precisions",
    "late, two precisions",
    "not prefetched, two precisions",
)


@pytest.mark.alike
@pytest.mark.parametrize(
    "story",
    [
        pytest.param(story, id=name, marks=[pytest.mark.thorough] if name in ONE_MORE else [])
        for name, story in STORIES.items()
    ],
)
def test_the_reason_that_is_told_is_the_one_known_by_hand(
    tmp_path: Path, configure: Configure, story: Story
) -> None:
    explained = run_by_hand(
        tmp_path, configure, story.needs, story.forecasts, story.slots, *story.choices
    )
    text = told(explained, *story.asked)
    for part in story.said:
        assert part in text, text


def test_another_trace_at_the_place_of_the_replayed_one_is_not_taken_for_it(
    configure: Configure, tmp_path: Path
) -> None:
    """A relative path leads elsewhere where results are read from another folder."""
    explained = run_by_hand(tmp_path, configure, [[[0], [1]], [[2], [3]]], {}, 4)
    assert explained.trace is not None
    shape = ModelShape("hand", "none", 2, EXPERTS, 1, 128, 120)
    write_trace(tmp_path / "other", synthesize(shape, tokens=2, sequences=1, lookahead=1))
    (tmp_path / "trace").rename(tmp_path / "moved")
    (tmp_path / "other").rename(tmp_path / "trace")
    found = Explained(RunLog(tmp_path / "run"))
    assert found.trace is None
    with pytest.raises(ValueError, match=r"the trace that it replayed is not at .*; give site="):
        found.site_of(0)
