"""Measures of a trace alone, on traces whose answer is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from sim.reproduce.measures import TRACE_MEASURES, lookahead_top1
from sim.traces.header import ModelShape
from sim.traces.synthesis import synthesize
from sim.traces.trace import DECODE, PREFILL

SHAPE = ModelShape("synthetic", "none", 5, 16, 2, 64, 128)


def test_the_best_forecast_is_looked_for_at_the_site_that_it_is_of() -> None:
    """A perfect forecast is always right; chance is right for 2 of 16 experts."""
    given = {"tokens": 200, "lookahead": 3, "skew": 0.0, "persistence": 0.0}
    perfect = synthesize(SHAPE, lookahead_accuracy=1.0, **given)
    assert lookahead_top1(perfect, (1, 2, 3)).point == 1
    chance = synthesize(SHAPE, lookahead_accuracy=0.0, **given)
    assert lookahead_top1(chance, (1, 2, 3)).point == pytest.approx(2 / 16, abs=0.03)


def test_depths_count_by_their_sites() -> None:
    trace = synthesize(SHAPE, tokens=50, lookahead=2, lookahead_accuracy=0.9)
    by_depth = [lookahead_top1(trace, (depth,)).point for depth in (1, 2)]
    weights = [SHAPE.sites - depth for depth in (1, 2)]
    assert lookahead_top1(trace, (1, 2)).point == pytest.approx(
        np.average(by_depth, weights=weights)
    )


def test_what_a_prompt_activates_is_counted_over_its_own_rows() -> None:
    """Four experts, two of them a token. The first prompt chooses 0, 1 and 1, 2."""
    trace = cast(
        Any,
        SimpleNamespace(
            sequence=np.array([0, 0, 0, 1]),
            phase=np.array([PREFILL, PREFILL, DECODE, PREFILL]),
            ids=np.array([[[0, 1]], [[1, 2]], [[3, 0]], [[2, 3]]]),
            header=SimpleNamespace(
                sequences=[
                    SimpleNamespace(sequence=0, split="eval"),
                    SimpleNamespace(sequence=1, split="fit"),
                ],
                model=SimpleNamespace(experts=4),
            ),
        ),
    )
    assert TRACE_MEASURES["prompt_union_share"](trace, ()).point == 3 / 4
    # Of its three experts the least popular 30 % is one, with one of four choices.
    assert TRACE_MEASURES["unpopular_tokens_share"](trace, ()).point == 1 / 4
