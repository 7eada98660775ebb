"""A comparison of two runs in words: where the time of either went, and who is faster."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from sim.answers.comparison import COMPUTE, Comparison
from sim.results.labels import caption
from sim.results.paired import TOO_FEW
from sim.results.stalls import NOTHING_TO_DO
from sim.values.units import GIB, NS_PER_S

WAITS = {
    "demand": "for demand",
    "behind_demand": "behind other demands",
    "behind_prefetch": "behind prefetches",
    "late_prefetch": "for late prefetches",
    "storage": "for storage",
    "no_slot": "for a slot",
    "dense": "for dense blocks, or keys and values",
    "cpu_join": "for the CPU",
    "host": "for the host",
    "predictor": "for the predictor",
    NOTHING_TO_DO: "for requests",
}
"""Each of `STALL_PARTS`, as one waits."""


def table_of(found: Comparison) -> Table:
    """The table of both runs' time and its difference, part by part."""
    a, b = map(escape, found.names)
    table = Table(
        "time of",
        f"A: {a} (s)",
        f"B: {b} (s)",
        "A - B (s)",
        title="makespan",
        caption=escape(caption(zip(("A", "B"), found.labels, strict=True))),
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for part, (ours, theirs) in found.parts.items():
        if ours or theirs:
            name = part if part == COMPUTE else f"waiting: {part.replace('_', ' ')}"
            table.add_row(name, *_seconds(ours, theirs))
    table.add_section()
    table.add_row("all", *_seconds(*found.makespans_ns))
    return table


def _seconds(ours: int, theirs: int) -> tuple[str, str, str]:
    return (
        f"{ours / NS_PER_S:.3f}",
        f"{theirs / NS_PER_S:.3f}",
        f"{(ours - theirs) / NS_PER_S:+.3f}",
    )


def answer(found: Comparison) -> str:
    """In words: which run is faster, how surely, and what makes most of the difference."""
    a, b = found.names
    verdict, told = found.verdict, []
    for what, ratio in found.ratios.items():
        surely = "" if ratio.p_faster is None else f", P(A faster) {_probability(ratio.p_faster)}"
        told.append(f"{what} {ratio}{surely}")
    if not verdict.is_decided:
        few = f" ({TOO_FEW.partition(': ')[2]})" if verdict.verdict == TOO_FEW else ""
        who = f"Cannot tell whether A ({a}) or B ({b}) is faster{few}"
    else:
        who = f"A ({a}) is {verdict.verdict} than B ({b})"
    # Who is done sooner waits longer for the next request, which is no reason for anything.
    spent = {part: times for part, times in found.parts.items() if part != NOTHING_TO_DO}
    differences = {part: ours - theirs for part, (ours, theirs) in spent.items() if ours != theirs}
    why = ""
    if differences:
        total = sum(differences.values())
        run = "steps are" if any(found.parts.get(NOTHING_TO_DO, ())) else "run is"
        sign = -1 if total < 0 else 1
        main = max(differences, key=lambda part: sign * differences[part])
        name = "computing" if main == COMPUTE else f"waiting {WAITS[main]}"
        why = (
            f" A's {run} {total / NS_PER_S:+.3f} s against B's, of which {name}"
            f" {differences[main] / NS_PER_S:+.3f} s."
        )
    over = f"paired 95 % over {_observed(verdict.sequences, found.sequences)} of this trace"
    return (
        f"{who}. B's time over A's, {over}: {'; '.join(told)}.{why}{_room(found)}{_quality(found)}"
    )


def _observed(independent: int, sequences: int) -> str:
    """In words, what an interval is over: sequences that share steps are one observation."""
    if independent >= sequences:
        return f"{independent} sequences"
    batches = "1 batch" if independent == 1 else f"{independent} batches"
    return f"{batches} of {sequences} sequences"


def _room(found: Comparison) -> str:
    """In words: the staging slots of both runs, where they differ.

    They come on top of the budget, so a run with more of them has more memory.
    """
    if found.staging_bytes[0] == found.staging_bytes[1]:
        return ""
    ours, theirs = (
        f"up to {held / GIB:.3f} GiB in staging slots" if held else "none"
        for held in found.staging_bytes
    )
    return f" Beside their equal budgets A held {ours}, B {theirs}."


def _quality(found: Comparison) -> str:
    """In words: how both runs serve, where it differs; a run that serves less well is faster."""
    ours, theirs = found.served
    return "" if ours == theirs else f" They are not of one quality: A serves {ours}; B {theirs}."


def _probability(p: float) -> str:
    return "> 0.999" if p > 0.999 else "< 0.001" if p < 0.001 else f"{p:.3f}"
