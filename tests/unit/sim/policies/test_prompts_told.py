"""What a summary says of prompts: whether they were forecast, and why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from helpers.cells import with_cells
from sim.policies.base import Predictor
from sim.policies.learned import LearnedPerSite
from sim.policies.lookahead import ConfidentLookahead, GateLookahead
from sim.policies.predictors import NoPrediction
from sim.results.forecasts import prediction
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape, Trace
from sim.workload.lengths import Lengths
from sim.workload.steps import Workload

SHAPE = ModelShape("small", "none", 4, 8, 2, 16, 16)
LOOKUPS = {"late": 0, "promoted": 0, "miss": 0}
ROWS = synthesize(SHAPE, tokens=5, sequences=4, prompt_tokens=7, lookahead=2, seed=4)
CELLS = with_cells(ROWS)
NEITHER = replace(CELLS, prompt_forecasts={})


def told(trace: Trace, predictor: Predictor, **choice: Any) -> Any:
    workload = Workload(trace, split="all", lookahead=2, **{"batching": "sequential", **choice})
    return prediction(workload, predictor, LOOKUPS, 0)


# Contracts: C109
@pytest.mark.parametrize(
    "predictor", [GateLookahead(2), GateLookahead(1, experts=1), ConfidentLookahead()]
)
@pytest.mark.parametrize("trace", [ROWS, CELLS])
def test_what_is_forecast_is_measured(trace: Trace, predictor: Predictor) -> None:
    said = told(trace, predictor)
    assert said["prompts"] == "forecast"
    assert 0 < said["prefill"]["recall_at_issued"] <= 1
    assert said == told(ROWS, predictor)


def test_unions_of_prompts_are_measured_by_hand() -> None:
    """Oracle: a plain set for each gate."""
    workload = Workload(CELLS, split="all", lookahead=2, batching="sequential")
    gate, named, needed, both = workload.gate(), 0, 0, 0
    for step in workload.steps:
        gate.open(step)
        forecast: set[int] = set()
        for site in step.sites:
            gate.visit(site)
            if not step.decode:
                needs = set(gate.needs) if site else set()
                named, needed, both = (
                    named + len(forecast),
                    needed + len(needs),
                    both + len(forecast & needs),
                )
                choice = gate.routed(1)
                forecast = set() if choice is None else set(choice.needs)
    prefill = told(CELLS, GateLookahead(1))["prefill"]
    assert prefill["recall_at_issued"] == both / needed
    assert prefill["precision"] == both / named


# Contracts: C109
def test_why_not() -> None:
    assert told(CELLS, NoPrediction())["prompts"] is None
    assert told(CELLS, GateLookahead(2, prompts=False))["prompts"] == "not forecast by the system"
    no_prompts = synthesize(SHAPE, tokens=5, sequences=2, lookahead=2)
    assert told(no_prompts, GateLookahead(2))["prompts"] is None
    said = told(NEITHER, GateLookahead(2))
    assert (
        said["prompts"]
        == "not forecast: trace small keeps no lookahead of prompts; capture it anew"
    )
    assert said["prefill"] is None


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ({"prefill_chunk": 3}, "workload.prefill_chunk=3"),
        ({"prefill_chunk": 3, "batching": "continuous", "together": 2}, "workload.prefill_chunk=3"),
        ({"lengths": Lengths(prompt_tokens=4, decode_tokens=3)}, "workload.prompt_tokens=4"),
    ],
)
def test_parts_of_prompts_are_named(choice: dict[str, Any], named: str) -> None:
    """They are also named where steps hold decoded rows, too, which are forecast."""
    assert told(ROWS, GateLookahead(2), **choice)["prompts"] == "forecast"
    said = told(CELLS, GateLookahead(2), **choice)["prompts"]
    assert said.partition("; 12 of")[0] == (
        f"not forecast: {named} reads them in part, and trace small keeps forecasts of whole ones; "
        "capture it with prefill_lookahead=rows"
    )


class Nameless(NoPrediction):
    """It reads no scores."""

    silent = False


# Contracts: C80, C109
def test_decoded_tokens_that_were_recorded_in_a_prompt_are_told_where_they_have_no_forecast() -> (
    None
):
    """Prompts of 7 are cut to 4. So of 5 decoded tokens 3 have the forecasts of whole prompts only,
    in each of 4 sequences; whatever reads no scores of tokens forecasts them all.
    """
    cut = {"lengths": Lengths(prompt_tokens=4, decode_tokens=5)}
    lacks = (
        "; 12 of 20 decoded tokens had no forecast, as trace small recorded them in prompts"
        " (prefill_lookahead=rows would keep one of each)"
    )
    for predictor, prompts in (
        (GateLookahead(2), "not forecast: workload.prompt_tokens=4"),
        (GateLookahead(2, prompts=False), "not forecast by the system"),
        (ConfidentLookahead(), "not forecast: workload.prompt_tokens=4"),
    ):
        said = told(CELLS, predictor, **cut)["prompts"]
        assert said.startswith(prompts)
        assert said.endswith(lacks)
        assert "decoded" not in told(ROWS, predictor, **cut)["prompts"]
        assert "decoded" not in told(CELLS, predictor)["prompts"]
    assert "decoded" not in told(CELLS, Nameless(), **cut)["prompts"]


# Contracts: C100
@pytest.mark.parametrize("trace", [CELLS, NEITHER])
def test_a_predictor_that_reads_rows_says_what_it_lacks(trace: Trace) -> None:
    class Silent(LearnedPerSite):
        def predict(self, gate: Any) -> Any:
            return ()

        def afresh(self) -> Any:
            return self

        def observe(self, gate: Any) -> None:
            pass

    said = told(trace, Silent(inputs="scores", score_sites=2))["prompts"]
    assert said.startswith("not forecast: ")
    assert said.endswith("capture it with prefill_lookahead=rows")
    assert (
        "gate inputs, which trace small keeps of decoded tokens"
        in told(trace, Silent("gate_input"))["prompts"]
    )
