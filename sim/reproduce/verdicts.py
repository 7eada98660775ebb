"""A verdict for every claim, from what was computed, and the counts of them."""

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
    """One claim's. ``ends``: the least and the largest simulated value over the grid.

    ``sign``: whether the default goes the published way (None: no such rule). ``inside``: whether
    the published number lies between ``ends`` or is met at a point. ``spreads``: ``ends``, or of a
    published range what each of its two ends is over the grid; ``width``: the larger over the
    smaller, of the wider spread, None where they differ in sign or there is none.
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
    """Of the runs at the documented default, by arm."""

    @property
    def width(self) -> float | None:
        if not self.spreads or any(low <= 0 for low, _ in self.spreads):
            return None
        return max(high / low for low, high in self.spreads)


def verdict_of(paper: Paper, claim: Claim, outcomes: Mapping[str, Outcome]) -> Verdict:
    """The claim's verdict; ``outcomes`` by experiment."""
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
    """Over the grid, of a published range its lower and its upper end; nothing of a single
    number.
    """
    if len(target) < 2 or any(len(value.points) < 2 for value in values):
        return ()
    lows, highs = [min(value.points) for value in values], [max(value.points) for value in values]
    return (min(lows), max(lows)), (min(highs), max(highs))


def counts(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """Verdicts by role; roles that are not scored have only their number. Never summed over
    roles.
    """
    table: dict[str, dict[str, int]] = {}
    for role in dict.fromkeys(v.claim.role for v in verdicts):
        table[role] = dict(
            Counter(v.verdict or "not scored" for v in verdicts if v.claim.role == role)
        )
    return table


def partly(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Of the claims that can be recomputed in part: how many, with the published sign or order,
    inside an interval.
    """
    rows = [v for v in verdicts if v.claim.extent == "partly"]
    narrow = [v for v in rows if v.inside and v.width is not None and v.width <= 2]
    return {
        "claims": len(rows),
        "published sign or order": sum(v.sign is True for v in rows),
        "inside an interval of at most 2x": len(narrow),
    }


def simulated_rows(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Verdicts of the claims that need simulated times or decisions."""
    return dict(Counter(v.verdict for v in verdicts if v.claim.needs == "simulation"))
