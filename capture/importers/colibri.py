"""Importer of format colibri: the ``ROUTE_TRACE=<path>`` stream of github.com/JustVugg/colibri.

It is text with one line for each row of each call of an MoE layer, in the order of routing::

    <call> <row> <layer> <expert>:<gate> <expert>:<gate> ...

``call`` counts the calls, ``row`` is the row of the forward batch, and gates are as applied, to
four digits. The number of experts may vary from row to row. A *pass* is a run of calls through
ascending layers. The first pass shows which layers have experts; each later pass must have the
same.

The file does not say what the rows of a pass are:

- One row is taken for a decoded token, several rows for a prompt or a part of one.
- Where a prompt follows decoded tokens, the argument ``sequences=prompts`` says that it begins
  another sequence, ``sequences=one`` that it does not.
- A stream of several requests at once, or with draft tokens, looks the same and must not be
  imported.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.parts import FACTS, Recording, Request, Rows, assemble, check_size, complete
from capture.importers.passes import SEQUENCES, phases_of
from capture.importers.source import (
    IDS,
    INT16_MAX,
    INT32_MAX,
    Imported,
    Refuse,
    Track,
    count,
    lines_of,
    one_of,
    require_file,
)

KEYS = (*FACTS, "top_k", "sequences")
LARGEST_FILE_BYTES = 1 << 30
LINE = re.compile(r"(\d{1,10}) (\d{1,9}) (\d{1,5})((?: \d{1,5}:\d{1,7}\.\d{4})+)", re.A)
WHAT = "a file that ROUTE_TRACE wrote"
RULE = "must be '<call> <row> <layer> <expert>:<gate> ..', gates with four digits"


@dataclass
class _Calls:
    """The stream, as flat columns.

    By call: its first ``line``, ``layer`` and number of ``rows``. By row: ``row_line``, and how
    many experts were ``chosen``. ``expert`` and ``gate`` have the choices of all rows, one after
    another.
    """

    line: array[int] = field(default_factory=lambda: array("q"))
    layer: array[int] = field(default_factory=lambda: array("q"))
    rows: array[int] = field(default_factory=lambda: array("q"))
    row_line: array[int] = field(default_factory=lambda: array("q"))
    chosen: array[int] = field(default_factory=lambda: array("q"))
    expert: array[int] = field(default_factory=lambda: array("q"))
    gate: array[float] = field(default_factory=lambda: array("d"))


def check(request: Request) -> None:
    complete(request.facts, {}, "colibri")
    if "top_k" in request.options:
        count("top_k", request.options["top_k"])
    if "sequences" in request.options:
        one_of("sequences", request.options["sequences"], SEQUENCES)


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace of a stream. Raise `TraceError` or `ImportFailure`."""
    facts = complete(request.facts, {}, "colibri")
    refuse = Refuse(request.path.name)
    calls = _read_calls(request, refuse)
    sites = _sites(refuse, calls)
    passes = np.array(calls.rows, np.int64)[:: len(sites)]
    told = request.options.get("sequences")
    phase, sequence = phases_of(refuse, passes, calls.line[:: len(sites)], told)
    ids, weights = _choices(refuse, calls, len(sites), facts, request.options)
    step = np.repeat(np.arange(len(passes)), passes)
    first = np.searchsorted(sequence, sequence)
    rows = Rows(step, phase, sequence, np.arange(len(step)) - first, ids, weights)
    recording = Recording(
        format="colibri",
        files={"file": request.path},
        layers=sites,
        lacks=("tokens", "scores"),
        site_name="layer {}",
        implementation="colibri",
        also_missing="phases, sequences and positions of tokens",
        told={
            "origin": "ROUTE_TRACE of github.com/JustVugg/colibri",
            "steps": "a step for each pass through the layers, as recorded",
            "phases": (
                "not recorded: a pass of several rows is taken for a prompt, or a part of one"
            ),
            "sequences": f"not recorded: sequences={request.options.get('sequences', 'one')}",
            "positions": "not recorded: counted from the first row of a sequence",
            "weights": (
                "as applied, four digits; equal ones set apart by a float32 ulp, in the order of"
                " the file"
            ),
        },
    )
    return Imported(assemble(facts, rows, recording))


def _read_calls(request: Request, refuse: Refuse) -> _Calls:
    require_file("path", request.path, WHAT, LARGEST_FILE_BYTES, "split it between two requests")
    calls = _Calls()
    call_now = -1
    for number, line in lines_of(request.path, refuse):
        match = LINE.fullmatch(line)
        if match is None:
            refuse(f"line {number}", True, line, RULE)
            continue
        call, row, layer = (int(match[group]) for group in (1, 2, 3))
        refuse(f"line {number}, layer", layer > INT16_MAX, layer, f"must be at most {INT16_MAX}")
        if row == 0:
            rule = f"must be {call_now + 1}, the next call: no line may be missing"
            refuse(f"line {number}, call", bool(calls.line) and call != call_now + 1, call, rule)
            call_now = call
            calls.line.append(number)
            calls.layer.append(layer)
            calls.rows.append(0)
        refuse(
            f"line {number}, row", not calls.line, row, "must be 0: the stream begins with a call"
        )
        here = (call_now, calls.rows[-1], calls.layer[-1])
        rule = f"must be {' '.join(map(str, here))}, or a new call's row 0"
        refuse(
            f"line {number}, call row layer",
            (call, row, layer) != here,
            f"{call} {row} {layer}",
            rule,
        )
        calls.rows[-1] += 1
        chosen = [choice.split(":") for choice in match[4].split()]
        calls.row_line.append(number)
        calls.chosen.append(len(chosen))
        calls.expert.extend(int(expert) for expert, _ in chosen)
        calls.gate.extend(float(gate) for _, gate in chosen)
        refuse(
            f"line {number}",
            len(calls.row_line) > INT32_MAX,
            number,
            f"must be at most {INT32_MAX}",
        )
    refuse("line 1", not calls.line, "absent", RULE)
    return calls


def _sites(refuse: Refuse, calls: _Calls) -> list[int]:
    """The layers of the first pass.

    Refuses a pass with other layers, or with different numbers of rows at its layers.
    """
    layers, rows = np.array(calls.layer), np.array(calls.rows)
    falls = np.flatnonzero(np.diff(layers) <= 0)
    sites: list[int] = layers[: falls[0] + 1 if len(falls) else len(layers)].tolist()
    site = np.arange(len(layers)) % len(sites)
    remedy = "record without draft tokens; cut an unfinished last pass off"
    wrong = np.flatnonzero(layers != np.array(sites)[site])
    for call in wrong[:1].tolist():
        rule = f"must be {sites[site[call]]}: every pass goes through the layers of the first"
        refuse(f"line {calls.line[call]}, layer", True, int(layers[call]), rule, remedy)
    rest = len(layers) % len(sites)
    last = f"line {calls.line[-1]}, layer"
    refuse(
        last,
        rest > 0,
        calls.layer[-1],
        f"must not be the last: a pass ends at layer {sites[-1]}",
        remedy,
    )
    wrong = np.flatnonzero(rows != np.repeat(rows[:: len(sites)], len(sites)))
    for call in wrong[:1].tolist():
        rule = f"must be {rows[call - site[call]]}, as at the first layer of the pass"
        refuse(f"line {calls.line[call]}, rows of the call", True, int(rows[call]), rule, remedy)
    return sites


def _choices(
    refuse: Refuse,
    calls: _Calls,
    num_sites: int,
    facts: Mapping[str, str],
    options: Mapping[str, str],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Experts and gates [N, S, K], -1 and 0 where a row has fewer than ``top_k``."""
    chosen, lines = np.array(calls.chosen), np.array(calls.row_line)
    most = int(chosen.max())
    top_k = int(options.get("top_k", most))
    refuse(
        f"line {lines[chosen.argmax()]}, experts",
        most > top_k,
        most,
        f"must be at most top_k={top_k}",
    )
    check_size(
        refuse, "rows", len(chosen) // num_sites, num_sites, top_k, "split it between two requests"
    )
    starts = np.cumsum(chosen) - chosen
    place = (
        np.repeat(np.arange(len(chosen)), chosen),
        np.arange(chosen.sum()) - np.repeat(starts, chosen),
    )
    ids, weights = np.full((len(chosen), top_k), -1), np.zeros((len(chosen), top_k))
    ids[place], weights[place] = np.array(calls.expert), np.array(calls.gate)
    _check_experts(refuse, ids, lines, int(facts["experts"]))
    # Rows stand call by call. A row's token is its number in its call, plus the rows of the passes
    # before.
    rows = np.array(calls.rows)
    calls_of_rows = np.repeat(np.arange(len(rows)), rows)
    row = np.arange(len(chosen)) - (np.cumsum(rows) - rows)[calls_of_rows]
    begin = np.repeat(np.cumsum(rows[::num_sites]) - rows[::num_sites], num_sites)
    place = ((begin[calls_of_rows] + row), calls_of_rows % num_sites)
    shape = (len(chosen) // num_sites, num_sites, top_k)
    found, gates = np.empty(shape, np.int64), np.empty(shape)
    found[place], gates[place] = ids, weights
    return found, gates


def _check_experts(
    refuse: Refuse, ids: NDArray[np.int64], lines: NDArray[np.int64], num_experts: int
) -> None:
    ordered = np.sort(ids, axis=-1)
    again = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(-1)
    for wrong, rule, way in (
        ((ids >= num_experts).any(-1), f"must lie in 0..{num_experts - 1}", IDS),
        (again, "must not repeat in a line", None),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            refuse(
                f"line {lines[row]}, experts",
                True,
                [expert for expert in ids[row].tolist() if expert >= 0],
                rule,
                way,
            )
