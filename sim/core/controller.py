"""The controller: gates and lookups, the top of the decision core.

Theory of operation. A driver reports what happened, in order, by the calls of
contracts C11 to C14. The controller answers what to do. It has no clock, no tensor and no I/O, and
the same calls in the same order always get the same answers.

The controller is one object in six classes, each derived from the one before:

1. ``sim.core.claims``: who gets a slot. It asks ``sim.core.protection`` what may be evicted.
2. ``sim.core.queues``: what waits to be moved, and what is given up.
3. ``sim.core.transfers``: how variants move.
4. ``sim.core.prefetches``: what is forecast.
5. ``sim.core.lookups``: what is done about a hit, a miss and what is on its way.
6. Here: the gate. It pins its needs, looks each up, and then asks for forecasts.

Everything is int arithmetic on Python lists. A simple gate (``sim.core.simple``) whose needs are
all resident costs a handful of list operations.

What happens is recorded in columns: ``lookup_*`` grow once for each gate, ``events`` once for each
queueing decision, ``issued`` once for each transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sim.core.loader import Loader
from sim.core.lookups import FOUND, HIT, Answer, Lookups, with_skips
from sim.core.rerouting import serve
from sim.core.simple import how_simple
from sim.core.slots import UNUSED
from sim.core.transfer import Transfer
from sim.policies.base import (
    ASK,
    CachePolicy,
    Gate,
    Payload,
    Placement,
    PrecisionSelector,
    Predictor,
)
from sim.policies.payloads import Whole
from sim.values.packing import COUNT32, INT8, INT32, Column, Packing
from sim.values.types import EVENT_COLUMNS, SKIP, Geometry, Route

ONE_LINK = Route()
PACKED = ("gate_calls", "lookup_keys", "lookup_outcomes", "lookup_wanted")
"""The columns that grow with every gate, and that nothing reads before the end of a run. Events do,
too, row after row."""
WIDTHS = {
    "gate_calls": COUNT32,
    "lookup_keys": INT32,
    "lookup_outcomes": INT8,
    "lookup_wanted": INT8,
    "call": COUNT32,
    "kind": INT8,
    "key": INT32,
    "value": INT32,
}
WHOLE = Whole()


class Controller(Lookups):
    """Decides for one run. Not thread-safe: a driver holds one lock around each call.

    ``route``: the links to the device. ``ram_cache``: the cache policy of the managed RAM tier, if
    the route has one. ``predicts_later``: forecasts take effect at ``prediction_ready``, not at
    their gate. ``dense_bytes``: the bytes of each site's dense block, where dense blocks are
    streamed. ``spare_bytes``: by step, what keys and values leave the pools beside their plan (contract
    C174); None: nothing. ``kv_bytes``: the bytes of a token's keys and values at each site, where
    these come from other tiers.

    Raise ValueError, or CapacityError, for policies, switches and sizes that cannot work together.
    """

    __slots__ = (
        "_common_size",
        "_experts",
        "_extras",
        "_forecasts",
        "_has_extras",
        "_is_one_variant",
        "_overflows",
        "_step",
        "_trims",
        "_trims_visited",
        "_visited",
        "_wanted",
        "_zeros",
        "gate_calls",
        "spare_bytes",
        "waiting",
    )

    def __init__(
        self,
        geometry: Geometry,
        predictor: Predictor,
        cache: CachePolicy,
        selector: PrecisionSelector,
        placement: Placement,
        loader: Loader,
        *,
        route: Route = ONE_LINK,
        ram_cache: CachePolicy | None = None,
        payload: Payload = WHOLE,
        predicts_later: bool = False,
        dense_bytes: Sequence[int] = (),
        spare_bytes: Callable[[int], int] | None = None,
        kv_bytes: Sequence[int] = (),
    ) -> None:
        shrinks = spare_bytes is not None
        super().__init__(
            geometry,
            predictor,
            cache,
            selector,
            placement,
            loader,
            payload,
            route,
            ram_cache,
            predicts_later,
            dense_bytes,
            how_simple(
                geometry,
                selector,
                placement,
                loader,
                route,
                predicts_later,
                shrinks=shrinks,
                brings=bool(kv_bytes),
                whole=payload.whole,
            ),
        )
        if kv_bytes:
            self.kv_bytes = kv_bytes
        self._is_one_variant = self.simple.one_variant
        self._learns, self._forecasts = predictor.learns, not predictor.silent
        if selector.reroutes and not payload.whole:
            raise ValueError(
                "what another expert would move in part is not known: choose payload=whole, or a"
                " precision that sends no need to another expert"
            )
        if shrinks and loader.write_back:
            raise ValueError(
                "loader.write_back=True does not go with slots that shrink: what is trimmed has no"
                " transfer to go back with; set it to false, or workload.kv_allocation=once"
            )
        self.spare_bytes, self._step = spare_bytes, -1
        self._prepare_gates()
        self._prepare_records()

    def _prepare_gates(self) -> None:
        loader, geometry = self.loader, self.geometry
        self._one_at_a_time = loader.replay_unit == "access"
        self._overflows = loader.overflows
        self._trims = self._overflows or self.spare_bytes is not None
        self._pools = range(len(self.slots.capacity_bytes))
        self._trims_visited = loader.retention == "until_next_visit"
        self._visited: set[int] = set()
        """The pools of the needs that the last gate has admitted (contract C181)."""
        # A union of up to so many needs fits its pools, whatever they are. Such a gate can be
        # taken the short way, which keeps no account of waves; -1: no gate can.
        fit = min(self.slots.capacity_bytes) // max(geometry.slot_sizes)
        self._common_size = fit if self.simple.variants else -1
        # What else a gate may have to do, besides lookups and forecasts.
        self._extras = self.ram, loader.dense_slots > 0, self.predicts_later, self._learns
        self._has_extras = any(self._extras)
        self._served: Gate | None = None  # the current gate, as policies are told of it
        self._wanted: Sequence[int] = ()
        self._experts: Sequence[int] = ()  # the experts that serve, by need
        self._pool_pinned: list[int] = []
        self.waiting = 0

    def _prepare_records(self) -> None:
        self._zeros = [[0] * count for count in range(self.geometry.experts + 1)]
        self._packing: Packing | None = None
        self.gate_calls: Column = []
        self.wave_calls: list[int] = []  # of each need_done: call, needs admitted

    # ---- calls of the driver (calls about transfers: sim.core.transfers; prediction_ready:
    # sim.core.prefetches)

    def pack(self) -> None:
        """Keep the columns so far as arrays, which take a fifth of the memory.

        Nobody may read these columns from then on until ``finish`` puts them together.
        """
        if self._packing is None:
            rows: dict[tuple[str, ...], list[int]] = {(n,): getattr(self, n) for n in PACKED}
            self._packing = Packing(rows | {EVENT_COLUMNS: self.events}, WIDTHS)
        self.events_packed = self.rows_alone
        self._packing.pack()
        self.issued.pack()

    def finish(self) -> None:
        super().finish()
        if self._packing is not None:
            self.pack()
            columns = self._packing.whole()
            for name in PACKED:
                setattr(self, name, columns[name])
            self._packed_events = {name: columns[name] for name in EVENT_COLUMNS}

    def begin_sequence(self, sequence: int) -> None:
        self.calls += 1
        self.cache.on_sequence(sequence, True)
        if self.ram is not None:
            self.ram.cache.on_sequence(sequence, True)

    def end_sequence(self, sequence: int) -> None:
        self.calls += 1
        self._trim_all()
        self.cache.on_sequence(sequence, False)
        if self.ram is not None:
            self.ram.cache.on_sequence(sequence, False)

    def gate(self, gate: Gate) -> Answer:
        """The outcomes of the admitted needs, in need order, and the transfers to wait for, by
        key, or None.

        ``admitted`` then holds the serving keys of these needs (-1 for a skip), and ``waiting`` the
        number of needs that are left to later waves.
        """
        self.calls = call = self.calls + 1
        self.gate_calls.append(call)
        site, keys = gate.site, gate.keys
        size = len(keys)
        if size > self._common_size:
            outcomes, waits = self._gate_in_full(gate)
        elif not self._is_one_variant:
            outcomes, waits = self._gate_of_variants(gate)
        else:
            self.protection.begin_gate(site, keys)
            self.admitted = keys
            if self._prefetches_of[site] or self._cancels_all:
                self._cancel_passed(site, keys)
            outcomes = zeros = self._zeros[size]
            waits, state = None, self.state
            for key in keys:
                if state[key]:
                    outcomes, waits = self._settle_all(keys)
                    break
            self.cache.on_requests(keys, zeros, outcomes, gate)
            self.lookup_keys += keys
            self.lookup_outcomes += outcomes
        if self._has_extras:
            self._do_extras(gate, site)
        elif self._forecasts:
            self._forecast(self.predictor.predict(gate), gate)
        return outcomes, waits

    def need_done(self, key: int) -> Answer:
        """A need has been computed while others wait for admission: unpin it and admit the next
        ones. Answers as ``gate`` does.
        """
        self.calls += 1
        if key in self._outside:
            self._outside.remove(key)
            self._leave(key)
        self.protection.unpin(key)
        self._pool_pinned[self.slots.pool_of[key]] -= self.slots.slot_bytes[key]
        outcomes, waits = self._admit()
        self.wave_calls += (self.calls, len(outcomes))
        return outcomes, waits

    def cpu_done(self, key: int) -> None:
        """The CPU's result for a need is back on the device."""
        self.calls += 1

    # ---- a gate, step by step

    def _tidy(self) -> None:
        """Clear up after the previous gate: pools that are too full, and needs outside pools."""
        self._trim_all()
        self._let_go()

    def _trim_all(self) -> None:
        """Trim the pools that may hold too much now; contract C181: only those just visited."""
        if self._trims:
            self._trim(sorted(self._visited) if self._trims_visited else self._pools)

    def _begin_step(self, step: int, spare_bytes: int) -> None:
        """``_tidy`` at the first gate of a step in which the pools are lent so many bytes. Needs go
        first: those of the step before are over, and protect nothing (contract C174).
        """
        self._step = step
        self._let_go()
        self.slots.lend(spare_bytes)
        self._trim(self._pools)

    def _let_go(self) -> None:
        """Unpin the needs of the previous gate; those that no pool holds leave one by one."""
        held, state = self.staging.holds, self.state
        # Some that were on their way to a pool have arrived there since.
        outside = [key for key in self._outside if held[key] or state[key] > UNUSED]
        self._outside = []
        self.protection.keep_pins(outside)
        for key in outside:
            self._leave(key)
            self.protection.unpin(key)

    def _gate_of_variants(self, gate: Gate) -> Answer:
        """``_gate_in_full`` and ``_look_up`` in one piece, for simple gates of several variants."""
        protection, site = self.protection, gate.site
        protection.begin_gate(site, [])
        by_rule = getattr(gate, "graded", None) if self._rule is not None else None
        wanted, variants = self._named(gate) if by_rule is None else by_rule(self._rule)
        if ASK in variants:
            variants = self._decided(gate, variants)
            wanted = self._precisions_of(variants)
        state, serving_alone, admitted = self.state, self._serving_alone, variants
        for key in variants:
            if key >= serving_alone and state[key] > UNUSED:
                serving = self._serving(key)
                if serving != key:
                    if admitted is variants:
                        admitted = list(variants)
                    admitted[variants.index(key)] = serving
        keys, asked = admitted, wanted
        if SKIP in admitted:
            keys, asked = [k for k in admitted if k != SKIP], [p for p in wanted if p >= 0]
        protection.pins = keys
        if self._prefetches_of[site] or self._cancels_all:
            self._cancel_passed(site, keys)
        key_bytes = self._key_bytes
        outcomes: list[int] = []
        waits: dict[int, Transfer] = {}
        for key in keys:
            found = state[key]
            outcomes.append(self._act(key, FOUND[found], key_bytes[key], waits) if found else HIT)
        if admitted is not variants:
            self._tell_precisions(keys, asked, outcomes)
        self.cache.on_requests(keys, asked, outcomes, gate)
        if keys is not admitted:
            outcomes = with_skips(admitted, outcomes)
        self.admitted = admitted
        self.lookup_keys += admitted
        self.lookup_outcomes += outcomes
        self.lookup_wanted += wanted
        return outcomes, waits or None

    def _precisions_of(self, variants: Sequence[int]) -> list[int]:
        """The precisions of variants; SKIP stays."""
        plane = self._plane
        return [key // plane if key >= 0 else SKIP for key in variants]

    def _gate_in_full(self, gate: Gate) -> Answer:
        """A gate that is not simple, or whose union may not fit (contracts C15 to C32)."""
        if self.spare_bytes is not None and gate.step != self._step:
            self._begin_step(gate.step, self.spare_bytes(gate.step))
        elif self._trims or self._outside:
            self._tidy()
        self.protection.begin_gate(gate.site, [])
        constant, experts = self.selector.constant, gate.needs
        wanted = (
            [constant] * len(experts) if constant is not None else self.selector.select(gate, self)
        )
        self._served = gate
        if self._reroutes:
            serving_now = self._serving_now = serve(gate, wanted, self.geometry)
            wanted, experts, self._served = (
                serving_now.wanted,
                serving_now.experts,
                serving_now.gate,
            )
        self._wanted, self._experts, self.waiting = wanted, experts, len(experts)
        self._pool_pinned = [0] * len(self.slots.capacity_bytes)
        self._visited.clear()
        rows, site = self._rows, gate.site
        staged = self.staging.keys
        if self._prefetches_of[site] or self._cancels_all or staged:
            serving = [
                self._serving(rows[p][site][expert])
                for p, expert in zip(wanted, experts, strict=True)
                if p >= 0
            ]
            self._cancel_passed(site, serving)
            for key in [k for k in staged if self.geometry.site_of(k) == site and k not in serving]:
                self._drop_staged(key)
        return self._admit()

    def _admit(self) -> Answer:
        """Admit waiting needs, in need order, while they fit; look them up
        (contracts C15 to C32, steps 6 to 10).
        """
        gate = self._served
        assert gate is not None
        rows, site, needs, wanted = self._rows, gate.site, self._experts, self._wanted
        slots, pool_pinned, protection = self.slots, self._pool_pinned, self.protection
        first = len(needs) - self.waiting
        admitted: list[int] = []
        for index in range(first, len(needs)):
            if wanted[index] < 0:
                admitted.append(SKIP)
                continue
            key = self._serving(rows[wanted[index]][site][needs[index]])
            pool, size = slots.pool_of[key], slots.slot_bytes[key]
            is_full = pool_pinned[pool] + size > slots.room_bytes[pool]
            if (
                is_full
                and not self._overflows
                and not slots.is_short[pool]
                and self.cache.admits_all
            ):
                break
            if (self._one_at_a_time and protection.pins) or (
                self._limits_staging and not self._fits_staging(key)
            ):
                break
            pool_pinned[pool] += size
            self._visited.add(pool)
            protection.pin(key)
            admitted.append(key)
        self.waiting -= len(admitted)
        return self._look_up(gate, admitted, wanted[first : first + len(admitted)], first)

    def _fits_staging(self, key: int) -> bool:
        """Whether the staging slots suffice for a need beside those that are pinned already."""
        pins, slots = self.protection.pins, self.loader.staging_slots
        if len(pins) < slots:
            return True  # even if each of them takes one
        holds, everywhere = self.staging.holds, self._may_all_stage
        asked = [k for k in (*pins, key) if everywhere or self._is_short(k)]
        return sum(holds[k] or self.state[k] > UNUSED for k in asked) <= slots

    def _do_extras(self, gate: Gate, site: int) -> None:
        """What a gate does after its lookups, where that is more than asking for forecasts."""
        ram, streams, predicts_later, learns = self._extras
        if ram is not None and ram.untold:
            ram.tell(gate)
        if streams:
            self._stream_dense(site)
        if predicts_later:
            self._keep_forecasts(gate)
        elif self._forecasts:
            self._forecast(self.predictor.predict(gate), gate)
        if learns:
            self.predictor.observe(gate)
