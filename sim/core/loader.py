"""The loader: its switches."""

from __future__ import annotations

from dataclasses import dataclass

from sim.values.types import Route
from sim.values.units import require_flag, require_number

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
