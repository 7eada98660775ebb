"""Measures what a system's lossy choices cost in quality, with the model itself.

    python -m real.quality system=NAME [weights=DIR] [prompts=FILE] [loop=both] [KEY=VALUE ...]

The model's real forward pass computes what a system's run serves. Printed are perplexity and KL
divergence to the full-precision model, teacher-forced, beside the simulated speed, with paired 95 %
intervals over sequences.

- ``loop=open``: the system decides on the trace's gates, and these choices are computed.
  ``closed``: it decides on the gates that the lossy model shows. ``both`` is the default.
- ``weights``: a directory or OWNER/NAME; default: the bundled model that the trace was captured
  from.
- ``prompts``: a file or a bundled set, which is captured first, into ``output_dir``.
- ``quantiser=groups|channels``, with ``group=64``, makes the integers.
- ``dtype``, ``device``, ``threads``: how the model runs.
- ``tasks=a,b``: run lm-evaluation-harness instead of the texts, on ``limit`` documents of each
  task. ``task_dir``: a folder with tasks of one's own.

Any other word is an override of ``python -m sim``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn
from rich.table import Table

from capture.recording.capturing import capture
from capture.recording.settings import parse_settings
from real.lossy.assess import Assessment, Loop, identity, sequence_frame
from real.lossy.harness import harness_scores, require_harness
from real.lossy.loss import Estimate
from real.lossy.requests import WRONG_INPUT, Request, request_of, told_of_quality
from sim.process.interrupts import is_terminal, telling
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.results.folders import own_folder
from sim.results.intervals import OVER

WIDTH = 118
"""Of a table that no terminal shows: wide enough for each interval to stand in one line."""


def _captured(request: Request, console: Console) -> tuple[str, ...]:
    """The overrides, with the trace of the given prompts, captured into ``output_dir``."""
    if request.prompts is None:
        return request.overrides
    place = request.output_dir / "trace"
    words = [
        f"model={request.weights.place}",
        f"prompts={request.prompts}",
        f"output_dir={place}",
        f"dtype={request.weights.dtype}",
        f"device={request.weights.device}",
    ]
    capture(parse_settings(words), words, console)
    return (*request.overrides, f"trace.path={place}")


def assess(request: Request, console: Console) -> tuple[list[Loop], dict[str, Any], Assessment]:
    """Assess the system in each loop that is asked for; also return what the numbers are of."""
    overrides = _captured(request, console)
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Shown(*columns, console=console) as progress:
        task = progress.add_task("loading", total=None)

        def track(what: str, sequence: int) -> None:
            progress.update(task, description=f"{what}: sequence {sequence}")

        assessment = Assessment([overrides], request.weights, request.scheme, track)
        loops = assessment.assess(overrides, request.loops)
    return loops, identity(assessment, request.weights), assessment


def write(
    directory: Path, loops: Sequence[Loop], what: dict[str, Any], assessment: Assessment
) -> None:
    """Write ``quality.json`` and ``quality.parquet``.

    The first has a row for each loop, with the simulated summary, the second one for each sequence.
    """
    summaries = {loop.name: loop.replayed.result.summary for loop in loops}
    prefill = {loop.name: loop.prefill.row() for loop in loops if loop.prefill}
    content = {
        "schema": 1,
        **what,
        "rows": [loop.row() for loop in loops],
        "prefill": prefill,
        "runs": summaries,
    }
    (directory / "quality.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    sequence_frame(loops, assessment.sequences).write_parquet(directory / "quality.parquet")


def print_quality(loops: Sequence[Loop], console: Console) -> None:
    """Print a table with a column for each loop, and one sentence."""
    summary = loops[0].replayed.result.summary
    title = f"{summary['system']}: quality of what it serves"
    table = Table(
        "",
        *(f"{loop.name} loop" for loop in loops),
        title=title,
        caption=(
            f"Against the same model at full precision, teacher-forced. In brackets, paired: {OVER}"
        ),
    )
    rows: list[tuple[str, list[str]]] = [
        (
            "sequences, decoded tokens",
            [f"{loop.decode.sequences}, {loop.decode.tokens}" for loop in loops],
        )
    ]
    for part in ("decode", "prefill"):
        for name, title in (
            ("full_perplexity", "perplexity, full precision"),
            ("perplexity", "perplexity, as served"),
            ("increase", "perplexity: increase"),
            ("divergence", "KL, nats a token"),
            ("agreement", "same most likely token"),
        ):
            found = [getattr(loop, part) for loop in loops]
            if all(found):
                rows.append(
                    (f"{part}: {title}", [getattr(quality, name).text() for quality in found])
                )
    summaries = [loop.replayed.result.summary for loop in loops]
    rows += [
        (
            "needs at low precision; skipped",
            [
                f"{s['quality_proxy']['low_share']:.1%}; {s['quality_proxy']['skip_share']:.1%}"
                for s in summaries
            ],
        ),
        ("hit ratio (decode)", [_with_interval(s, "hit_ratio") for s in summaries]),
        (
            "decode tokens/s (simulated)",
            [_with_interval(s, "decode_tokens_per_s") for s in summaries],
        ),
    ]
    for title, cells in rows:
        table.add_row(title, *cells)
    console.print(table)
    for line in told_of_quality(loops):
        print_text(console, line)
    console.print(sentence(loops), highlight=False, soft_wrap=True)


def _with_interval(summary: dict[str, Any], name: str) -> str:
    low, high = summary["ci95"].get(name) or (None, None)
    return Estimate(summary[name], low, high).text()


def sentence(loops: Sequence[Loop]) -> str:
    """The answer in words, for the last loop: the closed one where both were run."""
    loop = loops[-1]
    summary, quality = loop.replayed.result.summary, loop.decode
    head = (
        f"With {summary['budget']['resident_share']:.0%} of the expert bytes resident,"
        f" {summary['system']}"
    )
    if quality.divergence.value == 0:
        return (
            f"{head} changes nothing: KL is exactly 0 on {quality.sequences} sequences ({loop.name}"
            " loop)."
        )
    sure = "" if quality.increase.excludes_0 else " (not told apart from none)"
    return (
        f"{head} costs {quality.divergence.text()} nats of KL a token and"
        f" {100 * quality.increase.value:.2g} % of perplexity{sure} on {quality.sequences}"
        f" sequences ({loop.name} loop)."
    )


@telling("nothing was written")
def main(words: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr and nothing written."""
    console = Console(stderr=True)
    try:
        request = request_of("quality", words)
        if request.tasks:
            require_harness()
            Console().print_json(
                data=harness_scores(
                    request.overrides, request.weights, request.scheme, request.tasks
                )
            )
            return 0
        with own_folder(request.output_dir, overwrite=request.overwrite):
            loops, what, assessment = assess(request, console)
            write(request.output_dir, loops, what, assessment)
    except WRONG_INPUT as error:
        print(f"quality: {str(error).strip()}", file=sys.stderr)
        return 2
    out = Console(width=None if is_terminal() else WIDTH)
    print_quality(loops, out)
    print_text(out, f"files: {request.output_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
