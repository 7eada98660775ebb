"""Reads a recorded run's folder, to simulate the same run again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from polars.exceptions import PolarsError
from yaml import YAMLError  # type: ignore[import-untyped]

from sim.answers.time_parts import Tables
from sim.results.kept import OF_RECORDING, read_summary
from sim.verbs.names import names

COLUMNS = {
    "lookups": ("tick", "step", "phase", "site", "key", "expert", "outcome", "gate_ns", "ready_ns"),
    "transfers": ("number", "hop", "key", "class", "moved_bytes", "start_ns", "end_ns"),
    "tokens": ("step", "phase", "start_ns", "end_ns", "compute_ns"),
}
"""What is read of each table of a run."""


@dataclass(frozen=True)
class Recorded:
    """A run's summary, its configuration as plain values, and its tables."""

    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    tables: Tables


def read_recorded(folder: Path) -> Recorded:
    """The run in ``folder``. Raise ValueError, naming the file, for a folder that holds none."""
    summary, config = read_summary(folder, OF_RECORDING), _config(folder)
    lookups, transfers, tokens = (
        _table(folder / f"{name}.parquet", of) for name, of in COLUMNS.items()
    )
    tables = Tables(lookups, transfers, tokens, str(config["loader"]["wait"]))
    return Recorded(summary, config, tables)


def words_of(summary: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """The words that simulate a run's system, budget and workload; ``words`` come last.

    A word of the run for a key that ``words`` name is left out. The model and the machine are said
    even where the run did not: a device's command has others than a simulation where none is named.
    """
    system, *own = shlex.split(str(summary["system"]))
    overrides = list(summary.get("overrides", ()))
    said = {word.partition("=")[0] for word in overrides}
    usual = [
        f"{group}={summary[group]}"
        for group in ("model", "hardware")
        if group not in said and summary.get(group) in names(group)
    ]
    given = {word.partition("=")[0] for word in words}
    share = f"budget.resident_share={summary['budget']['resident_share']}"
    made = [f"system={system}", *own, *usual, share, *overrides]
    return [*(word for word in made if word.partition("=")[0] not in given), *words]


def stored_bytes(summary: Mapping[str, Any]) -> tuple[int, ...]:
    """The bytes of an expert in the run's store, by precision; empty for a simulated run."""
    store = (summary.get("real") or {}).get("store") or {}
    return tuple(int(of["bytes"]) for of in (store.get("precisions") or {}).values())


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        found: Any = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
        _ = found["loader"]["wait"], found["model"]["sites"]
        return dict(found)
    except (OSError, KeyError, TypeError, YAMLError, OmegaConfBaseException) as error:
        raise ValueError(
            f"{folder}/config.yaml has no loader.wait or model ({error}); run again"
        ) from None


def _table(place: Path, columns: Sequence[str]) -> pl.DataFrame:
    try:
        return pl.read_parquet(place, columns=list(columns), glob=False)
    except (PolarsError, OSError) as error:
        raise ValueError(
            f"{place} cannot be read ({str(error).splitlines()[0]}); run again with outputs=all"
        ) from None
