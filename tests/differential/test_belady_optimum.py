"""Caches that know the future, against the fewest loads that any cache can make.

That number is found in two other ways. Gates ask for several experts at once, of several sites, in
shared pools or in pools of their own. For the smallest cases every possible content of the cache is
tried. For larger ones it comes from a flow: the time of each key between two of its requests is an
interval that may hold a slot, and as many units as there are slots flow through the gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.engine.simulate import simulate
from sim.machine.durations import FixedDurations
from sim.policies.base import CachePolicy
from sim.policies.belady import Belady, CostAwareBelady, Foreseeing
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.traces.trace import DECODE, PREFILL, Header, ModelShape, Site, Trace, TraceSequence
from sim.values.types import Geometry, Outcome
from sim.workload.steps import Workload

Gates = list[list[int]]
SIZE = 1000


def workload_of(
    rng: np.random.Generator, sites: int, experts: int, top_k: int, steps: int, rows: int
) -> Workload:
    """One sequence: a prompt of so many rows (0: none), then single tokens that are often like
    the one before.
    """
    count = rows + steps
    ids = np.empty((count, sites, top_k), np.int16)
    popular = rng.dirichlet(np.full(experts, 0.7), size=sites) + 1e-3
    popular /= popular.sum(1, keepdims=True)
    for row in range(count):
        for site in range(sites):
            repeats = row > 0 and rng.random() < 0.3
            ids[row, site] = (
                ids[row - 1, site] if repeats else rng.choice(experts, top_k, False, popular[site])
            )
    step = np.maximum(np.arange(count) - max(rows - 1, 0), 0).astype(np.int32)
    header = Header(
        name="gates",
        created="",
        source="synthetic",
        model=ModelShape("gates", "none", sites, experts, top_k, 1, 1),
        dtype="none",
        experts_implementation="none",
        sites=tuple(Site(site, f"site {site}", site) for site in range(sites)),
        sequences=(TraceSequence(0, "eval", "", rows, steps),),
        licence="none",
    )
    return Workload(
        Trace(
            header=header,
            step=step,
            phase=np.where(np.arange(count) < rows, PREFILL, DECODE).astype(np.uint8),
            sequence=np.zeros(count, np.int32),
            position=np.arange(count, dtype=np.int32),
            token=np.full(count, -1, np.int32),
            valid=np.ones(count, np.bool_),
            ids=ids,
            weights=np.ones(ids.shape, np.float32),
        )
    )


def gates_of(workload: Workload) -> Gates:
    """The keys of each gate, in need order."""
    gates: Gates = []
    gate = workload.gate()
    for step in workload.steps:
        gate.open(step)
        for site in step.sites:
            gate.visit(site)
            gates.append(list(gate.keys))
    return gates


def run(policy: CachePolicy, workload: Workload, slots: int, **switches: int) -> Controller:
    shape = workload.trace.header.model
    geometry = Geometry(
        shape.sites, shape.experts, shape.top_k, ("fp16",), (16.0,), (SIZE,), slots * SIZE
    )
    if isinstance(policy, Foreseeing):
        policy.foresee(gates_of(workload))
    controller = Controller(
        geometry, NoPrediction(), policy, Fixed("fp16"), Load(), Loader(**switches)
    )
    rows = max(step.rows for step in workload.steps)
    simulate(
        controller,
        workload,
        FixedDurations([5] * shape.sites, 3, [2] * rows, [{SIZE: 11}], latency_ns=[1]),
    )
    controller.check()
    assert set(controller.lookup_outcomes) <= {Outcome.HIT, Outcome.MISS}
    return controller


def loads(policy: CachePolicy, workload: Workload, slots: int, **switches: int) -> int:
    return run(policy, workload, slots, **switches).lookup_outcomes.count(Outcome.MISS)


# ---- the fewest loads, found in other ways


def fewest_by_trying(
    gates: Gates, slots: int, initial: Sequence[int] = (), must_enter: bool = False
) -> int:
    """Of every content that the cache may have between two gates: the least loads so far.

    ``must_enter``: what a gate asked for is there until the next; else it may be served without
    entering.
    """
    reached = {frozenset(initial): 0}
    for keys in gates:
        asked = frozenset(keys)
        following: dict[frozenset[int], int] = {}
        for held, made in reached.items():
            there = held | asked
            for kept in map(frozenset, combinations(sorted(there), min(slots, len(there)))):
                if kept >= asked or not must_enter:
                    total = made + len(asked - held)
                    following[kept] = min(total, following.get(kept, total))
        reached = following
    return min(reached.values())


def fewest_by_flow(gates: Gates, slots: int, initial: Sequence[int] = ()) -> int:
    """All requests less the most intervals between two requests of a key that fit into so many
    slots.

    A node is a gate, the first the start. A unit of flow goes from one to the next for nothing, or
    holds a key from one of its requests to the next, and saves a load. Each unit takes the path
    that saves most of what is left.
    """
    last = dict.fromkeys(initial, 0)
    arcs: list[tuple[int, int]] = []
    for node, keys in enumerate(gates, start=1):
        arcs += [(last[key], node) for key in keys if key in last]
        last |= dict.fromkeys(keys, node)
    flow = Flow(len(gates) + 1, arcs)
    return sum(map(len, gates)) - sum(flow.add_unit() for _ in range(slots))


class Flow:
    """Units from the first node to the last, over ``arcs`` of one unit each that save one, or
    from node to node.
    """

    def __init__(self, nodes: int, arcs: Sequence[tuple[int, int]]) -> None:
        self.nodes, self.arcs = nodes, arcs
        self.used = [False] * len(arcs)
        self.idle = [0] * (nodes - 1)

    def residual(self) -> list[tuple[int, int, int, int]]:
        """(from, to, saving, arc) of all that a unit may do; undoing what others did, too. Arc
        -1: for nothing.
        """
        steps = [(node, node + 1, 0, -1) for node in range(self.nodes - 1)]
        steps += [(node + 1, node, 0, -1) for node, units in enumerate(self.idle) if units]
        return steps + [
            (end, begin, -1, arc) if self.used[arc] else (begin, end, 1, arc)
            for arc, (begin, end) in enumerate(self.arcs)
        ]

    def add_unit(self) -> int:
        """What one unit more saves."""
        steps, unreached = self.residual(), -len(self.arcs) - 1
        saved = [0] + [unreached] * (self.nodes - 1)
        came = [(-1, -1)] * self.nodes
        has_changed = True
        while has_changed:
            has_changed = False
            for begin, end, saving, arc in steps:
                if saved[begin] > unreached and saved[begin] + saving > saved[end]:
                    saved[end], came[end], has_changed = saved[begin] + saving, (begin, arc), True
        node = self.nodes - 1
        while node:
            before, arc = came[node]
            if arc >= 0:
                self.used[arc] = not self.used[arc]
            else:
                self.idle[min(before, node)] += 1 if before < node else -1
            node = before
        return saved[-1]


def pools_of(gates: Gates, by_site: bool, units: int) -> list[Gates]:
    """The gates as each pool sees them."""
    if not by_site:
        return [gates]
    return [
        [keys for keys in gates if keys[0] // units == site]
        for site in sorted({k[0] // units for k in gates})
    ]


# ---- the policies


SMALL = ((1, 5, 2), (2, 4, 2), (3, 3, 1))
"""Sites, experts, experts a token."""


# Contracts: C49
@pytest.mark.parametrize("shape", SMALL)
@pytest.mark.parametrize("by_site", [False, True])
def test_with_bypass_no_cache_makes_fewer_loads(shape: tuple[int, int, int], by_site: bool) -> None:
    sites, experts, top_k = shape
    for seed in range(40):
        workload = workload_of(
            np.random.default_rng([seed, *shape]), sites, experts, top_k, 6, rows=seed % 3
        )
        gates = gates_of(workload)
        largest = max(map(len, gates))
        for slots in range(1, 4):
            pools = pools_of(gates, by_site, experts + 1)
            fewest = sum(fewest_by_trying(pool, slots) for pool in pools)
            assert fewest == sum(fewest_by_flow(pool, slots) for pool in pools)
            policy = Belady("site" if by_site else "global", initial="empty", bypass=True)
            count = slots * (sites if by_site else 1)
            assert loads(policy, workload, count, staging_slots=largest) == fewest, (seed, slots)


@pytest.mark.parametrize("by_site", [False, True])
@pytest.mark.parametrize("initial", ["empty", "ascending"])
def test_with_bypass_loads_are_those_of_a_flow_through_the_gates(
    by_site: bool, initial: str
) -> None:
    """Larger than what can be tried: 3 sites of 8 experts, prompts of five tokens, 40 tokens
    more.
    """
    sites, experts, top_k = 3, 8, 2
    for seed in range(3):
        workload = workload_of(np.random.default_rng(seed), sites, experts, top_k, 40, rows=5)
        gates = gates_of(workload)
        for slots in (1, 2, 4):
            policy = Belady("site" if by_site else "global", initial=initial, bypass=True)
            controller = run(policy, workload, slots * sites, staging_slots=experts)
            here = controller.slots.initial
            made = controller.lookup_outcomes.count(Outcome.MISS)
            fewest = 0
            for pool in pools_of(gates, by_site, experts + 1):
                mine = {key // (experts + 1) for keys in pool for key in keys}
                start = [key for key in here if key // (experts + 1) in mine]
                fewest += fewest_by_flow(pool, slots if by_site else slots * sites, start)
            assert made == fewest, (seed, slots)


@pytest.mark.parametrize("shape", SMALL)
def test_where_all_must_enter_no_cache_makes_fewer_loads(shape: tuple[int, int, int]) -> None:
    sites, experts, top_k = shape
    for seed in range(40):
        workload = workload_of(
            np.random.default_rng([seed, *shape]), sites, experts, top_k, 6, rows=0
        )
        for slots in range(top_k, 4):
            fewest = fewest_by_trying(gates_of(workload), slots, must_enter=True)
            assert loads(Belady(initial="empty"), workload, slots) == fewest, (seed, slots)


@pytest.mark.parametrize("overhead_bytes", [0, 700])
def test_in_waves_costs_change_nothing_where_sizes_are_equal(overhead_bytes: int) -> None:
    """Prompts of 12 tokens ask for more than the pool holds, so that their needs are admitted
    one by one.
    """
    for seed in range(6):
        workload = workload_of(np.random.default_rng(seed), 2, 10, 2, 20, rows=12)
        assert max(map(len, gates_of(workload))) > 4
        for slots in (2, 3, 4):
            plain = run(Belady(initial="empty"), workload, slots)
            costly = run(CostAwareBelady(overhead_bytes, initial="empty"), workload, slots)
            assert plain.wave_calls
            assert costly.lookup_outcomes == plain.lookup_outcomes, (seed, slots)
            assert costly.events == plain.events
