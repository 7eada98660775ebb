"""By how much one published run is faster than another of its group, there and here.

A group is one engine, machine and model. In ``claims/field.csv`` a run names its ``baseline``, as
its source does. The speed of a run depends on many things that no source tells. Most of them are
the same in both runs of a pair, so the *gain*, the ratio of two speeds, is what can be judged.

Gates are synthetic, and so are their hits. Where a source tells its hits, the run is simulated once
more with so many slots that its hits are those: then its bytes are right, and its time is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.table import Table

from sim.process.printing import NARROW, with_whole_words
from sim.reproduce.field import FITTED, Published, Row, rows

LEAST_DIFFERENCE = 0.05
"""A smaller difference of two measured speeds has no sign that would be asked for."""
MOST_WITH_HITS, MOST_WITHOUT = 0.1, 0.2
"""The median errors of gains that are asked for: where the source tells hits, and where not."""
BUDGET = "budget."
CLOSE_HITS, MOST_TRIES = 0.002, 12
"""Hits are as told if they differ by no more than this; so many budgets are tried for it."""
Again = Callable[[Row], Row]


@dataclass(frozen=True)
class Gain:
    """A run's tokens a second over those of its baseline, measured and simulated.

    ``hit_ratio``: what the simulated run had.
    """

    run: Published
    measured: float
    simulated: float
    hit_ratio: float

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1

    @property
    def has_sign(self) -> bool:
        """Whether the measured speeds differ by so much that the sign is asked for."""
        return abs(self.measured - 1) > LEAST_DIFFERENCE

    @property
    def is_sign_right(self) -> bool:
        return (self.measured > 1) == (self.simulated > 1)


@dataclass(frozen=True)
class Line:
    """A line of what is asked: what was found (a share), and the target."""

    what: str
    found: float
    target: float
    holds: bool


def check(runs: Sequence[Published]) -> None:
    """Raise ValueError, before anything is simulated, for a run that cannot be compared: its
    baseline is not there, or its hits are told and no word of it says how many slots it has.
    """
    names = {one.name for one in runs}
    for one in runs:
        if one.baseline and one.baseline not in names:
            raise ValueError(
                f"run {one.name} has the baseline {one.baseline}, which is no run here"
            )
        budgets = [word for word in one.words if word.startswith(BUDGET)]
        if one.hit_ratio is not None and len(budgets) != 1:
            raise ValueError(
                f"run {one.name} tells hits of {one.hit_ratio}, so its words need one"
                f" budget.resident_share=N or budget.slots_gib=N, not {' '.join(budgets) or 'none'}"
            )


def gains(found: Sequence[Row], again: Again) -> list[Gain]:
    """The gain of each run that names a baseline, in the order of the rows.

    Runs that gave a figure (`sim.reproduce.field.FITTED`) have none. Of a run that is there several
    times the last row counts, which is the one that most was fitted for. Its baseline is simulated
    with the same fitted figures: as a row that was fitted on the same runs, or as measured, if it is
    one of them. ``again``: a row as it is to be compared (`as_told`). Raise ValueError as `check` does.
    """
    check([row.published for row in found])
    last = {row.published.name: row for row in found}
    return [
        _gain(row, found, again)
        for row in found
        if row.published.baseline
        and row is last[row.published.name]
        and row.published.name not in FITTED
    ]


def _gain(row: Row, found: Sequence[Row], again: Again) -> Gain:
    one = row.published
    of_base = [other for other in found if other.published.name == one.baseline]
    measured = of_base[0].published.tokens_per_s
    alike = [other for other in of_base if other.published.fitted_on == one.fitted_on]
    if not alike and one.baseline == one.fitted_on:
        base = measured
    else:
        base = again((alike or of_base)[-1]).tokens_per_s
    own = again(row)
    return Gain(one, one.tokens_per_s / measured, own.tokens_per_s / base, own.hit_ratio)


def as_told(gates: Path, row: Row) -> Row:
    """The same run with so many slots that its hits are those its source tells, or nearest to them.

    The row itself where none are told. Fewer slots than a token needs are none that can be tried.
    """
    one, best = row.published, row
    if one.hit_ratio is None:
        return row

    def off(of: Row) -> float:
        return abs(of.hit_ratio - (one.hit_ratio or 0.0))

    (word,) = (word for word in one.words if word.startswith(BUDGET))
    name, _, value = word.partition("=")
    now, hits = float(value), row.hit_ratio
    low, high = 0.0, 1.0 if name.endswith("share") else max(1.0, 2 * now)
    for _ in range(MOST_TRIES):
        if off(best) <= CLOSE_HITS:
            break
        low, high = (now, high) if hits < one.hit_ratio else (low, now)
        now = (low + high) / 2
        words = tuple(f"{name}={now:.6g}" if other == word else other for other in one.words)
        try:
            (tried,) = rows(gates, [replace(one, words=words)])
        except ValueError:
            hits = -1.0
            continue
        hits, best = tried.hit_ratio, min(best, tried, key=off)
    return best


def asked_of(found: Sequence[Gain]) -> Iterator[Line]:
    """What is asked of gains: signs, and the median errors with and without hits that are told."""
    signs = [gain.is_sign_right for gain in found if gain.has_sign]
    if signs:
        right = sum(signs) / len(signs)
        what = f"{len(signs)} differences above {LEAST_DIFFERENCE:.0%}: signs that are right"
        yield Line(what, right, 1.0, right == 1)
    for told, with_hits, most in (
        ("with hits told", True, MOST_WITH_HITS),
        ("without", False, MOST_WITHOUT),
    ):
        errors = [
            abs(gain.error) for gain in found if (gain.run.hit_ratio is not None) == with_hits
        ]
        if errors:
            middle = median(errors)
            what = f"{len(errors)} gains {told}: median error"
            yield Line(what, middle, most, middle <= most)


def table(found: Sequence[Gain]) -> Table:
    """Gains side by side."""
    columns = ("run", "over", "measured", "simulated", "error", "sign", "hits told", "simulated")
    made = Table(*columns, **NARROW)
    for gain in found:
        sign, told = "", gain.run.hit_ratio
        if gain.has_sign:
            sign = "right" if gain.is_sign_right else "WRONG"
        made.add_row(
            gain.run.name,
            gain.run.baseline,
            f"{gain.measured:.2f}",
            f"{gain.simulated:.2f}",
            f"{100 * gain.error:+.1f} %",
            sign,
            "-" if told is None else f"{told:.3f}",
            f"{gain.hit_ratio:.3f}",
        )
    return with_whole_words(made)


def asked_table(lines: Sequence[Line]) -> Table:
    made = Table("line", "found", "asked", "", **NARROW)
    for line in lines:
        shares = f"{100 * line.found:.1f} %", f"{100 * line.target:g} %"
        made.add_row(line.what, *shares, "holds" if line.holds else "MISSED")
    return with_whole_words(made)
