"""How good forecasts were, whether or not anything was moved for them (docs/design.md section 10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.policies.base import Predictor
from sim.policies.lookahead import GateLookahead
from sim.policies.predictors import NoPrediction
from sim.workload import Workload

NAMES = ("top1", "recall_at_issued", "precision", "exact_set", "timely_recall")


@dataclass
class Counts:
    """Over gates that have a forecast of the next site."""

    gates: int = 0
    best_needed: int = 0
    equal: int = 0
    named: int = 0
    needed: int = 0
    both: int = 0

    def add(self, named: Sequence[int], needed: Sequence[int]) -> None:
        """One gate: what was named, best first, and what was needed; no id twice."""
        both = len(set(named) & set(needed))
        self.gates += 1
        self.best_needed += named[0] in needed
        self.equal += both == max(len(named), len(needed))
        self.named += len(named)
        self.needed += len(needed)
        self.both += both


def prediction(workload: Workload, predictor: Predictor, lookups: Mapping[str, int], used: int,
               fitted_on: int = 0) -> dict[str, float | None]:  # fmt: skip
    """The nearest forecast of each decode gate against its needs; the unions of both, where a step has several rows.

    ``top1``: its best expert is needed. ``recall_at_issued``: needs that it named. ``precision``: named that are
    needed. ``exact_set``: both sets are equal. ``timely_recall``: of the needs that were not there for want of a
    prefetch (``lookups`` by outcome), the share that one had brought in time (``used`` prefetches).
    ``fitted_on``: so many of the run's sequences were fitted on, which flatters.
    """
    nothing: dict[str, float | None] = dict.fromkeys(NAMES)
    if isinstance(predictor, NoPrediction):
        return {**nothing, "fitted_on": 0}
    counts = count_forecasts(workload, predictor)
    if not counts.gates:
        return {**nothing, "fitted_on": fitted_on}
    absent = used + lookups["late"] + lookups["promoted"] + lookups["miss"]
    return {
        "top1": counts.best_needed / counts.gates,
        "recall_at_issued": counts.both / counts.needed,
        "precision": counts.both / counts.named,
        "exact_set": counts.equal / counts.gates,
        "timely_recall": used / absent if absent else None,
        "fitted_on": fitted_on,
    }


def count_forecasts(workload: Workload, predictor: Predictor) -> Counts:
    """What ``predictor`` says at each gate of the workload's steps, asked anew, against what came."""
    counts = Counts()
    if isinstance(predictor, GateLookahead) and predictor.experts is None:
        # What this one says is in the columns of the workload.
        _count_single_rows(workload, counts)
        _count_unions(workload, counts)
        return counts
    for named, needed in nearest_forecasts(workload, predictor):
        counts.add(named, needed)
    return counts


def nearest_forecasts(workload: Workload, predictor: Predictor) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Of each decode gate that was forecast, the nearest forecast made of it, and its needs.

    A predictor that looks several sites ahead may have made several; the one from the nearest site counts.
    """
    fresh, gate = predictor.afresh(), workload.gate()
    for step in workload.steps:
        gate.open(step)
        named: dict[int, Sequence[int]] = {}
        for site in step.sites:
            gate.visit(site)
            if step.decode:
                if site in named:
                    yield named.pop(site), list(gate.needs)
                for choice in fresh.predict(gate):
                    # What is named of this site is of another step, which forecasts it anew.
                    if choice.site != site:
                        named[choice.site] = list(choice.needs)
                        break
            if fresh.learns:
                fresh.observe(gate)


def _count_single_rows(workload: Workload, counts: Counts) -> None:
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


def _count_unions(workload: Workload, counts: Counts) -> None:
    for step in workload.steps:
        if not step.decode or step.rows == 1:
            continue
        rows = workload.places(step)
        forecast, actual = workload.choices.forecast_union(rows, 1).needs, workload.choices.union(rows).needs
        for site in step.sites[:-1]:
            if forecast[site]:
                counts.add(forecast[site], actual[site + 1])
