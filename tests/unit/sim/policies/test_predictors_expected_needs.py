"""Expected needs: what a later site asks for, learned while it runs. Values by hand.

Contracts: C187.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.policies.expected_needs import FIRST_WEIGHTS, ExpectedNeeds
from sim.policies.requires import Shape

TWO = Shape(2, 2, 1)
FIXED: dict[str, Any] = {
    "sites_ahead": 1,
    "times_chance": 0.0,
    "half_life_visits": 1.0,
    "prior_visits": 1.0,
    "rate": 0.0,
}


def gate(tick: int, site: int, *rows: list[int]) -> Any:
    chosen = np.array(rows)
    needs = list(dict.fromkeys(chosen.ravel().tolist()))
    return SimpleNamespace(
        tick=tick,
        site=site,
        needs=needs,
        tokens=[int((chosen == expert).sum()) for expert in needs],
        experts=chosen,
        row_sequence=np.zeros(len(chosen), int),
    )


def ready(shape: Shape = TWO, **choices: Any) -> ExpectedNeeds:
    predictor = ExpectedNeeds(**{**FIXED, **choices})
    predictor.know(shape, {})
    return predictor


def seen(predictor: ExpectedNeeds, *gates: Any) -> ExpectedNeeds:
    for one in gates:
        list(predictor.predict(one))
        predictor.observe(one)
    return predictor


def odds(predictor: ExpectedNeeds, at: Any) -> tuple[int, dict[int, float]]:
    (forecast,) = predictor.predict(at)
    likely = forecast.weights[0]
    return forecast.site, dict(zip(forecast.needs, (likely / (1 - likely)).tolist(), strict=True))


def test_before_anything_is_seen_the_odds_are_those_of_chance() -> None:
    """One of two experts: share of all visits 0.5; of late none, 0.01: odds sqrt(0.01 * 0.5)."""
    site, found = odds(ready(), gate(0, 0, [1]))
    assert site == 1
    assert found == pytest.approx({0: 0.005**0.5, 1: 0.005**0.5})


TABLE = [gate(0, 0, [1]), gate(1, 1, [0])]


def test_a_forecast_weighs_late_uses_all_uses_and_what_followed() -> None:
    """Site 1 asked for 0 once, after site 0 had chosen 1.

    Late: 0.5 and 0. Of all: 1.1 / 1.2 and 0.1 / 1.2. Lifts after site 0's 1, with a visit of
    chance: (1 + 11/12) / (2 * 11/12) = 23/22, and (1/12) / (2/12) = 1/2; their weight is 0.2. Site
    1 had chosen nothing before, so its own table is empty.
    """
    site, found = odds(seen(ready(), *TABLE), gate(2, 0, [1]))
    assert site == 1
    expected = {
        0: (0.51 * 11 / 12) ** 0.5 * (23 / 22) ** 0.2,
        1: (0.01 / 12) ** 0.5 * 0.5**0.2,
    }
    assert found == pytest.approx(expected)
    _, other = odds(seen(ready(), *TABLE), gate(2, 0, [0]))
    assert other[0] == pytest.approx((0.51 * 11 / 12) ** 0.5), "nothing followed 0 yet"


def test_weights_follow_the_error_of_a_forecast() -> None:
    """Both were forecast with p = q / (1 + q), q = sqrt(0.005), and 0 was asked for: the errors sum
    to 1 - 2p. The features were 1, ln 0.01 and ln 0.5; a weight moves by
    rate * slope / sqrt(slope^2 + 1).
    """
    likely = 0.005**0.5 / (1 + 0.005**0.5)
    moved = []
    for feature in (1.0, np.log(0.01), np.log(0.5)):
        slope = feature * (1 - 2 * likely)
        moved.append(0.1 * slope / (slope**2 + 1) ** 0.5)
    _, found = odds(seen(ready(rate=0.1), *TABLE), gate(2, 0, [0]))
    late, of_all = np.log(0.51), np.log(11 / 12)
    log_odds = moved[0] + (0.5 + moved[1]) * late + (0.5 + moved[2]) * of_all
    assert found[0] == pytest.approx(np.exp(log_odds)), "nothing followed 0 yet"


def test_what_a_prompt_has_passed_counts_as_nothing_chosen() -> None:
    """Site 1's own last choice is gone; what followed site 0's 1 stays. Late: 0.5 and 0.375."""
    _, found = odds(seen(ready(), *TABLE, gate(2, 1, [0], [1])), gate(3, 0, [1]))
    expected = {
        0: (0.51 * 11 / 12) ** 0.5 * (23 / 22) ** 0.2,
        1: (0.385 / 12) ** 0.5 * 0.5**0.2,
    }
    assert found == pytest.approx(expected)


def test_lifts_get_weight_where_what_followed_follows_again() -> None:
    """After site 0's 1 site 1 asks for 0 again, of which the lift was above 1."""
    predictor = seen(ready(rate=0.1), *TABLE, gate(2, 0, [1]), gate(3, 1, [0]))
    assert predictor._weights[-1] > 0.2


def test_a_site_that_forecasts_itself_reads_what_it_has_just_chosen() -> None:
    """0 came once after 1: lifts 1.5 / 1 and 0.5 / 1, as its own last choice and as this gate's.
    What chose 0 before had nothing follow it.
    """
    predictor = seen(ready(Shape(1, 2, 1)), gate(0, 0, [1]), gate(1, 0, [0]))
    _, found = odds(predictor, gate(2, 0, [1]))
    expected = {0: (0.51 * 0.5) ** 0.5 * 1.5**0.4, 1: (0.26 * 0.5) ** 0.5 * 0.5**0.4}
    assert found == pytest.approx(expected)


def test_the_last_site_forecasts_the_first_of_the_next_token() -> None:
    predictor = ready(Shape(3, 4, 2), sites_ahead=2)
    sites = [next(iter(predictor.predict(gate(site, site, [0, 1])))).site for site in range(3)]
    assert sites == [2, 0, 1]


def test_a_site_is_named_until_its_gate_as_it_was_forecast() -> None:
    """At site 0 site 2 is forecast; at site 1 it is named again, before the next token's site 0."""
    predictor = ready(Shape(3, 4, 2), sites_ahead=2)
    (first,) = predictor.predict(gate(0, 0, [0, 1]))
    predictor.observe(gate(0, 0, [0, 1]))
    again, later = predictor.predict(gate(1, 1, [2, 3]))
    assert again is first
    assert (again.site, later.site) == (2, 0)
    predictor.observe(gate(1, 1, [2, 3]))
    assert [one.site for one in predictor.predict(gate(2, 2, [0, 1]))] == [0, 1]


def test_sites_are_forecast_at_most_once_through_the_stack() -> None:
    predictor = seen(ready(sites_ahead=5), *TABLE)
    assert predictor.reach == 5, "the loader's budget in_time asks how far it looks"
    assert [one.site for one in predictor.predict(gate(2, 0, [1]))] == [1, 0]


def test_experts_below_the_threshold_are_not_named_and_the_likeliest_is_first() -> None:
    """Two of four by chance: 0.4 times that is 0.2."""
    visits = [gate(0, 0, [0, 1]), gate(1, 1, [3, 2]), gate(2, 0, [0, 1]), gate(3, 1, [3, 0])]
    named = {}
    for times in (0.0, 0.4):
        predictor = seen(ready(Shape(2, 4, 2), times_chance=times), *visits)
        (forecast,) = predictor.predict(gate(4, 0, [0, 1]))
        named[times] = list(forecast.needs)
    assert named == {0.0: [3, 0, 2, 1], 0.4: [3, 0]}
    assert list(ready(times_chance=0.4).predict(gate(0, 0, [1]))) == []


def test_what_followed_a_sites_own_choice_does_not_count_after_a_prompt() -> None:
    """Site 1 asked for 0 twice, so that its tables have a lift after its own 0; the prompt takes
    that away.

    Late: 0.5625 and 0.375. Of all: 2.1 / 2.2 and 0.1 / 2.2. Lifts after site 0's 1, seen twice:
    (2 + 21/22) / (3 * 21/22) = 65/63, and 1/3. After site 0's 1 of the token before, seen once:
    (1 + 21/22) / (2 * 21/22) = 43/42, and 1/2.
    """
    twice = [*TABLE, gate(2, 0, [1]), gate(3, 1, [0])]
    _, found = odds(seen(ready(), *twice, gate(4, 1, [0], [1])), gate(5, 0, [1]))
    expected = {
        0: (0.5725 * 21 / 22) ** 0.5 * (65 / 63 * 43 / 42) ** 0.2,
        1: (0.385 / 22) ** 0.5 * (1 / 6) ** 0.2,
    }
    assert found == pytest.approx(expected)


def test_a_prompt_forecasts_nothing_and_moves_the_late_shares_only() -> None:
    """Two tokens of one sequence: (1 - 1/4) * 1/2 for the expert of one of them."""
    predictor = ready()
    prompt = gate(1, 1, [0], [1])
    assert list(predictor.predict(prompt)) == []
    seen(predictor, gate(0, 0, [1]), prompt)
    _, found = odds(predictor, gate(2, 0, [1]))
    assert found == pytest.approx(dict.fromkeys((0, 1), (0.385 * 0.5) ** 0.5))


def test_of_a_forecast_that_a_prompt_has_overtaken_nothing_is_learned_later() -> None:
    prompts = gate(1, 1, [0], [1]), gate(2, 0, [0], [1])
    predictor = seen(ready(rate=0.1), gate(0, 0, [1]), *prompts, gate(3, 1, [0]))
    assert predictor._weights.tolist() == list(FIRST_WEIGHTS)


def test_a_product_of_lifts_that_is_too_small_for_a_number_is_none_the_less_finite() -> None:
    """Five lifts of 1e-200 each, so that late and all uses stand beside (1e-300) ** 0.2."""
    predictor = seen(ready(), *TABLE, gate(2, 0, [1]), gate(3, 1, [0]))
    predictor._times[:], predictor._followed[:] = 1e200, 0
    _, found = odds(predictor, gate(4, 0, [1]))
    assert found[1] == pytest.approx((0.01 * 0.1 / 2.2) ** 0.5 * 1e-60)


def test_an_encoder_is_not_forecast() -> None:
    predictor = ready(Shape(3, 4, 2, encoder_sites=1))
    assert list(predictor.predict(gate(0, 0, [0, 1]))) == []
    assert next(iter(predictor.predict(gate(1, 2, [0, 1])))).site == 1


def test_a_question_changes_nothing_and_a_fresh_one_knows_nothing() -> None:
    predictor, last = seen(ready(rate=0.1), *TABLE), gate(2, 0, [1])
    assert odds(predictor, last) == odds(predictor, last)
    unasked = ready(rate=0.1)
    for one in TABLE:
        unasked.observe(one)
    assert odds(unasked, last) == odds(predictor, last), "whether it was asked is no matter"
    again = predictor.afresh()
    assert isinstance(again, ExpectedNeeds)
    assert odds(again, gate(0, 0, [1])) == odds(ready(), gate(0, 0, [1]))
    assert odds(predictor, last) != odds(again, last)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sites_ahead", 0),
        ("sites_ahead", 1.5),
        ("times_chance", -0.1),
        ("rate", -0.1),
        ("half_life_visits", 0),
        ("prior_visits", 0),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"predictor\.{name}="):
        ExpectedNeeds(**{name: value})
