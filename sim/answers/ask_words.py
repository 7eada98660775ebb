"""The answer to one question as a table, a paragraph, and lines of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.markup import escape
from rich.table import Table

from sim.answers.ask_parts import BOUND, LOSSLESS, LOSSY, PCIE, Found, Row, alike
from sim.answers.ask_quality import UNKNOWN
from sim.results.believed import coarse
from sim.results.intervals import OVER, beside
from sim.results.labels import Labels, told
from sim.results.paired import SLOWER, TOO_FEW, Paired

HEADINGS = {
    LOSSLESS: "LOSSLESS: the model as it is published",
    LOSSY: "LOSSY: less than the model as it is published",
    BOUND: "BOUNDS: they know what is to come, or do what no machine can",
}
QUALITY = "KL (millinats a token)"
"""The head of the column of what was measured."""
LEAST_SLOTS = 0.05
"""Fewer slots a layer than these are not told."""
SHOWN = 3
"""How many names of systems that show the same are told."""


def names_of(rows: Sequence[Row]) -> str:
    """The systems of rows, ``and 5 more`` after the first."""
    some = [row.system for row in rows]
    rest = f" and {len(some) - SHOWN} more" if len(some) > SHOWN else ""
    return ", ".join(some[:SHOWN]) + rest


def tables_of(found: Found) -> list[Table]:
    """Every system, a table for each kind, fastest first; those that show the same in one line."""
    tables = []
    for kind, heading in HEADINGS.items():
        if rows := found.of(kind):
            table = Table(
                "system",
                "experts at",
                "resident",
                f"tokens/s{beside((row.interval for row in rows), ' [95 %]')}",
                "first token (s)",
                "waits",
                "why it is a bound" if kind == BOUND else "lost",
                *([QUALITY] if kind == LOSSY else []),
                title=heading,
                title_justify="left",
            )
            for group in alike(rows).values():
                table.add_row(*cells(group))
            tables.append(table)
    return tables


def told_of(found: Found) -> list[str]:
    """What a reader must know of all rows."""
    over = beside((row.interval for row in found.rows), OVER)
    notes = [*told((row.system, common(row)) for row in found.rows), over, *_measured(found)]
    return list(filter(None, notes))


def _measured(found: Found) -> list[str]:
    """Where the numbers of quality are from, and how to have more of them."""
    of: dict[str, list[str]] = {}
    for row in found.of(LOSSY):
        if row.quality is not None:
            of.setdefault(row.quality.label(), []).append(row.system)
    known = [
        f"KL of {', '.join(systems)}: to full precision, {label}" for label, systems in of.items()
    ]
    if all(row.quality for row in found.of(LOSSY)):
        return known
    return [*known, f"KL {UNKNOWN}: moelab quality measures it with the model's weights"]


def common(row: Row) -> Labels:
    """What must be said of a row beside what its line and the title say: what is lost, why it is a
    bound, its model and its machine. Gates that were made for the answer have a label.
    """
    known = ("model=", "hardware=", *(("trace.path=",) if row.labels.synthetic else ()))
    return replace(
        row.labels,
        lossy=None,
        knows_future=None,
        reference=None,
        changed=tuple(word for word in row.labels.changed if not word.startswith(known)),
    )


def cells(group: Sequence[Row]) -> tuple[str, ...]:
    """A line of the table."""
    row = group[0]
    return (
        escape(names_of(group)),
        row.precision,
        f"{row.share:.0%}",
        f"{row.tokens_per_s:.3g}{between(row.interval)}",
        f"{row.first_s:.3g}{between(row.first_interval)}",
        f"{row.waiting:.0%}",
        escape(row.why if row.kind == BOUND else row.lost),
        *([UNKNOWN if row.quality is None else escape(row.quality.short())] * (row.kind == LOSSY)),
    )


def between(interval: tuple[float, float] | None) -> str:
    """`` [low, high]``, empty without an interval."""
    return "" if interval is None else f" [{interval[0]:.3g}, {interval[1]:.3g}]"


def paragraph(found: Found) -> str:
    """The whole answer in sentences."""
    return "\n".join(_sentences(found))


def _sentences(found: Found) -> Iterator[str]:
    yield _fit(found)
    for kind in (LOSSLESS, LOSSY):
        if rows := found.named(kind):
            yield _fastest(kind, rows, found.home)
        elif kind == LOSSLESS and found.left_out:
            yield (
                f"No system was asked for the model as it is published: precisions= leaves"
                f" {found.left_out} out."
            )
        else:
            yield f"No {kind} system can run here."
    for precision, rows in found.best_at_asked().items():
        yield _fastest(rows[0].kind, rows, found.home, f" of those asked at {precision}")
    yield from _resident(found)
    yield from _target(found)
    if found.changes:
        of: dict[str, list[str]] = {}
        for change in found.changes:
            faster = f"{change.what} makes it {change.faster.speedup:.2f}x as fast"
            slots = change.fewer_slots
            less = f", {slots:.3g} fewer slots a layer" if slots >= LEAST_SLOTS else ""
            more = f"{faster} ({change.tokens_per_s:.3g} tokens/s{less})"
            of.setdefault(change.of, []).append(f"{more}{_loss(change.faster)}")
        for name, texts in of.items():
            yield f"What would change {name}: {'; '.join(texts)}."
    yield _surely(found)


def _loss(faster: Paired) -> str:
    """Says that a change loses, where it surely does."""
    return ": it loses" if faster.verdict == SLOWER else ""


def _fit(found: Found) -> str:
    """Does it fit without offloading?"""
    fitting = next((one for one in found.fits if one.fits), None)
    first = found.fits[0]
    who = f"{found.model} on {found.machine} ({found.memory_gib:g} GiB)"
    if fitting is None:
        low = found.fits[-1]
        return (
            f"{who} does not fit without offloading, not even at {low.precision}"
            f" ({low.needs_gib:.3g} GiB); at {first.precision} it needs {first.needs_gib:.3g} GiB."
        )
    if fitting is first:
        return f"{who} fits without offloading at {first.precision} ({first.needs_gib:.3g} GiB)."
    return (
        f"{who} does not fit without offloading at {first.precision} ({first.needs_gib:.3g} GiB);"
        f" the best precision at which it does is {fitting.precision} ({fitting.needs_gib:.3g}"
        " GiB)."
    )


def _fastest(kind: str, rows: Sequence[Row], home: str, where: str = "") -> str:
    """The fastest of a kind, or of a part of it, and those that the same sequences do not tell apart from it; too few
    sequences tell nobody apart.
    """
    best = rows[0]
    tied = [best.name, *(row.name for row in rows[1:] if row.ties)]
    rest = f" and {len(tied) - SHOWN} more" if len(tied) > SHOWN else ""
    if len(tied) > 1:
        who = (
            f"{len(tied)} {kind} systems{where} tie as the fastest (95 % over the same sequences):"
            f" {', '.join(tied[:SHOWN])}{rest}; {best.name}"
        )
    else:
        who = f"The fastest {kind} system{where} is {best.name}"
    if any(row.behind and row.behind.verdict == TOO_FEW for row in rows[1:]):
        why = TOO_FEW.removeprefix("cannot tell: ")
        who = f"{best.name} has the highest speed of {kind} systems{where} (not sure: {why})"
    known = best.quality
    quality = UNKNOWN if known is None else f"{known.text()}, {known.label()}"
    lost = "" if kind == LOSSLESS else f"; lost: {best.lost}; quality: {quality}"
    lie = "in host memory, which is taken to have room" if home == PCIE else f"behind {home}"
    others = "" if best.share >= 1 else f" and {best.stored_gib:.3g} GiB of experts {lie}"
    return (
        f"{who}: {best.tokens_per_s:.3g} tokens/s{between(best.interval)}{_with_machine(best)} with"
        f" {best.share:.0%} of the expert bytes resident{others}, the first token after"
        f" {best.first_s:.3g} s{lost}."
    )


def _with_machine(row: Row) -> str:
    """The interval that has the machine's errors too; empty where nobody knows any."""
    if row.with_machine is None:
        return ""
    low, high = row.with_machine
    return f" (with {row.errors} [{coarse(low)}, {coarse(high)}])"


def _resident(found: Found) -> Iterator[str]:
    """How fast the model is at the precisions at which nothing is offloaded."""
    told = []
    for fit in found.fits:
        rows = [row for row in found.rows if row.precision == fit.precision and row.is_all_resident]
        best = max(rows, key=lambda row: row.tokens_per_s, default=None)
        if fit.fits and best is not None:
            told.append(f"{best.tokens_per_s:.3g} tokens/s at {fit.precision}")
    if told:
        yield f"Where nothing is offloaded: {', '.join(told)}."


def _target(found: Found) -> Iterator[str]:
    """Who reaches the target, and what the fastest would need for it."""
    if found.target is None:
        return
    for kind in (LOSSLESS, LOSSY):
        if kind == LOSSLESS and found.left_out:
            continue
        rows = [row for row in found.of(kind) if row.tokens_per_s >= found.target]
        systems = list(dict.fromkeys(row.name for row in rows))
        who = f"{', '.join(systems[:SHOWN])}" if systems else f"no {kind} system"
        more = f" and {len(systems) - SHOWN} more" if len(systems) > SHOWN else ""
        yield f"{found.target:g} tokens/s {kind}: {who}{more} here."
    if found.needs:
        kind = next(kind for kind in (LOSSLESS, LOSSY) if found.named(kind))
        needs = "; ".join(need.told for need in found.needs)
        yield f"What {found.target:g} tokens/s {kind} would need, one thing at a time: {needs}."


def _surely(found: Found) -> str:
    """How sure all of this is."""
    seen = found.validated or "no time of this machine was ever compared with a real one's"
    seen += f"; {found.data_sheets}" if found.data_sheets else ""
    kind = (
        "measured" if found.preset == "calibrated" else "from data sheets and stated efficiencies"
    )
    return (
        f"How sure: {found.gates}; the machine is {kind}, and {seen}; prompts have"
        f" {found.prompt_tokens:.3g} tokens."
    )
