"""The two parts of a configuration that choose data: a trace, and how its sequences become the
steps of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sim.values.units import require_number
from sim.workload.batching import given_arrivals
from sim.workload.kv_room import ALLOCATIONS, ONCE
from sim.workload.lengths import Lengths
from sim.workload.speculation import Speculation


@dataclass(frozen=True)
class TraceChoice:
    """Which trace, and which of its sequences.

    ``path`` is the trace's folder. Chosen are the sequences of ``split`` that carry none of the
    flags ``exclude``; of these the first ``max_sequences`` (None: all).
    """

    path: str
    split: str
    exclude: Sequence[str]
    max_sequences: int | None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise ValueError(f"trace.path={self.path!r} must be the directory of a trace")
        if isinstance(self.exclude, str) or not all(isinstance(flag, str) for flag in self.exclude):
            raise ValueError(
                f"trace.exclude={self.exclude!r} must be a list of flags, such as [has_repetition]"
            )
        if self.max_sequences is not None:
            require_number("trace.max_sequences", self.max_sequences, minimum=1, whole=True)


@dataclass(frozen=True)
class WorkloadChoice:
    """How sequences become steps, how long they are, when they arrive, and which lookahead scores
    are used.

    The fields are arguments of `sim.workload.steps.Workload`, `sim.workload.lengths.Lengths` and
    `sim.workload.speculation.Speculation`, which explain them. ``kv_allocation``: whether keys and
    values have their memory from the start (``once``), or slots shrink as they grow. ``arrivals_s``: seconds, in a list
    or a file of that name. ``source``: where the figures come from, "" if nowhere.
    """

    batching: str
    lookahead_norm: str
    together: int = 1
    prefill_chunk: int | None = None
    prompt_tokens: int | None = None
    decode_tokens: int | None = None
    context_tokens: int | None = None
    kv_allocation: str = ONCE
    short_sequences: str = "refuse"
    arrivals_per_s: float | None = None
    arrivals_s: Sequence[float] | str | None = None
    arrival_seed: int = 0
    draft_tokens: int = 0
    draft_accepted: float | Sequence[float] = 1.0
    draft_seed: int = 0
    draft_layers: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        if self.kv_allocation not in ALLOCATIONS:
            raise ValueError(
                f"unknown workload.kv_allocation={self.kv_allocation}; allowed:"
                f" {', '.join(ALLOCATIONS)}"
            )
        # A file of arrivals is read here, so that its errors come before the trace is read.
        _ = self.arrivals_ns
        _ = self.speculation

    @cached_property
    def arrivals_ns(self) -> tuple[int, ...] | None:
        """The arrivals of ``arrivals_s`` in ns; None where it is None."""
        return None if self.arrivals_s is None else given_arrivals(self.arrivals_s)

    @cached_property
    def speculation(self) -> Speculation:
        accepted = self.draft_accepted
        return Speculation(
            self.draft_tokens,
            accepted if isinstance(accepted, int | float | str) else tuple(accepted),
            self.draft_seed,
            self.draft_layers,
        )

    @property
    def lengths(self) -> Lengths:
        return Lengths(
            self.prompt_tokens, self.decode_tokens, self.short_sequences, self.context_tokens
        )
