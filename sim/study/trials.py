"""Trials: single runs that a larger question needs. They are composed from overrides, share traces
that are read once, and are measured without writing files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from sim.process.files import writing
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.configure import changes, configure
from sim.setup.execute import execute
from sim.setup.own_gates import with_gates
from sim.setup.refusals import checked_settings
from sim.setup.traces import load_trace, trace_directory
from sim.study.cells import cell_key
from sim.traces.header import trace_sha256
from sim.traces.header_text import parse_header
from sim.traces.trace import Trace
from sim.verbs.synonyms import in_configuration

TABLES = ("tokens", "sequences")


@dataclass(frozen=True)
class Trial:
    """A run's summary and configuration, and its tables of tokens and sequences: small enough to
    pass between processes.
    """

    summary: dict[str, Any]
    config: dict[str, Any]
    tokens: pl.DataFrame
    sequences: pl.DataFrame


def prepared(words: Sequence[str]) -> Run:
    """A fresh run of these overrides, not simulated yet. Raise ValueError for what cannot run or
    what hydra refuses.
    """
    words = [*map(in_configuration, words)]
    cfg, system = configure("outputs=summary", *words)
    config = with_gates(checked_settings(cfg))
    trace = _trace(trace_directory(config["trace"]["path"]).absolute())
    return build(config, system, trace, changed=changes(words))


def trial(words: Sequence[str]) -> Trial:
    """Simulate the run of these overrides."""
    run = prepared(words)
    result = execute(run)
    return Trial(result.summary, run.config, result.frames.tokens, result.frames.sequences)


def kept_trial(words: Sequence[str], directory: Path | None) -> Trial:
    """The trial of these overrides, kept in ``directory`` under the digest of all that its numbers
    depend on (None: not kept).

    A trial that is already there is read. One that is incomplete or broken is simulated and written
    anew.
    """
    if directory is None:
        return trial(words)
    path = directory / _key(words)
    try:
        # The .json file is written last, so where it is whole the tables are, too.
        told = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return Trial(
            told["summary"],
            told["config"],
            *(pl.read_parquet(f"{path}.{name}.parquet", glob=False) for name in TABLES),
        )
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError):
        found = trial(words)
    with writing(path):
        for name in TABLES:
            getattr(found, name).write_parquet(f"{path}.{name}.parquet")
    part = path.with_suffix(".part")
    part.write_text(
        json.dumps({"summary": found.summary, "config": found.config}), encoding="utf-8"
    )
    part.replace(path.with_suffix(".json"))
    return found


def tokens_per_s(found: Trial) -> float:
    """How fast a trial decodes. Raise ValueError where it decodes nothing."""
    rate = found.summary["decode_tokens_per_s"]
    if rate is None:
        trace = found.summary["trace"]
        raise ValueError(
            f"nothing is decoded in {trace['sequences']} sequences of {trace['name']}, so there is"
            " no speed of decoding to ask about; set workload.decode_tokens above 0, or choose a"
            " trace that decodes (moelab run and sweep tell how long prompts take)"
        )
    return float(rate)


def slots_a_layer(found: Trial) -> float:
    """How many experts, each at the best precision of its pool, the slots of a trial hold, over the
    layers with experts.
    """
    slots: dict[str, int] = found.summary["budget"]["slots"]
    drafts = found.summary["contracts"].get("draft_experts")
    layers = int(found.config["workload"]["draft_layers"]) if drafts else 0
    return sum(slots.values()) / (int(found.config["model"]["sites"]) + layers)


def _key(words: Sequence[str]) -> str:
    cfg, system = configure("outputs=summary", *map(in_configuration, words))
    config = with_gates(checked_settings(cfg))
    header = (trace_directory(config["trace"]["path"]) / "header.json").read_bytes()
    return cell_key(config, system, trace_sha256(parse_header(header)))


@lru_cache(maxsize=2)
def _trace(path: Path) -> Trace:
    """A trace with every column that a policy may require."""
    return load_trace(str(path), lookahead_sites=1, active_shares=True, logits=True)
