"""Lookups: whether a need is a hit, a miss, late or promoted, and what is done about it.

A lookup reads the state of its serving key, and ``FOUND`` says what that is called. A plain hit
needs nothing. A miss is placed, and where it is loaded, its demand is queued. A need that finds its
prefetch on the way waits for it, or has it promoted. The first hit on a prefetched variant marks
the prefetch as used.

``_look_up`` serves every gate. Simple gates have two shorter ways, which must come to the same:
``_settle_all`` here, and ``_gate_of_variants`` of the controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sim.core.loader import Loader
from sim.core.prefetches import Prefetches
from sim.core.rerouting import Serving
from sim.core.simple import Simple
from sim.core.slots import ABSENT, QUEUED, RESIDENT, UNUSED
from sim.core.transfer import Transfer
from sim.policies.base import (
    CachePolicy,
    Gate,
    Payload,
    Placement,
    PrecisionSelector,
    Predictor,
)
from sim.values.packing import Column
from sim.values.types import SKIP, Geometry, Outcome, Place, PrefetchOutcome, Route

HIT: Final = int(Outcome.HIT)
HIGH_FOR_LOW: Final = int(Outcome.HIGH_FOR_LOW)
LOW_FOR_HIGH: Final = int(Outcome.LOW_FOR_HIGH)
LATE: Final = int(Outcome.LATE)
PROMOTED: Final = int(Outcome.PROMOTED)
MISS: Final = int(Outcome.MISS)
CPU: Final = int(Outcome.CPU)
NOT_COMPUTED: Final = int(Outcome.SKIP)
USED: Final = int(PrefetchOutcome.USED)
FIRST_USE: Final = -1
"""A hit on a variant that a prefetch brought. It becomes HIT before anyone sees it."""
FOUND: Final[tuple[int, ...]] = (HIT, FIRST_USE, LATE, PROMOTED, MISS)
"""The outcome of a lookup, by the state of its serving key (the order of `sim.core.slots`)."""
PLACED = {int(Place.LOAD): MISS, int(Place.CPU): CPU, int(Place.SKIP): NOT_COMPUTED}

Answer = tuple[list[int], dict[int, Transfer] | None]
"""Outcomes in the order of needs, and the transfers to wait for, by key."""


class Lookups(Prefetches):
    """Looks needs up, and acts on what is found.

    ``placement``: where a need that is absent is computed.
    """

    __slots__ = ("_loads_all", "admitted", "lookup_keys", "lookup_outcomes", "placement")

    def __init__(
        self,
        geometry: Geometry,
        predictor: Predictor,
        cache: CachePolicy,
        selector: PrecisionSelector,
        placement: Placement,
        loader: Loader,
        payload: Payload,
        route: Route,
        ram_cache: CachePolicy | None,
        predicts_later: bool,
        dense_bytes: Sequence[int],
        simple: Simple,
    ) -> None:
        super().__init__(
            geometry,
            predictor,
            cache,
            selector,
            loader,
            payload,
            route,
            ram_cache,
            predicts_later,
            dense_bytes,
            simple,
        )
        self.placement = placement
        self._loads_all, self._reroutes = placement.constant == Place.LOAD, selector.reroutes
        self._serving_now: Serving | None = None
        self._outside: list[int] = []  # the pinned needs that no pool held when they were looked up
        self.admitted: Sequence[int] = ()
        self.lookup_keys: Column = []
        self.lookup_outcomes: Column = []
        self.lookup_wanted: Column = []
        self.lookup_tokens: list[int] = []
        """By lookup, the rows for which the need's expert is computed. Filled only where the
        selector reroutes; else they are the need's tokens.
        """

    def _look_up(
        self, gate: Gate, admitted: list[int], wanted: Sequence[int], first: int
    ) -> Answer:
        """Look up the needs just admitted, and act on what is found (contracts C15 to C32,
        steps 8 to 10). ``admitted``: their serving keys, or SKIP; ``first``: the number of the
        first of them among the gate's needs.
        """
        keys = [key for key in admitted if key != SKIP]
        asked = [p for p in wanted if p >= 0]
        state, staged = self.state, self.staging.holds
        if self._waits_unmade:
            # A later wave of a gate may ask for what the gate itself has forecast.
            self._make_asked(keys)
        outcomes = [FOUND[state[key]] for key in keys]
        waits = None
        if not self._loads_all:
            self._place(gate, keys, outcomes)
        if any(outcomes):
            if self.payload.whole:
                waits = self._settle(keys, outcomes)
            else:
                places = [place for place, p in enumerate(wanted, start=first) if p >= 0]
                waits = self._settle(keys, outcomes, gate, places)
        if len(self.geometry.precisions) > 1:
            self._tell_precisions(keys, asked, outcomes)
        if self._stages or not self._loads_all:
            self._outside += [key for key in keys if staged[key] or state[key] > UNUSED]
        self.cache.on_requests(keys, asked, outcomes, gate)
        if self.ram is not None and self.ram.untold:
            self.ram.tell(gate)
        if self.staging.keys:
            for key in keys:
                if staged[key] and state[key] == RESIDENT and not self._transfer_of[key].partial:
                    self._exchange(key)
        if len(keys) < len(admitted):
            outcomes = with_skips(admitted, outcomes)
        self.admitted = admitted
        if self._reroutes:
            return self._record_rerouted(outcomes, first), waits
        self.lookup_keys += admitted
        self.lookup_outcomes += outcomes
        if not self.simple.gates:
            self.lookup_wanted += wanted
        return outcomes, waits

    def _tell_precisions(
        self, keys: Sequence[int], asked: Sequence[int], outcomes: list[int]
    ) -> None:
        """Tell hits at another precision than the one that was asked for from plain hits."""
        plane = self._plane
        for place, key in enumerate(keys):
            p = asked[place]
            if outcomes[place] == HIT and key // plane != p:
                outcomes[place] = HIGH_FOR_LOW if key // plane < p else LOW_FOR_HIGH

    def _record_rerouted(self, outcomes: list[int], first: int) -> list[int]:
        """Write down an admission in which other experts may serve: its outcomes, as drivers are
        told them.
        """
        serving, last = self._serving_now, first + len(outcomes)
        assert serving is not None
        keys, told = serving.looked_up(self.admitted, outcomes, first)
        self.lookup_keys += keys
        self.lookup_outcomes += told
        self.lookup_wanted += serving.told[first:last]
        self.lookup_tokens += serving.tokens[first:last]
        return told

    def _place(self, gate: Gate, keys: list[int], outcomes: list[int]) -> None:
        """Ask the placement where these needs are computed, and note it for those that are
        absent.
        """
        for index, place in enumerate(self.placement.place(gate, keys, self, self)):
            if outcomes[index] == MISS:
                outcomes[index] = PLACED[place]

    def _settle_all(self, keys: Sequence[int]) -> Answer:
        """Look up the needs of a simple gate, and act on what is found: outcomes and waits, as
        ``gate`` answers them.
        """
        outcomes: list[int] = []
        waits: dict[int, Transfer] = {}
        state, is_simple = self.state, self._moves_simply
        for key in keys:
            found = state[key]
            if found == RESIDENT:
                outcomes.append(HIT)
            elif found == ABSENT and is_simple:
                # ``_queue`` in one piece, for simple moves.
                demand = waits[key] = self._transfer_of[key] = Transfer(
                    key, False, self._key_bytes[key], self.calls
                )
                state[key] = QUEUED
                self._demands[0].append(demand)
                outcomes.append(MISS)
            else:
                outcomes.append(self._act(key, FOUND[found], self._key_bytes[key], waits))
        return outcomes, waits or None

    def _settle(
        self,
        keys: Sequence[int],
        outcomes: list[int],
        gate: Gate | None = None,
        places: Sequence[int] = (),
    ) -> dict[int, Transfer] | None:
        """Act on every lookup that is no plain hit, and correct its outcome in place: the transfers
        to wait for, by key.

        ``gate`` and the ``places`` of these keys among its needs are given where an access may move
        a part of a variant.
        """
        waits: dict[int, Transfer] = {}
        for index, outcome in enumerate(outcomes):
            if outcome == HIT:
                continue
            key = keys[index]
            moved_bytes = self._key_bytes[key]
            if gate is not None:
                moved_bytes = self._ask_payload(gate, places[index], key, outcome)
                if outcome == FIRST_USE and moved_bytes:
                    outcomes[index] = MISS
                    waits[key] = self._complete(key, moved_bytes)
                    continue
            outcomes[index] = self._act(key, outcome, moved_bytes, waits)
        return waits or None

    def _act(self, key: int, outcome: int, moved_bytes: int, waits: dict[int, Transfer]) -> int:
        """Act on a lookup that is no plain hit: its outcome, as everybody is told it. A transfer
        that the need must wait for is added to ``waits``.
        """
        if outcome == MISS:
            waits[key] = self._queue(key, False, moved_bytes)
        elif outcome == FIRST_USE:
            self.state[key] = RESIDENT
            self._transfer_of[key].outcome = USED
            return HIT
        elif outcome == LATE:
            waits[key] = self._await(self._transfer_of[key])
        elif outcome == PROMOTED:
            waits[key] = self._promote(self._transfer_of[key])
        return outcome

    def _ask_payload(self, gate: Gate, place: int, key: int, outcome: int) -> int:
        """The bytes that a need lacks: of an absent one those to move, of one that finds a staged
        partial prefetch those that did not come with it, else 0.

        A partial transfer that is on its way is told how much the need must have
        (contract C44).
        """
        payload, transfer = self.payload, self._transfer_of[key]
        if outcome == MISS:
            return self.require_moved(key, payload.moved_bytes(key, gate, place))
        if not transfer.partial:
            return 0
        if outcome == PROMOTED:
            transfer.moved_bytes = self.require_moved(key, payload.moved_bytes(key, gate, place))
            transfer.partial = transfer.staged = transfer.moved_bytes < self._key_bytes[key]
            transfer.left_bytes = self.hop_bytes(transfer, transfer.link)
            return 0
        if transfer.overtaken:
            whole = self._key_bytes[key]
            missing = min(payload.moved_bytes(key, gate, place), whole - transfer.moved_bytes)
        else:
            missing = payload.missing_bytes(key, gate, place, transfer.moved_bytes)
        if outcome == LATE:
            transfer.rest_bytes = missing
            return 0
        return missing


def with_skips(admitted: Sequence[int], outcomes: Sequence[int]) -> list[int]:
    """The outcomes of all that is admitted, from those of what is not skipped."""
    computed = iter(outcomes)
    return [next(computed) if key != SKIP else NOT_COMPUTED for key in admitted]
