"""Reads the files of a suite back, as a machine left them: of their shape before they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from sim.results.kept import ABOVE_0, NUMBER, TEXT, Kind, Shape, check_shape

GPU: Shape = {"gpu": TEXT}
LISTED = Kind("a list of sections", lambda value: isinstance(value, list))
FACTS: Shape = {**GPU, "processor": TEXT, "date": TEXT, "gather": LISTED}
GATHER: Shape = {"gather": TEXT, **dict.fromkeys(("threads", "columns", "bytes_per_s"), NUMBER)}
CELL: Shape = {
    "cell": Kind(
        "a system and a share, such as lru 0.25",
        lambda value: isinstance(value, str) and _is_share(value.rpartition(" ")[2]),
    )
}
ENDED: Shape = {"result": {"tpot_s": {"mean": ABOVE_0}}}
KERNEL: Shape = {"operator": TEXT, "read_bytes": NUMBER, "median_ns": NUMBER}
CASE: Shape = {
    "system": TEXT,
    **dict.fromkeys(("resident_share", "measured_s", "predicted_s", "noise"), NUMBER),
}
NOISE: Shape = {"noise": NUMBER}


def of_suite(folder: Path, name: str, shape: Shape) -> dict[str, Any]:
    """A file of the suite in ``folder``. Raise ValueError, with file, key and way out, for one that
    is not there, cannot be read, or is of another shape.
    """
    place = folder / "suite" / name
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{place} cannot be read ({error.strerror}): name a folder with suite/, which moelab"
            " suite leaves, and recordings/"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is no JSON ({error}); restore it, or run the suite") from None
    check_shape(found, shape, str(place))
    return dict(found)


def rows_of_suite(folder: Path, name: str, key: str, shape: Shape) -> list[dict[str, Any]]:
    """The sections below ``key`` of such a file; empty where the suite left no such file."""
    place = folder / "suite" / name
    if not place.is_file():
        return []
    rows: list[dict[str, Any]] = of_suite(folder, name, {key: LISTED})[key]
    for number, row in enumerate(rows):
        check_shape(row, shape, f"{place}: {key} {number}")
    return rows


def replays(folder: Path) -> list[dict[str, Any]]:
    """The rows of the suite's replays (`real.suite.context.Cells`); empty where it ran none."""
    rows = rows_of_suite(folder, "replay.json", "rows", CELL)
    for row in rows:
        shape = ENDED if "result" in row else {"status": TEXT}
        check_shape(row, shape, f"{folder}/suite/replay.json: {row['cell']}")
    return rows


def memory_gib(folder: Path) -> float | None:
    """The device's memory, as the calibration's own machine has it; None without one."""
    for place in sorted((folder / "suite" / "hardware").glob("*.yaml")):
        try:
            return float(yaml.safe_load(place.read_text(encoding="utf-8"))["memory_gib"])
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            told = " ".join(str(error).split())
            raise ValueError(f"{place} has no memory_gib ({told}); restore it") from None
    return None


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False
