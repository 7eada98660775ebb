"""The wide columns of a parquet: logits, and what the router read, line by line.

They are read after the routes, when each line's place in the trace is known, so that no more is
held than the trace's own arrays and one block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from capture.importers import parts
from capture.importers.frames import Ints, blocks, lists, refuse_first
from capture.importers.lines import Lines, Tokens
from capture.importers.parquet_roles import Schema
from capture.importers.source import Refuse, Track

BLOCK_VALUES = 1 << 23
"""About how many logits or inputs are read at once: as single precision they take 32 MiB."""
WIDE = ("logits", "logit_experts", "input")
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Wide:
    """``logits`` [N, S, E] and ``inputs`` [N, S, H] of the trace, and ``scores``: the logit of each
    line's experts, one after another. None: not recorded. ``told`` says which logits there were.
    """

    logits: Floats | None
    inputs: Floats | None
    scores: NDArray[np.float64] | None
    told: str


def wide_of(
    paths: Sequence[Path],
    schema: Schema,
    lines: Lines,
    tokens: Tokens,
    at: Ints,
    facts: Mapping[str, str],
    track: Track[Any],
) -> Wide:
    """The wide columns of the lines, where there are any. ``at``: each line's row in all parts."""
    has_scores, is_partial = "logits" in schema.columns, "logit_experts" in schema.columns
    sites, experts, hidden = len(lines.layers), int(facts["experts"]), int(facts["hidden"])
    shape = (len(tokens.first), sites)
    logits = _empty("logits", (*shape, experts)) if has_scores and not is_partial else None
    inputs = _empty("input", (*shape, hidden)) if "input" in schema.columns else None
    scores = np.empty(len(lines.experts)) if has_scores else None
    begins = np.cumsum(lines.chosen) - lines.chosen
    reader = _Reader(schema, lines, begins, tokens, experts, hidden, logits, inputs, scores)
    names = {role: schema.columns[role] for role in WIDE if role in schema.columns}
    size = max(1, BLOCK_VALUES // (max(experts, hidden) * (sites if schema.is_nested else 1)))
    start = 0
    for path in track(paths if names else [], "reading logits and inputs"):
        refuse, rows = Refuse(path.name), 0
        for begin, frame in blocks(refuse, path, list(names.values()), size):
            rows += len(frame)
            first, last = np.searchsorted(at, (start + begin, start + begin + len(frame)))
            if first == last:
                continue
            row = np.unique(at[first:last]) - start
            mine = frame[row - begin]
            columns = {role: mine[name] for role, name in names.items()}
            reader.take(refuse, columns, row, slice(int(first), int(last)))
        start += rows
    if is_partial:
        told = "of some experts, which a trace has no place for; they tell the ranks"
    else:
        told = "as recorded; routing rules are not" if has_scores else "not recorded"
    return Wide(logits, inputs, scores, told)


def _empty(name: str, shape: tuple[int, int, int]) -> Floats:
    many = shape[0] * shape[1] * shape[2]
    remedy = f"take fewer, prompts=N, or {'logits' if name == 'logits' else 'gate_inputs'}=no"
    rule = f"must be at most {parts.LARGEST_VALUES}"
    Refuse(name)("values", many > parts.LARGEST_VALUES, many, rule, remedy)
    return np.empty(shape, np.float32)


@dataclass(frozen=True)
class _Reader:
    """Puts blocks of the wide columns where the trace has them. ``begins``: by line, how many
    choices come before its own.
    """

    schema: Schema
    lines: Lines
    begins: Ints
    tokens: Tokens
    experts: int
    hidden: int
    logits: Floats | None
    inputs: Floats | None
    scores: NDArray[np.float64] | None

    def take(
        self, refuse: Refuse, columns: Mapping[str, pl.Series], row: Ints, span: slice
    ) -> None:
        """Take the rows ``row``, which are the lines ``span``."""
        cell = self.tokens.row[span], self.tokens.site[span]
        if self.inputs is not None:
            self.inputs[cell] = self._values(refuse, "input", columns, row, self.hidden, "hidden=")
        if self.scores is None:
            return
        if "logit_experts" in columns:
            dense = self._of_some(refuse, columns, row)
        else:
            dense = self._values(refuse, "logits", columns, row, self.experts, "experts=")
        if self.logits is not None:
            self.logits[cell] = dense
        chosen = self.lines.chosen[span]
        flat = slice(int(self.begins[span.start]), int(self.begins[span.start] + chosen.sum()))
        line, expert = np.repeat(np.arange(len(chosen)), chosen), self.lines.experts[flat]
        found = dense[line, expert]
        for place in np.flatnonzero(np.isnan(found))[:1].tolist():
            name = f"{self.lines.place(span.start + int(line[place]))}, logit_experts"
            rule = f"must have the chosen expert {expert[place]}"
            remedy = "leave the logits out, logits=no"
            refuse(name, True, "absent", rule, remedy)
        self.scores[flat] = found

    def _values(
        self,
        refuse: Refuse,
        role: str,
        columns: Mapping[str, pl.Series],
        row: Ints,
        width: int,
        fact: str,
    ) -> Floats:
        """A column's values [lines, width]."""
        values, lengths, line_row = self._lists(refuse, role, columns[role], row)
        name = self.schema.columns[role]
        wrong = lengths != width
        also = ", or logit_experts must say whose they are" if role == "logits" else ""
        for line in np.flatnonzero(wrong)[:1].tolist():
            rule = f"must be {width}, as {fact}{also}"
            refuse(f"row {line_row[line]}, values of {name}", True, int(lengths[line]), rule)
        return self._finite(refuse, name, values, lengths, line_row).reshape(-1, width)

    def _of_some(self, refuse: Refuse, columns: Mapping[str, pl.Series], row: Ints) -> Floats:
        """Logits [lines, E] of the experts that are named, NaN of the others."""
        name = self.schema.columns["logit_experts"]
        values, lengths, line_row = self._lists(refuse, "logits", columns["logits"], row)
        ids, own, _ = self._lists(refuse, "logit_experts", columns["logit_experts"], row)
        for line in np.flatnonzero(own != lengths)[:1].tolist():
            rule = f"must be {lengths[line]}, as many as logits"
            refuse(f"row {line_row[line]}, values of {name}", True, int(own[line]), rule)
        experts, row_of = ids.to_numpy(), np.repeat(line_row, lengths)
        wrong = (experts < 0) | (experts >= self.experts)
        refuse_first(refuse, name, wrong, experts, row_of, 0, self.experts - 1)
        found = np.full((len(lengths), self.experts), np.nan, np.float32)
        line = np.repeat(np.arange(len(lengths)), lengths)
        found[line, experts] = self._finite(
            refuse, self.schema.columns["logits"], values, lengths, line_row
        )
        filled = np.count_nonzero(~np.isnan(found), 1)
        for at in np.flatnonzero(filled != lengths)[:1].tolist():
            refuse(f"row {line_row[at]}, {name}", True, int(lengths[at]), "must not repeat")
        return found

    def _lists(
        self, refuse: Refuse, role: str, column: pl.Series, row: Ints
    ) -> tuple[pl.Series, Ints, Ints]:
        """The values, how many each line has, and the number of each line's row."""
        name = self.schema.columns[role]
        values, levels = lists(refuse, name, column, row, self.schema.depth(role))
        if not self.schema.is_nested:
            return values, levels[-1], row
        sites = len(self.lines.layers)
        for place in np.flatnonzero(levels[0] != sites)[:1].tolist():
            rule = f"must be {sites}, as experts have"
            refuse(f"row {row[place]}, layers of {name}", True, int(levels[0][place]), rule)
        return values, levels[-1], np.repeat(row, sites)

    def _finite(
        self, refuse: Refuse, name: str, values: pl.Series, lengths: Ints, line_row: Ints
    ) -> Floats:
        found = values.cast(pl.Float32).to_numpy()
        for place in np.flatnonzero(~np.isfinite(found))[:1].tolist():
            row = np.repeat(line_row, lengths)[place]
            refuse(f"row {row}, {name}", True, float(found[place]), "must be finite")
        return found
