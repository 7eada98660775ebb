"""A unit of a capture is a batch of sequences that run together: it is recorded whole, or again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from capture.models.discover import MoELayer
from capture.recording.plan import Plan
from capture.recording.prompts import Passage
from capture.recording.rows import TOKEN_COLUMNS, Array
from capture.recording.run import end_tokens, run_batch
from capture.recording.settings import Settings
from capture.recording.shards import Shards
from sim.traces.trace import DECODE


@dataclass(frozen=True)
class Unit:
    """Passages ``first``.. in order; the sequence numbers are theirs."""

    number: int
    first: int
    passages: tuple[Passage, ...]

    @property
    def name(self) -> str:
        return f"unit_{self.number:06d}"


def units_of(passages: Sequence[Passage], batch: int) -> list[Unit]:
    """All passages in batches of ``batch``, in order."""
    firsts = range(0, len(passages), batch)
    return [
        Unit(number, first, tuple(passages[first : first + batch]))
        for number, first in enumerate(firsts)
    ]


def hidden_sequences(passages: Sequence[Passage], count: int) -> list[int]:
    """The first ``count`` sequences of each split, whose gate inputs are kept."""
    numbers: list[int] = []
    for split in ("fit", "eval"):
        numbers += [
            number for number, passage in enumerate(passages) if passage.prompt.split == split
        ][:count]
    return numbers


def record_unit(
    model: Any,
    layers: Sequence[MoELayer],
    unit: Unit,
    plan: Plan,
    settings: Settings,
    hidden: Sequence[int],
    shards: Shards,
) -> None:
    """Run a unit and save what was recorded.

    The shard holds the columns over its N rows (steps counted from 0), lookahead over the rows that
    `scored_rows` names, that of prompts to be counted (``prompt_lookahead_NORM``) over their rows,
    ``kept`` [N] (whose gate inputs belong to the trace), and inputs over the rows ``input_rows``.
    """
    rows = run_batch(
        model,
        layers,
        unit.passages,
        settings.decode_tokens,
        keep=plan.keep(settings),
        prefill_chunk=settings.prefill_chunk,
        eos_token_ids=end_tokens(model) if settings.continuation == "greedy" else (),
    )
    sequence = (rows.sequence + unit.first).astype(np.int32)
    decode = rows.valid & (rows.phase == DECODE)
    kept = decode & np.isin(sequence, hidden) & _sampled(unit, len(decode), settings)
    fit = [
        unit.first + place
        for place, passage in enumerate(unit.passages)
        if passage.prompt.split == "fit"
    ]
    wanted = kept | ((decode | (np.isin(sequence, fit) & rows.valid)) if plan.sparsities else False)
    tensors = {name: torch.from_numpy(getattr(rows, name)) for name in TOKEN_COLUMNS}
    tensors |= {"sequence": torch.from_numpy(sequence), "kept": torch.from_numpy(kept)}
    tensors |= {"ids": torch.from_numpy(rows.ids), "weights": torch.from_numpy(rows.weights)}
    if rows.logits is not None:
        tensors["logits"] = torch.from_numpy(rows.logits)
    for norm, scores in plan.lookahead(
        layers, rows, scored_rows(rows.phase, rows.valid, settings)
    ).items():
        tensors[f"lookahead_{norm}"] = scores
    if settings.prefill_lookahead == "counts":
        for norm, scores in plan.lookahead(
            layers, rows, prompt_rows(rows.phase, rows.valid)
        ).items():
            tensors[f"prompt_lookahead_{norm}"] = scores
    if wanted.any():
        places = torch.from_numpy(np.flatnonzero(wanted))
        tensors["input_rows"] = places
        for name in ("gate_in", "expert_in"):
            values = getattr(rows, name)
            if values is not None:
                tensors[name] = values[places]
    shards.save(unit.name, tensors, {"rows": len(decode), "steps": int(rows.step[-1]) + 1})


def scored_rows(phase: Array, valid: Array, settings: Settings) -> Array:
    """Of rows [N] those whose lookahead scores the trace keeps: decoded ones, or all that are
    real tokens.
    """
    return np.asarray(valid & ((phase == DECODE) | (settings.prefill_lookahead == "rows")))


def prompt_rows(phase: Array, valid: Array) -> Array:
    """Of rows [N] the real tokens of prompts."""
    return np.asarray(valid & (phase != DECODE))


def _sampled(unit: Unit, count: int, settings: Settings) -> Array:
    """A share of the rows, drawn anew for each unit from the seed and its number."""
    generator = np.random.default_rng([settings.seed, unit.number])
    return generator.random(count) < settings.hidden_share
