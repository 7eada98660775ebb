"""A selector that decides by scores alone is read for many gates at once, and asked about the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sim.engine.simulate import simulate
from sim.policies.base import ASK, Choice, PrecisionSelector, Resident
from sim.policies.precisions import ScoreThreshold
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.configure import configure
from sim.values.types import SKIP

THRESHOLDS = 0.6, 0.8


class AskedAlways(PrecisionSelector):
    """HOBBIT's table, written down once more, without a rule."""

    precisions = ("fp16", "int4")

    def __init__(self) -> None:
        self.asked = {"all": 0, "last line": 0}

    def select(self, choice: Choice, resident: Resident) -> Sequence[int]:
        return [
            self.of(score, choice.site, expert, resident)
            for score, expert in zip(choice.scores, choice.needs, strict=True)
        ]

    def of(self, score: float, site: int, expert: int, resident: Resident) -> int:
        self.asked["all"] += 1
        if score <= THRESHOLDS[0]:
            return 0
        if score <= THRESHOLDS[1]:
            return 1
        self.asked["last line"] += 1
        return 1 if any(resident.has(p, site, expert) for p in (0, 1)) else SKIP


def made(*words: str) -> Run:
    low, skip = THRESHOLDS
    config, name = configure(
        "system=hobbit",
        "trace.max_sequences=2",
        f"precision.low_above={low}",
        f"precision.skip_above={skip}",
        "output_dir=unused",
        *words,
    )
    return build(config, name)


@pytest.mark.parametrize(
    "words",
    [(), ("placement=decode_absent_on_cpu",), ("workload=static_4",), ("predictor.experts=1",)],
    ids=["simple gates", "gates in full", "unions", "forecasts that are cut"],
)
def test_a_run_by_the_rule_is_the_run_of_a_selector_that_is_asked_at_every_gate(
    words: tuple[str, ...],
) -> None:
    by_rule, asked = made(*words), made(*words)
    selector = AskedAlways()
    asked.controller.selector, asked.controller._rule = selector, None
    records = [simulate(run.controller, run.workload, run.durations) for run in (by_rule, asked)]
    assert records[0].makespan_ns == records[1].makespan_ns
    for column in ("lookup_keys", "lookup_outcomes", "lookup_wanted", "events"):
        assert getattr(by_rule.controller, column) == getattr(asked.controller, column), column
    assert selector.asked["all"] > selector.asked["last line"] > 100


class Own(ScoreThreshold):
    """Wants all at low precision, unlike the rule of its base."""

    def select(self, choice: Choice, resident: Resident) -> list[int]:
        return [1] * len(choice.needs)

    def permitted(self, score: float) -> tuple[int, ...]:
        return (1,)


def test_a_selector_from_elsewhere_is_asked_at_every_gate_whatever_rule_it_inherits() -> None:
    run = made(f"precision._target_={__name__}.Own")
    simulate(run.controller, run.workload, run.durations)
    assert set(run.controller.lookup_wanted) == {1}


def test_a_rule_that_says_ask_needs_somebody_to_ask() -> None:
    class Silent(PrecisionSelector):
        precisions = ("fp16",)

    with pytest.raises(NotImplementedError, match=r"Silent\.rule says ASK, and Silent has no"):
        Silent().decide(0, 0, made().controller)


def test_asking_is_no_precision_and_no_skip() -> None:
    assert ASK < 0
    assert ASK != SKIP
    selector = ScoreThreshold("fp16", "int4", *THRESHOLDS)
    assert selector.rule(made().workload.choices.scores[:50]).min() == ASK
