"""What counts in a hit ratio: by hand, and by what no cache, selector or placement may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from omegaconf import DictConfig

from sim.policies.precisions import Fixed, ScoreThreshold, SkipLight
from sim.policies.reroutes import MaskedGate
from sim.results.frames import Frames
from sim.results.hits import asked, hit_ratio, hit_ratio_by_precision, miss_penalty, skip_codes
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.trace import Trace

Configure = Callable[..., DictConfig]

LOOKUPS = pl.DataFrame(
    [
        ("fp16", "hit", "never"),
        ("fp16", "miss", "never"),
        ("fp16", "late", "never"),
        ("fp16", "promoted", "never"),
        ("fp16", "skip", "never"),  # a placement left it out
        ("int4", "high_for_low", "never"),
        ("int4", "miss", "never"),
        ("int4", "cpu", "never"),
        ("int4", "hit", "if_absent"),
        (None, "skip", "if_absent"),
        (None, "skip", "always"),
    ],
    schema=["wanted", "outcome", "skips"],
    orient="row",
)


def test_a_hit_ratio_counts_every_need_but_those_that_are_left_out_whatever_is_there() -> None:
    """Three of ten.

    What the CPU computes, and what is left out for being absent, was looked for and not found.
    """
    assert len(asked(LOOKUPS)) == 10
    assert hit_ratio(LOOKUPS) == 3 / 10
    assert hit_ratio(LOOKUPS.filter(pl.col("skips") == "always")) is None


def test_at_a_precision_count_the_needs_that_want_it_whatever_is_there() -> None:
    """fp16: one of five. int4: one of three.

    A need that would be left out if it were absent counts at neither.
    """
    assert hit_ratio_by_precision(LOOKUPS, ("fp16", "int4")) == {"fp16": 1 / 5, "int4": 1 / 3}
    assert hit_ratio_by_precision(LOOKUPS, ("fp16",)) == {"fp16": hit_ratio(LOOKUPS)}


def test_a_miss_costs_its_bits_over_the_highest_per_need_that_counts() -> None:
    """A miss and a promotion at 16 of 16 bits, a miss at 4 of 16, over ten needs."""
    assert miss_penalty(LOOKUPS, ("fp16", "int4"), (16.0, 4.0)) == pytest.approx(
        (1 + 1 + 0.25) / 10
    )
    assert miss_penalty(LOOKUPS.clear(), ("fp16",), (16.0,)) is None


@pytest.mark.parametrize(
    ("selector", "codes"),
    [
        (Fixed("fp16"), [0, 0, 0]),
        (ScoreThreshold("fp16", "int4", 0.5, 0.9), [0, 0, 1]),
        (SkipLight("int4", 0.5), [0, 2, 2]),
        (MaskedGate("int4"), [1, 1, 1]),
    ],
)
def test_whether_a_need_is_left_out_never_if_absent_or_always_goes_by_its_score(
    selector: Any, codes: list[int]
) -> None:
    assert skip_codes(selector, pl.Series([0.2, 0.7, 0.95]).to_numpy()).tolist() == codes


# Whole runs


def decode_of(
    configure: Configure, trace: Trace, *words: str
) -> tuple[Frames, dict[str, Any], pl.DataFrame]:
    result = execute(
        build(configure("trace.max_sequences=1", "hardware.memory_gib=64", *words), "x", trace)
    )
    return result.frames, result.summary, result.frames.lookups.filter(pl.col("phase") == "decode")


@pytest.mark.thorough
def test_which_needs_count_does_not_depend_on_what_the_cache_holds(
    configure: Configure, bundled_trace: Trace
) -> None:
    """HOBBIT leaves a light expert out only where it is absent.

    So with more room it serves more of them.
    """
    few, many = (
        decode_of(configure, bundled_trace, "system=hobbit", f"budget.resident_share={share}")
        for share in (0.2, 0.9)
    )
    skips = [table.filter(pl.col("outcome") == "skip") for _, _, table in (few, many)]
    assert len(skips[0]) > len(skips[1])
    assert len(asked(few[2])) == len(asked(many[2])) == len(few[2])
    light = few[2].filter(pl.col("skips") == "if_absent")
    assert set(skips[0]["skips"]) == {"if_absent"}
    assert len(light) > len(skips[0])
    for _, summary, table in (few, many):
        found = table.filter(pl.col("outcome").is_in(["hit", "high_for_low"]))
        assert summary["hit_ratio"] == len(found) / len(table)


def test_what_is_left_out_whatever_is_there_counts_neither_way(
    configure: Configure, bundled_trace: Trace
) -> None:
    """AdapMoE asks for no second expert that weighs little."""
    _, summary, table = decode_of(
        configure, bundled_trace, "system=adapmoe", "precision.skip_above=0.7"
    )
    skipped = table.filter(pl.col("outcome") == "skip")
    assert 0 < len(skipped) == len(table.filter(pl.col("skips") == "always"))
    assert summary["hit_ratio"] == len(table.filter(pl.col("outcome") == "hit")) / (
        len(table) - len(skipped)
    )


def test_what_a_placement_leaves_out_for_being_absent_is_no_hit(
    configure: Configure, bundled_trace: Trace
) -> None:
    _, summary, table = decode_of(
        configure, bundled_trace, "system=lru", "placement=skip_absent", "budget.resident_share=0.4"
    )
    counts = dict(table["outcome"].value_counts().iter_rows())
    assert counts["skip"] > 0
    assert summary["hit_ratio"] == counts["hit"] / (counts["hit"] + counts["skip"])


def test_a_wasted_prefetch_counts_the_bytes_that_crossed_the_link_to_the_device_once(
    configure: Configure, bundled_trace: Trace
) -> None:
    frames, summary, _ = decode_of(
        configure,
        bundled_trace,
        "system=mixtral_offloading",
        "hardware=rtx4090_nvme",
        "budget.resident_share=0.4",
    )
    wasted = frames.transfers.filter(
        pl.col("outcome").is_in(["evicted_unused", "unused_at_end", "dropped"])
    )
    by_link = dict(wasted.group_by("link").agg(pl.col("moved_bytes").sum()).iter_rows())
    assert by_link["nvme"] > 0
    assert summary["prefetch"]["wasted_bytes"] == by_link["pcie"]
