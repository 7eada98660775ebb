"""How good forecasts were, whether or not anything was prefetched (contract C109)."""

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
"""Whether prompts were forecast, in words; a reason follows `NOT`."""
NO_FORECAST = "decoded tokens had no forecast"
"""What is said beside of decoded tokens that the trace recorded in a prompt."""


@dataclass
class Counts:
    """Sums over gates that were forecast.

    ``named`` and ``needed`` count experts, ``both`` those that were named and needed. Of the
    ``gates``, ``best_needed`` needed the best named expert, and ``equal`` needed exactly the named
    ones.
    """

    gates: int = 0
    best_needed: int = 0
    equal: int = 0
    named: int = 0
    needed: int = 0
    both: int = 0

    def add(self, named: Sequence[int], needed: Sequence[int]) -> None:
        """Add one gate: the experts named, best first, and those needed; neither repeats any."""
        both = len(set(named) & set(needed))
        self.gates += 1
        self.best_needed += named[0] in needed
        self.equal += both == max(len(named), len(needed))
        self.named += len(named)
        self.needed += len(needed)
        self.both += both

    def shares(self) -> dict[str, float | None]:
        """The ratios in `SHARES`, all None where nothing was forecast."""
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
    """The section ``prediction`` of a summary: forecasts against the needs that came.

    The nearest forecast of each decode gate counts. Where a step has several rows, the unions of
    their forecasts and needs are compared.

    | name | meaning |
    |---|---|
    | top1 | share of gates that needed the best named expert |
    | recall_at_issued | share of needs that were named |
    | precision | share of named experts that were needed |
    | exact_set | share of gates whose needs were exactly the named experts |
    | timely_recall | see below |
    | fitted_on | how many of the run's sequences the predictor was fitted on, which flatters it |
    | prefill | the first four for gates with rows of prompts |
    | prompts | whether prompts were forecast, or why not, and how many decoded tokens were not;
    None without predictor or prompts |

    ``timely_recall`` is over the needs that were there only because of a prefetch, or were not
    there for want of one: ``used`` prefetches, and ``lookups`` that were late, promoted or a miss.
    It is the share of them that a prefetch had brought in time.
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
        "prompts": _prompts_told(workload, predictor, prefill.gates)
        + _decoded_told(workload, predictor)
        if has_prompts
        else None,
    }


def _decoded_told(workload: Workload, predictor: Predictor) -> str:
    """How many decoded tokens had no forecast, in words: the trace recorded them in a prompt, of
    which it keeps nothing a token that this predictor reads. Empty where all had one.
    """
    reads, trace = predictor.requires, workload.trace
    if not (reads.lookahead_sites or reads.gate_inputs):
        return ""
    decoded = workload.row[workload.phase[workload.row] == DECODE]
    recorded = np.unique(decoded[trace.phase[decoded] != DECODE])
    if not len(recorded):
        return ""
    if reads.gate_inputs:
        kept = workload.gate_inputs
        known = np.zeros(len(recorded), bool) if kept is None else kept.place[recorded] >= 0
        way = ""
    else:
        scores = trace.lookahead[reads.row_scores or workload.norm][recorded, :, 0]
        known = np.isfinite(scores).any(axis=(1, 2))
        way = " (prefill_lookahead=rows would keep one of each)"
    if known.all():
        return ""
    return (
        f"; {int((~known).sum())} of {len(np.unique(decoded))} {NO_FORECAST}, as"
        f" trace {trace.header.name} recorded them in prompts{way}"
    )


def _prompts_told(workload: Workload, predictor: Predictor, gates: int) -> str:
    """Whether prompts were forecast at any of their gates, else why not, in words."""
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
    """Ask ``predictor`` again at each gate, and compare with the needs that came.

    Returns the counts of steps that only decode, and of steps with prompts. Steps that draft are
    neither.
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
        if not step.drafting:
            (decode if step.decode else prefill).add(named, needed)
    return decode, prefill


def nearest_forecasts(
    workload: Workload, predictor: Predictor, steps: Sequence[Step]
) -> Iterator[tuple[Step, Sequence[int], Sequence[int]]]:
    """For each gate of ``steps`` that was forecast: its step, the nearest forecast, and its needs.

    A predictor that looks several sites ahead forecasts a gate several times. The forecast from the
    nearest site counts.
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
                # A forecast for this very site is for its next step, which forecasts it again.
                if choice.site != site:
                    named[choice.site] = list(choice.needs)
                    break
            if fresh.learns:
                fresh.observe(gate)


def _count_single_rows(workload: Workload, counts: Counts) -> None:
    rows = np.array(
        [step.start for step in workload.steps if step.gives_tokens and step.rows == 1],
        np.int64,
    )
    forecast = workload.forecasts[0][rows, :-1, 0]  # made at site s for site s + 1
    actual = workload.experts_in_order[rows, 1:]
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
        if not step.gives_tokens or step.rows == 1:
            continue
        rows = workload.places(step)
        forecast, actual = (
            workload.choices.forecast_union(rows, 1).needs,
            workload.choices.union(rows).needs,
        )
        for site in step.sites[:-1]:
            if forecast[site]:
                counts.add(forecast[site], actual[site + 1])
