"""Importer of format parquet: routes as data sets publish them, under any names.

``path`` is a file, or a folder of parts that are read in the order of their names. A row is a token
at a layer::

    prompt_idx  tok  layer_idx  top_indices  router_logits   h
    0           0    3          [3, 17]      [.., ..]        [.., ..]

or a token, and then each of the last four is a list of such lists, layer by layer. ``columns=``
says which column is what, ``columns=sequence:prompt_idx,layer:layer_idx``; roles are named as in
``capture/importers/parquet_roles.py``, and a column of a role's own name needs no word.

- ``sequence`` is a number or a text, ``position`` counts from 0, prompt included.
- ``phase`` is prefill, decode or chunk; ``phases=prompt:prefill,gen:decode`` maps other values.
  Where no column has it, ``phase=decode`` says it of all rows.
- ``layer``: every token must have all layers. A row of lists may lack it: layers then count from 0.
- ``experts`` stand in the order of rank only if ``order=rank`` says so. ``weights`` and ``logits``
  tell ranks by themselves. ``step`` and ``token`` are as in the project's own tables.
- ``logits`` are of all experts, and become the trace's; or of those in ``logit_experts``. A trace
  has no place for logits of some experts. They only tell the ranks of the chosen ones, and with
  ``weights=softmax_topk``, where the model's weights are the softmax of the chosen experts' logits,
  the weights.
- ``input`` is what the router read, and becomes the trace's gate inputs.

``logits=no`` and ``gate_inputs=no`` leave out what is large; ``prompts=N`` takes the first N
sequences. Files are read in blocks of rows, twice where they have logits or inputs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from capture.importers import parts
from capture.importers.frames import (
    Ints,
    blocks,
    lists,
    no_null,
    parts_of,
    refuse_first,
    schema_in,
    wholes,
)
from capture.importers.lines import LARGEST_WEIGHT, MOST_EXPERTS, PHASES, Lines, rows_of, tokens_of
from capture.importers.parquet_roles import Schema, pairs, schema_of, told_columns
from capture.importers.parquet_wide import wide_of
from capture.importers.parts import (
    FACTS,
    Recording,
    Request,
    assemble,
    complete,
    hidden_files,
    is_ranked,
    no_order,
)
from capture.importers.source import (
    INT16_MAX,
    INT32_MAX,
    Imported,
    ImportFailure,
    Refuse,
    Track,
    count,
    one_of,
    sha256_of_all,
)

KEYS = (
    *FACTS,
    *("columns", "phase", "phases", "top_k", "order", "weights", "logits", "gate_inputs"),
    "prompts",
)
NARROW = ("sequence", "position", "phase", "layer", "experts", "weights", "step", "token")
BLOCK_LINES = 1 << 18
"""About how many lines are read at once."""
REMEDY = "take fewer, prompts=N"


def check(request: Request) -> None:
    options = request.options
    complete(request.facts, {}, "imported")
    told_columns(request)
    _phase_words(request)
    is_ranked(request, False)
    for key in ("top_k", "prompts"):
        if key in options:
            count(key, options[key])
    for key, words in {
        "phase": tuple(PHASES),
        "weights": ("softmax_topk",),
        "logits": ("keep", "no"),
        "gate_inputs": ("keep", "no"),
    }.items():
        one_of(key, options.get(key, words[0]), words)


def _phase_words(request: Request) -> dict[str, int]:
    """The phase of each value that a phase's column may have."""
    text = request.options.get("phases")
    told = {} if text is None else pairs("phases", text)
    for phase in told.values():
        one_of("phases", phase, tuple(PHASES))
    return {**PHASES, **{word: PHASES[phase] for word, phase in told.items()}}


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace. Raise `TraceError` or `ImportFailure`."""
    check(request)
    facts, options = complete(request.facts, {}, "imported"), request.options
    paths, refuse = parts_of(request.path), Refuse(request.path.name)
    schema = _schema(paths, request)
    table = _Table(paths, schema, request, int(facts["experts"]))
    for index in track(range(len(paths)), "reading routes"):
        table.take(index)
    lines, at = table.lines(refuse)
    tokens = tokens_of(lines, refuse)
    wide = wide_of(paths, schema, lines, tokens, at, facts, track)
    if "weights" in schema.columns or "weights" in options:
        no_order(request, "the weights")
    by_logits = wide.scores is not None and "order" not in options and lines.weights is None
    lines = _with_told_weights(lines, wide.scores, options)
    if by_logits and wide.scores is not None:
        lines = _ranked(lines, wide.scores)
    top_k = options.get("top_k")
    rows = rows_of(lines, tokens, refuse, None if top_k is None else int(top_k))
    ranked = by_logits or lines.weights is not None or is_ranked(request, False)
    recording = Recording(
        format="parquet",
        files={},
        layers=lines.layers,
        lacks=(*lines.lacks(), *([] if ranked else ["order"]), "scores"),
        site_name="layer {}",
        versions={"polars": pl.__version__},
        told={
            "files": len(paths),
            "files_sha256": sha256_of_all(paths),
            "columns": ", ".join(f"{role}: {name}" for role, name in schema.columns.items()),
            "steps": lines.steps_told(),
            "gate_inputs": wide.inputs is not None,
            "logits": wide.told,
            "weights": _weights_told(schema, lines),
        },
    )
    trace = replace(assemble(facts, replace(rows, ranked=ranked), recording), logits=wide.logits)
    return Imported(trace, {} if wide.inputs is None else hidden_files(wide.inputs, rows))


def _schema(paths: Sequence[Path], request: Request) -> Schema:
    """The schema of all parts, which must be one."""
    first: Schema | None = None
    for path in paths:
        refuse = Refuse(path.name)
        found = schema_of(refuse, request, schema_in(refuse, path))
        rule = f"must be as in {paths[0].name}: {sorted((first or found).columns.items())}"
        told = sorted(found.columns.items())
        refuse("columns", first is not None and found != first, told, rule)
        first = first or found
    assert first is not None
    _check_used(request.options, first.columns)
    if request.options.get("weights") and (
        "weights" in first.columns or "logits" not in first.columns
    ):
        raise ImportFailure(
            "weights=softmax_topk makes weights from logits: the file must have logits and no"
            " weights; leave it out, or name its columns in columns="
        )
    return first


def _check_used(options: Mapping[str, str], columns: Mapping[str, str]) -> None:
    """Refuse words that would change nothing, for these columns."""
    if "phase" in options and "phase" in columns:
        raise ImportFailure(
            f"phase={options['phase']} says what no column tells, and column {columns['phase']} has"
            " the phase; leave it out, or rename the column"
        )
    if "phases" in options and "phase" not in columns:
        raise ImportFailure(
            f"phases={options['phases']} maps the values of a column, and none has the phase; name"
            " it in columns=phase:NAME"
        )


def _with_told_weights(
    lines: Lines, scores: NDArray[np.float64] | None, options: Mapping[str, str]
) -> Lines:
    """With ``weights=softmax_topk``: each line's weights as the softmax of its ``scores``."""
    if scores is None or "weights" not in options:
        return lines
    line = lines.of_choices()
    largest = np.full(len(lines.chosen), -np.inf)
    np.maximum.at(largest, line, scores)
    powers = np.exp(scores - largest[line])
    total = np.bincount(line, powers, len(lines.chosen))
    return replace(lines, weights=powers / total[line])


def _ranked(lines: Lines, scores: NDArray[np.float64]) -> Lines:
    """The choices of each line by falling score, equal ones as they stand."""
    order = np.lexsort((np.arange(len(scores)), -scores, lines.of_choices()))
    weights = None if lines.weights is None else lines.weights[order]
    return replace(lines, experts=lines.experts[order], weights=weights)


def _weights_told(schema: Schema, lines: Lines) -> str:
    if lines.weights is None:
        return "none"
    if "weights" in schema.columns:
        return "equal ones set apart by a float32 ulp, in the order of the file"
    return "not recorded: softmax of the chosen experts' logits, as was asked"


@dataclass
class _Table:
    """Reads the narrow columns of all parts, block by block, and checks each value.

    ``known`` numbers the sequences that are taken, ``starts`` has the number of each part's first
    row among the rows of all parts, and ``at`` the number of each line's row.
    """

    paths: Sequence[Path]
    schema: Schema
    request: Request
    num_experts: int
    known: dict[Any, int] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    rows: int = 0
    many: int = 0
    sites: int | None = None
    taken: dict[str, list[NDArray[Any]]] = field(default_factory=dict)

    def take(self, index: int) -> None:
        """Append the lines of a part."""
        path = self.paths[index]
        refuse = Refuse(path.name)
        self.starts.append(self.rows)
        names = {role: self.schema.columns[role] for role in NARROW if role in self.schema.columns}
        size = BLOCK_LINES
        if self.schema.is_nested:
            for _, first in islice(blocks(refuse, path, [names["experts"]], 1), 1):
                layers = first.to_series().list.len().fill_null(0).item()
                size = max(1, BLOCK_LINES // max(1, layers))
        for begin, frame in blocks(refuse, path, list(names.values()), size):
            columns = {role: frame[name] for role, name in names.items()}
            self.rows += len(frame)
            row = np.arange(begin, begin + len(frame))
            kept = self._sequences(refuse, columns, row)
            if kept.any():
                mask = pl.Series(kept)
                columns = {role: column.filter(mask) for role, column in columns.items()}
                self._block(refuse, columns, row[kept])

    def _sequences(self, refuse: Refuse, columns: dict[str, pl.Series], row: Ints) -> Any:
        """Number the sequences, and say which rows are of those that are taken."""
        column, name = columns["sequence"], self.schema.columns["sequence"]
        is_text = column.dtype == pl.String
        no_null(refuse, name, column, row)
        if not is_text:
            column = pl.Series(wholes(refuse, name, column, row, INT32_MAX))
        most = int(self.request.options.get("prompts", INT32_MAX))
        for value in column.unique(maintain_order=True).to_list():
            if value not in self.known and len(self.known) < most:
                self.known[value] = len(self.known) if is_text else value
        kept = column.is_in(list(self.known)).to_numpy()
        columns["sequence"] = (
            column.replace_strict(self.known, default=-1, return_dtype=pl.Int64)
            if is_text
            else column
        )
        return kept

    def _block(self, refuse: Refuse, columns: Mapping[str, pl.Series], row: Ints) -> None:
        """Append the lines of some rows, whose sequences are numbers already."""
        names, depth = self.schema.columns, self.schema.depth
        experts, levels = lists(refuse, names["experts"], columns["experts"], row, depth("experts"))
        found: dict[str, NDArray[Any]] = {"sequence": columns["sequence"].to_numpy()}
        for role in ("position", "step", "token"):
            if role in columns:
                found[role] = wholes(refuse, names[role], columns[role], row, INT32_MAX)
        found["phase"] = self._phases(refuse, columns.get("phase"), row)
        found["at"] = self.starts[-1] + row
        if self.schema.is_nested:
            self._check_sites(refuse, names["experts"], levels[0], row)
            sites = self.sites or 0
            found = {name: np.repeat(values, sites) for name, values in found.items()}
        found["layer"] = self._layers(refuse, columns.get("layer"), row)
        line_row = found["at"] - self.starts[-1]
        found["chosen"] = levels[-1]
        wide = levels[-1] > MOST_EXPERTS
        refuse_first(refuse, "number of experts", wide, levels[-1], line_row, 0, MOST_EXPERTS)
        found["experts"] = self._experts(refuse, experts.to_numpy(), levels[-1], line_row)
        if "weights" in columns:
            found["weights"] = _weights(
                refuse, self.schema, columns["weights"], row, levels, line_row
            )
        self.many += len(found["experts"])
        rule = f"must be at most {parts.LARGEST_CELLS}"
        refuse("choices", self.many > parts.LARGEST_CELLS, self.many, rule, REMEDY)
        for name, values in found.items():
            self.taken.setdefault(name, []).append(values)

    def _phases(self, refuse: Refuse, column: pl.Series | None, row: Ints) -> Ints:
        if column is None:
            return np.full(len(row), PHASES[self.request.options["phase"]], np.int64)
        words, name = _phase_words(self.request), self.schema.columns["phase"]
        no_null(refuse, name, column, row)
        texts = column.cast(pl.String)
        found = texts.replace_strict(words, default=-1, return_dtype=pl.Int64).to_numpy()
        if (found < 0).any():
            at = int((found < 0).argmax())
            refuse(
                f"row {row[at]}, {name}",
                True,
                texts[at],
                f"must be one of {', '.join(words)}",
                "say what it stands for, as in phases=prompt:prefill,gen:decode",
            )
        return found

    def _check_sites(self, refuse: Refuse, name: str, lengths: Ints, row: Ints) -> None:
        """Every token must have as many layers as the first one."""
        self.sites = int(lengths[0]) if self.sites is None else self.sites
        rule = f"must be {self.sites}, 1 or more, as in the first row"
        wrong = lengths != self.sites if self.sites else lengths == 0
        at = int(wrong.argmax())
        refuse(f"row {row[at]}, layers of {name}", bool(wrong.any()), int(lengths[at]), rule)

    def _layers(self, refuse: Refuse, column: pl.Series | None, row: Ints) -> Ints:
        if column is None:
            return np.tile(np.arange(self.sites or 0), len(row))
        name = self.schema.columns["layer"]
        if self.schema.is_nested:
            column, (lengths,) = lists(refuse, name, column, row, 1)
            self._check_sites(refuse, name, lengths, row)
            row = np.repeat(row, lengths)
        return wholes(refuse, name, column, row, INT16_MAX - 1)

    def _experts(
        self, refuse: Refuse, experts: NDArray[Any], chosen: Ints, line_row: Ints
    ) -> NDArray[np.int16]:
        name, row = self.schema.columns["experts"], np.repeat(line_row, chosen)
        wrong = (experts < 0) | (experts >= self.num_experts)
        refuse_first(refuse, name, wrong, experts, row, 0, self.num_experts - 1)
        line = np.repeat(np.arange(len(chosen)), chosen)
        key = np.sort(line * self.num_experts + experts.astype(np.int64))
        again = np.flatnonzero(np.diff(key) == 0)
        for at in key[again[:1]].tolist():
            number, expert = divmod(at, self.num_experts)
            refuse(f"row {line_row[number]}, {name}", True, expert, "must not repeat")
        return experts.astype(np.int16)

    def lines(self, refuse: Refuse) -> tuple[Lines, Ints]:
        """All lines, and the number of each one's row among the rows of all parts."""
        refuse("rows", not self.taken, "absent", "must have a token at a layer")
        found = {name: np.concatenate(self.taken.pop(name)) for name in list(self.taken)}
        at, starts = found.pop("at"), self.starts

        def place(line: int) -> str:
            number = int(at[line])
            part = bisect_right(starts, number) - 1
            several = f" of {self.paths[part].name}" if len(starts) > 1 else ""
            return f"row {number - starts[part]}{several}"

        layers = np.unique(found["layer"]).tolist()
        return Lines(**found, layers=layers, place=place, remedy=REMEDY, site_word="layer"), at


def _weights(
    refuse: Refuse,
    schema: Schema,
    column: pl.Series,
    row: Ints,
    levels: tuple[Ints, ...],
    line_row: Ints,
) -> NDArray[np.float64]:
    name = schema.columns["weights"]
    found, own = lists(refuse, name, column, row, schema.depth("weights"))
    for mine, theirs in zip(own, levels, strict=True):
        number = line_row if len(mine) == len(line_row) else row
        rule = "must be as many as experts"
        wrong = mine != theirs
        at = int(wrong.argmax())
        refuse(f"row {number[at]}, values of {name}", bool(wrong.any()), int(mine[at]), rule)
    values = found.cast(pl.Float64).to_numpy()
    wrong = ~((values >= 0) & (values <= LARGEST_WEIGHT))
    number = np.repeat(line_row, levels[-1])
    refuse_first(refuse, name, wrong, values, number, 0, int(LARGEST_WEIGHT))
    return values
