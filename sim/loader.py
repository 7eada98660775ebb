"""The loader: its switches, and what it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.types import PrefetchOutcome
from sim.units import require_flag

UNUSED_AT_END = int(PrefetchOutcome.UNUSED_AT_END)


@dataclass(frozen=True)
class Loader:
    """The loader's switches (docs/design.md sections 4 and 5). Values that are not built yet are refused by name."""

    depth: str = "all"
    queue: str = "append"
    promote: bool = True
    cancel_stale: bool = True
    demand_first: bool = True
    destination: str = "pool"
    in_flight: int = 1
    chunk_bytes: int | None = None
    wait: str = "wait_all"
    prefetch_budget: str | int = "all"
    slot_claim: str = "issue"
    retention: str = "strict"
    replay_unit: str = "union"
    low_for_high: bool = False

    def __post_init__(self) -> None:
        for name in ("promote", "cancel_stale", "demand_first", "low_for_high"):
            require_flag(f"loader.{name}", getattr(self, name))
        known = {
            "depth": ("all", "first_missing"),
            "queue": ("append", "replace"),
            "wait": ("wait_all", "as_ready"),
            "in_flight": (1, 2),
            "destination": ("pool",),
            "chunk_bytes": (None,),
            "slot_claim": ("issue",),
            "retention": ("strict",),
            "replay_unit": ("union",),
        }
        planned = {
            "destination": ("staging",),
            "slot_claim": ("queue",),
            "retention": ("after_batch",),
            "replay_unit": ("access",),
        }
        for name, values in known.items():
            value = getattr(self, name)
            if value in values and not isinstance(value, bool):
                continue
            allowed = ", ".join(str(v) for v in values)
            why = "is not built yet" if value in planned.get(name, ()) or name == "chunk_bytes" else "is unknown"
            raise ValueError(f"loader.{name}={value} {why}; allowed: {allowed}")
        budget = self.prefetch_budget
        is_count = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
        if budget not in ("all", "until_next_gate") and not is_count:
            raise ValueError(
                f"loader.prefetch_budget={budget} is unknown; allowed: all, until_next_gate, or a count >= 0"
            )


class Transfer:
    """One variant on its way.

    ``call`` is the controller call that queued it; ``number`` is given at issue (-1 before), ``victims`` are the keys
    evicted for it then. ``awaited``: a need waits for this prefetch. ``outcome``: a ``PrefetchOutcome``, if it is one.
    """

    __slots__ = ("awaited", "call", "cancelled", "key", "moved_bytes", "number", "outcome", "prefetch", "victims")

    def __init__(self, key: int, prefetch: bool, moved_bytes: int, call: int) -> None:
        self.key = key
        self.prefetch = prefetch
        self.moved_bytes = moved_bytes
        self.call = call
        self.number = -1
        self.awaited = self.cancelled = False
        self.outcome = UNUSED_AT_END
        self.victims: Sequence[int] = ()


NO_TRANSFER = Transfer(-1, False, 0, 0)
