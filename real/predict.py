"""``python -m real.predict data=DIR``: how far simulated times are from a measured machine's runs.

    python -m real.predict data=DIR [calibrating=RUN,.. | calibrating=none] [MODEL:KEY=VALUE ...]

DIR holds what a machine left: ``suite/`` (``calibration.json``, ``facts.json``, ``replay.json``)
and ``recordings/``, in that or beside it (folders of ``python -m real``). A machine is made of the
calibration and of the recordings named by ``calibrating``. By default they are those of lru, as
``real.calibrate`` makes one, and those that bring parts of experts, which alone tell how long it
takes to choose rows. All replays and recordings are then simulated on it, and their time per token
is compared. Systems whose runs were used are fitted: shown, not scored. Exit status: 1 where a
target is missed.

``MODEL:KEY=VALUE`` changes the simulation of recordings of that model, such as
``qwen3_30b_a3b:trace.path=DIR``. Two controls must miss a target: ``rates=1.1`` makes everything
that was measured take so many times as long; ``contention=off`` leaves out who slows whom.
``output_dir=DIR`` keeps the machine's file and ``predicted.json``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from real.suite.prediction import (
    Line,
    Row,
    calibrating_facts,
    calibrating_runs,
    lines,
    named,
    noise_of,
    predict,
    slower,
    write_machine,
)
from sim.process.printing import print_text
from sim.results.folders import own_folder
from sim.results.labels import told
from sim.verbs.table import verb_of
from sim.verbs.words import read

STYLE: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False, "title_justify": "left"}


def main(arguments: Sequence[str]) -> int:
    """Print the table. Exit status: 0; 1 where a target is missed; 2 for words that are wrong."""
    try:
        given, words = _parsed(arguments)
        with tempfile.TemporaryDirectory() as made:
            place = Path(given["output_dir"]) if "output_dir" in given else Path(made)
            with own_folder(place):
                rows = _rows(given, words, place)
                found = lines(rows, noise_of(Path(given["data"])))
                labels = told(named(Path(given["data"])))
                content = {
                    "rows": [asdict(row) | {"error": row.error} for row in rows],
                    "lines": [asdict(line) for line in found],
                    "labels": labels,
                }
                text = json.dumps(content, indent=1)
                (place / "predicted.json").write_text(text + "\n", encoding="utf-8")
    except (ValueError, OSError, OmegaConfBaseException) as error:
        print(f"error: {str(error).strip()}", file=sys.stderr)
        return 2
    for one in shown(rows, found):
        Console().print(one)
    for label in labels:
        print_text(Console(), label)
    if not found:
        print("error: no run was scored, so no line holds", file=sys.stderr)
        return 2
    return 0 if all(line.holds for line in found) else 1


def _parsed(arguments: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    found = read(verb_of("real predict"), arguments)
    if wrong := [word for word in found.overrides if ":" not in word.partition("=")[0]]:
        raise ValueError(f"{wrong[0]!r} is neither an option nor MODEL:KEY=VALUE")
    given = {"rates": "1", "contention": "on", **found.own}
    if given["contention"] not in ("on", "off"):
        raise ValueError(f"contention={given['contention']}; allowed: on, off")
    return given, found.overrides


def _rows(given: dict[str, str], words: Sequence[str], place: Path) -> list[Row]:
    folder = Path(given["data"])
    asked = given.get("calibrating")
    if asked is None:
        runs = calibrating_runs(folder)
    else:
        runs = [] if asked == "none" else asked.split(",")
    facts, params = calibrating_facts(folder, runs)
    for one in facts.left_out:
        print(f"left out of the calibration: {one}", file=sys.stderr)
    facts = slower(facts, _times(given["rates"]))
    write_machine(place, folder, facts, params, contention=given["contention"] == "on")
    return predict(folder, place, runs, words)


def _times(text: str) -> float:
    try:
        times = float(text)
    except ValueError:
        times = 0.0
    if not 0.1 <= times <= 10:
        raise ValueError(f"rates={text} must be a number from 0.1 to 10: how many times as long")
    return times


def _part_of(row: Row) -> str:
    model = row.system.partition(" (")[2].removesuffix(")")
    return f"{row.source}s of {model}" if model else f"{row.source}s"


def shown(rows: Sequence[Row], found: Sequence[Line]) -> Iterator[Table | Text]:
    """Every run with its error, why a run has none, and the lines that are asked for."""
    for part, of_part in groupby(rows, _part_of):
        table = Table("ms a token", "resident", "recorded", "simulated", "error", "", **STYLE)
        table.title = Text(part)
        for column in table.columns[1:5]:
            column.justify = "right"
        for row in of_part:
            table.add_row(
                escape(row.system.partition(" (")[0]),
                f"{row.share:.0%}",
                "-" if row.recorded_s is None else f"{row.recorded_s * 1e3:.1f}",
                "-" if row.predicted_s is None else f"{row.predicted_s * 1e3:.1f}",
                "-" if row.error is None else f"{row.error:+.1%}",
                "fitted" if row.fitted else "left out" if row.left_out else "",
            )
        yield table
    for row in rows:
        if row.left_out:
            yield Text(f"{row.source} of {row.system} at {row.share:.0%}: {row.left_out}")
    if any(row.left_out and row.source == "recording" for row in rows):
        yield Text(
            "Words such as qwen3_30b_a3b:trace.path=DIR say what a recording's model or trace is"
            " called here."
        )
    asked = Table("line", "found", "asked", "", **STYLE)
    for line in found:
        is_tau = line.what.endswith("tau")
        asked.add_row(
            line.what,
            f"{line.found:.2f}" if is_tau else f"{line.found:.1%}",
            f">= {line.target:.2f}" if is_tau else f"<= {line.target:.0%}",
            "holds" if line.holds else "MISSED",
        )
    if found:
        yield asked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
