"""``python -m real.predict data=DIR``: how far simulated times are from a measured machine's runs.

    python -m real.predict data=DIR [calibrating=RUN,.. | calibrating=none] [MODEL:KEY=VALUE ...]

DIR holds what a machine left: ``suite/`` (``calibration.json``, ``facts.json``, ``replay.json``)
and ``recordings/`` (folders of ``python -m real``). A machine is made of the calibration and of the
recordings named by ``calibrating`` (by default those of lru, as ``real.calibrate`` makes one, and
those that bring parts of experts, which alone tell how long it takes to choose rows). All replays
and recordings are then simulated on it, and their time per token is compared. Systems whose runs
were used are fitted: shown, not scored. Exit status: 1 where a target is missed.

``MODEL:KEY=VALUE`` changes the simulation of recordings of that model, such as
``qwen3_30b_a3b:trace.path=DIR``. Two controls must miss a target: ``rates=1.1`` makes everything
that was measured take so many times as long; ``contention=off`` leaves out who slows whom.
``output_dir=DIR`` keeps the machine's file and ``predicted.json``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from real.suite.prediction import (
    Line,
    Row,
    calibrating_facts,
    calibrating_runs,
    lines,
    noise_of,
    predict,
    slower,
    write_machine,
)
from sim.results.outputs import check_writable

OWN = ("data", "calibrating", "rates", "contention", "output_dir")


def main(arguments: Sequence[str]) -> int:
    """Print the table. Exit status: 0; 1 where a target is missed; 2 for words that are wrong."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0 if arguments else 2
    try:
        given, words = _parsed(arguments)
        with tempfile.TemporaryDirectory() as made:
            place = Path(given["output_dir"]) if "output_dir" in given else Path(made)
            if "output_dir" in given:
                check_writable(place)
            rows = _rows(given, words, place)
            found = lines(rows, noise_of(Path(given["data"])))
            if "output_dir" in given:
                told = [asdict(row) | {"error": row.error} for row in rows]
                text = json.dumps(
                    {"rows": told, "lines": [asdict(line) for line in found]}, indent=1
                )
                (place / "predicted.json").write_text(text + "\n", encoding="utf-8")
    except (ValueError, OSError, OmegaConfBaseException) as error:
        print(f"error: {str(error).strip()}", file=sys.stderr)
        return 2
    Console().print(table_of(rows, found))
    return 0 if all(line.holds for line in found) else 1


def _parsed(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    given, words = {"rates": "1", "contention": "on"}, []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in OWN and value:
            given[key] = value
        elif ":" in key and value:
            words.append(argument)
        else:
            raise ValueError(
                f"{argument!r} is neither KEY=VALUE of {', '.join(OWN)} nor MODEL:KEY=VALUE"
            )
    if "data" not in given:
        raise ValueError("data=DIR is missing: the folder with suite/ and recordings/")
    if given["contention"] not in ("on", "off"):
        raise ValueError(f"contention={given['contention']}; allowed: on, off")
    return given, words


def _rows(given: dict[str, str], words: Sequence[str], place: Path) -> list[Row]:
    folder = Path(given["data"])
    asked = given.get("calibrating")
    if asked is None:
        runs = calibrating_runs(folder)
    else:
        runs = [] if asked == "none" else asked.split(",")
    facts, params = calibrating_facts(folder, runs)
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


def table_of(rows: Sequence[Row], found: Sequence[Line]) -> Table:
    """Every run, and below them the lines that are asked for."""
    table = Table("run", "resident", "recorded ms", "simulated ms", "error", "")
    for row in rows:
        error = row.error
        table.add_row(
            f"{row.source}: {escape(row.system)}",
            f"{row.share:.0%}",
            f"{row.recorded_s * 1e3:.1f}",
            "-" if row.predicted_s is None else f"{row.predicted_s * 1e3:.1f}",
            "-" if error is None else f"{error:+.1%}",
            "fitted, not scored" if row.fitted else escape(row.left_out[:60]),
        )
    table.add_section()
    for line in found:
        is_tau = line.what.endswith("tau")
        number = f"{line.found:.2f}" if is_tau else f"{line.found:+.1%}"
        target = f">= {line.target:.2f}" if is_tau else f"<= {line.target:.0%}"
        table.add_row(
            line.what, "", "", "", number, f"{target}: {'holds' if line.holds else 'MISSED'}"
        )
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
