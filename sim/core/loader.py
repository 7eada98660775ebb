"""The loader's switches: how demands and prefetches are queued, claimed, moved and waited for."""

from __future__ import annotations

from dataclasses import dataclass

from sim.values.types import Route
from sim.values.units import require_flag, require_number

CHOICES: dict[str, tuple[str | int, ...]] = {
    "depth": ("all", "first_missing"),
    "queue": ("append", "replace"),
    "prefetch_order": ("nearest", "likeliest"),
    "wait": ("wait_all", "as_ready", "in_order", "by_projection"),
    "in_flight": (1, 2),
    "destination": ("pool", "staging"),
    "staging_holds": ("experts", "projections"),
    "demand_evicts": ("masked_last", "unmasked"),
    "retention": ("strict", "after_batch", "until_next_visit"),
    "replay_unit": ("union", "access"),
    "copies": ("pinned", "pageable", "free"),
}


LAYER = "layer"
"""The value of ``staging_slots`` that becomes the number of a layer's experts before a run
(`sim.setup.parts`).
"""
COUNTED = ("within_layer", "in_time")
"""The values of ``prefetch_budget`` that become numbers of the machine's times before a run
(`sim.setup.build`).
"""
BUDGETS = ("all", "until_next_gate", *COUNTED)
"""The values of ``prefetch_budget`` that are words."""


@dataclass(frozen=True)
class Loader:
    """The loader's switches; docs/contracts/controller.md and slots.md say what each does.

    - ``depth``: whether forecasts are asked for beyond a site that lacks something.
    - ``queue``: whether a gate's forecasts join those of earlier gates or replace them.
    - ``prefetch_order``: the nearest site first, or the likeliest expert of all sites.
    - ``cancel_stale``: a gate cancels the waiting prefetches for its site that it does not need.
    - ``demand_first``: demands overtake prefetches; else each link has one queue.
    - ``destination``: where whole prefetches land.
    - ``staging_slots``: slots outside the pools, each of the largest variant. In a configuration
      `LAYER` stands for as many as a layer has experts.
    - ``staging_holds``: with ``projections`` the slots have room for one projection of their experts
      at a time, which is what the ledger counts (contract C82).
    - ``demand_evicts``: ``unmasked`` serves a demand from staging where only masked (forecast) keys
      could make room for it.
    - ``dense_slots``: 0 keeps the dense blocks resident; n streams them through n slots.
    - ``in_flight``: transfers issued to each engine of a link, the one in service included.
    - ``chunk_bytes``: after how many bytes a prefetch may give way to a demand; None: never.
    - ``wait``: whether needs are computed when all are there, or as they arrive, in which order,
      or projection by projection (contract C167).
    - ``prefetch_budget``: how many prefetches a gate may queue.
    - ``retention``: ``after_batch`` lets a gate's loads exceed the capacity until the next gate;
      ``until_next_visit`` until the gate after the next one that asks the same pool (contract C181).
    - ``replay_unit``: ``access`` serves a union one need at a time.
    - ``low_for_high``: a resident lower precision may serve a need that wants a higher one.
    - ``write_back``: evicted variants go back over the link.
    - ``copies``: from pinned or from pageable memory. ``free`` takes no time, which no real loader
      can do: it is a reference.

    Raise ValueError for a value that is unknown, and for switches that exclude each other.
    """

    depth: str = "all"
    queue: str = "append"
    prefetch_order: str = "nearest"
    cancel_stale: bool = True
    demand_first: bool = True
    destination: str = "pool"
    staging_slots: int = 0
    staging_holds: str = "experts"
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
        slots: object = self.staging_slots
        if isinstance(slots, str):
            raise ValueError(
                f"loader.staging_slots={slots} must be a whole number, or {LAYER}: as many"
                " as a layer has experts"
            )
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
                "loader.destination=staging needs loader.staging_slots >= 1",
            ),
            (
                self.demand_evicts == "unmasked" and not self.staging_slots,
                (
                    "loader.demand_evicts=unmasked needs loader.staging_slots >= 1, where what finds"
                    " no slot is served"
                ),
            ),
            (
                self.demand_evicts == "unmasked" and self.overflows,
                (
                    "loader.demand_evicts=unmasked has no use with"
                    f" loader.retention={self.retention}: a demand evicts nothing; leave one out"
                ),
            ),
            (
                self.chunk_bytes is not None and not self.demand_first,
                (
                    "loader.chunk_bytes has no use with loader.demand_first=false: nothing may"
                    " overtake a prefetch; leave one out"
                ),
            ),
            (
                self.chunk_bytes is not None and self.write_back,
                (
                    "loader.chunk_bytes and loader.write_back cannot be combined; set"
                    " loader.chunk_bytes=null or loader.write_back=false"
                ),
            ),
            (
                self.write_back and stages,
                (
                    "loader.write_back and staging cannot be combined: an exchange moves no bytes;"
                    " set loader.write_back=false, or loader.staging_slots=0 and"
                    " loader.destination=pool"
                ),
            ),
            (
                self.write_back and self.overflows,
                (
                    "loader.write_back needs loader.retention=strict: what is trimmed has no"
                    " transfer to go back with"
                ),
            ),
        )
        for wrong, why in refused:
            if wrong:
                raise ValueError(why)

    @property
    def overflows(self) -> bool:
        """Whether pools may hold more than their capacity for a while."""
        return self.retention != "strict"

    def check_route(self, route: Route) -> None:
        """Raise ValueError if these switches do not go with the machine's links."""
        if self.chunk_bytes is not None and max(route.engines) > 1:
            raise ValueError(
                f"loader.chunk_bytes={self.chunk_bytes} needs one engine on every link, got engines"
                f" {list(route.engines)}; set hardware engines to 1 or chunk_bytes to null"
            )
