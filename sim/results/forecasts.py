"""How good forecasts were, whether or not anything was moved for them (docs/design.md section
10).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.policies.base import Predictor
from sim.traces.trace import DECODE
from sim.values.types import Step
from sim.workload.steps import Workload

SHARES = ("top1", "recall_at_issued", "precision", "exact_set")
NAMES = (*SHARES, "timely_recall")
FORECAST, NOT_BY_DESIGN, NOT = "forecast", "not forecast by the system", "not forecast: "
"""What became of prompts; a reason follows `NOT`."""


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

    def shares(self) -> dict[str, float | None]:
        """None where nothing was forecast."""
        if not self.gates:
            return dict.fromkeys(SHARES)
        values = (
            self.best_needed / self.gates,
            self.both / self.needed,
            self.both / self.named,
            self.equal / self.gates,
        )
        return dict(zip(SHARES, values, strict=True))


def prediction(
    workload: Workload,
    predictor: Predictor,
    lookups: Mapping[str, int],
    used: int,
    fitted_on: int = 0,
) -> dict[str, Any]:
    """The nearest forecast of each decode gate against its needs; the unions of both, where a step
    has several rows.

    ``top1``: its best expert is needed. ``recall_at_issued``: needs that it named. ``precision``:
    named that are needed. ``exact_set``: both sets are equal. ``timely_recall``: of the needs that
    were not there for want of a prefetch (``lookups`` by outcome), the share that one had brought
    in time (``used`` prefetches). ``fitted_on``: so many of the run's sequences were fitted on,
    which flatters. ``prefill``: the first four of gates with rows of prompts. ``prompts``: whether
    these were forecast, or why not; None without predictor or prompts.
    """
    if predictor.silent:
        return {**dict.fromkeys(NAMES), "fitted_on": 0, "prefill": None, "prompts": None}
    decode, prefill = count_forecasts(workload, predictor)
    absent = used + lookups["late"] + lookups["promoted"] + lookups["miss"]
    has_prompts = any(not step.decode for step in workload.steps)
    return {
        **decode.shares(),
        "timely_recall": used / absent if absent and decode.gates else None,
        "fitted_on": fitted_on,
        "prefill": prefill.shares() if prefill.gates else None,
        "prompts": _prompts_told(workload, predictor, prefill.gates) if has_prompts else None,
    }


def _prompts_told(workload: Workload, predictor: Predictor, gates: int) -> str:
    """Whether prompts were forecast at any of their gates, and why not."""
    reads, trace = predictor.requires, f"trace {workload.trace.header.name}"
    if gates and reads.lookahead_sites and reads.row_scores is None:
        # Of a step that holds decoded rows, too, these alone may have been forecast.
        prompts = workload.phase[workload.row] != DECODE
        gates = int((workload.forecasts[0][prompts] >= 0).any(axis=(1, 2, 3)).sum())
    if gates:
        return FORECAST
    if not predictor.prompts:
        return NOT_BY_DESIGN
    again = "capture it with prefill_lookahead=rows"
    if reads.gate_inputs:
        return f"{NOT}the predictor reads gate inputs, which {trace} keeps of decoded tokens only"
    if not reads.lookahead_sites:
        return f"{NOT}the predictor names nothing for them"
    if workload.norm not in workload.trace.prompt_forecasts:
        again = again if reads.row_scores else "capture it anew"
        return f"{NOT}{trace} keeps no lookahead of prompts; {again}"
    if reads.row_scores:
        return (
            f"{NOT}the predictor reads each token's scores, which {trace} keeps of decoded tokens"
            f" only; {again}"
        )
    how = {"prefill_chunk": workload.prefill_chunk, "prompt_tokens": workload.lengths.prompt_tokens}
    cut = " and ".join(
        f"workload.{name}={value}" for name, value in how.items() if value is not None
    )
    if cut:
        return f"{NOT}{cut} reads them in part, and {trace} keeps forecasts of whole ones; {again}"
    return f"{NOT}{trace} has no forecast of these prompts"


def count_forecasts(workload: Workload, predictor: Predictor) -> tuple[Counts, Counts]:
    """What ``predictor`` says at each gate, asked anew, against what came: of decoded steps, and
    of prompts' steps.
    """
    decode, prefill = Counts(), Counts()
    steps = workload.steps
    if predictor.as_routed:
        # What this one says of decoded rows is in the columns of the workload, and it remembers
        # nothing.
        _count_single_rows(workload, decode)
        _count_unions(workload, decode)
        steps = [step for step in steps if not step.decode]
    for step, named, needed in nearest_forecasts(workload, predictor, steps):
        (decode if step.decode else prefill).add(named, needed)
    return decode, prefill


def nearest_forecasts(
    workload: Workload, predictor: Predictor, steps: Sequence[Step]
) -> Iterator[tuple[Step, Sequence[int], Sequence[int]]]:
    """Of each gate of ``steps`` that was forecast, the nearest forecast made of it, and its needs.

    A predictor that looks several sites ahead may have made several; the one from the nearest site
    counts.
    """
    fresh, gate = predictor.afresh(), workload.gate()
    for step in steps:
        gate.open(step)
        named: dict[int, Sequence[int]] = {}
        for site in step.sites:
            gate.visit(site)
            if site in named:
                yield step, named.pop(site), list(gate.needs)
            for choice in fresh.predict(gate):
                # What is named of this site is of another step, which forecasts it anew.
                if choice.site != site:
                    named[choice.site] = list(choice.needs)
                    break
            if fresh.learns:
                fresh.observe(gate)


def _count_single_rows(workload: Workload, counts: Counts) -> None:
    rows = np.array(
        [step.start for step in workload.steps if step.decode and step.rows == 1], np.int64
    )
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
        forecast, actual = (
            workload.choices.forecast_union(rows, 1).needs,
            workload.choices.union(rows).needs,
        )
        for site in step.sites[:-1]:
            if forecast[site]:
                counts.add(forecast[site], actual[site + 1])
