"""Importer of ``events.csv``, the readable form of format moe_cache_eval.

The format's author publishes it beside results. ``manifest.json`` beside it has ``model`` with
``num_layers``, and ``num_experts`` or ``num_experts_per_layer``. The table has a line for each
event, which is one layer of a scheduler's step, layer by layer and step by step::

    event_index,scheduler_step,layer,requested_experts,misses,hits
    0,0,0,0 1,2,0

``requested_experts`` is a set, separated by spaces. ``misses`` and ``hits`` count how many of them
the author's replay found absent and present.

The table does not say how many tokens asked, with which weights, in which order and phase. So each
step becomes one decoded row whose choices are the step's sets, and the header says that rows,
weights and order are lacking. The replay's counts are kept as ``replayed.parquet``: event, step,
site, misses, hits.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from capture.importers.parts import Recording, Request, Rows, assemble, check_size, complete
from capture.importers.source import (
    INT16_MAX,
    INT32_MAX,
    Imported,
    ImportFailure,
    Refuse,
    Track,
    lines_of,
    parsed_json,
    require_file,
)
from sim.traces.trace import DECODE

EVENTS_FILE, MANIFEST = "events.csv", "manifest.json"
COLUMNS = ("event_index", "scheduler_step", "layer", "requested_experts", "misses", "hits")
REPLAYED_FILE = "replayed.parquet"
LARGEST_FILE_BYTES = 1 << 30
LARGEST_TEXT_BYTES = 1 << 28
Line = Mapping[str, str]


@dataclass
class _Events:
    """The events read so far, as columns.

    ``experts`` are those of all events, one after another; ``counts`` says how many each event has.
    """

    step: array[int] = field(default_factory=lambda: array("q"))
    experts: array[int] = field(default_factory=lambda: array("q"))
    counts: array[int] = field(default_factory=lambda: array("q"))
    misses: array[int] = field(default_factory=lambda: array("q"))
    hits: array[int] = field(default_factory=lambda: array("q"))


def is_events(path: Path) -> bool:
    """Whether ``path`` is such a table, or a directory with one in place of the tensors."""
    return path.suffix == ".csv" or (
        (path / EVENTS_FILE).is_file() and not (path / "events.safetensors").exists()
    )


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace of a table. Raise `TraceError` or `ImportFailure`."""
    place = request.path if request.path.suffix == ".csv" else request.path / EVENTS_FILE
    require_file(
        "path", place, f"an {EVENTS_FILE}", LARGEST_FILE_BYTES, "split it between two steps"
    )
    model = _model(place.parent / MANIFEST)
    layers, experts = model["num_layers"], model["num_experts"]
    refuse = Refuse(place.name)
    events = _Events()
    for number, line in track(list(_lines(refuse, place)), "reading events"):
        _take(refuse, f"line {number}", line, events, layers, experts)
    refuse("line 2", not events.counts, "absent", "must be an event")
    refuse(
        "layer",
        len(events.counts) % layers != 0,
        (len(events.counts) - 1) % layers,
        f"must end at {layers - 1}",
    )
    counts = np.array(events.counts).reshape(-1, layers)
    steps, top_k = len(counts), int(counts.max())
    check_size(refuse, EVENTS_FILE, steps, layers, top_k, "split it between two steps")
    ids = np.full((steps, layers, top_k), -1)
    ids[np.arange(top_k) < counts[..., None]] = np.array(events.experts)
    numbers = np.arange(steps)
    rows = Rows(numbers, np.full(steps, DECODE), np.zeros(steps), numbers, ids)
    facts = complete(request.facts, {"experts": str(experts), **model["told"]}, "moe_cache_eval")
    recording = Recording(
        format="moe_cache_eval",
        files={"manifest": place.parent / MANIFEST, "file": place},
        layers=range(layers),
        lacks=("weights", "order", "rows", "sequences", "tokens", "scores"),
        site_name="layer {}",
        told={
            "origin": f"{EVENTS_FILE} of github.com/shijiuzhang/moe-cache-eval",
            "steps": (
                "a step for each scheduler's step, as one decoded row: its tokens and phase are not"
                " told"
            ),
            "replayed": f"{REPLAYED_FILE}: what the author's replay found",
            "hits": sum(events.hits),
            "misses": sum(events.misses),
        },
    )
    return Imported(assemble(facts, rows, recording), {REPLAYED_FILE: _replayed(events, layers)})


def _model(path: Path) -> dict[str, Any]:
    """``num_layers`` and ``num_experts`` from the manifest at ``path``.

    ``told`` has the model's name, if the manifest does.
    """
    if not path.is_file():
        raise ImportFailure(f"path: {path} is missing; copy it from where {EVENTS_FILE} comes from")
    require_file("path", path, MANIFEST, LARGEST_TEXT_BYTES)
    refuse = Refuse(MANIFEST)
    model = refuse.has(
        "model",
        refuse.has("", parsed_json(path.read_bytes(), refuse, "text"), "model")["model"],
        "num_layers",
    )
    key = "num_experts" if "num_experts" in model else "num_experts_per_layer"
    refuse.has("model", model, key)
    told = {"model": refuse.text("model.id", model["id"])} if "id" in model else {}
    return {
        "num_layers": refuse.whole("model.num_layers", model["num_layers"], 1, INT16_MAX),
        "num_experts": refuse.whole(f"model.{key}", model[key], 1, INT16_MAX),
        "told": told,
    }


def _lines(refuse: Refuse, path: Path) -> Iterator[tuple[int, Line]]:
    names: list[str] = []
    for number, text in lines_of(path, refuse):
        cells = text.split(",")
        if not names:
            names = cells
            for name in COLUMNS:
                refuse("line 1", names.count(name) != 1, text, f"must name the column {name} once")
            continue
        refuse(
            f"line {number}",
            len(cells) != len(names),
            text,
            f"must have {len(names)} values, as line 1 has names",
        )
        yield number, dict(zip(names, cells, strict=True))
    refuse("line 1", not names, "absent", f"must name the columns {', '.join(COLUMNS)}")


def _take(
    refuse: Refuse, place: str, line: Line, events: _Events, layers: int, experts: int
) -> None:
    def whole(name: str, text: str, most: int) -> int:
        number: object = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
        return refuse.whole(f"{place}, {name}", number, 0, most)

    event = len(events.counts)
    for name, expected in (("event_index", event), ("layer", event % layers)):
        rule = f"must be {expected}: events stand layer by layer and step by step"
        refuse(f"{place}, {name}", whole(name, line[name], INT32_MAX) != expected, line[name], rule)
    step = whole("scheduler_step", line["scheduler_step"], INT32_MAX)
    before = events.step[-1] if events.step else step
    wrong = step != before if event % layers else step < before
    rule = (
        f"must be {before}, as at the layers before"
        if event % layers
        else f"must not fall below {before}"
    )
    refuse(f"{place}, scheduler_step", wrong, step, rule)
    asked = [
        whole("requested_experts", word, experts - 1)
        for word in line["requested_experts"].split(" ")
    ]
    refuse(
        f"{place}, requested_experts",
        len(set(asked)) != len(asked),
        asked,
        "must not repeat: it is a set",
    )
    misses, hits = (whole(name, line[name], len(asked)) for name in ("misses", "hits"))
    rule = f"must be {len(asked)} with the hits, as many as experts"
    refuse(f"{place}, misses", misses + hits != len(asked), misses, rule)
    events.step.append(step)
    events.experts.extend(asked)
    events.counts.append(len(asked))
    events.misses.append(misses)
    events.hits.append(hits)


def _replayed(events: _Events, layers: int) -> bytes:
    event, stream = np.arange(len(events.counts), dtype=np.int32), io.BytesIO()
    pl.DataFrame(
        {
            "event": event,
            "step": event // layers,
            "site": (event % layers).astype(np.int16),
            "misses": np.array(events.misses, np.int16),
            "hits": np.array(events.hits, np.int16),
        }
    ).write_parquet(stream, compression="zstd")
    return stream.getvalue()
