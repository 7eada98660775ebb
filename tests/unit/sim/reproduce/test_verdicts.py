"""Verdicts are counted by what they are on."""

from __future__ import annotations

import pytest

from sim.reproduce.roles import Claim
from sim.reproduce.rules import Value
from sim.reproduce.verdicts import Verdict, _spreads, partly


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
