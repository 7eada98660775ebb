"""The audit's rules for intervals, sizes and slots that shrink, on files that are written by hand."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any

import polars as pl
import pytest
from scipy.special import stdtrit

from helpers.audited import files, given
from sim.audit import growth, intervals, sizes
from sim.audit.files import RunFiles
from sim.audit.rules import Between, Holds, Left
from sim.audit.sizes import BITS, mean_bits

near = pytest.approx

# ---- intervals


def test_the_parts_of_a_sequence_are_its_tokens_its_times_and_its_share_of_the_lookups() -> None:
    """Step 2 is of both: 40 ns, four needs asked for, two found. Step 3 is the first one's alone.
    So both are one observation, at the first one.
    """
    found = intervals.parts(files())
    assert {key: tuple(map(near, both)) for key, both in found.items()} == {
        "decode_tokens_per_s": ([3e9, 0, 0], [70, 0, 0]),
        "tpot_s": ([105e-9, 0, 0], [2, 0, 0]),
        "ttft_s": ([205e-9, 0, 190e-9], [2, 0, 1]),
        "latency_s": ([375e-9, 0, 190e-9], [2, 0, 1]),
        "prefill_tokens_per_s": ([5e9, 0, 1e9], [150, 0, 15]),
        "hit_ratio": ([2, 0, 0], [7, 0, 0]),
    }


def test_a_batch_is_all_that_share_steps_if_only_through_others_here_too() -> None:
    """Steps of 3 with 1, 5 with 4, and 1 with 4; 2 and 9 are alone."""
    steps = [(0, 3), (0, 1), (1, 5), (1, 4), (2, 2), (7, 1), (7, 4), (8, 4), (9, 9)]
    run = replace(
        files(),
        tokens=pl.DataFrame(steps, ["step", "sequence"], orient="row"),
        sequences=pl.DataFrame({"sequence": [2, 3, 1, 9, 4, 5]}),
    )
    assert intervals.first_of_batch(run) == [0, 1, 1, 3, 1, 1]
    run = replace(run, tokens=run.tokens.filter(pl.col("step") != 7))
    assert intervals.first_of_batch(run) == [0, 1, 1, 3, 4, 4]


def test_two_equal_sequences_have_one_degree_of_freedom_and_a_machine_has_its_systems() -> None:
    """Shares of 0.5 each. The errors seen are 0.2: 4 x 0.2^2 is their square."""
    above, below = [4, 6, 0], [6, 4, 0]
    reach = stdtrit(1, 0.975) * 0.4
    alone = (exp(-reach), exp(reach))
    assert intervals.interval(above, below) == near(alone)
    assert intervals.interval(above, below, [(2, 0.0)]) == near(alone)
    assert intervals.of_share([4, 6], [10, 10]) == near([end / (1 + end) for end in alone])
    # 0.16 + 0.09, of (0.25^2) / (0.16^2 / 1 + 0.09^2 / 2) degrees.
    reach = stdtrit(0.0625 / 0.02965, 0.975) * 0.5
    told = intervals.interval(above, below, [(2, 0.3)])
    assert told == near((exp(-reach), exp(reach)))
    # Three machines of 0.5 beside the two systems: (2 x 0.09 + 3 x 0.25) / 5 = 0.186, of 5 degrees.
    reach = stdtrit(0.346**2 / (0.16**2 + 0.186**2 / 5), 0.975) * 0.346**0.5
    told = intervals.interval(above, below, [(2, 0.3), (3, 0.5)])
    assert told == near((exp(-reach), exp(reach)))


def test_an_interval_is_expected_of_what_was_told_and_with_the_machine_where_it_was_compared() -> (
    None
):
    told: dict[str, Any] = {
        "overrides": [],
        "hit_ratio": 0.5,
        "prefill_tokens_per_s": 1.0,
        "decode_tokens_per_s": 1.0,
        "tpot_s": {"mean": 1.0},
        "ttft_s": {"mean": None},
        "latency_s": {"mean": 1.0},
    }
    error = {"_target_": "x", "log_error": 0.3, "systems": 2}
    machine = {"links": {"pcie": {}}, "validated": error}
    # Nobody shares a step. All lookups are then the first one's, and hits have no interval.
    step = pl.when((pl.col("step") == 2) & (pl.col("sequence") == 1)).then(5).otherwise("step")
    apart = files().tokens.with_columns(step=step.cast(files().tokens["step"].dtype))
    parts = intervals.parts(replace(files(), tokens=apart))
    value = {
        "decode_tokens_per_s": 3e9 / 110,
        "tpot_s": 52.5e-9,
        "latency_s": 565e-9 / 3,
        "prefill_tokens_per_s": 6e9 / 165,
        "hit_ratio": 2 / 7,
    }
    expected: dict[str, Any] = {}
    for name in parts:
        of = intervals.of_share if name == "hit_ratio" else intervals.interval
        ends = of(*parts[name])
        assert (ends is None) == (name == "hit_ratio")
        if name in ("ttft_s", "hit_ratio"):
            expected[f"ci95.{name}"] = None
            continue
        assert ends is not None
        expected[f"ci95.{name}"] = value[name]
        expected |= {f"ci95.{name}[{place}]": near(end) for place, end in enumerate(ends)}
    plain = dict(expected)
    for name in ("decode_tokens_per_s", "tpot_s"):
        ends = intervals.interval(*parts[name], [(2, 0.3)])
        assert ends is not None
        expected[f"calibration.ci95.{name}"] = value[name]
        expected |= {
            f"calibration.ci95.{name}[{place}]": near(end) for place, end in enumerate(ends)
        }

    def found(run: RunFiles) -> dict[str, Any]:
        return {
            key: near(one.value) if isinstance(one, Holds) else one
            for key, one in given(intervals.rules(run)).items()
        }

    def run(**given: Any) -> RunFiles:
        return replace(files(**given), tokens=apart)

    assert found(run(summary=told, hardware=machine)) == expected
    assert found(run(summary=told | {"real": {}}, hardware=machine)) == plain
    assert found(run(summary=told)) == plain
    # One sequence of one token: nothing to compare, and no time between tokens.
    one = replace(
        files(summary=told),
        sequences=files().sequences[2:],
        tokens=files().tokens[5:],
        lookups=files().lookups[:0],
    )
    assert found(one) == {f"ci95.{name}": None for name in parts}


# ---- sizes


def test_the_bits_of_a_weight_are_those_that_each_format_stores() -> None:
    """fp8: a scale of 32 bits for 128 x 128. Q4_K_M: half of the down projections are Q6_K."""
    assert {name: mean_bits(name) for name in [*BITS, "odd"]} == {
        "fp32": 32,
        "fp16": 16,
        "bf16": 16,
        "int8": 8,
        "int4": 4,
        "int2": 2,
        "fp8": 8.001953125,
        "mxfp4": 4.25,
        "mxfp4_moe": 4.25,
        "int4_g32": 4.5,
        "int4_g128": 4.125,
        "nvfp4": 4.5,
        "hqq4_g64": 4.5,
        "hqq2_g64": 2.5,
        "hqq2_g16": 3,
        "q8_0": 8.5,
        "q6_k": 6.5625,
        "q5_k_m": near((5.5 + 5.5 + 6.03125) / 3),
        "q4_k_m": near((4.5 + 4.5 + 5.53125) / 3),
        "q4_0": 4.5,
        "q3_k_m": near((3.4375 + 3.4375 + 4.5625) / 3),
        "q2_k": near((2.625 + 2.625 + 3.4375) / 3),
        "iq4_xs": 4.25,
        "iq3_xxs": 3.0625,
        "iq2_xxs": near((2.0625 + 2.0625 + 2.1328125) / 3),
        "floe": near(32 / 3),
        "odd": None,
    }


@pytest.mark.parametrize(
    ("precision", "model", "size"),
    [
        ("int8", {}, 30),
        ("int8", {"expert_matrices": 2}, 20),
        ("int8", {"expert_biases": 3}, 36),  # biases of 16 bits
        ("fp32", {"expert_biases": 3}, 132),  # biases of 32 bits
        ("int2", {"expert_biases": 1}, 10),  # 7.5 and 2, up
        ("floe", {}, 40),
        ("floe", {"expert_matrices": 2}, 20),  # up and down, of which up never moves
        ("q4_k_m", {}, 19),  # (45 + 45 + 55.3125) / 8 = 18.2, up
    ],
)
def test_an_expert_takes_its_matrices_at_their_bits_and_its_biases(
    precision: str, model: dict[str, int], size: int
) -> None:
    run = files(
        model={"sites": 2, "experts": 3, "hidden": 2, "expert_intermediate": 5} | model,
        summary={"budget": {"slots": {precision: 1}, "device_bytes": 1}},
    )
    assert sizes.variant_bytes(run, precision, 1) == size


MODEL = {"sites": 2, "experts": 4, "null_experts": 1, "hidden": 2, "expert_intermediate": 5}


@pytest.mark.parametrize(
    ("budget", "allowed", "share"),
    [
        ({"resident_share": 0.7}, 252, 0.7),  # 0.7 is less than 7 / 10 in binary
        ({"resident_share": 1.5}, 360, 1.5),
        ({"slots_gib": 90.4 / 2**30, "resident_share": 0.1}, 90, 90 / 360),
        ({"slots_gib": 400 / 2**30}, 360, 1.0),
    ],
)
def test_a_budget_is_a_share_of_all_experts_with_weights_and_no_more_than_they(
    budget: dict[str, float], allowed: int, share: float
) -> None:
    """Two sites of three experts, of 60 and 15 bytes. Two slots of 60 and three of 15 are used."""
    told = {"budget": {"slots": {"fp16": 2, "int4": 3}, "device_bytes": 170}}
    sections: dict[str, Any] = {"model": MODEL, "budget": budget, "summary": told}
    pooled = given(sizes.rules(files(cache={"scope": "global"}, **sections)))
    expected = {
        "storage_bytes": 6 * 75,
        "budget.allowed_bytes": allowed,
        "budget.resident_share": near(share),
        "budget.slot_bytes.fp16": 60,
        "budget.slot_bytes.int4": 15,
        "budget.initial_bytes": Left,
        "budget.device_bytes": Between(165, allowed),
    }
    assert pooled == {
        **expected,
        "budget.slots.fp16": Between(0, 2),
        "budget.slots.int4": 0,
    }
    divided = given(sizes.rules(files(cache={"scope": "site"}, **sections)))
    assert divided == {**expected, "budget.slots": Left}


# ---- slots that shrink


LEDGER = {
    "tokens": [2, 4, 6, 4, 1],
    "kv_bytes": [20, 40, 60, 40, 10],
    "slot_bytes": [100, 80, 60, 60, 90],
}


def shrinking(ledger: dict[str, list[int]] = LEDGER, **config: Any) -> RunFiles:
    return replace(files(**config), ledger=pl.DataFrame(ledger))


def test_tokens_that_are_held_are_those_of_running_sequences_at_their_furthest() -> None:
    """The first has 2 to 4 in steps 0 to 3, the second 2 to 3 in steps 1 and 2, the third one."""
    run = files()
    assert growth.held_by_step(run) == [2, 4, 6, 4, 1]
    # As if each had ended at ten.
    assert growth.held_by_step(files(workload={"context_tokens": 10})) == [8, 17, 19, 10, 10]
    drafted = run.tokens.with_columns(
        drafts=pl.Series([0, 0, 3, 0, 2, 0]), new_tokens=pl.Series([0, 0, 2, 1, 3, 1])
    )
    # Of three drafts two were wrong, and are held until the sequence ends; of two none.
    assert growth.held_by_step(replace(run, tokens=drafted)) == [2, 4, 8, 5, 1]


@pytest.mark.parametrize(
    ("workload", "plan"),
    [({}, [Between(120, 120)]), ({"arrivals_per_s": 2.0}, []), ({"arrivals_s": [0.0, 1.0]}, [])],
)
def test_slots_have_what_the_tokens_leave_and_what_was_planned_where_all_are_there(
    workload: dict[str, Any], plan: list[Between]
) -> None:
    """120 B in all, of which six tokens take 60 and one takes 10; up to four pools round down."""
    rules = list(growth.rules(shrinking(workload=workload)))
    assert [(one.key.removeprefix("budget.growing."), given([one])[one.key]) for one in rules] == [
        ("least_bytes", Between(56, 64)),
        ("most_bytes", Between(106, 114)),
        *(("least_bytes", bytes_) for bytes_ in plan),
        ("trimmed", Between(0, 1)),
    ]
    assert list(growth.rules(files())) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tokens": [2, 4, 6, 4, 2]}, "tokens of ledger.parquet that tokens.parquet does not have"),
        ({"kv_bytes": [20, 40, 60, 41, 10]}, "kv_bytes that are not in the proportion of tokens"),
        ({"slot_bytes": [100, 80, 81, 81, 90]}, "slot_bytes that grow with kv_bytes"),
    ],
)
def test_a_ledger_that_disagrees_with_itself_or_the_tokens_is_told(
    change: dict[str, list[int]], why: str
) -> None:
    assert given(growth.rules(shrinking(LEDGER | change))) == {"budget.growing.least_bytes": why}


def windowed(kv_bytes: list[int], *windows: int, plan: int = 60) -> list[Any]:
    """The rules of a run of four layers whose windows are a pattern; at most 60 B of slots."""
    held = {"kv_bytes": kv_bytes, "slot_bytes": [plan + 60 - size for size in kv_bytes]}
    run = shrinking(LEDGER | held, workload={})
    run.config["model"] = {**run.config["model"], "sites": 4, "windows": list(windows)}
    return list(growth.rules(run))


def test_layers_with_a_window_hold_the_last_tokens_of_each_sequence_only() -> None:
    """Of 2, 2 + 2, 3 + 3, 4 and 1 tokens the last two: 2, 4, 4, 2 and 1, which half the layers hold."""
    assert growth.held_by_step(files(), 2) == [2, 4, 4, 2, 1]
    rules = windowed([20, 40, 50, 30, 10], 2, 0)
    assert [type(given([one])[one.key]) for one in rules] == [Between] * 4
    assert given(windowed([20, 40, 51, 30, 10], 2, 0)) == {
        "budget.growing.least_bytes": "kv_bytes that are not in the proportion of tokens"
    }
    assert given(windowed([20, 40, 60, 40, 10], 2, 0)) == given(
        windowed([20, 40, 51, 30, 10], 2, 0)
    ), "as if no layer had a window"


def test_layers_that_are_fullest_in_different_steps_leave_a_little_in_each() -> None:
    """One sequence of five tokens, then two of two: layers hold 5 or 4, of the last two 2 or 4."""
    run = files(workload={})
    rows = [(0, 0, 4), (1, 1, 1), (1, 2, 1)]
    tokens = pl.DataFrame(rows, ["step", "sequence", "position"], orient="row")
    ledger = {"tokens": [5, 4], "kv_bytes": [70, 80], "slot_bytes": [20, 10]}
    run = replace(run, tokens=tokens, ledger=pl.DataFrame(ledger))
    run.config["model"] = {**run.config["model"], "sites": 2, "windows": [2, 0]}
    (plan,) = [one.expected for one in growth.rules(run) if "plan" in getattr(one, "text", "")]
    assert isinstance(plan, Between)
    assert plan.high - plan.low == 10, "what 5 and 4 take, of which 4 and 4 is the most at once"


# Contracts: C186, C188
def test_layers_that_draft_hold_what_the_last_one_does() -> None:
    """Two layers of a window of two, and then none; the second drafts twice, so that three hold all."""
    drafts = {"draft_tokens": 1, "draft_layers": 2, "draft_experts": "offloaded"}
    held = {"kv_bytes": [8, 16, 22, 14, 4], "slot_bytes": [74, 66, 60, 68, 78]}
    run = shrinking(LEDGER | held, workload=drafts)
    run.config["model"] = {**run.config["model"], "sites": 2, "windows": [2, 0]}
    assert len(list(growth.rules(run))) > 1
    run.config["workload"] = {**drafts, "draft_experts": "on_device"}
    assert "proportion" in str(given(growth.rules(run)))
