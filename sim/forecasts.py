"""How good forecasts were, whether or not anything was moved for them (docs/design.md section 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sim.workload import Workload

NAMES = ("top1", "recall_at_issued", "precision", "exact_set", "timely_recall")


@dataclass
class _Counts:
    """Over gates that have a forecast of the next site."""

    gates: int = 0
    best_needed: int = 0
    equal: int = 0
    named: int = 0
    needed: int = 0
    both: int = 0


def prediction(workload: Workload, lookups: Mapping[str, int], used: int) -> dict[str, float | None]:
    """The nearest forecast of each decode gate against its needs; the unions of both, where a step has several rows.

    ``top1``: its best expert is needed. ``recall_at_issued``: needs that it named. ``precision``: named that are
    needed. ``exact_set``: both sets are equal. ``timely_recall``: of the needs that were not there for want of a
    prefetch (``lookups`` by outcome), the share that one had brought in time (``used`` prefetches).
    """
    if not workload.depth:
        return dict.fromkeys(NAMES)
    counts = _Counts()
    _count_single_rows(workload, counts)
    _count_unions(workload, counts)
    if not counts.gates:
        return dict.fromkeys(NAMES)
    absent = used + lookups["late"] + lookups["promoted"] + lookups["miss"]
    return {
        "top1": counts.best_needed / counts.gates,
        "recall_at_issued": counts.both / counts.needed,
        "precision": counts.both / counts.named,
        "exact_set": counts.equal / counts.gates,
        "timely_recall": used / absent if absent else None,
    }


def _count_single_rows(workload: Workload, counts: _Counts) -> None:
    rows = np.array([step.start for step in workload.steps if step.decode and step.rows == 1], np.int64)
    forecast = workload.forecasts[0][rows, :-1, 0]  # made at site s for site s + 1
    actual = workload.chosen[0][rows, 1:]
    known = (forecast >= 0).any(axis=-1)
    forecast, actual = forecast[known], actual[known]
    hits = ((forecast[:, :, None] == actual[:, None, :]) & (forecast[:, :, None] >= 0)).any(axis=2)
    named, needed = (forecast >= 0).sum(axis=1), (actual >= 0).sum(axis=1)
    counts.gates += len(forecast)
    counts.best_needed += int(hits[:, 0].sum())
    counts.equal += int((hits.sum(axis=1) == np.maximum(named, needed)).sum())
    counts.named += int(named.sum())
    counts.needed += int(needed.sum())
    counts.both += int(hits.sum())


def _count_unions(workload: Workload, counts: _Counts) -> None:
    for step in workload.steps:
        if not step.decode or step.rows == 1:
            continue
        rows = workload.places(step)
        forecast, actual = workload.choices.forecast_union(rows, 1).needs, workload.choices.union(rows).needs
        for site in step.sites[:-1]:
            named, needed = forecast[site], actual[site + 1]
            if named:
                both = len(set(named) & set(needed))
                counts.gates += 1
                counts.best_needed += named[0] in needed
                counts.equal += both == max(len(named), len(needed))
                counts.named += len(named)
                counts.needed += len(needed)
                counts.both += both
