"""Forecasts of several sites, made at once, are those made one by one."""

from __future__ import annotations

import numpy as np
import pytest

from sim.policies.row_forecast import RowForecast, forecasts_of


@pytest.mark.parametrize("rows", [1, 3])
def test_forecasts_of_several_sites_are_those_of_each(rows: int) -> None:
    """Some rows name all of their experts, some few in any places, and the last site's name none."""
    dice = np.random.default_rng(rows)
    sites = [2, 5, 6, 9]
    experts = np.array([[dice.permutation(8)[:5] for _ in range(rows)] for _ in sites], np.int16)
    experts[1:3][dice.random((2, rows, 5)) < 0.5] = -1
    experts[3] = -1
    weights = np.where(experts >= 0, dice.random(experts.shape), 0.0)
    found = forecasts_of(sites, 9, experts, weights)
    assert [forecast.site for forecast in found] == sites
    for place, forecast in enumerate(found):
        alone = RowForecast(sites[place], 9, experts[place], weights[place])
        for name in ("needs", "keys", "tokens", "scores"):
            assert getattr(forecast, name) == getattr(alone, name), name
        assert all(type(key) is int for key in (*forecast.keys, *forecast.needs))
        assert forecast.experts.tolist() == experts[place].tolist()
        assert forecast.weights.tolist() == weights[place].tolist()
    assert found[0].needs
    assert not found[3].needs
