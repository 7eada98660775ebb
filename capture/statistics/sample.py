"""The rows of a trace that statistics are computed from, with operations that they share.

Axes of arrays, always in this order: N token-row, S site, K chosen expert, E expert. Rows stand
sequence by sequence, in order of position. Experts of -1 are no choice and never count.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.traces.trace import DECODE, Header, Trace

Bools = NDArray[np.bool_]
Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.signedinteger[Any]]

PHASES = ("decode", "prompt", "all")


class Unavailable(ValueError):
    """A trace lacks what a statistic needs; the message says what."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Valid rows of one trace, and the trace's directory, if it has one."""

    trace: Trace
    directory: Path | None = None

    @property
    def header(self) -> Header:
        return self.trace.header

    @property
    def ids(self) -> Ints:
        return self.trace.ids

    @property
    def num_experts(self) -> int:
        """How many experts a row can select: null experts, the last ones, are none of them."""
        return self.header.model.experts - self.header.null_experts

    @property
    def sites(self) -> list[int]:
        """The sites that at least one row visits, ascending."""
        return np.flatnonzero((self.ids >= 0).any((0, 2))).tolist()

    @cached_property
    def first_row(self) -> Ints:
        """The first row of each row's sequence, [N]."""
        starts = np.flatnonzero(np.diff(self.trace.sequence, prepend=-1))
        return np.repeat(starts, np.diff(np.append(starts, len(self.trace.sequence))))

    @cached_property
    def top(self) -> Ints:
        """The expert with the largest weight, [N, S]; -1 where no expert was selected.

        Of equal weights the lowest expert is taken. Where weights are lacking and experts stand in
        order of rank, it is the first one.
        """
        if self.header.stands_in_order:
            first = (self.ids >= 0).argmax(-1)[..., None]
            return np.take_along_axis(self.ids, first, -1)[..., 0]
        weights = np.where(self.ids >= 0, self.trace.weights, -1.0)
        best = weights.max(-1, keepdims=True)
        candidates = np.where((weights == best) & (self.ids >= 0), self.ids, np.iinfo(np.int16).max)
        lowest = candidates.min(-1)
        return np.where((self.ids >= 0).any(-1), lowest, -1)

    def pairs(self, lag: int) -> tuple[Ints, Ints]:
        """Pairs of rows of one sequence whose positions differ by ``lag``: (earlier, later)."""
        # Rows between them may be missing, so the later row is searched for by sequence and
        # position, joined into one ascending number.
        place = (self.trace.sequence.astype(np.int64) << 32) + self.trace.position
        there = np.minimum(np.searchsorted(place, place + lag), len(place) - 1)
        here = np.flatnonzero(place[there] == place + lag)
        return here, there[here]

    def members(self, site: int) -> Bools:
        """Which experts each row selects at a site, [N, E]."""
        return membership(self.ids[:, site], self.num_experts)

    def last_use(self, site: int) -> tuple[Bools, Ints]:
        """`members`, and the latest row, up to each row, that selects each expert, [N, E].

        Results below `first_row` are rows of other sequences, or -1 for none: they do not count.
        """
        member = self.members(site)
        used = np.where(member, np.arange(len(member), dtype=np.int32)[:, None], np.int32(-1))
        return member, np.maximum.accumulate(used, axis=0)

    def split(self, name: str) -> Bools:
        """Which rows belong to sequences of a split, bool [N]."""
        numbers = [item.sequence for item in self.header.sequences if item.split == name]
        return np.isin(self.trace.sequence, numbers)


def membership(ids: Ints, num_experts: int) -> Bools:
    """Boolean [N, E], true at the ``ids`` [N, K] that are not -1."""
    member = np.zeros((len(ids), num_experts + 1), np.bool_)
    np.put_along_axis(member, np.where(ids >= 0, ids, num_experts).astype(np.int64), True, -1)
    return member[:, :num_experts]


def take(
    trace: Trace,
    phase: str = "decode",
    exclude: Collection[str] = (),
    directory: Path | None = None,
) -> Sample:
    """The valid rows of a phase: `decode`, `prompt` or `all`.

    Sequences that carry a flag of ``exclude`` are left out. Raise `Unavailable` where no row is
    left.
    """
    kept = [
        item.sequence
        for item in trace.header.sequences
        if not any(item.flags.get(flag, False) for flag in exclude)
    ]
    rows = trace.valid & np.isin(trace.sequence, kept)
    if phase != "decode" and trace.header.prefill == "counts":
        raise Unavailable(
            "the trace keeps prompts as counts of tokens, not as rows; capture it with prefill=rows"
        )
    if phase != "all":
        rows = rows & ((trace.phase == DECODE) == (phase == "decode"))
    chosen = np.flatnonzero(rows)
    if not len(chosen):
        left = (
            f" of the {len(kept)} sequences left by exclude={','.join(exclude)}" if exclude else ""
        )
        others = "" if phase == "all" else "; phase=all takes those that there are"
        of_phase = "" if phase == "all" else f"{phase} "
        raise Unavailable(f"the trace has no {of_phase}rows{left}{others}")
    chosen = chosen[np.argsort(trace.sequence[chosen], kind="stable")]
    columns: dict[str, Any] = {
        name: value[chosen] for name, value in vars(trace).items() if isinstance(value, np.ndarray)
    }
    ahead = {norm: scores[chosen] for norm, scores in trace.lookahead.items()}
    return Sample(replace(trace, **columns, lookahead=ahead), directory)
