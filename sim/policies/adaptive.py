"""ARC: a cache that shifts between recency and frequency when evicted keys are requested again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sim.policies.base import Gate
from sim.policies.pools import Pooled
from sim.values.types import Cause, Geometry, PoolPlan


class Lists:
    """The four lists of one pool, each least recent first. ``capacity`` (c) is in keys.

    ``recent`` (T1) holds keys requested once, ``frequent`` (T2) keys requested more often.
    ``recent_ghosts`` (B1) and ``frequent_ghosts`` (B2) hold the keys that were evicted from them.
    ``target`` (p, 0 to c) is how many keys T1 should hold.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.recent: dict[int, None] = {}
        self.frequent: dict[int, None] = {}
        self.recent_ghosts: dict[int, None] = {}
        self.frequent_ghosts: dict[int, None] = {}
        self.target = 0.0
        self.held = 0
        """How many keys of T1 are resident."""
        self.from_frequent_ghosts: set[int] = set()
        """Keys that were requested while they were ghosts of T2, and are not resident yet."""

    def request(self, key: int, unused: bool) -> None:
        """Move a requested key between the lists. ``unused``: it came in without a request, so this
        is its first.
        """
        ones, twos = self.recent_ghosts, self.frequent_ghosts
        if key in self.recent and unused:
            del self.recent[key]
            self.recent[key] = None
        elif key in self.recent or key in self.frequent:
            self.recent.pop(key, None)
            self.frequent.pop(key, None)
            self.frequent[key] = None
        elif key in ones:
            self.target = min(float(self.capacity), self.target + max(1.0, len(twos) / len(ones)))
            del ones[key]
            self.frequent[key] = None
        elif key in twos:
            self.target = max(0.0, self.target - max(1.0, len(ones) / len(twos)))
            del twos[key]
            self.frequent[key] = None
            self.from_frequent_ghosts.add(key)
        else:
            self.recent[key] = None
            self.trim()

    def trim(self) -> None:
        """Forget ghosts: T1 and B1 together hold at most c keys, all four lists at most 2 c."""
        ones, twos = self.recent_ghosts, self.frequent_ghosts
        while ones and len(self.recent) + len(ones) > self.capacity:
            del ones[next(iter(ones))]
        # T1 may hold c keys and one that is on its way. It will lose one of them without a ghost,
        # so it counts as c.
        once = min(len(self.recent) + len(ones), self.capacity)
        while twos and once + len(self.frequent) + len(twos) > 2 * self.capacity:
            del twos[next(iter(twos))]


class ARC(Pooled):
    """Adaptive replacement in each pool by itself: the victim is the least recent key of T1 or of
    T2, depending on the target p.

    Let |T1| be the number of resident keys of T1. The next victim comes from T1 if |T1| > p, or if
    |T1| = p and the incoming key was a ghost of T2; else from T2. If that list offers none, it
    comes from the other.

    - A request moves a key of T1 or T2, or a ghost, to T2; a ghost also moves p. A new key enters
      T1.
    - A key on its way stands in its list from its request on, but |T1| does not count it.
    - A key that came without a request (at the start, or prefetched) enters T1, whether or not it
      was a ghost. Its first request leaves it there.
    - A key that was requested and never came in is forgotten.

    Source: Megiddo and Modha, FAST 2003, fig. 4; in each site by itself in Fang et al., Fate,
    arXiv:2502.12224, section 4.4.
    """

    def _prepare(self, geometry: Geometry, plan: PoolPlan) -> None:
        slot_bytes = max(geometry.slot_sizes)
        self._lists = [Lists(capacity // slot_bytes) for capacity in plan.capacity_bytes]
        self._resident: set[int] = set()
        self._unused: set[int] = set()
        """Keys that are resident and were not requested yet."""

    def victims(self, pool: int, incoming: int, blocked: bytearray) -> Iterator[int]:
        lists, resident = self._lists[pool], self._resident
        recent = (key for key in lists.recent if key in resident and not blocked[key])
        frequent = (key for key in lists.frequent if key in resident and not blocked[key])
        held, is_ghost = lists.held, incoming in lists.from_frequent_ghosts
        one, two = next(recent, -1), next(frequent, -1)
        while one >= 0 or two >= 0:
            from_recent = held >= 1 and (held > lists.target or (is_ghost and held == lists.target))
            if one >= 0 and (from_recent or two < 0):
                yield one
                held -= 1
                one = next(recent, -1)
            else:
                yield two
                two = next(frequent, -1)

    def on_requests(
        self, keys: Sequence[int], wanted: Sequence[int], outcomes: Sequence[int], gate: Gate
    ) -> None:
        for key in keys:
            lists = self._lists[self._pool_of[key]]
            was_held = key in self._resident and key in lists.recent
            lists.request(key, key in self._unused)
            self._unused.discard(key)
            if was_held and key not in lists.recent:
                lists.held -= 1

    def on_insert(self, key: int, cause: Cause) -> None:
        lists = self._lists[self._pool_of[key]]
        self._resident.add(key)
        lists.from_frequent_ghosts.discard(key)
        if key not in lists.recent and key not in lists.frequent:
            lists.recent_ghosts.pop(key, None)
            lists.frequent_ghosts.pop(key, None)
            lists.recent[key] = None
            self._unused.add(key)
            lists.trim()
        lists.held += key in lists.recent

    def on_evict(self, key: int) -> None:
        lists = self._lists[self._pool_of[key]]
        lists.from_frequent_ghosts.discard(key)
        self._unused.discard(key)
        was_resident = key in self._resident
        self._resident.discard(key)
        lists.held -= was_resident and key in lists.recent
        for here, ghosts in (
            (lists.recent, lists.recent_ghosts),
            (lists.frequent, lists.frequent_ghosts),
        ):
            if key in here:
                del here[key]
                if was_resident:
                    ghosts[key] = None
        lists.trim()
