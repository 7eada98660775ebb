"""Lines of worked checks: what is above what, what is not sure, and where an order does not hold."""

from __future__ import annotations

import pytest

from sim.reproduce.checks import worked
from sim.reproduce.experiments import Outcome
from sim.reproduce.roles import load_paper
from sim.reproduce.rules import Value


def lines(name: str, **outcomes: Outcome) -> list[str]:
    return worked(load_paper(name), outcomes)


@pytest.mark.parametrize(
    ("low", "high", "mark"),
    [
        (0.01, 0.09, ""),
        (-0.09, -0.01, ""),
        (-0.01, 0.09, " ~"),
        (0.0, 0.09, " ~"),
        (-0.09, 0.0, " ~"),
    ],
)
def test_a_reduction_whose_interval_has_zero_in_it_is_marked(
    low: float, high: float, mark: str
) -> None:
    sure = (0.02, 0.06)
    found = Value(0.04, (0.05, 0.03, 0.04, 0.04), ((low, high), sure, sure, sure))
    (told,) = lines("hobbit", gain_over_lfu=Outcome(found))
    first, second, *_ = told.removeprefix("Miss penalty below LFU's: ").split("; ")
    assert first == f"mixtral_16 +5.0% [{low:+.1%}, {high:+.1%}]{mark}"
    assert second == "phi_16 +3.0% [+2.0%, +6.0%]"


@pytest.mark.parametrize(
    ("mixed", "word"), [(1.3, "above"), (1.2, "NOT above"), (1.1, "NOT above")]
)
def test_mixed_precision_is_above_prefetch_alone_or_not(mixed: float, word: str) -> None:
    alone, both = Outcome(Value(1.2)), Outcome(Value(mixed))
    (told,) = lines("hobbit", prefetch_alone_mixtral=alone, prefetch_mixed=both)
    assert told == f"Prefetch alone 1.200x, with mixed precision {mixed:.3f}x: {word} it."
    assert lines("hobbit", prefetch_mixed=both) == []


def test_a_share_of_loading_is_told_as_odds_beside_the_published_ones() -> None:
    """85.5 over 14.5, and 94.5 over 5.5."""
    shares = {"loading_share_4090": Outcome(Value(0.8)), "loading_share_orin": Outcome(Value(0.75))}
    assert lines("hobbit", **shares) == [
        "Load : compute on the 4090 4.0 : 1, published 5.9 : 1.",
        "Load : compute on the Orin 3.0 : 1, published 17.2 : 1.",
    ]
    assert lines("hobbit", loading_share_4090=Outcome(None)) == []


def test_where_the_order_of_a_ladder_does_not_hold_is_named() -> None:
    good, bad = Value(1.2, holds=True), Value(0.9, holds=False)
    (told,) = lines("fate", ladder=Outcome(good, {"slow": bad, "fast": good}))
    assert told.endswith("its order holds at 2 of 3 points; not at slow (least step 0.90x).")
    (told,) = lines("fate", ladder=Outcome(good, {}))
    assert told.endswith("its order holds at 1 of 1 points.")
    assert lines("fate") == []


def test_an_ablation_is_told_by_how_much_it_is_off() -> None:
    """0.789 / 3.55 = 0.222 s; 113.2 MB in the other 0.567 s; with 3.24 of 32 bits 0.112 s are left
    of 0.392 to dequantise them.
    """
    found = {"ablation_preload": Outcome(Value(0.5)), "ablation_buffer": Outcome(Value(0.2))}
    drawn = (
        "Ablation: compute 0.222 s a token, read 200 MB/s, dequantisation 1.01 GB/s from 0.789 and"
        " 0.392 s."
    )
    assert lines("edgemoe", **found) == [
        drawn,
        "  E078: 0.500 s, published 0.305 s (+64%).",
        "  E079: 0.200 s, published 0.245 s (-18%).",
    ]
    assert lines("edgemoe") == [drawn]
