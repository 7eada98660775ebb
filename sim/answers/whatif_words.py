"""How a what-if is told: its table, in 80 columns, and its sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from sim.answers.whatif import Answer, Row
from sim.answers.whatif_growth import growth_told
from sim.process.printing import NARROW, with_whole_words
from sim.results.intervals import OVER, beside
from sim.results.labels import caption, told

ANY = "any"
"""What is said of the value where a series is the same at each."""


def _without_knee(speeds: Sequence[float]) -> str:
    if len(speeds) < 3:
        return "fewer than three points have no knee"
    if speeds[-1] <= speeds[0]:
        return "there is no knee: the most memory is no faster than the least"
    return "there is no knee: what comes later pays more than what comes first"


def sentence(found: Answer, name: str) -> str:
    """The answer in one line of words."""
    parts = [f"{name}: {found.break_even.told}"] if found.break_even else []
    if found.target is not None:
        parts.append(f"{name}: {found.target.told}")
    if found.knee is not None:
        parts.append(
            f"the knee is at {found.knee:g}: up to there memory pays more than on average, after it"
            " less"
        )
    elif found.question == "memory":
        parts.append(_without_knee([row.tokens_per_s for row in found.rows]))
    if found.question == "bits":
        best = max(found.rows, key=lambda row: row.tokens_per_s)
        parts.append(
            f"{name}: {best.series} decodes fastest in these bytes, {best.tokens_per_s:.3g}"
            " tokens/s"
        )
    if found.question == "kv":
        parts += _contexts(found, name)
    if found.question == "drafts":
        parts += _depths(found, name)
    if found.growth:
        parts.append(f"{name}: {growth_told(found.growth)}")
    return "; ".join(parts) + "." + (f" [{label}]" if (label := caption(found.labels)) else "")


def _contexts(found: Answer, name: str) -> Iterator[str]:
    """What the shortest and the longest context leave, and the fastest way to hold the longest."""
    values = sorted({row.value for row in found.rows})
    for value in dict.fromkeys((values[0], values[-1])):
        *_, row = (row for row in found.rows if row.value == value)
        yield (
            f"{value:,.0f} tokens, at {row.series} a number, leave {row.slots_a_layer:.3g} slots a layer and"
            f" {row.tokens_per_s:.3g} tokens/s"
        )
    at_last = [row for row in found.rows if row.value == values[-1]]
    best = max(at_last, key=lambda row: row.tokens_per_s)
    yield (
        f"{name}: {best.value:,.0f} tokens decode fastest at {best.series}, {best.slots_a_layer:.3g} slots"
        f" a layer and {best.tokens_per_s:.3g} tokens/s; what fewer bits of keys and values cost in"
        " quality is not measured here"
    )


def _depths(found: Answer, name: str) -> Iterator[str]:
    """Of each series how many drafts are fastest, and which are slower than none."""
    for series in dict.fromkeys(row.series for row in found.rows):
        rows = {row.value: row.tokens_per_s for row in found.rows if row.series == series}
        none, best = rows.get(0.0), max(rows, key=lambda value: rows[value])
        if not best:
            yield f"{name}, drafts' experts {series}: no number of drafts is faster than none"
            continue
        told = f"{name}, drafts' experts {series}: {best:g} a step are fastest, {rows[best]:.3g} tokens/s"
        if none is not None:
            slower = [f"{value:g}" for value, speed in rows.items() if value and speed < none]
            told += f", {rows[best] / none:.2f}x as fast as none"
            told += f"; {', '.join(slower)} are slower than none" if slower else ""
        yield told


def table_of(found: Answer, system: str) -> Table:
    """The table of the answer, a row for each point; what is the same everywhere is below it."""
    rows = list(_rows(found))
    speed = "tokens/s (95%)" if any(row.interval for _, row in rows) else "tokens/s"
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("system", lambda row: row.series),
        (speed, lambda row: f"{row.tokens_per_s:.3g} {_between(row.interval)}".strip()),
        ("waits", lambda row: f"{row.waiting:.0%}"),
        ("hits", lambda row: "-" if row.hit_ratio is None else f"{row.hit_ratio:.1%}"),
        ("slots a layer", lambda row: f"{row.slots_a_layer:.3g}"),
        ("times as fast", _times),
    ]
    shown = [(head, of) for head, of in columns if len({of(row) for _, row in rows}) > 1]
    same = [
        f"{head} {of(rows[0][1])} at each point"
        for head, of in columns[2:4]
        if (head, of) not in shown and len(rows) > 1
    ]
    if len(rows) == 1:
        shown = [(head, of) for head, of in columns[1:4] if of(rows[0][1])]
    over = beside(
        (ends for row in found.rows for ends in (row.interval, row.speedup_interval)), OVER
    )
    notes = [*same, *_no_hits(found), *told(found.labels), over]
    table = Table(
        found.axis,
        *(head for head, _ in shown),
        title=escape(f"{system}: {found.about}" if found.about else system),
        caption=escape("; ".join(filter(None, notes))),
        **NARROW,
    )
    for value, row in rows:
        table.add_row(value, *(escape(of(row)) for _, of in shown))
    return with_whole_words(table)


def _no_hits(found: Answer) -> Iterator[str]:
    """Why nothing hits, where the slots hold less than one token needs."""
    slots = [row.slots_a_layer for row in found.rows if row.hit_ratio == 0]
    # Where as few slots hit at other points, as prefetches in time do, the slots are not the reason.
    hitting = [row.slots_a_layer for row in found.rows if row.hit_ratio]
    if slots and max(slots) < min([found.top_k, *hitting]):
        yield (
            f"no expert hits where the slots hold {max(slots):.3g} a layer: one token needs"
            f" {found.top_k}, so each is gone before it is needed again"
        )


def _rows(found: Answer) -> Iterator[tuple[str, Row]]:
    """The points with their values; of a series that is the same at each value only one."""
    by_series: dict[str, list[Row]] = {}
    for row in found.rows:
        by_series.setdefault(row.series, []).append(row)
    constant = {
        name: row
        for name, (row, *others) in by_series.items()
        if others and {_shown(one) for one in others} == {_shown(row)}
    }
    for row in found.rows:
        if row.series not in constant:
            yield f"{row.value:g}", row
    for row in constant.values():
        yield ANY, row


def _shown(row: Row) -> tuple[float, float | None]:
    return row.tokens_per_s, row.hit_ratio


def _times(row: Row) -> str:
    if row.speedup is None:
        return ""
    return f"{row.speedup:.2f} {_between(row.speedup_interval)}".strip()


def _between(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.3g}..{interval[1]:.3g}"
