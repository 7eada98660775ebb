"""Importer of this project's own tables, csv and jsonl, with one line for each token and site.

They serve whatever has no importer of its own. The columns:

============  ==================================================================================
``sequence``  whole number; one request
``position``  whole number from 0; the token's place in its sequence, prompt included
``phase``     ``prefill``, ``decode`` or ``chunk`` (prompt tokens on top of a cache)
``site``      whole number from 0; MoE blocks in order of execution
``experts``   ids of the chosen experts in the order of their rank. Without weights and with
              ``order=unknown``: in any order
``weights``   the weights as applied, one for each expert (optional)
``step``      whole number; tokens of one step ran as one batch (optional)
``token``     id of the token (optional)
============  ==================================================================================

An optional column is there in all lines or in none. csv has the names in its first line, in any
order, and separates the numbers of a list by spaces::

    sequence,position,phase,site,experts,weights
    0,0,prefill,0,3 17,0.75 0.25

jsonl has an object a line::

    {"sequence":0,"position":0,"phase":"prefill","site":0,"experts":[3,17],"weights":[0.75,0.25]}

Lines may come in any order, but each token must have each site once. Tokens run in the order of
their steps, if there are any, then of their first lines. Without steps, consecutive prompt tokens
of a sequence are one step, and each decoded token is one. A token that chose no expert at a site
has an empty list there; no line may be left out.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.parts import (
    FACTS,
    Recording,
    Request,
    Rows,
    assemble,
    check_size,
    complete,
    is_ranked,
    steps_of,
)
from capture.importers.source import (
    INT16_MAX,
    INT32_MAX,
    Imported,
    Refuse,
    Track,
    count,
    lines_of,
    parsed_json,
    require_file,
)
from sim.traces.trace import CHUNK, DECODE, PREFILL

KEYS = (*FACTS, "top_k", "order")
NEEDED_COLUMNS = ("sequence", "position", "phase", "site", "experts")
OPTIONAL_COLUMNS = ("weights", "step", "token")
TOKEN_COLUMNS = ("phase", "step", "token")
"""Columns in which all lines of a token must agree."""
LISTS = ("experts", "weights")
SEPARATOR = re.compile(r"\d[|;:/]\d")
"""What others write between the numbers of a list, where a space belongs."""
EXAMPLE = (
    "sequence 0, position 0, phase prefill (or decode, chunk), site 0 (of those with experts),"
    " experts 3 17"
)
"""A token at a site, column by column."""
PHASES: Mapping[str, int] = {"prefill": PREFILL, "decode": DECODE, "chunk": CHUNK}
PHASE_NAMES = {number: name for name, number in PHASES.items()}
NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?(e[+-]?\d{1,3})?", re.A)
LARGEST_FILE_BYTES = 1 << 33
LARGEST_WEIGHT = 1e6
MOST_EXPERTS = 1 << 10

Line = Mapping[str, Any]
Parse = Callable[[Request, Refuse], Iterator[tuple[int, Line]]]


def check(request: Request) -> None:
    complete(request.facts, {}, "imported")
    if "top_k" in request.options:
        count("top_k", request.options["top_k"])
    is_ranked(request, True)


def read_csv(request: Request, track: Track[Any]) -> Imported:
    return _read("csv", request, _csv_lines)


def read_jsonl(request: Request, track: Track[Any]) -> Imported:
    return _read("jsonl", request, _jsonl_lines)


# Lines


def _csv_lines(request: Request, refuse: Refuse) -> Iterator[tuple[int, Line]]:
    """Number and values of each line after the first, by column."""
    names: list[str] = []
    for number, line in lines_of(request.path, refuse):
        cells = line.split(",")
        if not names:
            names = cells
            _check_names(refuse, "line 1", names)
            continue
        rule = f"must have {len(names)} values, as line 1 has names"
        refuse(f"line {number}", len(cells) != len(names), line, rule)
        for name, cell in zip(names, cells, strict=True):
            apart = name in LISTS and SEPARATOR.search(cell) is not None
            refuse(f"line {number}, {name}", apart, cell, "must be numbers separated by spaces")
        yield number, {name: _value(name, cell) for name, cell in zip(names, cells, strict=True)}
    refuse("line 1", not names, "absent", f"must name the columns {', '.join(NEEDED_COLUMNS)}")


def _check_names(refuse: Refuse, place: str, names: list[str]) -> None:
    missing = [name for name in NEEDED_COLUMNS if name not in names]
    rule = f"must name the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
    way = f"add {'them' if missing[1:] else 'it'}: {EXAMPLE}"
    refuse(place, bool(missing), ",".join(names), rule, way)
    known = ", ".join((*NEEDED_COLUMNS, *OPTIONAL_COLUMNS))
    for name in names:
        wrong = name not in NEEDED_COLUMNS + OPTIONAL_COLUMNS
        refuse(place, wrong, name, f"must be one of the columns {known}", "remove the column")
        refuse(place, names.count(name) > 1, name, "must not come twice")


def _value(name: str, cell: str) -> Any:
    """A cell as the value that JSON would have; what is no number stays text and is refused."""
    if name == "phase":
        return cell
    if name == "experts":
        return [_whole(word) for word in cell.split(" ")] if cell else []
    if name == "weights":
        return (
            [float(word) if NUMBER.fullmatch(word) else word for word in cell.split(" ")]
            if cell
            else []
        )
    return _whole(cell)


def _whole(word: str) -> int | str:
    return int(word) if word.isascii() and word.isdigit() and len(word) < 19 else word


def _jsonl_lines(request: Request, refuse: Refuse) -> Iterator[tuple[int, Line]]:
    names: set[str] | None = None
    for number, line in lines_of(request.path, refuse):
        value = refuse.has(f"line {number}", parsed_json(line, refuse, f"line {number}"))
        if set(value) != names:
            _check_names(refuse, f"line {number}", list(value))
            rule = f"must have the keys of line 1, {', '.join(sorted(names or ()))}"
            refuse(
                f"line {number}",
                names is not None,
                ", ".join(sorted(value)),
                rule,
                "give them at all lines, or at none",
            )
            names = set(value)
        yield number, value
    refuse("line 1", names is None, "absent", "must be an object for a token and a site")


# Columns


def _integers() -> array[int]:
    return array("q")


@dataclass
class _Table:
    """The lines, as flat columns.

    A *row* is a token. ``rows`` numbers (sequence, position) in the order of the tokens' first
    lines; ``tokens`` has the other columns of each row. The other arrays are by line; ``experts``
    and ``weights`` have the lists of all lines, one after another, and ``chosen`` their lengths.
    """

    rows: dict[tuple[int, int], int] = field(default_factory=dict)
    tokens: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in TOKEN_COLUMNS}
    )
    row: array[int] = field(default_factory=_integers)
    site: array[int] = field(default_factory=_integers)
    line: array[int] = field(default_factory=_integers)
    chosen: array[int] = field(default_factory=_integers)
    experts: array[int] = field(default_factory=_integers)
    weights: array[float] = field(default_factory=lambda: array("d"))

    def take(self, refuse: Refuse, number: int, line: Line, num_experts: int) -> None:
        """Append one line."""
        at = f"line {number}, "
        sequence, position = (
            refuse.whole(f"{at}{name}", line[name], 0, INT32_MAX)
            for name in ("sequence", "position")
        )
        phase = line["phase"]
        known = isinstance(phase, str) and phase in PHASES
        refuse(f"{at}phase", not known, phase, f"must be one of {', '.join(PHASES)}")
        found = {
            name: refuse.whole(f"{at}{name}", line[name], 0, INT32_MAX) if name in line else -1
            for name in ("step", "token")
        }
        found["phase"] = PHASES[phase]
        row = self.rows.setdefault((sequence, position), len(self.rows))
        if row == len(self.tokens["phase"]):
            for name in TOKEN_COLUMNS:
                self.tokens[name].append(found[name])
        for name in TOKEN_COLUMNS:
            first = self.tokens[name][row]
            rule = (
                f"must be {PHASE_NAMES[first] if name == 'phase' else first}, as in the token's"
                " first line"
            )
            refuse(f"{at}{name}", found[name] != first, line.get(name), rule)
        experts = _experts(refuse, f"{at}experts", line["experts"], num_experts)
        self.row.append(row)
        self.site.append(refuse.whole(f"{at}site", line["site"], 0, INT16_MAX - 1))
        self.line.append(number)
        self.chosen.append(len(experts))
        self.experts.extend(experts)
        if "weights" in line:
            self.weights.extend(_weights(refuse, f"{at}weights", line["weights"], len(experts)))


def _experts(refuse: Refuse, name: str, value: object, num_experts: int) -> list[int]:
    rule = f"must be a list of at most {MOST_EXPERTS} ids"
    if not isinstance(value, list) or len(value) > MOST_EXPERTS:
        refuse(name, True, value, rule)
        return []
    found = [refuse.whole(name, expert, 0, num_experts - 1) for expert in value]
    refuse(name, len(set(found)) != len(found), found, "must not repeat")
    return found


def _weights(refuse: Refuse, name: str, value: object, num_experts: int) -> list[float]:
    rule = f"must be a list of {num_experts} weights, one for each expert"
    if not isinstance(value, list) or len(value) != num_experts:
        refuse(name, True, value, rule)
        return []
    for weight in value:
        is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        wrong = not is_number or not 0 <= weight <= LARGEST_WEIGHT
        refuse(name, wrong, weight, f"must be a number in 0..{LARGEST_WEIGHT:.0f}")
    return [float(weight) for weight in value]


# The trace


def _read(name: str, request: Request, parse: Parse) -> Imported:
    facts = complete(request.facts, {}, "imported")
    refuse = Refuse(request.path.name)
    require_file(
        "path", request.path, f"a {name} file", LARGEST_FILE_BYTES, "split it between two sequences"
    )
    table, columns = _Table(), set[str]()
    for number, line in parse(request, refuse):
        columns = columns or set(line)
        table.take(refuse, number, line, int(facts["experts"]))
    refuse(
        "line 2" if name == "csv" else "line 1",
        not table.line,
        "absent",
        "must be a token at a site",
    )
    ids, weights = _choices(refuse, table, request)
    sequence, position = (np.array(values) for values in zip(*table.rows, strict=True))
    tokens = {key: np.array(values) for key, values in table.tokens.items()}
    recorded = "step" in columns
    order = np.argsort(tokens["step"], kind="stable") if recorded else np.arange(len(sequence))
    phase = tokens["phase"][order]
    step = (
        np.unique(tokens["step"][order], return_inverse=True)[1]
        if recorded
        else steps_of(phase, sequence[order])
    )
    weighted = "weights" in columns
    rows = Rows(
        step,
        phase,
        sequence[order],
        position[order],
        ids[order],
        weights[order] if weighted else None,
        tokens["token"][order] if "token" in columns else None,
    )
    lacks = [
        key
        for key, column in (("weights", "weights"), ("steps", "step"), ("tokens", "token"))
        if column not in columns
    ]
    lacks += [] if weighted or is_ranked(request, True) else ["order"]
    recording = Recording(
        format=name,
        files={"file": request.path},
        layers=range(ids.shape[1]),
        lacks=(*lacks, "scores"),
        site_name="site {}",
        told={
            "steps": (
                "as recorded" if recorded else "one for a prompt's tokens, and for each decoded one"
            ),
            "weights": (
                "equal ones set apart by a float32 ulp, in the order of the file"
                if weighted
                else "none"
            ),
        },
    )
    return Imported(assemble(facts, rows, recording))


def _choices(
    refuse: Refuse, table: _Table, request: Request
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Experts and weights [N, S, K] by row, -1 and 0 where a token chose fewer than K."""
    row, site, line = (np.array(values) for values in (table.row, table.site, table.line))
    chosen = np.array(table.chosen)
    num_rows, num_sites, most = len(table.rows), int(site.max()) + 1, max(int(chosen.max()), 1)
    top_k = int(request.options.get("top_k", most))
    rule = f"must be at most top_k={top_k}"
    refuse(f"line {line[chosen.argmax()]}, number of experts", most > top_k, most, rule)
    check_size(refuse, "lines", num_rows, num_sites, top_k, "split the file between two sequences")
    cell = row * num_sites + site
    order = np.argsort(cell, kind="stable")
    again = np.flatnonzero(np.diff(cell[order]) == 0)
    for place in again[:1].tolist():
        first, second = line[order[place]], line[order[place + 1]]
        refuse(
            f"line {second}, site",
            True,
            int(site[order[place + 1]]),
            f"must not come twice: line {first} has it",
        )
    if len(cell) < num_rows * num_sites:
        missing = np.setdiff1d(np.arange(num_rows * num_sites), cell)[0]
        sequence, position = list(table.rows)[missing // num_sites]
        name = f"site {missing % num_sites} of sequence {sequence}, position {position}"
        refuse(
            name,
            True,
            "absent",
            f"must be there: the file has the sites 0..{num_sites - 1}",
            "add its line",
        )
    flat = np.arange(chosen.sum()) - np.repeat(np.cumsum(chosen) - chosen, chosen)
    place = (np.repeat(row, chosen), np.repeat(site, chosen), flat)
    ids, weights = np.full((num_rows, num_sites, top_k), -1), np.zeros((num_rows, num_sites, top_k))
    ids[place] = table.experts
    if len(table.weights):
        weights[place] = table.weights
    return ids, weights
