"""The command that measures how often `sim.check` finds what is wrong in a phone's log.

``python tests/differential/localised.py OUT.jsonl [engines=1000] [texts=1000] [ties=20]``

The logs come from faulty engines, and from right logs whose text was altered. Each log is one line
of OUT.jsonl, written when it is done. So a killed run continues with the same command, and later
runs add logs to those that are there. The table is printed at the end, and on Ctrl-C with the
counts so far. Logs are drawn by (kind, seed), with seeds from 0 on, kind by kind in turn. A log
that no flag distinguishes from the right engine's is kept as such, and the next seed is drawn.
docs/check.md defines what is counted.

``ties`` takes so many engines whose fault is not decidable, kind by kind in turn. For each it
counts how many of `DROPPED` other experts leave the very same flags if they are dropped in the
batch of the fault (or are the wrong victim of the same other expert). Only plain Python decides
that.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import chain, count, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from altered_phone import (
    BUDGET,
    CONTRACT,
    ROUTES,
    Altered,
    first_steps,
    flip,
    resize,
)
from faulty_phone import TOLD_AS, Course, Wrong, course, draw_case, is_told
from rich.console import Console
from rich.progress import track

from capture.import_trace import main as import_trace
from sim.checking.cache_replay import Replayer
from sim.checking.cache_walk import CacheWalk
from sim.checking.fault_search import FLAG, Explanation, FaultSearch
from sim.traces.residency_log import ResidencyLog, read_log

DECODED = 24
"""Decoded tokens of each log, after the prompt."""
DROPPED = 100
"""Experts that were there, drawn from all of them, of which each is dropped instead."""
ALTERATIONS = (flip, resize)
"""The single faults of a text."""
TEXTS = {alter.__name__: alter for alter in ALTERATIONS}
Record = dict[str, Any]


def phone_log() -> ResidencyLog:
    """The prompt and the first decoded tokens of the published run."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "trace"
        if import_trace(["format=bigmoe", f"path={ROUTES}", f"output_dir={made}"]):
            raise SystemExit(2)
        return first_steps(read_log(made), DECODED)


class Checked:
    """The unaltered log under its contract, for all logs that have its lookups and other flags."""

    def __init__(self, log: ResidencyLog) -> None:
        self._log = log
        replayer = Replayer(log)
        self._replay = replayer.replay(CONTRACT, BUDGET)
        self._walk = CacheWalk(replayer, CONTRACT, BUDGET, self._replay)

    def search(self, log: ResidencyLog) -> tuple[CacheWalk, tuple[Explanation, ...], bool]:
        """The contract's walk through a log, the faults that are told, and whether all were
        tried.
        """
        if log.trace is self._log.trace or np.array_equal(log.expert, self._log.expert):
            walk = self._walk.of(log, self._replay)
        else:
            replayer = Replayer(log)
            walk = CacheWalk(replayer, CONTRACT, BUDGET, replayer.replay(CONTRACT, BUDGET))
        found = FaultSearch(walk).search()
        return walk, found.explanations, found.is_complete


def of_engine(kind: str, seed: int, right: Course, log: ResidencyLog, checked: Checked) -> Record:
    """One faulty engine's log: whether its fault shows, is decidable, and is told of; and how
    many others are.
    """
    case = draw_case(kind, seed, right, log, BUDGET)
    if case is None:
        return {"shows": False}
    walk, found, complete = checked.search(case.log)
    first = int(np.flatnonzero(case.log.resident != log.resident)[0])
    if kind == "flag":
        mine = [one for one in found if one.kind == FLAG and named(walk, one) == {first}]
    else:
        mine = [one for one in found if is_told(one, case.wrong, right, walk.replayer.units)]
    return {
        "shows": True,
        "decidable": case.decidable,
        "told": bool(mine),
        "explanations": len(found),
        "first": int(walk.wrong[0]) == first,
        "one_batch": bool(mine) and mine[0].first.tick == mine[0].last.tick,
        "complete": complete,
    }


def named(walk: CacheWalk, explanation: Explanation) -> set[int]:
    """The lookups of the log whose flag alone an explanation says is wrong."""
    if explanation.kind != FLAG:
        return set()
    tick, key = explanation.first.tick, explanation.first.key
    replayer = walk.replayer
    return {
        int(one) for one in walk.wrong if replayer.tick[one] == tick and replayer.keys[one] == key
    }


def of_text(kind: str, seed: int, log: ResidencyLog, checked: Checked) -> Record:
    """One altered log: whether a flag contradicts it, whether the first that does is told, whether
    the alteration itself is, and beside how many engines' faults that give every flag as well.
    """
    made: Altered = TEXTS[kind](log, np.random.default_rng((ALTERATIONS.index(TEXTS[kind]), seed)))
    if made.first is None:
        return {"shows": False}
    walk, found, complete = checked.search(made.log)
    told = {
        "flip": any(set(made.lookups) <= named(walk, one) for one in found),
        "resize": int(walk.wrong[0]) in made.lookups,
    }[kind]
    return {
        "shows": True,
        "first": int(walk.wrong[0]) == made.first,
        "told": told,
        "engines": sum(one.kind != FLAG for one in found),
        "complete": complete,
        "deviations": len(walk.wrong),
    }


def of_ties(kind: str, seed: int, right: Course, log: ResidencyLog) -> Record:
    """How many of some other experts that were there would leave the same flags, were they dropped
    instead (or evicted for the same other one); and whether a cache would that has an expert's
    bytes fewer from that batch on."""
    case = draw_case(kind, seed, right, log, BUDGET)
    assert case is not None
    batch, flags = case.wrong.batch, case.log.resident.tolist()
    held = [key for key in right.held[batch] if key != case.wrong.key]
    some = np.random.default_rng(seed).choice(len(held), DROPPED, replace=False).tolist()
    other = (kind, case.wrong.other) if kind == "wrong victim" else ("not admitted", None)
    alike = sum(
        course(log, BUDGET, Wrong(other[0], batch, held[place], other[1])).flags == flags
        for place in some
    )
    sizes = sorted({-size for size in log.expert_bytes})
    smaller = any(
        course(log, BUDGET, Wrong("budget", batch, change_bytes=change)).flags == flags
        for change in sizes
    )
    return {"shows": True, "alike": alike, "held": len(held), "smaller": smaller}


def undecidable(done: list[Record], number: int) -> list[tuple[str, str, int]]:
    """The first of each kind in turn that have no ties counted."""
    found: dict[str, list[int]] = {}
    for one in done:
        if one["what"] == "engine" and one["shows"] and not one["decidable"]:
            found.setdefault(one["kind"], []).append(one["seed"])
    turns = chain.from_iterable(
        zip_longest(*([(kind, seed) for seed in seeds] for kind, seeds in found.items()))
    )
    counted = {(one["kind"], one["seed"]) for one in done if one["what"] == "ties"}
    chosen = list(islice((turn for turn in turns if turn is not None), number))
    return [("ties", *turn) for turn in chosen if turn not in counted]


def read(path: Path) -> list[Record]:
    """The logs that are done; a line that a kill cut short is cut off the file."""
    if not path.exists():
        return []
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        path.write_bytes(whole)
    return [json.loads(line) for line in whole.splitlines()]


def wanted(done: list[Record], engines: int, texts: int) -> Iterator[tuple[str, str, int]]:
    """What is left to do: which, kind and seed, kinds in turn, until so many logs of each show; the
    caller keeps ``done``."""
    which = [("engine", kind, engines / len(TOLD_AS)) for kind in TOLD_AS]
    which += [("text", kind, texts / len(TEXTS)) for kind in TEXTS]
    seeds = {(what, kind): count() for what, kind, _ in which}
    open_kinds = dict.fromkeys(seeds)
    while open_kinds:
        for what, kind, number in which:
            mine = [one for one in done if (one["what"], one["kind"]) == (what, kind)]
            if sum(one["shows"] for one in mine) >= number or len(mine) > 40 * number:
                open_kinds.pop((what, kind), None)
                continue
            tried = {one["seed"] for one in mine}
            yield what, kind, next(seed for seed in seeds[what, kind] if seed not in tried)


def cells(*values: object) -> str:
    return f"| {' | '.join(map(str, values))} |"


def number(records: list[Record], name: str) -> int:
    return sum(bool(one[name]) for one in records)


def table(done: list[Record]) -> Iterator[str]:
    """The counts, kind by kind and in all."""
    yield cells(
        "engine's fault",
        "logs",
        "first deviation",
        "decidable",
        "told of these",
        "told of all",
        "seeds",
    )
    yield cells(*["---"] * 7)
    for kind, mine in by_kind(done, "engine", list(TOLD_AS)):
        shown = [one for one in mine if one["shows"]]
        decidable = [one for one in shown if one["decidable"]]
        yield cells(
            kind,
            len(shown),
            number(shown, "first"),
            len(decidable),
            number(decidable, "told"),
            number(shown, "told"),
            len(mine),
        )
    yield ""
    yield cells("text altered", "logs", "first deviation", "localised", "seeds")
    yield cells(*["---"] * 5)
    for kind, mine in by_kind(done, "text", list(TEXTS)):
        shown = [one for one in mine if one["shows"]]
        yield cells(kind, len(shown), number(shown, "first"), number(shown, "told"), len(mine))


def by_kind(done: list[Record], what: str, kinds: list[str]) -> list[tuple[str, list[Record]]]:
    """The records of each kind, and of all."""
    rows = [
        (kind, [one for one in done if (one["what"], one["kind"]) == (what, kind)])
        for kind in kinds
    ]
    return [*rows, ("all", [one for _, records in rows for one in records])]


def tie_table(done: list[Record]) -> Iterator[str]:
    """Of faults that are not decidable, how many of `DROPPED` experts would do as well."""
    mine = sorted(
        (one for one in done if one["what"] == "ties"), key=lambda one: (one["kind"], one["seed"])
    )
    if mine:
        yield ""
        yield cells(
            "not decidable",
            "seed",
            "others that were there",
            f"of {DROPPED} in its place, alike",
            "a smaller budget alike",
        )
        yield cells(*["---"] * 5)
    for one in mine:
        yield cells(
            one["kind"], one["seed"], one["held"], one["alike"], "yes" if one["smaller"] else "no"
        )


def classes(done: list[Record], right: Course, log: ResidencyLog) -> Iterator[str]:
    """How many different logs the engines leave whose faults are not decidable."""
    left: dict[bytes, list[str]] = {}
    for one in done:
        if one["what"] == "engine" and one["shows"] and not one["decidable"]:
            case = draw_case(one["kind"], one["seed"], right, log, BUDGET)
            assert case is not None
            left.setdefault(case.log.resident.tobytes(), []).append(one["kind"])
    most = max(left.values(), key=len, default=[])
    total = sum(map(len, left.values()))
    alike = sum(len(kinds) for kinds in left.values() if len(kinds) > 1)
    yield (
        f"{total} engines whose fault is not decidable left {len(left)} different logs; {alike}"
        f" left one that another of them left, too, {len(most)} of them the same one"
        f" ({', '.join(f'{kind} {count}' for kind, count in sorted(Counter(most).items()))})"
    )


def main(arguments: list[str]) -> int:
    """Do what is left and print the table."""
    numbers = {"engines": 1000, "texts": 1000, "ties": 0}
    numbers |= {
        name: int(value) for name, value in (argument.split("=") for argument in arguments[1:])
    }
    ties = numbers.pop("ties")
    path = Path(arguments[0])
    done = read(path)
    left = wanted(done, **numbers)
    log = phone_log()
    right, checked = course(log, BUDGET), Checked(log)
    total = sum(numbers.values()) - sum(one["shows"] for one in done)
    shown = track(left, "checking", total=max(total, 0), console=Console(stderr=True))
    try:
        with path.open("a") as journal:
            for what, kind, seed in shown:
                found = (
                    of_engine(kind, seed, right, log, checked)
                    if what == "engine"
                    else of_text(kind, seed, log, checked)
                )
                done.append({"what": what, "kind": kind, "seed": seed, **found})
                journal.write(json.dumps(done[-1]) + "\n")
                journal.flush()
            for what, kind, seed in track(
                undecidable(done, ties), "ties", console=Console(stderr=True)
            ):
                done.append(
                    {"what": what, "kind": kind, "seed": seed, **of_ties(kind, seed, right, log)}
                )
                journal.write(json.dumps(done[-1]) + "\n")
                journal.flush()
    except KeyboardInterrupt:
        print("stopped: the same command goes on", file=sys.stderr)
    for line in (*table(done), *tie_table(done), *(classes(done, right, log) if ties else ())):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
