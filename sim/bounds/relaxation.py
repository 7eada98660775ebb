"""A lower bound on a run's time for every way of caching and prefetching over a link.

It is a Lagrangian relaxation: constraints get prices, and a search looks for good prices.

**The constraints.** Cut a run at its gates: interval 0 ends at the first gate, interval g + 1 lies
between gate g and the next gate (or the end of the run). Whatever the caches, predictors and queues
do, each interval lasts at least as long as each of these:

- what the compute stream does in it (``compute_ns``);
- what the link serves in it;
- its *chain*: the loads that gate g demands and that had not begun before it, one after another,
  and then ``after_ns``. That is the computation of what came last, and all that follows up to the
  next gate.

Just before each gate everything resident or on its way holds a slot, ``capacity_bytes`` in all.

**The bound.** Give each interval weights link + compute + chain = 1, and each byte at each gate a
price >= 0. Then

    makespan >= sum of compute x compute_ns + chain x (after_ns + demands) + link x service
                + price x (bytes held - capacity_bytes)

The right side is a sum over *requests*; a request is an expert that a gate needs. Each request was
served in one of these ways, and pays for its own:

- Kept since its last request, it pays the prices of the gates in between.
- If its load began before the gate, it pays the load times the smallest link weight of the
  intervals that served it, and the prices of the gates from there on.
- If its load began at the gate or later, it pays the load times link + chain weight of the interval
  after the gate, and no price.

Nothing is counted twice: a load serves its first request, a held byte the next request of its
expert. Loads that serve nobody only add to the right side. So taking the cheapest way for every
request on its own gives a number that no run can be below. This is proven for *any* weights and
prices. The search need not find the best ones: every number it passes through is a bound.

**Several precisions.** A higher precision is the lower one and the bytes that it has more: a layer
of bytes. A request needs each layer up to the lowest precision that may serve it. Layers are kept
and loaded on their own; a real load of the higher precision pays for all its layers at once. Needs
that may be skipped or computed on the CPU make no requests.

**Several links.** Every link of a route is bounded in this way on its own. Beyond a managed tier
that tier's bytes count beside the device's. Where nobody owns the memory at a link's inner end,
what has come over the link holds no slot until the next link takes it on (``passes``).

Source: the linear program for prefetching and caching of Albers, Garg and Leonardi (JACM 47(6),
2000), here with bytes, several precisions, pinned needs, and compute that takes time. The search is
a smoothed subgradient method (Nesterov, 2005) with Adam's steps. docs/bounds.md has more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NEVER = -1
"""``Requests.kept_from`` of a request before which its expert was never there."""
STAGES = (64, 16, 4, 1)
"""How many neighbouring intervals share their weights, stage by stage of the search."""
WORK = 2.4e7
"""The budget of the search, a few seconds: (requests + gates) times rounds."""
ROUNDS = (80, 600)
WEIGHT_STEP, PRICE_STEP, DECAY = 0.3, 0.2, 0.97
SOFTNESS = (0.3, 0.01)
"""How soft the choice between a request's ways is, in loads, from the first round to the last."""
EPSILON = float(np.finfo(np.float64).eps)
KNOWN = 64


@dataclass(frozen=True)
class Requests:
    """The layers of bytes that gates need, in columns [R].

    - ``gate``: the gate that needs the layer, 0 .. N - 1.
    - ``bytes`` and ``load_ns``: of the layer.
    - ``kept_from``: the first gate before which keeping the layer since its last request (or since
      the start) takes room beyond what that request pins; ``NEVER`` where it cannot be kept.
    - ``holds``: whether it stays until the gate after its own in any case (pinned needs).
    """

    gate: Ints
    bytes: Ints
    load_ns: Ints
    kept_from: Ints
    holds: Bools


@dataclass(frozen=True)
class Problem:
    """What a run has to do, whatever its policies decide.

    ``compute_ns`` and ``after_ns`` are by interval [N + 1], with ``after_ns <= compute_ns``;
    ``capacity_bytes`` is by gate [N]. ``passes`` says that nobody owns the memory in which the link
    ends: what has come over it waits there and holds no slot yet.
    """

    compute_ns: Ints
    after_ns: Ints
    capacity_bytes: Ints
    requests: Requests
    passes: bool = False

    @property
    def digest(self) -> bytes:
        """A digest of all values: equal for the same trace, machine, capacity and variants."""
        arrays = (
            np.array([self.passes]),
            self.compute_ns,
            self.after_ns,
            self.capacity_bytes,
            *vars(self.requests).values(),
        )
        return sha256(
            b"".join(sha256(np.ascontiguousarray(array).tobytes()).digest() for array in arrays)
        ).digest()


class _Keyed:
    """A problem that is hashed and compared by its digest, so that its answer can be cached."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self._digest = problem, problem.digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self._digest == other._digest


def relaxed_ns(problem: Problem) -> int:
    """A time, in ns, below which no run of ``problem`` ends.

    The result is deterministic. Answers to the latest problems are cached.
    """
    return _solved(_Keyed(problem))


@lru_cache(maxsize=KNOWN)
def _solved(keyed: _Keyed) -> int:
    problem = keyed.problem
    requests = problem.requests
    if not len(requests.gate) or not requests.load_ns.any():
        return int(problem.compute_ns.sum())
    return _Search(_Prices(problem)).best()


class _Prices:
    """Computes the bound for given weights and prices, and the way that each request takes."""

    def __init__(self, problem: Problem) -> None:
        r = problem.requests
        self.gates, self.passes = len(problem.capacity_bytes), problem.passes
        # Bytes and times in units of the largest layer and load: one step width then suits all.
        self.unit_bytes, self.unit_ns = max(1, int(r.bytes.max())), int(r.load_ns.max())
        self.gate, self.size, self.load = (
            r.gate,
            r.bytes / self.unit_bytes,
            r.load_ns / self.unit_ns,
        )
        self.can_keep = r.kept_from != NEVER
        self.kept_from = np.where(self.can_keep, np.minimum(r.kept_from, r.gate + 1), 0)
        stays = r.holds & (r.gate + 1 < self.gates)
        held = np.bincount(r.gate[stays] + 1, self.size[stays], self.gates)
        self.compute, self.after = (
            problem.compute_ns / self.unit_ns,
            problem.after_ns / self.unit_ns,
        )
        self.excess = held - problem.capacity_bytes / self.unit_bytes
        kinds, kind = np.unique(np.stack([self.size, self.load]), axis=1, return_inverse=True)
        self._kinds = [
            (*kinds[:, k].tolist(), np.flatnonzero(kind.ravel() == k))
            for k in range(kinds.shape[1])
        ]

    def ways(self, weights: Floats, price: Floats) -> tuple[Floats, Ints]:
        """The cost of each request in each way [4, R], and the interval in which it is prefetched.

        The ways are kept, demanded, prefetched, and prefetched late (still on its way at its gate).
        """
        link, _, chain = weights
        before = np.concatenate(([0.0], np.cumsum(price)))
        costs = np.empty((4, len(self.gate)))
        kept = self.size * (before[self.gate + 1] - before[self.kept_from])
        costs[0] = np.where(self.can_keep, kept, np.inf)
        costs[1] = (link + chain)[self.gate + 1] * self.load
        waiting = np.zeros(len(self.gate)) if self.passes else self.size
        costs[3] = link[self.gate + 1] * self.load + waiting * price[self.gate]
        source = np.empty(len(self.gate), np.int64)
        intervals = np.arange(self.gates)
        for size, load, members in self._kinds:
            # A load served in interval i holds its slot before the gates i .. g.
            size = 0.0 if self.passes else size
            from_here = link[:-1] * load - size * before[:-1]
            least = np.minimum.accumulate(from_here)
            is_new = np.concatenate(([True], from_here[1:] < least[:-1]))
            gate = self.gate[members]
            source[members] = np.maximum.accumulate(np.where(is_new, intervals, 0))[gate]
            costs[2][members] = least[gate] + size * before[gate + 1]
        return costs, source

    def bound(self, weights: Floats, price: Floats, cheapest: Floats) -> float:
        """The bound, in loads, less the most that rounding of floats may have added.

        A running sum of n terms errs by at most n epsilons of its size, and each request takes the
        difference of two such sums.
        """
        fixed = weights[1] * self.compute + weights[2] * self.after
        room = price * self.excess
        terms = fixed.sum() + np.abs(room).sum() + cheapest.sum() + price.sum() * self.size.sum()
        rounded = 4 * EPSILON * (self.gates + len(self.gate)) * terms
        return float(fixed.sum() + room.sum() + cheapest.sum() - rounded)

    def slopes(
        self, costs: Floats, cheapest: Floats, source: Ints, softness: float
    ) -> tuple[Floats, Floats]:
        """The smoothed slopes of the bound in each weight [3, N + 1] and each price [N].

        Ways that cost a request nearly the same share it, the more so the larger ``softness`` is.
        """
        share = np.exp((cheapest - costs) / softness)
        share /= share.sum(axis=0)
        kept, demanded, early, late = share
        gates, after = self.gates, self.gate + 1
        waiting = np.zeros(len(self.gate)) if self.passes else self.size
        step = np.bincount(self.kept_from, kept * self.size, gates + 2)
        step += np.bincount(source, early * waiting, gates + 2)
        step -= np.bincount(after, kept * self.size + early * waiting, gates + 2)
        by_price = (
            np.cumsum(step)[:gates] + np.bincount(self.gate, late * waiting, gates) + self.excess
        )
        by_link = np.bincount(after, (demanded + late) * self.load, gates + 1)
        by_link += np.bincount(source, early * self.load, gates + 1)
        by_chain = self.after + np.bincount(after, demanded * self.load, gates + 1)
        return np.stack([by_link, self.compute, by_chain]), by_price


class _Search:
    """The ascent of the bound, from one price for all gates and nearly all weight on the link."""

    def __init__(self, prices: _Prices) -> None:
        self.prices = prices
        p = prices
        spans = (p.gate + 1 - p.kept_from)[p.can_keep]
        usual = float(np.median(spans)) if len(spans) else 1.0
        self.first_price = min(1.0, 1 / max(1.0, usual))
        self.rounds = int(np.clip(WORK / (p.gates + len(p.gate)), *ROUNDS)) // len(STAGES)
        self._best = 0.0

    def best(self) -> int:
        """The largest bound of all rounds, in whole ns."""
        price = np.full(self.prices.gates, self.first_price)
        logits = np.tile(np.array([[4.0], [0.0], [0.0]]), self.prices.gates + 1)
        for stage, width in enumerate(STAGES):
            logits, price = self._stage(stage, width, logits, price)
        return int(np.floor(self._best * self.prices.unit_ns))

    def _stage(
        self, stage: int, width: int, logits: Floats, price: Floats
    ) -> tuple[Floats, Floats]:
        """``rounds`` steps in which ``width`` neighbouring intervals share their weights."""
        group = np.arange(logits.shape[1]) // width
        shared, groups = logits[:, ::width].copy(), int(group[-1]) + 1
        weight_step, price_step = _Adam(shared.shape), _Adam(price.shape)
        for done in range(self.rounds):
            progress = (stage * self.rounds + done) / (self.rounds * len(STAGES))
            softness = SOFTNESS[0] * (SOFTNESS[1] / SOFTNESS[0]) ** progress
            slowing = 1 - DECAY * progress
            weight = _softmax(shared)
            by_weight, by_price = self._round(weight[:, group], price, softness)
            by_group = np.stack([np.bincount(group, row, groups) for row in by_weight]) / width
            by_logit = weight * (by_group - (weight * by_group).sum(axis=0))
            shared += WEIGHT_STEP * slowing * weight_step.direction(by_logit)
            price = np.maximum(
                0, price + PRICE_STEP * self.first_price * slowing * price_step.direction(by_price)
            )
        self._round(_softmax(shared)[:, group], price, SOFTNESS[1])
        return shared[:, group], price

    def _round(self, weights: Floats, price: Floats, softness: float) -> tuple[Floats, Floats]:
        costs, source = self.prices.ways(weights, price)
        cheapest = costs.min(axis=0)
        self._best = max(self._best, self.prices.bound(weights, price, cheapest))
        return self.prices.slopes(costs, cheapest, source, softness)


def _softmax(logits: Floats) -> Floats:
    grown = np.exp(logits - logits.max(axis=0))
    found: Floats = grown / grown.sum(axis=0)
    return found


class _Adam:
    """Adam (Kingma and Ba, 2015): steps of about 1 in each coordinate along recent mean slopes."""

    MEAN, SQUARE = 0.9, 0.999

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._mean, self._square, self._steps = np.zeros(shape), np.zeros(shape), 0

    def direction(self, slope: Floats) -> Floats:
        self._steps += 1
        self._mean += (1 - self.MEAN) * (slope - self._mean)
        self._square += (1 - self.SQUARE) * (slope**2 - self._square)
        mean = self._mean / (1 - self.MEAN**self._steps)
        found: Floats = mean / (np.sqrt(self._square / (1 - self.SQUARE**self._steps)) + 1e-8)
        return found
