"""The frontier against a run of the engine for each capacity, lookup by lookup."""

from __future__ import annotations

import numpy as np
import pytest

from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.engine.simulate import simulate
from sim.machine.durations import FixedDurations
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.policies.recency import LRU
from sim.screening.frontier import curve_of, walked
from sim.traces.trace import DECODE, PREFILL, Header, ModelShape, Site, Trace, TraceSequence
from sim.values.types import Geometry, Outcome
from sim.workload.steps import Workload

TOP_K = 2
PROMPT = 3


def random_trace(seed: int, sites: int, experts: int, steps: int) -> Trace:
    """Two sequences, each with a prompt in one step of several rows; skewed popularity."""
    rng = np.random.default_rng(seed)
    rows = 2 * (PROMPT + steps)
    popularity = rng.dirichlet(np.full(experts, 0.6), sites) * 0.95 + 0.05 / experts
    ids = np.array(
        [
            [rng.choice(experts, TOP_K, replace=False, p=popularity[site]) for site in range(sites)]
            for _ in range(rows)
        ],
        np.int16,
    )
    of_one = [0] * PROMPT + [*range(1, steps + 1)]
    position = [*range(PROMPT + steps)]
    return Trace(
        header=Header(
            name="random",
            created="",
            source="synthetic",
            model=ModelShape("random", "none", sites, experts, TOP_K, 1, 1),
            dtype="none",
            experts_implementation="none",
            sites=tuple(Site(site, f"site {site}", site) for site in range(sites)),
            sequences=tuple(TraceSequence(n, "eval", "", PROMPT, steps) for n in range(2)),
            licence="none",
        ),
        step=np.array([*of_one, *(at + steps + 1 for at in of_one)], np.int32),
        phase=np.array(([PREFILL] * PROMPT + [DECODE] * steps) * 2, np.uint8),
        sequence=np.repeat([0, 1], PROMPT + steps).astype(np.int32),
        position=np.array(position * 2, np.int32),
        token=np.full(rows, -1, np.int32),
        valid=np.ones(rows, np.bool_),
        ids=ids,
        weights=np.full((rows, sites, TOP_K), 0.5, np.float32),
    )


def controller_of(sites: int, experts: int, slots: int, scope: str, initial: str) -> Controller:
    geometry = Geometry(sites, experts, TOP_K, ("fp16",), (16.0,), (100,), slots * 100)
    policy = LRU(scope=scope, initial=initial)
    return Controller(geometry, NoPrediction(), policy, Fixed("fp16"), Load(), Loader())


# Contracts: C118
@pytest.mark.parametrize("scope", ["global", "site"])
@pytest.mark.parametrize("initial", ["ascending", "empty"])
@pytest.mark.parametrize("seed", range(3))
def test_every_capacity_has_the_lookups_of_a_run(seed: int, initial: str, scope: str) -> None:
    sites, experts = 2 + seed, 5 + seed
    workload = Workload(random_trace(seed, sites, experts, 25))
    everything = sites * experts
    curve = curve_of(controller_of(sites, experts, everything, scope, initial), workload)
    hits = []
    for slots in range(curve.least, everything + 1):
        controller = controller_of(sites, experts, slots, scope, initial)
        simulate(controller, workload, FixedDurations([5] * sites, 3, [2], [{100: 11}]))
        outcome = np.array(controller.lookup_outcomes)
        assert (outcome == Outcome.HIT).tolist() == (curve.slots <= slots).tolist(), slots
        again = controller_of(sites, experts, slots, scope, initial)
        assert walked(again, workload) == curve.at(slots)
        hits.append(curve.at(slots).hits)
    assert hits == sorted(hits)
    assert hits[0] < hits[-1]
