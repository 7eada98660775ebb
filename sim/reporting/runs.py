"""Runs read back from their files, for figures: a summary, and the tables where a run wrote them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml  # type: ignore[import-untyped]
from polars.exceptions import PolarsError

SHOWN = ("schema", "system", "hardware", "model", "trace", "budget", "stall_s", "prefetch", "ci95", "makespan_s")
"""What a summary must have to be shown."""
GIB = 2**30


@dataclass(frozen=True)
class ReportedRun:
    """One run. ``label`` tells it from the others."""

    label: str
    directory: Path
    summary: Mapping[str, Any]

    def table(self, name: str) -> pl.DataFrame | None:
        """A table of the run, None where it wrote only a summary. Raise ValueError for one that cannot be read."""
        place = self.directory / f"{name}.parquet"
        if not place.is_file():
            return None
        try:
            return pl.read_parquet(place)
        except (PolarsError, OSError) as error:
            raise ValueError(f"{place} cannot be read ({str(error).splitlines()[0]}); run again") from None

    @property
    def highest_precision(self) -> str:
        """What its experts are served at when nothing is lost."""
        return str(next(iter(self.summary["budget"]["slots"])))

    @cached_property
    def plane(self) -> int | None:
        """Keys of one precision (docs/design.md section 2); None without the run's configuration."""
        place = self.directory / "config.yaml"
        if not place.is_file():
            return None
        model = yaml.safe_load(place.read_text(encoding="utf-8"))["model"]
        return int(model["sites"]) * (int(model["experts"]) + 1)

    def resident_change(self) -> tuple[Any, Any] | None:
        """Times in s, and by how many GiB the experts on the device have grown since the start: arrivals at their end,
        evictions when their transfer's last hop begins, further victims at their gate. None without tables."""
        transfers, decisions, lookups = (self.table(name) for name in ("transfers", "decisions", "lookups"))
        plane = self.plane
        if transfers is None or decisions is None or lookups is None or plane is None or not len(transfers):
            return None
        experts = transfers.filter((pl.col("class") != "dense") & (pl.col("hop") == pl.col("hop").max().over("number")))
        sizes = dict(experts.group_by(pl.col("key") // plane).agg(pl.col("moved_bytes").max()).iter_rows())
        gate_ns = lookups.group_by("tick").agg(pl.col("gate_ns").min())
        size_of = pl.col("key").floordiv(plane).replace_strict(sizes, default=0, return_dtype=pl.Int64)
        # The first victim of a transfer stands in its row; further ones, and what is trimmed, only among the decisions.
        firsts = experts.filter(pl.col("victim").is_not_null()).select(at=pl.col("start_ns"), key=pl.col("victim"))
        others = decisions.filter(pl.col("kind") == "evict").join(gate_ns, on="tick", how="inner")
        gone = pl.concat([firsts, others.select(at=pl.col("gate_ns"), key=pl.col("key"))])
        arrived = experts.filter(pl.col("end_ns").is_not_null())
        changes = pl.concat([
            arrived.select(at=pl.col("end_ns"), change=pl.col("moved_bytes").cast(pl.Int64)),
            gone.select("at", change=-size_of),
        ]).sort("at")  # fmt: skip
        return changes["at"].to_numpy() / 1e9, np.cumsum(changes["change"].to_numpy()) / GIB


def read_runs(directories: list[Path]) -> list[ReportedRun]:
    """Raise ValueError for a directory that holds no run."""
    found = []
    for directory in directories:
        place = directory / "summary.json"
        try:
            summary = json.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{directory} holds no run ({error}); name what python -m sim wrote") from None
        if not isinstance(summary, dict) or (missing := [name for name in SHOWN if name not in summary]):
            raise ValueError(
                f"{place} is no summary: it lacks {', '.join(missing) if isinstance(summary, dict) else 'all'}"
            )
        found.append((directory, summary))
    labels = _labels([summary for _, summary in found])
    return [ReportedRun(label, *each) for label, each in zip(labels, found, strict=True)]


def _labels(summaries: list[Mapping[str, Any]]) -> list[str]:
    """The system, and what else tells the runs apart."""
    parts = [
        [
            each["system"],
            each["hardware"],
            each["model"],
            each["trace"]["name"],
            f"{each['budget']['resident_share']:g}",
        ]
        for each in summaries
    ]
    varied = [0, *(i for i in range(1, 5) if len({part[i] for part in parts}) > 1)]
    labels = [" ".join(part[i] for i in varied) for part in parts]
    return [label if labels.count(label) == 1 else f"{label} #{i + 1}" for i, label in enumerate(labels)]
