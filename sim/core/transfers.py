"""How variants move: issues, hops and arrivals. Gates and forecasts are above this module.

A transfer takes hop after hop: queued (``sim.core.queues``), issued, done, queued on the next link
inwards. The slot that a hop moves into is claimed when the hop is issued (``sim.core.claims``): the
RAM tier's on ``ram_link``, the device's on link 0. After the hop on link 0 the variant is resident
in its pool, or staged. ``sim.core.transfer`` has the whole life cycle.

Methods named ``simply`` are the short ways of ``sim.core.simple``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sim.core.claims import DEMAND, PREFETCH
from sim.core.queues import DROP_NO_SLOT, Queues
from sim.core.ranked import REST
from sim.core.slots import IN_FLIGHT, QUEUED, RESIDENT, UNUSED
from sim.core.transfer import Transfer
from sim.values.types import Event, PrefetchOutcome

USED: Final = int(PrefetchOutcome.USED)
ISSUE: Final = int(Event.ISSUE)
NOT_FULL: Final[Mapping[int, int]] = MappingProxyType({})
"""By pool in which a prefetch has found no slot, the bytes of that slot. It holds while one link is
asked what to issue next, for nothing changes until the next prefetch asks.
"""


class Transfers(Queues):
    """What is on its way, and what starts next."""

    __slots__ = ()

    # ---- calls of the driver

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
            if not must and full and self._is_full_for(key, full):
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
