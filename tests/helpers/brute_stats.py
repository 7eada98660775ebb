"""The statistics of gates in plain Python, as a second implementation to compare with.

A *token* is (sequence, position, selections by site). A selection list holds (expert, weight); ids
of -1 are left out. Each function follows its definition and is slow on purpose.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import polars as pl

from capture.statistics.sample import Sample

Selections = list[list[tuple[int, float]]]
Token = tuple[int, int, Selections]


def tokens_of(sample: Sample) -> list[Token]:
    trace = sample.trace
    return [
        (
            int(trace.sequence[row]),
            int(trace.position[row]),
            [
                [(int(e), float(w)) for e, w in zip(ids, weights, strict=True) if e >= 0]
                for ids, weights in zip(trace.ids[row], trace.weights[row], strict=True)
            ],
        )
        for row in range(len(trace.step))
    ]


def experts(token: Token, site: int) -> set[int]:
    return {expert for expert, _ in token[2][site]}


def first(token: Token, site: int) -> int:
    """The expert with the largest weight; of equal weights the lowest expert."""
    chosen = token[2][site]
    return min((-weight, expert) for expert, weight in chosen)[1] if chosen else -1


def reuse(tokens: Sequence[Token], site: int, lag: int) -> float | None:
    by_place = {
        (sequence, position): token for token in tokens for sequence, position in [token[:2]]
    }
    shares = []
    for token in tokens:
        later = by_place.get((token[0], token[1] + lag))
        if later is not None and experts(token, site) and experts(later, site):
            shares.append(
                len(experts(token, site) & experts(later, site)) / len(experts(token, site))
            )
    return sum(shares) / len(shares) if shares else None


def popularity_alone(tokens: Sequence[Token], site: int, num_experts: int) -> float:
    some = [experts(token, site) for token in tokens if experts(token, site)]
    shares = [sum(expert in chosen for chosen in some) / len(some) for expert in range(num_experts)]
    return sum(share**2 for share in shares) / sum(shares)


def distances(tokens: Sequence[Token], site: int) -> Counter[int | None]:
    """How many selections there are at each reuse distance.

    The distance is how many experts the sequence selected since the token that last selected this
    one; None at the first use.
    """
    found: Counter[int | None] = Counter()
    for index, token in enumerate(tokens):
        before = [other for other in tokens[:index] if other[0] == token[0]]
        for expert in experts(token, site):
            uses = [place for place, other in enumerate(before) if expert in experts(other, site)]
            if not uses:
                found[None] += 1
                continue
            found[
                len(set().union(*(experts(other, site) for other in before[uses[-1] + 1 :])))
            ] += 1
    return found


def union_of_sequences(tokens: Sequence[Token], site: int, batch: int) -> float:
    """The mean number of distinct experts of one token each of ``batch`` sequences.

    The mean is over all choices of sequences and tokens.
    """
    by_sequence = defaultdict(list)
    for token in tokens:
        by_sequence[token[0]].append(token)
    means = []
    for chosen in combinations(by_sequence.values(), batch):
        sizes = [
            len(set().union(*(experts(token, site) for token in pick))) for pick in product(*chosen)
        ]
        means.append(sum(sizes) / len(sizes))
    return sum(means) / len(means)


def union_of_window(tokens: Sequence[Token], site: int, batch: int) -> float | None:
    by_place = {(token[0], token[1]): token for token in tokens}
    sizes = []
    for sequence, position, _ in tokens:
        window = [by_place.get((sequence, position + step)) for step in range(batch)]
        if all(token is not None for token in window):
            sizes.append(
                len(set().union(*(experts(token, site) for token in window if token is not None)))
            )
    return sum(sizes) / len(sizes) if sizes else None


def least_popular(tokens: Sequence[Token], site: int, share: float) -> float:
    """Share of selections on the least used experts; a part of an expert counts in part."""
    values = []
    for sequence in {token[0] for token in tokens}:
        uses = sorted(
            Counter(
                e for token in tokens if token[0] == sequence for e in experts(token, site)
            ).values()
        )
        if not uses:
            continue
        left, covered = share * len(uses), 0.0
        for count in uses:
            part = min(max(left, 0.0), 1.0)
            covered += part * count
            left -= 1
        values.append(covered / sum(uses))
    return sum(values) / len(values)


def coverage(
    fit: Sequence[Token],
    held: Sequence[Token],
    sites: Sequence[int],
    known: int,
    key: str,
    top: int,
    num_experts: int,
) -> float:
    """Share of selections at the last of ``sites`` that are among the ``top`` likeliest experts.

    The choices of ``known`` sites before it are given.
    """
    target = sites[-1]

    def key_of(token: Token, length: int) -> tuple[object, ...]:
        before = sites[len(sites) - 1 - length : len(sites) - 1]
        return tuple(
            first(token, s) if key == "first" else frozenset(experts(token, s)) for s in before
        )

    counts: dict[tuple[object, ...], Counter[int]] = defaultdict(Counter)
    for token in fit:
        for length in range(3):
            counts[(length, *key_of(token, length))].update(experts(token, target))
    hits = total = 0
    for token in held:
        ranking = sorted(
            range(num_experts),
            key=lambda e: (*(-counts[(n, *key_of(token, n))][e] for n in range(known, -1, -1)), e),
        )
        total += len(experts(token, target))
        hits += len(experts(token, target) & set(ranking[:top]))
    return hits / total


def path_cover(tokens: Sequence[Token], start: int, length: int) -> tuple[int, float]:
    """How many paths occur, and the share of tokens on the most common fifth of them."""
    counts = Counter(
        tuple(first(token, start + step) for step in range(length)) for token in tokens
    )
    best = sorted(counts.values(), reverse=True)[: max(1, int(0.2 * len(counts)))]
    return len(counts), sum(best) / len(tokens)


def entropy_bits(logits: Sequence[float]) -> float:
    powers = [math.exp(value - max(logits)) for value in logits]
    return -sum(power / sum(powers) * math.log2(power / sum(powers)) for power in powers if power)


def correlation(pairs: Sequence[tuple[float, float]]) -> float:
    mean_one, mean_other = (sum(pair[side] for pair in pairs) / len(pairs) for side in (0, 1))
    product_sum = sum((one - mean_one) * (other - mean_other) for one, other in pairs)
    spread = [
        sum((pair[side] - mean) ** 2 for pair in pairs)
        for side, mean in ((0, mean_one), (1, mean_other))
    ]
    return product_sum / math.sqrt(spread[0] * spread[1])


def scores(chosen: Sequence[tuple[int, float]]) -> list[float]:
    ranked = sorted(chosen, key=lambda item: (-item[1], item[0]))
    total = sum(weight for _, weight in ranked)
    return [
        sum(weight for _, weight in ranked[:rank]) / total if rank else 0.0
        for rank in range(len(ranked))
    ]


def at(table: pl.DataFrame, **where: object) -> dict[str, Any]:
    """The one row with these values."""
    rows = table.filter(*(pl.col(name) == value for name, value in where.items()))
    assert len(rows) == 1, (where, len(rows))
    return rows.row(0, named=True)
