"""Importing KTransformers' dumps: SGLang's, with the experts on the GPU in each pass."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from capture.importers.ktransformers import GPU_EXPERTS_FILE
from helpers.import_fixtures import EXPERTS, imported, refusal
from helpers.recorder_dumps import LAYERS, SCHEDULE, SITES, dump, ids_of, write

MASKS = np.random.default_rng(1).random((len(SCHEDULE), LAYERS, EXPERTS)) < 0.4
BUFFER = 12
NAME = "gpu_expert_distribution_1.0.pt"
Dump = dict[str, Any]


def masks() -> Dump:
    """Masks as `_GpuExpertMaskAccumulator.dump` leaves them.

    They are a buffer whose first entries are those of the passes.
    """
    buffer = torch.zeros((BUFFER, LAYERS, EXPERTS), dtype=torch.bool)
    buffer[: len(SCHEDULE)] = torch.from_numpy(MASKS)
    return {"gpu_expert_masks": buffer}


def test_a_dump_alone_is_that_of_sglang(tmp_path: Path) -> None:
    trace = imported("ktransformers", write(tmp_path, dump()), tmp_path / "trace")
    assert np.array_equal(trace.ids, ids_of(SCHEDULE))
    assert trace.header.provenance["format"] == "ktransformers"
    assert GPU_EXPERTS_FILE not in trace.header.files


def test_the_experts_on_the_gpu_come_by_step_and_site(tmp_path: Path) -> None:
    path = write(tmp_path, masks(), NAME)
    trace = imported("ktransformers", write(tmp_path, dump()), tmp_path / "trace", masks=str(path))
    table = pl.read_parquet(io.BytesIO((tmp_path / "trace" / GPU_EXPERTS_FILE).read_bytes()))
    busy = [number for number, (_, parts) in enumerate(SCHEDULE) if parts]
    expected = [
        (step, site, np.flatnonzero(MASKS[number, layer]).tolist())
        for step, number in enumerate(busy)
        for site, layer in enumerate(SITES)
    ]
    assert table.rows() == expected
    assert set(trace.step.tolist()) == set(table["step"].to_list())
    assert trace.header.provenance["masks"] == NAME


@pytest.mark.parametrize(
    ("change", "place", "rule"),
    [
        (lambda v: v.pop("gpu_expert_masks"), "gpu_expert_masks", "must be there"),
        (lambda v: v.update(gpu_expert_masks=[True]), "gpu_expert_masks", "must be a tensor"),
        (
            lambda v: v.update(gpu_expert_masks=v["gpu_expert_masks"].int()),
            "gpu_expert_masks",
            "true and false",
        ),
        (
            lambda v: v.update(gpu_expert_masks=v["gpu_expert_masks"][0]),
            "gpu_expert_masks",
            "3 dimension(s)",
        ),
        (
            lambda v: v.update(gpu_expert_masks=v["gpu_expert_masks"][:, :2]),
            "gpu_expert_masks",
            "must have (4, 8)",
        ),
        (
            lambda v: v.update(gpu_expert_masks=v["gpu_expert_masks"][:6].clone()),
            "gpu_expert_masks",
            "record with --expert-distribution-recorder-buffer-size -1",
        ),
        (
            lambda v: v["gpu_expert_masks"][9, 1, 2].fill_(True),
            "gpu_expert_masks after 7 passes[2, 1, 2]",
            "must be false: no pass was there",
        ),
    ],
)
def test_wrong_masks_are_refused_by_field_and_rule(
    tmp_path: Path, change: Callable[[Dump], Any], place: str, rule: str
) -> None:
    value = masks()
    change(value)
    path = write(tmp_path, value, NAME)
    error = refusal("ktransformers", write(tmp_path, dump()), masks=str(path))
    assert (error.file, error.field) == (NAME, place)
    assert rule in str(error)
