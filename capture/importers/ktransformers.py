"""Importer of format ktransformers: a dump of KTransformers' expert distribution recorder.

The recorder is SGLang's.
``path`` is the ``expert_distribution_recorder_<time>_<rank>.pt`` that `capture.importers.sglang`
describes. With ``--record-kt-gpu-expert-distribution`` the same dump has
``gpu_expert_distribution_<time>.pt`` beside it, named by ``masks=``::

    {"gpu_expert_masks": bool [B, L, E]}

Entry b says which experts were on the GPU in forward pass b, idle passes counted. Entries after the
last pass are all False. The entries become `GPU_EXPERTS_FILE`: step, site, and the experts that
were on the GPU, ascending.

The recorder's buffer is a ring unless its size is -1. A ring that has been filled no longer shows
where it begins, so dumps with more passes than entries are refused.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from capture.importers import sglang
from capture.importers.parts import Request
from capture.importers.source import Imported, Refuse, Track
from capture.importers.torch_file import array_of, load

KEYS = (*sglang.KEYS, "masks")
GPU_EXPERTS_FILE = "gpu_experts.parquet"


def check(request: Request) -> None:
    sglang.check(request)


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace, and, if ``masks`` is given, which experts were on the GPU.

    Raise `TraceError` or `ImportFailure`.
    """
    told = {"origin": "expert distribution recorder of KTransformers"}
    if "masks" not in request.options:
        return Imported(sglang.read_dump(request, track, "ktransformers", told)[0])
    path = Path(request.options["masks"])
    refuse = Refuse(path.name)
    value = refuse.has("", load("masks", path, refuse), "gpu_expert_masks")
    masks = array_of(refuse, "gpu_expert_masks", value["gpu_expert_masks"], "b", 3)
    told["gpu_experts"] = f"{GPU_EXPERTS_FILE}: the experts on the GPU at each step and site"
    trace, dump = sglang.read_dump(request, track, "ktransformers", told, {"masks": path})
    shape = (dump.num_layers, dump.experts)
    refuse(
        "gpu_expert_masks",
        masks.shape[1:] != shape,
        list(masks.shape),
        f"must have {shape} layers and experts",
    )
    rule = f"must have an entry for each of the {dump.records} passes"
    remedy = "record with --expert-distribution-recorder-buffer-size -1"
    refuse("gpu_expert_masks", len(masks) < dump.records, f"{len(masks)} entries", rule, remedy)
    beyond = masks[dump.records :]
    refuse.where(
        f"gpu_expert_masks after {dump.records} passes",
        beyond,
        beyond,
        "must be false: no pass was there",
    )
    return Imported(
        trace, {GPU_EXPERTS_FILE: _table(masks[list(dump.index)][:, list(dump.layers)])}
    )


def _table(masks: NDArray[np.bool_]) -> bytes:
    """A parquet file with a row for each step and site of ``masks`` [T, S, E]."""
    num_steps, num_sites, _ = masks.shape
    experts = [
        np.flatnonzero(mask).astype(np.int16) for mask in masks.reshape(num_steps * num_sites, -1)
    ]
    stream = io.BytesIO()
    pl.DataFrame(
        {
            "step": np.repeat(np.arange(num_steps, dtype=np.int32), num_sites),
            "site": np.tile(np.arange(num_sites, dtype=np.int16), num_steps),
            "experts": pl.Series(experts, dtype=pl.List(pl.Int16)),
        }
    ).write_parquet(stream, compression="zstd")
    return stream.getvalue()
