"""Each rule of comparison at its boundary, worked by hand."""

from __future__ import annotations

from math import exp

import pytest

from sim.reproduce.roles import Claim
from sim.reproduce.rules import (
    Value,
    agrees,
    digits,
    has_published_sign,
    matches,
    published,
    speedup_agrees,
)


def claim(
    rule: str = "speedup", value: float | tuple[float, float] = 2.0, **given: object
) -> Claim:
    return Claim(
        id="H999", where="1", says="x", role="transferred", rule=rule, value=value, **given
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("simulated", "target", "holds"),
    [
        # A large speed-up may be off by a quarter either way: exp(0.22) = 1.246.
        (3.21 * exp(0.2199), 3.21, True),
        (3.21 * exp(0.2201), 3.21, False),
        (3.21 * exp(-0.2199), 3.21, True),
        (3.21 * exp(-0.2201), 3.21, False),
        # A small one may be off by half of its logarithm: 1.19 may be from 1.091 to 1.298.
        (1.0909, 1.19, True),
        (1.0908, 1.19, False),
        (1.2981, 1.19, True),
        (1.2983, 1.19, False),
        # Near 1 it may be off by two per cent, but never on the other side of 1.
        (1.0303, 1.01, True),
        (1.0306, 1.01, False),
        (1.0001, 1.01, True),
        (0.9999, 1.01, False),
        (0.99, 0.99, True),
        (1.0001, 0.99, False),
        # Exactly 1 has no sign.
        (0.9802, 1.0, True),
        (0.9801, 1.0, False),
        (1.0202, 1.0, True),
        (1.0203, 1.0, False),
    ],
)
def test_a_speedup_has_the_sign_and_a_distance_by_its_size(
    simulated: float, target: float, holds: bool
) -> None:
    assert speedup_agrees(simulated, target) is holds


def test_more_than_a_speedup_is_met_by_any_larger_one() -> None:
    above = claim(value=2, bound="above")
    assert agrees(above, Value(9.0))
    assert agrees(above, Value(1.7)), "and by one that the rule calls equal"
    assert not agrees(above, Value(1.4))


def test_a_range_is_met_by_both_ends_of_a_range_and_by_a_number_inside() -> None:
    one = claim("speedup_range", (1.19, 1.57))
    assert agrees(one, Value(1.3, (1.2, 1.3, 1.5)))
    assert not agrees(one, Value(1.3, (1.2, 1.3, 2.2))), "the largest is too large"
    assert not agrees(one, Value(1.3, (1.02, 1.3, 1.5))), "the least is too small"
    assert agrees(one, Value(1.4))
    assert agrees(one, Value(1.1)), "within the rule of the lower end"
    assert not agrees(one, Value(1.05))


@pytest.mark.parametrize(
    ("share", "holds"), [(0.8805, True), (0.8806, False), (0.8251, True), (0.8250, False)]
)
def test_shares_are_compared_as_odds_within_a_quarter(share: float, holds: bool) -> None:
    """85.5 %: odds 5.897; 7.371 is 88.05 %, 4.717 is 82.51 %."""
    assert agrees(claim("share", 85.5, unit="%"), Value(share)) is holds


@pytest.mark.parametrize(
    ("odds", "holds"), [(38.62, True), (38.63, False), (24.72, True), (24.71, False)]
)
def test_a_printed_ratio_of_times_is_compared_likewise(odds: float, holds: bool) -> None:
    assert agrees(claim("odds", 30.9, unit="x"), Value(odds)) is holds


@pytest.mark.parametrize(
    ("reduction", "interval", "holds"),
    [
        (0.05, (0.01, 0.09), True),
        (0.15, (0.01, 0.2), True),
        (0.0499, (0.01, 0.09), False),
        (0.1501, (0.01, 0.2), False),
        (0.10, (-0.001, 0.2), False),
        (0.10, (0.0, 0.2), False),
    ],
)
def test_a_reduction_is_within_half_of_the_effect_and_told_from_none(
    reduction: float, interval: tuple[float, float], holds: bool
) -> None:
    assert (
        agrees(claim("reduction", 10, unit="% (approximately)"), Value(reduction, (), (interval,)))
        is holds
    )


def test_a_range_of_reductions_needs_each_interval_to_exclude_nothing() -> None:
    one = claim("reduction", (4.69, 8.68), unit="%")
    points, apart = (0.05, 0.09), ((0.01, 0.08), (0.05, 0.12))
    assert agrees(one, Value(0.07, points, apart))
    assert not agrees(one, Value(0.07, points, (apart[0], (-0.01, 0.12))))
    assert not agrees(one, Value(0.07, (0.02, 0.09), apart))
    assert not agrees(one, Value(0.07, points)), "without an interval nothing is told"


@pytest.mark.parametrize(
    ("rule", "target", "limit"),
    [("time", 0.305, 0.20), ("rate", 14.0, 0.20), ("kernel", 0.134, 0.08)],
)
def test_times_are_within_a_fifth_and_kernels_within_eight_per_cent(
    rule: str, target: float, limit: float
) -> None:
    for sign in (-1, 1):
        assert agrees(claim(rule, target), Value(target * (1 + sign * limit * 0.9999)))
        assert not agrees(claim(rule, target), Value(target * (1 + sign * limit * 1.0001)))


def test_a_time_is_compared_in_its_own_unit() -> None:
    """80 ms are 0.08 s."""
    one = claim("time", 80, unit="ms", scale=1e-3)
    assert published(one) == (0.08,)
    assert agrees(one, Value(0.095))
    assert not agrees(one, Value(95.0))


def test_an_order_is_the_published_one_or_not() -> None:
    assert agrees(claim("order", 1), Value(3.0, (), (), True))
    assert not agrees(claim("order", 1), Value(3.0, (), (), False))
    assert not agrees(claim("order", 1), Value(3.0)), "no order was looked at"


@pytest.mark.parametrize(
    ("ratio", "holds"), [(0.98, True), (0.9799, False), (0.9999, True), (1.0, False)]
)
def test_slightly_below_is_at_most_two_per_cent_below(ratio: float, holds: bool) -> None:
    assert agrees(claim("slightly_below", 1, bound="below"), Value(ratio)) is holds


def test_a_number_is_within_a_range_or_a_fifth_of_a_single_one() -> None:
    assert agrees(claim("within", (1, 3)), Value(3.0))
    assert not agrees(claim("within", (1, 3)), Value(3.01))
    assert agrees(claim("within", 11), Value(13.19))
    assert not agrees(claim("within", 11), Value(13.21))


def test_several_speedups_are_met_one_by_one() -> None:
    several = claim("speedups", (1.26, 1.44))
    assert agrees(several, Value(0, (1.27, 1.43)))
    assert not agrees(several, Value(0, (1.27, 3.0)))
    assert not agrees(several, Value(0, (1.27,)))


def test_a_claim_without_a_number_publishes_none() -> None:
    assert published(claim("order", None)) == ()  # type: ignore[arg-type]


def test_slightly_below_has_the_sign_of_what_is_below_one() -> None:
    below = claim("slightly_below", 1.0)
    assert [has_published_sign(below, Value(x)) for x in (0.9, 1.0, 1.1)] == [True, False, False]


def test_signs_are_of_speedups_reductions_and_orders_alone() -> None:
    assert has_published_sign(claim(), Value(1.01)) is True
    assert has_published_sign(claim(), Value(0.99)) is False
    assert has_published_sign(claim("reduction", 10), Value(-0.1)) is False
    assert has_published_sign(claim("order", 1), Value(1.0, (), (), True)) is True
    assert has_published_sign(claim("time", 10), Value(1.0)) is None


@pytest.mark.parametrize(
    ("one", "point", "holds"),
    [
        (claim("within", (1, 3)), 1.0, True),
        (claim("within", (1, 3)), 0.99, False),
        (claim("time", 10.0), 12.0, True),  # by the last bits more than 1.2 times
        (claim("time", 10.0), 8.0, True),
        (claim("odds", 4.0), 5.0, True),
        (claim("odds", 4.0), 3.2, True),
        (claim("odds", 4.0), 0.0, False),
        (claim("share", 80, unit="%"), 0.0, False),
        (claim("share", 80, unit="%"), 1.0, False),
        (claim("speedup", 2.0), 0.0, False),
        (claim("speedup", 2.0), -2.0, False),
        (claim("speedup", 2.0, bound="below"), 9.0, False),
        (claim("speedup", 2.0, bound="above"), 2.0, True),
        (claim("speedup_range", (1.5, 3.0)), 1.5, True),
        (claim("speedup_range", (1.5, 3.0)), 3.3, True),  # as the upper end
        (claim("speedup_range", (1.5, 3.0)), 4.0, False),
    ],
)
def test_the_ends_of_what_agrees_are_inside(one: Claim, point: float, holds: bool) -> None:
    assert agrees(one, Value(point)) is holds


@pytest.mark.parametrize(
    ("one", "value", "told"),
    [
        (claim("reduction", 10), Value(0.1), True),
        (claim("reduction", 10), Value(0.0), False),
        (claim("reduction", (4, 8)), Value(0.1, (0.1, 0.3)), True),
        (claim("reduction", (4, 8)), Value(0.1, (0.1, -0.3)), False),
        (claim("speedup_range", (1.2, 1.5)), Value(1.3, (1.1, 1.6)), True),
        (claim("speedup_range", (1.2, 1.5)), Value(1.3, (0.9, 1.6)), False),
        (claim("speedups", (1.2, 1.5)), Value(0.0, (1.1, 1.0)), False),
        (claim("speedup", 0.8), Value(0.9), True),
        (claim("speedup", 0.8), Value(1.1), False),
        (claim("speedup", 1.0), Value(0.3), True),
        (claim("order", 1), Value(1.0), False),
        (claim("share", 1), Value(1.0), None),
    ],
)
def test_a_sign_is_of_every_point(one: Claim, value: Value, told: bool | None) -> None:
    assert has_published_sign(one, value) is told


def identity(value: float | tuple[float, float], **given: object) -> Claim:
    return Claim(
        id="H999", where="1", says="x", role="identity", check="ratio", value=value, **given
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("computed", "printed", "same"),
    [
        (86.99, 87, True),
        (96.56, 96, True),  # cut off
        (96.56, 97, True),  # rounded
        (96.56, 98, False),
        (3.44, 4, False),  # neither
        (46.703, 45, False),
        (0.4643, 0.46, True),
        (0.4643, 0.47, False),
        (86.47, 86.5, True),
        (86.47, 86.4, True),
        (86.47, 86.3, False),
        (13.04, 13.0, True),
        (13.14, 13.0, False),
    ],
)
def test_an_identity_is_met_to_the_printed_digits(
    computed: float, printed: float, same: bool
) -> None:
    assert matches(identity(printed), computed) is same


def test_words_around_a_number_widen_it_as_they_say() -> None:
    nearly = identity(30, bound="below", about=5)
    assert matches(nearly, 28.6)
    assert not matches(nearly, 30.1)
    assert not matches(nearly, 28.4)
    assert matches(identity(300, bound="above"), 352.3)
    assert not matches(identity(300, bound="above"), 300.0)
    assert matches(identity((2.6, 3.2), bound="range"), 2.646)
    assert not matches(identity((1.05, 1.18), bound="range"), 2.646)
    assert matches(identity(30, bound="below"), 0.3 * 100), "by the last bits it is more"
    assert not matches(identity(30, bound="below"), 30.001)
    assert [matches(identity((2, 3), bound="range"), one) for one in (1.99, 2, 3, 3.01)] == [
        *(False, True),
        *(True, False),
    ]
    assert [matches(identity(100, about=5), one) for one in (94.9, 95, 105, 105.1)] == [
        *(False, True),
        *(True, False),
    ]
    assert matches(identity((64, 6)), (64, 6))
    assert not matches(identity((64, 6)), (64,))
    assert matches(identity(1.5, scale=0.001), 0.0015)
    assert not matches(identity((64, 6)), (64, 8))


def test_digits_are_those_that_were_printed() -> None:
    assert [digits(one) for one in (87, 13.0, 0.25, 4.69)] == [0, 1, 2, 2]
