"""The loader: its switches, and what it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.values.types import PrefetchOutcome, Route
from sim.values.units import require_flag, require_number

UNUSED_AT_END = int(PrefetchOutcome.UNUSED_AT_END)

CHOICES: dict[str, tuple[str | int, ...]] = {
    "depth": ("all", "first_missing"),
    "queue": ("append", "replace"),
    "prefetch_order": ("nearest", "likeliest"),
    "wait": ("wait_all", "as_ready", "in_order"),
    "in_flight": (1, 2),
    "destination": ("pool", "staging"),
    "demand_evicts": ("masked_last", "unmasked"),
    "retention": ("strict", "after_batch"),
    "replay_unit": ("union", "access"),
    "copies": ("pinned", "pageable", "free"),
}


BUDGETS = ("all", "until_next_gate", "within_layer")
"""Of a loader's prefetch budget what is no number; ``within_layer`` becomes one before a run
(`sim.setup.build`).
"""


@dataclass(frozen=True)
class Loader:
    """The loader's switches (docs/contracts/controller.md and slots.md).

    ``chunk_bytes``: None moves whole transfers. ``staging_slots``: slots outside the pools, each of
    the largest variant. ``demand_evicts``: ``unmasked`` serves a demand from staging where only
    forecast keys could make room for it. ``dense_slots``: 0 keeps the dense blocks resident, n
    streams them through n slots. ``copies``: from pinned or from pageable memory, or in no time at
    all (what no loader can be: a reference).
    """

    depth: str = "all"
    queue: str = "append"
    prefetch_order: str = "nearest"
    cancel_stale: bool = True
    demand_first: bool = True
    destination: str = "pool"
    staging_slots: int = 0
    demand_evicts: str = "masked_last"
    dense_slots: int = 0
    in_flight: int = 1
    chunk_bytes: int | None = None
    wait: str = "wait_all"
    prefetch_budget: str | int = "all"
    retention: str = "strict"
    replay_unit: str = "union"
    low_for_high: bool = False
    write_back: bool = False
    copies: str = "pinned"

    def __post_init__(self) -> None:
        for name in ("cancel_stale", "demand_first", "low_for_high", "write_back"):
            require_flag(f"loader.{name}", getattr(self, name))
        for name, values in CHOICES.items():
            value = getattr(self, name)
            if value not in values or isinstance(value, bool):
                allowed = ", ".join(str(v) for v in values)
                raise ValueError(f"loader.{name}={value} is unknown; allowed: {allowed}")
        for name in ("staging_slots", "dense_slots"):
            require_number(f"loader.{name}", getattr(self, name), whole=True)
        if self.chunk_bytes is not None:
            require_number("loader.chunk_bytes", self.chunk_bytes, minimum=1, whole=True)
        budget = self.prefetch_budget
        is_count = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
        if budget not in BUDGETS and not is_count:
            raise ValueError(
                f"loader.prefetch_budget={budget} is unknown; allowed: {', '.join(BUDGETS)}, or a"
                " count >= 0"
            )
        self._check_combinations()

    def _check_combinations(self) -> None:
        stages = self.destination == "staging" or self.staging_slots > 0
        refused = (
            (
                self.destination == "staging" and not self.staging_slots,
                "destination=staging needs staging_slots >= 1",
            ),
            (
                self.demand_evicts == "unmasked" and not self.staging_slots,
                (
                    "demand_evicts=unmasked needs staging_slots >= 1, where what finds no slot is"
                    " served"
                ),
            ),
            (
                self.demand_evicts == "unmasked" and self.retention == "after_batch",
                (
                    "demand_evicts=unmasked has no use with retention=after_batch: a demand evicts"
                    " nothing"
                ),
            ),
            (
                self.chunk_bytes is not None and not self.demand_first,
                "chunk_bytes has no use with demand_first=false: nothing may overtake a prefetch",
            ),
            (
                self.chunk_bytes is not None and self.write_back,
                "chunk_bytes and write_back cannot be combined",
            ),
            (
                self.write_back and stages,
                "write_back and staging cannot be combined: an exchange moves no bytes",
            ),
            (
                self.write_back and self.retention == "after_batch",
                (
                    "write_back needs retention=strict: what is trimmed has no transfer to go back"
                    " with"
                ),
            ),
        )
        for wrong, why in refused:
            if wrong:
                raise ValueError(f"loader: {why}")

    def check_route(self, route: Route) -> None:
        """Raise ValueError if these switches do not go with the machine's links."""
        if self.chunk_bytes is not None and max(route.engines) > 1:
            raise ValueError(
                f"loader.chunk_bytes={self.chunk_bytes} needs one engine on every link, got engines"
                f" {list(route.engines)}; set hardware engines to 1 or chunk_bytes to null"
            )


class Transfer:
    """One variant, or dense block, on its way.

    ``call`` is the controller call that queued it; ``number`` is given at its first issue (-1
    before), ``victims`` are the keys evicted on the device for it, ``write_back`` those of them
    whose bytes go back. ``prefetch``: how it first started; ``awaited``: a need waits for this
    prefetch; ``urgent``: it then goes with the demands. ``outcome``: a ``PrefetchOutcome``, if it
    is one. ``hops``: (link, call that queued it there); ``left_bytes``: what its hop on ``link``
    has still to move. ``parent``: the number of the partial prefetch that it completes.

    ``waits``: it is queued on a link, not issued. ``claimed``: it holds its slot on the device.
    ``staged``: it lands in staging. ``dense``: it is a dense block. ``partial``: it moves less than
    the variant. ``over``: its last hop has ended. ``feeds``: its hops that have been handed on and
    are still in service (cut-through). ``bounced``: it found no slot while it was fed and joins the
    queue again when its hop ends. ``rest_bytes``: what a partial prefetch did not bring of a need
    that waits for it.
    """

    # What every transfer uses has a slot; what only some need is a default of the class.
    __slots__ = (
        "__dict__",
        "awaited",
        "call",
        "cancelled",
        "claimed",
        "feeds",
        "key",
        "left_bytes",
        "link",
        "moved_bytes",
        "number",
        "outcome",
        "prefetch",
        "urgent",
        "victims",
        "waits",
        "write_back",
    )
    first_link = 0
    staged = dense = partial = over = bounced = False
    rest_bytes = 0
    parent = -1
    later_hops: tuple[tuple[int, int], ...] = ()

    def __init__(
        self, key: int, prefetch: bool, moved_bytes: int, call: int, link: int = 0
    ) -> None:
        self.key, self.prefetch, self.call, self.link = key, prefetch, call, link
        self.moved_bytes = self.left_bytes = moved_bytes
        self.number = -1
        self.outcome = UNUSED_AT_END
        self.feeds = 0
        self.waits = True
        self.awaited = self.urgent = self.cancelled = self.claimed = False
        self.victims: Sequence[int] = ()
        self.write_back: Sequence[int] = ()
        if link:
            self.first_link = link

    @property
    def hops(self) -> tuple[tuple[int, int], ...]:
        return ((self.first_link, self.call), *self.later_hops)


NO_TRANSFER = Transfer(-1, False, 0, 0)
