"""A second implementation of the cache policies, in plain Python.

It keeps no state up to date. Whenever a victim is needed, recency, counts, scores and distances are
counted anew from all requests so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Stream:
    """One request after another: step by step, in a step site by site, two sequences after one
    another.
    """

    keys: Sequence[int]
    sites: int
    units: int
    second: int
    """First step of the second sequence."""

    def step(self, now: int) -> int:
        return now // self.sites

    def site(self, key: int) -> int:
        return key // self.units

    def begun(self, now: int) -> int:
        """The first request of the sequence that runs."""
        return self.second * self.sites if self.step(now) >= self.second else 0

    def token(self, now: int) -> int:
        return self.step(now) - (self.second if self.step(now) >= self.second else 0) + 1


Victim = Callable[[Stream, int, Sequence[tuple[int, int]]], int]
"""Of a stream, the request that misses, and what is held, (key, request that brought it), oldest
first: what goes.
"""


def replay(stream: Stream, capacity: int, victim: Victim) -> list[int]:
    held: list[tuple[int, int]] = []
    hits = []
    for now, key in enumerate(stream.keys):
        hit = any(key == other for other, _ in held)
        hits.append(int(hit))
        if hit:
            continue
        if len(held) == capacity:
            gone = victim(stream, now, held)
            held = [item for item in held if item[0] != gone]
        held.append((key, now))
    return hits


def past(stream: Stream, now: int, key: int, since: int = 0) -> list[int]:
    """The requests for a key, this one included."""
    return [when for when in range(since, now + 1) if stream.keys[when] == key]


def last(stream: Stream, now: int, key: int) -> int:
    return past(stream, now, key)[-1]


def lfu_model(stream: Stream, now: int, held: Sequence[tuple[int, int]]) -> int:
    return min((len(past(stream, now, key)), last(stream, now, key), key) for key, _ in held)[2]


def lfu_sequence(stream: Stream, now: int, held: Sequence[tuple[int, int]]) -> int:
    begun = stream.begun(now)
    return min(
        (len(past(stream, now, key, begun)), last(stream, now, key), key) for key, _ in held
    )[2]


def lfu_decayed(stream: Stream, now: int, held: Sequence[tuple[int, int]]) -> int:
    """By Horner's rule, so that the roundings are those of a count that loses its share with
    every step.
    """

    def count(key: int) -> float:
        uses = [stream.step(when) for when in past(stream, now, key)]
        total = 0.0
        for step in range(stream.step(now) + 1):
            total = total * 0.98 + uses.count(step)
        return total

    return min((count(key), last(stream, now, key), key) for key, _ in held)[2]


def lfru(stream: Stream, now: int, held: Sequence[tuple[int, int]]) -> int:
    return min(
        (len(past(stream, now, key)) / (now - last(stream, now, key)), key) for key, _ in held
    )[1]


def class_lru(
    stream: Stream, now: int, held: Sequence[tuple[int, int]], half_life: int = 16, classes: int = 8
) -> int:
    """A half-life of 16 steps, so that short streams see several."""

    def count(key: int) -> int:
        uses = [stream.step(when) // half_life for when in past(stream, now, key)]
        total = 0
        for lives in range(stream.step(now) // half_life + 1):
            total = total // 2 + uses.count(lives)
        return total

    def rank(key: int) -> tuple[Fraction, int]:
        top = max((c for c in range(classes) if 2**c <= count(key)), default=0)
        return Fraction(last(stream, now, key) - now, 2**top), last(stream, now, key)

    return min((rank(key), key) for key, _ in held)[1]


def least_stale(stream: Stream, now: int, held: Sequence[tuple[int, int]]) -> int:
    step = stream.step(now)
    return min((stream.step(last(stream, now, key)) == step, came, key) for key, came in held)[2]


def visit_count(stream: Stream, now: int, held: Sequence[tuple[int, int]]) -> int:
    return min((-len(past(stream, now, key, came)), key) for key, came in held)[1]


def frequency_over_distance(
    stream: Stream,
    now: int,
    held: Sequence[tuple[int, int]],
    since: bool = False,
    keep: bool = False,
) -> int:
    """Without a profile. Exact: frequencies and distances are whole numbers."""
    here = stream.site(stream.keys[now])

    def rank(key: int) -> tuple[bool, Fraction, int, int]:
        distance = (here - stream.site(key) if since else stream.site(key) - here) % stream.sites
        uses = Fraction(len(past(stream, now, key)), distance or stream.sites)
        is_kept = keep and distance == 0
        return is_kept, Fraction(0) if is_kept else uses, -(distance or stream.sites), key

    return min(rank(key) for key, _ in held)[3]


def frequency_over_distance_printed(
    stream: Stream, now: int, held: Sequence[tuple[int, int]]
) -> int:
    return frequency_over_distance(stream, now, held, since=True)


def frequency_over_distance_kept(stream: Stream, now: int, held: Sequence[tuple[int, int]]) -> int:
    return frequency_over_distance(stream, now, held, keep=True)


def activation_ratio(stream: Stream, now: int, held: Sequence[tuple[int, int]]) -> int:
    begun = stream.begun(now)

    def score(key: int) -> float:
        site = stream.site(key)
        of_site = sum(stream.site(other) == site for other in stream.keys[begun : now + 1])
        return (len(past(stream, now, key, begun)) / max(of_site, 1) + 1e-8) * (
            1 - site / stream.sites
        )

    return min((score(key), key) for key, _ in held)[1]


WEIGHTS = (0.3, 0.2, 0.4, 0.1)


def weighted_score(stream: Stream, now: int, held: Sequence[tuple[int, int]]) -> int:
    """Every use here wants the highest precision, so uses are high uses."""
    begun, here = stream.begun(now), stream.site(stream.keys[now])
    w_lru, w_lfu, w_lhu, w_fld = WEIGHTS

    def score(key: int) -> float:
        uses = past(stream, now, key, begun)
        recent = stream.token(uses[-1]) if uses else 0
        ahead = (stream.site(key) - here + stream.sites) % stream.sites
        learnt = (w_lru * recent + w_lfu * len(uses)) + w_lhu * len(uses)
        return learnt / stream.token(now) + w_fld * (1 - ahead / stream.sites)

    return min((score(key), key) for key, _ in held)[1]


def expected_reuse(stream: Stream, now: int, held: Sequence[tuple[int, int]]) -> int:
    """A site is visited once a step, and each visit asks for one expert."""
    decay, least, prior = 0.5 ** (1 / 8), 0.001, 3.0
    here = stream.site(stream.keys[now])

    def score(key: int) -> float:
        visits = [
            when for when in range(now + 1) if stream.site(stream.keys[when]) == stream.site(key)
        ]
        asked = [stream.keys[when] for when in visits]
        likely = least
        if visits:
            late = 0.0
            for one in asked:
                late = late * decay + (1 - decay if one == key else 0.0)
            pairs = [
                (one, other)
                for one, other, when in zip(asked, asked[1:], visits[1:], strict=False)
                if stream.step(when) != stream.second
            ]
            base = (asked.count(key) + 0.1) / (len(asked) + 1)
            seen = sum(one == asked[-1] for one, _ in pairs)
            lift = (pairs.count((asked[-1], key)) + prior * base) / ((seen + prior) * base)
            likely = 0.5 * (late + least) + 0.5 * min(base * math.sqrt(lift), 1.0)
        ahead = ((stream.site(key) - here - 1) % stream.sites + 1) / stream.sites
        return -1 / likely + -(3.0 * ahead)

    return min((score(key), key) for key, _ in held)[1]


# ---- ARC, as its paper's figure 4 writes it


def arc(requests: Sequence[int], c: int) -> list[int]:
    """Case by case; lists are least recent first."""
    t1: list[int] = []
    t2: list[int] = []
    b1: list[int] = []
    b2: list[int] = []
    p = 0.0
    hits = []

    def replace(x: int) -> None:
        if t1 and (len(t1) > p or (x in b2 and len(t1) == p)):
            b1.append(t1.pop(0))
        else:
            b2.append(t2.pop(0))

    for x in requests:
        hits.append(int(x in t1 or x in t2))
        if x in t1 or x in t2:  # case I
            (t1 if x in t1 else t2).remove(x)
            t2.append(x)
        elif x in b1:  # case II
            p = min(float(c), p + max(len(b2) / len(b1), 1.0))
            replace(x)
            b1.remove(x)
            t2.append(x)
        elif x in b2:  # case III
            p = max(0.0, p - max(len(b1) / len(b2), 1.0))
            replace(x)
            b2.remove(x)
            t2.append(x)
        else:  # case IV
            if len(t1) + len(b1) == c:
                if len(t1) < c:
                    b1.pop(0)
                    replace(x)
                else:
                    t1.pop(0)
            elif len(t1) + len(t2) + len(b1) + len(b2) >= c:
                if len(t1) + len(t2) + len(b1) + len(b2) == 2 * c:
                    b2.pop(0)
                replace(x)
            t1.append(x)
    return hits


def belady_bypass(requests: Sequence[int], again: Sequence[int], capacity: int) -> list[int]:
    """What is requested again last, the newcomer included, does not stay."""
    held: dict[int, int] = {}  # next use
    hits = []
    for key, following in zip(requests, again, strict=True):
        hits.append(int(key in held))
        held[key] = following
        if len(held) > capacity:
            del held[max(held, key=lambda other: (held[other], other))]
    return hits


def sieve(requests: Sequence[int], c: int) -> list[int]:
    """Algorithm 1 of its paper; the queue is oldest first."""
    queue: list[int] = []
    visited: dict[int, bool] = {}
    hand = 0
    hits = []
    for x in requests:
        hits.append(int(x in queue))
        if x in queue:
            visited[x] = True
            continue
        if len(queue) == c:
            while visited[queue[hand]]:
                visited[queue[hand]] = False
                hand = (hand + 1) % len(queue)
            del queue[hand]
            # Behind the newest comes the oldest.
            hand = hand if hand < len(queue) else 0
        queue.append(x)
        visited[x] = False
    return hits


def s3_fifo(requests: Sequence[int], c: int) -> list[int]:
    """As its authors' simulator has it, with the small queue's share 0.1 and the ghosts' 0.9."""
    small_slots, ghost_slots = max(1, c // 10), c * 9 // 10
    small: list[int] = []
    main: list[int] = []
    ghosts: list[int] = []
    freq: dict[int, int] = {}
    has_evicted = False
    hits = []
    for x in requests:
        hits.append(int(x in freq))
        if x in freq:
            freq[x] = min(3, freq[x] + 1)
            continue
        was_ghost = x in ghosts
        if was_ghost:
            ghosts.remove(x)
        while len(freq) == c:
            has_evicted = True
            if len(main) > c - small_slots or not small:
                t = main.pop(0)
                if freq[t] > 0:
                    freq[t] -= 1
                    main.append(t)
                else:
                    del freq[t]
                continue
            while small:
                t = small.pop(0)
                if freq[t] < 2:
                    del freq[t]
                    ghosts = [*ghosts, t][-ghost_slots:] if ghost_slots else []
                    break
                main.append(t)
                freq[t] = 0
        starts = not has_evicted and len(small) >= small_slots
        (main if was_ghost or starts else small).append(x)
        freq[x] = 0
    return hits


def w_tiny_lfu(requests: Sequence[int], c: int) -> list[int]:
    """The newcomer enters first; then what the window loses and the main part's victim compete."""
    window_slots = max(1, c // 100)
    protected_slots = (c - window_slots) * 4 // 5
    window: list[int] = []
    probation: list[int] = []
    protected: list[int] = []

    def count(key: int, now: int) -> int:
        total = 0
        for before in range(now + 1):
            total += requests[before] == key
            if (before + 1) % (10 * c) == 0:
                total //= 2
        return total

    hits = []
    for now, x in enumerate(requests):
        hits.append(int(x in window or x in probation or x in protected))
        if x in window:
            window.remove(x)
            window.append(x)
        elif hits[-1]:
            (probation if x in probation else protected).remove(x)
            protected.append(x)
            if len(protected) > protected_slots:
                probation.append(protected.pop(0))
        else:
            window.append(x)
            if len(window) <= window_slots:
                continue
            candidate = window.pop(0)
            if len(window) + len(probation) + len(protected) + 1 <= c:
                probation.append(candidate)
                continue
            others = probation or protected
            if others and count(candidate, now) > count(others[0], now):
                others.pop(0)
                probation.append(candidate)
    return hits
