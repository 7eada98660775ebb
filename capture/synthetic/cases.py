"""Real traces, prepared for the check of the synthesiser.

They are cut to sequences of equal length; one half is fitted, the other half compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from capture.statistics.gating_stats import Floats
from capture.synthetic.targets import Gates
from sim.traces.gate_inputs import hidden_path, sequence_inputs
from sim.traces.routing import RoutingRule
from sim.traces.trace import DECODE, Trace, read_trace


@dataclass(frozen=True, eq=False)
class Case:
    """A real trace, cut to sequences of equal length, and its gates by split."""

    trace: Trace
    fit: Gates
    eval: Gates
    has_lookahead: bool

    @property
    def name(self) -> str:
        return self.trace.header.model.name

    @property
    def rule(self) -> RoutingRule:
        """The routing rule of the first site, as recorded.

        Where none was recorded: the softmax over the chosen experts. Raise ValueError if the
        weights then do not sum to 1.
        """
        rule = self.trace.header.sites[0].rule
        if rule is not None:
            return rule
        if not np.allclose(self.fit.weights.sum(-1), 1, atol=0.01):
            name = self.trace.header.name
            raise ValueError(
                f"trace {name} states no routing rule and its weights do not sum to 1; record one"
            )
        return RoutingRule(score="softmax", weight="norm")

    @property
    def longest_lag(self) -> int:
        return 64 if self.fit.experts.shape[1] > 128 else 32


def load_case(directory: Path, sequences: int, tokens: int) -> Case:
    """The first ``sequences`` of each split, cut to ``tokens`` decode tokens.

    Sequences with fewer tokens or with repetition are passed over. Raise ValueError if fewer than 2
    of a split are left, or if a token chose fewer than top-k experts.
    """
    trace = read_trace(directory)
    if "lookahead" in trace.header.columns:
        trace = read_trace(directory, ["lookahead"])
    numbers: list[int] = []
    for split in ("fit", "eval"):
        able = [
            item.sequence
            for item in trace.header.sequences
            if item.split == split
            and item.decode_tokens >= tokens
            and not item.flags.get("has_repetition")
        ]
        if len(able) < 2:
            raise ValueError(
                f"{directory}: {len(able)} {split} sequences have {tokens} tokens without repetition,"
                " need 2; take fewer tokens=, or a longer trace"
            )
        numbers += able[:sequences]
    trace = cut(trace, numbers, tokens)
    if (trace.ids[trace.phase == DECODE] < 0).any():
        raise ValueError(
            f"{directory}: its tokens do not choose {trace.header.model.top_k} experts at every site"
            " (dropped or null choices, or an encoder), as the check's statistics need; take another"
            " trace"
        )
    inputs = _kept_inputs(directory, trace, tokens)
    fit, evaluated = (_gates(trace, split, tokens) for split in ("fit", "eval"))
    return Case(trace, replace(fit, inputs=inputs), evaluated, bool(trace.lookahead))


def cut(trace: Trace, numbers: Sequence[int], tokens: int) -> Trace:
    """The trace with these sequences alone, with whole prompts and ``tokens`` decode rows each."""
    keep = np.isin(trace.sequence, numbers) & trace.valid
    for number in numbers:
        decoded = np.flatnonzero(keep & (trace.sequence == number) & (trace.phase == DECODE))
        keep[decoded[tokens:]] = False
    own = [item for item in trace.header.sequences if item.sequence in numbers]
    header = replace(
        trace.header, sequences=tuple(replace(item, decode_tokens=tokens) for item in own)
    )
    names = ("step", "phase", "sequence", "position", "token", "valid", "ids", "weights")
    columns = {name: getattr(trace, name)[keep] for name in names}
    return Trace(
        header,
        **columns,
        lookahead={norm: scores[keep] for norm, scores in trace.lookahead.items()},
    )


def _gates(trace: Trace, split: str, tokens: int) -> Gates:
    numbers = [item.sequence for item in trace.header.sequences if item.split == split]
    rows = np.flatnonzero(np.isin(trace.sequence, numbers) & (trace.phase == DECODE))
    rows = rows[np.argsort(trace.sequence[rows], kind="stable")]
    shape = (len(numbers), tokens, trace.header.model.sites)
    order = np.argsort(-trace.weights[rows], axis=-1, kind="stable")
    ids = np.take_along_axis(trace.ids[rows].astype(np.int64), order, -1).reshape(*shape, -1)
    weights = np.take_along_axis(trace.weights[rows], order, -1).reshape(*shape, -1)
    raw = trace.lookahead.get("raw")
    ahead: Callable[[int], Floats] | None = None
    if raw is not None:
        known = raw[rows].reshape(*shape, *raw.shape[2:])
        ahead = lambda distance: known[:, :, :-distance, distance - 1]  # noqa: E731
    return Gates(trace.header.model.experts, ids, weights, ahead)


def _kept_inputs(directory: Path, trace: Trace, tokens: int) -> Floats | None:
    """Gate inputs [S, T, L, H] of the fit sequences that keep all ``tokens``; None if none does."""
    model, found = trace.header.model, []
    for item in trace.header.sequences:
        if item.split == "fit" and hidden_path(item.sequence) in trace.header.files:
            inputs, position = sequence_inputs(
                directory / hidden_path(item.sequence), model.sites, model.hidden
            )
            own = (trace.sequence == item.sequence) & (trace.phase == DECODE)
            kept = np.isin(position, trace.position[own])
            if kept.sum() == tokens:
                found.append(inputs[kept])
    return np.stack(found) if found else None
