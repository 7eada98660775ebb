"""The decision core: pins, masks, lookups and queues. No clock, no tensor, no I/O.

Theory of operation. A driver reports what happened, in order, by the calls of docs/design.md section 3; the controller
answers what to do. A gate pins its needs, looks each up, queues demands and then prefetches; a slot (``sim.slots``) is
claimed when a transfer is issued. Everything is int arithmetic on Python lists: a gate whose needs are all resident
costs a handful of list operations.

What is recorded are columns: ``lookup_*`` grow once a gate, ``events`` once a queueing decision, ``transfer_*`` once an
issue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import IntEnum

from sim.loader import NO_TRANSFER, Loader, Transfer
from sim.policies.base import CachePolicy, Choice, Gate, Placement, PrecisionSelector, Predictor
from sim.slots import ABSENT, IN_FLIGHT, QUEUED, RESIDENT, UNUSED, Slots
from sim.types import SKIP, Cause, Geometry, Outcome, Place, PrefetchOutcome

# Plain ints: members of an IntEnum are looked up and compared several times slower.
HIT, MISS, PROMOTED, LATE = int(Outcome.HIT), int(Outcome.MISS), int(Outcome.PROMOTED), int(Outcome.LATE)
USED, EVICTED_UNUSED = int(PrefetchOutcome.USED), int(PrefetchOutcome.EVICTED_UNUSED)
CANCELLED, DROPPED_NO_SLOT = int(PrefetchOutcome.CANCELLED), int(PrefetchOutcome.DROPPED_NO_SLOT)
DEMAND, PREFETCH = Cause.DEMAND, Cause.PREFETCH
FIRST_USE = -1
"""A hit that settles a prefetch; becomes HIT before anyone sees it."""
FOUND = (MISS, PROMOTED, LATE, HIT, FIRST_USE)
"""What a lookup finds, by state, where only one variant is in play."""


class Event(IntEnum):
    """Kinds of the rows (call, kind, key, value) in ``Controller.events``; value: the key evicted for it, or -1."""

    QUEUE_PREFETCH = 0
    CANCEL = 1
    DROP_NO_SLOT = 2
    ISSUE = 3
    EVICT = 4


QUEUE_PREFETCH, CANCEL, DROP_NO_SLOT, ISSUE, EVICT = (int(event) for event in Event)


class Controller:
    """Decides for one run; not thread-safe, a driver holds one lock around each call."""

    def __init__(self, geometry: Geometry, predictor: Predictor, cache: CachePolicy, selector: PrecisionSelector,
                 placement: Placement, loader: Loader) -> None:  # fmt: skip
        if placement.constant != Place.LOAD:
            raise ValueError("placement: only load is built yet (CPU placement is not)")
        self.geometry, self.loader = geometry, loader
        self.predictor, self.cache, self.selector = predictor, cache, selector
        self.slots = Slots(geometry, cache)
        # The hot path reads these; Slots owns them.
        self.state, self.pinned, self.blocked = self.slots.state, self.slots.pinned, self.slots.blocked
        self._key_bytes = self.slots.key_bytes
        self._rows = [
            [[geometry.key(p, site, unit) for unit in range(geometry.units)] for site in range(geometry.sites)]
            for p in range(len(geometry.precisions))
        ]
        # Unions up to this size fit whatever their pools: the common gate skips the accounting of waves.
        self._always_fit = min(self.slots.capacity_bytes) // max(geometry.variant_bytes)
        self._plain = selector.constant == 0 and len(geometry.precisions) == 1
        self._zeros = [[0] * count for count in range(geometry.experts + 1)]
        self._prepare_queues()
        self._prepare_records()

    def _prepare_queues(self) -> None:
        sites = self.geometry.sites
        self._demands: deque[Transfer] = deque()
        # With demand_first off there is one queue, so both names mean the same deque.
        self._prefetches: deque[Transfer] = deque() if self.loader.demand_first else self._demands
        # By key, its last transfer: what is queued or in flight, and the prefetch that brought what is UNUSED.
        self._transfer_of: list[Transfer] = [NO_TRANSFER] * self.geometry.num_keys
        self._prefetches_of: list[list[Transfer]] = [[] for _ in range(sites)]
        budget = self.loader.prefetch_budget
        self._budget = budget if isinstance(budget, int) else -1  # never used up
        self._replaces = self.loader.queue == "replace"
        self._stops_at_missing = self.loader.depth == "first_missing"
        self._cancels_all = self.loader.prefetch_budget == "until_next_gate"
        self._masks: list[Sequence[int]] = [()] * sites
        self._pins: list[int] = []
        self._pins_site = 0
        self._gate: Gate | None = None
        self._wanted: Sequence[int] = ()
        self._pool_pinned: list[int] = []
        self.waiting = 0

    def _prepare_records(self) -> None:
        self.calls = 0
        self.issued: list[Transfer] = []
        self.admitted: Sequence[int] = ()
        self.gate_calls: list[int] = []
        self.wave_calls: list[int] = []  # (call, needs admitted) of each need_done
        self.lookup_keys: list[int] = []
        self.lookup_outcomes: list[int] = []
        self.lookup_wanted: list[int] = []
        self.events: list[int] = []
        self._never_issued = [0] * len(PrefetchOutcome)

    @property
    def num_issued(self) -> int:
        return len(self.issued)

    # ---- what a policy may ask

    def has(self, precision: int, site: int, expert: int) -> bool:
        return self.state[self._rows[precision][site][expert]] >= RESIDENT

    # ---- calls of the driver

    def begin_sequence(self, sequence: int) -> None:
        self.calls += 1
        self.cache.on_sequence(sequence, True)

    def end_sequence(self, sequence: int) -> None:
        self.calls += 1
        self.cache.on_sequence(sequence, False)

    def gate(self, gate: Gate) -> tuple[list[int], dict[int, Transfer] | None]:
        """Outcomes of the admitted needs, in need order, and the transfers to wait for by key, or None.

        ``admitted`` then holds their serving keys (-1 for a skip), ``waiting`` the number of needs left to later waves.
        """
        self.calls = call = self.calls + 1
        self.gate_calls.append(call)
        site, needs = gate.site, gate.needs
        state, pinned, blocked = self.state, self.pinned, self.blocked
        for key in self._pins:
            pinned[key] = blocked[key] = 0
        masks = self._masks
        # A forecast may name the site that has just run (for the next token): unpinning must not unmask it.
        for key in masks[self._pins_site]:
            blocked[key] = 1
        for key in masks[site]:
            blocked[key] = 0
        masks[site] = ()
        self._pins_site = site
        if self._plain and len(needs) <= self._always_fit:
            row = self._rows[0][site]
            self._pins = self.admitted = keys = [row[expert] for expert in needs]
            for key in keys:
                pinned[key] = blocked[key] = 1
            if self._prefetches_of[site] or self._cancels_all:
                self._cancel_passed(site, keys)
            outcomes = [FOUND[state[key]] for key in keys]
            waits = self._settle(keys, outcomes) if any(outcomes) else None
            self.cache.on_requests(keys, self._zeros[len(keys)], outcomes, gate)
            self.lookup_keys += keys
            self.lookup_outcomes += outcomes
        else:
            outcomes, waits = self._gate_in_full(gate)
        self._forecast(gate)
        self.predictor.observe(gate)
        return outcomes, waits

    def need_done(self, key: int) -> tuple[list[int], dict[int, Transfer] | None]:
        """A need of a union served in waves has been computed: unpin it and admit the next. Answers as ``gate``."""
        self.calls += 1
        self.pinned[key] = 0
        self.blocked[key] = key in self._masks[self._pins_site]
        self._pool_pinned[self.slots.pool_of[key]] -= self.slots.key_bytes[key]
        outcomes, waits = self._admit()
        self.wave_calls += (self.calls, len(outcomes))
        return outcomes, waits

    def transfer_done(self, link: int, transfer: Transfer) -> tuple[int, Transfer | None]:
        """The key that arrived, and the next transfer to start on the engine, issued in the same call."""
        self.calls += 1
        key = transfer.key
        if not transfer.prefetch:
            self.state[key] = RESIDENT
            self.cache.on_insert(key, DEMAND)
        else:
            self.state[key] = RESIDENT if transfer.awaited else UNUSED
            self.cache.on_insert(key, PREFETCH)
        return key, self._issue()

    def poll(self, link: int) -> Transfer | None:
        """The next transfer to issue on a link that has room, or None."""
        self.calls += 1
        return self._issue()

    def finish(self) -> None:
        """The run is over: settle the prefetches that nothing will settle any more."""
        left = (t for t in self._prefetches if t.prefetch and not t.cancelled)
        self._never_issued[CANCELLED] += sum(1 for _ in left)

    @property
    def num_prefetches_queued(self) -> int:
        return self.events[1::4].count(QUEUE_PREFETCH)

    @property
    def prefetch_counts(self) -> list[int]:
        """How many prefetches had each ``PrefetchOutcome``. Final after ``finish``."""
        counts = list(self._never_issued)
        for transfer in self.issued:
            if transfer.prefetch:
                counts[transfer.outcome] += 1
        return counts

    # ---- a gate, step by step

    def _gate_in_full(self, gate: Gate) -> tuple[list[int], dict[int, Transfer] | None]:
        """Several precisions in play, or a union that may not fit."""
        constant = self.selector.constant
        wanted = [constant] * len(gate.needs) if constant is not None else self.selector.select(gate, self)
        self._gate, self._wanted, self.waiting = gate, wanted, len(gate.needs)
        self._pins = []
        self._pool_pinned = [0] * len(self.slots.capacity_bytes)
        rows, site = self._rows, gate.site
        if self._prefetches_of[site] or self._cancels_all:
            self._cancel_passed(site, [self._serving(rows[p][site][expert])
                                       for p, expert in zip(wanted, gate.needs, strict=True) if p != SKIP])  # fmt: skip
        return self._admit()

    def _admit(self) -> tuple[list[int], dict[int, Transfer] | None]:
        """Admit waiting needs, in need order, while they fit."""
        gate = self._gate
        assert gate is not None
        rows, site, needs, wanted = self._rows, gate.site, gate.needs, self._wanted
        slots, pool_pinned = self.slots, self._pool_pinned
        first = len(needs) - self.waiting
        admitted: list[int] = []
        for index in range(first, len(needs)):
            if wanted[index] == SKIP:
                admitted.append(SKIP)
                continue
            key = self._serving(rows[wanted[index]][site][needs[index]])
            pool, size = slots.pool_of[key], slots.key_bytes[key]
            if pool_pinned[pool] + size > slots.capacity_bytes[pool]:
                break
            pool_pinned[pool] += size
            self.pinned[key] = self.blocked[key] = 1
            admitted.append(key)
        self.waiting -= len(admitted)
        return self._look_up(gate, admitted, wanted[first : first + len(admitted)])

    def _look_up(self, gate: Gate, admitted: list[int],
                 wanted: Sequence[int]) -> tuple[list[int], dict[int, Transfer] | None]:  # fmt: skip
        keys = [key for key in admitted if key != SKIP]
        asked = [p for p in wanted if p != SKIP]
        self._pins += keys
        state, plane = self.state, self.geometry.plane
        outcomes = [FOUND[state[key]] for key in keys]
        waits = self._settle(keys, outcomes) if any(outcomes) else None
        if len(self.geometry.precisions) > 1:
            for index, (key, p) in enumerate(zip(keys, asked, strict=True)):
                if outcomes[index] == HIT and key // plane != p:
                    outcomes[index] = int(Outcome.HIGH_FOR_LOW if key // plane < p else Outcome.LOW_FOR_HIGH)
        self.cache.on_requests(keys, asked, outcomes, gate)
        if len(keys) < len(admitted):
            found = iter(outcomes)
            outcomes = [next(found) if key != SKIP else int(Outcome.SKIP) for key in admitted]
        self.admitted = admitted
        self.lookup_keys += admitted
        self.lookup_outcomes += outcomes
        if not self._plain:
            self.lookup_wanted += wanted
        return outcomes, waits

    def _serving(self, wanted: int) -> int:
        """The key that serves a wanted key now (docs/design.md section 4, step 4)."""
        state, plane = self.state, self.geometry.plane
        found = state[wanted]
        if found >= RESIDENT or len(self._rows) == 1:
            return wanted
        higher = range(wanted - plane, -1, -plane)
        for key in higher:
            if state[key] >= RESIDENT:
                return key
        if self.loader.low_for_high:
            for key in range(wanted + plane, len(state), plane):
                if state[key] >= RESIDENT:
                    return key
        if found != IN_FLIGHT:
            for key in higher:
                if state[key] == IN_FLIGHT:
                    return key
        return wanted

    def _settle(self, keys: list[int], outcomes: list[int]) -> dict[int, Transfer] | None:
        """Act on every lookup that is no plain hit; rewrite first uses to hits. The transfers to wait for, by key."""
        waits: dict[int, Transfer] = {}
        state = self.state
        for index, key in enumerate(keys):
            outcome = outcomes[index]
            if outcome == MISS:
                waits[key] = self._queue_demand(key)
            elif outcome == FIRST_USE:
                outcomes[index] = HIT
                state[key] = RESIDENT
                self._transfer_of[key].outcome = USED
            elif outcome == LATE:
                waits[key] = self._await(self._transfer_of[key])
            elif outcome == PROMOTED:
                if self.loader.promote:
                    waits[key] = self._promote(self._transfer_of[key])
                else:
                    outcomes[index] = LATE
                    waits[key] = self._await(self._transfer_of[key])
        return waits or None

    def _queue_demand(self, key: int) -> Transfer:
        transfer = self._transfer_of[key] = Transfer(key, False, self._key_bytes[key], self.calls)
        self.state[key] = QUEUED
        self._demands.append(transfer)
        return transfer

    def _await(self, transfer: Transfer) -> Transfer:
        if transfer.prefetch:
            transfer.awaited = True
            transfer.outcome = PrefetchOutcome.LATE
        return transfer

    def _promote(self, transfer: Transfer) -> Transfer:
        self._never_issued[PrefetchOutcome.PROMOTED] += 1
        if not self.loader.demand_first:
            transfer.prefetch = False
            transfer.call = self.calls
            return transfer
        transfer.cancelled = True
        return self._queue_demand(transfer.key)

    # ---- prefetching

    def _cancel_passed(self, site: int, serving: Sequence[int]) -> None:
        """Cancel queued prefetches that this gate has overtaken."""
        if self._cancels_all:
            self._cancel(tuple(self._prefetches), serving)
        left = []
        # Most have been issued by now; what is neither issued nor cancelled still waits in the queue.
        for transfer in self._prefetches_of[site]:
            if transfer.number < 0 and not transfer.cancelled:
                if self.loader.cancel_stale and transfer.prefetch and transfer.key not in serving:
                    self._never_issue(transfer, CANCEL)
                else:
                    left.append(transfer)
        self._prefetches_of[site] = left
        queue = self._prefetches
        # What is cancelled is mostly the oldest: a queue that is never reached must not keep it all.
        while queue and queue[0].cancelled:
            queue.popleft()

    def _cancel(self, transfers: Iterable[Transfer], kept: Sequence[int]) -> None:
        for transfer in transfers:
            if transfer.prefetch and not (transfer.cancelled or transfer.awaited or transfer.key in kept):
                self._never_issue(transfer, CANCEL)

    def _never_issue(self, transfer: Transfer, event: int) -> None:
        transfer.cancelled = True
        self.state[transfer.key] = ABSENT
        self._never_issued[CANCELLED if event == CANCEL else DROPPED_NO_SLOT] += 1
        self.events += (self.calls, event, transfer.key, -1)

    def _forecast(self, gate: Gate) -> None:
        """Mask what is forecast and queue what of it is absent (docs/design.md section 4, step 9)."""
        state, blocked, masks = self.state, self.blocked, self._masks
        replace, left = self._replaces, self._budget
        for choice in self.predictor.predict(gate):
            if replace:
                self._cancel(tuple(self._prefetches), ())
                replace = False
            site = choice.site
            if masks[site]:
                for key in masks[site]:
                    blocked[key] = self.pinned[key]
            if self._plain:
                row = self._rows[0][site]
                keys = [row[expert] for expert in choice.needs]
            else:
                keys = self._forecast_keys(choice)
            masks[site] = keys
            missing = False
            for key in keys:
                blocked[key] = 1
                found = state[key]
                if found < RESIDENT:
                    missing = True
                    if found == ABSENT and left:
                        left -= 1
                        state[key] = QUEUED
                        transfer = self._transfer_of[key] = Transfer(key, True, self._key_bytes[key], self.calls)
                        self._prefetches.append(transfer)
                        self._prefetches_of[site].append(transfer)
                        self.events += (self.calls, QUEUE_PREFETCH, key, -1)
            if left == 0 or (missing and self._stops_at_missing):
                return

    def _forecast_keys(self, choice: Choice) -> list[int]:
        constant = self.selector.constant
        wanted = [constant] * len(choice.needs) if constant is not None else self.selector.select(choice, self)
        rows, site = self._rows, choice.site
        return [self._serving(rows[p][site][expert])
                for p, expert in zip(wanted, choice.needs, strict=True) if p != SKIP]  # fmt: skip

    # ---- issuing

    def _issue(self) -> Transfer | None:
        """Take the next transfer whose slot can be claimed, and claim it."""
        demands, prefetches = self._demands, self._prefetches
        while demands or prefetches:
            queue = demands or prefetches
            transfer = queue[0]
            if transfer.cancelled:
                queue.popleft()
                continue
            key = transfer.key
            must = not transfer.prefetch or transfer.awaited
            victims = self.slots.claim(key, transfer.moved_bytes, must)
            if victims is None:
                if must:
                    return None
                queue.popleft()
                self._never_issue(transfer, DROP_NO_SLOT)
                continue
            queue.popleft()
            state = self.state
            state[key] = IN_FLIGHT
            transfer.number = len(self.issued)
            transfer.victims = victims
            self.issued.append(transfer)
            self.events += (self.calls, ISSUE, key, victims[0] if victims else -1)
            for victim in victims:
                if state[victim] == UNUSED:
                    self._transfer_of[victim].outcome = EVICTED_UNUSED
                state[victim] = ABSENT
                self.cache.on_evict(victim)
            if len(victims) > 1:
                for victim in victims[1:]:
                    self.events += (self.calls, EVICT, victim, key)
            return transfer
        return None

    # ---- for tests

    def check(self) -> None:
        """Assert every invariant of the state. Expensive, for tests."""
        self.slots.check()
        for key, state in enumerate(self.state):
            transfer = self._transfer_of[key]
            if state in (QUEUED, IN_FLIGHT, UNUSED):
                assert transfer.key == key, key
                assert not transfer.cancelled, key
                assert (state == QUEUED) == (transfer.number < 0), key
                assert state != UNUSED or transfer.prefetch, key
