"""How variants move: queues, issues, hops and arrivals. Gates and forecasts are above this module.

A transfer is queued on the outermost link of its route, or on the link inside the RAM tier if that
holds its key. Then it takes hop after hop: queued, issued, done, queued on the next link inwards.
The slot that a hop moves into is claimed when the hop is issued (``sim.core.claims``): the RAM
tier's on ``ram_link``, the device's on link 0. After the hop on link 0 the variant is resident in
its pool, or staged. A transfer that is given up on the way gives back all that it has claimed or
pinned. ``sim.core.transfer`` has the whole life cycle.

Methods named ``simply`` are the short ways of ``sim.core.simple``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from sim.core.claims import DEMAND, DROPPED, PREFETCH, Claims
from sim.core.issued import Issued
from sim.core.loader import Loader
from sim.core.ranked import REST
from sim.core.simple import Simple
from sim.core.slots import ABSENT, IN_FLIGHT, QUEUED, RESIDENT, UNUSED
from sim.core.transfer import Transfer
from sim.policies.base import CachePolicy, Payload
from sim.values.types import Event, Geometry, PrefetchOutcome, Route

USED: Final = int(PrefetchOutcome.USED)
LATE: Final = int(PrefetchOutcome.LATE)
PROMOTED: Final = int(PrefetchOutcome.PROMOTED)
CANCELLED: Final = int(PrefetchOutcome.CANCELLED)
DROPPED_NO_SLOT: Final = int(PrefetchOutcome.DROPPED_NO_SLOT)
CANCEL: Final = int(Event.CANCEL)
DROP_NO_SLOT: Final = int(Event.DROP_NO_SLOT)
ISSUE: Final = int(Event.ISSUE)
NOT_FULL: Final[Mapping[int, int]] = MappingProxyType({})
"""By pool in which a prefetch has found no slot, the bytes of that slot. It holds while one link is
asked what to issue next, for nothing changes until the next prefetch asks.
"""


class Transfers(Claims):
    """What is queued and what is on its way.

    ``dense_bytes``: the bytes of each site's dense block, where dense blocks are streamed; else
    empty. ``simple``: which short ways the run may take.
    """

    __slots__ = (
        "_chunked",
        "_demands",
        "_moves_simply",
        "_on_link",
        "_outermost",
        "_prefetches",
        "given_up",
        "issued",
        "queues",
    )
    kv_bytes: Sequence[int] = ()
    """The bytes of a token's keys and values at each site, where these come from other tiers."""

    def __init__(
        self,
        geometry: Geometry,
        cache: CachePolicy,
        loader: Loader,
        payload: Payload,
        route: Route,
        ram_cache: CachePolicy | None,
        dense_bytes: Sequence[int],
        simple: Simple,
    ) -> None:
        super().__init__(geometry, cache, loader, payload, route, ram_cache)
        self.simple, self._moves_simply = simple, simple.moves
        self.dense_bytes = dense_bytes
        self.issued = Issued()
        self._never_issued = [0] * len(PrefetchOutcome)
        self._prepare_queues()
        self._prepare_dense()

    def _prepare_queues(self) -> None:
        links, loader = self.route.links, self.loader
        self._outermost = links - 1
        self._demands: list[deque[Transfer]] = [deque() for _ in range(links)]
        # Without demand_first each link has one queue, so that both names mean the same deques.
        self._prefetches = (
            [deque[Transfer]() for _ in range(links)] if loader.demand_first else self._demands
        )
        self.queues = list(zip(self._demands, self._prefetches, strict=True))
        """By link, what waits to be issued: (demands, prefetches). Urgent prefetches stand among
        the demands. A cancelled transfer may still stand in its queue.
        """
        self._chunked = loader.chunk_bytes is not None
        self._on_link: list[deque[Transfer]] = [deque() for _ in range(links)]
        self.given_up = 0
        """How many prefetches have been dropped or set aside because they found no slot. A driver
        watches it: another link may have waited for what they held.
        """

    def _prepare_dense(self) -> None:
        ahead, g = self.loader.dense_slots, self.geometry
        if not ahead:
            return
        if not ahead < g.sites or len(self.dense_bytes) != g.sites or min(self.dense_bytes) < 1:
            raise ValueError(
                f"loader.dense_slots={ahead} must be below the {g.sites} sites (0: all resident), "
                f"with a dense block of at least 1 B for each, got {list(self.dense_bytes)}"
            )
        for site in range(ahead):
            self.state[g.key(0, site, g.experts)] = RESIDENT

    # ---- what a policy or a driver may ask

    def bytes_ahead(self, link: int) -> int:
        """Bytes of the demands that wait on a link."""
        return sum(t.left_bytes for t in self._demands[link] if not t.cancelled and t.is_needed)

    def hop_bytes(self, transfer: Transfer, link: int) -> int:
        """The bytes that a transfer's hop on a link moves: up to RAM at least the whole variant,
        from there on ``moved_bytes``.
        """
        whole = self.ram is not None and link >= self._ram_link and not transfer.dense
        return (
            max(self._key_bytes[transfer.key], transfer.moved_bytes)
            if whole
            else transfer.moved_bytes
        )

    def keeps_slot(self, key: int) -> bool:
        """Whether a queued key has a slot on the device already: the rest of a partial move goes
        into the slot of what has arrived.
        """
        return self.state[key] == QUEUED and self._transfer_of[key].parent >= 0

    # ---- calls of the driver

    def bring(self, link: int, tokens: int) -> None:
        """Queue keys and values of so many tokens on a link, a transfer for each site, in order.

        They go to no slot, so that each has its claim from the start (contract C178).
        """
        self.calls += 1
        g = self.geometry
        for site, size in enumerate(self.kv_bytes):
            key = g.key(0, site, g.experts)
            transfer = self._transfer_of[key] = Transfer(
                key, False, size * tokens, self.calls, link
            )
            transfer.dense = transfer.claimed = True
            self.state[key] = QUEUED
            self._demands[link].append(transfer)

    def transfer_done(self, link: int, transfer: Transfer) -> tuple[int, Transfer | None]:
        """A hop has ended: the key that has arrived on the device (-1: none), and the next
        transfer of this link (or None), which is issued in the same call.
        """
        self.calls += 1
        if self._moves_simply:
            key = transfer.key
            if transfer.prefetch:
                self.state[key] = RESIDENT if transfer.is_needed else UNUSED
                self.cache.on_insert(key, PREFETCH)
            else:
                transfer.over = True  # nothing changes it any more: it can be packed
                self.state[key] = RESIDENT
                self.cache.on_insert(key, DEMAND)
            return key, self._issue_simply()
        if self._chunked:
            self._on_link[link].remove(transfer)
        if link >= self._ends:
            self._end_hop(link, transfer)
            return -1, self._issue(link)
        return self._arrive(transfer), self._issue(link)

    def poll(self, link: int) -> Transfer | None:
        """The next transfer to issue on a link that has room, or None."""
        self.calls += 1
        return self._issue_simply() if self._moves_simply else self._issue(link)

    def head_done(self, link: int, transfer: Transfer) -> None:
        """The head of a hop is through (cut-through): the next link inwards may begin with the
        transfer while this link still serves it.
        """
        self.calls += 1
        transfer.feeds += 1
        self._queue_again(transfer, link - 1)

    def cut(self, link: int) -> bool:
        """Whether the transfer in service on a link should give way at the end of its chunk.

        A question: it changes nothing, and is not counted as a call.
        """
        on_link = self._on_link[link]
        if not on_link or self.route.head_bytes[link]:
            return False
        serving = on_link[0]
        if serving.is_needed:
            return False
        if len(on_link) > 1:
            return on_link[1].is_needed
        demands = self._demands[link]
        return bool(demands) and self._could_claim(demands[0], link)

    def chunk_done(self, link: int, transfer: Transfer, moved_bytes: int) -> Transfer | None:
        """A transfer has been cut after ``moved_bytes`` of its service: the next one to serve, or
        None. The cut transfer waits at the head of the prefetches.
        """
        self.calls += 1
        self._on_link[link].remove(transfer)
        transfer.left_bytes -= moved_bytes
        transfer.waits = True
        self._prefetches[link].appendleft(transfer)
        return self._issue(link)

    # ---- queueing

    def _queue(self, key: int, prefetch: bool, moved_bytes: int) -> Transfer:
        """Queue an absent key on the first link of its route."""
        transfer = Transfer(key, prefetch, moved_bytes, self.calls)
        if not self._moves_simply:
            link = transfer.link = transfer.first_link = self._begin_link(key)
            if moved_bytes < self._key_bytes[key]:
                transfer.partial = transfer.staged = True
                transfer.left_bytes = self.hop_bytes(transfer, link)
        self._transfer_of[key] = transfer
        self.state[key] = QUEUED
        (self._prefetches if prefetch else self._demands)[transfer.link].append(transfer)
        return transfer

    def _begin_link(self, key: int) -> int:
        """The link on which a key's transfer begins. It looks the key up in RAM, which pins it."""
        if self.route.link_of:
            return self.route.link_of[key % self.geometry.plane]
        if self.ram is not None and self.ram.look_up(key):
            return self._ram_link - 1
        return self._outermost

    def _queue_again(self, transfer: Transfer, link: int) -> None:
        """Queue a transfer that has started for its hop on a link."""
        if transfer.link == link:  # It has bounced: it was queued here before.
            transfer.later_hops = transfer.later_hops[:-1]
        transfer.link, transfer.waits = link, True
        transfer.later_hops += ((link, self.calls),)
        transfer.left_bytes = self.hop_bytes(transfer, link)
        (self._demands if transfer.is_needed else self._prefetches)[link].append(transfer)

    def _stream_dense(self, site: int) -> None:
        """Drop a site's dense block, and queue the block that stands ``dense_slots`` sites later
        (cyclically) into its slot.
        """
        g = self.geometry
        self.state[g.key(0, site, g.experts)] = ABSENT
        site = (site + self.loader.dense_slots) % g.sites
        key = g.key(0, site, g.experts)
        transfer = self._transfer_of[key] = Transfer(key, False, self.dense_bytes[site], self.calls)
        transfer.dense = transfer.claimed = True
        self.state[key] = QUEUED
        self._demands[0].append(transfer)

    def _await(self, transfer: Transfer) -> Transfer:
        """A need waits for a transfer that has started. A prefetch is late then, and urgent from
        now on.
        """
        if not transfer.is_needed:
            transfer.is_needed = True
            transfer.outcome = LATE
            if transfer.waits and self.loader.demand_first:
                self._prefetches[transfer.link].remove(transfer)
                self._demands[transfer.link].append(transfer)
        return transfer

    def _promote(self, transfer: Transfer) -> Transfer:
        """A need asks for a prefetch that has never started: the demand that serves it."""
        self._never_issued[PROMOTED] += 1
        if not self.loader.demand_first:
            transfer.prefetch, transfer.is_needed = False, True
            transfer.call = self.calls
            return transfer
        transfer.cancelled = True
        demand = Transfer(transfer.key, False, transfer.moved_bytes, self.calls, transfer.link)
        demand.left_bytes, demand.partial, demand.staged = (
            transfer.left_bytes,
            transfer.partial,
            transfer.staged,
        )
        demand.claimed, demand.victims, demand.write_back = (
            transfer.claimed,
            transfer.victims,
            transfer.write_back,
        )
        self._transfer_of[transfer.key] = demand
        self._demands[transfer.link].append(demand)
        return demand

    # ---- giving up

    def _cancel(self, transfers: Iterable[Transfer], kept: Sequence[int]) -> None:
        """Give up those of these transfers that are waiting prefetches, not urgent, and not for
        one of the ``kept`` keys.
        """
        for transfer in transfers:
            is_idle = transfer.waits and not (transfer.is_needed or transfer.feeds)
            if is_idle and not transfer.cancelled and transfer.key not in kept:
                self._give_up(transfer, CANCEL)

    def _waiting_prefetches(self) -> list[Transfer]:
        return [transfer for queue in self._prefetches for transfer in queue]

    def _give_up(self, transfer: Transfer, event: int) -> None:
        """Drop or cancel a waiting prefetch, and give back what it has claimed. ``event``: CANCEL
        or DROP_NO_SLOT.
        """
        key = transfer.key
        transfer.cancelled = True
        self.state[key] = ABSENT
        if transfer.number < 0:
            self._never_issued[CANCELLED if event == CANCEL else DROPPED_NO_SLOT] += 1
        else:
            transfer.outcome = DROPPED
        if transfer.claimed:
            if transfer.staged:
                self.staging.release()
            else:
                self.slots.release(key)
        if self.ram is not None:
            self.ram.leave(key)
        self.events += (self.calls, event, key, -1)

    # ---- issuing

    def _issue(self, link: int) -> Transfer | None:
        """Issue the next transfer of a link whose slot can be claimed, or None.

        Prefetches that find no slot are given up on the way. A demand that finds none stays at the
        head, and only a transfer that needs no claim may pass it.
        """
        demands, prefetches = self.queues[link]
        full = NOT_FULL
        while demands or prefetches:
            queue = demands or prefetches
            transfer = queue[0]
            if transfer.cancelled:
                queue.popleft()
                if transfer is REST:
                    self._next_ranked(full)
                continue
            is_full = (
                bool(full)
                and not transfer.is_needed
                and self._asks_pool(transfer, link)
                and self._is_full_for(transfer.key, full)
            )
            if is_full or not self._claim(transfer, link):
                if transfer.is_needed:
                    return self._issue_claimed(link)
                if not is_full and self._asks_pool(transfer, link):
                    full = self._and_full_for(transfer.key, full)
                queue.popleft()
                self.given_up += 1
                if transfer.feeds:
                    transfer.waits, transfer.bounced = False, True
                else:
                    self._give_up(transfer, DROP_NO_SLOT)
                continue
            queue.popleft()
            return self._start(transfer, link)
        return None

    def _issue_simply(self) -> Transfer | None:
        """``_issue`` and ``_start`` in one piece, for simple moves."""
        demands, prefetches = self.queues[0]
        full = NOT_FULL
        while demands or prefetches:
            queue = demands or prefetches
            transfer = queue[0]
            if transfer.cancelled:
                queue.popleft()
                if transfer is REST:
                    self._next_ranked(full)
                continue
            # Nothing that waits here has started, so that none of the prefetches is urgent.
            key, must = transfer.key, not transfer.prefetch
            if full and not must and self._is_full_for(key, full):
                victims = None
            else:
                victims = self.protection.claim(key, must)
            if victims is None and must:
                return None
            queue.popleft()
            if victims is None:
                full = self._and_full_for(key, full)
                self.given_up += 1
                self._give_up(transfer, DROP_NO_SLOT)
                continue
            transfer.waits, transfer.claimed = False, True
            self.state[key] = IN_FLIGHT
            transfer.number = len(self.issued)
            self.issued.append(transfer)
            self.events += (self.calls, ISSUE, key, victims[0] if victims else -1)
            if victims:
                transfer.victims = victims
                if self._writes_back:
                    transfer.write_back = victims
                self._evict(victims)
                if len(victims) > 1:
                    self._note_evictions(victims[1:], key)
            return transfer
        return None

    def _is_full_for(self, key: int, full: Mapping[int, int]) -> bool:
        """Whether a prefetch needs as much of its pool as one that has just found no slot there."""
        pool = self.slots.pool_of[key]
        return pool in full and self.slots.slot_bytes[key] >= full[pool]

    def _and_full_for(self, key: int, full: Mapping[int, int]) -> Mapping[int, int]:
        return {**full, self.slots.pool_of[key]: self.slots.slot_bytes[key]}

    def _next_ranked(self, full: Mapping[int, int]) -> None:
        """Let the next of the prefetches that wait unmade stand at the head of its queue, before
        `REST`, which stands for those after it. Those for which a pool is ``full`` are given up.
        """
        raise NotImplementedError

    def _issue_claimed(self, link: int) -> Transfer | None:
        """Issue the first waiting transfer that has its claim already, or None. For a link whose
        first demand finds no slot.
        """
        for queue in self.queues[link]:
            for transfer in queue:
                if not transfer.cancelled and self._has_claim(transfer, link):
                    queue.remove(transfer)
                    return self._start(transfer, link)
        return None

    def _start(self, transfer: Transfer, link: int) -> Transfer:
        """Issue a transfer whose slot is claimed. Its first issue gives it its number."""
        transfer.waits = False
        if transfer.number < 0:
            key, victims = transfer.key, transfer.victims
            self.state[key] = IN_FLIGHT
            transfer.number = len(self.issued)
            self.issued.append(transfer)
            self.events += (self.calls, ISSUE, key, victims[0] if victims else -1)
        if self._chunked:
            self._on_link[link].append(transfer)
        return transfer

    # ---- hops and arrivals

    def _end_hop(self, link: int, transfer: Transfer) -> None:
        """A hop on a link other than link 0 has ended."""
        if link == self._ram_link and not transfer.dense:
            assert self.ram is not None
            self.ram.arrive(transfer.key, PREFETCH if transfer.prefetch else DEMAND)
        if transfer.link == link:
            self._queue_again(transfer, link - 1)
            return
        transfer.feeds -= 1
        if transfer.bounced and link == transfer.link + 1:
            transfer.bounced = False
            self._queue_again(transfer, transfer.link)

    def _arrive(self, transfer: Transfer) -> int:
        """The last hop has ended: the key that has arrived, or -1 if its rest has still to come."""
        key, state = transfer.key, self.state
        transfer.over = True
        if transfer.dense:
            state[key] = RESIDENT
            return key
        if transfer.rest_bytes:
            self._queue_rest(transfer)
            return -1
        if self.ram is not None:
            self.ram.leave(key)
        if transfer.staged:
            self._arrive_in_staging(transfer)
        else:
            state[key] = RESIDENT if transfer.is_needed else UNUSED
            self.cache.on_insert(key, PREFETCH if transfer.prefetch else DEMAND)
        return key

    def _complete(self, key: int, rest_bytes: int) -> Transfer:
        """A need finds a staged partial prefetch that lacks ``rest_bytes``: the demand for them,
        queued into the same slot.
        """
        partial = self._transfer_of[key]
        partial.outcome = USED
        rest = Transfer(key, False, rest_bytes, self.calls, self._begin_link(key))
        self._continue_partial(rest, partial)
        return rest

    def _queue_rest(self, transfer: Transfer) -> None:
        """A partial prefetch has arrived, and lacks bytes of the need that waits for it: queue a
        demand for them into the same slot.
        """
        link = self._outermost if self.ram is None else self._ram_link - 1
        rest = Transfer(transfer.key, False, transfer.rest_bytes, self.calls, link)
        self._continue_partial(rest, transfer)

    def _continue_partial(self, rest: Transfer, transfer: Transfer) -> None:
        rest.left_bytes = self.hop_bytes(rest, rest.link)
        rest.partial = rest.staged = rest.claimed = True
        rest.parent = transfer.number
        self._transfer_of[rest.key] = rest
        self.state[rest.key] = QUEUED
        self._demands[rest.link].append(rest)

    def _arrive_in_staging(self, transfer: Transfer) -> None:
        key = transfer.key
        self.state[key] = RESIDENT if transfer.is_needed else UNUSED
        self.staging.put(key)
        if transfer.partial:
            if transfer.overtaken and not transfer.is_needed:
                self._drop_staged(key)
        elif transfer.urgent:
            self._exchange(key)
        elif transfer.prefetch and not self.protection.protects(key):
            self._drop_staged(key)
