"""Precisions by score, at the thresholds and beside them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.policies.precisions import Fixed, ScoreThreshold
from sim.types import SKIP

T1, T2 = 0.5, 0.75
ABOVE_T1, ABOVE_T2 = math.nextafter(T1, 1), math.nextafter(T2, 1)


def holds(*held: tuple[int, int, int]) -> Any:
    return SimpleNamespace(has=lambda precision, site, expert: (precision, site, expert) in held)


def select(*scores: float, held: tuple[tuple[int, int, int], ...] = ()) -> list[int]:
    choice = SimpleNamespace(site=2, needs=list(range(len(scores))), scores=list(scores))
    return list(ScoreThreshold("fp16", "int4", T1, T2).select(choice, holds(*held)))


def test_a_threshold_belongs_to_the_better_side() -> None:
    assert select(0.0, T1, ABOVE_T1, T2, ABOVE_T2, 1.0) == [0, 0, 1, 1, SKIP, SKIP]


@pytest.mark.parametrize(
    ("held", "answer"),
    [
        ((), SKIP),
        (((0, 2, 0),), 0),
        (((1, 2, 0),), 1),
        (((0, 2, 0), (1, 2, 0)), 0),
        (((0, 2, 1),), SKIP),
        (((0, 1, 0),), SKIP),
    ],
)
def test_an_expert_to_be_skipped_is_used_if_it_is_there_at_the_highest_precision_there_is(
    held: tuple[tuple[int, int, int], ...], answer: int
) -> None:
    """The last two: another expert, and another site."""
    assert select(1.0, held=held) == [answer]


def test_what_is_there_changes_nothing_below_the_second_threshold() -> None:
    assert select(T1, T2, held=((1, 2, 0), (0, 2, 1))) == [0, 1]


@pytest.mark.parametrize(
    ("score", "answers"),
    [(0.0, (0,)), (T1, (0,)), (ABOVE_T1, (0, 1)), (T2, (0, 1)), (ABOVE_T2, (0, 1, SKIP)), (1.0, (0, 1, SKIP))],
)
def test_permitted_names_every_variant_that_may_serve(score: float, answers: tuple[int, ...]) -> None:
    assert ScoreThreshold("fp16", "int4", T1, T2).permitted(score) == answers


def test_equal_thresholds_leave_no_low_precision() -> None:
    selector = ScoreThreshold("fp16", "int4", 0.5, 0.5)
    choice = SimpleNamespace(site=0, needs=[0, 1], scores=[0.5, ABOVE_T1])
    assert list(selector.select(choice, holds())) == [0, SKIP]


def test_thresholds_are_taken_from_the_quantiles_of_the_scores() -> None:
    """Of 0, 0.01 .. 1 the 0.67 and 0.97 quantiles are 0.67 and 0.97."""
    selector = ScoreThreshold("fp16", "int4", None, None, [0.67, 0.97])
    selector.profile(np.linspace(0, 1, 101))
    assert (selector.low_above, selector.skip_above) == pytest.approx((0.67, 0.97))


def test_given_thresholds_are_not_profiled_away() -> None:
    selector = ScoreThreshold("fp16", "int4", T1, T2, [0.1, 0.2])
    selector.profile(np.linspace(0, 1, 101))
    assert (selector.low_above, selector.skip_above, selector.quantiles) == (T1, T2, None)


@pytest.mark.parametrize(
    ("low", "skip", "quantiles", "message"),
    [
        (0.8, 0.6, None, r"low_above=0.8, skip_above=0.6; set precision.low_above and precision.skip_above"),
        (-0.1, 0.6, None, r"need 0 <= low_above <= skip_above <= 1 \(HOBBIT's T1 and T2\)"),
        (0.5, 1.1, None, r"need 0 <= low_above <= skip_above <= 1"),
        (0.5, None, None, r"give both precision.low_above and precision.skip_above, got 0.5 and None"),
        (None, 0.5, (0.1, 0.2), r"give both precision.low_above and precision.skip_above, got None and 0.5"),
        (None, None, None, r"need two ascending precision.quantiles .* got None"),
        (None, None, (0.9, 0.1), r"need two ascending precision.quantiles"),
        (None, None, (0.9,), r"need two ascending precision.quantiles"),
        (None, None, (0.5, 1.5), r"need two ascending precision.quantiles within 0..1"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused(low: Any, skip: Any, quantiles: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScoreThreshold("fp16", "int4", low, skip, quantiles)


def test_one_precision_under_two_names_is_refused() -> None:
    with pytest.raises(ValueError, match="need two different precisions, got high=int4 and low=int4"):
        ScoreThreshold("int4", "int4", T1, T2)


def test_a_fixed_selector_knows_one_precision() -> None:
    selector = Fixed("int8")
    assert (selector.precisions, selector.constant, selector.permitted(1.0)) == (("int8",), 0, (0,))
    assert list(selector.select(SimpleNamespace(needs=[4, 2]), holds())) == [0, 0]
