"""What waits to be moved: queues, and what is given up before it starts.

A transfer is queued on the outermost link of its route, or on the link inside the RAM tier if that
holds its key, and again on each link inwards. A transfer that is given up gives back all that it
has claimed or pinned. Prefetches of a ranked forecast may wait as keys (`sim.core.ranked`).
``sim.core.transfers`` stands on top of this module: it decides who starts, and what follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from sim.core.claims import DROPPED, Claims
from sim.core.event_rows import ManyRows
from sim.core.issued import Issued
from sim.core.loader import Loader
from sim.core.ranked import NOBODY, REST, Ints, Ranked
from sim.core.simple import Simple
from sim.core.slots import ABSENT, QUEUED, RESIDENT
from sim.core.transfer import Transfer
from sim.policies.base import CachePolicy, Payload
from sim.values.types import Event, Geometry, PrefetchOutcome, Route

LATE: Final = int(PrefetchOutcome.LATE)
PROMOTED: Final = int(PrefetchOutcome.PROMOTED)
CANCELLED: Final = int(PrefetchOutcome.CANCELLED)
DROPPED_NO_SLOT: Final = int(PrefetchOutcome.DROPPED_NO_SLOT)
CANCEL: Final = int(Event.CANCEL)
DROP_NO_SLOT: Final = int(Event.DROP_NO_SLOT)
QUEUE_PREFETCH: Final = int(Event.QUEUE_PREFETCH)
GONE = Transfer(-1, True, 0, 0)
"""What stands in a queue for all the prefetches in it that were cancelled together."""
GONE.cancelled = True
NEVER: Final = 2**63 - 1
"""More bytes than a slot has."""


class Queues(Claims):
    """What waits to be moved.

    ``dense_bytes``: the bytes of each site's dense block, where dense blocks are streamed; else
    empty. ``simple``: which short ways the run may take.
    """

    __slots__ = (
        "_chunked",
        "_demands",
        "_moves_simply",
        "_never_issued",
        "_on_link",
        "_outermost",
        "_pool_of",
        "_prefetches",
        "_prefetches_of",
        "_ranked",
        "_slot_bytes",
        "_waits_unmade",
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
        self.issued = Issued(moves_simply=simple.moves)
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
        self._prefetches_of: list[list[Transfer]] = [[] for _ in range(self.geometry.sites)]
        self._waits_unmade, self._ranked = self.simple.ranked, NOBODY
        # What is asked of many keys at once.
        self._pool_of = np.array(self.slots.pool_of if self._waits_unmade else ())
        self._slot_bytes = np.array(self.slots.slot_bytes if self._waits_unmade else ())
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

    # ---- queueing

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
        if not self._moves_simply:  # else what waits is whole, and has claimed nothing
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

    def _is_full_for(self, key: int, full: Mapping[int, int]) -> bool:
        """Whether a prefetch needs as much of its pool as one that has just found no slot there."""
        pool = self.slots.pool_of[key]
        return pool in full and self.slots.slot_bytes[key] >= full[pool]

    def _and_full_for(self, key: int, full: Mapping[int, int]) -> Mapping[int, int]:
        return {**full, self.slots.pool_of[key]: self.slots.slot_bytes[key]}

    def _drop_cancelled(self) -> None:
        """Take cancelled transfers off the heads of the queues. Mostly the oldest are cancelled,
        and a queue that is never polled would keep them all.
        """
        for queue in self._prefetches:
            while queue and queue[0].cancelled:
                if queue[0] is REST and self._ranked.skip_cancelled():
                    break
                queue.popleft()

    def _note_events(self, kind: int, keys: Ints) -> None:
        """Write a row for each key that names nothing else."""
        self.many_events.append(ManyRows(self.rows_alone, self.calls, kind, keys))

    # ---- prefetches that wait as keys

    def _queue_ranked(self, keys: Ints, named: Iterable[int]) -> None:
        """``_queue_prefetch`` for many keys, of sites among those ``named``; they wait unmade."""
        if not len(keys):
            return
        sites = keys // self.geometry.units % self.geometry.sites
        self._ranked = Ranked(keys, sites, self.calls)
        self._prefetches[0].append(REST)
        for site in named:
            of_site = self._prefetches_of[site]
            if not of_site or of_site[-1] is not REST:
                of_site.append(REST)
        self._note_events(QUEUE_PREFETCH, keys)

    def _made(self, place: int) -> Transfer:
        """Make the key at a place of the ranked queue a transfer, at its turn or before."""
        ranked, geometry = self._ranked, self.geometry
        key = int(ranked.keys[place])
        transfer = self._transfer_of[key] = Transfer(key, True, self._key_bytes[key], ranked.call)
        ranked.make(place, transfer)
        self.state[key] = QUEUED
        self._prefetches_of[key // geometry.units % geometry.sites].append(transfer)
        return transfer

    def _make_asked(self, keys: Iterable[int]) -> None:
        """Make those of the keys that wait in the ranked queue transfers."""
        for key in keys:
            if self.state[key] == ABSENT:
                place = self._ranked.unmade_place(key)
                if place >= 0:
                    self._made(place)

    def _cancel_unmade(self, places: Ints) -> None:
        """``_cancel`` for prefetches that wait unmade."""
        self._ranked.cancel(places)
        self._never_issued[CANCELLED] += len(places)
        self._note_events(CANCEL, self._ranked.keys[places])

    def _next_ranked(self, full: Mapping[int, int]) -> None:
        """Let the next of the prefetches that wait unmade stand at the head of its queue, before
        `REST`, which stands for those after it. Those for which a pool is ``full`` are given up.
        """
        ranked, queue = self._ranked, self._prefetches[0]
        if full:
            self._drop_ranked(full)
        place = ranked.take()
        if ranked.is_left:
            queue.appendleft(REST)
        if place >= 0:
            queue.appendleft(ranked.made.get(place) or self._made(place))

    def _drop_ranked(self, full: Mapping[int, int]) -> None:
        """Give up the next keys that find no slot, before they are made."""
        rest = self._ranked.rest
        least = np.full(len(self.slots.capacity_bytes), NEVER, np.int64)
        least[list(full)] = list(full.values())
        dropped = self._ranked.take_while(self._slot_bytes[rest] >= least[self._pool_of[rest]])
        self.given_up += len(dropped)
        self._never_issued[DROPPED_NO_SLOT] += len(dropped)
        if len(dropped):
            self._note_events(DROP_NO_SLOT, dropped)

    def _empty_queue(self) -> None:
        """``_cancel`` in one piece, for prefetches that wait unmade. Nothing else waits here."""
        queue, ranked = self._prefetches[0], self._ranked
        if not queue:
            return
        waiting = ranked.left()
        for transfer in ranked.made.values():
            if transfer.waits and not transfer.cancelled:
                transfer.cancelled = True
                self.state[transfer.key] = ABSENT
        self._never_issued[CANCELLED] += len(waiting)
        if len(waiting):
            self._note_events(CANCEL, waiting)
        self._ranked = NOBODY
        queue.clear()
        # A queue of cancelled prefetches is polled once more.
        queue.append(GONE)
