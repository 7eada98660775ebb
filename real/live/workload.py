"""A workload whose gates come from a running model: what it chooses is written into a trace.

The simulator's own `Workload` composes the steps. It does so over a trace of which only the shape
is known (`blank_trace`), or over a recorded trace whose choices a model is to make anew. While the
run goes on, `LiveWorkload.see` notes what each site chose, and a `LiveGate` offers that to the
controller. In the end the workload holds these gates. So a live run is measured, and its decisions
are replayed, by the same code as any other run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from real.live.asked import Asked
from real.live.foresight import Eyes
from real.store.experts import SwapError
from sim.policies.base import FloatArray, IntArray, RowRule
from sim.policies.row_forecast import RowForecast
from sim.traces.forecasts import forecast_cells
from sim.traces.gate_inputs import GateInputs
from sim.traces.routing import need_order
from sim.traces.trace import DECODE, PREFILL, Header, Trace, TraceSequence
from sim.values.types import Step
from sim.workload.choices import SiteChoice, choice_at_site
from sim.workload.steps import Schedule, Workload

LEAST_AGREEMENT = 0.9
"""How much a router and its rule must agree with the model: a share of a prompt's rows.

Asked again from its input, the router must choose alike for these rows, or lookahead means nothing.
It is less than all of them because scores nearly tie.
"""


@dataclass(frozen=True)
class LivePrompt:
    """A sequence to come: how many tokens it has, and where its text is from."""

    domain: str
    split: str
    prompt_tokens: int
    new_tokens: int


def blank_trace(
    header: Header,
    prompts: Sequence[LivePrompt],
    depth: int = 0,
    norm: str = "raw",
    *,
    active_shares: bool = False,
) -> Trace:
    """A trace of sequences that a model is to run; nothing is chosen in it yet.

    Each prompt is one step, and each token after it one more. ``header`` is that of a trace of the
    same model: its sites and their rules. At sites that a row will visit the trace has room for
    lookahead of ``depth`` sites.
    """
    model, encoder = header.model, header.encoder_sites
    counts = [(prompt.prompt_tokens, prompt.new_tokens) for prompt in prompts]
    each = [before + after for before, after in counts]
    sequences = tuple(
        TraceSequence(number, p.split, p.domain, p.prompt_tokens, p.new_tokens)
        for number, p in enumerate(prompts)
    )
    lookahead = header.lookahead
    header = replace(
        header,
        name=f"{model.name} live",
        source="captured",
        sequences=sequences,
        steps={},
        sparsities=header.sparsities if active_shares else (),
        provenance={"format": "live run"},
        files={},
        findings=None,
        lookahead=(
            None
            if lookahead is None or not depth
            else replace(lookahead, norms=(norm,), depth=depth, step=None)
        ),
    )
    position = np.concatenate([np.arange(rows) for rows in each]).astype(np.int32)
    phase = np.concatenate([np.repeat([PREFILL, DECODE], pair) for pair in counts]).astype(np.uint8)
    rows, first = len(position), np.cumsum([0, *(after + 1 for _, after in counts)])
    step = [
        start + np.maximum(np.arange(-before, after), -1) + 1
        for start, (before, after) in zip(first[:-1], counts, strict=True)
    ]
    shape = (rows, model.sites, model.top_k)
    ahead = np.full((rows, model.sites, depth, model.experts), np.nan, np.float32)
    if encoder:
        ahead[phase == PREFILL, :encoder] = 0
        ahead[phase == DECODE, encoder:] = 0
    else:
        ahead[:] = 0
    return Trace(
        header,
        np.concatenate(step).astype(np.int32),
        phase,
        np.repeat(np.arange(len(prompts)), each).astype(np.int32),
        position,
        np.full(rows, -1, np.int32),
        np.ones(rows, np.bool_),
        np.full(shape, -1, np.int16),
        np.zeros(shape, np.float32),
        lookahead={norm: ahead} if depth else {},
        active_shares=(
            np.full((*shape, len(header.sparsities)), np.nan, np.float32) if active_shares else None
        ),
    )


class LiveWorkload:
    """A workload whose gates a model shows, through ``eyes``; it changes ``workload``.

    - Rows for which the trace has lookahead get it from the running model.
    - Prompts of which the trace keeps only what their rows choose together get such forecasts.
    - Active shares stay the trace's where the eyes have no thresholds.
    - ``keeps_inputs``: keep what routers were fed, for predictors that read it.

    ``start``, ``steps`` and all else are the workload's.
    """

    def __init__(self, workload: Workload, eyes: Eyes, *, keeps_inputs: bool = False) -> None:
        trace, self.eyes, self.workload = workload.trace, eyes, workload
        self._looks_ahead: NDArray[np.bool_] = np.zeros(len(trace.step), np.bool_)
        self.together: NDArray[np.bool_] = self._looks_ahead
        """Rows of prompts whose forecasts are offered, and kept in the end, only together."""
        lookahead = dict(trace.lookahead)
        if workload.depth:
            kept = lookahead[workload.norm]
            self.together = _forecast_prompts(workload)
            self._looks_ahead = (
                np.asarray(np.isfinite(kept[:, :, 0]).all(-1).any(-1)) | self.together
            )
            lookahead[workload.norm] = kept.copy()
        logits, shares = trace.logits, trace.active_shares
        self.trace = replace(
            trace,
            token=trace.token.copy(),
            ids=trace.ids.copy(),
            weights=trace.weights.copy(),
            lookahead=lookahead,
            logits=None if logits is None else logits.astype(np.float32),
            active_shares=None if shares is None else shares.copy(),
        )
        workload.take(self.trace)
        self.inputs: NDArray[np.float32] | None = None
        if keeps_inputs:
            of_run = workload.choices.row
            self.inputs = np.full(
                (len(of_run), workload.sites, trace.header.model.hidden), np.nan, np.float32
            )
            self._place = np.full(len(trace.step), -1, np.int64)
            self._place[of_run] = np.arange(len(of_run))
            workload.gate_inputs = GateInputs(self.inputs, self._place)
        self.rows: IntArray = np.zeros(0, np.int64)
        """The rows of the open step, as indices into the trace."""
        self.asked: Asked | None = None
        """What the site that was seen last asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.workload, name)

    def start(self) -> Schedule:
        return self.workload.start()

    def gate(self) -> LiveGate:
        return LiveGate(self)

    def as_it_was(self) -> Workload:
        """The workload with the gates that the model has shown."""
        self.workload.take(self.trace_shown())
        return self.workload

    def trace_shown(self) -> Trace:
        """The trace with what the model has shown so far.

        Prompts have forecasts of their rows together where the trace had them so.
        """
        trace, norm = self.trace, self.workload.norm
        if not self.together.any():
            return trace
        scores, rows = trace.lookahead[norm].copy(), np.flatnonzero(self.together)
        rules = [site.rule for site in trace.header.sites]
        mine = forecast_cells(
            rules, self.workload.top_k, trace.step[rows], trace.sequence[rows], scores[rows]
        )
        scores[rows] = np.nan
        others = trace.prompt_forecasts[norm].filter(
            ~pl.col("sequence").is_in(mine["sequence"].unique().to_list())
        )
        cells = pl.concat([others, mine]).sort("step", "sequence", maintain_order=True)
        return replace(
            trace,
            lookahead={**trace.lookahead, norm: scores},
            prompt_forecasts={**trace.prompt_forecasts, norm: cells},
        )

    # ---- while the model runs

    def open(self, step: Step) -> None:
        """Begin a step; what is seen and told from now on is of its rows."""
        self.rows = self.workload.choices.row[self.workload.places(step)]

    def tell_tokens(self, tokens: Sequence[int]) -> None:
        """Note the tokens that the open step is fed, row by row."""
        self.trace.token[self.rows] = list(tokens)

    def see(self, asked: Asked) -> None:
        """Note what a site of the open step asks for.

        Raise SwapError where the site's forecasts would mean nothing.
        """
        trace, rows, site, workload = self.trace, self.rows, asked.site, self.workload
        self.asked = asked
        ids = asked.ids.cpu().numpy().astype(np.int16)
        trace.ids[rows, site] = ids
        trace.weights[rows, site] = np.where(
            ids < 0, np.float32(0), asked.weights.float().cpu().numpy()
        )
        if trace.logits is not None:
            trace.logits[rows, site] = self.eyes.scores(site, asked.gate_input)
        if trace.active_shares is not None and self.eyes.thresholds is not None:
            found = self.eyes.shares(site, asked.hidden, ids) if len(rows) == 1 else None
            trace.active_shares[rows, site] = np.nan if found is None else found
        if self.inputs is not None:
            self.inputs[self._place[rows], site] = asked.gate_input.float().cpu().numpy()
        looks = self._looks_ahead[rows]
        if workload.depth and looks.any():
            ahead = trace.lookahead[workload.norm]
            scores = self.eyes.ahead(site, asked.gate_input, workload.choices.reach[site])
            for j, found in enumerate(scores):
                ahead[rows, site, j] = np.where(looks[:, None], found, np.nan)
            self._check_rule(site, ids, asked)

    def _check_rule(self, site: int, ids: IntArray, asked: Asked) -> None:
        """Raise SwapError unless rule and router weights give a prompt's own choices again.

        If they do not, they cannot tell what another site would choose.
        """
        header = self.trace.header
        rule = header.sites[site].rule
        if rule is None or (self.workload.phase[self.rows] == DECODE).any():
            return
        again = rule.route(self.eyes.scores(site, asked.gate_input), self.workload.top_k)[0]
        alike = float((np.sort(again, -1) == np.sort(ids, -1)).all(-1).mean())
        if alike < LEAST_AGREEMENT:
            raise SwapError(
                f"site {site}: the rule of trace {header.name} gives only {alike:.0%} of this"
                " model's own choices, so lookahead has no meaning; capture a trace of this model,"
                " or choose predictor=none"
            )


def _forecast_prompts(workload: Workload) -> NDArray[np.bool_]:
    """Which rows [N] belong to prompts whose forecasts are kept together.

    These are prompts that the run reads whole, and for which the trace has such forecasts.
    """
    trace, cells = workload.trace, workload.trace.prompt_forecasts.get(workload.norm)
    if cells is None:
        return np.zeros(len(trace.step), np.bool_)
    told = [
        number
        for number in cells["sequence"].unique().to_list()
        if number in workload.whole_prompts
    ]
    return np.asarray(np.isin(trace.sequence, told) & trace.valid & (trace.phase != DECODE))


class LiveChoice:
    """A forecast for a site, made at an earlier one. Implements ``Choice``."""

    def __init__(self, site: int, choice: SiteChoice, units: int) -> None:
        self.site, self.experts, self.weights = site, choice.experts, choice.weights
        self.needs: list[int] = choice.needs.expert.tolist()
        self.keys = [need + site * units for need in self.needs]
        self.tokens: list[int] = choice.needs.tokens.tolist()
        self.scores: list[float] = choice.needs.score.tolist()


class LiveGate:
    """The gate object of a live run: ``open`` a step, then ``visit`` each site once it is seen."""

    def __init__(self, live: LiveWorkload) -> None:
        self._live, self.tick, self.site = live, -1, 0
        self._units = live.workload.choices.units

    def open(self, step: Step) -> None:
        self._live.open(step)
        self.step, self.token = step.index, step.token

    def visit(self, site: int) -> None:
        self.tick += 1
        self.site = site
        trace, rows = self._live.trace, self._live.rows
        choice = choice_at_site(
            trace.ids[rows, site], trace.weights[rows, site], self._live.workload.experts
        )
        self._choice = LiveChoice(site, choice, self._units)
        self._forecasts: dict[int, LiveChoice | None] = {}

    @property
    def needs(self) -> Sequence[int]:
        return self._choice.needs

    @property
    def keys(self) -> list[int]:
        return self._choice.keys

    @property
    def tokens(self) -> Sequence[int]:
        return self._choice.tokens

    @property
    def scores(self) -> Sequence[float]:
        return self._choice.scores

    @property
    def experts(self) -> IntArray:
        return self._choice.experts

    @property
    def weights(self) -> FloatArray:
        return self._choice.weights

    @property
    def row_sequence(self) -> IntArray:
        return self._live.trace.sequence[self._live.rows]

    @property
    def row_phase(self) -> IntArray:
        return self._live.workload.phase[self._live.rows]

    @property
    def row_position(self) -> IntArray:
        return self._live.trace.position[self._live.rows]

    @property
    def row_token(self) -> IntArray:
        return self._live.trace.token[self._live.rows]

    @property
    def gate_input(self) -> FloatArray | None:
        assert self._live.asked is not None
        return np.asarray(self._live.asked.gate_input.float().cpu().numpy())

    @property
    def logits(self) -> FloatArray | None:
        """The scores [R, E] of the site's router."""
        assert self._live.asked is not None
        return self._live.eyes.scores(self.site, self._live.asked.gate_input)

    @property
    def preferences(self) -> FloatArray | None:
        rule, logits = self._live.trace.header.sites[self.site].rule, self.logits
        return None if rule is None or logits is None else rule.preferences(logits)

    @property
    def share(self) -> FloatArray | None:
        """The active shares of channels [R, K, P], in the order of ``experts``."""
        trace, rows = self._live.trace, self._live.rows
        if trace.active_shares is None:
            return None
        order = need_order(trace.ids[rows, self.site], trace.weights[rows, self.site])
        return np.take_along_axis(trace.active_shares[rows, self.site], order[..., None], 1)

    def forecasts(self, sites: int) -> Sequence[LiveChoice]:
        found = []
        for j in range(1, sites + 1):
            choice = self._forecast(j)
            if choice is None:
                break
            found.append(choice)
        return found

    def routed(self, j: int) -> LiveChoice | None:
        found = self.forecasts(j)
        return found[j - 1] if len(found) == j else None

    def lookahead(self, j: int) -> FloatArray | None:
        if self._live.together[self._live.rows].any():
            return None
        scores = self._ahead(j)
        return scores if scores is not None and bool(np.isfinite(scores).all()) else None

    def ranked(self, rule: RowRule, j: int) -> RowForecast | None:
        scores = self.lookahead(j)
        if scores is None:
            return None
        named = rule(scores, self._live.workload.top_k)
        return RowForecast(self.site + j, self._units, *named)

    def _ahead(self, j: int) -> FloatArray | None:
        """Lookahead scores [R, E], NaN for rows that have none; None beyond their reach."""
        workload = self._live.workload
        if j > workload.choices.reach[self.site]:
            return None
        return np.asarray(
            self._live.trace.lookahead[workload.norm][self._live.rows, self.site, j - 1]
        )

    def _forecast(self, j: int) -> LiveChoice | None:
        if j not in self._forecasts:
            self._forecasts[j] = self._make_forecast(j)
        return self._forecasts[j]

    def _make_forecast(self, j: int) -> LiveChoice | None:
        workload, scores = self._live.workload, self._ahead(j)
        if scores is None or not (known := np.isfinite(scores).all(-1)).any():
            return None
        rule = self._live.trace.header.sites[self.site + j].rule
        if rule is None:
            raise ValueError(
                f"no routing rule is known of site {self.site + j}; choose predictor=none"
            )
        experts = np.full((len(scores), workload.top_k), -1, np.int16)
        weights = np.zeros(experts.shape, np.float32)
        experts[known], weights[known] = rule.route(scores[known], workload.top_k)
        choice = LiveChoice(
            self.site + j, choice_at_site(experts, weights, workload.experts), self._units
        )
        return choice if choice.keys else None
