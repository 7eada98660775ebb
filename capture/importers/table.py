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

Lines of a token may come in any order, but each token must have each site once. Tokens run in the
order of their steps, if there are any, then of their first lines, and the positions of a sequence
must rise. Without steps, consecutive prompt tokens of a sequence are one step, and each decoded
token is one. A token that chose no expert at a site has an empty list there; no line may be left
out.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from capture.importers.lines import (
    LARGEST_WEIGHT,
    MOST_EXPERTS,
    PHASES,
    Lines,
    rows_of,
    tokens_of,
)
from capture.importers.parts import (
    FACTS,
    Recording,
    Request,
    assemble,
    complete,
    is_ranked,
    no_order,
)
from capture.importers.source import (
    IDS,
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

KEYS = (*FACTS, "top_k", "order")
NEEDED_COLUMNS = ("sequence", "position", "phase", "site", "experts")
OPTIONAL_COLUMNS = ("weights", "step", "token")
MOST = {
    "sequence": INT32_MAX,
    "position": INT32_MAX,
    "site": INT16_MAX - 1,
    "step": INT32_MAX,
    "token": INT32_MAX,
}
"""The largest value of each column of whole numbers."""
LISTS = ("experts", "weights")
SEPARATOR = re.compile(r"\d[|;:/]\d")
"""What others write between the numbers of a list, where a space belongs."""
EXAMPLE = (
    "sequence 0, position 0, phase prefill (or decode, chunk), site 0 (of those with experts),"
    " experts 3 17"
)
"""A token at a site, column by column."""
MEND = "correct the file"
APART = "columns stand between commas, numbers of a list between spaces, without quotes"
NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?(e[+-]?\d{1,3})?", re.A)
LARGEST_FILE_BYTES = 1 << 33

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
        refuse(f"line {number}", not line, line, rule, "remove the empty line")
        refuse(f"line {number}", len(cells) != len(names), line, rule, f"{MEND}: {APART}")
        for name, cell in zip(names, cells, strict=True):
            apart = name in LISTS and SEPARATOR.search(cell) is not None
            refuse(f"line {number}, {name}", apart, cell, "must be numbers separated by spaces")
        yield number, {name: _value(name, cell) for name, cell in zip(names, cells, strict=True)}
    refuse("line 1", not names, "absent", f"must name the columns {', '.join(NEEDED_COLUMNS)}")


def _check_names(refuse: Refuse, place: str, names: list[str]) -> None:
    missing = [name for name in NEEDED_COLUMNS if name not in names]
    rule = f"must name the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
    way = f"add {'them' if missing[1:] else 'it'}: {EXAMPLE}"
    way = APART if len(names) == 1 and re.search("[;\\t]", names[0]) else way
    if {*NEEDED_COLUMNS} <= {name.strip(" \"'").lower() for name in names}:
        way = "write the names in lower case, without quotes and blanks, and values so, too"
    elif any("\r" in name for name in names):
        way = "end each line with LF or CRLF: a lone CR ends none"
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


class _Columns:
    """The lines that were read, one value after another."""

    def __init__(self) -> None:
        names = ("sequence", "position", "phase", "site", *OPTIONAL_COLUMNS[1:], "line", "chosen")
        self.numbers = {name: array("q") for name in names}
        self.experts = array("q")
        self.weights = array("d")

    def take(self, refuse: Refuse, number: int, line: Line, num_experts: int) -> None:
        """Append one line. ``number`` is its place in the file."""
        at = f"line {number}, "
        phase = line["phase"]
        known = isinstance(phase, str) and phase in PHASES
        refuse(f"{at}phase", not known, phase, f"must be one of {', '.join(PHASES)}")
        experts = _experts(refuse, f"{at}experts", line["experts"], num_experts)
        self.experts.extend(experts)
        if "weights" in line:
            self.weights.extend(_weights(refuse, f"{at}weights", line["weights"], len(experts)))
        found = {"phase": PHASES[phase], "line": number, "chosen": len(experts)}
        for name, most in MOST.items():
            if name in line:
                found[name] = refuse.whole(f"{at}{name}", line[name], 0, most)
        for name, value in found.items():
            self.numbers[name].append(value)

    def lines(self, is_weighted: bool) -> Lines:
        numbers = {name: np.array(values) for name, values in self.numbers.items()}
        number = numbers["line"]
        return Lines(
            sequence=numbers["sequence"],
            position=numbers["position"],
            phase=numbers["phase"],
            layer=numbers["site"],
            chosen=numbers["chosen"],
            experts=np.array(self.experts),
            layers=range(int(numbers["site"].max()) + 1),
            place=lambda index: f"line {number[index]}",
            remedy="split the file between two sequences",
            weights=np.array(self.weights) if is_weighted else None,
            step=numbers["step"] if len(numbers["step"]) else None,
            token=numbers["token"] if len(numbers["token"]) else None,
        )


def _experts(refuse: Refuse, name: str, value: object, num_experts: int) -> list[int]:
    rule = f"must be a list of at most {MOST_EXPERTS} ids"
    if not isinstance(value, list) or len(value) > MOST_EXPERTS:
        refuse(name, True, value, rule)
        return []
    for expert in value:
        above = isinstance(expert, int) and expert >= num_experts
        refuse(name, above, expert, f"must be a whole number in 0..{num_experts - 1}", IDS)
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
    refuse = Refuse(request.path.name, MEND)
    require_file(
        "path", request.path, f"a {name} file", LARGEST_FILE_BYTES, "split it between two sequences"
    )
    columns, is_weighted = _Columns(), False
    for number, line in parse(request, refuse):
        is_weighted = "weights" in line
        columns.take(refuse, number, line, int(facts["experts"]))
    if is_weighted:
        no_order(request, "the weights")
    at = "line 2" if name == "csv" else "line 1"
    refuse(at, not columns.numbers["line"], "absent", "must be a token at a site")
    lines = columns.lines(is_weighted)
    lowest = int(lines.layer.min())
    refuse(
        "lowest site",
        lowest > 0,
        lowest,
        "must be 0: sites count the blocks with experts from 0",
        f"subtract {lowest} from every site",
    )
    top_k = request.options.get("top_k")
    rows = rows_of(lines, tokens_of(lines, refuse), refuse, None if top_k is None else int(top_k))
    recording = Recording(
        format=name,
        files={"file": request.path},
        layers=lines.layers,
        lacks=(
            *lines.lacks(),
            *([] if is_weighted or is_ranked(request, True) else ["order"]),
            "scores",
        ),
        site_name="site {}",
        told={
            "steps": lines.steps_told(),
            "weights": (
                "equal ones set apart by a float32 ulp, in the order of the file"
                if is_weighted
                else "none"
            ),
        },
    )
    return Imported(assemble(facts, rows, recording))
