"""Losses and their intervals, against plain formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from real.lossy.loss import TokenLoss, difference, divergence_difference, quality_of, token_losses


def _logits(seed: int, rows: int = 5, words: int = 7) -> torch.Tensor:
    return torch.randn(rows, words, generator=torch.Generator().manual_seed(seed)) * 3


def _losses(seed: int, sequences: int = 6) -> list[TokenLoss]:
    draw = np.random.default_rng(seed)
    return [
        TokenLoss(draw.random(4), draw.random(4) + 0.5, draw.random(4), draw.random(4) < 0.5)
        for _ in range(sequences)
    ]


def test_equal_logits_diverge_by_exactly_nothing() -> None:
    loss = token_losses(_logits(1), _logits(1), [0, 3, 2, 6])
    assert (loss.divergence == 0).all()
    assert loss.agrees.all()
    assert np.array_equal(loss.full, loss.lossy, equal_nan=True)


def test_nats_and_divergence_are_those_of_the_formulas() -> None:
    full, lossy, following = _logits(1), _logits(2), [0, 3, 2, 6]
    loss = token_losses(full, lossy, following)
    for row in range(5):
        p, q = (np.exp(t[row].double().numpy()) for t in (full, lossy))
        p, q = p / p.sum(), q / q.sum()
        assert loss.divergence[row] == pytest.approx(
            sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        )
        assert loss.agrees[row] == (p.argmax() == q.argmax())
        if row < len(following):
            assert loss.full[row] == pytest.approx(-math.log(p[following[row]]))
            assert loss.lossy[row] == pytest.approx(-math.log(q[following[row]]))
    assert math.isnan(loss.full[4])
    assert math.isnan(loss.lossy[4])


def test_perplexity_is_the_exponential_of_the_mean_over_all_tokens() -> None:
    losses = _losses(0)
    losses[0].full[3] = losses[0].lossy[3] = math.nan  # nothing follows it
    quality = quality_of(losses)
    lossy = np.concatenate([loss.lossy for loss in losses])
    full = np.concatenate([loss.full for loss in losses])
    assert quality.tokens == 23
    assert quality.sequences == 6
    assert quality.perplexity.value == pytest.approx(math.exp(np.nanmean(lossy)))
    assert quality.full_perplexity.value == pytest.approx(math.exp(np.nanmean(full)))
    ratio = quality.perplexity.value / quality.full_perplexity.value
    assert quality.increase.value == pytest.approx(ratio - 1)
    assert quality.divergence.value == pytest.approx(np.mean([loss.divergence for loss in losses]))


def test_a_constant_gap_has_an_interval_of_no_width_though_texts_differ() -> None:
    losses = [replace(loss, lossy=loss.full + 0.25) for loss in _losses(1)]
    quality = quality_of(losses)
    assert quality.full_perplexity.low is not None
    assert quality.full_perplexity.high is not None
    assert quality.full_perplexity.high - quality.full_perplexity.low > 0.1
    assert (quality.increase.low, quality.increase.high) == pytest.approx((math.expm1(0.25),) * 2)
    assert quality.increase.excludes_0


def test_one_sequence_has_no_interval() -> None:
    quality = quality_of(_losses(2, sequences=1))
    assert quality.increase.low is None
    assert not quality.increase.excludes_0


def test_differences_are_paired_and_change_sign_with_their_sides() -> None:
    ours, theirs = _losses(3), _losses(4)
    there, back = divergence_difference(ours, theirs), divergence_difference(theirs, ours)
    assert there.value == pytest.approx(-back.value)
    assert there.low == pytest.approx(-back.high if back.high is not None else 0)
    assert (1 + difference(ours, theirs).value) * (
        1 + difference(theirs, ours).value
    ) == pytest.approx(1)
    expected = quality_of(ours).perplexity.value / quality_of(theirs).perplexity.value
    assert difference(ours, theirs).value == pytest.approx(expected - 1)


def test_what_cannot_be_paired_or_followed_is_refused() -> None:
    with pytest.raises(ValueError, match="same rows of the same sequences"):
        difference(_losses(0), _losses(0, sequences=5))
    nothing = TokenLoss(np.array([math.nan]), np.array([math.nan]), np.zeros(1), np.array([True]))
    with pytest.raises(ValueError, match="longer texts"):
        quality_of([nothing])
