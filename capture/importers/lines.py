"""Routes with a line for each token and site, as columns: what csv, jsonl and parquet become before
they are a trace.

All checks of one line against another are here: a token's lines agree, each token has every site
once, and none chose more experts than top-k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.parts import Rows, check_size, steps_of
from capture.importers.source import Refuse
from sim.traces.trace import CHUNK, DECODE, PREFILL

PHASES: Mapping[str, int] = {"prefill": PREFILL, "decode": DECODE, "chunk": CHUNK}
PHASE_NAMES = {number: name for name, number in PHASES.items()}
TOKEN_COLUMNS = ("phase", "step", "token")
"""Columns in which all lines of a token must agree."""
LARGEST_WEIGHT = 1e6
MOST_EXPERTS = 1 << 10
"""Most ids of a line."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lines:
    """M lines in the order in which they were read, values checked one by one.

    - ``sequence``, ``position``, ``phase``, ``layer``, and where recorded ``step`` and ``token`` [M].
    - ``chosen`` [M]: how many experts a line has.
    - ``experts``, ``weights``: those of all lines, one after another. Weights are optional.
    - ``layers``: the layer of each site. Every token must have all of them.
    - ``place``: names a line by its index, for a refusal; ``site_word`` is what a site is called.
    - ``remedy``: what to do where there are too many lines.
    """

    sequence: Ints
    position: Ints
    phase: Ints
    layer: Ints
    chosen: Ints
    experts: Ints
    layers: Sequence[int]
    place: Callable[[int], str]
    remedy: str
    weights: NDArray[np.float64] | None = None
    step: Ints | None = None
    token: Ints | None = None
    site_word: str = "site"

    def of_choices(self) -> Ints:
        """The line of each of ``experts``."""
        return np.repeat(np.arange(len(self.chosen)), self.chosen)

    def lacks(self) -> list[str]:
        """What no line records, in the words of `capture.importers.parts.LACKS`."""
        columns = {"weights": self.weights, "steps": self.step, "tokens": self.token}
        return [word for word, column in columns.items() if column is None]

    def steps_told(self) -> str:
        """Where the trace's steps come from, for its provenance."""
        recorded = self.step is not None
        return "as recorded" if recorded else "one for a prompt's tokens, and for each decoded one"


@dataclass(frozen=True)
class Tokens:
    """Where lines stand in the trace: ``row`` and ``site`` [M] of each line, ``first`` [N] the first
    line of each row.

    Rows run in the order of their steps, if there are any, then of their first lines.
    """

    row: Ints
    site: Ints
    first: Ints


def tokens_of(lines: Lines, refuse: Refuse) -> Tokens:
    """Number the tokens. Refuse one whose lines disagree, or that has not each site once."""
    key = (lines.sequence << 32) | lines.position
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    if lines.step is not None:
        order = order[np.argsort(lines.step[first[order]], kind="stable")]
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    row, first = number[inverse], first[order]
    for name in TOKEN_COLUMNS:
        _check_agree(lines, refuse, name, row, first)
    site = np.searchsorted(np.array(lines.layers), lines.layer)
    found = Tokens(row, site, first)
    _check_each_once(lines, refuse, found)
    _check_order(lines, refuse, first)
    return found


def rows_of(lines: Lines, tokens: Tokens, refuse: Refuse, top_k: int | None) -> Rows:
    """The rows of a trace, with as many ranks as ``top_k`` says, else as the widest line has.

    Experts are -1 and weights 0 where a token chose fewer.
    """
    most = max(int(lines.chosen.max()), 1)
    wide = most if top_k is None else top_k
    at = f"{lines.place(int(lines.chosen.argmax()))}, number of experts"
    refuse(at, most > wide, most, f"must be at most top_k={wide}")
    shape = (len(tokens.first), len(lines.layers), wide)
    check_size(refuse, "lines", *shape, lines.remedy)
    line = lines.of_choices()
    rank = np.arange(len(line)) - np.repeat(np.cumsum(lines.chosen) - lines.chosen, lines.chosen)
    cell = (tokens.row[line], tokens.site[line], rank)
    ids, weights = np.full(shape, -1, np.int16), None
    ids[cell] = lines.experts
    if lines.weights is not None:
        weights = np.zeros(shape)
        weights[cell] = lines.weights
    first = tokens.first
    phase, sequence = lines.phase[first], lines.sequence[first]
    if lines.step is None:
        step: NDArray[Any] = steps_of(phase, sequence)
    else:
        step = np.unique(lines.step[first], return_inverse=True)[1]
    token = None if lines.token is None else lines.token[first]
    return Rows(step, phase, sequence, lines.position[first], ids, weights, token)


def _check_agree(lines: Lines, refuse: Refuse, name: str, row: Ints, first: Ints) -> None:
    values: Ints | None = getattr(lines, name)
    if values is None:
        return
    wrong = np.flatnonzero(values != values[first][row])
    for line in wrong[:1].tolist():
        found, told = int(values[line]), int(values[first[row[line]]])
        words = PHASE_NAMES if name == "phase" else {found: found, told: told}
        rule = f"must be {words[told]}, as in the token's first line"
        refuse(f"{lines.place(line)}, {name}", True, words[found], rule)


def _check_order(lines: Lines, refuse: Refuse, first: Ints) -> None:
    """Refuse tokens of a sequence whose positions do not rise in the order in which they run."""
    by_sequence = first[np.argsort(lines.sequence[first], kind="stable")]
    same = np.diff(lines.sequence[by_sequence]) == 0
    falls = np.flatnonzero(same & (np.diff(lines.position[by_sequence]) < 0)) + 1
    for at in falls[:1].tolist():
        line, before = int(by_sequence[at]), int(by_sequence[at - 1])
        order = "lines" if lines.step is None else "steps, then of their lines"
        rule = (
            f"must be above {lines.position[before]}, the position of"
            f" {lines.place(before)} in the same sequence: tokens run in the order of their {order}"
        )
        name = f"{lines.place(line)}, position"
        refuse(name, True, int(lines.position[line]), rule, "sort the lines by position")


def _check_each_once(lines: Lines, refuse: Refuse, tokens: Tokens) -> None:
    word, sites = lines.site_word, len(lines.layers)
    cell = tokens.row * sites + tokens.site
    order = np.argsort(cell, kind="stable")
    for at in np.flatnonzero(np.diff(cell[order]) == 0)[:1].tolist():
        first, second = int(order[at]), int(order[at + 1])
        rule = f"must not come twice: {lines.place(first)} has it"
        refuse(f"{lines.place(second)}, {word}", True, int(lines.layer[second]), rule)
    if len(cell) == len(tokens.first) * sites:
        return
    here = np.zeros(len(tokens.first) * sites, np.bool_)
    here[cell] = True
    row, site = divmod(int(np.argmin(here)), sites)
    line = tokens.first[row]
    name = (
        f"{word} {lines.layers[site]} of sequence {lines.sequence[line]},"
        f" position {lines.position[line]}"
    )
    many = lines.layers[-1] - lines.layers[0] + 1 != sites
    told = f"{lines.layers[0]}..{lines.layers[-1]}{f' ({sites} of them)' if many else ''}"
    refuse(name, True, "absent", f"must be there: the file has the {word}s {told}", "add its line")
