"""Caches that count, weigh distances, or draw lots: their scores by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.asking import FOUR_SITES, ONE_SITE, ask, begin, gate, order
from sim.policies.frequency_classes import DecayedLFU
from sim.policies.popular import Popular
from sim.policies.precisions import ScoreThreshold
from sim.policies.profile import Profile
from sim.policies.recency import LeastStale
from sim.policies.scores import (
    ActivationRatio,
    FrequencyOverDistance,
    Random,
    VisitCount,
)
from sim.policies.weighted_score import WeightedScore
from sim.values.types import Cause, Geometry

COLD = {"initial": "empty"}


def worst_first(policy: Any, *blocked: int) -> list[int]:
    return order(policy, *blocked, geometry=FOUR_SITES)


# Frequency over distance


def distant(*keys: int, uses: Any = None, encoder_sites: int = 0, **options: Any) -> Any:
    """Four sites of two experts: keys 0 1, 3 4, 6 7, 9 10."""
    policy = FrequencyOverDistance(**(COLD | {"initial_counts": "none"} | options))
    policy.profile(
        Profile(
            np.zeros((4, 2), int) if uses is None else np.array(uses),
            np.zeros((1, 4, 1), int),
            encoder_sites,
        )
    )
    return begin(policy, *keys, geometry=FOUR_SITES)


def used_at_site_1(**options: Any) -> Any:
    """Expert 0 of sites 0, 2, 3 and 1 has 4, 1, 3 and 2 uses; site 1 is the last gate's."""
    policy = distant(0, 3, 6, 9, **options)
    for key, site, count in ((0, 0, 4), (6, 2, 1), (9, 3, 3), (3, 1, 2)):
        ask(policy, key, at=gate(site, e0=count))
    return policy


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # The text, d = (i - 1) mod 4 and 4 for 0: 4 / 3, 2 / 4, 1 / 1, 3 / 2 for sites 0 to 3.
        ({}, [3, 6, 0, 9]),
        # The printed formula, d = (1 - i) mod 4: 4 / 1, 2 / 4, 1 / 3, 3 / 2. By it site 2, which
        # comes next, goes first.
        ({"distance": "since"}, [6, 3, 9, 0]),
        # A distance of 0 protects a site.
        ({"current": "keep"}, [6, 0, 9, 3]),
        ({"distance": "since", "current": "keep"}, [6, 9, 0, 3]),
    ],
    ids=str,
)
def test_frequency_over_distance_as_text_and_as_printed(
    options: dict[str, str], expected: list[int]
) -> None:
    assert worst_first(used_at_site_1(**options)) == expected


def test_unused_experts_go_first_farthest_site_first_then_by_id() -> None:
    """At site 1 the distances of sites 0 to 3 are 3, 4, 1, 2."""
    policy = distant(0, 3, 4, 6, 9)
    ask(policy, 6, at=gate(2, e0=1))
    ask(policy, at=gate(1))
    assert worst_first(policy) == [3, 4, 0, 9, 6]


def test_uses_go_on_from_those_of_the_profile_and_count_tokens() -> None:
    """Before the first gate the last site counts as the present one.

    So site 0 is 1 away and site 3 four: 3 / 1, 5 / 2, 8 / 4.
    """
    uses = [[3, 0], [5, 0], [0, 0], [8, 0]]
    policy = distant(0, 3, 9, uses=uses, initial_counts="profile")
    assert worst_first(policy) == [9, 3, 0]
    ask(policy, 9, at=gate(3, e0=5))
    assert worst_first(policy) == [3, 0, 9], "13 / 4 now"
    assert worst_first(distant(0, 3, 9, uses=uses)) == [
        9,
        3,
        0,
    ], "without the profile: by distance 4, 2, 1"


def test_an_encoders_experts_are_worth_nothing_and_distances_are_the_decoders() -> None:
    """Sites 0 and 1 are an encoder.

    While it runs, site 2 is 1 away and site 3 two: 4 / 1, 6 / 2.
    """
    policy = distant(
        0, 3, 6, 9, uses=[[9, 9], [9, 9], [4, 0], [6, 0]], encoder_sites=2, initial_counts="profile"
    )
    for key, site in ((0, 0), (3, 1)):
        ask(policy, key, at=gate(site, e0=7))
        assert worst_first(policy)[2:] == [9, 6]
    ask(policy, 6, at=gate(2, e0=0))
    assert worst_first(policy)[2:] == [6, 9], "6 / 1 beats 4 / 2"
    assert set(worst_first(policy)[:2]) == {0, 3}


def test_a_use_counts_for_every_precision() -> None:
    """Keys from 12 on are the low variants."""
    policy = distant(3, 15, 16)
    ask(policy, 3, at=gate(1, e0=1))
    assert worst_first(policy) == [16, 3, 15]


@pytest.mark.parametrize("option", ["distance", "current", "initial_counts"])
def test_an_unknown_form_of_the_score_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"unknown cache.{option}='paper'; known: "):
        FrequencyOverDistance(**{option: "paper"})


# MoE-Infinity


def test_an_activation_ratio_is_a_share_of_the_sites_uses_and_early_sites_weigh_more() -> None:
    """Site 0 has 3 of 4 tokens and 1 of 4, with weight 1; site 2 has all, with weight 1/2.

    That makes 0.75, 0.25 and 0.5; site 3 is unused: 0.
    """
    policy = begin(ActivationRatio(**COLD), 0, 1, 6, 9, geometry=FOUR_SITES)
    ask(policy, 0, 1, at=gate(0, e0=3, e1=1))
    ask(policy, 6, at=gate(2, e0=5))
    assert worst_first(policy) == [9, 1, 6, 0]
    policy.on_sequence(0, False)
    assert worst_first(policy) == [9, 1, 6, 0]
    policy.on_sequence(1, True)
    assert worst_first(policy) == [9, 6, 0, 1], "epsilon alone: late sites first"


def test_the_code_of_moe_infinity_evicts_what_is_visited_most_and_forgets_it() -> None:
    policy = begin(VisitCount(**COLD), 0, 1, 2)
    for key in (2, 2, 1):
        ask(policy, key)
    assert order(policy) == [2, 1, 0]
    policy.on_evict(2)
    policy.on_insert(2, Cause.PREFETCH)
    assert order(policy) == [1, 0, 2]


@pytest.mark.parametrize("epsilon", [0, -1, float("inf"), float("nan"), True, "x"])
def test_an_epsilon_that_is_no_positive_number_is_refused(epsilon: Any) -> None:
    with pytest.raises(ValueError, match=r"cache\.epsilon=.* must be a number above 0"):
        ActivationRatio(epsilon)


# HOBBIT's terms by themselves


@pytest.mark.parametrize("weight", [float("inf"), float("nan"), -0.1, True])
def test_a_weight_that_is_no_number_from_0_on_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match=r"cache\.weights need .* each a number >= 0"):
        WeightedScore(dict.fromkeys(WeightedScore.TERMS, 1.0) | {"lhu": weight})


def test_a_use_that_was_to_be_skipped_is_none_at_high_precision() -> None:
    """0 to 3 are resident at fp16.

    The selector wants 0 high and 1 low, and would skip 2 and 3 if their copies were not there.
    """
    selector = ScoreThreshold("fp16", "int4", 0.6, 0.9)
    choice = SimpleNamespace(site=0, needs=[0, 1, 2, 3], scores=[0.0, 0.7, 0.95, 1.0])
    wanted = selector.select(
        choice, SimpleNamespace(has=lambda precision, site, expert: precision == 0)
    )
    lhu = WeightedScore(
        dict.fromkeys(WeightedScore.TERMS, 0.0) | {"lhu": 1.0}, "global", (), "empty"
    )
    policy = begin(lhu, 3, 2, 1, 0)
    ask(policy, 0, 1, 2, 3, at=gate(e0=1, e1=1, e2=1, e3=1), wanted=wanted)
    assert order(policy) == [1, 2, 3, 0]


# LFU that decays, least stale


def test_a_count_halves_with_each_step() -> None:
    """0 is asked for in steps 0 and 1, 1 in step 2, 2 in step 4.

    At step 4 they are worth 1/16 + 1/8, 1/4 and 1.
    """
    policy = begin(DecayedLFU(0.5, **COLD), 0, 1, 2, 3)
    for step, key in ((0, 0), (1, 0), (2, 1), (4, 2)):
        ask(policy, key, at=gate(step=step))
    assert order(policy) == [3, 0, 1, 2]
    ask(policy, 0, at=gate(step=4))
    assert order(policy) == [3, 1, 2, 0]
    # Two steps later 3 requests for 1 are worth 3/4, less than one for 3.
    policy = begin(DecayedLFU(0.5, **COLD), 1, 3)
    for step, key in ((0, 1), (0, 1), (0, 1), (2, 3)):
        ask(policy, key, at=gate(step=step))
    assert order(policy) == [1, 3]


def test_equal_decayed_counts_go_least_recent_first() -> None:
    policy = begin(DecayedLFU(0.5, **COLD), 0, 1, 2)
    ask(policy, 2, 0)
    assert order(policy) == [1, 2, 0]


@pytest.mark.parametrize("decay", [0, 1.1, -0.5, float("nan"), True])
def test_a_decay_outside_0_to_1_is_refused(decay: Any) -> None:
    with pytest.raises(ValueError, match=r"cache\.decay=.* must be a number above 0 and at most 1"):
        DecayedLFU(decay)


def test_what_this_pass_has_not_touched_goes_first_each_generation_by_insert() -> None:
    policy = begin(LeastStale(**COLD), 2, 0, 1)
    ask(policy, 2, at=gate(step=1))
    assert order(policy) == [0, 1, 2]
    policy.on_insert(4, Cause.PREFETCH)
    assert order(policy) == [0, 1, 2, 4]
    ask(policy, 0, at=gate(step=1))
    assert order(policy) == [1, 2, 0, 4]
    ask(policy, 1, at=gate(step=2))
    assert order(policy) == [2, 0, 4, 1], "a new pass: all others are stale"


# Random


def test_lots_are_drawn_anew_after_every_eviction_and_evenly() -> None:
    """5 of 5 places for each of 5 keys, in 4,000 draws.

    Chi-squared with 4 degrees of freedom is under 18.5 in 999 of 1000 cases.
    """
    policy = begin(Random(seed=3, **COLD), *range(5))
    first = np.zeros(5)
    for _ in range(4000):
        victim = order(policy)[0]
        assert order(policy)[0] == victim, "asked twice"
        first[victim] += 1
        policy.on_evict(victim)
        policy.on_insert(victim, Cause.DEMAND)
    assert ((first - 800) ** 2 / 800).sum() < 18.5


def test_another_seed_is_another_order_and_the_same_one_the_same() -> None:
    orders = [order(begin(Random(seed=seed, **COLD), *range(6))) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("seed", [-1, 0.5, True])
def test_a_seed_that_is_no_whole_number_is_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"cache\.seed=.* must be a whole number, 0 or more"):
        Random(seed)


# A fixed list


def test_the_most_used_experts_fill_the_cache_and_no_other_is_admitted() -> None:
    """Uses are 1 5 2 5 0 9, for three slots: expert 5 first, then 1 and 3 by id."""
    policy = Popular()
    policy.profile(Profile(np.array([[1, 5, 2, 5, 0, 9]]), np.zeros((1, 1, 2), int)))
    plan = policy.pools(Geometry(1, 6, 2, ("fp16",), (16.0,), (1,), 3))
    assert plan.initial == (5, 1, 3)
    assert [key for key in range(6) if policy.admit(key, ())] == [1, 3, 5]


def test_a_given_list_needs_no_profile_and_its_end_goes_before_its_beginning() -> None:
    """A prefetch of 0, which is not listed, goes before what is listed."""
    policy = Popular([[0, 4], [0, 2]])
    assert not policy.needs_profile
    begin(policy, *policy.pools(ONE_SITE).initial)
    policy.on_insert(0, Cause.PREFETCH)
    assert order(policy) == [0, 2, 4]


@pytest.mark.parametrize(
    ("ranking", "message"),
    [
        ([[0]], r"pairs \[site, expert\] of numbers from 0 on, got \[0\]"),
        ([3], r"pairs \[site, expert\] of numbers from 0 on, got 3"),
        ([[0, -1]], r"pairs \[site, expert\] of numbers from 0 on, got \[0, -1\]"),
        ([[0, 1], [0, 1]], "names site 0 expert 1 twice"),
        ([[0, 6]], "names site 0 expert 6, but the model has 1 sites of 6 experts"),
        ([[1, 0]], "names site 1 expert 0, but the model has 1 sites of 6 experts"),
    ],
)
def test_a_list_that_cannot_be_is_refused(ranking: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Popular(ranking).pools(ONE_SITE)


def test_a_list_from_the_fit_sequences_needs_them() -> None:
    with pytest.raises(ValueError, match="needs the trace's fit sequences; call profile"):
        Popular().pools(ONE_SITE)


# Weighted score


@pytest.mark.parametrize(
    "weights", [(0.3, 0.2, 0.4, 0.1), (1.0, 0.0, 0.0, 0.0), (0.1, 0.7, 0.2, 0)]
)
def test_victims_of_eq_3_are_those_of_a_pass_over_all_keys(weights: tuple[float, ...]) -> None:
    """Two pools of one precision each, and sequences that run beside each other, so that the
    tokens so far fall, too. Many scores are equal.
    """
    dice = np.random.default_rng(0)
    geometry = Geometry(4, 4, 1, ("fp16", "int4"), (16.0, 4.0), (4, 1), 99)
    policy = WeightedScore(
        dict(zip(WeightedScore.TERMS, weights, strict=True)), shares=(0.5, 0.5), initial="empty"
    )
    policy.pools(geometry)
    plane, used, high, last = geometry.plane, *np.zeros((3, geometry.plane))
    resident: set[int] = set()
    for nth in range(2000):
        if nth % 400 == 0:
            policy.on_sequence(nth, True)
            used[:] = high[:] = last[:] = 0
        site, token, precision = dice.integers((0, 1, 0), (4, 10, 2)).tolist()
        key = site * 5 + int(dice.integers(4)) + precision * plane
        at = gate(site, **{f"e{key % 5}": 1})
        at.token = token
        policy.on_requests([key], [precision], [0], at)
        expert = key % plane
        used[expert], last[expert] = used[expert] + 1, token
        high[expert] += precision == 0
        if key not in resident:
            policy.on_insert(key, Cause.DEMAND)
            resident.add(key)
        value = ((weights[0] * last + weights[1] * used) + weights[2] * high) / token
        score = {
            k: float(value[k % plane] + weights[3] * (1 - ((k % plane // 5 - site) % 4) / 4))
            for k in resident
        }
        for pool in range(2):
            blocked = bytearray(geometry.num_keys)
            blocked[key] = int(dice.integers(2))
            left = sorted(
                (k for k in resident if k // plane == pool and not blocked[k]),
                key=lambda k: (score[k], k),
            )
            assert list(policy.victims(pool, key, blocked)) == left
            assert next(policy.victims(pool, key, blocked), None) == next(iter(left), None)
        if len(resident) > 12:
            pool = int(sum(k >= plane for k in resident) > 6)
            gone = next(policy.victims(pool, key, bytearray(geometry.num_keys)))
            policy.on_evict(gone)
            resident.discard(gone)
