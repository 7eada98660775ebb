"""Which features make a run not simple, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from sim.core.loader import Loader
from sim.core.simple import Simple, how_simple
from sim.policies.placements import AbsentOnCpu, Load
from sim.policies.precisions import Fixed, ScoreThreshold
from sim.policies.reroutes import ForecastRoutes
from sim.values.types import Geometry, Route

RANKED: dict[str, Any] = {"prefetch_order": "likeliest", "queue": "replace"}
PLAIN: dict[str, Any] = {
    "geometry": Geometry(2, 3, 1, ("fp16",), (16.0,), (4,), 12),
    "selector": Fixed("fp16"),
    "placement": Load(),
    "loader": Loader(**RANKED),
    "route": Route(),
    "predicts_later": False,
}
TWO_PRECISIONS = Geometry(2, 3, 1, ("fp16", "int4"), (16.0, 4.0), (4, 1), 12)
TWO_LINKS = Route((1, 1), (0, 0))
ALL = Simple(one_variant=True, needs=True, variants=True, gates=True, moves=True, ranked=True)
GATES = {"variants", "gates"}


def test_a_run_that_uses_nothing_special_is_simple_in_every_respect() -> None:
    assert how_simple(**PLAIN) == ALL


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"geometry": TWO_PRECISIONS}, {"one_variant", "gates"}),
        ({"selector": ScoreThreshold("fp16", "int4", 0.5, 0.8)}, {"one_variant", "gates"}),
        ({"selector": ForecastRoutes("fp16")}, {"one_variant", *GATES}),
        ({"placement": AbsentOnCpu()}, {"needs", *GATES}),
        ({"predicts_later": True}, {"needs", *GATES}),
        ({"loader": Loader(retention="after_batch", **RANKED)}, GATES),
        ({"loader": Loader(replay_unit="access", **RANKED)}, {"needs", *GATES}),
        ({"loader": Loader(staging_slots=1, **RANKED)}, {"moves", *GATES}),
        ({"loader": Loader(dense_slots=1, **RANKED)}, {"needs", "moves", *GATES}),
        ({"loader": Loader(chunk_bytes=1, **RANKED)}, {"moves", "ranked"}),
        ({"route": TWO_LINKS}, {"moves", "ranked"}),
        ({"whole": False}, {"ranked"}),
        ({"loader": Loader(prefetch_order="likeliest")}, {"ranked"}),
        ({"loader": Loader(queue="replace")}, {"ranked"}),
        ({"loader": Loader(demand_first=False, **RANKED)}, {"ranked"}),
        ({"loader": Loader(prefetch_budget="until_next_gate", **RANKED)}, {"ranked"}),
    ],
    ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else "",
)
def test_each_feature_takes_away_the_short_ways_that_it_would_make_wrong(
    changes: dict[str, Any], lost: set[str]
) -> None:
    found = how_simple(**PLAIN | changes)
    assert {part for part, may in found._asdict().items() if not may} == lost


@pytest.mark.parametrize(
    "loader",
    [
        Loader(depth="first_missing", **RANKED),
        Loader(cancel_stale=False, in_flight=2, wait="as_ready", **RANKED),
        Loader(prefetch_budget=3, write_back=True, **RANKED),
    ],
)
def test_what_only_orders_prefetches_or_times_leaves_a_run_simple(loader: Loader) -> None:
    assert how_simple(**PLAIN | {"loader": loader}) == ALL
