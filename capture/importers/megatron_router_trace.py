"""Importer of format megatron_router_trace: what Megatron-core's ``RouterTracer`` wrote.

``path`` is its directory. ``router_trace_rank0.jsonl`` (``rank=N`` takes another rank's) has a
record for each step and layer, read in NVIDIA/Megatron-LM, ``core/transformer/moe/router_trace.py``::

    {"step": 0, "stage": "pre_dispatch", "block": "decoder", "layer": 3, "rank": 0,
     "num_tokens": 128, "topk": 8, "top_indices": [[12, 45, ..], ..],
     "hs_offset": .., "hs_bytes": .., "hs_shape": [128, 2048],
     "logit_offset": .., "logit_bytes": .., "logit_shape": [128, 64]}

The last six are there if the run kept them: places in ``hidden_states_rank0.bin`` (what the router
reads) and ``logits_rank0.bin``, in bfloat16. They become the trace's gate inputs and logits, exactly;
``gate_inputs=no`` leaves the former out. Records of draft layers (``"block": "mtp"``) are left out.

Experts of a router that gives a map stand by id, so their rank is unknown unless ``order=rank``
says it. Which rows are whose is not recorded. With ``recorded=inference``, the default, a step of
one row is a decoded token and several rows are a prompt; where a prompt follows decoded tokens,
``sequences=prompts`` or ``one`` says whether it begins another sequence. Batches of requests look
the same and must not be imported. With ``recorded=training`` each step is a prompt of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.parts import (
    FACTS,
    LARGEST_VALUES,
    Recording,
    Request,
    Rows,
    assemble,
    check_ids,
    check_size,
    complete,
    hidden_files,
    is_ranked,
)
from capture.importers.passes import SEQUENCES, phases_of
from capture.importers.source import (
    INT16_MAX,
    INT32_MAX,
    Imported,
    ImportFailure,
    Refuse,
    Track,
    lines_of,
    one_of,
    parsed_json,
    require_file,
)
from sim.traces.trace import PREFILL

KEYS = (*FACTS, "rank", "recorded", "sequences", "order", "gate_inputs")
RECORDED, KEPT = ("inference", "training"), ("keep", "no")
LARGEST_FILE_BYTES = 1 << 34


@dataclass(frozen=True)
class _Record:
    """One layer of one step. ``places``: by sidecar, the offset of its values, -1 for none."""

    line: int
    step: int
    layer: int
    ids: NDArray[np.int64]
    places: tuple[int, int]


@dataclass(frozen=True)
class _Sidecar:
    """A file of bfloat16 values beside the records, and the names that point into it."""

    file: str
    key: str
    what: str


SIDECARS = (
    _Sidecar("hidden_states", "hs", "hidden="),
    _Sidecar("logits", "logit", "experts="),
)


def check(request: Request) -> None:
    complete(request.facts, {}, "megatron")
    is_ranked(request, False)
    options = request.options
    one_of("recorded", options.get("recorded", "inference"), RECORDED)
    one_of("sequences", options.get("sequences", "one"), SEQUENCES)
    if options.get("recorded") == "training" and "sequences" in options:
        raise ImportFailure(
            f"sequences={options['sequences']} changes nothing with recorded=training, where each"
            " step is a prompt of its own; leave it out"
        )
    one_of("gate_inputs", options.get("gate_inputs", "keep"), KEPT)
    rank = options.get("rank", "0")
    if not rank.isascii() or not rank.isdigit() or len(rank) > 6:
        raise ImportFailure(f"rank={rank} must be a whole number of 0 or more")


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace of one rank. Raise `TraceError` or `ImportFailure`."""
    check(request)
    facts, rank = complete(request.facts, {}, "megatron"), int(request.options.get("rank", "0"))
    path = _file(request.path, f"router_trace_rank{rank}.jsonl")
    refuse = Refuse(path.name)
    widths = (int(facts["hidden"]), int(facts["experts"]))
    records, drafts = [], 0
    for line, text in lines_of(path, refuse):
        record = _record(refuse, line, text, rank, widths)
        drafts += record is None
        records += [] if record is None else [record]
    refuse("lines", not records, "none of block decoder", "must have records of the decoder")
    steps, layers = _steps(refuse, records)
    counts = np.array([len(step[0].ids) for step in steps])
    top_k = records[0].ids.shape[1]
    check_size(refuse, "lines", int(counts.sum()), len(layers), top_k, "cut the file")
    ids = np.concatenate([np.stack([r.ids for r in step], 1) for step in track(steps, "steps")])
    for site, layer in enumerate(layers):
        check_ids(refuse, f"top_indices at layer {layer}", ids[:, site], int(facts["experts"]))
    phase, sequence = _phases(refuse, request, counts, [step[0].line for step in steps])
    begins = np.searchsorted(sequence, sequence)
    ranked = is_ranked(request, False)
    rows = Rows(
        np.repeat(np.arange(len(steps)), counts),
        phase,
        sequence,
        np.arange(len(sequence)) - begins,
        ids,
        ranked=ranked,
    )
    hidden, logits = (
        _values(request, sidecar, rank, steps, width)
        for sidecar, width in zip(SIDECARS, widths, strict=True)
    )
    unknown = [] if request.options.get("recorded") != "training" else ["sequences"]
    recording = Recording(
        format="megatron_router_trace",
        files={"file": path},
        layers=layers,
        lacks=("weights", *([] if ranked else ["order"]), *unknown, "tokens", "scores"),
        site_name="decoder.layers.{}.mlp.router",
        dtype="bfloat16",
        told={
            "origin": "NVIDIA/Megatron-LM, RouterTracer",
            "rank": rank,
            "recorded": request.options.get("recorded", "inference"),
            "draft_records": drafts,
            "gate_inputs": hidden is not None,
            "logits": "as recorded; lookahead and routing rules are not"
            if logits is not None
            else "not recorded",
        },
    )
    trace = replace(assemble(facts, rows, recording), logits=logits)
    return Imported(trace, {} if hidden is None else hidden_files(hidden, rows))


def _file(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise ImportFailure(f"path={folder} is no directory; name one with {name}")
    return require_file("path", folder / name, f"a directory with {name}", LARGEST_FILE_BYTES)


def _record(
    refuse: Refuse, line: int, text: str, rank: int, widths: Sequence[int]
) -> _Record | None:
    """A line's record; None for one of a draft layer."""
    at = f"line {line}"
    names = ("step", "stage", "block", "layer", "rank", "num_tokens", "topk", "top_indices")
    value = refuse.has(at, parsed_json(text, refuse, at), *names)
    refuse(f"{at}, stage", value["stage"] != "pre_dispatch", value["stage"], "must be pre_dispatch")
    known = value["block"] in ("decoder", "mtp")
    refuse(f"{at}, block", not known, value["block"], "must be decoder or mtp")
    if value["block"] == "mtp":
        return None
    refuse.whole(f"{at}, rank", value["rank"], rank, rank)
    ids = refuse.numbers(f"{at}, top_indices", value["top_indices"], "iu", 2).astype(np.int64)
    stated = [value["num_tokens"], value["topk"]]
    refuse(f"{at}, num_tokens and topk", stated != list(ids.shape), stated, f"must be {ids.shape}")
    places = tuple(
        _place(refuse, at, value, sidecar, (len(ids), width))
        for sidecar, width in zip(SIDECARS, widths, strict=True)
    )
    return _Record(
        line,
        refuse.whole(f"{at}, step", value["step"], 0, INT32_MAX),
        refuse.whole(f"{at}, layer", value["layer"], 0, INT16_MAX),
        ids,
        (places[0], places[1]),
    )


def _place(
    refuse: Refuse, at: str, value: dict[str, Any], sidecar: _Sidecar, shape: tuple[int, int]
) -> int:
    """Where in a sidecar the record's values are, -1 where there are none."""
    offset, size, stated = (f"{sidecar.key}_{name}" for name in ("offset", "bytes", "shape"))
    if offset not in value:
        return -1
    refuse.has(at, value, size, stated)
    rule = f"must be {list(shape)}: num_tokens and {sidecar.what}"
    refuse(f"{at}, {stated}", value[stated] != list(shape), value[stated], rule)
    refuse.whole(f"{at}, {size}", value[size], 2 * shape[0] * shape[1], 2 * shape[0] * shape[1])
    return refuse.whole(f"{at}, {offset}", value[offset], 0, LARGEST_FILE_BYTES)


def _steps(refuse: Refuse, records: Sequence[_Record]) -> tuple[list[list[_Record]], list[int]]:
    """The records of each step, layer by layer, and the layers. Each step must have those of the
    first, with equally many rows at all of them.
    """
    by_step: dict[int, list[_Record]] = {}
    for record in records:
        by_step.setdefault(record.step, []).append(record)
    first = next(iter(by_step.values()))
    layers = [record.layer for record in first]
    shape = first[0].ids.shape[1]
    before = -1
    for number, step in by_step.items():
        at = f"line {step[0].line}, step"
        refuse(at, number <= before, number, "must rise; a step's records stand together")
        before = number
        for record in step:
            at = f"line {record.line}"
            wide = record.ids.shape != (len(step[0].ids), shape)
            rule = f"must be {[len(step[0].ids), shape]}, as at the step's other layers"
            refuse(f"{at}, num_tokens and topk", wide, list(record.ids.shape), rule)
        found = [record.layer for record in step]
        rule = f"must be {layers}, as in the first step: each once, ascending"
        wrong = found != layers or sorted({*found}) != found
        refuse(f"line {step[0].line}, layers of the step", wrong, found, rule)
    return list(by_step.values()), layers


def _phases(
    refuse: Refuse, request: Request, counts: NDArray[np.int64], lines: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Phase and sequence of each row."""
    if request.options.get("recorded") == "training":
        return np.full(counts.sum(), PREFILL), np.repeat(np.arange(len(counts)), counts)
    return phases_of(refuse, counts, lines, request.options.get("sequences"))


def _values(
    request: Request, sidecar: _Sidecar, rank: int, steps: Sequence[Sequence[_Record]], width: int
) -> NDArray[np.float32] | None:
    """A sidecar's values [N, S, width]; None where no record has any, or they are not wanted."""
    place = SIDECARS.index(sidecar)
    offsets = [record.places[place] for step in steps for record in step]
    left_out = sidecar.key == "hs" and request.options.get("gate_inputs") == "no"
    if left_out or max(offsets) < 0:
        return None
    path = _file(request.path, f"{sidecar.file}_rank{rank}.bin")
    refuse, size = Refuse(path.name), path.stat().st_size
    rows, sites = sum(len(step[0].ids) for step in steps), len(steps[0])
    many = rows * sites * width
    refuse("values", many > LARGEST_VALUES, many, f"must be at most {LARGEST_VALUES}", "cut it")
    found = np.empty((rows, sites, width), np.float32)
    with path.open("rb") as stream:
        for begin, site, record in _in_rows(steps):
            name, taken = f"of line {record.line}", len(record.ids) * width * 2
            offset = record.places[place]
            refuse(f"values {name}", offset < 0, "absent", "must be there, as at other lines")
            rule = f"must be in the file, which has {size} bytes"
            refuse(f"bytes {name}", offset + taken > size, offset + taken, rule)
            stream.seek(offset)
            halves = np.frombuffer(stream.read(taken), "<u2").astype(np.uint32) << 16
            values = halves.view(np.float32).reshape(-1, width)
            refuse.where(f"values {name}", ~np.isfinite(values), values, "must be finite")
            found[begin : begin + len(values), site] = values
    return found


def _in_rows(steps: Sequence[Sequence[_Record]]) -> Iterator[tuple[int, int, _Record]]:
    """The first row and the site of each record."""
    begin = 0
    for step in steps:
        yield from ((begin, site, record) for site, record in enumerate(step))
        begin += len(step[0].ids)
