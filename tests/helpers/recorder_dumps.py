"""Dumps of SGLang's expert distribution recorder, written from a schedule of passes and choices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from helpers.import_fixtures import EXPERTS, make_ids

LAYERS, TOP_K, RANKS = 4, 3, 8
SITES = (1, 2, 3)
"""Layer 0 has no experts."""
EXTEND, DECODE, MIXED, IDLE = 1, 2, 3, 4
Part = tuple[int, int, int]
"""Part of a pass: its sequence, position of its first row, number of rows."""
Schedule = Sequence[tuple[int, Sequence[Part]]]
SCHEDULE: Schedule = (
    (EXTEND, [(0, 0, 4), (1, 0, 2)]),
    (DECODE, [(0, 4, 1), (1, 2, 1)]),
    (IDLE, []),
    (EXTEND, [(2, 0, 5)]),
    (MIXED, [(2, 5, 3), (0, 5, 1), (1, 3, 1)]),
    (DECODE, [(0, 6, 1), (1, 4, 1), (2, 8, 1)]),
    (DECODE, [(0, 7, 1), (2, 9, 1)]),
)
"""Two requests run together. A third comes in two chunks, the second of them beside tokens of the
others. Request 1 ends first.
"""


def rows_of(schedule: Schedule) -> list[tuple[int, int, int, int]]:
    """The pass (idle ones not counted), mode, sequence and position of each row."""
    busy = [(mode, parts) for mode, parts in schedule if parts]
    return [
        (number, mode, sequence, start + i)
        for number, (mode, parts) in enumerate(busy)
        for sequence, start, length in parts
        for i in range(length)
    ]


def ids_of(schedule: Schedule) -> np.ndarray:
    return make_ids(len(rows_of(schedule)), len(SITES), TOP_K)


def record(
    number: int, mode: int, parts: Sequence[Part], ids: np.ndarray, physical: int
) -> dict[str, Any]:
    """A record as SGLang makes it, from ids [N, S, K].

    It follows `_DetailSinglePassGatherer.collect` and `_DetailAccumulator.append`.
    """
    positions = [start + i for _, start, length in parts for i in range(length)]
    topk = torch.full((LAYERS, len(positions), RANKS), -1, dtype=torch.int32)
    if positions:
        topk[list(SITES), :, :TOP_K] = torch.from_numpy(ids.swapaxes(0, 1).astype(np.int32))
    count = torch.zeros((LAYERS, physical), dtype=torch.int32)
    for layer in range(LAYERS):
        for expert in topk[layer].flatten().tolist():
            if expert >= 0:
                count[layer, expert] += 1
    return {
        "forward_pass_id": number,
        "rank": 0,
        "gatherer_key": "primary",
        "input_ids": [100 + position for position in positions],
        "positions": positions,
        "extend_seq_lens": [length for _, _, length in parts] if mode in (EXTEND, MIXED) else None,
        "forward_mode": mode,
        "topk_ids_of_layer": topk,
        "misc_objects": [],
        "global_physical_count": count,
    }


def dump(schedule: Schedule = SCHEDULE, to_logical: torch.Tensor | None = None) -> dict[str, Any]:
    """The whole object of a dump; ``to_logical`` [L, P] must be a permutation in each layer."""
    to_logical = torch.arange(EXPERTS).repeat(LAYERS, 1) if to_logical is None else to_logical
    ids, records, begin = ids_of(schedule), [], 0
    to_physical = to_logical.argsort(-1).numpy()
    for number, (mode, parts) in enumerate(schedule):
        rows = sum(length for _, _, length in parts)
        mine = ids[begin : begin + rows]
        physical = to_physical[np.array(SITES)[None, :, None], mine]
        records.append(record(number, mode, parts, physical, to_logical.shape[1]))
        begin += rows
    return {"records": records, "last_physical_to_logical_map": to_logical}


def write(folder: Path, content: Any, name: str = "expert_distribution_recorder_1.0_0.pt") -> Path:
    torch.save(content, folder / name)
    return folder / name
