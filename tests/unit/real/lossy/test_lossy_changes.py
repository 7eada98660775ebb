"""How far a ratio of sums changes from one loop to another, and how sure that is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from real.lossy.loops import _change, _divergence_over, _share_over
from real.lossy.loss import TokenLoss

TRIALS = 4000


def test_the_same_change_of_every_sequence_is_that_change_for_certain() -> None:
    size = np.array([1.0, 20.0, 3.0, 8.0])
    old, new, found = _change((2 * size, size), (2.2 * size, size), relative=True)
    assert (old, new) == (2.0, pytest.approx(2.2))
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))


def test_what_does_not_change_has_changed_by_exactly_0() -> None:
    above, below = np.array([3.0, 4.0, 9.0]), np.array([5.0, 5.0, 11.0])
    for relative in (True, False):
        *_, found = _change((above, below), (above, below), relative=relative)
        assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    *_, found = _change((0 * above, below), (0 * above, below), relative=True)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_relative_change_from_nothing_is_no_number() -> None:
    """A system moves nothing in the open loop and something in the closed one."""
    above, below = np.array([3.0, 4.0]), np.ones(2)
    old, new, found = _change((0 * above, below), (above, below), relative=True)
    assert (old, new) == (0.0, 3.5)
    assert math.isnan(found.value)
    assert (found.low, found.high) == (None, None)


@pytest.mark.alike
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("sequences", [4, 8, 32])
def test_intervals_of_changes_cover_the_truth(relative: bool, sequences: int) -> None:
    """Sequences of unequal lengths.

    Both loops vary together by 10 % from sequence to sequence, and their difference by 3 %.
    """
    random = np.random.default_rng(sequences)
    truth = 0.2 if relative else 0.1
    held = 0
    for _ in range(TRIALS):
        below = random.lognormal(0, 0.5, sequences)
        before = 0.5 * below * random.normal(1, 0.1, sequences)
        after = before * 1.2 + 0.5 * below * random.normal(0, 0.03, sequences)
        *_, found = _change((before, below), (after, below), relative=relative)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    assert 0.93 <= held / TRIALS <= 0.97


def test_a_share_of_few_sequences_stays_between_none_and_all() -> None:
    """Three sequences, of which one differs much: a symmetric interval would reach 1.2."""
    found = _share_over([np.array([1.0, np.nan, 1.0]), np.array([1.0, 0.9]), np.array([0.6, 0.7])])
    assert found.value == pytest.approx(5.2 / 6)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low < found.value < found.high <= 1
    every = _share_over([np.ones(3), np.ones(2)])
    assert (every.value, every.low, every.high) == (1, 1, 1)


def test_a_divergence_of_few_sequences_is_never_below_nothing() -> None:
    nothing = np.zeros(2)
    losses = [
        TokenLoss(nothing, nothing, np.array(rows), nothing) for rows in ([0.0, 0.1], [0.3, 0.5])
    ]
    found = _divergence_over(losses)
    assert found.value == pytest.approx(0.9 / 4)
    assert found.low is not None
    assert found.low > 0
