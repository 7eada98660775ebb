"""Certificates: files that say that A beats B, with all that somebody needs to check it.

A certificate holds both commands, the digests of code, configuration and trace, the times of every
sequence, the interval and its coverage, and the proven bound. What a reader computes again from it
is told apart from what only a rerun shows: hits, makespans, bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sim.answers.comparison import SAME, row_conditions
from sim.board.chosen import chosen_fault, header_of
from sim.board.entries import PARTS, Board, Entry, bytes_in, code_of, command_of, title_of
from sim.results.coverage import coverage_at
from sim.results.labels import labels_in
from sim.results.paired import paired
from sim.setup.configure import last_of_each
from sim.setup.parts import make_hardware, make_model
from sim.setup.refusals import checked_settings
from sim.setup.sections import make_object
from sim.setup.traces import trace_directory
from sim.study.cells import Cell, make_cell
from sim.study.plan import Plan
from sim.study.rows import DONE, Row
from sim.study.worker import run_cell
from sim.traces.reading import checked_header
from sim.traces.trace import trace_sha256
from sim.values.code import digest, versions
from sim.values.places import CONF

TARGET = re.compile(r"_target_:\s*([\w.]+)")
KIND, SCHEMA = "moelab certificate", 1
LARGEST_BYTES = 1 << 22
SIDES = ("a", "b")
MEASURE = "time of the steps that decode, by sequence; ratio: b's time over a's"
CODE = "code that its run imports"
"""Other code is no fault where a rerun gives the same numbers."""
PAIR = "pair: ratio, interval, coverage and verdict from the sequences' times"
NEAR = 1e-9
"""Floats agree up to this share: they went through the same formula, perhaps in another order."""


def certificate(board: Board, ours: Entry, theirs: Entry) -> dict[str, Any]:
    """The certificate of how fast ``ours`` is against ``theirs``."""
    ahead = board.ahead(ours, theirs)
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "claim": {"a": ours.name, "b": theirs.name, "a_is": ahead.verdict},
        "measure": MEASURE,
        "board": board.title,
        "trace_sha256": ours.row["trace_sha256"],
        "conditions": digest(board.conditions),
        "sequences": list(ours.row["sequence"]),
        "runs": {"a": _run(ours), "b": _run(theirs)},
        "pair": {
            "ratio": ahead.speedup,
            "interval_95": None if ahead.interval is None else list(ahead.interval),
            "coverage": None if board.coverage is None else asdict(board.coverage),
        },
        "versions": versions(),
    }


def _run(entry: Entry) -> dict[str, Any]:
    row = entry.row
    return {
        "command": entry.command,
        "words": entry.words,
        "key": row["key"],
        "code": code_of(json.loads(row["config"])),
        "labels": entry.labels.row(),
        **_numbers(row),
    }


def _numbers(row: Row) -> dict[str, Any]:
    """What a run's row says that a certificate has."""
    lower, gap = row["bounds.lower_s"], row["gap"]
    return {
        "decode_ns": list(row["decode_ns"]),
        "decode_tokens": list(row["decode_tokens"]),
        "tokens_per_s": row["decode_tokens_per_s"],
        "hit_ratio": row["hit_ratio"],
        "makespan_s": row["makespan_s"],
        "bound": row["bounds.method"],
        "lower_s": lower,
        "at_most_faster": None if gap is None else 1 + gap,
    }


@dataclass(frozen=True)
class Check:
    """One thing that was checked: ``fault`` says what is wrong, empty where nothing is.

    A ``note`` is no fault of the certificate, but the reader should know of it.
    """

    what: str
    fault: str = ""
    note: str = ""


def read_certificate(place: Path) -> dict[str, Any]:
    """The certificate in a file; raise ValueError, naming the key, for what is none."""
    if not place.is_file():
        raise ValueError(
            f"{place} is no file; moelab leaderboard writes certificates, into"
            " outputs/leaderboard/certificates unless told otherwise"
        )
    size = place.stat().st_size
    if size > LARGEST_BYTES:
        raise ValueError(f"{place} has {size} bytes, and no certificate has over {LARGEST_BYTES}")
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{place} is no JSON: {error}") from None
    if not isinstance(found, dict) or (found.get("kind"), found.get("schema")) != (KIND, SCHEMA):
        raise ValueError(f"{place} is no certificate of schema {SCHEMA}: moelab leaderboard writes")
    _check_shape(found, place)
    return found


TEXT, NUMBER, NUMBERS, WORDS = "text", "a number above 0", "numbers from 0 on", "words"
SECTION, LABELS, INTERVAL = "a section", "a section of texts", "two numbers above 0, or null"
BOUND, SHARE = "a number above 0, or null", "a share, or null"
SHAPE = {
    "claim": SECTION,
    "claim.a": TEXT,
    "claim.b": TEXT,
    "claim.a_is": TEXT,
    "trace_sha256": TEXT,
    "conditions": TEXT,
    "sequences": NUMBERS,
    "runs": SECTION,
    "pair": SECTION,
    "pair.ratio": NUMBER,
    "pair.interval_95": INTERVAL,
    "board": TEXT,
}
RUN_SHAPE = {
    "words": WORDS,
    "key": TEXT,
    "code": TEXT,
    "decode_ns": NUMBERS,
    "decode_tokens": NUMBERS,
    "tokens_per_s": NUMBER,
    "makespan_s": NUMBER,
    "hit_ratio": SHARE,
    "bound": TEXT,
    "lower_s": BOUND,
    "at_most_faster": BOUND,
    "labels": LABELS,
}


def _check_shape(found: Mapping[str, Any], place: Path) -> None:
    wanted = {**SHAPE, **{f"runs.{side}": SECTION for side in SIDES}}
    wanted |= {f"runs.{side}.{key}": kind for side in SIDES for key, kind in RUN_SHAPE.items()}
    for path, kind in wanted.items():
        value: Any = found
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if not _is(value, kind):
            shown = repr(value)[:60]
            raise ValueError(f"{place}: {path} must be {kind}, got {shown}; write it again")


def _is(value: object, kind: str) -> bool:
    if kind in (SECTION, LABELS):
        return isinstance(value, dict) and (kind == SECTION or all(map(_is_label, value.values())))
    if kind == TEXT:
        return isinstance(value, str) and value.isprintable()
    if kind == NUMBER:
        return _is_number(value) and value != 0
    if kind == SHARE:
        return value is None or (_is_number(value) and float(value) <= 1)  # type: ignore[arg-type]
    if kind == BOUND:
        return value is None or _is(value, NUMBER)
    if kind == INTERVAL and value is None:
        return True
    if not isinstance(value, list) or not value:
        return False
    if kind == WORDS:
        return all(_is(word, TEXT) for word in value)
    if kind == INTERVAL:
        return len(value) == 2 and all(_is(end, NUMBER) for end in value)
    return all(map(_is_number, value))


def _is_number(value: object) -> bool:
    """Whether it is a number from 0 on that is finite: no NaN, either."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _is_label(value: object) -> bool:
    return (
        value is None
        or _is(value, TEXT)
        or (isinstance(value, list) and all(_is(one, TEXT) for one in value))
    )


def checks(found: Mapping[str, Any], rerun: bool) -> Iterator[Check]:
    """Check a certificate, one thing after the other. With ``rerun`` both runs are made again.

    Raise ValueError for words that are no configuration of this project.
    """
    cells = {side: _cell(found["runs"][side]["words"]) for side in SIDES}
    for side in SIDES:
        yield from _check_origin(found["runs"][side], cells[side], side, rerun)
        # Digests of code have the versions in them, so these are told right where those are.
        if code_of(cells[side].config) == found["runs"][side]["code"]:
            fault = "" if found.get("versions") == versions() else f"they are {versions()}"
            yield Check(f"{side}: versions that its code has", fault)
    yield _check_trace(found, cells)
    same, chosen = _check_conditions(found, cells), _check_sequences(found, cells["a"])
    yield from (same, chosen, _check_told(found, cells))
    for side in SIDES:
        yield from _check_sums(found["runs"][side], side)
    # Coverage takes memory by the sequence, and a forged file may name any number of them.
    is_sound = not (same.fault or chosen.fault)
    yield _check_pair(found) if is_sound else Check(PAIR, "not computed of such sequences")
    if rerun:
        for side in SIDES:
            yield _check_rerun(found, side, cells[side])


def _cell(words: Sequence[str]) -> Cell:
    """The configuration of a certificate's words, which may choose only this project's classes."""
    for word in words:
        key = word.lstrip("+~").partition("=")[0]
        if key.startswith("hydra") or "output_dir" in key or word.startswith("-"):
            raise ValueError(
                f"{word!r} is no word of a certificate: it chooses where files lie; what is to be"
                " certified lies in conf"
            )
    cell = make_cell(Plan("certificate", base=tuple(words)), {})
    _check_targets(cell.config)
    # What is checked below counts and compares with their values, so these must be such.
    for name in ("trace", "workload"):
        make_object(checked_settings(cell.config)[name], name)
    return cell


def _check_targets(config: object) -> None:
    """Raise ValueError for a class that no file of ``conf/`` names: it might do anything."""
    if isinstance(config, Mapping):
        target = config.get("_target_")
        if target is not None and target not in _targets():
            raise ValueError(
                f"_target_={target} is in no file of conf: if you trust it, run the command yourself"
            )
        for value in config.values():
            _check_targets(value)
    elif isinstance(config, list | tuple):
        for value in config:
            _check_targets(value)


@cache
def _targets() -> frozenset[str]:
    """The classes that files of ``conf/`` choose."""
    return frozenset(
        found
        for path in CONF.rglob("*.yaml")
        for found in TARGET.findall(path.read_text(encoding="utf-8"))
    )


def _check_origin(run: Mapping[str, Any], cell: Cell, side: str, rerun: bool) -> Iterator[Check]:
    """Whether the code is the certificate's, and the words give its configuration."""
    code = code_of(cell.config)
    same = code == run["code"]
    told = f"it was made by code {run['code']}, and here is {code}"
    after = "the rerun below tells whether that matters" if rerun else "rerun=yes shows whether"
    yield Check(
        f"{side}: {CODE}",
        "" if same or rerun else f"{told}; {after} its numbers hold",
        "" if same or not rerun else f"{told}; {after}",
    )
    key = digest(cell.key, run["code"])
    fault = "" if key == run["key"] else f"these words give {key}, the certificate has {run['key']}"
    yield Check(f"{side}: configuration and trace of its words", fault)


def _check_trace(found: Mapping[str, Any], cells: Mapping[str, Cell]) -> Check:
    """Whether the trace's files have the bytes that the certificate names."""
    what = "trace: sha256 of every file"
    for side, cell in cells.items():
        try:
            header = checked_header(trace_directory(str(cell.config["trace"]["path"])))
        except (OSError, ValueError) as error:
            return Check(what, f"{side}: {error}")
        if trace_sha256(header) != found["trace_sha256"]:
            return Check(
                what,
                f"{side}: {trace_sha256(header)}, not {found['trace_sha256']}, as was certified",
            )
    return Check(what)


def _check_conditions(found: Mapping[str, Any], cells: Mapping[str, Cell]) -> Check:
    """Whether both runs are of the same work, model and machine."""
    a, b = (cells[side].config for side in SIDES)
    differ = [name for name in SAME if a[name] != b[name]]
    fault = f"they differ in {', '.join(differ)}" if differ else ""
    for name, told in (("decode_ns", "times"), ("decode_tokens", "tokens")):
        counts = [len(found["runs"][side][name]) for side in SIDES]
        if {*counts, len(found["sequences"])} != {counts[0]}:
            sequences = len(found["sequences"])
            fault = fault or f"{told} of {counts[0]} and {counts[1]} sequences, of {sequences}"
    return Check("both runs: the same work, model, machine and sequences", fault)


def _check_sequences(found: Mapping[str, Any], cell: Cell) -> Check:
    """Whether the sequences are those that the words choose."""
    what = "sequences: those that the words choose"
    try:
        return Check(what, chosen_fault(found["sequences"], cell.config))
    except (OSError, ValueError) as error:
        return Check(what, str(error))


def _check_told(found: Mapping[str, Any], cells: Mapping[str, Cell]) -> Check:
    """Whether names, commands and the board's title say what the words say."""
    what = "names, commands and title from the words"
    for side, cell in cells.items():
        run, name = found["runs"][side], found["claim"][side]
        if run.get("command") != command_of(run["words"]):
            return Check(what, f"{side}: {run.get('command')} is not {command_of(run['words'])}")
        values = {word.partition("=")[2] for word in cell.words if word.split("=")[0] in PARTS}
        known = {*cell.words, *cell.system.split(), *values}
        named = name.split() or ["nothing"]
        if wrong := [word for word in named if word not in known and word[0] != "#"]:
            return Check(what, f"{side} is called {name}, but {wrong[0]} is none of its words")
        if (
            named[0] not in _parts_of(cell)
            and named[: len(cell.system.split())] != cell.system.split()
        ):
            return Check(what, f"{side} is called {name}, but it is {cell.system}")
    config = cells["a"].config
    try:
        header = header_of(config)
    except (OSError, ValueError) as error:
        return Check(what, str(error))
    model, machine = make_model(config).name, make_hardware(config).title
    title = title_of(header.name, config["trace"]["split"], len(found["sequences"]), model, machine)
    if not found["board"].startswith(title):
        return Check(what, f"the board is {found['board']}, not {title}..")
    return Check(what, "" if found.get("measure") == MEASURE else f"the measure is not: {MEASURE}")


def _parts_of(cell: Cell) -> set[str]:
    """The parts that its words choose, any of which an entrant may be called by."""
    last = last_of_each(cell.words)
    return {last[part].partition("=")[2] for part in PARTS if part in last and part != "system"}


def _check_sums(run: Mapping[str, Any], side: str) -> Iterator[Check]:
    """Whether a run's totals follow from its parts."""
    rate = sum(run["decode_tokens"]) / max(sum(run["decode_ns"]), 1) * 1e9
    yield Check(
        f"{side}: tokens/s from its sequences",
        "" if _near(rate, run["tokens_per_s"]) else f"{rate:.6g}, not {run['tokens_per_s']}",
    )
    lower, most = run.get("lower_s"), run.get("at_most_faster")
    if (lower, most) != (None, None):
        told = None if lower is None else run["makespan_s"] / lower
        shown = "there is no bound" if told is None else f"{told:.6g}"
        yield Check(
            f"{side}: distance to its bound", "" if _near(told, most) else f"{shown}, not {most}"
        )


def _check_pair(found: Mapping[str, Any]) -> Check:
    """Whether ratio, interval, coverage and verdict follow from the sequences' times."""
    what, told = PAIR, found["pair"]
    a, b = (np.array(found["runs"][side]["decode_ns"], np.float64) for side in SIDES)
    if len(a) != len(b):
        return Check(what, "the runs have different numbers of sequences")
    ahead = paired(a, b)
    covers = coverage_at(np.array(found["runs"]["a"]["decode_tokens"], np.float64))
    for name, mine, theirs in (
        ("ratio", ahead.speedup, told["ratio"]),
        ("interval_95", ahead.interval and list(ahead.interval), told.get("interval_95")),
        ("coverage", covers and asdict(covers), told.get("coverage")),
        ("a_is", ahead.verdict, found["claim"]["a_is"]),
    ):
        if not _near(mine, theirs):
            return Check(what, f"{name} is {mine}, not {theirs}")
    return Check(what)


def _check_rerun(found: Mapping[str, Any], side: str, cell: Cell) -> Check:
    """Whether a run that is made again has the numbers of the certificate."""
    what = f"{side}: run again"
    row = run_cell("certificate", cell, "")
    if row["status"] != DONE:
        return Check(what, f"it is {row['status']}: {row['error']}")
    certified, conditions = found["runs"][side], row_conditions(row)
    if digest(json.loads(json.dumps(conditions))) != found["conditions"]:
        return Check(what, "its sequences, bytes or machine are not the certificate's")
    title = bytes_in("", conditions["bytes for experts"])
    if found["board"].rpartition(", ")[2] != title:
        return Check(what, f"it has {title}, the certificate's board {found['board']}")
    labels = labels_in(json.loads(row["summary"])).row()
    for name, value in {**_numbers(row), "labels": labels}.items():
        if not _near(value, certified.get(name)):
            return Check(what, f"{name} is {value}, not {certified.get(name)}")
    return Check(what)


def _near(mine: Any, theirs: Any) -> bool:
    """Equal, floats up to `NEAR` of themselves, in lists and sections, too."""
    if isinstance(mine, dict):
        return (
            isinstance(theirs, dict)
            and mine.keys() == theirs.keys()
            and all(_near(value, theirs[key]) for key, value in mine.items())
        )
    if isinstance(mine, list):
        return (
            isinstance(theirs, list) and len(mine) == len(theirs) and all(map(_near, mine, theirs))
        )
    if isinstance(mine, float) and isinstance(theirs, int | float):
        return abs(mine - theirs) <= NEAR * max(abs(mine), abs(theirs))
    return bool(mine == theirs)
