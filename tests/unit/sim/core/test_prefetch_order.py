"""One queue for the forecasts of all sites, likeliest first: a controller worked by hand."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.core.lookups import MISS, PROMOTED
from sim.policies.placements import Load
from sim.policies.precisions import Fixed
from sim.policies.recency import LRU
from sim.policies.row_forecast import Forecasts, RowForecast, Together, ranking_of
from sim.values.types import Geometry

# Site 0 has keys 0 to 3, site 1 has 5 to 8, site 2 has 10 to 13.
GEOMETRY = Geometry(3, 4, 1, ("fp16",), (16.0,), (1,), 12)
NEAR, FAR = {0: 0.5, 1: 0.2}, {2: 0.6, 3: 0.3}


class Says:
    """A predictor that names the same experts at the same sites, whatever the gate."""

    lookahead_sites = 0
    learns = silent = False

    def __init__(self, **by_site: dict[int, float]) -> None:
        self.by_site = {int(name[1:]): likely for name, likely in by_site.items()}

    def predict(self, gate: Any) -> Iterable[RowForecast]:
        for site, likely in self.by_site.items():
            yield RowForecast(site, 5, np.array([list(likely)]), np.array([list(likely.values())]))

    def observe(self, gate: Any) -> None:
        raise AssertionError

    def afresh(self) -> Says:
        return self


def gate(site: int, expert: int, tick: int = 0) -> Any:
    return SimpleNamespace(
        site=site,
        tick=tick,
        step=tick,
        token=1,
        needs=[expert],
        keys=[5 * site + expert],
        tokens=[1],
        scores=[0.0],
        experts=np.array([[expert]]),
    )


def controller(says: Says, **switches: Any) -> Controller:
    return Controller(
        GEOMETRY, says, LRU(initial="empty"), Fixed("fp16"), Load(), Loader(**switches)
    )


def issued(one: Controller) -> list[int]:
    """The keys of all transfers that are in flight or waiting, in order of issue."""
    keys, transfer = [], one.poll(0)
    while transfer is not None:
        keys.append(transfer.key)
        _, transfer = one.transfer_done(0, transfer)
    return keys


# Contracts: C31
@pytest.mark.parametrize(
    ("order", "keys"), [("nearest", [3, 5, 6, 12, 13]), ("likeliest", [3, 12, 5, 13, 6])]
)
def test_demands_go_first_and_then_the_likeliest_of_all_sites(order: str, keys: list[int]) -> None:
    one = controller(Says(s1=NEAR, s2=FAR), prefetch_order=order)
    one.gate(gate(0, 3))
    assert issued(one) == keys


def test_a_budget_takes_the_likeliest_and_all_that_is_forecast_is_masked() -> None:
    one = controller(Says(s1=NEAR, s2=FAR), prefetch_order="likeliest", prefetch_budget=2)
    one.gate(gate(0, 3))
    assert issued(one) == [3, 12, 5]
    assert {key for key, blocked in enumerate(one.slots.blocked) if blocked} == {3, 5, 6, 12, 13}


# Contracts: C31
def test_as_likely_is_the_order_of_forecasts_and_what_is_there_is_not_asked_for() -> None:
    one = controller(Says(s1={1: 0.5, 0: 0.5}, s2={2: 0.5}), prefetch_order="likeliest")
    one.gate(gate(0, 3))
    assert issued(one) == [3, 6, 5, 12]
    one.gate(gate(0, 3, tick=1))
    assert issued(one) == []


def test_the_first_site_that_lacks_something_ends_the_asking() -> None:
    one = controller(Says(s1=NEAR, s2=FAR), prefetch_order="likeliest", depth="first_missing")
    one.gate(gate(0, 3))
    assert issued(one) == [3, 5, 6]


def test_a_new_queue_replaces_what_waits_and_what_was_masked() -> None:
    """MoE-Infinity: only the last gate's candidates count; here it names nothing of site 1."""
    says = Says(s1=NEAR, s2=FAR)
    one = controller(says, prefetch_order="likeliest", queue="replace")
    one.gate(gate(0, 3))
    assert one.poll(0) is not None
    says.by_site = {2: {1: 0.1}}
    one.gate(gate(0, 3, tick=1))
    assert one.prefetch_counts[6] == 4, "cancelled"
    one.protection.show()
    assert {key for key, blocked in enumerate(one.slots.blocked) if blocked} == {3, 11}
    assert issued(one) == [11]


def test_what_was_replaced_by_nothing_is_polled_once_more() -> None:
    """As every cancelled prefetch is that stands in a queue: polls are counted."""
    says = Says(s1=NEAR, s2=FAR)
    one = controller(says, prefetch_order="likeliest", queue="replace")
    one.gate(gate(0, 3))
    assert one.poll(0) is not None
    says.by_site = {2: {}}
    one.gate(gate(0, 3, tick=1))
    assert any(one.queues[0])
    assert one.poll(0) is None
    assert not any(one.queues[0])


# Contracts: C29
def test_a_forecast_of_the_gates_own_site_is_for_its_next_gate() -> None:
    one = controller(Says(s0={1: 0.9, 3: 0.4}, s1={0: 0.5}), prefetch_order="likeliest")
    one.gate(gate(0, 3))
    assert issued(one) == [3, 1, 5]
    outcomes, waits = one.gate(gate(0, 1, tick=1))
    assert (outcomes, waits) == ([0], None)
    assert one.prefetch_counts[0] == 1, "used"


def test_likeliness_adds_up_over_rows() -> None:
    rows = SimpleNamespace(
        needs=[0, 2],
        keys=[5, 7],
        experts=np.array([[2, 0], [0, -1]]),
        weights=np.array([[0.5, 0.25], [0.5, 0.0]]),
    )
    keys, likely = ranking_of(rows)  # type: ignore[arg-type]
    assert (keys.tolist(), likely.tolist()) == ([5, 7], [0.75, 0.5])


def test_likeliness_of_one_row_stands_by_need() -> None:
    row = RowForecast(1, 5, np.array([[3, 0, -1]]), np.array([[0.5, 0.25, 0.0]]))
    keys, likely = ranking_of(row)
    assert (row.needs, keys.tolist(), likely.tolist()) == ([3, 0], [8, 5], [0.5, 0.25])


def test_forecasts_that_are_kept_rank_as_those_that_are_made_anew() -> None:
    rows = [*Says(s1={3: 0.5, 0: 0.25}, s2={1: 0.5, 2: 0.3}).predict(None)]
    for found in (Forecasts(rows).together, Together.of(rows, map(ranking_of, rows))):
        assert found.keys.tolist() == [8, 11, 12, 5], "of 8 and 11, which tie, the nearer site's"
        assert found.choice.tolist() == [0, 1, 1, 0]
        assert {site: keys.tolist() for site, keys in found.by_site.items()} == {
            1: [8, 5],
            2: [11, 12],
        }
    assert not len(Forecasts().together.keys)


@pytest.mark.parametrize("queue", ["append", "replace"])
def test_a_later_wave_asks_for_what_its_gate_has_forecast(queue: str) -> None:
    says = Says(s0={1: 0.9}, s1={0: 0.5})
    one = controller(says, prefetch_order="likeliest", queue=queue, replay_unit="access")
    of_two = gate(0, 3)
    of_two.needs, of_two.keys, of_two.tokens = [3, 1], [3, 1], [1, 1]
    assert one.gate(of_two)[0] == [MISS]
    outcomes, waits = one.need_done(3)
    assert outcomes == [PROMOTED]
    assert waits is not None
    assert issued(one) == [3, 1, 5]
