"""Judges every claim by what was computed, and counts the verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.reproduce.experiments import Outcome
from sim.reproduce.identities import compute
from sim.reproduce.roles import Claim, Paper
from sim.reproduce.rules import Value, agrees, has_published_sign, matches, published
from sim.results.labels import Labels

VERDICTS = {
    "holds": "met at the documented default",
    "reachable": "met only elsewhere in the grid of unstated parameters",
    "misses": "met nowhere in the grid",
    "misprint": "the paper's own numbers contradict it",
    "": "not scored",
}


@dataclass(frozen=True)
class Verdict:
    """The verdict on one claim.

    - ``ends``: the least and the largest simulated value over the grid.
    - ``spreads``: ``ends``; for a published range instead the least and largest value over the grid
      of its lower end, and those of its upper end.
    - ``width``: the larger over the smaller value of the widest spread; None where there is none,
      or where a value is not above 0.
    - ``sign``: whether the default goes the published way; None where the rule knows no sign.
    - ``inside``: whether the published number lies between ``ends`` or is met at a point.
    - ``met_at``: the points of the grid, other than the default, at which the claim is met.
    """

    claim: Claim
    verdict: str
    simulated: Any = None
    value: Value | None = None
    ends: tuple[float, float] | None = None
    spreads: tuple[tuple[float, float], ...] = ()
    sign: bool | None = None
    inside: bool | None = None
    met_at: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[tuple[str, Labels], ...] = ()
    """The labels of the runs at the documented default, under the names of their arms."""

    @property
    def width(self) -> float | None:
        if not self.spreads or any(low <= 0 for low, _ in self.spreads):
            return None
        return max(high / low for low, high in self.spreads)


def verdict_of(paper: Paper, claim: Claim, outcomes: Mapping[str, Outcome]) -> Verdict:
    """The verdict on ``claim``; ``outcomes`` are by experiment."""
    if claim.role == "identity":
        return _identity(paper, claim)
    if claim.check and claim.check != "ablation":
        return _closed(claim, compute(paper, claim))
    if claim.experiment is None or claim.experiment not in outcomes:
        return Verdict(claim, "")
    return _experiment(claim, outcomes[claim.experiment])


def _identity(paper: Paper, claim: Claim) -> Verdict:
    computed = compute(paper, claim)
    scaled = (
        tuple(one / claim.scale for one in computed)
        if isinstance(computed, tuple)
        else computed / claim.scale
    )
    found = "holds" if matches(claim, computed) else "misprint" if claim.misprint else "misses"
    return Verdict(claim, found, simulated=scaled)


def _closed(claim: Claim, computed: Any) -> Verdict:
    points = computed if isinstance(computed, tuple) else (computed,)
    value = Value(sum(points) / len(points), tuple(points))
    found = ("holds" if agrees(claim, value) else "misses") if claim.scored else ""
    return Verdict(claim, found, simulated=computed, value=value)


def _experiment(claim: Claim, outcome: Outcome) -> Verdict:
    values = outcome.values
    if outcome.default is None:
        return Verdict(claim, "misses" if claim.scored else "", failures=outcome.failures)
    met_at = tuple(name for name, value in outcome.grid.items() if agrees(claim, value))
    holds = agrees(claim, outcome.default)
    found = ("holds" if holds else "reachable" if met_at else "misses") if claim.scored else ""
    every = [
        point
        for value in values
        for point in ((value.points if len(value.points) > 1 else ()) or (value.point,))
    ]
    ends = (min(every), max(every))
    target = published(claim)
    inside = (
        bool(target)
        and claim.rule != "order"
        and (holds or bool(met_at) or all(ends[0] <= aim <= ends[1] for aim in target))
    )
    return Verdict(
        claim,
        found,
        simulated=outcome.default.point,
        value=outcome.default,
        ends=ends,
        spreads=_spreads(target, values) or (ends,),
        sign=has_published_sign(claim, outcome.default),
        inside=inside if claim.rule != "order" else None,
        met_at=met_at,
        failures=outcome.failures,
        labels=outcome.labels,
    )


def _spreads(target: Sequence[float], values: Sequence[Value]) -> tuple[tuple[float, float], ...]:
    """``Verdict.spreads`` of a published range; () for a single number."""
    if len(target) < 2 or any(len(value.points) < 2 for value in values):
        return ()
    lows, highs = [min(value.points) for value in values], [max(value.points) for value in values]
    return (min(lows), max(lows)), (min(highs), max(highs))


def counts(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """The numbers of verdicts by role; claims of roles that are not scored are only counted.

    They must never be summed over roles.
    """
    table: dict[str, dict[str, int]] = {}
    for role in dict.fromkeys(v.claim.role for v in verdicts):
        table[role] = dict(
            Counter(v.verdict or "not scored" for v in verdicts if v.claim.role == role)
        )
    return table


def partly(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many claims can be recomputed in part, and how many of them agree in weaker ways.

    Those have the published sign or order, or lie inside an interval over the grid.
    """
    rows = [v for v in verdicts if v.claim.extent == "partly"]
    narrow = [v for v in rows if v.inside and v.width is not None and v.width <= 2]
    return {
        "claims": len(rows),
        "published sign or order": sum(v.sign is True for v in rows),
        "inside an interval of at most 2x": len(narrow),
    }


def simulated_rows(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """The numbers of verdicts on claims that need simulated times or decisions."""
    return dict(Counter(v.verdict for v in verdicts if v.claim.needs == "simulation"))
