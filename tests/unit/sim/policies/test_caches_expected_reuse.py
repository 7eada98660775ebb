"""Expected reuse: late uses, what follows what, and the way to the next visit. Values by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.asking import FOUR_SITES, ask, begin, gate, order
from sim.policies.expected_reuse import ExpectedReuse
from sim.policies.requires import Given, Shape

LATE: dict[str, Any] = {"followers_share": 0.0, "half_life_visits": 1.0, "initial": "empty"}
AFTER: dict[str, Any] = {"followers_share": 1.0, "prior_visits": 1.0, "initial": "empty"}


class Asked:
    """Visits of a policy, one after another."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.tick = policy, -1

    def visit(self, *experts: int, site: int = 0, units: int = 7, rows: Any = None) -> Any:
        """One gate: by a row that chose all ``experts``, or by ``rows`` of one sequence."""
        self.tick += 1
        chosen = np.array(rows or [experts])
        gate = SimpleNamespace(
            site=site,
            tick=self.tick,
            step=self.tick,
            needs=list(experts),
            tokens=[int((chosen == expert).sum()) for expert in experts],
            experts=chosen,
            row_sequence=np.zeros(len(chosen), int),
        )
        ask(self.policy, *(site * units + expert for expert in experts), at=gate)
        return self.policy


def after(policy: Any, experts: str) -> Any:
    asked = Asked(policy)
    for expert in experts:
        asked.visit(int(expert))
    return policy


# Contracts: C164
def test_a_use_counts_half_after_a_half_life() -> None:
    """0.125, 0.25 and 0.5; then 0.5625 for the one that is asked for again."""
    policy = begin(ExpectedReuse(**LATE), 2, 1, 0)
    assert order(after(policy, "012")) == [0, 1, 2]
    assert order(after(begin(ExpectedReuse(**LATE), 2, 1, 0), "0120")) == [1, 2, 0]


def test_what_followed_the_last_ones_is_expected_before_what_was_asked_for_more() -> None:
    """After 0, 1, 0: b is 2.1 / 4 and 1.1 / 4; 0 was followed once, by 1.

    0: 0.525 * sqrt(0.525 / (2 * 0.525)) = 0.371. 1: 0.275 * sqrt(1.275 / (2 * 0.275)) = 0.419.
    With a prior of 100 visits both lifts are about 1: 0.522 and 0.279.
    """
    policy = after(begin(ExpectedReuse(**AFTER), 0, 1), "010")
    assert order(policy) == [0, 1]
    assert -1 / policy._waits[:2] == pytest.approx([0.3712, 0.4187], abs=1e-4)
    slow = ExpectedReuse(**{**AFTER, "prior_visits": 100.0})
    assert order(after(begin(slow, 0, 1), "010")) == [1, 0]


def test_lifts_of_all_that_the_last_visit_asked_for_are_multiplied() -> None:
    """Visits of (0, 1), 2, (0, 1), 2, 0, 3, 0, 3, 3, (0, 1). Then 0 was followed four times, twice
    by 2 and twice by 3, and 1 twice, by 2 alone.

    Of 10 visits 2 ask for 2 and 3 for 3: b is 2.1 / 11 and 3.1 / 11.
    2: b * sqrt((2 + b) / 5b * (2 + b) / 3b) = (2 + b) / sqrt(15) = 0.566.
    3: b * sqrt((2 + b) / 5b * b / 3b) = sqrt((2 + b) * b / 15) = 0.207.
    By 0 alone: 2: sqrt((2 + b) * b / 5) = 0.289, 3: sqrt((2 + b) * b / 5) = 0.359.
    """
    for last, expected in (((0, 1), [3, 2]), ((0,), [2, 3])):
        asked = Asked(begin(ExpectedReuse(**AFTER), 2, 3))
        for experts in ((0, 1), (2,), (0, 1), (2,), (0,), (3,), (0,), (3,), (3,), last):
            asked.visit(*experts)
        assert order(asked.policy) == expected


def test_a_new_sequence_follows_nothing() -> None:
    """Without what 0 is followed by, 0 was asked for more."""
    asked = Asked(begin(ExpectedReuse(**AFTER), 0, 1))
    asked.visit(0)
    asked.policy.on_sequence(1, True)
    asked.visit(1)
    asked.policy.on_sequence(2, True)
    asked.visit(0)
    assert order(asked.policy) == [1, 0]


def test_of_equal_ones_the_site_that_comes_last_goes_first() -> None:
    for site, expected in ((0, [9, 3]), (1, [3, 9]), (2, [3, 9]), (3, [9, 3])):
        policy = begin(ExpectedReuse(**LATE), 3, 9, geometry=FOUR_SITES)
        Asked(policy).visit(1, site=site, units=3)
        assert order(policy, geometry=FOUR_SITES) == expected, site


def test_a_prompt_is_as_many_visits_as_it_has_tokens() -> None:
    """Two tokens: 0.75 of its share each. 0 of both has 0.75, 1 of one 0.375.

    One visit later 0.375 and 0.1875, and 2 has 0.5.
    """
    asked = Asked(begin(ExpectedReuse(**LATE), 0, 1, 2))
    asked.visit(0, 1, rows=[[0, 1], [0, 3]])
    assert -1 / asked.policy._waits[:2] == pytest.approx([0.751, 0.376])
    asked.visit(2)
    assert order(asked.policy) == [1, 0, 2]
    asked.visit(4)
    assert order(asked.policy) == [1, 0, 2], "0.094, 0.188 and 0.25"


def test_no_table_learns_of_a_prompt() -> None:
    asked = Asked(begin(ExpectedReuse(**AFTER), 0, 1))
    asked.visit(0, rows=[[0], [0]])
    asked.visit(1)
    asked.visit(0, rows=[[0], [0]])
    assert not asked.policy._followed.any()


def test_waves_of_a_gate_are_one_visit() -> None:
    whole, parts = (begin(ExpectedReuse(initial="empty"), 0, 1, 2) for _ in range(2))
    for policy, waves in ((whole, [(0, 1)]), (parts, [(0,), (1,)])):
        asked = Asked(policy)
        for _ in range(3):
            asked.visit(0)
            tick = asked.tick
            for wave in waves:
                asked.tick = tick
                asked.visit(*wave)
            asked.visit(2)
        asked.visit(0)
    assert np.array_equal(whole._waits, parts._waits)
    assert whole._followed[0, 0, 2] == 3, "not only what its last wave asked for has followers"


def test_a_gate_of_which_nothing_is_looked_up_is_no_visit() -> None:
    """All that it needs is left out: what follows, follows the gate before."""
    policies = [begin(ExpectedReuse(initial="empty"), 0, 1, 2) for _ in range(2)]
    for policy, skips in zip(policies, (False, True), strict=True):
        asked = after(policy, "0202")
        asked.on_requests([], [], [], gate(tick=9, step=9)) if skips else None
        after(policy, "1")
    plain, skipping = policies
    assert np.array_equal(plain._waits, skipping._waits)
    assert np.array_equal(plain._followed, skipping._followed)


def test_an_encoders_expert_goes_first_once_the_prompt_has_passed_it() -> None:
    """The first of four sites is the encoder's; key 0 is asked for last of all."""
    policy = ExpectedReuse(initial="empty")
    policy.prepare(Given(Shape(4, 2, 1, encoder_sites=1), FOUR_SITES))
    asked = Asked(begin(policy, 0, 3, 9, geometry=FOUR_SITES))
    asked.visit(0, site=0, units=3)
    assert order(policy, geometry=FOUR_SITES)[0] == 0
    plain = begin(ExpectedReuse(initial="empty"), 0, 3, 9, geometry=FOUR_SITES)
    Asked(plain).visit(0, site=0, units=3)
    assert order(plain, geometry=FOUR_SITES)[-1] == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("half_life_visits", 0),
        ("half_life_visits", True),
        ("followers_share", 1.5),
        ("prior_visits", 0.0),
        ("distance_weight", -1.0),
        ("distance_weight", "3"),
    ],
)
def test_a_number_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"cache.{name}={value!r}"):
        ExpectedReuse(**{name: value})
