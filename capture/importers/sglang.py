"""Importer of format sglang: a dump of SGLang's expert distribution recorder.

The recorder must run in ``--expert-distribution-recorder-mode per_token``: its other modes (stat,
per_pass) count experts and do not record the choices of tokens. It writes
``expert_distribution_recorder_<time>_<rank>.pt`` by ``torch.save``::

    {"records": [{"forward_pass_id": int, "rank": int, "gatherer_key": "primary",
                  "input_ids": [N ints], "positions": [N ints],
                  "extend_seq_lens": [ints] or None, "forward_mode": int,
                  "topk_ids_of_layer": int32 [L, N, 8], "misc_objects": [],
                  "global_physical_count": int32 [L, P]}, ..],
     "last_physical_to_logical_map": int [L, P]}

A record is a forward pass of N tokens. Ids are those of physical experts; the map makes them
logical. They are -1 where there is no expert: in columns from top-k on, and in layers without
experts. ``forward_mode`` is 1 to extend (prompts, or parts of them), 2 to decode, 3 for both, 4 for
an idle pass.

A dump does not say which request a row belongs to. Rows are linked into sequences like this:

- Extended rows come request by request (``extend_seq_lens``). Those that begin at position 0, or
  at a position that no unfinished prompt has reached, are a new sequence.
- A decoded row continues the first sequence, in the order of the batch, whose next position it has.
- Where several sequences would fit, the header says that sequences are lacking.

No mode records weights. Whether a token's experts stand in the order of their rank depends on the
model's router and on the kernel. A plain top-k of softmax leaves them in that order; say so with
``order=rank``. Routers with groups or a bias leave them unsorted (SGLang's ``layers/moe/topk.py``:
``torch.topk(.., sorted=False)``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.parts import (
    FACTS,
    Recording,
    Request,
    Rows,
    assemble,
    check_ids,
    check_numbers,
    check_size,
    complete,
    is_ranked,
)
from capture.importers.source import INT16_MAX, Imported, Refuse, Track
from capture.importers.torch_file import array_of, load
from sim.traces.trace import CHUNK, DECODE, PREFILL, Trace

KEYS = (*(key for key in FACTS if key != "experts"), "order")
RANKS = 8
"""How many columns of ids the recorder keeps, whatever the model's top-k."""
EXTEND, DECODING, MIXED, IDLE = 1, 2, 3, 4
PER_TOKEN = "record with --expert-distribution-recorder-mode per_token"
RECORD_KEYS = (
    "rank",
    "gatherer_key",
    "input_ids",
    "positions",
    "extend_seq_lens",
    "forward_mode",
    "topk_ids_of_layer",
    "global_physical_count",
)
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pass:
    """One record: N tokens, with ``ids`` of logical experts [L, N, 8].

    ``lengths`` has the rows of each request that was extended; empty in a pass that only decodes.
    """

    mode: int
    token: Ints
    position: Ints
    lengths: tuple[int, ...]
    ids: Ints


@dataclass(frozen=True)
class Dump:
    """A dump that has been checked.

    ``passes`` leave out idle ones; ``index`` has the record of each. ``records`` counts all
    records. ``layers`` are those with experts, of ``num_layers`` in all. ``moved``: the map moves
    some experts.
    """

    passes: tuple[Pass, ...]
    index: tuple[int, ...]
    records: int
    layers: tuple[int, ...]
    num_layers: int
    experts: int
    top_k: int
    moved: bool


def check(request: Request) -> None:
    is_ranked(request, False)


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace of a dump. Raise `TraceError` or `ImportFailure`."""
    trace, _ = read_dump(
        request, track, "sglang", {"origin": "expert distribution recorder of SGLang"}
    )
    return Imported(trace)


def read_dump(
    request: Request,
    track: Track[Any],
    name: str,
    told: Mapping[str, str],
    files: Mapping[str, Path] | None = None,
) -> tuple[Trace, Dump]:
    refuse = Refuse(request.path.name)
    dump = _dump(refuse, load("path", request.path, refuse), track)
    facts = complete(request.facts, {"experts": str(dump.experts)}, name)
    links = _Links()
    for number, item in enumerate(dump.passes):
        links.link(refuse, f"records[{dump.index[number]}]", item)
    ids = np.concatenate(
        [item.ids[list(dump.layers), :, : dump.top_k].swapaxes(0, 1) for item in dump.passes]
    )
    step = np.repeat(np.arange(len(dump.passes)), [len(item.token) for item in dump.passes])
    token = np.concatenate([item.token for item in dump.passes])
    position = np.concatenate([item.position for item in dump.passes])
    phase, sequence = np.array(links.phase), np.array(links.sequence)
    rows = Rows(step, phase, sequence, position, ids, None, token)
    unknown = [
        *([] if is_ranked(request, False) else ["order"]),
        *(["sequences"] if links.ambiguous else []),
    ]
    recording = Recording(
        format=name,
        files={"file": request.path, **(files or {})},
        layers=dump.layers,
        lacks=("weights", *unknown, "scores"),
        site_name="layer {}",
        implementation="SGLang",
        told={
            **told,
            "steps": "a step for each forward pass, as recorded",
            "sequences": "not recorded: linked by positions and the order of the batch",
            "ambiguous_rows": links.ambiguous,
            "begun_before": links.begun_before,
            "experts": "moved by the last map from physical to logical"
            if dump.moved
            else "logical",
        },
    )
    return assemble(facts, rows, recording), dump


def _dump(refuse: Refuse, value: object, track: Track[Any]) -> Dump:
    whole = value if isinstance(value, dict) else {}
    refuse(
        "content",
        "logical_count" in whole,
        "logical_count",
        "must be records of tokens, not counts",
        PER_TOKEN,
    )
    whole = refuse.has("", value, "records", "last_physical_to_logical_map")
    records = whole["records"]
    refuse(
        "records",
        not isinstance(records, list) or not records,
        type(records).__name__,
        "must be a list of records",
    )
    to_logical = array_of(
        refuse, "last_physical_to_logical_map", whole["last_physical_to_logical_map"], "iu", 2
    )
    check_numbers(refuse, "last_physical_to_logical_map", to_logical, INT16_MAX)
    passes = [
        _pass(refuse, f"records[{number}]", record, to_logical.astype(np.int64))
        for number, record in enumerate(track(records, "reading passes"))
    ]
    for key in ("rank", "gatherer_key"):
        for number, record in enumerate(records):
            plain = isinstance(record[key], (int, str))
            refuse(f"records[{number}].{key}", not plain, record[key], "must be a number or a text")
            rule = f"must be {records[0][key]!r}, as in records[0]: one rank, one dump"
            refuse(f"records[{number}].{key}", record[key] != records[0][key], record[key], rule)
    index = tuple(number for number, item in enumerate(passes) if len(item.token))
    refuse("records", not index, len(records), "must have a pass with tokens")
    kept = tuple(passes[number] for number in index)
    chosen = np.logical_or.reduce([(item.ids >= 0).any(1) for item in kept])
    layers = tuple(sorted(set(chosen.nonzero()[0].tolist())))
    refuse("topk_ids_of_layer", not layers, -1, "must have experts at one layer or more")
    top_k = int(chosen.nonzero()[1].max()) + 1
    check_size(
        refuse,
        "records",
        sum(len(item.token) for item in kept),
        len(layers),
        top_k,
        "record fewer passes",
    )
    moved = bool((to_logical != np.arange(to_logical.shape[1])).any())
    return Dump(
        kept, index, len(records), layers, len(to_logical), int(to_logical.max()) + 1, top_k, moved
    )


def _pass(refuse: Refuse, name: str, record: object, to_logical: Ints) -> Pass:
    value = refuse.has(name, record, *RECORD_KEYS)
    mode = refuse.whole(f"{name}.forward_mode", value["forward_mode"], 1, 99)
    rule = "must be 1 (extend), 2 (decode), 3 (mixed) or 4 (idle)"
    refuse(f"{name}.forward_mode", mode > IDLE, mode, rule, "record without speculative decoding")
    token, position = (
        _whole_numbers(refuse, f"{name}.{key}", value[key]) for key in ("input_ids", "positions")
    )
    rule = f"must be {len(token)}, as there are input_ids"
    refuse(f"{name}.positions", len(position) != len(token), len(position), rule)
    lengths = value["extend_seq_lens"]
    lengths = _whole_numbers(refuse, f"{name}.extend_seq_lens", [] if lengths is None else lengths)
    extends = mode in (EXTEND, MIXED)
    wrong = extends and (lengths.sum() != len(token) or (lengths < 1).any())
    rule = f"must be lengths that sum to the {len(token)} tokens of the pass"
    refuse(f"{name}.extend_seq_lens", bool(wrong), lengths.tolist(), rule)
    physical = array_of(refuse, f"{name}.topk_ids_of_layer", value["topk_ids_of_layer"], "i", 3)
    shape = (len(to_logical), len(token))
    rule = f"must be {[*shape, RANKS]} layers, tokens and ranks"
    refuse(
        f"{name}.topk_ids_of_layer", physical.shape != (*shape, RANKS), list(physical.shape), rule
    )
    count = array_of(
        refuse, f"{name}.global_physical_count", value["global_physical_count"], "i", 2
    )
    ids = _logical(refuse, name, physical.astype(np.int64), count, to_logical)
    return Pass(mode, token, position, tuple(lengths.tolist()) if extends else (), ids)


def _whole_numbers(refuse: Refuse, name: str, value: object) -> Ints:
    if isinstance(value, list) and not value:
        return np.empty(0, np.int64)
    if hasattr(value, "tolist"):
        found = array_of(refuse, name, value, "iu", 1)
    else:
        found = refuse.numbers(name, value, "iu", 1)
    check_numbers(refuse, name, found)
    return found.astype(np.int64)


def _logical(
    refuse: Refuse, name: str, physical: Ints, count: NDArray[Any], to_logical: Ints
) -> Ints:
    """The ids as those of logical experts, after a check against the recorded counts by layer."""
    num_layers, num_physical = to_logical.shape
    field = f"{name}.topk_ids_of_layer"
    check_ids(refuse, field, physical, num_physical, least=-1)
    layer = np.arange(num_layers)[:, None, None]
    cells = (layer * num_physical + physical)[physical >= 0]
    found = np.bincount(cells, minlength=to_logical.size).reshape(to_logical.shape)
    rule = (
        f"must be {list(to_logical.shape)}, the times that each expert stands in topk_ids_of_layer"
    )
    wrong = count.shape != to_logical.shape or bool((count != found).any())
    refuse(f"{name}.global_physical_count", wrong, list(count.shape), rule)
    ids = np.where(physical < 0, -1, to_logical[layer, np.maximum(physical, 0)])
    check_ids(refuse, f"{field}, as logical experts", ids, INT16_MAX, least=-1)
    return ids


@dataclass
class _Running:
    """A sequence that may continue, with its next position and whether it has begun to decode."""

    sequence: int
    next: int
    decodes: bool


@dataclass
class _Links:
    """Links rows into sequences: phase and sequence of each row.

    ``ambiguous`` counts rows that fitted several sequences, ``begun_before`` decoded rows whose
    sequence began before the dump.
    """

    phase: list[int] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    ambiguous: int = 0
    begun_before: int = 0
    _running: list[_Running] = field(default_factory=list)
    _sequences: int = 0

    def link(self, refuse: Refuse, name: str, item: Pass) -> None:
        if item.mode == DECODING:
            taken = [self._decoded(int(position), self._running) for position in item.position]
            # A pass that only decodes has all running sequences: the others have ended.
            self._running = taken
            return
        ends = np.cumsum(item.lengths)
        before = list(self._running)
        for length, end in zip(item.lengths, ends.tolist(), strict=True):
            positions = item.position[end - length : end]
            rule = "must count on by one inside a request"
            refuse(
                f"{name}.positions", bool((np.diff(positions) != 1).any()), positions.tolist(), rule
            )
            self._part(int(positions[0]), length, item.mode == MIXED and length == 1, before)

    def _decoded(self, position: int, running: list[_Running]) -> _Running:
        """Link one decoded row; the sequence that it continues is removed from ``running``."""
        fitting = [item for item in running if item.next == position]
        self.ambiguous += len(fitting) > 1
        self.begun_before += not fitting
        found = fitting[0] if fitting else self._new(position)
        if fitting:
            running.remove(found)
        self._add(DECODE, found, 1)
        found.decodes = True
        return found

    def _part(self, start: int, length: int, may_decode: bool, before: list[_Running]) -> None:
        """Link a request's rows in a pass that extends.

        ``before`` are the sequences that ran when the pass began and are not linked yet.
        """
        decoding = [item for item in before if item.decodes or item.next == start]
        if may_decode and any(item.next == start for item in decoding):
            before.remove(self._decoded(start, decoding))
            return
        fitting = (
            [item for item in before if item.next == start and not item.decodes] if start else []
        )
        self.ambiguous += len(fitting) > 1
        found = fitting[0] if fitting else self._new(start)
        if fitting:
            before.remove(found)
        else:
            self._running.append(found)
        self._add(CHUNK if start else PREFILL, found, length)

    def _new(self, start: int) -> _Running:
        self._sequences += 1
        return _Running(self._sequences - 1, start, False)

    def _add(self, phase: int, found: _Running, rows: int) -> None:
        self.phase += [phase] * rows
        self.sequence += [found.sequence] * rows
        found.next += rows
