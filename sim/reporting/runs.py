"""Reads runs back from their files for figures: the summary, and the tables if there are any."""

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

from sim.results.labels import Labels, labels_in

SHOWN = (
    "schema",
    "system",
    "hardware",
    "model",
    "trace",
    "budget",
    "labels",
    "contracts",
    "stall_s",
    "prefetch",
    "ci95",
    "makespan_s",
)
"""The keys that a summary must have to be shown."""
GIB = 2**30


@dataclass(frozen=True)
class ReportedRun:
    """One run of a report; ``label`` tells it from the others."""

    label: str
    directory: Path
    summary: Mapping[str, Any]

    def table(self, name: str) -> pl.DataFrame | None:
        """A table of the run; None where the run wrote only a summary.

        Raise ValueError for a table that cannot be read.
        """
        place = self.directory / f"{name}.parquet"
        if not place.is_file():
            return None
        try:
            return pl.read_parquet(place)
        except (PolarsError, OSError) as error:
            raise ValueError(
                f"{place} cannot be read ({str(error).splitlines()[0]}); run again"
            ) from None

    @property
    def labels(self) -> Labels:
        return labels_in(self.summary)

    @property
    def highest_precision(self) -> str:
        """The precision at which experts are served when nothing is lost."""
        return str(next(iter(self.summary["budget"]["slots"])))

    @cached_property
    def plane(self) -> int | None:
        """The number of keys of one precision (contract C3).

        None without the run's configuration.
        """
        place = self.directory / "config.yaml"
        if not place.is_file():
            return None
        model = yaml.safe_load(place.read_text(encoding="utf-8"))["model"]
        return int(model["sites"]) * (int(model["experts"]) + 1)

    @property
    def is_staged(self) -> bool:
        """Whether the run serves from staging; no table tells what leaves staging."""
        return bool(self.summary["contracts"]["staging_slots"])

    def resident_gib(self) -> tuple[Any, Any] | None:
        """The GiB of experts in the device's pools over time.

        Returns times in s, of which the first is 0, and the GiB from each of them on. Arrivals
        count from their end, first victims until the last hop of their transfer begins, further
        victims until their gate. None without tables, and for a run that serves from staging.
        """
        transfers, decisions, lookups = (
            self.table(name) for name in ("transfers", "decisions", "lookups")
        )
        plane = self.plane
        if (
            transfers is None
            or decisions is None
            or lookups is None
            or plane is None
            or self.is_staged
        ):
            return None
        budget, device_link = self.summary["budget"], next(iter(self.summary["link_utilisation"]))
        experts = transfers.filter((pl.col("class") != "dense") & (pl.col("link") == device_link))
        gate_ns = lookups.group_by("tick").agg(pl.col("gate_ns").min())
        sizes = dict(enumerate(budget["slot_bytes"].values()))
        size_of = pl.col("key").floordiv(plane).replace_strict(sizes, return_dtype=pl.Int64)
        # The first victim of a transfer stands in the transfer's row; further victims, and trimmed
        # keys, stand only among the decisions.
        firsts = experts.filter(pl.col("victim").is_not_null()).select(
            at=pl.col("start_ns"), key=pl.col("victim")
        )
        others = decisions.filter(pl.col("kind") == "evict").join(gate_ns, on="tick", how="inner")
        gone = pl.concat([firsts, others.select(at=pl.col("gate_ns"), key=pl.col("key"))])
        # Transfers that were cut and given up have an end, too, but never arrived.
        arrived = experts.filter(
            pl.col("end_ns").is_not_null() & (pl.col("outcome") != "dropped").fill_null(True)
        )
        changes = pl.concat(
            [
                arrived.select(at=pl.col("end_ns"), change=size_of),
                gone.select("at", change=-size_of),
            ]
        ).sort("at")
        held = budget["initial_bytes"] + np.cumsum(np.append(0, changes["change"].to_numpy()))
        return np.append(0, changes["at"].to_numpy()) / 1e9, held / GIB


def read_runs(directories: list[Path]) -> list[ReportedRun]:
    """The runs in ``directories``, labelled.

    Raise ValueError for a directory that holds no run, and for runs of different work.
    """
    found = []
    for directory in directories:
        place = directory / "summary.json"
        try:
            summary = json.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{directory} holds no run ({error}); name what python -m sim wrote"
            ) from None
        if not isinstance(summary, dict) or (
            missing := [name for name in SHOWN if name not in summary]
        ):
            raise ValueError(
                f"{place} is no summary: it lacks"
                f" {', '.join(missing) if isinstance(summary, dict) else 'all'}"
            )
        found.append((directory, summary))
    labels = _labels([summary for _, summary in found])
    _check_same_work(labels, [summary for _, summary in found])
    return [ReportedRun(label, *each) for label, each in zip(labels, found, strict=True)]


def _check_same_work(names: list[str], summaries: list[Mapping[str, Any]]) -> None:
    """Raise ValueError unless all runs did the same work, without which they do not compare."""
    for name, one in zip(names, summaries, strict=True):
        for (what, ours), theirs in zip(
            _work(summaries[0]).items(), _work(one).values(), strict=True
        ):
            if ours != theirs:
                raise ValueError(
                    f"{names[0]} and {name} did not do the same work: {what} {ours} and {theirs};"
                    " one chart of both would compare sequences, not systems: make a report of"
                    " each kind"
                )


def _work(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The work of a run, by name: what must be equal for runs in one chart."""
    trace, contracts = summary["trace"], summary["contracts"]
    return {
        "number of sequences": trace["sequences"],
        **{
            name: trace.get(key)
            for name, key in (
                ("trace", "name"),
                ("split", "split"),
                ("trace sha256", "sha256"),
                ("sequences", "numbers"),
                ("prompt tokens", "prefill_tokens"),
                ("decode tokens", "decode_tokens"),
            )
        },
        **{
            name: contracts.get(name)
            for name in ("batching", "together", "prefill_chunk", "arrivals")
        },
    }


def _labels(summaries: list[Mapping[str, Any]]) -> list[str]:
    """A label for each run: its system, and whatever else tells the runs apart."""
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
    return [
        label if labels.count(label) == 1 else f"{label} #{i + 1}" for i, label in enumerate(labels)
    ]
