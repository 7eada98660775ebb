"""The comparison with the reference has teeth: nine defects, each planted in the production code, are all found.

A mutant changes public names only, so that the code below them may be tuned. The comments at ``MUTANTS`` say how many
random scenarios it took to find each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from differential import production, reference
from differential.scenario import Cache, Scenario
from differential.test_engine_against_reference import first_difference, given
from sim import engine
from sim.controller import Controller
from sim.loader import Loader, Transfer
from sim.policies.base import Gate
from sim.policies.caches import LRU
from sim.slots import RESIDENT, Slots
from sim.types import Cause, Outcome

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Answer = tuple[list[int], dict[int, Transfer] | None]
FOUND_RESIDENT = (Outcome.HIT, Outcome.HIGH_FOR_LOW, Outcome.LOW_FOR_HIGH)
LIMIT = 120
"""Random scenarios in which a defect must show."""


def gates_before_transfer_ends(patch: Patch) -> None:
    """At one instant a gate no longer sees what arrives then."""
    patch.setattr(engine, "GATE", engine.TRANSFER_END >> 1)


def pins_ignored(patch: Patch) -> None:
    """What a gate needs, and what is there, may be evicted."""
    claim = Slots.claim

    def mutant(slots: Slots, key: int, need_bytes: int, demand: bool) -> Sequence[int] | None:
        blocked, pinned = slots.blocked, slots.pinned
        slots.pinned = bytearray(p and slots.state[k] < RESIDENT for k, p in enumerate(pinned))
        slots.blocked = bytearray(b and not (p and slots.state[k] >= RESIDENT)
                                  for k, (b, p) in enumerate(zip(blocked, pinned, strict=True)))  # fmt: skip
        victims = claim(slots, key, need_bytes, demand)
        slots.blocked, slots.pinned = blocked, pinned
        return victims

    patch.setattr(Slots, "claim", mutant)


def masks_ignored(patch: Patch) -> None:
    """A prefetch evicts what is forecast."""
    claim = Slots.claim

    def mutant(slots: Slots, key: int, need_bytes: int, demand: bool) -> Sequence[int] | None:
        blocked, slots.blocked = slots.blocked, slots.pinned
        victims = claim(slots, key, need_bytes, demand)
        slots.blocked = blocked
        return victims

    patch.setattr(Slots, "claim", mutant)


def _with_loader(patch: Patch, change: Callable[[Loader], Loader]) -> None:
    """Every controller gets another loader than it was given."""
    init: Callable[..., None] = Controller.__init__

    def mutant(self: Controller, *parts: Any) -> None:
        init(self, *parts[:-1], change(parts[-1]))

    patch.setattr(Controller, "__init__", mutant)


def promotion_lost(patch: Patch) -> None:
    _with_loader(patch, lambda loader: replace(loader, promote=False))


def stale_prefetches_kept(patch: Patch) -> None:
    _with_loader(patch, lambda loader: replace(loader, cancel_stale=False))


def slots_claimed_at_queueing(patch: Patch) -> None:
    """Everything is issued, and so claims, as soon as it is queued (in ``one_queue`` nothing overtakes anyway)."""

    def change(loader: Loader) -> Loader:
        loader = replace(loader)
        object.__setattr__(loader, "in_flight", 1000)
        return loader

    _with_loader(patch, change)


def one_queue(scenario: Scenario) -> Scenario:
    """First in first out, nothing cancelled: only the time of the claim distinguishes issue from queueing."""
    loader = replace(scenario.loader, in_flight=1, demand_first=False, promote=False, cancel_stale=False,
                     queue="append", prefetch_budget="all")  # fmt: skip
    return replace(scenario, loader=loader)


def high_serves_no_low(patch: Patch) -> None:
    """Resident keys of precision 0 are hidden from a gate whose need wants precision 1."""
    answer = Controller.gate

    def mutant(self: Controller, gate: Gate) -> Answer:
        constant = self.selector.constant
        wanted = [constant] * len(gate.needs) if constant is not None else self.selector.select(gate, self)
        keys = [self.geometry.key(0, gate.site, e) for e, p in zip(gate.needs, wanted, strict=True) if p == 1]
        hidden = {key: self.state[key] for key in keys if self.state[key] >= RESIDENT}
        for key in hidden:
            self.state[key] = 0
        outcomes = answer(self, gate)
        for key, state in hidden.items():
            self.state[key] = state
        return outcomes

    patch.setattr(Controller, "gate", mutant)


def recency_at_arrival(patch: Patch) -> None:
    """A missed key enters LRU's order when it arrives, not when it is asked for."""
    ask = LRU.on_requests

    def mutant(self: LRU, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate) -> None:
        there = [index for index, outcome in enumerate(outcomes) if outcome in FOUND_RESIDENT]
        ask(self, [keys[i] for i in there], [wanted[i] for i in there], [outcomes[i] for i in there], gate)

    insert = LRU.on_insert
    patch.setattr(LRU, "on_requests", mutant)
    patch.setattr(LRU, "on_insert", lambda self, key, cause: insert(self, key, Cause.PREFETCH))


def lru_at_every_site(scenario: Scenario) -> Scenario:
    return replace(scenario, cache=Cache("lru"))


def waves_admitted_early(patch: Patch) -> None:
    """Admission counts with one slot more than there is."""
    for name in ("gate", "need_done"):
        answer = getattr(Controller, name)

        def mutant(self: Controller, argument: Any, answer: Callable[..., Answer] = answer) -> Answer:
            slots, capacity = self.slots, self.slots.capacity_bytes
            slots.capacity_bytes = tuple(size + max(self.geometry.variant_bytes) for size in capacity)
            outcomes = answer(self, argument)
            slots.capacity_bytes = capacity
            return outcomes

        patch.setattr(Controller, name, mutant)


def as_it_is(scenario: Scenario) -> Scenario:
    return scenario


@dataclass(frozen=True)
class Mutant:
    """A defect, and what is made of the random scenarios in which it must show."""

    plant: Plant
    ties: bool = False
    scenario: Callable[[Scenario], Scenario] = as_it_is


MUTANTS = [
    Mutant(gates_before_transfer_ends, ties=True),  # 10
    Mutant(pins_ignored),  # 2
    Mutant(promotion_lost),  # 15
    Mutant(slots_claimed_at_queueing, scenario=one_queue),  # 7
    Mutant(high_serves_no_low),  # 19
    Mutant(stale_prefetches_kept),  # 56
    Mutant(masks_ignored),  # 1
    Mutant(recency_at_arrival, scenario=lru_at_every_site),  # 1
    Mutant(waves_admitted_early),  # 7: needs that can never be loaded stop the run
]


def difference(scenario: Scenario) -> str | None:
    """Where production and reference part; a run that breaks down is a difference, too."""
    expected = reference.run(scenario)
    try:
        return first_difference(production.run(scenario), expected)
    except (AssertionError, KeyError, IndexError, ValueError, RuntimeError) as error:
        return f"breaks down: {error!r}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.plant.__name__)
def test_a_planted_defect_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    for seed in range(LIMIT):
        found = difference(mutant.scenario(given(seed, mutant.ties)))
        if found is not None:
            print(f"{mutant.plant.__name__}, scenario {seed + 1}: {found}")
            return
    pytest.fail(f"{mutant.plant.__name__} was not found in {LIMIT} scenarios")


@pytest.mark.parametrize("change", [one_queue, lru_at_every_site])
def test_without_a_defect_the_changed_scenarios_show_no_difference(change: Callable[[Scenario], Scenario]) -> None:
    """Those that are not changed are compared in the other file."""
    for seed in range(LIMIT):
        assert difference(change(given(seed, ties=False))) is None, seed
