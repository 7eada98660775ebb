"""Prefetch budgets that are counted from a machine's times, before a run."""

from __future__ import annotations

from sim.machine.durations import Durations
from sim.policies.lookahead import transfers_within
from sim.values.types import Geometry
from sim.workload.batching import NO_ARRIVALS
from sim.workload.steps import Workload


def counted_prefetches(
    budget: str | int,
    reach: int | None,
    workload: Workload,
    durations: Durations,
    geometry: Geometry,
) -> int:
    """The number that a ``prefetch_budget`` of `sim.core.loader.COUNTED` stands for; ``reach`` is the predictor's.

    - ``within_layer``: how many experts the link to the device moves while one layer of a decoded
      token is computed; at least the needs of one token.
    - ``in_time``: how many it moves while the sites are computed that lie between a forecast and
      the gate it is of. That may be none.

    The time of a layer is the mean over the run's decode steps (over all steps, if none decodes).
    Raise ValueError where the steps depend on time, and for ``in_time`` with a predictor whose
    ``reach`` is not known.
    """
    if workload.is_timed:
        raise ValueError(
            f"loader.prefetch_budget={budget} is a mean of steps that do not depend on time; "
            f"{NO_ARRIVALS}, or loader.prefetch_budget to a number"
        )
    decode = [step for step in workload.steps if step.decode] or workload.steps
    dense_ns = [durations.dense_ns(step)[site] for step in decode for site in step.sites]
    sites = range(geometry.sites)
    expert_ns = sum(durations.expert_ns(0, site, 1) for site in sites) // len(sites)
    layer_ns = sum(dense_ns) // len(dense_ns) + geometry.top_k * expert_ns
    load_ns = max(1, durations.hop_ns(0, geometry.variant_bytes[0]))
    if budget == "within_layer":
        return transfers_within(layer_ns, load_ns, geometry.top_k)
    if reach is None:
        raise ValueError(
            "loader.prefetch_budget=in_time needs a predictor that says how far ahead it forecasts;"
            " choose predictor=expected_needs, or set loader.prefetch_budget to a number"
        )
    return reach * layer_ns // load_ns
