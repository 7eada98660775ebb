"""Reads a recorded run's folder, to simulate the same run again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from sim.answers.time_parts import Tables
from sim.results.kept import OF_RECORDING, read_summary
from sim.results.kept_tables import read_table
from sim.verbs.names import names

COLUMNS = {
    "lookups": ("tick", "step", "phase", "site", "key", "expert", "outcome", "gate_ns", "ready_ns"),
    "transfers": ("number", "hop", "key", "class", "moved_bytes", "start_ns", "end_ns"),
    "tokens": ("step", "phase", "start_ns", "end_ns", "compute_ns"),
}
"""What is read of each table of a run."""
ALL = "run again with outputs=all"


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
        read_table(folder / f"{name}.parquet", of, ALL) for name, of in COLUMNS.items()
    )
    tables = Tables(lookups, transfers, tokens, str(config["loader"]["wait"]))
    return Recorded(summary, config, tables)


def words_of(summary: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """The words that simulate a run's system, budget and workload; ``words`` come last.

    A word of the run for a key that ``words`` name is left out. The model and the machine are said
    even where the run did not: a device's command has others than a simulation where none is named.
    """
    try:
        system, *own = shlex.split(summary["system"])
    except ValueError:
        raise ValueError(f"system={summary['system']!r} of the run names no system") from None
    overrides = summary.get("overrides", [])
    if not isinstance(overrides, list) or not all(isinstance(word, str) for word in overrides):
        raise ValueError(f"overrides={overrides!r} of the run must be a list of words; run again")
    for word in (*own, *overrides):
        # The folder may be anybody's. What somebody trusts is said on the command line.
        if "_target_" in word.replace("\\", "") or word.lstrip("+~").startswith("hydra"):
            raise ValueError(
                f"{word!r} of the run chooses a class, or where files lie: give it as a word of"
                " this command if you trust it, and take it out of summary.json"
            )
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
    try:
        store = (summary.get("real") or {}).get("store") or {}
        return tuple(int(of["bytes"]) for of in (store.get("precisions") or {}).values())
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(
            f"real={summary['real']} of the run must have store.precisions, with the bytes of each;"
            " run again"
        ) from None


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        found: Any = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
        _ = found["loader"]["wait"], found["model"]["sites"]
        return dict(found)
    except (OSError, ValueError, KeyError, TypeError, YAMLError, OmegaConfBaseException) as error:
        told = " ".join(str(error).split())
        raise ValueError(
            f"{folder}/config.yaml has no loader.wait or model ({told}); run again"
        ) from None
