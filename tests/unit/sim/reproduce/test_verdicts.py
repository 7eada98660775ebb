"""Verdicts are counted by what they are on."""

from __future__ import annotations

from typing import Any

import pytest

from sim.reproduce.checks import worked
from sim.reproduce.experiments import Outcome
from sim.reproduce.kernels import kernel_ms
from sim.reproduce.roles import Claim, load_paper
from sim.reproduce.rules import Value
from sim.reproduce.verdicts import Verdict, _spreads, counts, partly, simulated_rows, verdict_of
from sim.results.labels import Labels


def verdict(extent: str, sign: bool | None, inside: bool | None, *ends: float) -> Verdict:
    claim = Claim(id="H999", where="1", says="x", role="transferred", extent=extent)
    spreads = ((ends[0], ends[1]),) if ends else ()
    return Verdict(
        claim,
        "misses",
        ends=spreads[0] if spreads else None,
        spreads=spreads,
        sign=sign,
        inside=inside,
    )


def test_of_claims_in_part_those_count_that_have_the_sign_or_lie_inside_a_narrow_interval() -> None:
    verdicts = [
        verdict("partly", True, True, 1.0, 2.0),
        verdict("partly", False, True, 1.0, 2.1),
        verdict("partly", None, False, 1.0, 1.5),
        verdict("partly", True, True),
        verdict("full", True, True, 1.0, 2.0),
        verdict("none", True, True, 1.0, 2.0),
    ]
    assert partly(verdicts) == {
        "claims": 4,
        "published sign or order": 2,
        "inside an interval of at most 2x": 1,
    }


@pytest.mark.parametrize(
    ("target", "points", "spreads"),
    [
        ((1.0, 2.0), [(1.5, 3.0), (1.25, 4.0, 2.0)], ((1.25, 1.5), (3.0, 4.0))),
        ((1.0,), [(1.5, 3.0), (1.25, 4.0)], ()),
        ((1.0, 2.0), [(1.5, 3.0), (1.25,)], ()),
        ((1.0, 2.0), [(), (1.25, 2.0)], ()),
    ],
)
def test_the_ends_of_a_range_spread_where_every_value_has_both(
    target: tuple[float, ...],
    points: list[tuple[float, ...]],
    spreads: tuple[tuple[float, float], ...],
) -> None:
    assert _spreads(target, [Value(1.0, one) for one in points]) == spreads


def test_a_claim_with_arithmetic_is_judged_by_its_rule_and_a_fitted_one_is_only_told() -> None:
    """The least speed-up of any GPU's kernel at half and at 70 %; that of an A6000 at 90 %."""
    paper = load_paper("floe")
    least = tuple(
        min(kernel_ms(one, 0) / kernel_ms(one, sparsity) for one in paper.kernels.values())
        for sparsity in (0.5, 0.7)
    )
    predicted = verdict_of(paper, paper.claim("L058"), {})
    assert predicted.value is not None
    assert (predicted.verdict, predicted.value.points) == ("holds", pytest.approx(least))
    assert predicted.value.point == pytest.approx(sum(least) / 2)
    fitted = verdict_of(paper, paper.claim("L025"), {})
    a6000 = paper.kernels["a6000"]
    assert fitted.simulated == pytest.approx(kernel_ms(a6000, 0) / kernel_ms(a6000, 0.9))
    assert fitted.verdict == ""
    other = verdict_of(paper, paper.claim("L035"), {})
    assert simulated_rows([predicted, fitted, other]) == {"holds": 1}


def test_the_line_of_floes_table_1_needs_no_run() -> None:
    assert worked(load_paper("floe"), {}) == [
        "Table 1: a line through each GPU's 0 and 90 % points; the 16 others are off by at most"
        " 7.8%, median 3.5%."
    ]


def claimed(role: str = "predicted", rule: str = "speedup", value: Any = 2.0) -> Claim:
    return Claim("H999", "1", "x", role, value=value, rule=rule, experiment="e")


LABELS = (("a", Labels(lossy="lossy")),)
FAILURES = {"z": "no room"}


@pytest.mark.parametrize(
    ("claim", "default", "grid", "expected"),
    [
        # 25 % around 2 are 1.605 to 2.492.
        (claimed(), Value(1.9), {}, ("holds", (1.9, 1.9), ((1.9, 1.9),), True, True, ())),
        (
            claimed(),
            Value(1.5),
            {"x": Value(0.9), "y": Value(2.1)},
            ("reachable", (0.9, 2.1), ((0.9, 2.1),), True, True, ("y",)),
        ),
        (
            claimed(),
            Value(0.9),
            {"x": Value(1.5)},
            ("misses", (0.9, 1.5), ((0.9, 1.5),), False, False, ()),
        ),
        (
            claimed(),
            Value(1.5),
            {"x": Value(2.6)},
            ("misses", (1.5, 2.6), ((1.5, 2.6),), True, True, ()),
        ),
        (
            claimed("fitted"),
            Value(1.9),
            {"x": Value(2.6)},
            ("", (1.9, 2.6), ((1.9, 2.6),), True, True, ()),
        ),
        (
            claimed(rule="order"),
            Value(1.9, (1.8, 2.2), (), True),
            {"x": Value(1.5, (1.5,), (), True)},
            ("holds", (1.5, 2.2), ((1.5, 2.2),), True, None, ("x",)),
        ),
        (
            claimed(rule="speedup_range", value=(1.5, 3.0)),
            Value(2.0, (1.2, 2.0)),
            {"x": Value(2.5, (1.1, 2.9))},
            ("misses", (1.1, 2.9), ((1.1, 1.2), (2.0, 2.9)), True, False, ()),
        ),
        (
            claimed(rule="time", value=9.0),
            Value(2.0),
            {},
            ("misses", (2.0, 2.0), ((2.0, 2.0),), None, False, ()),
        ),
        (
            claimed(rule="order", value=None),
            Value(2.0, (), (), False),
            {},
            ("misses", (2.0, 2.0), ((2.0, 2.0),), False, None, ()),
        ),
    ],
)
def test_a_verdict_has_the_default_the_ends_and_where_the_claim_is_met(
    claim: Claim, default: Value, grid: dict[str, Value], expected: tuple[Any, ...]
) -> None:
    outcome = Outcome(default, grid, FAILURES, LABELS)
    found = verdict_of(load_paper("floe"), claim, {"e": outcome})
    word, ends, spreads, sign, inside, met_at = expected
    assert found == Verdict(
        claim, word, default.point, default, ends, spreads, sign, inside, met_at, FAILURES, LABELS
    )


def test_a_claim_whose_experiment_did_not_run_is_missed_or_not_scored() -> None:
    paper, broken = load_paper("floe"), {"e": Outcome(None, {"x": Value(2.0)}, FAILURES)}
    assert verdict_of(paper, claimed(), broken) == Verdict(claimed(), "misses", failures=FAILURES)
    fitted = claimed("fitted")
    assert verdict_of(paper, fitted, broken) == Verdict(fitted, "", failures=FAILURES)
    assert verdict_of(paper, claimed(), {}) == Verdict(claimed(), "")


def test_an_interval_is_as_wide_as_its_widest_spread_and_none_from_0_on() -> None:
    wide = Verdict(claimed(), "misses", spreads=((1.0, 1.5), (2.0, 5.0), (3.0, 3.0)))
    assert wide.width == 2.5
    for low in (0.0, -1.0):
        assert Verdict(claimed(), "misses", spreads=((1.0, 1.5), (low, 5.0))).width is None
    assert Verdict(claimed(), "misses").width is None
    rows = [Verdict(claimed(), word) for word in ("holds", "", "holds")]
    assert counts([*rows, Verdict(claimed("input"), "")]) == {
        "predicted": {"holds": 2, "not scored": 1},
        "input": {"not scored": 1},
    }


@pytest.mark.parametrize(
    ("value", "scale", "misprint", "computed", "told"),
    [
        (1.5, 1.0, None, (3, 2), ("holds", 1.5)),
        (1.5, 0.001, None, (3, 2000), ("holds", 1.5)),
        (1.6, 1.0, "x", (3, 2), ("misprint", 1.5)),
        (1.6, 1.0, None, (3, 2), ("misses", 1.5)),
    ],
)
def test_an_identity_holds_or_is_a_misprint_that_is_known_or_a_miss(
    value: float,
    scale: float,
    misprint: str | None,
    computed: tuple[float, float],
    told: tuple[str, float],
) -> None:
    one = Claim(
        "H999",
        "1",
        "x",
        "identity",
        value=value,
        scale=scale,
        check="ratio",
        args=computed,
        misprint=misprint,
    )
    found = verdict_of(load_paper("floe"), one, {})
    assert (found.verdict, found.simulated) == (told[0], pytest.approx(told[1]))
