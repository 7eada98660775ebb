"""Rows that do not agree are refused, each by its whole sentence; what lies on a bound is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers.stacks import both_stacks
from helpers.traces import make_trace, with_step
from sim.traces.checks import check_rows
from sim.traces.trace import Trace, TraceError, TraceSequence

REPAIR = "; capture or synthesise the trace again, or restore the file"
AWAY = "at a site that the row does not visit (prompts visit the encoder's, decoded rows the decoder's)"
Change = Callable[[Trace], Trace]


def refusal(trace: Trace) -> str:
    with pytest.raises(TraceError) as refused:
        check_rows(trace)
    text = str(refused.value)
    assert text.endswith(REPAIR)
    return text.removesuffix(REPAIR)


def column(name: str, change: Callable[[Any], Any]) -> Change:
    """Another column ``name``, or norm ``lookahead_<norm>``, made from the one that is there."""

    def changed(trace: Trace) -> Trace:
        if (norm := name.removeprefix("lookahead_")) != name:
            new = change(trace.lookahead[norm].copy())
            return replace(trace, lookahead={**trace.lookahead, norm: new})
        return replace(trace, **{name: change(getattr(trace, name).copy())})

    return changed


def at(name: str, place: Any, value: Any) -> Change:
    def put(values: Any) -> Any:
        values[place] = value
        return values

    return column(name, put)


def head(**change: Any) -> Change:
    return lambda trace: replace(trace, header=replace(trace.header, **change))


def counts(index: int, **change: int) -> Change:
    """Another number of tokens of one of the two sequences."""

    def changed(trace: Trace) -> Trace:
        sequences = list(trace.header.sequences)
        sequences[index] = replace(sequences[index], **change)
        return head(sequences=tuple(sequences))(trace)

    return changed


SHAPES: list[tuple[Change, str]] = [
    (column("step", lambda v: v.astype(np.int64)), "step is 'int64 [12]', must be int32 [12]"),
    (column("phase", lambda v: v.astype(np.int8)), "phase is 'int8 [12]', must be uint8 [12]"),
    (column("valid", lambda v: v[:-1]), "valid is 'bool [11]', must be bool [12]"),
    (column("ids", lambda v: v[:, :2]), "ids is 'int16 [12, 2, 2]', must be int16 [12, 3, 2]"),
    (
        column("logits", lambda v: v[..., :5]),
        "logits is 'float32 [12, 3, 5]', must be float32 [12, 3, 6]",
    ),
    (
        column("expert_norms", lambda v: v[..., :1]),
        "expert_norms is 'float32 [12, 3, 1]', must be float32 [12, 3, 2]",
    ),
    (
        column("active_shares", lambda v: v[..., :1]),
        "active_shares is 'float32 [12, 3, 2, 1]', must be float32 [12, 3, 2, 2]",
    ),
    (
        column("lookahead_renormed", lambda v: v[:, :, :1]),
        "lookahead_renormed is 'float32 [12, 3, 1, 6]', must be float32 [12, 3, 2, 6]",
    ),
    (
        head(lookahead=None),
        "lookahead_raw is 'float32 [12, 3, 2, 6]', must be float32 [12, 3, 0, 6]",
    ),
]
VALUES: list[tuple[Change, str]] = [
    (at("ids", (0, 0, 0), -2), "ids[0, 0, 0] is -2, must lie in -1..5"),
    (at("ids", (4, 2, 1), 6), "ids[4, 2, 1] is 6, must lie in -1..5"),
    (
        at("ids", (4, 2), 0),
        "ids[4, 2, 0] is 0, must not repeat in a row (the id follows in ascending order)",
    ),
    (at("weights", (1, 1, 1), np.nan), "weights[1, 1, 1] is nan, must be finite and >= 0"),
    (at("weights", (1, 1, 1), np.inf), "weights[1, 1, 1] is inf, must be finite and >= 0"),
    (at("weights", (0, 0, 0), -0.5), "weights[0, 0, 0] is -0.5, must be finite and >= 0"),
    (at("weights", (2, 1, 1), 0.5), "weights[2, 1, 1] is 0.5, must be 0 where the id is -1"),
    (at("logits", (3, 1, 5), np.nan), "logits[3, 1, 5] is nan, must be finite"),
    (
        at("expert_norms", (0, 2, 1), -1.0),
        "expert_norms[0, 2, 1] is -1.0, must be >= 0, or NaN where not recorded",
    ),
    (
        at("expert_norms", (0, 2, 1), np.inf),
        "expert_norms[0, 2, 1] is inf, must be >= 0, or NaN where not recorded",
    ),
    (
        at("active_shares", (8, 0, 1, 0), -0.25),
        "active_shares[8, 0, 1, 0] is -0.25, must lie in 0..1",
    ),
    (
        at("active_shares", (8, 0, 1, 0), 1.25),
        "active_shares[8, 0, 1, 0] is 1.25, must lie in 0..1",
    ),
    (at("phase", 3, 3), "phase[3] is 3, must be 0 (prefill), 1 (decode) or 2 (chunk)"),
    (at("step", 2, 0), "step[2] is 0, must not decrease"),
    (at("token", 5, -2), "token[5] is -2, must be >= -1"),
    (at("position", 0, -1), "position[0] is -1, must be >= 0 in a valid row"),
    (at("sequence", 0, 1), "sequence[0] is 1, must be in header.json"),
    # A row of the other sequence stands between: position 5, then 5 or 4 again.
    (at("position", 10, 5), "position[10] is 5, must increase inside a sequence"),
    (at("position", 10, 4), "position[10] is 4, must increase inside a sequence"),
    (
        at("lookahead_raw", (8, 0, 0, 1), np.inf),
        "lookahead_raw[8, 0, 0, 1] is inf, must be finite, or NaN where not recorded",
    ),
    (
        at("lookahead_raw", (9, 2, 0, 3), 1.0),
        "lookahead_raw 1 sites ahead[9, 2, 3] is 1.0, must be NaN past the last site",
    ),
    (
        at("lookahead_renormed", (9, 1, 1, 3), 1.0),
        "lookahead_renormed 2 sites ahead[9, 1, 3] is 1.0, must be NaN past the last site",
    ),
]


@pytest.mark.parametrize(("change", "told"), [*SHAPES, *VALUES])
def test_a_column_of_another_shape_or_range_is_refused_by_its_first_wrong_value(
    change: Change, told: str
) -> None:
    assert refusal(change(make_trace())) == f"routes.parquet: {told}"


@pytest.mark.parametrize(
    ("index", "stated", "told"),
    [
        (0, {"prompt_tokens": 4}, "prompt_tokens of sequence 0 is 4, must be 5"),
        (0, {"decode_tokens": 3}, "decode_tokens of sequence 0 is 3, must be 2"),
        (1, {"prompt_tokens": 3}, "prompt_tokens of sequence 7 is 3, must be 2"),
        (1, {"decode_tokens": 0}, "decode_tokens of sequence 7 is 0, must be 2"),
    ],
)
def test_tokens_of_a_sequence_are_the_valid_rows_of_the_file(
    index: int, stated: dict[str, int], told: str
) -> None:
    assert refusal(counts(index, **stated)(make_trace())) == (
        f"header.json: {told}, the valid rows of routes.parquet"
    )


@pytest.mark.parametrize(
    "change",
    [
        at("token", 0, -1),
        at("ids", (4, 2), -1),
        at("expert_norms", 0, 0.0),
        at("expert_norms", 0, np.nan),
        at("active_shares", 8, [0.0, 1.0]),
        at("step", slice(0, 6), 2),
        at("lookahead_raw", 8, np.nan),
    ],
)
def test_what_lies_on_a_bound_or_was_not_recorded_is_accepted(change: Change) -> None:
    trace = change(make_trace())
    check_rows(replace(trace, weights=np.where(trace.ids < 0, np.float32(0), trace.weights)))


def test_sequences_may_stand_in_any_order_and_have_no_row() -> None:
    first, last = make_trace().header.sequences
    empty = TraceSequence(3, "eval", "none", 0, 0)
    check_rows(head(sequences=(last, empty, first))(make_trace()))


def test_rows_of_counted_prompts_need_no_logits_and_no_sum_but_decoded_rows_do() -> None:
    trace = head(prefill="counts")(make_trace())
    trace = at("logits", slice(0, 8), np.nan)(trace)
    trace = column("weights", lambda v: np.where(np.arange(12)[:, None, None] < 8, v / 2, v))(trace)
    check_rows(trace)
    assert refusal(at("logits", (8, 0, 0), np.nan)(trace)) == (
        "routes.parquet: logits[8, 0, 0] is nan, must be finite"
    )
    assert refusal(at("weights", (8, 0), 0.25)(trace)) == (
        "routes.parquet: sum of weights at site 0, row[8] is 0.5, must be 1 within 1e-05, as the"
        " site's rule says"
    )


@pytest.mark.parametrize("make", [make_trace, both_stacks])
def test_a_trace_needs_no_column_that_is_optional(make: Callable[[], Trace]) -> None:
    bare = replace(make(), logits=None, lookahead={}, expert_norms=None, active_shares=None)
    check_rows(bare)


# Sums


def summing(pair: tuple[float, float], scale: float, error: float = 0.0, **other: Any) -> Trace:
    """All rows whole, with a sum of ``scale``; at site 1 the last row has the weights ``pair``."""
    trace = make_trace()
    ids = trace.ids.copy()
    ids[2, 1] = [0, 1]
    weights = np.full(trace.weights.shape, scale / 2, np.float32)
    weights[11, 1] = pair
    sites = list(trace.header.sites)
    for number, site in enumerate(sites):
        assert site.rule is not None
        rule = replace(site.rule, scale=scale, **(other if number == 1 else {}))
        sites[number] = replace(site, rule=rule, rule_weight_error=error)
    return head(sites=tuple(sites))(replace(trace, ids=ids, weights=weights))


@pytest.mark.parametrize("weight", ["norm", "softmax_topk"])
def test_a_sum_may_miss_its_scale_by_the_rules_error_and_half_a_step_for_each_weight(
    weight: str,
) -> None:
    """2 (0.01 + 0.5 / 2) is 0.52, and four times 1e-5 for the rounding of sums of 4."""
    check_rows(with_step(summing((2.25, 2.25), 4, 0.01, weight=weight), weights=0.5))
    check_rows(with_step(summing((1.75, 1.75), 4, 0.01, weight=weight), weights=0.5))
    for pair, shown in (((2.25, 2.28125), "4.53125"), ((1.75, 1.71875), "3.46875")):
        told = refusal(with_step(summing(pair, 4, 0.01, weight=weight), weights=0.5))
        assert told == (
            f"routes.parquet: sum of weights at site 1, row[11] is {shown}, must be 4 within 0.52,"
            " as the site's rule says"
        )


def test_rounding_is_allowed_in_proportion_to_a_scale_above_one() -> None:
    for scale, miss in ((4.0, 3e-5), (0.5, 8e-6)):
        check_rows(summing((scale / 2, scale / 2 + miss), scale))
    for scale, miss, allowed in ((4.0, 6e-5, "4e-05"), (0.5, 1.5e-5, "1e-05")):
        told = refusal(summing((scale / 2, scale / 2 + miss), scale))
        assert told.endswith(f", must be {scale:g} within {allowed}, as the site's rule says")


def test_sums_are_not_checked_where_the_rule_says_nothing_of_them() -> None:
    wrong = summing((0.5, 1.5), 1)
    assert "at site 1, row[11] is 2.0, must be 1" in refusal(wrong)
    check_rows(summing((0.5, 1.5), 1, weight="gather"))
    first, second, third = wrong.header.sites
    for skipped in (replace(second, rule=None), replace(second, rule_match=0.99)):
        check_rows(head(sites=(first, skipped, third))(wrong))
        # The sites after one that is left out are checked all the same.
        later = at("weights", (10, 2), 1.0)(wrong)
        assert "at site 2, row[10]" in refusal(head(sites=(first, skipped, third))(later))
    check_rows(summing((0.0, 0.0), 1))
    dropped = at("ids", (11, 1, 1), -1)(summing((0.25, 0.0), 1))
    check_rows(dropped)


# Stacks


def test_lookahead_ends_with_the_sites_stack() -> None:
    trace = make_trace()
    stacks = ("decoder", "decoder", "draft")
    sites = tuple(
        replace(site, stack=stack) for site, stack in zip(trace.header.sites, stacks, strict=True)
    )
    first = trace.lookahead["raw"][8, 0, 1, 0].item()
    second = trace.lookahead["raw"][8, 1, 0, 0].item()
    drafts = head(sites=sites)(trace)
    assert refusal(drafts) == (
        f"routes.parquet: lookahead_raw 1 sites ahead[8, 1, 0] is {second}, must be NaN past the"
        " last site of its stack"
    )
    drafts = at("lookahead_raw", np.s_[:, 1, 0], np.nan)(drafts)
    assert refusal(drafts) == (
        f"routes.parquet: lookahead_raw 2 sites ahead[8, 0, 0] is {first}, must be NaN past the"
        " last site of its stack"
    )
    encoder = at("lookahead_raw", (0, 1, 0, 2), 1.0)(both_stacks())
    assert refusal(encoder) == (
        "routes.parquet: lookahead_raw 1 sites ahead[0, 1, 2] is 1.0, must be NaN past the last"
        " site of its stack"
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            at("phase", 0, 2),
            "phase[0] is 2, must be 0 (prefill) or 1 (decode): an encoder reads a prompt whole",
        ),
        (
            at("step", 3, 0),
            "phase[3] is 1, must be the same in the whole step: prompts visit the encoder, decoded"
            " rows do not",
        ),
        (at("ids", (0, 2, 1), 0), f"ids[0, 2, 1] is 0, must be -1 {AWAY}"),
        (at("ids", (3, 1, 0), 4), f"ids[3, 1, 0] is 4, must be -1 {AWAY}"),
        (at("logits", (0, 3, 4), 0.0), f"logits[0, 3, 4] is 0.0, must be NaN {AWAY}"),
        (at("logits", (0, 1, 4), np.nan), "logits[0, 1, 4] is nan, must be finite"),
        (at("logits", (4, 3, 0), np.nan), "logits[4, 3, 0] is nan, must be finite"),
        (at("expert_norms", (4, 0, 1), 0.0), f"expert_norms[4, 0, 1] is 0.0, must be NaN {AWAY}"),
        (
            at("lookahead_raw", (3, 0, 0, 2), 1.0),
            f"lookahead_raw[3, 0, 0, 2] is 1.0, must be NaN {AWAY}",
        ),
        (
            at("active_shares", (0, 2, 1, 0), 0.5),
            f"active_shares[0, 2, 1, 0] is 0.5, must be NaN {AWAY}",
        ),
    ],
)
def test_a_row_has_nothing_at_the_sites_of_the_other_stack(change: Change, told: str) -> None:
    """Rows 0 to 2 are prompts, which visit sites 0 and 1; rows 3 and 4 are decoded."""
    assert refusal(change(both_stacks())) == f"routes.parquet: {told}"
    check_rows(both_stacks())
