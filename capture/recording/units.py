"""The units of a capture: batches of sequences that run together.

A unit is recorded whole. If the capture is killed meanwhile the unit is recorded again.
"""

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
    """Consecutive passages of a capture; ``first`` is the sequence number of the first."""

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
    """Run a unit and save what was recorded as a shard.

    The shard holds:

    - the columns over the unit's N rows, with steps counted from 0;
    - ``lookahead_NORM`` over the rows that `scored_rows` selects;
    - ``prompt_lookahead_NORM`` over the prompts' rows, where forecasts of prompts are counted;
    - ``kept`` bool [N]: the rows whose gate inputs the trace will keep;
    - ``gate_in`` and ``expert_in`` over the rows whose numbers are ``input_rows``.
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
    """Which rows [N] keep lookahead scores in the trace: decoded ones, or all real tokens."""
    return np.asarray(valid & ((phase == DECODE) | (settings.prefill_lookahead == "rows")))


def prompt_rows(phase: Array, valid: Array) -> Array:
    """Which rows [N] are real tokens of prompts."""
    return np.asarray(valid & (phase != DECODE))


def _sampled(unit: Unit, count: int, settings: Settings) -> Array:
    """A random ``hidden_share`` of the rows, drawn from the seed and the unit's number."""
    generator = np.random.default_rng([settings.seed, unit.number])
    return generator.random(count) < settings.hidden_share
