"""Makes the papers' motivating figures on a real model.

    python -m real.quality_figures figure=NAME[,NAME] model=NAME [KEY=VALUE ...]

For each figure it prints a table with paired 95 % intervals, and whether the paper's order holds;
it draws a PNG and an SVG, and writes every point to a parquet file.

- ``figure=all`` makes all figures that the model's experts allow.
- ``model``: a bundled model, a directory, or OWNER/NAME.
- ``prompts``: a file of JSON lines or a bundled set; ``fit`` and ``eval`` are how many of its texts
  of either split are read.
- ``dtype``, ``device``, ``threads``: how the model runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import TextColumn, TimeElapsedColumn
from rich.table import Table

from capture.models.discover import CaptureError
from capture.recording.load import load_model, load_tokenizer
from capture.recording.prompts import prompts_file, read_prompts
from capture.recording.settings import SettingError, Settings
from real.lossy.drawing import draw
from real.lossy.figures import FIGURES, Bench
from real.lossy.sweep import SMALL, Sweep
from real.lossy.whole import texts_of
from real.store.experts import SwapError
from sim.process.interrupts import telling
from sim.process.printing import print_text
from sim.process.progress import Shown
from sim.values.places import ASSETS
from sim.verbs.words import read_all

WIDTH = 118
"""The width of tables, in which no interval is broken."""
WRONG_INPUT = (ValueError, OSError, CaptureError, SettingError, SwapError)


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    figures: tuple[str, ...]
    every: bool
    model: str
    prompts: Path
    num_fit: int
    num_eval: int
    output_dir: Path
    dtype: str
    device: str
    threads: int

    @property
    def name(self) -> str:
        return Path(self.model).name


def request_of(words: Sequence[str]) -> Request:
    """The request of these words. Raise ValueError for the first word that is wrong."""
    given = read_all("real quality_figures", words).own
    asked = given["figure"].split(",")
    bundled = ASSETS / given["model"]
    is_bundled = "/" not in given["model"] and (bundled / "config.json").is_file()
    return Request(
        tuple(FIGURES) if "all" in asked else tuple(asked),
        "all" in asked,
        str(bundled) if is_bundled else given["model"],
        Path(given["prompts"]),
        int(given["fit"]),
        int(given["eval"]),
        Path(given["output_dir"]),
        given["dtype"],
        given["device"],
        int(given["threads"]),
    )


def bench_of(request: Request, track: Any) -> Bench:
    """The model and its texts. Raise ValueError where the prompts have too few of a split."""
    settings = Settings(
        model=request.model,
        prompts=request.prompts,
        output_dir=request.output_dir,
        dtype=request.dtype,
        device=request.device,
        threads=request.threads,
    )
    prompts = read_prompts(prompts_file(request.prompts))
    chosen = {}
    for split, count in (("fit", request.num_fit), ("eval", request.num_eval)):
        mine = [prompt for prompt in prompts if prompt.split == split]
        if len(mine) < count:
            raise ValueError(
                f"{split}={count}, but prompts={request.prompts} has {len(mine)} texts of that"
                " split"
            )
        chosen[split] = mine[:count]
    model, tokenizer = load_model(settings), load_tokenizer(settings)
    texts = {
        split: texts_of(mine, model, lambda text: tokenizer(text)["input_ids"])
        for split, mine in chosen.items()
    }
    return Bench(request.name, model, texts["fit"], texts["eval"], track)


def print_sweep(sweep: Sweep, model: str, console: Console) -> None:
    """Print the table, what became of the paper's claims, and what a reader must know."""
    first = sweep.points[0].quality
    table = Table(
        "x",
        "curve",
        "perplexity",
        "increase, %",
        "KL, millinats a token",
        "same top token",
        title=f"{sweep.title}: {model}; x: {sweep.axis}",
        title_justify="left",
    )
    for point in sorted(sweep.points, key=lambda point: point.x):
        quality = point.quality
        table.add_row(
            f"{point.x:g}",
            point.curve,
            f"{quality.perplexity.value:.4g}",
            escape(quality.increase.times(100).text(2)),
            escape(quality.divergence.times(1000).text(2)),
            f"{quality.agreement.value:.3f}",
        )
    console.print(table)
    said = [
        f"{sweep.source}. On {SMALL}.",
        (
            f"{first.sequences} held-out texts, {first.tokens} tokens, perplexity"
            f" {first.full_perplexity.text()} at full precision; in brackets paired 95 % intervals"
            " over texts."
        ),
        *(f"- {note}" for note in sweep.notes),
        *(f"Order: {verdict.order.claim}: {verdict.text}." for verdict in sweep.verdicts),
    ]
    for line in said:
        print_text(console, line)


@telling("the figures printed above are written")
def main(words: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr when the input is wrong."""
    errors, out = Console(stderr=True), Console(width=WIDTH)
    try:
        request = request_of(words)
        request.output_dir.mkdir(parents=True, exist_ok=True)
        columns = (TextColumn("{task.description}: {task.completed:g}"), TimeElapsedColumn())
        with Shown(*columns, console=errors) as progress:
            task, read = progress.add_task("loading", total=None), [0]

            def track() -> None:
                read[0] += 1
                progress.update(task, description="texts read", completed=read[0])

            bench = bench_of(request, track)
            for name in request.figures:
                try:
                    sweep = FIGURES[name](bench)
                except ValueError as error:
                    if not request.every:
                        raise
                    print_text(out, f"{name}: left out: {error}")
                    continue
                print_sweep(sweep, request.name, out)
                place = request.output_dir / f"{name}-{request.name}"
                sweep.frame.write_parquet(place.with_suffix(".parquet"))
                files = draw(sweep, request.name, place)
                print_text(out, f"files: {' '.join(map(str, files))} {place}.parquet")
    except WRONG_INPUT as error:
        print(f"quality_figures: {str(error).strip()}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
