"""Adds a recorded trace of a real model to the experiments that run on every trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.reproduce.identities import model
from sim.reproduce.roles import Paper
from sim.traces.header import parse_header

GAINS = ("gain_over_lru", "gain_over_lfu")
"""The experiments that run on every trace at hand."""
SEQUENCES = 12
"""How many sequences are evaluated: as many as synthetic traces have.

Sequences that fell into repeating themselves are left out.
"""


def with_recorded(paper: Paper, asked: str) -> Paper:
    """``paper`` with one more trace in its `GAINS`; unchanged where it has none of these.

    ``asked`` is MODEL:DIR. Raise ValueError where it is no such pair, where the model or the trace
    does not exist, and where the trace is of another model.
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
        sizes.check_trace(header.model, header.name)
    except OSError as error:
        raise ValueError(
            f"recorded={asked}: {folder} is no trace: {error.strerror} (header.json)"
        ) from None
    except ValueError as error:
        raise ValueError(f"recorded={asked}: {error}") from None
    if not set(GAINS) & set(paper.experiments):
        return paper
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
