"""The published gpt-oss-20b routing through more cache policies, against known hit ratios.

Every hit is also compared with plain Python. The data are third-party and not part of the project;
where they are absent, these tests are skipped. Known, by layer and on average, for the sequences
without repetition, are the hit ratios of:

- LFU that never forgets: 0.629 with 25 % of the experts resident, 0.865 with 50 %;
- LFU whose counts lose 2 % a token;
- the best that any cache could do: 0.812 and 0.955, where after each token those experts stay that
  are asked for again soonest, the token's own included;
- the most popular experts of the same data and of the other half of the sequences: 0.498 and 0.799.

One layer of them is counted anew here in plain Python; with ``--scenarios`` of 15 000 or more,
every layer.

`Belady` with bypass reaches the best: a newcomer is served from staging, and takes its place when
its gate is over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from differential.test_gpt_oss_trace import (
    EXPERTS,
    SAMPLE_SEQUENCES,
    SITES,
    controlled_hits,
    first_sequences,
    ids_of,
    published,
    pytestmark,
)
from sim.policies.belady import Belady
from sim.policies.frequency import LFU
from sim.policies.frequency_classes import DecayedLFU
from sim.policies.popular import Popular
from sim.policies.profile import Profile
from sim.workload.steps import Workload

__all__ = ["published", "pytestmark"]

KNOWN = (
    Path(__file__).parents[2] / ".." / "shared" / "traces" / "stats" / "gptoss20b_decode_norep.json"
)
SHARES = {8: "0.25", 16: "0.5"}
"""Share of the experts by slots a layer."""
LAYER = 12
NEVER = 1 << 40
DECAY = 0.98
Tokens = list[list[int]]
"""A layer's experts, by token and rank."""


# ---- plain Python, a layer


def counted(tokens: Tokens, slots: int, decay: float = 1.0) -> list[list[bool]]:
    """Fewest requests go first, then who was asked for longest ago; a token's experts stay."""
    held: set[int] = set()
    count, last = [0.0] * EXPERTS, [0] * EXPERTS
    hits = []
    for now, token in enumerate(tokens):
        hits.append([expert in held for expert in token])
        if decay < 1:
            count = [value * decay for value in count]
        for rank, expert in enumerate(token):
            count[expert] += 1
            last[expert] = now * len(token) + rank
        held.update(token)
        others = sorted(held.difference(token), key=lambda expert: (count[expert], last[expert]))
        held.difference_update(others[: max(len(held) - slots, 0)])
    return hits


def next_requests(tokens: Tokens) -> Tokens:
    upcoming = [NEVER] * EXPERTS
    again: Tokens = []
    for now in range(len(tokens) - 1, -1, -1):
        again.append([upcoming[expert] for expert in tokens[now]])
        for rank, expert in enumerate(tokens[now]):
            upcoming[expert] = now * len(tokens[now]) + rank
    return again[::-1]


def best(tokens: Tokens, slots: int) -> list[list[bool]]:
    """After each token, those that are asked for again soonest stay."""
    held: dict[int, int] = {}
    hits = []
    for token, again in zip(tokens, next_requests(tokens), strict=True):
        hits.append([expert in held for expert in token])
        held.update(zip(token, again, strict=True))
        for expert in sorted(held, key=held.__getitem__)[slots:]:
            del held[expert]
    return hits


PLAIN: dict[str, Callable[[Tokens, int], list[list[bool]]]] = {
    "lfu": counted,
    "lfu_decay.98": lambda tokens, slots: counted(tokens, slots, DECAY),
    "belady": best,
}


@pytest.fixture(scope="module")
def known() -> dict[str, dict[str, list[float]]]:
    if not KNOWN.exists():
        pytest.skip("the statistics of the published gpt-oss-20b trace are not here")
    found: dict[str, dict[str, list[float]]] = json.loads(KNOWN.read_text(encoding="utf-8"))[
        "cache"
    ]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLAIN)
def test_plain_python_hits_as_often_as_known(published, known, name, request):
    every = request.config.getoption("--scenarios") >= 15_000
    chosen = ids_of(published)
    for slots, share in SHARES.items():
        ratios = known[share][name]
        for site in range(SITES) if every else (LAYER,):
            hits = PLAIN[name](chosen[:, site].tolist(), slots)
            assert abs(np.mean(hits) - ratios[site]) <= 0.00011, "known to four places"


# ---- popularity


def uses(chosen: np.ndarray) -> np.ndarray:
    """Requests [site, expert]."""
    return np.stack(
        [np.bincount(chosen[:, site].ravel(), minlength=EXPERTS) for site in range(SITES)]
    )


def listed_share(fit: np.ndarray, asked: np.ndarray, slots: int) -> float:
    """The part of a site's requests that name one of the most used experts of ``fit``, averaged
    over the sites.
    """
    top = np.argsort(-fit, axis=1, kind="stable")[:, :slots]
    return float((np.take_along_axis(asked, top, 1).sum(1) / asked.sum(1)).mean())


def test_the_most_popular_experts_are_asked_for_as_often_as_known(published, known):
    """Of the same data exactly; of another half it depends on which, by half a percent: known is
    one of them.
    """
    chosen = ids_of(published)
    sequence = published.trace.sequence[published.row]
    numbers = np.unique(sequence)
    by_sequence = {number: uses(chosen[sequence == number]) for number in numbers.tolist()}
    whole = sum(by_sequence.values())
    for slots, share in SHARES.items():
        ratios = known[share]
        assert round(listed_share(whole, whole, slots), 4) == round(
            float(np.mean(ratios["static_oracle"])), 4
        )
        held_out = []
        for seed in range(20):
            half = np.random.default_rng(seed).permutation(numbers)[: len(numbers) // 2].tolist()
            fit = sum(by_sequence[number] for number in half)
            held_out += [
                listed_share(fit, whole - fit, slots),
                listed_share(whole - fit, fit, slots),
            ]
        assert abs(np.mean(held_out) - np.mean(ratios["static_heldout"])) < 0.005
        assert min(held_out) < np.mean(ratios["static_heldout"]) < max(held_out)


# ---- the controller


def layer_by_layer(
    chosen: np.ndarray, plain: Callable[[Tokens, int], list[list[bool]]], slots: int
) -> np.ndarray:
    return np.stack([plain(chosen[:, site].tolist(), slots) for site in range(SITES)], axis=1)


@pytest.fixture(scope="module")
def sample(published: Workload) -> Workload:
    return first_sequences(published, SAMPLE_SEQUENCES)


@pytest.mark.parametrize("slots", SHARES)
def test_lfu_that_never_forgets_has_each_hit_of_plain_python(sample, slots):
    cache = LFU("model", scope="site", initial="empty")
    assert np.array_equal(
        controlled_hits(sample, slots, cache), layer_by_layer(ids_of(sample), counted, slots)
    )


@pytest.mark.parametrize("slots", SHARES)
def test_lfu_that_forgets_by_the_token_has_each_hit_of_plain_python(sample, slots):
    cache = DecayedLFU(DECAY, scope="site", initial="empty")
    expected = layer_by_layer(ids_of(sample), PLAIN["lfu_decay.98"], slots)
    assert np.array_equal(controlled_hits(sample, slots, cache), expected)


@pytest.mark.parametrize("slots", SHARES)
def test_belady_with_bypass_has_each_hit_of_the_best(sample, slots):
    cache = Belady(scope="site", initial="empty", bypass=True)
    cache.foresee(gates_of(sample))
    assert np.array_equal(
        controlled_hits(sample, slots, cache), layer_by_layer(ids_of(sample), best, slots)
    )


def gates_of(workload: Workload) -> list[list[int]]:
    keys = ids_of(workload).astype(np.int64) + np.arange(SITES)[:, None] * (EXPERTS + 1)
    return keys.reshape(-1, keys.shape[-1]).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("slots", SHARES)
def test_a_list_from_other_sequences_hits_exactly_what_is_on_it(published, sample, slots):
    """The list of all that comes after the sample."""
    chosen = ids_of(published)[len(sample.steps) :]
    fit = uses(chosen)
    cache = Popular(scope="site")
    cache.profile(Profile(fit, chosen))
    hits = controlled_hits(sample, slots, cache)
    on_list = np.zeros((SITES, EXPERTS), np.bool_)
    np.put_along_axis(on_list, np.argsort(-fit, axis=1, kind="stable")[:, :slots], True, axis=1)
    assert np.array_equal(hits, on_list[np.arange(SITES)[:, None], ids_of(sample)])
