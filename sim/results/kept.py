"""Reads the summary of a run back from its folder: the one reader for all commands but the audit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sim.results.metrics import SCHEMA
from sim.results.stalls import STALL_PARTS
from sim.values.fields import read_json
from sim.values.places import UNFINISHED, is_unfinished

SUMMARY = "summary.json"
RUN_AGAIN = "run it again"
PREFETCH_ENDS = (
    "promoted",
    "cancelled",
    "dropped_no_slot",
    "used",
    "late",
    "dropped",
    "evicted_unused",
    "unused_at_end",
)
"""What becomes of prefetches that were queued."""


Shape = Mapping[str, "Kind | Shape"]


class Kind:
    """What a value must be, in words, and whether one is.

    ``may_lack``: earlier versions did not write it.
    """

    def __init__(self, told: str, is_one: Callable[[Any], bool], may_lack: bool = False) -> None:
        self.told, self.is_one, self.may_lack = told, is_one, may_lack

    def or_null(self) -> Kind:
        return Kind(f"{self.told} or null", lambda value: value is None or self.is_one(value))

    def or_lacking(self) -> Kind:
        return Kind(self.told, self.is_one, may_lack=True)


LARGEST = float(1 << 63)
"""Numbers of runs are below it. Whatever is computed of them then stays a number, too."""


def is_number(value: Any) -> bool:
    """Whether it is one that a run may have; NaN is none."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and -LARGEST < value < LARGEST


def _is_table(of: Kind) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(of.is_one, value.values()))


def _is_list(of: Kind) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(of.is_one, value))


TEXT = Kind("a text", lambda value: isinstance(value, str))
NUMBER = Kind("a number", is_number)
ABOVE_0 = Kind("a number above 0", lambda value: is_number(value) and value > 0)
NUMBERS = Kind("numbers by name", _is_table(NUMBER))
TABLE = Kind("values by name", lambda value: isinstance(value, dict))
QUALITY = Kind(
    "low_share, skip_share and others, each a number or null",
    lambda value: _is_table(NUMBER.or_null())(value) and {"low_share", "skip_share"} <= {*value},
)
BYTES_OF_TRACE = Kind(
    "taken (true or false), most (a number), note (a text or null) and others",
    lambda value: (
        isinstance(value, dict)
        and isinstance(value.get("taken"), bool)
        and is_number(value.get("most"))
        and isinstance(value.get("note", 0), str | None)
    ),
)
MEAN: Shape = {"mean": NUMBER.or_null()}
INTERVAL = Kind("two numbers", lambda value: _is_list(NUMBER)(value) and len(value) == 2)
SHAPE: Shape = {
    "system": TEXT,
    "workload": TEXT,
    "model": TEXT,
    "hardware": TEXT,
    "seed": Kind("a whole number", lambda value: type(value) is int),
    "trace": {
        "name": TEXT,
        "sha256": TEXT,
        "numbers": Kind("a list of numbers", _is_list(NUMBER)),
        "sequences": NUMBER,
        "split": TEXT,
        "findings": Kind("a list of texts", _is_list(TEXT)).or_null().or_lacking(),
        "expert_bytes": BYTES_OF_TRACE.or_null().or_lacking(),
    },
    "labels": Kind("texts by name, or null", _is_table(TEXT.or_null())),
    "overrides": Kind("a list of texts", _is_list(TEXT)),
    "budget": {
        "allowed_bytes": NUMBER,
        "device_bytes": NUMBER,
        "initial_bytes": NUMBER,
        "resident_share": ABOVE_0,
        "slots": Kind("numbers by precision", lambda value: bool(value) and NUMBERS.is_one(value)),
        "slot_bytes": NUMBERS,
    },
    "makespan_s": NUMBER,
    "compute_busy_s": NUMBER,
    "decode_tokens_per_s": ABOVE_0.or_null(),
    "hit_ratio": NUMBER.or_null(),
    "stall_s": dict.fromkeys(STALL_PARTS, NUMBER),
    "prefetch": dict.fromkeys(PREFETCH_ENDS, NUMBER),
    "link_utilisation": NUMBERS,
    "peak_bytes": TABLE,
    "quality_proxy": QUALITY,
    "ttft_s": MEAN,
    "tpot_s": MEAN,
    "gap": NUMBER.or_null(),
    "calibration": TABLE,
    "contracts": TABLE,
    "ci95": {"decode_tokens_per_s": INTERVAL.or_null()},
}
"""What commands read of a summary. It may have more."""
OF_RECORDING: Shape = {
    "system": TEXT,
    "hardware": TEXT,
    "budget": {"resident_share": ABOVE_0},
}
"""What is read to simulate a run again."""
OF_HISTORY: Shape = {
    "trace": {"sha256": TEXT},
    "labels": SHAPE["labels"],
    "overrides": SHAPE["overrides"],
}
"""What is read beside the tables to tell the history of keys."""


def check_whole(folder: Path) -> None:
    """Raise ValueError for a folder of results that a command is writing into, or was killed in."""
    try:
        unfinished = is_unfinished(folder)
    except OSError as error:
        raise ValueError(f"{folder} cannot be read ({error}); let it be read, or copy it") from None
    if unfinished:
        raise ValueError(
            f"{folder} is not whole: {UNFINISHED} lies in it, so a command is writing there, was"
            " stopped by force, or it was copied meanwhile; wait for that command, or give it again"
        )


def read_summary(folder: Path, shape: Shape = SHAPE) -> dict[str, Any]:
    """The summary of the run in ``folder``, with all that ``shape`` names.

    Raise ValueError, with file, key, finding and way out, for a folder without a run, for one that
    is not whole, and for a summary of another version or one that was changed.
    """
    place = folder / SUMMARY
    check_whole(folder)
    if not place.is_file():
        why = "there is no such folder" if not folder.exists() else f"no {SUMMARY} is in it"
        raise ValueError(f"{folder} holds no run: {why}; name what moelab run wrote")
    try:
        found = read_json(place.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{place} cannot be read ({error}); {RUN_AGAIN}") from None
    return check_summary(found, str(place), shape)


def check_summary(found: object, name: str, shape: Shape = SHAPE) -> dict[str, Any]:
    """A summary, once it has all that ``shape`` names. Raise ValueError, with its ``name``, if not."""
    if not isinstance(found, dict):
        raise ValueError(f"{name} is no summary of a run: it is no JSON object; {RUN_AGAIN}")
    if (version := found.get("schema")) != SCHEMA or isinstance(version, bool):
        raise ValueError(
            f"{name} has schema={_short(version)}, and this version reads {SCHEMA}: another version"
            f" wrote it, or it is no summary of a run; {RUN_AGAIN}"
        )
    check_shape(found, shape, name)
    return {str(key): value for key, value in found.items()}


def check_shape(value: Any, shape: Shape, name: str, path: str = "") -> None:
    """Raise ValueError, with its ``name`` and the key, for values that are not of this shape."""
    for key, kind in shape.items():
        dotted = f"{path}{key}"
        if (
            isinstance(kind, Kind)
            and kind.may_lack
            and isinstance(value, dict)
            and key not in value
        ):
            continue
        if not isinstance(value, dict) or key not in value:
            raise ValueError(
                f"{name} lacks {dotted}: it was changed, or another version wrote it; {RUN_AGAIN}"
            )
        if isinstance(kind, Kind):
            if not kind.is_one(value[key]):
                raise ValueError(
                    f"{name} has {dotted}={_short(value[key])}, which must be {kind.told}; it was"
                    f" changed: {RUN_AGAIN}"
                )
        else:
            check_shape(value[key], kind, name, f"{dotted}.")


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
