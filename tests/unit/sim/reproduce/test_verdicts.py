"""Verdicts are counted by what they are on."""

from __future__ import annotations

import pytest

from sim.reproduce.checks import worked
from sim.reproduce.kernels import kernel_ms
from sim.reproduce.roles import Claim, load_paper
from sim.reproduce.rules import Value
from sim.reproduce.verdicts import Verdict, _spreads, partly, simulated_rows, verdict_of


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
