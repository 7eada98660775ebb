"""Reads runs back from their files for figures: the summary, and the tables if there are any."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml  # type: ignore[import-untyped]

from sim.results.intervals import Floats
from sim.results.kept import RUN_AGAIN, SUMMARY, check_whole, read_summary
from sim.results.kept_tables import MAY_BE_NULL, check_together, columns_in, read_table
from sim.results.labels import Labels, labels_in
from sim.results.latency import decode_time_and_tokens
from sim.results.overview import work_of
from sim.results.run_log import draft_sites
from sim.study.dataset import read_cells
from sim.study.kept_rows import last_cells, whole_rows
from sim.study.rows import DONE

GIB = 2**30
RUNS = "runs"
"""Where a study with ``outputs=all`` keeps the files of its cells."""

DRAWN: Mapping[str, tuple[str, ...]] = {
    "tokens": ("step", "sequence", "phase", "start_ns", "end_ns"),
    "sequences": ("sequence", "arrival_ns"),
    "lookups": ("tick", "step", "phase", "site", "outcome", "gate_ns"),
    "transfers": ("hop", "key", "class", "link", "start_ns", "end_ns", "victim"),
    "decisions": ("kind", "tick", "key"),
}
"""What figures need of each table."""


@dataclass(frozen=True, eq=False)
class TwoTables:
    """What a paired comparison needs of a run's files."""

    tokens: pl.DataFrame
    sequences: pl.DataFrame


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """One run of a report; ``label`` tells it from the others."""

    label: str
    directory: Path
    summary: Mapping[str, Any]
    kept_ns: Floats | None = None

    @property
    def decode_ns(self) -> Floats | None:
        """The time of each sequence in decode steps, from a study's row or from the run's tables;
        None where neither is there.
        """
        if self.kept_ns is not None:
            return self.kept_ns
        tokens, sequences = self.table("tokens"), self.table("sequences")
        if tokens is None or sequences is None:
            return None
        check_together(tokens, sequences, self.directory)
        return decode_time_and_tokens(TwoTables(tokens, sequences))[0]

    def table(self, name: str) -> pl.DataFrame | None:
        """A table of the run; None where the run wrote only a summary.

        Raise ValueError for a table that cannot be read.
        """
        place = self.directory / f"{name}.parquet"
        if not place.is_file():
            return None
        columns = {*DRAWN[name], *columns_in(place)}
        # Earlier versions left the end of a transfer null that the run's end cut.
        return read_table(place, columns, may_be_null=(*MAY_BE_NULL, "end_ns"))

    @property
    def labels(self) -> Labels:
        return labels_in(self.summary)

    @property
    def highest_precision(self) -> str:
        """The precision at which experts are served when nothing is lost."""
        return str(next(iter(self.summary["budget"]["slots"])))

    @cached_property
    def config(self) -> Mapping[str, Any] | None:
        """The run's configuration, None where it wrote none. Raise ValueError for a broken one."""
        place = self.directory / "config.yaml"
        if not place.is_file():
            return None
        try:
            found: Mapping[str, Any] = yaml.safe_load(place.read_text(encoding="utf-8"))
            for name in ("sites", "experts"):
                int(found["model"][name])
            for section in ("workload", "hardware"):
                dict(found.get(section) or {})
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            told = " ".join(str(error).split())
            raise ValueError(
                f"{place} is no configuration of a run: its sections lack what they must have ({told});"
                f" {RUN_AGAIN}"
            ) from None
        return found

    def _slot_bytes(self, transfers: pl.DataFrame) -> dict[int, int]:
        """The bytes of a slot, by the place of its keys: precision * sites + site (contract C3).

        Where the run took the bytes of its trace's engine they are what a site's loads moved; sites
        without a load are left out.
        """
        assert self.config is not None
        sites = int(self.config["model"]["sites"]) + draft_sites(self.config)
        of_slots = enumerate(self.summary["budget"]["slot_bytes"].values())
        found = {at * sites + site: size for at, size in of_slots for site in range(sites)}
        recorded = self.summary.get("trace", {}).get("expert_bytes") or {"taken": False}
        if not recorded["taken"] or recorded["most"] not in found.values():
            return found
        by_place = transfers.group_by(self._place).agg(pl.col("moved_bytes").max())
        return dict(by_place.iter_rows())

    @property
    def _place(self) -> pl.Expr:
        assert self.config is not None
        return pl.col("key") // (int(self.config["model"]["experts"]) + 1)

    @property
    def device_links(self) -> list[str]:
        """The links that end at a device: the first one, and those of further devices."""
        assert self.config is not None
        devices = (self.config.get("hardware") or {}).get("devices")
        first = next(iter(self.summary["link_utilisation"]))
        others = range(1, int(devices["count"])) if devices and devices["links"] == "own" else ()
        return [first, *(f"{first}_{device}" for device in others)]

    @property
    def begun_s(self) -> float:
        """When the makespan begins: at the first arrival, where requests arrive over time. Tables
        count from the start of the run.
        """
        sequences = self.table("sequences")
        if sequences is None or self.summary["contracts"].get("arrivals") is None:
            return 0.0
        return float(sequences.select(pl.col("arrival_ns").min()).item()) / 1e9

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
        if (
            transfers is None
            or decisions is None
            or lookups is None
            or self.config is None
            or self.is_staged
        ):
            return None
        budget, links = self.summary["budget"], self.device_links
        experts = transfers.filter((pl.col("class") != "dense") & pl.col("link").is_in(links))
        gate_ns = lookups.group_by("tick").agg(pl.col("gate_ns").min())
        sizes = self._slot_bytes(experts)
        # The first victim of a transfer stands in the transfer's row; further victims, and trimmed
        # keys, stand only among the decisions.
        firsts = experts.filter(pl.col("victim").is_not_null()).select(
            "hop", at=pl.col("start_ns"), key=pl.col("victim")
        )
        evicted = decisions.filter(pl.col("kind") == "evict").join(gate_ns, on="tick", how="inner")
        others = _without(
            evicted.select(at=pl.col("gate_ns"), key=pl.col("key")),
            firsts.filter(pl.col("hop") > 0).drop("hop"),
        )
        gone = pl.concat([firsts.drop("hop"), others])
        # What was cut and given up has an end, too, but never arrived; nor did what the run's end cut.
        run_end_ns = round((self.begun_s + self.summary["makespan_s"]) * 1e9)
        arrived = experts.filter(
            (pl.col("end_ns") < run_end_ns).fill_null(False)
            & (pl.col("outcome") != "dropped").fill_null(True)
        )
        changes = pl.concat(
            [arrived.select("key", at=pl.col("end_ns"), sign=1), gone.select("key", "at", sign=-1)]
        ).sort("at")
        places = changes.select(self._place).to_series()
        if not places.is_in(list(sizes)).all():
            return None
        change = changes["sign"] * places.replace_strict(sizes, return_dtype=pl.Int64)
        held = budget["initial_bytes"] + np.cumsum(np.append(0, change.to_numpy()))
        return np.append(0, changes["at"].to_numpy()) / 1e9, held / GIB


def _without(evicted: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    """The rows of ``evicted`` but for the last one of each ``named`` key up to its time.

    A transfer that came over another link before has no victim when it is first issued. So its first
    victim stands among the decisions, too.
    """
    rows = evicted.with_row_index()
    both = pl.concat(
        [rows.with_columns(is_named=False), named.with_columns(is_named=True)], how="diagonal"
    )
    last = both.sort("at", "is_named").with_columns(pl.col("index").forward_fill().over("key"))
    again = last.filter("is_named").select("index")
    return rows.join(again, on="index", how="anti").select("at", "key")


def read_runs(directories: Sequence[Path]) -> list[ReportedRun]:
    """The runs in ``directories``, labelled: each a run's own folder, or one that has runs below it
    (of a multirun or a study), or a study whose cells are rows alone.

    Raise ValueError for a directory that holds no run, and for a run that is named twice.
    """
    found = [each for directory in directories for each in _found_in(directory)]
    seen: set[Path] = set()
    for place, _, _ in found:
        if (whole := place.resolve()) in seen:
            raise ValueError(
                f"{place} is named twice, by itself or by a folder above it; name it once"
            )
        seen.add(whole)
    labels = _labels([summary for _, summary, _ in found])
    return [
        ReportedRun(label, place, summary, times)
        for label, (place, summary, times) in zip(labels, found, strict=True)
    ]


Found = tuple[Path, Mapping[str, Any], Floats | None]


def _found_in(directory: Path) -> list[Found]:
    """The runs of a folder: where they lie, their summaries, and the time of each sequence where a
    study's row has it.
    """
    check_whole(directory)
    if (directory / SUMMARY).exists():
        return [(directory, read_summary(directory), None)]
    recorded = read_cells(directory)
    places = sorted({path.parent for path in directory.rglob(SUMMARY)}, key=_in_order)
    known = set(recorded["key"])
    found: list[Found] = [
        (place, read_summary(place), None) for place in places if place.name not in known
    ]
    for row in whole_rows(last_cells(recorded), directory):
        if row["status"] != DONE:
            continue
        key = row["key"]
        times = np.array(row["decode_ns"], np.float64) if row["decode_ns"] else None
        found.append((directory / RUNS / key, json.loads(row["summary"]), times))
    if not found and not directory.exists():
        raise ValueError(f"{directory} is not there; name what moelab run, sweep or study wrote")
    if not found:
        raise ValueError(
            f"{directory} holds no run: no {SUMMARY} in it or below, and no cells of a study;"
            " name what moelab run, sweep or study wrote"
        )
    return found


def _in_order(place: Path) -> tuple[Any, ...]:
    """Numbers in their own order: 2 before 10."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in place.parts)


def by_work(runs: Sequence[ReportedRun]) -> list[list[ReportedRun]]:
    """The runs in groups of the same work, without which they do not compare."""
    grouped: dict[str, list[ReportedRun]] = {}
    for run in runs:
        grouped.setdefault(json.dumps(work_of(run.summary), sort_keys=True), []).append(run)
    return list(grouped.values())


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
