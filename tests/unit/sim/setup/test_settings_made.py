"""Settings that are no part of a run, and what a trace's recording left out, by their refusals."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from sim.setup.parts import PARTS
from sim.setup.refusals import check_recorded, checked_settings

CONFIG: dict[str, Any] = {
    **{name: {"x": 1} for name in PARTS},
    "budget": {"resident_share": 0.5, "slots_gib": None},
    "seed": 0,
    "outputs": "all",
    "bounds": "none",
    "timeline_steps": 1,
    "output_dir": "out",
}


def test_settings_that_can_be_are_as_they_were() -> None:
    assert checked_settings(CONFIG) == CONFIG
    for changes in (
        {"budget": "fit"},
        {"outputs": "summary", "timeline_steps": None},
        {"budget": {"resident_share": 1}, "bounds": "max"},
    ):
        assert checked_settings(CONFIG | changes) == CONFIG | changes
    without = {name: value for name, value in CONFIG.items() if name != "bounds"}
    assert checked_settings(without) == without


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"model": {"b": ["???"], "a": {"c": "???", "d": 1}}},
            "configuration values not set: model.a.c, model.b.0; give them on the command line",
        ),
        ({"outputs": "some"}, "unknown outputs=some; allowed: all, summary"),
        ({"bounds": "some"}, "unknown bounds=some; allowed: none, "),
        ({"timeline_steps": 0}, "timeline_steps=0 must be a whole number >= 1"),
        ({"seed": -1}, "seed=-1 must be a whole number >= 0"),
        ({"seed": 0.5}, "seed=0.5 must be a whole number in"),
        (
            {"b": 1, "a": 2},
            "unknown settings b, a; known: bounds, budget, cache, hardware, kernels,",
        ),
        (
            {"budget": {"slots_gib": 1, "slots": 2, "share": 3}},
            "unknown settings budget.slots, budget.share; known: budget.resident_share,"
            " budget.slots_gib",
        ),
        ({"budget": {"slots_gib": 1}}, "budget.resident_share is not given; give a share"),
        ({"budget": "all"}, "budget=all must be a section of values, as in conf/; leave it or set"),
        ({"cache": "fit"}, "cache=fit must be a section of values, as in conf/; leave it or set"),
        ({"model": None}, "model=None must be a section of values, as in conf/; leave it or set"),
    ],
)
def test_settings_that_cannot_be_are_told(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        checked_settings(CONFIG | changes)


def run(
    *lacks: str, batching: str = "recorded", prefill: str = "rows", chunk: int | None = None
) -> Any:
    header = SimpleNamespace(
        name="t",
        lacks=frozenset(lacks),
        provenance={"format": "csv"},
        prefill=prefill,
        stands_in_order="order" in lacks,
    )
    trace = SimpleNamespace(header=header)
    return SimpleNamespace(trace=trace, batching=batching, prefill_chunk=chunk)


ROWS, NEEDS = {"cache": {"recency": "rows"}}, {"cache": {"recency": "needs"}}
TELLS = "trace t (csv) does not tell"
COUNTS = "trace t keeps prompts as counts of tokens, not"


@pytest.mark.parametrize(
    ("config", "precision", "workload", "told"),
    [
        (
            NEEDS,
            None,
            run("weights", "rows"),
            f"{TELLS} gate weights, which precision weighs experts by; choose precision=fp16 or"
            " another fixed one",
        ),
        (
            NEEDS,
            None,
            run("rows"),
            f"{TELLS} which token of a batch chose which expert, which precision weighs",
        ),
        (
            NEEDS,
            0,
            run("rows", "sequences", batching="static"),
            f"{TELLS} which sequence a token belongs to, so workload.batching=static cannot compose"
            " its steps; choose workload=recorded, its own steps",
        ),
        (
            NEEDS,
            0,
            run("rows", batching="static"),
            f"{TELLS} which token chose which expert, so workload.batching=static cannot",
        ),
        (
            ROWS,
            0,
            run("rows"),
            f"{TELLS} which token chose which expert; choose cache.recency=needs",
        ),
        (
            ROWS,
            0,
            run("weights"),
            f"{TELLS} the rank of a token's experts, which cache.recency=rows goes by; choose"
            " cache.recency=needs, or import it again with order=rank if its experts stand in that"
            " order",
        ),
        (
            NEEDS,
            None,
            run(prefill="counts"),
            f"{COUNTS} each token's weights, which precision goes by; choose precision=fp16 or"
            " another fixed one, or capture with prefill=rows",
        ),
        (
            NEEDS,
            0,
            run(prefill="counts", chunk=0),
            f"{COUNTS} which token chose which expert; set workload.prefill_chunk=null",
        ),
        (
            ROWS,
            0,
            run(prefill="counts"),
            f"{COUNTS} which token chose which expert; choose cache.recency=needs",
        ),
    ],
)
def test_what_the_recording_left_out_is_told_where_a_part_needs_it(
    config: dict[str, Any], precision: int | None, workload: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        check_recorded(config, precision, workload)


def test_what_no_part_needs_may_be_left_out() -> None:
    for config, precision, workload in (
        (ROWS, None, run(batching="static", chunk=4)),
        (NEEDS, 0, run("weights", "rows", "sequences")),
        ({"cache": {}}, 1, run("weights", "rows")),
        (NEEDS, None, run("sequences")),
        (NEEDS, 0, run("weights", batching="static")),
        (ROWS, 0, run("weights", "order")),
        (ROWS, 0, run("sequences")),
        (NEEDS, 0, run(prefill="counts")),
    ):
        check_recorded(config, precision, workload)
