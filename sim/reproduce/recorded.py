"""Adds a recorded trace of a real model to the experiments that run on every trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.machine.replayed_gates import check_gates
from sim.reproduce.identities import model
from sim.reproduce.roles import Paper
from sim.traces.header_text import parse_header
from sim.values.places import ROOT

GAINS = ("gain_over_lru", "gain_over_lfu")
"""The experiments that run on every trace at hand."""
SEQUENCES = 12
"""How many sequences are evaluated: as many as synthetic traces have.

Sequences that fell into repeating themselves are left out.
"""


def has_gains(paper: Paper) -> bool:
    """Whether one more trace changes anything of the paper."""
    return bool(set(GAINS) & set(paper.experiments))


def with_recorded(paper: Paper, asked: str) -> Paper:
    """``paper`` with one more trace in its `GAINS`; unchanged where it has none of these.

    ``asked`` is MODEL:DIR. Raise ValueError where it is no such pair, where the model or the trace
    does not exist, where the trace is of another model, and where its folder is called as a trace of
    the paper is.
    """
    name, found, place = asked.partition(":")
    folder = Path(place).resolve()
    if not found or not name or not place:
        raise ValueError(
            f"recorded={asked} must be MODEL:DIR, as recorded=gpt_oss_20b:traces/gpt_oss"
        )
    try:
        sizes = model(name)
    except ValueError:
        raise ValueError(
            f"recorded={asked}: there is no model {name}; moelab list models names them"
        ) from None
    try:
        header = parse_header((folder / "header.json").read_bytes())
        check_gates(sizes, header.model, header.name)
    except OSError as error:
        raise ValueError(
            f"recorded={asked}: {folder} is no trace: {error.strerror} (header.json)"
        ) from None
    except ValueError as error:
        raise ValueError(f"recorded={asked}: {error}") from None
    if not has_gains(paper):
        return paper
    own = paper.traces.get(folder.name)
    if own is not None and ROOT / str(own.get("path", "")) != folder:
        raise ValueError(
            f"recorded={asked}: {paper.title} has a trace {folder.name} of its own, in whose place"
            " this one would stand; rename the folder"
        )
    words = [
        f"model={name}",
        f"trace={folder.name}",
        "trace.exclude=[has_repetition]",
        f"trace.max_sequences={SEQUENCES}",
    ]
    experiments: Mapping[str, Any] = {
        key: replace(one, over=(*one.over, words)) if key in GAINS else one
        for key, one in paper.experiments.items()
    }
    return replace(
        paper, experiments=experiments, traces={**paper.traces, folder.name: {"path": str(folder)}}
    )
