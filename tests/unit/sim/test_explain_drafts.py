"""What is told of experts of draft layers, which come and go like all others (contract C184)."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from helpers.bundled import Configure
from sim.explain import Explained, Question
from unit.sim.test_explain import Witnessed, witnessed

LAYERS = 2
WORDS = (
    "system=lru",
    "budget.resident_share=0.25",
    "workload.decode_tokens=12",
    "workload.draft_tokens=2",
    f"workload.draft_layers={LAYERS}",
    "workload.draft_experts=offloaded",
)


@pytest.fixture(scope="module")
def seen(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> Witnessed:
    folder: Path = tmp_path_factory.mktemp("drafts")
    return witnessed(folder, configure, *WORDS)


def test_their_sites_are_the_last_of_the_run(seen: Witnessed) -> None:
    assert seen.log.sites == seen.log.own_sites + LAYERS
    drafted = seen.log.lookups.filter(pl.col("phase") == "draft")["site"].unique().sort().to_list()
    assert drafted == [seen.log.own_sites, seen.log.own_sites + 1]


@pytest.mark.thorough
def test_whom_an_expert_made_way_for_is_named_by_its_draft_layer(seen: Witnessed) -> None:
    units, own = seen.log.units, seen.log.own_sites
    claims = {
        (key, tick): other
        for key, tick, other in seen.evictions
        if other is not None and key // units < own <= other // units
    }
    missed = seen.log.lookups.filter((pl.col("outcome") == "miss") & (pl.col("site") < own))
    told = 0
    for row in missed.iter_rows(named=True):
        gone = [at for key, at in claims if key == row["key"] and at < row["tick"]]
        last = max(
            (at for key, at, _ in seen.evictions if key == row["key"] and at < row["tick"]),
            default=-1,
        )
        if not gone or max(gone) != last:
            continue
        other = claims[row["key"], last]
        question = Question(row["step"], row["site"], row["expert"])
        text = " ".join(Explained(seen.log).explain(question))
        name = f"draft layer {other // units - own + 1} (site {other // units})"
        assert f"It was evicted for a demand of {name} expert {other % units}" in text
        told += 1
    assert told


def test_every_lookup_of_a_draft_layer_is_told(seen: Witnessed) -> None:
    explained = Explained(seen.log)
    for row in seen.log.lookups.filter(pl.col("phase") == "draft").iter_rows(named=True):
        question = Question(row["step"], row["site"], row["expert"])
        assert (
            f"draft layer {row['site'] - seen.log.own_sites + 1}" in explained.explain(question)[0]
        )
