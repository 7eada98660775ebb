"""Small scenarios that can be followed on paper: times of 1 and 10 ns, one pool, 1-byte sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from differential.rows import Timeline
from differential.scenario import (
    Forecast,
    Loader,
    Need,
    PoolSpec,
    Prediction,
    Scenario,
    Step,
    Thresholds,
)

WAITS = ("wait_all", "as_ready")


def gate(*experts: int) -> tuple[Need, ...]:
    return tuple(Need(expert) for expert in experts)


def foresee(*experts: int) -> Prediction:
    return tuple(Forecast(expert) for expert in experts)


def token(
    *needs: tuple[Need, ...], ahead: Mapping[int, tuple[Prediction, ...]] | None = None, **rest: Any
) -> Step:
    """One step of a sequence, with the forecasts that are made at some of its sites."""
    forecasts = tuple((ahead or {}).get(site, ()) for site in range(len(needs)))
    values: dict[str, Any] = {
        "sequence": 0,
        "begins": True,
        "ends": True,
        "rows": 1,
        "token": 1,
        "tail_ns": 0,
    }
    return Step(
        needs=needs, forecasts=forecasts, **(values | {"dense_ns": (1,) * len(needs)} | rest)
    )


def sequence(*orders: tuple[Need, ...], **rest: Any) -> tuple[Step, ...]:
    """Tokens of one sequence at a single site."""
    last = len(orders) - 1
    return tuple(
        token(needs, begins=index == 0, ends=index == last, token=index + 1, **rest)
        for index, needs in enumerate(orders)
    )


def machine(
    *steps: Step, capacity: int = 99, initial: tuple[tuple[int, int, int], ...] = (), **rest: Any
) -> Scenario:
    """One pool, one precision of one byte, transfers of 10, experts of 1, dense work of 1 a
    site.
    """
    values: dict[str, Any] = {
        "variant_bytes": (1,),
        "service_ns": (10,),
        "base_ns": (1,),
        "per_token_ns": (0,),
    } | rest
    precisions = tuple(range(len(values["variant_bytes"])))
    pool = PoolSpec(capacity, precisions, None, initial)
    return Scenario(sites=len(steps[0].needs), experts=8, pools=(pool,), steps=steps, **values)


def service(timeline: Timeline, *names: str) -> list[tuple[Any, ...]]:
    """Columns of the transfers of a single link that are served once each; what the run's end
    cuts ends there.
    """
    found = []
    for row, transfer in zip(timeline.services, timeline.transfers, strict=True):
        assert row.number == transfer.number
        ends = timeline.makespan_ns if row.end_ns < 0 else row.end_ns
        columns = vars(transfer) | vars(row) | {"end_ns": ends, "queued_ns": transfer.hops[-1][1]}
        found.append(tuple(columns[name] for name in names))
    return found


def stalls(timeline: Timeline) -> dict[str, int]:
    return {name: ns for name, ns in timeline.stall.items() if ns}


def served(timeline: Timeline, *names: str) -> list[tuple[Any, ...]]:
    """Columns of the services, by default what went where and when."""
    return [tuple(getattr(row, name) for name in names or SERVED) for row in timeline.services]


def outcomes(timeline: Timeline) -> list[str]:
    return [row.outcome for row in timeline.lookups]


SERVED = ("number", "link", "start_ns", "end_ns")


def figure_9(wait: str, forecast: Prediction, second_score: float) -> Scenario:
    """HOBBIT, Fig. 9: two layers of two experts, top-1; attention 3, load 14 (low 3.5), expert 2
    ms.
    """
    return Scenario(
        sites=2,
        experts=2,
        variant_bytes=(4, 1),
        service_ns=(14_000_000, 3_500_000),
        base_ns=(2_000_000, 2_000_000),
        per_token_ns=(0, 0),
        pools=(PoolSpec(8, (0,)), PoolSpec(2, (1,))),
        steps=(
            Step(
                sequence=0,
                begins=True,
                ends=True,
                rows=1,
                token=1,
                dense_ns=(3_000_000, 3_000_000),
                tail_ns=0,
                needs=((Need(0),), (Need(0, score=second_score),)),
                forecasts=((forecast,), (None,)),
            ),
        ),
        selector=Thresholds(0.5, 1.0),
        loader=Loader(lookahead=1, wait=wait),  # type: ignore[arg-type]
    )
