"""The search for good prices: its slopes are those of the bound, to the last digits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.bounds import relaxation
from sim.bounds.relaxation import (
    EPSILON,
    NEVER,
    Floats,
    Problem,
    Requests,
    _Prices,
    _Search,
    relaxed_ns,
)

SOFTNESS = 0.2


def prices(passes: bool, idle: int = 0) -> _Prices:
    """Three gates; two sizes, a load that was never there before, and one that stays.

    ``idle``: gates behind them that ask for nothing.
    """
    requests = Requests(
        np.array([0, 1, 1, 2, 2]),
        np.array([40, 40, 20, 40, 20]),
        np.array([100, 100, 60, 100, 60]),
        np.array([0, 1, NEVER, 3, 1]),
        np.array([True, False, False, False, True]),
    )
    compute, after = (
        np.array([30, 90, 50, 70] + [8] * idle),
        np.array([30, 20, 50, 10] + [9] * idle),
    )
    room = np.array([60, 80, 40] + [70] * idle)
    return _Prices(Problem(compute, after, room, requests, passes))


def soft_bound(found: _Prices, weights: Floats, price: Floats) -> float:
    """The bound, each request's cheapest way made smooth."""
    costs, _ = found.ways(weights, price)
    least = costs.min(axis=0)
    soft = least - SOFTNESS * np.log(np.exp((least - costs) / SOFTNESS).sum(axis=0))
    return float(
        (weights[1] * found.compute + weights[2] * found.after).sum()
        + (price * found.excess).sum()
        + soft.sum()
    )


@pytest.mark.parametrize(("passes", "idle"), [(False, 0), (True, 0), (False, 2)])
def test_slopes_are_how_much_the_bound_moves_with_each_weight_and_price(
    passes: bool, idle: int
) -> None:
    found = prices(passes, idle)
    rng = np.random.default_rng(4)
    weights, price = rng.uniform(0.1, 1, (3, 4 + idle)), rng.uniform(0.1, 0.5, 3 + idle)
    costs, source = found.ways(weights, price)
    by_weight, by_price = found.slopes(costs, costs.min(axis=0), source, SOFTNESS)
    step = 1e-6
    for at in np.ndindex(weights.shape):
        up, down = weights.copy(), weights.copy()
        up[at] += step
        down[at] -= step
        moved = soft_bound(found, up, price) - soft_bound(found, down, price)
        assert moved / (2 * step) == pytest.approx(by_weight[at], abs=1e-6), at
    for gate in range(3 + idle):
        up, down = price.copy(), price.copy()
        up[gate] += step
        down[gate] -= step
        moved = soft_bound(found, weights, up) - soft_bound(found, weights, down)
        assert moved / (2 * step) == pytest.approx(by_price[gate], abs=1e-6), gate


@pytest.mark.parametrize(
    ("passes", "ways"),
    [
        (
            False,
            [
                [1.0, 2.0, np.inf, 0.0, 3.0],
                [1.3, 1.5, 0.9, 1.7, 1.02],
                [1.5, 2.2, 1.12, 4.3, 2.18],
                [1.2, 2.3, 1.18, 4.4, 2.24],
            ],
        ),
        (
            True,
            [
                [1.0, 2.0, np.inf, 0.0, 3.0],
                [1.3, 1.5, 0.9, 1.7, 1.02],
                [0.5, 0.2, 0.12, 0.2, 0.12],
                [0.2, 0.3, 0.18, 0.4, 0.24],
            ],
        ),
    ],
)
def test_each_way_costs_what_the_module_says(passes: bool, ways: list[list[float]]) -> None:
    """Prices 1, 2 and 4 at the gates; link weights .5, .2, .3, .4; chain weights 0, 1.1, 1.2, 1.3."""
    link, chain = np.array([0.5, 0.2, 0.3, 0.4]), np.array([0.0, 1.1, 1.2, 1.3])
    found = prices(passes)
    costs, _ = found.ways(np.stack([link, 1 - link, chain]), np.array([1.0, 2.0, 4.0]))
    assert costs.tolist() == [pytest.approx(way) for way in ways]


def test_what_was_there_and_fits_costs_nothing() -> None:
    """One request, of what was there at the start; nothing is computed."""
    one, none = np.array([1]), np.zeros(3, np.int64)
    there = Requests(one, one * 40, one * 100, one * 0, one > 1)
    assert relaxed_ns(Problem(none, none, np.array([50, 50]), there)) == 0


def test_of_the_bound_the_most_that_rounding_may_have_added_is_taken_off() -> None:
    """Two gates and one request, of one unit of bytes and of time; a unit of bytes too many fits.

    Computing 3 at weight 1/2 is 1.5; prices 1 and 2 of an excess of -2 each are -6; the way costs
    4. Rounding is told in 4 epsilons of 3 terms, each of 1.5 + 6 + 4 and prices of 3 in all.
    """
    one = np.array([1])
    kept = Requests(one, one * 10, one * 10, one * 0, one > 1)
    compute, after = np.array([10, 10, 10]), np.zeros(3, np.int64)
    found = _Prices(Problem(compute, after, np.array([20, 20]), kept))
    weights, price, cheapest = np.full((3, 3), 0.5), np.array([1.0, 2.0]), np.array([4.0])
    assert found.bound(weights, price, np.zeros(1)) == pytest.approx(1.5 - 6)
    exact = found.bound(weights, price, cheapest)
    assert exact == pytest.approx(-0.5)
    assert (-0.5 - exact) / EPSILON == pytest.approx(4 * 3 * (1.5 + 6 + 4 + 3), rel=0.01)


def test_a_search_has_rounds_by_the_size_of_its_problem_and_begins_at_the_price_of_a_usual_stay() -> (
    None
):
    """24 million over gates and requests, from 80 to 600, in four stages."""

    def search(gates: int, requests: int, span: int | None = 4) -> tuple[int, float]:
        gate = np.arange(requests)
        told: Any = SimpleNamespace(
            gates=gates,
            gate=gate,
            kept_from=gate + 1 - (span or 0),
            can_keep=np.full(requests, span is not None),
        )
        found = _Search(told)
        return found.rounds, found.first_price

    assert search(100_000, 20_000) == (50, 0.25)
    assert search(4, 4, span=0) == (150, 1.0)
    assert search(10**6, 10, span=None) == (20, 1.0)


def test_a_search_takes_the_same_steps_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three experts in turn, of two sizes, through 140 gates: every constant of the search counts.

    No cache of 20 B holds all of them. What is not computed is loaded: the bound is above either.
    """
    monkeypatch.setattr(relaxation, "ROUNDS", (40, 40))
    gate = np.arange(140)
    requests = Requests(
        gate,
        np.where(gate % 3 == 1, 20, 10),
        np.where(gate % 3 == 1, 630, 300),
        np.where(gate < 3, NEVER, gate - 2),
        gate % 4 == 0,
    )
    compute = 40 + np.arange(141) % 5 * 30
    search = _Search(_Prices(Problem(compute, compute // 2, np.full(140, 20), requests)))
    bound = search.best()
    assert compute.sum() < bound == 36_318 < compute.sum() + requests.load_ns.sum()
    assert search._best == pytest.approx(57.64896353452173, rel=1e-8), "in loads of 630 ns"
