"""Claims: the tiers of a run, and how a transfer gets a slot in one of them. Nothing moves here.

A transfer claims a slot in its key's pool, in staging, or in the managed RAM tier. What a claim in
a pool may evict is decided in ``sim.core.protection``, and when a transfer claims in
``sim.core.transfers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sim.core.event_rows import ManyRows, with_many
from sim.core.loader import Loader
from sim.core.protection import Protection
from sim.core.ram import RamTier
from sim.core.slots import ABSENT, IN_FLIGHT, QUEUED, UNUSED, Slots
from sim.core.staging import Staging
from sim.core.transfer import NO_TRANSFER, Transfer
from sim.policies.base import CachePolicy, Payload
from sim.policies.requires import PolicyError, name_of
from sim.values.types import EVENT_COLUMNS, Cause, Event, Geometry, PrefetchOutcome, Route

# Plain ints, because members of an IntEnum are looked up and compared several times slower.
EVICTED_UNUSED: Final = int(PrefetchOutcome.EVICTED_UNUSED)
DROPPED: Final = int(PrefetchOutcome.DROPPED)
EVICT: Final = int(Event.EVICT)
DEMAND: Final = Cause.DEMAND
PREFETCH: Final = Cause.PREFETCH


class Claims:
    """The tiers of a run: who holds which slot. The lowest class of the controller.

    ``route``: the links to the device. ``ram_cache``: the policy of the managed RAM tier, given if
    and only if the route has one.
    """

    # Attributes that every gate or transfer uses have slots. On CPython 3.11 an object with thirty
    # or more attributes outside its slots, over all classes of the controller, makes every method
    # call slower.
    __slots__ = (
        "__dict__",
        "_ends",
        "_key_bytes",
        "_limits_staging",
        "_packed_events",
        "_plane",
        "_ram_link",
        "_rows",
        "_serving_alone",
        "_stages",
        "_transfer_of",
        "_writes_back",
        "cache",
        "calls",
        "events",
        "events_packed",
        "loader",
        "many_events",
        "payload",
        "protection",
        "ram",
        "slots",
        "state",
    )

    def __init__(
        self,
        geometry: Geometry,
        cache: CachePolicy,
        loader: Loader,
        payload: Payload,
        route: Route,
        ram_cache: CachePolicy | None,
    ) -> None:
        loader.check_route(route)
        self._ends, self._plane = route.ends, geometry.plane
        self.geometry, self.cache, self.loader, self.payload, self.route = (
            geometry,
            cache,
            loader,
            payload,
            route,
        )
        overflows, self._stages = loader.overflows, loader.staging_slots > 0
        self.slots = Slots(geometry, cache, geometry.top_k, overflows, self._stages)
        self._check_devices()
        self.protection = Protection(
            self.slots, loader.demand_evicts == "unmasked", loader.prefetch_order == "likeliest"
        )
        # Slots owns these lists; they are named here because every gate reads them.
        self.state, self._key_bytes = self.slots.state, self.slots.key_bytes
        self._rows = [
            [
                list(range(first := geometry.key(p, site, 0), first + geometry.units))
                for site in range(geometry.sites)
            ]
            for p in range(len(geometry.precisions))
        ]
        # From this key on a variant that is absent may be served by another one. The highest
        # precision is served by none, unless lower ones may serve it.
        self._serving_alone = 0 if loader.low_for_high else self._plane
        self.calls = 0
        self.events: list[int] = []
        """Rows of four ints, flat: call, kind, key, value (see `Event`), but for ``many_events``. A
        run that packs its columns leaves none here: read ``event_columns``."""
        self.many_events: list[ManyRows] = []
        self.events_packed = 0
        """How many rows have been packed."""
        self._packed_events: Mapping[str, Sequence[int]] | None = None
        # By key, its last transfer. It is read for keys that are queued, in flight or UNUSED.
        self._transfer_of: list[Transfer] = [NO_TRANSFER] * geometry.num_keys
        self._writes_back = loader.write_back
        self._prepare_ram(ram_cache)
        self._prepare_staging()

    def _check_devices(self) -> None:
        """Raise ValueError for pools and switches that several devices refuse (contract C163)."""
        geometry, loader = self.geometry, self.loader
        if not geometry.device_of:
            return
        first: dict[int, int] = {}
        for key, pool in enumerate(self.slots.pool_of):
            device = geometry.on_device(key)
            if first.setdefault(pool, device) != device:
                has_owners = len(set(geometry.device_of[: geometry.units])) > 1
                raise ValueError(
                    f"pool {pool} has experts of devices {first[pool]} and {device}, but a slot is"
                    f" on one device: set cache.scope to global{'' if has_owners else ' or site'}"
                )
        if not self.payload.whole:
            raise ValueError(
                "payload: moving parts of an expert is of one device; choose payload=whole, or"
                " hardware.devices=null"
            )
        for name in ("write_back", "dense_slots"):
            if value := getattr(loader, name):
                raise ValueError(
                    f"loader.{name}={value} is of one device, but layers are on"
                    f" {max(geometry.device_of) + 1}; set it to {'false' if value is True else 0},"
                    " or hardware.devices=null"
                )

    def _prepare_ram(self, ram_cache: CachePolicy | None) -> None:
        route = self.route
        if (ram_cache is None) != (route.ram_link is None):
            raise ValueError(
                "a managed RAM tier needs both a cache policy (ram_cache) and a place on the route"
                " (ram_link)"
            )
        self.ram = None if ram_cache is None else RamTier(self.geometry, ram_cache, route)
        self._ram_link = -1 if self.ram is None else self.ram.link

    def _prepare_staging(self) -> None:
        loader, cache = self.loader, self.cache
        refuses = not cache.admits_all
        if (refuses or not self.payload.whole) and not self._stages:
            what = (
                "the cache policy refuses variants" if refuses else "partial moves land in staging"
            )
            raise ValueError(f"{what}: set loader.staging_slots >= 1")
        if self.payload.partial and len(self.geometry.precisions) > 1:
            raise ValueError(
                f"partial moves need one precision, got {', '.join(self.geometry.precisions)};"
                " choose a fixed one"
            )
        self._may_all_stage = refuses or not self.payload.whole or self.protection.spares_masked
        self._limits_staging = self._may_all_stage or any(self.slots.is_short)
        self.staging = Staging(loader.staging_slots, self.geometry.num_keys)

    # ---- what a policy or a driver may ask

    def has(self, precision: int, site: int, expert: int) -> bool:
        """Whether a variant is on the device, in a pool or in staging."""
        return self.state[self._rows[precision][site][expert]] <= UNUSED

    def expert_of(self, key: int) -> int:
        return key % self.geometry.units

    def _serving(self, wanted: int) -> int:
        """The key that would serve a wanted key now (contract C18)."""
        state, plane = self.state, self._plane
        found = state[wanted]
        if found <= UNUSED or len(self._rows) == 1:
            return wanted
        key, coming = wanted - plane, wanted
        while key >= 0:
            held = state[key]
            if held <= UNUSED:
                return key
            if held == IN_FLIGHT and coming == wanted:
                coming = key
            key -= plane
        if self.loader.low_for_high:
            for key in range(wanted + plane, len(state), plane):
                if state[key] <= UNUSED:
                    return key
        return wanted if found == IN_FLIGHT else coming

    # ---- claims and evictions

    def _claim(self, transfer: Transfer, link: int) -> bool:
        """Claim the slot that a hop on a link moves into; False if there is none to be had."""
        if link >= self._ends:
            if link != self._ram_link or transfer.dense:
                return True
            assert self.ram is not None
            return self.ram.take_in(transfer.key, transfer.is_needed, self.calls)
        if transfer.claimed:
            return True
        if self._stages and self._lands_in_staging(transfer):
            return self._claim_staging(transfer)
        return self._claim_pool(transfer)

    def _asks_pool(self, transfer: Transfer, link: int) -> bool:
        """Whether ``_claim`` would ask the key's pool for a slot."""
        return not (
            link >= self._ends
            or transfer.claimed
            or (self._stages and self._lands_in_staging(transfer))
        )

    def _claim_pool(self, transfer: Transfer) -> bool:
        key = transfer.key
        victims = self.protection.claim(key, transfer.is_needed)
        if victims is None:
            return False
        transfer.claimed = True
        if victims:
            transfer.victims = victims
            if self._writes_back:
                transfer.write_back = victims
            self._evict(victims)
            # The row of a first issue, which follows at once, names the first of them.
            named = 0 if transfer.number >= 0 else 1
            if len(victims) > named:
                self._note_evictions(victims[named:], key)
        return True

    def _has_claim(self, transfer: Transfer, link: int) -> bool:
        if link < self._ends or transfer.dense:
            return transfer.claimed
        assert self.ram is not None
        return self.ram.state[transfer.key] == IN_FLIGHT

    def _could_claim(self, transfer: Transfer, link: int) -> bool:
        """Whether ``_claim`` would succeed now for a transfer that is a demand or urgent."""
        if link >= self._ends:
            return (
                link != self._ram_link
                or self.ram is None
                or transfer.dense
                or self.ram.could_take_in(transfer.key)
            )
        if transfer.claimed:
            return True
        if self._stages and self._lands_in_staging(transfer):
            return not self.staging.is_full or self.staging.first_but(self.protection.pins) >= 0
        return self.protection.could_claim(transfer.key)

    def require_moved(self, key: int, moved_bytes: int, asked: str = "moved_bytes") -> int:
        """The bytes that the payload names where it is ``asked``; raise PolicyError for fewer than its
        access may move.
        """
        least = 1 if self.payload.partial else self._key_bytes[key]
        if moved_bytes < least:
            raise PolicyError(
                f"{name_of(self.payload)}: `{asked}` moves {moved_bytes} of the"
                f" {self._key_bytes[key]} B of {self.geometry.name_of(key)}; it must move at least"
                f" {least}" + ("" if self.payload.partial else ", or say partial = True")
            )
        return moved_bytes

    def _evict(self, victims: Sequence[int]) -> None:
        state, cache = self.state, self.cache
        for victim in victims:
            if state[victim]:
                self._transfer_of[victim].outcome = EVICTED_UNUSED
            state[victim] = ABSENT
            cache.on_evict(victim)

    @property
    def rows_alone(self) -> int:
        """How many rows of events were noted one by one."""
        return self.events_packed + len(self.events) // len(EVENT_COLUMNS)

    @property
    def event_columns(self) -> Mapping[str, Sequence[int]]:
        """The columns of all events by name (`EVENT_COLUMNS`), of a packed run, too."""
        if self._packed_events is None:
            return self.events_after(0, 0)
        if self.many_events:
            self._packed_events = with_many(self._packed_events, self.many_events)
            self.many_events = []
        return self._packed_events

    def events_after(self, alone: int, many: int) -> Mapping[str, Sequence[int]]:
        """The same, without the first so many rows that were noted ``alone`` and groups of
        ``many_events``. Of a run that is not packed.
        """
        width = len(EVENT_COLUMNS)
        rows = self.events[alone * width :]
        columns = {name: rows[nth::width] for nth, name in enumerate(EVENT_COLUMNS)}
        groups = self.many_events[many:]
        return with_many(columns, [group._replace(before=group.before - alone) for group in groups])

    def _note_evictions(self, victims: Sequence[int], key: int) -> None:
        """Write a row for each victim that the row of an issue does not name. ``key``: the key
        that they were evicted for, -1 for none.
        """
        for victim in victims:
            self.events += (self.calls, EVICT, victim, key)

    def _trim(self, pools: Iterable[int]) -> None:
        """Evict what these pools hold beyond their capacity: after a batch, or because they have
        shrunk.
        """
        victims = self.protection.excess(pools)
        for victim in victims:
            self.slots.release(victim)
        self._evict(victims)
        self._note_evictions(victims, -1)

    # ---- staging

    def _lands_in_staging(self, transfer: Transfer) -> bool:
        if transfer.staged or self._is_short(transfer.key):
            return True
        if transfer.prefetch and self.loader.destination == "staging":
            return True
        return transfer.is_needed and (
            not self.cache.admits_all or self._finds_only_masked(transfer.key)
        )

    def _finds_only_masked(self, key: int) -> bool:
        """``demand_evicts: unmasked``: whether only masked keys could make room for a key."""
        return self.protection.spares_masked and not self.protection.could_claim(key)

    def _is_short(self, key: int) -> bool:
        """Whether a key's pool holds less than one token's needs. Then the key lands in staging."""
        return self.slots.is_short[self.slots.pool_of[key]]

    def _claim_staging(self, transfer: Transfer) -> bool:
        staging = self.staging
        if staging.is_full:
            victim = staging.first_but(self.protection.pins)
            if victim < 0 or not transfer.is_needed:
                return False
            self._drop_staged(victim)
        staging.claim()
        transfer.staged = transfer.claimed = True
        return True

    def _exchange(self, key: int) -> None:
        """Admit a staged variant that is needed to its pool, if a demand's claim succeeds there.
        No bytes move: the slots of the victims become staging slots.
        """
        if not self.cache.admits_all:
            return
        victims = self.protection.claim(key, must=True)
        if victims is not None:
            self._enter(key, victims)

    def _offer(self, key: int) -> bool:
        """Offer a staged variant whose need is over to a policy that may refuse it; whether the
        variant has entered its pool.
        """
        if self.cache.admits_all or self._transfer_of[key].partial:
            return False
        victims = self.protection.would_evict(key, must=False)
        if victims is None or not self.cache.admit(key, victims):
            return False
        self.protection.claim(key, must=False)
        self._enter(key, victims)
        return True

    def _enter(self, key: int, victims: Sequence[int]) -> None:
        """Move a staged variant into its pool, where its slot has been claimed."""
        self._evict(victims)
        self._note_evictions(victims, key)
        self.staging.take(key)
        self.cache.on_insert(key, PREFETCH)

    def _drop_staged(self, key: int) -> None:
        """Give up a staged variant."""
        if self.state[key] == UNUSED:
            self._transfer_of[key].outcome = DROPPED
        self.state[key] = ABSENT
        self.staging.take(key)

    def _leave(self, key: int) -> None:
        """A need is over that no pool holds: offer it, or drop it and tell the policy.

        The need is still pinned. The policy counts it as asked for, so that it could name it as a
        victim for itself.
        """
        if self.staging.holds[key]:
            if self.state[key] == UNUSED or not self._offer(key):
                self._drop_staged(key)
                self.cache.on_evict(key)
        elif self.state[key] > UNUSED:
            self.cache.on_evict(key)

    # ---- for tests

    def check(self) -> None:
        """Assert every invariant of the state. Expensive: for tests."""
        self.protection.show()
        self.slots.check()
        self.staging.check()
        g = self.geometry
        used = [0] * len(self.slots.capacity_bytes)
        for key, state in enumerate(self.state):
            transfer = self._transfer_of[key]
            if state in (QUEUED, IN_FLIGHT, UNUSED):
                assert transfer.key == key, key
                assert not transfer.cancelled, key
                assert (state == QUEUED) == (transfer.number < 0), key
                assert state != UNUSED or transfer.prefetch, key
            if key % g.units == g.experts:
                continue
            arriving = state in (QUEUED, IN_FLIGHT) and transfer.claimed and not transfer.staged
            if arriving or (state <= UNUSED and not self.staging.holds[key]):
                used[self.slots.pool_of[key]] += self.slots.slot_bytes[key]
        for pool, free in enumerate(self.slots.free_bytes):
            assert free == self.slots.room_bytes[pool] - used[pool], (pool, free, used[pool])
