"""What slots that shrink bring to a conversation: by hand, and on runs."""

from __future__ import annotations

import pytest

from sim.answers.whatif_growth import Point, growth_of, growth_told, mean_speed
from sim.study.trials import Trial, trial
from sim.whatif import Answer, answer, sentence
from unit.sim.test_whatif import Inline

WORDS = ["system=lru", "trace.max_sequences=1", "workload.prompt_tokens=4"]
SHORT = [*WORDS, "workload.decode_tokens=4"]


def at(*speeds: float) -> dict[float, Point]:
    return {
        c: Point(s, 8 - c / 1000) for c, s in zip((1000.0, 2000.0, 4000.0), speeds, strict=True)
    }


# Contracts: C176
def test_the_speed_of_a_conversation_is_its_tokens_over_its_time() -> None:
    """0.1, 0.2 and 0.25 s a token: 150 s for the first thousand, and 450 s for the next two."""
    assert mean_speed(at(10, 5, 4)) == pytest.approx(3000 / 600)
    assert mean_speed(dict(reversed(at(10, 5, 4).items()))) == pytest.approx(5)
    grown = growth_of("4.5 bits", at(10, 5, 4), at(5, 4, 4))
    assert (grown.first_slots, grown.last_slots) == (7, 4)
    assert grown.once_tokens_per_s == pytest.approx(3000 / (225 + 500))


# Contracts: C176
def test_each_way_has_a_best_split_of_its_own() -> None:
    few, own = (
        growth_of("4.5 bits", at(9, 5, 4), at(5, 5, 5)),
        growth_of("16 bits", at(10, 9, 8), at(1, 1, 1)),
    )
    told = growth_told([few, own])
    assert "8.78 tokens/s where slots shrink (16 bits a number)" in told
    assert "and 5 where they are allocated once (4.5 bits): 1.76 times as fast" in told


def kv(*words: str, values: tuple[float, ...]) -> Answer:
    return answer("kv", [*SHORT, *words], values, Inline())


# Contracts: C153, C176
@pytest.mark.thorough
def test_what_is_allocated_once_has_the_slots_of_the_last_context_at_each() -> None:
    """The slow run is made here by its own words, and both ways end alike."""
    found = kv(values=(4096, 131072))
    grown = {one.series: one for one in found.growth}
    rows = {(row.value, row.series): row for row in found.rows}
    assert set(grown) == {"4.5 bits", "8.5 bits", "16 bits"}
    for name, one in grown.items():
        assert one.last_slots == rows[131072, name].slots_a_layer < one.first_slots
    share = run_of("workload.context_tokens=131072", "budget=fit").summary["budget"]
    fixed = run_of(
        "workload.context_tokens=4096", f"budget.resident_share={share['resident_share']!r}"
    )
    last = rows[131072, "16 bits"].tokens_per_s
    once = 2 / (1 / fixed.summary["decode_tokens_per_s"] + 1 / last)
    assert grown["16 bits"].once_tokens_per_s == pytest.approx(once)
    shrinking = 2 / (1 / rows[4096, "16 bits"].tokens_per_s + 1 / last)
    assert grown["16 bits"].shrinking_tokens_per_s == pytest.approx(shrinking)
    assert growth_told(found.growth) in sentence(found, "lru")


def run_of(*words: str) -> Trial:
    return trial((*SHORT, *words))


# Contracts: C176
@pytest.mark.thorough
def test_a_precision_that_does_not_hold_the_last_context_is_left_out() -> None:
    assert [one.series for one in kv(values=(4096, 400_000)).growth] == ["4.5 bits", "8.5 bits"]


# Contracts: C176
@pytest.mark.thorough
def test_with_a_budget_of_ones_own_or_one_context_nothing_grows() -> None:
    assert not kv("budget.resident_share=0.25", values=(4096, 65536)).growth
    assert not kv(values=(4096,)).growth
