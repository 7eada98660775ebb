"""What it brings that slots shrink while a conversation grows, beside slots allocated once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.box import SIMPLE_HEAD
from rich.table import Table

from sim.answers.whatif import Growth
from sim.answers.whatif_bench import Bench
from sim.answers.whatif_questions import FIT_BUDGET, once_allocated
from sim.study.trials import Trial, slots_a_layer, tokens_per_s


@dataclass(frozen=True)
class Point:
    """A run of one context: what it decodes, and how many slots a layer it has."""

    tokens_per_s: float
    slots_a_layer: float


Curve = Mapping[float, Point]
"""Points by tokens of context."""


def growth_in(
    bench: Bench, words: Sequence[str], found: Mapping[float, Mapping[str, Trial]]
) -> tuple[Growth, ...]:
    """Slots that shrink beside slots allocated once, for each series whose longest context ran.

    ``found`` are the points of ``words``. Nothing where these give a budget, or one context.
    """
    if FIT_BUDGET not in words or len(found) < 2:
        return ()
    shares = {
        name: float(one.summary["budget"]["resident_share"])
        for name, one in found[max(found)].items()
    }
    others = [word for word in words if word != FIT_BUDGET]
    once, _ = bench.otherwise(once_allocated(bench.question, shares), others).at(found)

    def curve(name: str, of: Mapping[float, Mapping[str, Trial]]) -> Curve:
        return {value: _point(at[name]) for value, at in of.items() if name in at}

    return tuple(growth_of(name, curve(name, found), curve(name, once)) for name in shares)


def _point(one: Trial) -> Point:
    return Point(tokens_per_s(one), slots_a_layer(one))


def growth_of(series: str, shrinking: Curve, once: Curve) -> Growth:
    """What a conversation decodes that grows from the first to the last of these contexts."""
    contexts = sorted(shrinking)
    first, last = shrinking[contexts[0]], shrinking[contexts[-1]]
    return Growth(
        series,
        contexts[0],
        contexts[-1],
        first.slots_a_layer,
        last.slots_a_layer,
        mean_speed(shrinking),
        mean_speed(once),
    )


def mean_speed(curve: Curve) -> float:
    """Tokens a second from the first context to the last, where the time of a token is on a straight
    line from each context to the next (contract C176).
    """
    contexts = sorted(curve)
    spent_s = sum(
        (b - a) * (1 / curve[a].tokens_per_s + 1 / curve[b].tokens_per_s) / 2
        for a, b in pairwise(contexts)
    )
    return (contexts[-1] - contexts[0]) / spent_s


def growth_told(found: Sequence[Growth]) -> str:
    """Both ways in one sentence, each with its fastest bits."""
    shrinking = max(found, key=lambda one: one.shrinking_tokens_per_s)
    once = max(found, key=lambda one: one.once_tokens_per_s)
    times = shrinking.shrinking_tokens_per_s / once.once_tokens_per_s
    return (
        f"a conversation that grows from {once.first:,.0f} to {once.last:,.0f} tokens decodes"
        f" {shrinking.shrinking_tokens_per_s:.3g} tokens/s where slots shrink ({shrinking.series} a"
        f" number), and {once.once_tokens_per_s:.3g} where they are allocated once ({once.series}):"
        f" {times:.3g} times as fast"
    )


def growth_table(found: Sequence[Growth]) -> Table:
    """A row for each number of bits."""
    table = Table(
        "keys and values",
        "slots a layer: shrinking",
        "once",
        "tokens/s: shrinking",
        "once",
        title=f"a conversation from {found[0].first:,.0f} to {found[0].last:,.0f} tokens",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for one in found:
        table.add_row(
            one.series,
            f"{one.first_slots:.3g} to {one.last_slots:.3g}",
            f"{one.last_slots:.3g}",
            f"{one.shrinking_tokens_per_s:.3g}",
            f"{one.once_tokens_per_s:.3g}",
        )
    return table
