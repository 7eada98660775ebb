"""Reads a run's folder for the audit, and refuses folders that hold no complete run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from polars.exceptions import PolarsError
from yaml import YAMLError  # type: ignore[import-untyped]

COLUMNS = {
    "sequences": (
        "sequence",
        "prompt_tokens",
        "decode_tokens",
        "arrival_ns",
        "first_token_ns",
        "end_ns",
    ),
    "tokens": ("step", "sequence", "position", "phase", "start_ns", "end_ns", "compute_ns"),
    "lookups": (
        "tick",
        "step",
        "phase",
        "site",
        "key",
        "expert",
        "wanted",
        "served",
        "outcome",
        "skips",
        "weight",
    ),
    "transfers": (
        "number",
        "link",
        "hop",
        "key",
        "class",
        "moved_bytes",
        "start_ns",
        "end_ns",
        "outcome",
    ),
    "decisions": ("call", "kind", "tick", "key", "victim", "outcome"),
}
LEDGER = ("step", "tokens", "kv_bytes", "slot_bytes", "slots")
"""The columns that the audit reads, by table. ``LEDGER`` is that of a run whose slots shrink."""
SECTIONS = (
    "model",
    "hardware",
    "workload",
    "loader",
    "budget",
    "cache",
    "precision",
    "payload",
    "trace",
)
"""The sections that a run's configuration must have."""


UNFINISHED = ".unfinished"
"""A file in a folder of results while a command writes them."""
MEMORY = ("memory_gib", "reserved_gib")
"""Keys of a machine that change no time."""
FROM_SHEETS = ("roofline", "paper")
"""The presets of machines whose figures are those of data sheets, or of what a paper tells."""


class NoRunError(ValueError):
    """A folder holds no complete run."""


@dataclass(frozen=True, eq=False)
class RunFiles:
    """The files of one run, and what several rules need of them.

    Times are in ns since the run began, sizes in bytes.
    """

    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    sequences: pl.DataFrame
    tokens: pl.DataFrame
    lookups: pl.DataFrame
    transfers: pl.DataFrame
    decisions: pl.DataFrame
    ledger: pl.DataFrame | None = None
    """Of a run whose slots shrink: what keys and values and the slots take, step by step."""

    @property
    def is_real(self) -> bool:
        """Whether it ran on a device, which has times and sizes of its own."""
        return "real" in self.summary

    @property
    def precisions(self) -> list[str]:
        """The precisions in play, highest first."""
        return list(self.summary["budget"]["slots"])

    @property
    def units(self) -> int:
        """The number of keys of one site at one precision: its experts and its dense block."""
        return int(self.config["model"]["experts"]) + 1

    @property
    def sites(self) -> int:
        return int(self.config["model"]["sites"]) + self.draft_sites

    @property
    def draft_sites(self) -> int:
        """How many sites are of layers that draft tokens; they are the last ones."""
        workload = self.config["workload"]
        offloads = workload.get("draft_experts") == "offloaded" and workload.get("draft_tokens")
        return int(workload["draft_layers"]) if offloads else 0

    @property
    def links(self) -> list[str]:
        """The names of the links by number; the first ends at the device.

        Where devices have links of their own, there is one for each.
        """
        names = list(self.config["hardware"]["links"])
        return [*names, *(f"{names[0]}_{device}" for device in range(1, self.last_links))]

    @property
    def last_links(self) -> int:
        """How many links end at a device."""
        devices = self.config["hardware"].get("devices")
        has_own = devices and devices["split"] in ("layers", "owners") and devices["links"] == "own"
        return int(devices["count"]) if has_own else 1

    @property
    def over_link(self) -> tuple[int, int]:
        """In how many parts a transfer moves, and how many services a link has for each (contract
        C161).
        """
        devices = self.config["hardware"].get("devices")
        if not devices or devices["split"] in ("layers", "owners"):
            return 1, 1
        count = int(devices["count"])
        parts = count if devices["split"] == "slices" else 1
        return parts, 1 if devices["links"] == "own" else count

    @property
    def machine_error(self) -> dict[str, float] | None:
        """How far the machine's times were from measured ones, as its file says.

        None where it says nothing, and where the run had other times: with several devices, or with
        a word that changes a figure of the machine but its memory.
        """
        hardware = self.config["hardware"]
        told = hardware.get("validated")
        keys = [word.lstrip("+~").partition("=")[0] for word in self.summary["overrides"]]
        changed = any(
            key.startswith("hardware.") and key.partition(".")[2] not in MEMORY for key in keys
        )
        if not isinstance(told, dict) or changed or hardware.get("devices"):
            return None
        return {name: value for name, value in told.items() if name != "_target_"}

    @property
    def shared_error(self) -> dict[str, float] | None:
        """How far machines of data sheets were from measured ones, as the summary says.

        None where the machine's figures are not of data sheets.
        """
        if self.config["hardware"].get("preset") not in FROM_SHEETS:
            return None
        told: dict[str, float] = self.summary["calibration"]["data_sheets"]
        return told

    @cached_property
    def decode(self) -> pl.DataFrame:
        """The lookups of steps in which every row is a decoded one."""
        return self.lookups.filter(pl.col("phase") == "decode")

    @cached_property
    def steps(self) -> pl.DataFrame:
        """One row of ``tokens`` for each step."""
        return self.tokens.unique("step").sort("step")

    @cached_property
    def first_arrival_ns(self) -> int:
        """The time of the first arrival; 0 where every request is there from the start.

        It is 0 then even on a device, which may take a moment until its first step.
        """
        timed = ("arrivals_per_s", "arrivals_s", "requests")
        if all(self.config["workload"].get(name) is None for name in timed):
            return 0
        return int(self.sequences["arrival_ns"].min())  # type: ignore[arg-type]

    @cached_property
    def makespan_ns(self) -> int:
        return int(self.tokens["end_ns"].max()) - self.first_arrival_ns  # type: ignore[arg-type]


def read_run(directory: Path) -> RunFiles:
    """The files in ``directory``.

    Raise `NoRunError` for a folder that is no run, or a run without its tables.
    """
    summary = _summary(directory / "summary.json")
    tables = {
        name: _table(directory / f"{name}.parquet", columns) for name, columns in COLUMNS.items()
    }
    config = _config(directory / "config.yaml")
    if config["workload"].get("kv_allocation") == "growing":
        tables["ledger"] = _table(directory / "ledger.parquet", LEDGER)
    _check_together(directory, tables)
    return RunFiles(summary, config, **tables)


def _summary(place: Path) -> Mapping[str, Any]:
    if os.path.exists(place.parent / UNFINISHED):
        raise NoRunError(
            f"{place.parent} is not whole: {UNFINISHED} lies in it, so a command is writing there,"
            " or was stopped by force; wait for it, or run again"
        )
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NoRunError(
            f"{place.parent} holds no run ({error}); name a folder that moelab run wrote"
        ) from None
    if (
        not isinstance(found, dict)
        or not isinstance(found.get("budget"), dict)
        or not found["budget"].get("slots")
    ):
        raise NoRunError(f"{place} is no summary of a run: it has no budget.slots")
    return found


def _config(place: Path) -> Mapping[str, Any]:
    try:
        found = OmegaConf.to_container(OmegaConf.load(place))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise NoRunError(
            f"{place} cannot be read ({str(error).splitlines()[0]}); run again"
        ) from None
    missing = [
        name
        for name in SECTIONS
        if not isinstance(found, dict) or not isinstance(found.get(name), dict)
    ]
    if missing:
        raise NoRunError(f"{place} is no configuration of a run: it lacks {', '.join(missing)}")
    assert isinstance(found, dict)
    for section, names in (("model", ("sites", "experts")), ("hardware", ("links",))):
        if missing := [name for name in names if name not in found[section]]:
            raise NoRunError(
                f"{place} is no configuration of a run: {section} lacks {', '.join(missing)}"
            )
    return {str(name): value for name, value in found.items()}


def _table(place: Path, columns: tuple[str, ...]) -> pl.DataFrame:
    if not place.is_file():
        raise NoRunError(f"{place.parent} lacks {place.name}; run again with outputs=all")
    try:
        found = pl.read_parquet(place, glob=False)
    except (PolarsError, OSError) as error:
        raise NoRunError(
            f"{place} cannot be read ({str(error).splitlines()[0]}); run again"
        ) from None
    if missing := [name for name in columns if name not in found.columns]:
        raise NoRunError(
            f"{place} lacks the columns {', '.join(missing)}; an earlier version wrote it: run"
            " again"
        )
    return found


def _check_together(directory: Path, tables: Mapping[str, pl.DataFrame]) -> None:
    """Raise `NoRunError` where tables do not name the same sequences and steps: one was cut."""
    named = {
        (table, column): set(tables[table][column].to_list())
        for table, column in (
            ("sequences", "sequence"),
            ("tokens", "sequence"),
            ("tokens", "step"),
            ("lookups", "step"),
        )
    }
    count = len(tables["sequences"])
    if not count or len(named["sequences", "sequence"]) < count:
        raise NoRunError(
            f"{directory}/sequences.parquet has {count} lines for"
            f" {len(named['sequences', 'sequence'])} sequences; run again"
        )
    for column, whole, part in (
        ("sequence", "sequences", "tokens"),
        ("sequence", "tokens", "sequences"),
        ("step", "tokens", "lookups"),
    ):
        if lacking := named[part, column] - named[whole, column]:
            raise NoRunError(
                f"{directory}/{whole}.parquet lacks {column} {min(lacking, key=str)}"
                f" ({len(lacking)} in all), which {part}.parquet has: one of them was cut or is of"
                " another run; run again"
            )
