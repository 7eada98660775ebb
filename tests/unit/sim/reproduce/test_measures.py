"""Measures of runs and of a trace alone, worked by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from sim.reproduce.measured import Measured
from sim.reproduce.measures import (
    MEASURES,
    TRACE_MEASURES,
    Given,
    lookahead_top1,
    stacked_gates,
)
from sim.reproduce.rules import Value
from sim.traces.header import ModelShape
from sim.traces.synthesis import synthesize
from sim.traces.trace import DECODE, PREFILL

SHAPE = ModelShape("synthetic", "none", 5, 16, 2, 64, 128)


def test_the_best_forecast_is_looked_for_at_the_site_that_it_is_of() -> None:
    """A perfect forecast is always right; chance is right for 2 of 16 experts."""
    given = {"tokens": 200, "lookahead": 3, "skew": 0.0, "persistence": 0.0}
    perfect = synthesize(SHAPE, lookahead_accuracy=1.0, **given)
    assert lookahead_top1(perfect, (1, 2, 3)).point == 1
    chance = synthesize(SHAPE, lookahead_accuracy=0.0, **given)
    assert lookahead_top1(chance, (1, 2, 3)).point == pytest.approx(2 / 16, abs=0.03)


def test_depths_count_by_their_sites() -> None:
    trace = synthesize(SHAPE, tokens=50, lookahead=2, lookahead_accuracy=0.9)
    by_depth = [lookahead_top1(trace, (depth,)).point for depth in (1, 2)]
    weights = [SHAPE.sites - depth for depth in (1, 2)]
    assert lookahead_top1(trace, (1, 2)).point == pytest.approx(
        np.average(by_depth, weights=weights)
    )


def test_what_a_prompt_activates_is_counted_over_its_own_rows() -> None:
    """Four experts, two of them a token. The first prompt chooses 0, 1 and 1, 2."""
    trace = cast(
        Any,
        SimpleNamespace(
            sequence=np.array([0, 0, 0, 1]),
            phase=np.array([PREFILL, PREFILL, DECODE, PREFILL]),
            ids=np.array([[[0, 1]], [[1, 2]], [[3, 0]], [[2, 3]]]),
            header=SimpleNamespace(
                sequences=[
                    SimpleNamespace(sequence=0, split="eval"),
                    SimpleNamespace(sequence=1, split="fit"),
                ],
                model=SimpleNamespace(experts=4),
            ),
        ),
    )
    assert TRACE_MEASURES["prompt_union_share"](trace, ()).point == 3 / 4
    # Of its three experts the least popular 30 % is one, with one of four choices.
    assert TRACE_MEASURES["unpopular_tokens_share"](trace, ()).point == 1 / 4


def run(**numbers: Any) -> Measured:
    """A run with these numbers, and none of the others."""
    nothing: dict[str, Any] = {
        "decode_ns": [],
        "tokens": [],
        "prefill_ns": [],
        "prompt_tokens": [],
        "asked": [],
        "found": [],
        "missed": [],
        "penalty": [],
        "loading_share": 0.0,
        "host_ns_per_prefill_gate": 0.0,
        "link_ns_per_gate": 0.0,
        "ns_per_transfer": 0.0,
        "prefetches_per_gate": 0.0,
        "device_bytes": 0,
    }
    return Measured(**{**nothing, **numbers})


def measured(name: str, *groups: dict[str, Measured], take: str = "mean") -> Value:
    return MEASURES[name](Given(groups, tuple(groups[0]), take))


def timed(**times_ns: float) -> dict[str, Measured]:
    """Runs of one sequence whose decode steps, of 10 tokens, take so long."""
    return {name: run(decode_ns=[time], tokens=[10.0]) for name, time in times_ns.items()}


def test_the_fastest_leads_the_best_of_the_others_by_the_smallest_ratio() -> None:
    led = measured("decode_fastest", timed(a=10, b=30, c=20), timed(a=10, b=12, c=50))
    assert led == Value(pytest.approx(1.2), (2.0, pytest.approx(1.2)), (), True)
    lost = measured("decode_fastest", timed(a=10, b=30, c=20), timed(a=10, b=8, c=50))
    assert (lost.point, lost.holds) == (pytest.approx(0.8), False)
    assert measured("decode_fastest", timed(a=10, b=10)).holds is False


def test_the_most_hits_are_by_share_of_what_was_asked_for() -> None:
    group = {
        "a": run(found=[6.0, 3.0], asked=[8.0, 4.0]),
        "b": run(found=[10.0, 0.0], asked=[10.0, 10.0]),
    }
    assert measured("most_hits", group) == Value(1.5, (1.5,), (), True)


def test_faster_is_in_every_group_or_with_any_in_at_least_one() -> None:
    groups = (timed(ours=10, theirs=15), timed(ours=10, theirs=9))
    assert measured("decode_faster", *groups) == Value(1.2, (1.5, 0.9), (), False)
    assert measured("decode_faster", *groups, take="any") == Value(1.5, (1.5, 0.9), (), True)
    assert measured("decode_faster", timed(ours=10, theirs=10)).holds is False
    prompts = {"ours": run(prefill_ns=[2.0, 2.0]), "theirs": run(prefill_ns=[5.0, 1.0])}
    assert measured("prefill_faster", prompts) == Value(1.5, (1.5,), (), True)


def test_times_are_equal_to_the_nanosecond_in_every_group_or_not_at_all() -> None:
    assert measured("equal_times", timed(a=10, b=10), timed(a=7, b=7)) == Value(1, (), (), True)
    found = measured("equal_times", timed(a=10, b=10), timed(a=10, b=11))
    assert (found.point, found.holds) == (pytest.approx(1.05), False)


def test_each_arm_may_have_to_be_faster_than_the_one_before_it() -> None:
    found = measured("ever_faster", timed(a=12, b=6, c=5))
    assert found == Value(1.2, (2.0, 1.2), (), True)
    assert measured("ever_faster", timed(a=12, b=6, c=6)).holds is False
    assert measured("ever_faster", timed(a=3, b=2, c=1), timed(a=3, b=2, c=4)).holds is False


def test_gains_have_the_published_order_of_machines_and_of_models() -> None:
    """Theirs over ours: by machine Mixtral, then Phi."""

    def ordered(*gains: float) -> Value:
        groups = [timed(ours=10, theirs=10 * gain) for gain in gains]
        return measured("dynamic_order", *groups)

    found = ordered(4, 3, 3, 2, 2, 1)
    assert (found.point, found.points, found.holds) == (2.5, (4, 3, 3, 2, 2, 1), True)
    assert ordered(4, 3, 4, 3, 2, 1).holds is False, "two machines are equal"
    assert ordered(4, 3, 2, 1, 3, 2).holds is False, "the last machines are the wrong way round"
    assert ordered(3, 3, 2, 2, 1, 1).holds is False, "the models are equal"


def test_the_hosts_growth_is_in_bits_and_must_be_more_than_three() -> None:
    def grown(many: float, few: float) -> Value:
        arms = {"many": many, "few": few}
        group = {name: run(host_ns_per_prefill_gate=ns) for name, ns in arms.items()}
        return measured("host_growth", group)

    assert grown(160, 10) == Value(4, (), (), True)
    assert grown(80, 10) == Value(3, (), (), False)
    assert grown(80, 0) == Value(0, (), (), False)


def test_a_penalty_may_be_better_in_the_first_group_than_in_the_second() -> None:
    def group(ours: float, theirs: float) -> dict[str, Measured]:
        return {"lru": run(penalty=[ours, 0.0]), "lfu": run(penalty=[theirs / 2] * 2)}

    better = measured("penalty_better_in_first", group(3, 4), group(6, 4))
    assert better == Value(0.5, (0.75, 1.5), (), True)
    assert measured("penalty_better_in_first", group(3, 4), group(3, 4)).holds is False


def test_shares_and_reductions_are_of_theirs_and_a_gain_of_hits_of_fewer() -> None:
    arms = {"ours": 30.0, "theirs": 40.0}
    penalties = {name: run(penalty=[total / 2] * 2) for name, total in arms.items()}
    assert measured("penalty_reduction", penalties).point == pytest.approx(0.25)
    prompts = {name: run(prefill_ns=[total]) for name, total in arms.items()}
    assert measured("prefill_reduction", prompts).point == pytest.approx(0.25)
    assert measured("prefill_speedup", prompts).point == pytest.approx(4 / 3)
    hits = {name: run(found=[total / 2] * 2) for name, total in arms.items()}
    assert measured("hit_gain", hits).point == pytest.approx(-0.25)
    none = {"ours": run(penalty=[0.0]), "theirs": run(penalty=[1.0])}
    assert np.isnan(measured("penalty_reduction", none).point)


def test_of_several_groups_a_number_is_the_mean_the_best_or_all_of_them() -> None:
    groups = (timed(ours=10, theirs=15), timed(ours=10, theirs=20), timed(ours=10, theirs=7))
    points = (1.5, 2.0, pytest.approx(0.7))
    assert measured("decode_speedup", *groups).point == pytest.approx(1.4)
    best = measured("decode_speedup", *groups, take="max")
    assert (best.point, best.points, len(best.intervals)) == (2.0, (2.0,), 1)
    every = measured("decode_speedup", *groups, take="range")
    assert (every.point, every.points, len(every.intervals)) == (pytest.approx(1.4), points, 3)


@pytest.mark.parametrize(
    ("name", "numbers", "point"),
    [
        ("s_per_token", {"decode_ns": [3e9, 1e9], "tokens": [5, 3]}, 0.5),
        ("tokens_per_s", {"decode_ns": [3e9, 1e9], "tokens": [5, 3]}, 2),
        ("prefill_tokens_per_s", {"prefill_ns": [3e9, 1e9], "prompt_tokens": [9, 3]}, 3),
        ("loading_share", {"loading_share": 0.25}, 0.25),
        ("link_s_per_gate", {"link_ns_per_gate": 5e8}, 0.5),
        ("s_per_transfer", {"ns_per_transfer": 25e7}, 0.25),
        ("prefetches_per_gate", {"prefetches_per_gate": 1.5}, 1.5),
        ("device_gb", {"device_bytes": 2_500_000_000}, 2.5),
        ("covered_share", {"missed": [1.0, 2.0], "asked": [4.0, 8.0]}, 0.75),
    ],
)
def test_a_number_of_one_arm_is_in_its_unit(
    name: str, numbers: dict[str, Any], point: float
) -> None:
    groups = ({"a": run(**numbers)}, {"a": run(**numbers)})
    assert measured(name, *groups).point == pytest.approx(point)


def test_every_measure_of_runs_is_worked_by_hand_above() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in MEASURES if f'"{name}"' not in text] == []


def test_four_gates_at_once_take_the_launches_of_one() -> None:
    """By hand: a launch of 10 us, and 1 GB/s for the gate's 8,192 B: 8.192 us, or four times that."""
    operations = {8_192: 18_192.0, 32_768: 42_768.0}
    hardware = cast(
        Any, SimpleNamespace(compute=SimpleNamespace(operation_ns=lambda f, b, n: operations[b]))
    )
    found = stacked_gates(hardware, 512, 8)
    assert found == Value(42_768 / 18_192, (42_768 / 18_192, 4.0), (), False)
    flops: list[float] = []
    free = SimpleNamespace(operation_ns=lambda f, b, n: flops.append(f) or 10.0)
    assert stacked_gates(cast(Any, SimpleNamespace(compute=free)), 512, 8).holds is True
    assert flops == [8_192, 32_768]
