"""How an export is told: a table of the lines that were tried, and one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from sim.answers.ask_words import between
from sim.answers.export import Search, Tried
from sim.results.intervals import OVER, beside
from sim.results.labels import Labels, caption, told

SHOWN = 8
"""How many lines the table has; the file has the others."""


def table_of(found: Search) -> Table:
    """The fastest lines: what they differ in, and how fast they are."""
    best = found.best()
    shown = [one.interval for one in best[:SHOWN]]
    table = Table(
        "layers on the CPU",
        "-ts",
        "cache (MiB)",
        f"tokens/s{beside(shown, ' [95 %]')}",
        "hits",
        "waits",
        title=f"the fastest {min(SHOWN, len(best))} of {len(best)} lines",
        title_justify="left",
        caption=escape("; ".join(filter(None, [*told(_named(best)), beside(shown, OVER)]))),
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for one in best[:SHOWN]:
        table.add_row(
            f"{one.on_cpu} of {found.layers}{' (-ot)' if one.flags.patterns else ''}",
            ",".join(f"{share:g}" for share in one.flags.split) or "-",
            f"{one.flags.cache_mib}" if one.flags.cache_mib else "-",
            f"{one.tokens_per_s:.3g}{between(one.interval)}",
            "-" if one.hit_ratio is None else f"{one.hit_ratio:.1%}",
            f"{one.waiting:.0%}",
        )
    return table


def sentence(found: Search, model: str, machine: str, source: str) -> str:
    """The fastest line, what the plain ways reach, and what it comes from."""
    best = found.best()
    first = best[0]
    parts = [
        f"{model} on {machine}: {first.tokens_per_s:.3g} tokens/s{between(first.interval)} with"
        f" {first.flags.line()}"
    ]
    for what, is_it in (
        ("whole layers alone", lambda one: not one.flags.cache_mib),
        ("a cache of experts", lambda one: one.flags.cache_mib > 0),
        ("all experts on the CPU", lambda one: one.on_cpu >= found.layers),
    ):
        if (other := next(filter(is_it, best), None)) and other is not first:
            parts.append(f"{what} at best {other.tokens_per_s:.3g}")
    parts.append(f"from {source}")
    label = caption(_named(best))
    return "; ".join(parts) + "." + (f" [{label}]" if label else "")


def _named(rows: Sequence[Tried]) -> list[tuple[str, Labels]]:
    return [("llama.cpp", row.labels) for row in rows]
