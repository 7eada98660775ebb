"""A trace is replayed open loop: what a run serves changes nothing of what later gates ask for."""

from __future__ import annotations

import polars as pl
import pytest

from helpers.bundled import Configure
from sim.setup.build import build
from sim.setup.execute import execute

SHORT = (
    "trace.max_sequences=1",
    "workload.prompt_tokens=4",
    "workload.decode_tokens=6",
    "hardware.memory_gib=96",
    "outputs=summary",
)
ASKED = ("step", "site", "expert", "weight")


def lookups(configure: Configure, *words: str) -> pl.DataFrame:
    return execute(build(configure(*words, *SHORT), "x")).frames.lookups


# Contracts: C101
@pytest.mark.parametrize(
    "words", [("system=hobbit",), ("system=swapmoe",)], ids=["low", "rerouted"]
)
def test_what_is_skipped_or_served_low_changes_no_later_routing(
    configure: Configure, words: tuple[str, ...]
) -> None:
    lossless, lossy = lookups(configure, "system=lru"), lookups(configure, *words)
    outcomes = set(lossy["outcome"])
    assert outcomes & {"skip", "reroute", "high_for_low"} or set(lossy["served"]) != {"fp16"}
    assert lossy.select(ASKED).sort(ASKED).equals(lossless.select(ASKED).sort(ASKED))
