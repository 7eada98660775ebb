"""Two runs leave the same bytes, whatever the seed of Python's hashes.

Only what is documented to differ does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sim.values.places import ROOT

FILES = {
    "config.yaml",
    "decisions.parquet",
    "lookups.parquet",
    "sequences.parquet",
    "summary.json",
    "timeline.json",
    "tokens.parquet",
    "transfers.parquet",
}


def run(folder: Path, hash_seed: str, *overrides: str) -> dict[str, bytes]:
    """The files that ``python -m sim`` writes, by name."""
    short = ("trace.max_sequences=2", "+workload.decode_tokens=24")
    subprocess.run(
        [sys.executable, "-m", "sim", f"hydra.run.dir={folder}", *short, *overrides],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        timeout=120,
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


RUNS = {
    "hobbit": ("system=hobbit",),
    "mixtral_offloading": ("system=mixtral_offloading",),
    "requests over time, in two precisions, through RAM, in chunks, beside a CPU": (
        "system=hobbit",
        "hardware=rtx4090_nvme",
        "hardware.ram.capacity_gib=48",
        "hardware.prediction_us=30",
        "workload=continuous_4_chunked",
        "workload.arrivals_per_s=0.5",
        "placement=absent_on_cpu",
        "placement.up_to_tokens=1",
        "loader.chunk_bytes=33554432",
    ),
}
RUNS_OF_ONE_PART = ("hobbit", "mixtral_offloading")
"""What the other has, too."""


# Contracts: C102
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=name, marks=pytest.mark.thorough if name in RUNS_OF_ONE_PART else ())
        for name, words in RUNS.items()
    ],
)
def test_two_runs_leave_the_same_bytes_but_for_wall_time_and_folder(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    one = run(tmp_path / "one", "1", *words)
    two = run(tmp_path / "two", "271828", *words)
    assert set(one) == set(two) == FILES
    for name in FILES - {"summary.json", "config.yaml"}:
        assert one[name] == two[name], name
    assert without_wall_time(one["summary.json"]) == without_wall_time(two["summary.json"])
    folders = [
        content.decode().replace(str(tmp_path / name), "")
        for name, content in (("one", one["config.yaml"]), ("two", two["config.yaml"]))
    ]
    assert folders[0] == folders[1]


def without_wall_time(summary: bytes) -> tuple[str, list[str]]:
    """The text without the one line that may differ, and its keys, whose order counts, too."""
    content: dict[str, Any] = json.loads(summary)
    assert content["wall_s"] > 0
    lines = [line for line in summary.decode().splitlines() if '"wall_s"' not in line]
    assert len(lines) == len(summary.decode().splitlines()) - 1
    return "\n".join(lines), list(content)
