"""Serving what was forecast instead of what was chosen, on the bundled trace.

Oracle: the same run without it, and its forecasts.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import polars as pl
import pytest

from helpers.bundled import Configure
from sim.setup.build import build
from sim.setup.execute import Result, execute

SHORT = ("trace.max_sequences=1", "hardware.memory_gib=96")
AHEAD = ("predictor=gate_lookahead_1",)


@cache
def ran(configure: Configure, *words: str) -> Result:
    return execute(build(configure(*words, *SHORT), "x"))


def quality(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = result.summary["quality_proxy"]
    return found


def test_an_exact_forecast_sends_nothing_anywhere(configure: Configure) -> None:
    """Pre-gated MoE: what its tuned gates choose ahead is the routing itself."""
    tuned, plain = (
        ran(configure, "system=pregated_moe"),
        ran(configure, "system=pregated_moe", "precision=fp16"),
    )
    assert tuned.frames.lookups.equals(plain.frames.lookups)
    assert tuned.frames.transfers.equals(plain.frames.transfers)
    assert quality(tuned)["reroute_share"] == quality(tuned)["reroute_mass"] == 0


def test_what_the_forecast_missed_is_what_other_experts_serve(configure: Configure) -> None:
    """At every decoded gate but the first site's two experts are forecast and two are needed.

    So each need that was not forecast is sent to an expert that was.
    """
    result = ran(configure, "system=pregated_moe", *AHEAD)
    recall, sites = result.summary["prediction"]["recall_at_issued"], 16
    assert 0.5 < recall < 1
    assert quality(result)["reroute_share"] == pytest.approx((1 - recall) * (sites - 1) / sites)
    assert 0 < quality(result)["reroute_mass"] < quality(result)["reroute_share"], (
        "the light ones are missed more often"
    )


def test_no_decoded_gate_but_the_first_waits_for_what_was_not_forecast(
    configure: Configure,
) -> None:
    served = ran(configure, "system=pregated_moe", *AHEAD).frames.lookups.filter(
        pl.col("phase") == "decode"
    )
    routed = ran(configure, "system=pregated_moe", *AHEAD, "precision=fp16").frames.lookups.filter(
        pl.col("phase") == "decode"
    )
    assert set(served.filter(pl.col("site") > 0)["outcome"]) <= {
        "late",
        "promoted",
        "reroute",
        "hit",
    }
    assert "miss" in set(routed.filter(pl.col("site") > 0)["outcome"])


def test_sida_serves_its_table_of_tokens_after_the_first_layer(configure: Configure) -> None:
    sida, routed = ran(configure, "system=sida"), ran(configure, "system=sida", "precision=fp16")
    recall = sida.summary["prediction"]["recall_at_issued"]
    assert recall == routed.summary["prediction"]["recall_at_issued"], (
        "a forecast is no matter of who serves"
    )
    assert quality(sida)["reroute_share"] == pytest.approx((1 - recall) * 15 / 16)
    assert sida.summary["lookups"]["miss"] < routed.summary["lookups"]["miss"]
    first = sida.frames.lookups.filter(pl.col("site") == 0)
    assert (first["key"] == first["expert"]).all(), "no gate comes before it"


def test_nothing_is_proven_of_needs_that_others_may_serve(configure: Configure) -> None:
    bounds = ran(configure, "system=sida", "bounds=max").summary["bounds"]
    assert (bounds["belady_loads"], bounds["why_no_belady"]) == (
        None,
        "needs that other experts may serve",
    )
    assert bounds["link_s"] == 0
    full = ran(configure, "system=sida", "bounds=max", "precision=fp16").summary["bounds"]
    assert 0 < bounds["compute_s"] < full["compute_s"]
