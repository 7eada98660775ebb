"""The transfers of the reference: queues, claims, hops, chunks, staging (docs/contracts)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

import simpy

from differential.ref_clock import Clock
from differential.ref_lanes import LanedWire
from differential.ref_links import Service, Wire
from differential.ref_memory import NOTHING, Claim, Staging, Tier, Transfer
from differential.ref_rivals import Rivals
from differential.rows import Kind
from differential.scenario import Key, Scenario


class Moves:
    """What waits on which link, what is issued next, and what becomes of it."""

    def __init__(
        self, scenario: Scenario, clock: Clock, device: Tier, ram: Tier | None, staging: Staging
    ) -> None:
        self.scenario, self.loader, self.clock = scenario, scenario.loader, clock
        self.device, self.ram, self.staging = device, ram, staging
        self.log: list[tuple[int, Service]] = []
        self.rivals = Rivals(scenario.rivalry, clock) if scenario.rivalry else None
        self.wires = [
            (LanedWire if scenario.is_laned(link) else Wire)(
                scenario, clock, link, self, self.log, self.rivals
            )
            for link in range(scenario.hops)
        ]
        self.demanded: list[int] = []
        """The bytes of each demand that has been queued."""
        self.on_read: Callable[[Transfer], None] = lambda transfer: None
        for inner, outer in pairwise(self.wires):
            inner.outer = outer
        self.queues: list[list[Transfer]] = [[] for _ in self.wires]
        self.places, self.heads, self.given_up = 0, 0, 0
        self.moving: dict[Key, Transfer] = {}
        """What is queued or in flight."""
        self.transfers: list[Transfer] = []
        self.pinned: dict[Key, None] = {}
        self.masked: dict[int, set[Key]] = {}
        self.ram_pinned: set[Key] = set()
        self.dense_here = set(range(self.loader.dense_slots))
        self.dense_coming: dict[int, Transfer | None] = {}
        self.kv_coming: dict[int, list[Transfer]] = {}
        self.kv_landed: list[Transfer] = []
        self.unused: set[Key] = set()
        """Prefetched, there, and not asked for since."""
        self.prefetch: Counter[str] = Counter()
        self.ram_lookups: list[tuple[int, bool]] = []
        self.ram_evictions: list[int] = []
        self.trimmed: list[tuple[int, int]] = []
        self.exchanged: list[tuple[int, int, tuple[int, ...]]] = []

    # ---- what is where

    def is_there(self, key: Key) -> bool:
        return self.device.holds(key) or key in self.staging.staged

    def is_partial(self, key: Key) -> bool:
        """Whether what is staged is less than the variant."""
        return self.staging.staged[key] < self.scenario.size(key)

    def everything_masked(self) -> set[Key]:
        return set().union(*self.masked.values())

    # ---- queues

    def queue(self, key: Key, kind: Kind, moved: int) -> Transfer:
        """A new transfer on its first link."""
        whole = moved == self.scenario.size(key)
        transfer = Transfer(
            key, kind, moved, whole, simpy.Event(self.clock.env), needed=kind != "prefetch"
        )
        if kind == "dense":
            transfer.slot = "dense"
        self.depart(transfer)
        return transfer

    def queue_kv(self, link: int, tokens: int) -> None:
        """Keys and values, site by site, on the link that leads out of their tier. They need no
        slot anywhere.
        """
        for site, size in enumerate(self.scenario.kv_bytes):
            key = (0, site, self.scenario.experts)
            arrived = simpy.Event(self.clock.env)
            transfer = Transfer(key, "dense", size * tokens, True, arrived, needed=True, slot="kv")
            transfer.ram, transfer.call = "resident", len(self.clock.calls)
            self.kv_coming.setdefault(site, []).append(transfer)
            self.join(transfer, link)

    def queue_rest(self, key: Key, moved: int, completes: Transfer | None = None) -> Transfer:
        """A demand for what a partial prefetch lacks; it goes into the same slot, which was
        staged or on its way.
        """
        arrived = completes.arrived if completes else simpy.Event(self.clock.env)
        if completes is None:
            del self.staging.staged[key]
            self.staging.claimed += 1
        rest = Transfer(
            key, "demand", moved, False, arrived, needed=True, slot="staging", completes=completes
        )
        self.depart(rest)
        return rest

    def depart(self, transfer: Transfer) -> None:
        self.moving[transfer.key] = transfer
        transfer.call = len(self.clock.calls)
        if transfer.kind == "demand":
            self.demanded.append(transfer.moved)
        first = self.scenario.hops - 1
        if self.scenario.devices:
            first = self.scenario.link_of(transfer.key)
        elif transfer.kind == "dense":
            first = 0
        elif self.scenario.ram and self.ram:
            found = self.ram.holds(transfer.key)
            if transfer.completes is None:
                self.ram_lookups.append((self.scenario.pack(transfer.key), found))
            if found:
                transfer.ram = "resident"
                self.ram_pinned.add(transfer.key)
                first = self.scenario.ram.link - 1
        self.join(transfer, first)

    def join(self, transfer: Transfer, link: int) -> None:
        """At the tail of the demands or of the prefetches of a link."""
        transfer.place = self.next_place()
        transfer.waits_on = link
        self.queues[link].append(transfer)
        if transfer.hops and transfer.hops[-1][0] == link:
            transfer.hops.pop()
        transfer.hops.append((link, self.clock.now))

    def next_place(self) -> int:
        self.places += 1
        return self.places

    def in_order(self, link: int) -> list[Transfer]:
        """The queue as the link sees it: demands before prefetches (or not), first in first out."""
        demand_first = self.loader.demand_first
        return sorted(
            self.queues[link], key=lambda t: (demand_first and not t.ahead_of_prefetches, t.place)
        )

    def make_demand(self, transfer: Transfer) -> None:
        """Promotion of what never started."""
        transfer.kind, transfer.call = "demand", len(self.clock.calls)
        self.demanded.append(transfer.moved)
        transfer.hops = [(link, self.clock.now) for link, _ in transfer.hops]
        if self.loader.demand_first:
            transfer.place = self.next_place()

    def hurry(self, transfer: Transfer) -> None:
        """A started prefetch becomes urgent."""
        transfer.urgent = True
        if transfer.waits_on is not None and self.loader.demand_first:
            transfer.place = self.next_place()

    def cancellable(self) -> list[Transfer]:
        """Waiting prefetches that no need waits for, unless handed on early by a hop that has
        not ended.
        """
        return [
            transfer
            for queue in self.queues
            for transfer in queue
            if transfer.kind == "prefetch" and not transfer.needed and not transfer.hops_open
        ]

    def cancel(self, transfers: Iterable[Transfer]) -> None:
        for transfer in list(transfers):
            self.forget(transfer)
            self.prefetch["dropped" if transfer.started else "cancelled"] += 1

    def forget(self, transfer: Transfer) -> None:
        """It leaves its queue and gives back what it has claimed or pinned."""
        self.leave_queue(transfer)
        self.release_ram(transfer)
        del self.moving[transfer.key]
        if transfer.slot == "pool":
            self.device.give_back(transfer.key)
        elif transfer.slot == "staging":
            self.staging.claimed -= 1

    def leave_queue(self, transfer: Transfer) -> None:
        assert transfer.waits_on is not None
        self.queues[transfer.waits_on].remove(transfer)
        transfer.waits_on = None

    def release_ram(self, transfer: Transfer) -> None:
        """A transfer is over or given up; what was asked for in vain is as good as evicted."""
        if not self.ram or transfer.kind == "dense":
            return
        if transfer.ram == "claimed":
            self.ram.give_back(transfer.key)
        if transfer.ram != "resident":
            self.ram.history.evicted(transfer.key)
        self.ram_pinned.discard(transfer.key)

    # ---- issuing

    def poll(self, but: int | None = None) -> None:
        """After every call: each link, in order, is filled up. And again where a prefetch was given
        up on the way: for what it had claimed another link may have waited."""
        given_up = -1
        while given_up < self.given_up:
            given_up = self.given_up
            for link, wire in enumerate(self.wires):
                if link != but:
                    while wire.has_room and self.issue(link):
                        pass
                    wire.fill_engines()
        for wire in self.wires:
            wire.watch()

    def issue(self, link: int) -> bool:
        """Issue the next transfer whose slots can be claimed; prefetches that find none are dropped
        on the way.

        Behind a needed one that finds none, only what has its claims already is issued.
        """
        for transfer in self.in_order(link):
            claim = self.claim(transfer, link)
            if claim is not None:
                self.send(transfer, link, claim)
                return True
            if transfer.needed:
                ready = [
                    other for other in self.in_order(link) if self.claim(other, link) is NOTHING
                ]
                if ready:
                    self.send(ready[0], link, NOTHING)
                return bool(ready)
            self.given_up += 1
            if transfer.hops_open:
                self.leave_queue(transfer)
                transfer.aside = link + 1
            else:
                self.forget(transfer)
                self.prefetch["dropped" if transfer.started else "dropped_no_slot"] += 1
        return False

    def send(self, transfer: Transfer, link: int, claim: Claim) -> None:
        self.leave_queue(transfer)
        self.take(transfer, claim)
        if transfer.number is None:
            transfer.number = len(self.transfers)
            self.transfers.append(transfer)
            if transfer.kind == "prefetch":
                self.prefetch["started"] += 1
        transfer.hops_open.add(link)
        self.wires[link].issue(transfer)

    # ---- claims

    def claim(self, transfer: Transfer, link: int) -> Claim | None:
        """What must be claimed for the transfer to be issued on the link; None where it cannot
        be.
        """
        if link in self.scenario.last_links and transfer.slot is None:
            return self.device_claim(transfer)
        if (
            self.scenario.ram
            and self.ram
            and link == self.scenario.ram.link
            and transfer.ram == "no"
        ):
            victims = self.ram.victims(transfer.key, self.ram_pinned, (), demand=transfer.needed)
            return None if victims is None else Claim("ram", tuple(victims))
        return NOTHING

    def device_claim(self, transfer: Transfer) -> Claim | None:
        if self.goes_to_staging(transfer):
            if self.staging.free > 0:
                return Claim("staging")
            displaced = [key for key in self.staging.staged if key not in self.pinned]
            return Claim("staging", (displaced[0],)) if transfer.needed and displaced else None
        victims = self.pool_victims(transfer.key, transfer.needed)
        return None if victims is None else Claim("pool", tuple(victims))

    def goes_to_staging(self, transfer: Transfer) -> bool:
        if not transfer.whole or self.scenario.is_short(self.device.pool(transfer.key).spec):
            return True
        if transfer.kind == "prefetch" and self.loader.destination == "staging":
            return True
        if transfer.needed and self.scenario.refuses:
            return True
        finds_none = transfer.needed and self.pool_victims(transfer.key, needed=True) is None
        return finds_none and self.loader.demand_evicts == "unmasked"

    def pool_victims(self, key: Key, needed: bool) -> list[Key] | None:
        if needed and self.loader.retention != "strict":
            return []
        spares = self.loader.demand_evicts == "unmasked"
        return self.device.victims(
            key, self.pinned, self.everything_masked(), demand=needed and not spares
        )

    def take(self, transfer: Transfer, claim: Claim) -> None:
        if claim.place == "pool":
            for key in claim.victims:
                self.evict(key)
            self.device.claim(transfer.key)
            assert self.device.fits(transfer.key) or self.loader.retention != "strict"
            transfer.victims = claim.victims
        elif claim.place == "staging":
            for key in claim.victims:
                self.drop_staged(key)
            self.staging.claimed += 1
            assert self.staging.free >= 0
        elif claim.place == "ram" and self.ram:
            for key in claim.victims:
                self.ram.evict(key)
                self.ram_evictions.append(self.scenario.pack(key))
            self.ram.claim(transfer.key)
            assert self.ram.fits(transfer.key)
            self.ram_pinned.add(transfer.key)
            transfer.ram = "claimed"
        if claim.place in ("pool", "staging"):
            transfer.slot = claim.place

    def evict(self, key: Key) -> None:
        self.device.evict(key)
        if key in self.unused:
            self.unused.remove(key)
            self.prefetch["evicted_unused"] += 1

    def drop_staged(self, key: Key) -> None:
        del self.staging.staged[key]
        self.unused.remove(key)
        self.prefetch["dropped"] += 1

    # ---- ends of hops, heads and chunks

    def hop_ends(self, link: int, transfer: Transfer) -> None:
        """`transfer_done`: the transfer goes on or lands; the next is issued in the same call."""
        assert transfer.number is not None
        self.clock.say("transfer_done", transfer.number)
        transfer.hops_open.remove(link)
        at_ram = self.scenario.ram and link == self.scenario.ram.link
        if self.ram and at_ram and transfer.slot != "kv":
            self.ram.insert(transfer.key)
            transfer.ram = "resident"
        if link in self.scenario.last_links:
            self.land(transfer)
        elif link not in transfer.handed_on or transfer.aside == link:
            transfer.aside = None
            self.join(transfer, link - 1)
        is_issued = self.issue(link)
        self.wires[link].fill_engines()
        self.poll(but=link if is_issued else None)

    def read_ends(self, link: int, transfer: Transfer, projection: int | None) -> None:
        """Of what lands on the device the stream may wait for this projection."""
        if link in self.scenario.last_links and projection is not None:
            transfer.come.add(projection)
            self.on_read(transfer)

    def head_ends(self, link: int, transfer: Transfer) -> None:
        """`head_done`: enough is through for the next link to begin."""
        assert transfer.number is not None
        self.clock.say("head_done", transfer.number)
        transfer.handed_on.add(link)
        self.join(transfer, link - 1)
        self.poll()

    def would_cut(self, link: int) -> bool:
        """`cut`: should the prefetch in service give way to what would be served next?"""
        serving = self.wires[link].serving
        if not serving or serving[0].needed or serving[0].kind != "prefetch":
            return False
        following = self.wires[link].next_issued
        if following:
            return following.ahead_of_prefetches
        waiting = self.in_order(link)
        return (
            bool(waiting)
            and waiting[0].ahead_of_prefetches
            and self.claim(waiting[0], link) is not None
        )

    def chunk_ends(self, link: int, transfer: Transfer) -> None:
        """`chunk_done`: what is cut stands at the head of the prefetches, with its claims and
        its number.
        """
        assert transfer.number is not None
        self.clock.say("chunk_done", transfer.number)
        transfer.hops_open.remove(link)
        self.heads -= 1
        transfer.place, transfer.waits_on = self.heads, link
        self.queues[link].append(transfer)
        self.poll(but=link if self.issue(link) else None)

    def land(self, transfer: Transfer) -> None:
        """The last hop has ended."""
        key = transfer.key
        if transfer.slot == "kv":
            self.kv_landed.append(transfer)
            transfer.arrived.succeed(transfer)
            return
        del self.moving[key]
        self.release_ram(transfer)
        if transfer.lacking:
            lacking = self.scenario.missing_bytes(key, transfer.lacking, transfer.moved)
            if transfer.overtaken:
                own = self.scenario.moved_bytes(key, transfer.lacking)
                lacking = min(own, self.scenario.size(key) - transfer.moved)
            if lacking:
                self.queue_rest(key, lacking, completes=transfer)
                return
        unasked = transfer.kind == "prefetch" and not transfer.needed
        if transfer.slot == "dense":
            self.dense_here.add(key[1])
        elif transfer.slot == "pool":
            self.device.insert(key)
        else:
            self.staging.claimed -= 1
            self.staging.staged[key] = transfer.moved
        if unasked:
            self.unused.add(key)
        if transfer.slot == "staging" and transfer.kind == "prefetch" and transfer.whole:
            if transfer.needed:
                self.exchange(key)
            elif key not in self.everything_masked():
                self.drop_staged(key)
        if unasked and transfer.overtaken:
            self.drop_staged(key)
        transfer.arrived.succeed(transfer)

    def exchange(self, key: Key) -> None:
        """What is staged and needed enters the pool, if a demand would find its slot. Who
        refuses is asked later.
        """
        victims = self.pool_victims(key, needed=True)
        if victims is not None and not self.scenario.refuses:
            self.enter(key, victims)

    def enter(self, key: Key, victims: Iterable[Key]) -> None:
        for victim in victims:
            self.evict(victim)
        del self.staging.staged[key]
        self.device.insert(key)
        pack = self.scenario.pack
        self.exchanged.append(
            (self.clock.now, pack(key), tuple(pack(victim) for victim in victims))
        )
