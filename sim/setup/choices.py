"""The two parts of a configuration that choose data: a trace, and how its sequences become the
steps of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from sim.traces.header import NORMS
from sim.values.units import gib, require_number
from sim.workload.batching import given_arrivals
from sim.workload.kv_room import ALLOCATIONS, ONCE
from sim.workload.lengths import Lengths
from sim.workload.prefixes import Tiers
from sim.workload.requests import Told, read_requests
from sim.workload.speculation import ON_DEVICE, Speculation

TIERS = ("device", "ram", "disk")


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
        flags = self.exclude
        if not isinstance(flags, list | tuple) or not all(isinstance(flag, str) for flag in flags):
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
    values have their memory from the start (``once``), or slots shrink as they grow.
    ``arrivals_s``: seconds, in a list or a file of that name. ``draft_tokens``: None where nobody
    asked for drafts. ``requests``: a list or a file (`sim.workload.requests`). ``source``: where the
    figures come from, "" if nowhere.
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
    draft_tokens: int | None = None
    draft_accepted: float | Sequence[float] = 1.0
    draft_seed: int = 0
    draft_layers: int = 0
    draft_experts: str = ON_DEVICE
    requests: str | Sequence[object] | None = None
    block_tokens: int = 512
    kv_device_gib: float = 0.0
    kv_ram_gib: float = 0.0
    kv_disk_gib: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        if self.kv_allocation not in ALLOCATIONS:
            raise ValueError(
                f"unknown workload.kv_allocation={self.kv_allocation}; allowed:"
                f" {', '.join(ALLOCATIONS)}"
            )
        # A word that this run has no use for may be misspelt as well.
        if self.lookahead_norm not in NORMS:
            raise ValueError(
                f"unknown workload.lookahead_norm={self.lookahead_norm}; allowed: {', '.join(NORMS)}"
            )
        require_number("workload.arrival_seed", self.arrival_seed, maximum=inf, whole=True)
        # Files are read here, so that their errors come before the trace is read.
        _ = self.speculation
        self._check_drafts()
        require_number("workload.block_tokens", self.block_tokens, minimum=1, whole=True)
        for tier in TIERS:
            require_number(f"workload.kv_{tier}_gib", self._gib(tier))
        if not isinstance(self.requests, str | Sequence | None):
            raise ValueError(f"workload.requests={self.requests!r} must be a file, or a list")
        self._check_requests()
        self._check_unused()
        _ = self.arrivals_ns

    def _check_drafts(self) -> None:
        """Raise ValueError for what is said of drafts where nobody asked for any.

        ``draft_tokens`` of 0 asks, too: a grid of it may begin there, beside the other options.
        """
        if self.draft_tokens is not None:
            return
        others = ("accepted", "seed", "layers", "experts")
        for name in (f"draft_{other}" for other in others):
            if (value := getattr(self, name)) != getattr(type(self), name):
                raise ValueError(
                    f"workload.{name}={value} changes nothing, as this run has no drafts: set"
                    " workload.draft_tokens to how many tokens a step drafts (0 in a grid that begins"
                    " without), or leave it out"
                )

    def _check_unused(self) -> None:
        """Raise ValueError for a word that only another one, which nobody has said, gives a use."""
        for name, of, what in (
            ("arrival_seed", "arrivals_per_s", "no arrival is drawn"),
            ("block_tokens", "requests", "no request tells its blocks"),
        ):
            value = getattr(self, name)
            if getattr(self, of) is None and value != getattr(type(self), name):
                raise ValueError(
                    f"workload.{name}={value} changes nothing, as {what}: set workload.{of}, or"
                    " leave it out"
                )

    def _gib(self, tier: str) -> float:
        size: float = getattr(self, f"kv_{tier}_gib")
        return size

    def _check_requests(self) -> None:
        """Raise ValueError for what does not go with a file of requests, or not without one."""
        tiers = [f"workload.kv_{tier}_gib={self._gib(tier):g}" for tier in TIERS if self._gib(tier)]
        if self.requests is None:
            if tiers:
                raise ValueError(
                    f"{', '.join(tiers)}: which prompts begin alike is told by workload.requests;"
                    f" name a file, or set {tiers[0].partition('=')[0]}=0"
                )
            return
        if self.kv_allocation != ONCE:
            raise ValueError(
                f"workload.kv_allocation={self.kv_allocation} does not go with workload.requests:"
                " how kept blocks and slots share what grows is not modelled; set it to once"
            )
        others = (
            "prompt_tokens",
            "decode_tokens",
            "context_tokens",
            "arrivals_per_s",
            "arrivals_s",
        )
        given = [name for name in others if getattr(self, name) is not None]
        given += ["short_sequences"] if self.short_sequences != "refuse" else []
        if given:
            raise ValueError(
                f"workload.{given[0]} does not go with workload.requests, whose lines have every"
                " request's lengths and arrival; leave out one of them"
            )
        _ = self.told

    @cached_property
    def told(self) -> tuple[Told, ...]:
        """The lines of ``requests``."""
        if self.requests is None:
            return ()
        return read_requests(self.requests, self.block_tokens)

    def tiers(self, token_bytes: int) -> Tiers | None:
        """Where keys and values of ``token_bytes`` a token wait; None without ``requests``."""
        if self.requests is None:
            return None
        block = self.block_tokens * token_bytes
        return Tiers(self.block_tokens, *(gib(self._gib(tier)) // block for tier in TIERS))

    @cached_property
    def arrivals_ns(self) -> tuple[int, ...] | None:
        """The arrivals of ``arrivals_s`` or ``requests`` in ns; None where there are none."""
        times = tuple(one.arrival_ns for one in self.told if one.arrival_ns is not None)
        if times:
            return times
        return None if self.arrivals_s is None else given_arrivals(self.arrivals_s)

    @cached_property
    def speculation(self) -> Speculation:
        accepted = self.draft_accepted
        return Speculation(
            0 if self.draft_tokens is None else self.draft_tokens,
            accepted if isinstance(accepted, int | float | str) else tuple(accepted),
            self.draft_seed,
            self.draft_layers,
            self.draft_experts,
        )

    @property
    def lengths(self) -> Lengths:
        return Lengths(
            self.prompt_tokens,
            self.decode_tokens,
            self.short_sequences,
            self.context_tokens,
            tuple((one.prompt_tokens, one.decode_tokens) for one in self.told),
        )
