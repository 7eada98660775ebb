"""Writes all that a folder of results holds as one page.

Every figure says what it ran on; a target that was missed says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from real.suite.conduct import STATE
from real.suite.context import Context
from real.suite.engine import engine_targets
from real.suite.targets import Row, kernel_targets
from sim.results.labels import labels_in, told

GB = 1e9
COPY_SHARE, LARGE_COPY_BYTES = 0.95, 16 << 20
"""The least share of the link's peak, and from which size on loads are to reach it."""


def report(context: Context) -> None:
    """Write ``report.md``."""
    state = json.loads((context.folder / STATE).read_text(encoding="utf-8"))
    text = "\n".join(lines_of(context, state["pieces"])) + "\n"
    (context.folder / "report.md").write_text(text, encoding="utf-8")


def lines_of(context: Context, pieces: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    facts = context.load("facts") or {}
    emulated = context.device == "host"
    yield f"# {facts.get('gpu', context.device)}, {str(facts.get('date', 'no date'))[:10]}"
    yield ""
    if emulated:
        yield "**A rehearsal on the host: no figure here is a GPU's.**\n"
    if facts:
        versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
        yield f"{facts['processor']}, {facts['cores']} cores; {versions}.\n"
    yield "| piece | outcome | s | |\n|---|---|---|---|"
    for name, one in pieces.items():
        yield f"| {name} | {one['status']} | {one['seconds']:.0f} | {_cell(one['reason'])} |"
    yield ""
    yield from targets(context)
    yield from _links(facts)
    yield from _kernels(context)
    yield from _runs(context)
    if (found := context.folder / "validation" / "validation.md").is_file():
        page = found.read_text(encoding="utf-8")
        yield from ("", page.replace("\n## ", "\n### ").replace("# Simulator", "## Simulator"))


def targets(context: Context) -> Iterator[str]:
    """What was to be reached, and what was reached, as a table."""
    rows = [
        *kernel_targets((context.load("kernels") or {"rows": []})["rows"]),
        *_copy_targets(context),
        *engine_targets(context),
        *_verified(context),
        *_live(context),
    ]
    if not rows:
        return
    yield "## Targets\n\n| what | target | measured | |\n|---|---|---|---|"
    for what, target, measured, holds in rows:
        yield f"| {what} | {target} | {measured} | {'holds' if holds else '**missed**'} |"
    yield ""


def peak_of(facts: Mapping[str, Any]) -> float | None:
    """The best speed of copies from pinned memory, in bytes per second."""
    return max(
        (row["bytes_per_s"] for row in facts.get("copies", ()) if row["memory"] == "pinned"),
        default=None,
    )


def _copy_targets(context: Context) -> Iterator[Row]:
    peak = peak_of(context.load("facts") or {})
    for row in (context.load("copies") or {"rows": []})["rows"]:
        found = row.get("result") or {}
        rate = found.get("bytes_per_s_behind")
        if peak and rate and found["bytes"] >= LARGE_COPY_BYTES:
            share = rate / peak
            what = (
                f"loads behind each other inside the engine, {row['cell']},"
                f" {found['bytes'] >> 20} MiB"
            )
            yield (
                f"{what}, of the pinned peak",
                f">= {COPY_SHARE:.0%}",
                f"{share:.1%}",
                share >= COPY_SHARE,
            )


def _verified(context: Context) -> Iterator[Row]:
    if found := context.load("verify"):
        wrong = sum(not row["holds"] for row in found["checks"])
        yield (
            "kernels against fp64",
            "all, within 1e-5",
            f"{len(found['checks']) - wrong} of {len(found['checks'])}"
            + ("" if found["all"] else ", the rest left out for time"),
            not wrong,
        )


def _live(context: Context) -> Iterator[Row]:
    for row in (context.load("live") or {"rows": []})["rows"]:
        if row["status"] == "done" and row["result"]["lossless"]:
            equal = row["result"]["equal"]
            yield (
                f"live, {row['cell']}: logits of the whole model",
                "equal bits",
                "equal" if equal else "other",
                equal,
            )


def _links(facts: Mapping[str, Any]) -> Iterator[str]:
    if not facts:
        return
    yield (
        "## Link and host\n\n| memory | bytes | in a row | us each | GB/s |\n|---|---|---|---|---|"
    )
    for row in facts["copies"]:
        yield (
            f"| {row['memory']} | {row['bytes']} | {row['in_a_row']} |"
            f" {row['copy_ns']['median'] / 1e3:.2f} | {row['bytes_per_s'] / GB:.2f} |"
        )
    yield "\n| the host, for one | us | p95 |\n|---|---|---|"
    for name, took in facts["host"].items():
        yield f"| {name.replace('_', ' ')} | {took['median'] / 1e3:.2f} | {took['p95'] / 1e3:.2f} |"
    yield from gathers(facts["gather"])


def gathers(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """FloE's Fig. 7, staged and zero-copy: a line for each number of columns."""
    forms = list(dict.fromkeys((row["gather"], row["threads"]) for row in rows))
    rate = {
        (row["gather"], row["threads"], row["columns"]): row["bytes_per_s"] / GB for row in rows
    }
    forms_told = [
        "zero-copy" if form == "zero_copy" else f"threads: {number}" for form, number in forms
    ]
    yield (
        f"\n| FloE's gather, GB/s by columns | {' | '.join(forms_told)}"
        f" |\n|---|{'---|' * len(forms_told)}"
    )
    for columns in dict.fromkeys(row["columns"] for row in rows):
        yield f"| {columns} | {' | '.join(f'{rate[*form, columns]:.2f}' for form in forms)} |"
    best = [
        max((value, columns) for (*one, columns), value in rate.items() if tuple(one) == form)
        for form in forms
    ]
    fastest = "; ".join(
        f"{name}, {columns} columns, {value:.2f} GB/s"
        for name, (value, columns) in zip(forms_told, best, strict=True)
    )
    yield f"\nFloE's gather is fastest with ({fastest}).\n"


def _kernels(context: Context) -> Iterator[str]:
    found = context.load("kernels")
    if not found:
        return
    yield (
        f"## Kernels\n\nA device-to-device copy moves {found['copy_bytes_per_s'] / GB:.1f} GB/s,"
        " read and written.\n"
    )
    yield "| operator | shape | us | p95 | GB/s | of the copy |\n|---|---|---|---|---|---|"
    for row in found["rows"]:
        yield (
            f"| {row['operator']} | {row['shape']} | {row['median_ns'] / 1e3:.2f} |"
            f" {row['p95_ns'] / 1e3:.2f} | {row['bytes_per_s'] / GB:.1f} | {row['share']:.0%} |"
        )
    yield ""


def _runs(context: Context) -> Iterator[str]:
    found = context.load("replay")
    if not found:
        return
    yield "## Replays\n\n| system, resident | tokens/s | waits | mostly | hits | GB/s of a load | |"
    yield "|---|---|---|---|---|---|---|"
    for row in found["rows"]:
        yield _run(row)
    results = [(row["cell"], row["result"]) for row in found["rows"] if row.get("result")]
    yield from (
        "",
        *(
            f"- {text}"
            for text in told((cell, labels_in(one)) for cell, one in results if "labels" in one)
        ),
    )
    if any("labels" not in one for _, one in results):
        yield (
            "- what is to be known of runs of an older version is not told here: their files have"
            " no labels"
        )
    if found["left_out"]:
        yield f"\nLeft out for time: {', '.join(found['left_out'])}."


def _run(row: Mapping[str, Any]) -> str:
    result = row.get("result")
    if result is None:
        return f"| {row['cell']} | | | | | | {row['status']}: {_cell(row.get('reason', ''))} |"
    stall = {name: value for name, value in result["stall_s"].items() if value}
    waits = sum(stall.values()) / result["makespan_s"]
    rate, hits = result["link"]["bytes_per_s"], result["hit_ratio"]
    speed = result["decode_tokens_per_s"]
    return (
        f"| {row['cell']} | {'-' if speed is None else f'{speed:.3g}'} | {waits:.0%} |"
        f" {max(stall, key=stall.__getitem__, default='-')} |"
        f" {'-' if hits is None else f'{hits:.1%}'} |"
        f" {'-' if rate is None else f'{rate / GB:.2f}'} | |"
    )


def _cell(text: str, most: int = 160) -> str:
    """A text that fits a cell of a table."""
    flat = " ".join(text.replace("|", "/").split())
    return flat if len(flat) <= most else f"{flat[:most]}.."
