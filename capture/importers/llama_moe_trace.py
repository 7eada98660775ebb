"""Importer of format llama_moe_trace: the CSV of ``llama-moe-trace``, a tool of a fork of llama.cpp.

``path`` is one file, or several that were put behind one another. A line is a position at a layer,
and there is no header::

    pos,layer,id0,id1,..

Read in the tool's source (thecodacus/llama.cpp, ``tools/moe-trace/moe-trace.cpp``): positions from 0
on are decoded tokens, one a step, and every layer with experts has a line, in ascending order.
Experts stand in order of rank. A position 0 after others begins another sequence.

Lines of prompts have negative positions. They are left out, because they cannot be told apart: the
tool repeats their numbers from micro-batch to micro-batch. It also copies a strided tensor flat, so
that from the second row on they may name experts that the router did not choose. Other tools of
this name have other columns and are refused.
"""

from __future__ import annotations

from array import array
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
    check_size,
    complete,
)
from capture.importers.source import (
    INT16_MAX,
    INT32_MAX,
    Imported,
    Refuse,
    Track,
    lines_of,
    require_file,
)
from sim.traces.trace import DECODE

KEYS = FACTS
LARGEST_FILE_BYTES = 1 << 32
COLUMNS = "must be pos,layer,id0,id1,.. in whole numbers, as llama-moe-trace of thecodacus writes"


def check(request: Request) -> None:
    complete(request.facts, {}, "decode")


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace of the decoded tokens. Raise `TraceError` or `ImportFailure`."""
    facts = complete(request.facts, {}, "decode")
    path = require_file("path", request.path, "a file of llama-moe-trace", LARGEST_FILE_BYTES)
    refuse = Refuse(path.name)
    for _ in track((path,), "reading lines"):
        table, prompt_lines = _decoded(request, refuse)
    layers = _layers(refuse, table)
    position = table[:: len(layers), 0]
    ids = table[:, 2:].reshape(len(position), len(layers), -1)
    check_size(refuse, "lines", *ids.shape, "cut the file between two positions")
    for site, layer in enumerate(layers):
        check_ids(refuse, f"experts of layer {layer}", ids[:, site], int(facts["experts"]))
    rows = Rows(
        np.arange(len(position)),
        np.full(len(position), DECODE),
        np.cumsum(position == 0) - 1,
        position,
        ids,
    )
    recording = Recording(
        format="llama_moe_trace",
        files={"file": path},
        layers=layers,
        lacks=("weights", "tokens", "scores"),
        site_name="blk.{}.ffn_moe",
        told={
            "origin": "thecodacus/llama.cpp, tools/moe-trace",
            "prompts": "left out: their lines cannot be told apart",
            "prompt_lines": prompt_lines,
            "positions": "count decoded tokens; how long the prompt was is not recorded",
        },
    )
    return Imported(assemble(facts, rows, recording))


def _decoded(request: Request, refuse: Refuse) -> tuple[NDArray[np.int64], int]:
    """The lines of decoded tokens [N, 2 + K], and how many lines of prompts there are."""
    found, width, prompt_lines = array("q"), 0, 0
    for number, line in lines_of(request.path, refuse):
        values = line.split(",")
        wrong = len(values) < 3 or not all(map(_is_whole, values))
        refuse(f"line {number}", wrong, line[:80], COLUMNS)
        width = width or len(values)
        rule = f"must be {width - 2} experts, as on line 1"
        refuse(f"line {number}", len(values) != width, len(values) - 2, rule)
        position, layer = int(values[0]), int(values[1])
        refuse(f"line {number}, layer", layer < 0, layer, "must be 0 or more")
        if position < 0:
            prompt_lines += 1
        else:
            found.extend(map(int, values))
    refuse("lines", not found, "none of decoded tokens", "must have positions from 0 on")
    return np.array(found, np.int64).reshape(-1, width), prompt_lines


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 10


def _layers(refuse: Refuse, table: NDArray[np.int64]) -> list[int]:
    """The layers of each position. Refuse lines that are not position after position, each with
    all layers.
    """
    position, layer = table[:, 0], table[:, 1]
    refuse.where("layer", layer > INT16_MAX, layer, f"must be at most {INT16_MAX}")
    refuse.where("position", position > INT32_MAX, position, f"must be at most {INT32_MAX}")
    ends = (np.diff(position) != 0) | (np.diff(layer) <= 0)
    layers: list[int] = layer[: int(np.argmax(ends)) + 1 if ends.any() else None].tolist()
    refuse("first position", position[0] != 0, int(position[0]), "must be 0")
    # The first line that is out of turn, before a last position that is cut short.
    full = len(table) // len(layers) * len(layers)
    by_position = layer[:full].reshape(-1, len(layers))
    differs = by_position != by_position[0]
    refuse.where("layer of a position's line", differs, by_position, f"must be {layers} in turn")
    rule = f"must be a multiple of {len(layers)}, the layers of position 0"
    refuse("lines of decoded tokens", full != len(table), len(table), rule, "cut the last position")
    positions = position.reshape(-1, len(layers))
    refuse.where(
        "position of a layer's line",
        positions != positions[:, :1],
        positions,
        "must be the same for all layers",
    )
    starts = positions[:, 0]
    jumps = (np.diff(starts) != 1) & (starts[1:] != 0)
    refuse.where("position", jumps, starts[1:], "must be one more than the last, or 0")
    return layers
