"""The steps of a run over a trace: which rows run together, in which order, with which needs.

Steps are the trace's own, or are composed from its sequences (contract C76). Where
requests arrive over time, steps are composed while the run goes on. Both drivers walk the same
workload with one reused gate object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from sim.traces.gate_inputs import GateInputs
from sim.traces.trace import DECODE, Trace
from sim.values.types import Step
from sim.workload.batching import NO_ARRIVALS, Batcher, Part, Request, arrival_times, is_timed
from sim.workload.choices import Choices
from sim.workload.columns import StepColumns
from sim.workload.gates import RoutedChoice, StepGate
from sim.workload.lengths import Lengths, cut_rows
from sim.workload.prefixes import Blocks, Tiers
from sim.workload.selection import check_batching, check_lookahead, chosen_sequences
from sim.workload.speculation import NO_DRAFTS, Speculation
from sim.workload.step_shares import drafters_of, found_of, recorded_shares, shares_of
from sim.workload.unions import Needs

__all__ = ["Limits", "Needs", "RoutedChoice", "Schedule", "StepGate", "Workload"]


@dataclass(frozen=True)
class Limits:
    """The most that a machine must hold, whenever the requests arrive.

    ``tokens`` counts the tokens so far of all sequences that run at the same time; ``in_windows``
    has of each window how many of them are among their sequence's last ones. ``rows`` are those of
    one step. ``kept_tokens`` are those that the device holds to be reused.
    """

    tokens: int
    rows: int
    kept_tokens: int
    in_windows: Mapping[int, int] = field(default_factory=dict)

    def tokens_in(self, window: int) -> int:
        """The most tokens in so long a window of their sequences; 0: all of them.

        Raise ValueError for a window that the workload was not asked to count.
        """
        if not window:
            return self.tokens
        if window not in self.in_windows:
            counted = ", ".join(map(str, self.in_windows)) or "none"
            raise ValueError(
                f"tokens in a window of {window} were not counted, only in those of: {counted}; make"
                " the workload with windows= of the model"
            )
        return self.in_windows[window]

    def kv_bytes(self, by_window: Mapping[int, int]) -> int:
        """The most bytes of keys and values, where a token takes so many in the layers with each
        window: each layer's are allocated for the step in which they are most (contract C82).
        """
        return sum(size * self.tokens_in(window) for window, size in by_window.items())


class Schedule:
    """One walk through the steps of a workload, from the first."""

    def __init__(self, workload: Workload, batcher: Batcher | None) -> None:
        self._workload, self._batcher = workload, batcher
        self._index = 0

    def next(self, now_ns: int) -> Step | int | None:
        """The step that begins at ``now_ns``; all earlier ones must have ended.

        If nothing can run yet, return the time of the next arrival, in ns; return None at the end.
        """
        if self._batcher is None:
            if self._index == len(self._workload.steps):
                return None
            self._index += 1
            return self._workload.steps[self._index - 1]
        parts = self._batcher.next(now_ns)
        return self._workload.add_step(self, parts) if isinstance(parts, tuple) else parts


class Workload(StepColumns):
    """The steps of a run over ``trace``, and their gates.

    - ``split`` picks the sequences (``all``: every one); ``exclude`` drops those with any of these
      flags of the trace's header; at most ``max_sequences`` are kept.
    - ``batching`` says where steps come from. ``recorded`` keeps the trace's steps, padding
      included. ``sequential``, ``static`` and ``continuous`` compose steps from the valid rows of
      single sequences (see `Batcher`).
    - At most ``together`` sequences run at once (``sequential``: one). If given, ``prefill_chunk``
      cuts prompts to so many rows a step.
    - Requests arrive in the order of their sequences' numbers: all at 0; or as a Poisson process of
      ``arrivals_per_s`` drawn from ``arrival_seed``; or at ``arrivals`` (ns).
    - ``lengths`` cut every sequence to given numbers of prompt and decoded tokens, and say at the
      end of which context it stands (`sim.workload.lengths`).
    - ``speculation``: tokens are drafted, and checked together (`sim.workload.speculation`).
    - ``blocks`` are those of each prompt, in the order of the sequences' numbers, and ``tiers``
      hold them (`sim.workload.prefixes`).
    - ``windows`` are those of the model's layers: what they hold is a part of ``limits``.
    - Up to ``lookahead`` sites ahead are forecast, with ``norm`` (``raw`` or ``renormed``).
    - The attribute ``gate_inputs`` may be set, for predictors that read them.

    A run ``is_timed`` if it was given arrivals, be they all at 0. The ``steps`` of other runs are
    there from the start. Those of a timed run grow as the `Schedule` of the latest ``start``
    composes them, and everything computed from steps covers only those that exist so far.

    Raise ValueError for options that exclude each other, are out of range, or that the trace cannot
    serve.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        split: str = "eval",
        batching: str = "recorded",
        together: int = 1,
        prefill_chunk: int | None = None,
        arrivals_per_s: float | None = None,
        arrival_seed: int = 0,
        arrivals: Sequence[int] | None = None,
        lookahead: int = 0,
        norm: str = "raw",
        exclude: Sequence[str] = (),
        max_sequences: int | None = None,
        lengths: Lengths | None = None,
        speculation: Speculation = NO_DRAFTS,
        blocks: Sequence[Blocks] = (),
        tiers: Tiers | None = None,
        windows: Sequence[int] = (),
    ) -> None:
        self.trace = trace
        self.sites, self.experts, self.top_k = (
            trace.ids.shape[1],
            trace.header.model.experts,
            trace.ids.shape[2],
        )
        self.split, self.batching, self.depth, self.norm = split, batching, lookahead, norm
        self.exclude = tuple(exclude)
        self.together, self.prefill_chunk = together, prefill_chunk
        self.gate_inputs: GateInputs | None = None
        self.lengths, self.speculation = lengths or Lengths(), speculation
        self.tiers, self._windows = tiers, sorted({window for window in windows if window})
        check_batching(
            batching,
            together,
            prefill_chunk,
            arrivals_per_s,
            arrivals,
            self.lengths,
            speculation.tokens,
        )
        check_lookahead(trace, lookahead, norm)
        # Padding belongs to a recorded step; steps composed from sequences have none.
        takes_part = trace.valid | (batching == "recorded")
        chosen = chosen_sequences(trace, split, exclude, trace.sequence[takes_part])
        self.sequences = self.lengths.fit(
            trace, chosen[:max_sequences] if self.lengths.short == "refuse" else chosen
        )
        self.sequences = self.sequences[:max_sequences]
        self.arrivals_ns = dict.fromkeys((s.sequence for s in self.sequences), 0)
        self.is_timed = is_timed(arrivals_per_s, arrivals)
        self.steps: list[Step] = []
        self.phase = trace.phase
        """The phase in this run of each row of the trace; ``lengths`` may have changed it."""
        self._schedule: Schedule | None = None
        self._place: list[int] | None = None
        encoder = trace.header.encoder_sites
        self._all_sites = tuple(range(self.sites - trace.header.draft_sites))
        self._draft_sites = tuple(range(len(self._all_sites), self.sites))
        self._sites_by_decode = (
            self._all_sites[:encoder] or self._all_sites,
            self._all_sites[encoder:],
        )
        if batching == "recorded":
            self._take_recorded_steps()
        else:
            times = arrival_times(len(self.sequences), arrivals_per_s, arrival_seed, arrivals)
            numbers = sorted(self.arrivals_ns)
            self.arrivals_ns = dict(zip(numbers, times, strict=True))
            self._blocks_of = dict(zip(numbers, blocks, strict=False))
            self._prepare_composing()

    # ---- steps

    def start(self) -> Schedule:
        """Begin a run; the steps that an earlier timed run composed are forgotten."""
        if not self.is_timed:
            return Schedule(self, None)
        self.steps.clear()
        self._place = []
        self._forget()
        self._schedule = Schedule(self, self._batcher())
        return self._schedule

    def _take_recorded_steps(self) -> None:
        trace = self.trace
        touched = np.isin(trace.sequence, list(self.arrivals_ns))
        rows = np.flatnonzero(touched)
        if np.isin(trace.step[~touched], trace.step[rows]).any():
            raise ValueError(
                f"trace {trace.header.name} recorded steps that mix sequences of split={self.split}"
                " with others; use workload.batching=sequential or trace.split=all"
            )
        self._use_rows(rows)
        step, sequence = trace.step[rows], trace.sequence[rows]
        starts = np.flatnonzero(np.diff(step, prepend=step[:1] - 1)).tolist()
        stops = [*starts[1:], len(rows)]
        groups = [
            tuple(dict.fromkeys(sequence[a:b].tolist())) for a, b in zip(starts, stops, strict=True)
        ]
        numbered = [(number, index) for index, group in enumerate(groups) for number in group]
        first, last = dict(reversed(numbered)), dict(numbered)
        tokens = np.maximum.reduceat(self._tokens_so_far, starts).tolist()
        decode = np.minimum.reduceat(trace.phase[rows] == DECODE, starts).tolist()
        for i, (a, b, group) in enumerate(zip(starts, stops, groups, strict=True)):
            begins = tuple(sorted(s for s in group if first[s] == i))
            ends = tuple(sorted(s for s in group if last[s] == i))
            self.steps.append(
                Step(
                    i,
                    a,
                    b,
                    group,
                    tokens[i],
                    decode[i],
                    begins,
                    ends,
                    self._sites_by_decode[decode[i]],
                    parts=recorded_shares(group, sequence[a:b], self._tokens_so_far[a:b]),
                )
            )
        self.limits = self._limits_of_steps()

    def _prepare_composing(self) -> None:
        """Order the rows by sequence and make the requests; without arrivals compose all steps.

        Composed steps put the rows in the order of the run.
        """
        trace = self.trace
        rows = np.flatnonzero(np.isin(trace.sequence, list(self.arrivals_ns)) & trace.valid)
        rows = rows[np.argsort(trace.sequence[rows], kind="stable")]
        if self.lengths.asked:
            rows, self.phase = cut_rows(rows, trace, self.sequences)
        decode = self.phase[rows] == DECODE
        self._use_rows(rows)
        sequence = trace.sequence[rows]
        if (back := (sequence[1:] == sequence[:-1]) & decode[:-1] & ~decode[1:]).any():
            raise ValueError(
                f"trace {trace.header.name} has prompt rows after decoded ones in sequence"
                f" {sequence[1:][back][0]}, so workload.batching={self.batching} cannot compose its"
                " steps; use workload.batching=recorded"
            )
        numbers, first, count = np.unique(sequence, return_index=True, return_counts=True)
        decoded = np.add.reduceat(decode, first, dtype=np.int64)
        self._first_row = dict(zip(numbers.tolist(), first.tolist(), strict=True))
        self._requests = [
            Request(
                number,
                rows - decode_rows,
                decode_rows,
                self.arrivals_ns[number],
                self._blocks_of.get(number, ()),
            )
            for number, rows, decode_rows in zip(
                numbers.tolist(), count.tolist(), decoded.tolist(), strict=True
            )
        ]
        batcher = self._batcher()
        if self.is_timed:
            last = first + count - 1
            longest = np.sort(self._tokens_so_far[last])[::-1][: self.together]
            in_windows = {n: int(np.minimum(longest, n).sum()) for n in self._windows}
            self.limits = Limits(
                int(longest.sum()), batcher.most_rows, self._kept_tokens, in_windows
            )
            self._place = []
            return
        place: list[int] = []
        while isinstance(parts := batcher.next(0), tuple):
            self._append(parts, place)
        self._use_rows(rows[np.array(place)])
        self.limits = self._limits_of_steps()

    def _batcher(self) -> Batcher:
        continuous = "continuous" if self.batching == "continuous" else "static"
        separate = self.trace.header.encoder_sites > 0
        return Batcher(
            self._requests,
            continuous,
            self.together,
            self.prefill_chunk,
            separate,
            self.speculation,
            self.tiers,
        )

    @property
    def _kept_tokens(self) -> int:
        return 0 if self.tiers is None else self.tiers.device_tokens

    def add_step(self, schedule: Schedule, parts: Sequence[Part]) -> Step:
        """Append a step of a timed run, composed of ``parts`` by the latest ``schedule``."""
        if schedule is not self._schedule or self._place is None:
            raise RuntimeError(
                "another run of this workload has started; go on with the schedule of the latest"
                " start()"
            )
        self._forget()
        return self._append(parts, self._place)

    def _append(self, parts: Sequence[Part], place: list[int]) -> Step:
        start, tokens = len(place), []
        for part in parts:
            first = self._first_row[part.request.sequence] + part.first
            place += range(first, first + part.count)
            tokens.append(int(self._tokens_so_far[first + part.count - 1 + part.ahead]))
        decode = all(part.decode for part in parts)
        step = Step(
            len(self.steps),
            start,
            len(place),
            tuple([part.request.sequence for part in parts]),
            max(tokens),
            decode,
            tuple(sorted(part.request.sequence for part in parts if part.begins)),
            tuple(sorted(part.request.sequence for part in parts if part.ends)),
            self._draft_sites if parts[0].drafting else self._sites_by_decode[decode],
            drafters_of(parts),
            tuple([part.kept for part in parts]) if self.speculation.tokens else (),
            None if self.tiers is None else found_of(parts),
            parts[0].drafting,
            shares_of(parts, tokens),
        )
        self.steps.append(step)
        return step

    def _use_rows(self, rows: NDArray[np.int64]) -> None:
        self.choices = Choices(self.trace, rows, self.depth, self.norm, self.whole_prompts)
        tokens = _tokens_so_far(self.trace, rows)
        self._tokens_so_far = self.lengths.in_context(tokens, self.trace, rows)

    def tokens_at(self, step: Step) -> Iterable[tuple[int, int]]:
        """Of each row of a step its sequence, and how many tokens that has so far."""
        places = self.places(step)
        sequences = self.trace.sequence[self.choices.row[places]]
        return zip(sequences.tolist(), self._tokens_so_far[places].tolist(), strict=True)

    def take(self, trace: Trace) -> None:
        """Go on with ``trace``, which has the same rows: another trace, or this one overwritten."""
        self.trace = trace
        self.choices = Choices(trace, self.choices.row, self.depth, self.norm, self.whole_prompts)
        self._forget()

    def _limits_of_steps(self) -> Limits:
        """The limits of the steps as they stand.

        From its first step to its last a sequence holds its tokens so far, also during steps that
        it sits out.
        """
        counts = [step.rows for step in self.steps]
        step = np.repeat(np.arange(len(self.steps)), counts)
        sequence, tokens = (
            self._by_run(self.trace.sequence[self.choices.row]),
            self._by_run(self._tokens_so_far),
        )
        order = np.lexsort((tokens, step, sequence))
        step, sequence, tokens = step[order], sequence[order], tokens[order]
        is_first = np.diff(sequence, prepend=-1) != 0
        is_last = np.append(is_first[1:], True)

        def most(tokens: NDArray[np.int64]) -> int:
            more = np.where(is_first, tokens, np.diff(tokens, prepend=0))
            held = np.bincount(step, np.maximum(more, 0), len(self.steps) + 1)
            held -= np.bincount(step[is_last] + 1, tokens[is_last], len(self.steps) + 1)
            return round(float(held.cumsum().max()))

        in_windows = {n: most(np.minimum(tokens, n)) for n in self._windows}
        return Limits(most(tokens), max(counts), self._kept_tokens, in_windows)

    @cached_property
    def whole_prompts(self) -> frozenset[int]:
        """The sequences of the run whose prompts are read whole, or in the pieces recorded.

        Of prompts that share a chunk it depends on the others which is read in part.
        """
        chunk = inf if self.prefill_chunk is None else self.prefill_chunk
        if self.tiers is not None or (chunk < inf and self.together > 1):
            return frozenset()
        recorded = {item.sequence: item.prompt_tokens for item in self.trace.header.sequences}
        return frozenset(
            item.sequence
            for item in self.sequences
            if recorded[item.sequence] <= item.prompt_tokens <= chunk
        )

    def gate(self) -> StepGate:
        """A fresh gate object for one driver's walk through the steps."""
        return StepGate(self)

    def experts_by_gate(self) -> list[list[int]]:
        """The experts that each gate needs, by tick, in need order.

        Raise ValueError if the run is timed: its needs are not known before it runs.
        """
        if self.is_timed:
            raise ValueError(
                "sequences arrive over time, so what each gate will need is not known before the"
                f" run; {NO_ARRIVALS}, or choose a cache that does not look ahead"
            )
        cuts = np.searchsorted(self.needs.tick, np.arange(1, self.num_gates))
        return [experts.tolist() for experts in np.split(self.needs.expert, cuts)]


def _tokens_so_far(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many tokens each row's sequence has so far, itself included; padding counts as none."""
    order = np.argsort(trace.sequence[rows], kind="stable")
    tokens = trace.position[rows][order].astype(np.int64) + 1
    # Each sequence is lifted above those before it, so that one running maximum serves all of them.
    lift = np.cumsum(np.diff(trace.sequence[rows][order], prepend=-1) != 0) * (
        tokens.max(initial=0) + 1
    )
    so_far = np.empty_like(tokens)
    so_far[order] = np.maximum.accumulate(tokens + lift) - lift
    return so_far
