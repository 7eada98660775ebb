"""Cuts requests of given lengths from the sequences of a trace.

The first ``prompt_tokens`` rows of a sequence become its prompt and the next ``decode_tokens`` are
decoded, however the trace divides them. That is sound because a causal model's gate chooses by the
tokens so far, whether they were read or generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from sim.traces.trace import DECODE, PREFILL, Trace, TraceSequence
from sim.values.units import require_number, require_range

SHORT = ("refuse", "drop")
MOST_TOKENS = 1e9
"""Of a context; more could not be counted in bytes."""


@dataclass(frozen=True)
class Lengths:
    """The lengths that every request is cut to.

    ``prompt_tokens`` None keeps the trace's prompt; ``decode_tokens`` None decodes all tokens that
    are left. Where a sequence has fewer tokens, ``short`` says whether to ``refuse`` the run or to
    ``drop`` the sequence. Every sequence stands at the end of ``context`` tokens (contract C152);
    None: its first token is the first of its context. ``each`` has prompt and decoded tokens of
    every request instead, in the order of the sequences' numbers (contract C177).
    """

    prompt_tokens: int | None = None
    decode_tokens: int | None = None
    short: str = "refuse"
    context: int | None = None
    each: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.prompt_tokens is not None:
            require_number("workload.prompt_tokens", self.prompt_tokens, minimum=1, whole=True)
        if self.decode_tokens is not None:
            require_number("workload.decode_tokens", self.decode_tokens, whole=True)
        if self.context is not None:
            require_number(
                "workload.context_tokens", self.context, minimum=1, maximum=inf, whole=True
            )
            require_range("workload.context_tokens", self.context, 1, MOST_TOKENS, "tokens")
        if self.short not in SHORT:
            raise ValueError(
                f"unknown workload.short_sequences={self.short}; allowed: {', '.join(SHORT)}"
            )

    @property
    def asked(self) -> bool:
        return bool(self.each) or self.prompt_tokens is not None or self.decode_tokens is not None

    def fit(self, trace: Trace, sequences: Sequence[TraceSequence]) -> tuple[TraceSequence, ...]:
        """The sequences that are long enough, with the lengths that they are cut to.

        Raise ValueError if one is too short and is not to be dropped, or if none is long enough.
        """
        if not self.asked:
            return tuple(sequences)
        if self.each:
            return self._fit_each(trace, sequences)
        if self.prompt_tokens is not None:
            self._check_prompts(trace, sequences)
        kept = [s for s in sequences if self._rows(s) <= s.prompt_tokens + s.decode_tokens]
        if not kept or (self.short == "refuse" and len(kept) < len(sequences)):
            short = min(sequences, key=lambda s: s.prompt_tokens + s.decode_tokens - self._rows(s))
            way = (
                f"choose shorter ones, or workload.short_sequences=drop, which keeps {len(kept)} of"
                f" {len(sequences)}"
            )
            raise ValueError(
                f"trace {trace.header.name} is too short for"
                f" workload.prompt_tokens={self.prompt_tokens} and"
                f" decode_tokens={self.decode_tokens}: sequence {short.sequence} has"
                f" {short.prompt_tokens} prompt and {short.decode_tokens} decoded tokens;"
                f" {way if kept else 'choose shorter ones, or another trace'}"
            )
        return tuple(self._cut(s) for s in kept)

    def in_context(
        self, tokens: NDArray[np.int64], trace: Trace, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """How many tokens the sequences of ``rows`` have so far, where ``tokens`` are those of the
        trace: with ``context``, so many more that each ends there.

        Raise ValueError for a sequence that is longer than the context, and for an encoder's.
        """
        if self.context is None or not len(rows):
            return tokens
        name, given = trace.header.name, f"workload.context_tokens={self.context}"
        if trace.header.encoder_sites:
            raise ValueError(
                f"{given} does not go with trace {name}: an encoder reads its prompt as a whole, and"
                " no tokens come before it; choose a model without an encoder, or set it to null"
            )
        numbers, place = np.unique(trace.sequence[rows], return_inverse=True)
        last = np.zeros(len(numbers), np.int64)
        np.maximum.at(last, place, tokens)
        if (longest := int(last.max())) > self.context:
            raise ValueError(
                f"{given} is shorter than sequence {numbers[last.argmax()]} of trace {name}, which"
                f" has {longest} tokens; raise it to {longest}, or set workload.prompt_tokens and"
                " workload.decode_tokens"
            )
        return tokens + (self.context - last)[place]

    def _fit_each(
        self, trace: Trace, sequences: Sequence[TraceSequence]
    ) -> tuple[TraceSequence, ...]:
        """The first sequences by number, one for each request."""
        self._check_prompts(trace, sequences)
        fitted = []
        ordered = sorted(sequences, key=lambda one: one.sequence)
        for one, (prompt, decode) in zip(ordered, self.each, strict=False):
            tokens = one.prompt_tokens + one.decode_tokens
            if prompt + decode > tokens:
                raise ValueError(
                    f"workload.requests asks for input_length={prompt} and output_length={decode + 1},"
                    f" but sequence {one.sequence} of trace {trace.header.name} has {tokens} tokens;"
                    " take a trace of longer sequences, or shorten the request"
                )
            fitted.append(replace(one, prompt_tokens=prompt, decode_tokens=decode))
        return tuple(fitted)

    def _rows(self, sequence: TraceSequence) -> int:
        prompt = sequence.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens
        return prompt + (self.decode_tokens or 0)

    def _cut(self, sequence: TraceSequence) -> TraceSequence:
        whole = sequence.prompt_tokens + sequence.decode_tokens
        prompt = sequence.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens
        decode = whole - prompt if self.decode_tokens is None else self.decode_tokens
        return replace(sequence, prompt_tokens=prompt, decode_tokens=decode)

    def _check_prompts(self, trace: Trace, sequences: Sequence[TraceSequence]) -> None:
        name = trace.header.name
        asked = "workload.requests" if self.each else f"workload.prompt_tokens={self.prompt_tokens}"
        if trace.header.prefill == "counts":
            raise ValueError(
                f"trace {name} keeps prompts as counts of tokens, of which"
                f" {asked} cannot cut a part; set it to null,"
                " or capture with prefill=rows"
            )
        if trace.header.encoder_sites:
            raise ValueError(
                f"{asked} would cut what an encoder has read as"
                f" a whole (trace {name}); set it to null"
            )
        valid = trace.valid
        for one in sequences:
            first = int(trace.position[(trace.sequence == one.sequence) & valid].min())
            if first:
                raise ValueError(
                    f"trace {name}: sequence {one.sequence} begins at position {first}: its prompt"
                    f" is not recorded, so {asked} cannot be"
                    " cut from it; set it to null"
                )


def cut_rows(
    rows: NDArray[np.int64], trace: Trace, sequences: Sequence[TraceSequence]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Cut ``rows`` of the trace to the lengths of ``sequences``; return them and all phases.

    ``rows`` are indices into the trace, sequence by sequence, in order. The phases are those of all
    the trace's rows, changed where a row becomes a prompt's or a decoded one. Raise ValueError
    where a sequence's rows are not in the order of its tokens.
    """
    numbers = trace.sequence[rows]
    first = np.flatnonzero(np.diff(numbers, prepend=-1))
    rank = np.arange(len(rows)) - np.repeat(first, np.diff(first, append=len(rows)))
    by_number = {s.sequence: s for s in sequences}
    prompt = np.array([by_number[n].prompt_tokens for n in numbers.tolist()], np.int64)
    decode = np.array([by_number[n].decode_tokens for n in numbers.tolist()], np.int64)
    kept = rank < prompt + decode
    position = trace.position[rows][kept]
    if ((position[1:] <= position[:-1]) & (numbers[kept][1:] == numbers[kept][:-1])).any():
        raise ValueError(
            f"trace {trace.header.name} does not hold its tokens in order, so none can be cut to a"
            " length; set workload.prompt_tokens=null and workload.decode_tokens=null"
        )
    phase = trace.phase.copy()
    phase[rows] = np.where(rank < prompt, PREFILL, DECODE)
    return rows[kept], phase
