"""The simulator's gates, shown by a model that runs: what is served low, skipped or exchanged changes what comes next.

Theory of operation. A driver (the simulator's engine) walks the steps of a workload and visits its gates. Here a visit
lets the model run on to that gate: it is told how the controller served the gate before, computes that, and stops at
the next router, whose choice, and what later routers would choose, then stand in the gate. So the controller decides
on what the lossy model shows, and the model computes with what the controller decided. After the run the workload holds
the live gates in place of the recorded ones: metrics read them, and replaying them gives the run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from capture.discover import MoELayer
from capture.lookahead import router_linear
from real.lossy.mixture import Served
from real.lossy.paused import Asked, PausedModel, served_by
from real.lossy.sparse import activations
from real.lossy.texts import Reading
from real.lossy.variants import Variants
from sim.choices import Choices, need_order, shares_above
from sim.controller import Controller
from sim.gates import StepGate
from sim.policies.base import FloatArray, IntArray
from sim.trace import Trace
from sim.types import Outcome, Step
from sim.workload import Schedule, Workload

OnStep = Callable[[Step, torch.Tensor], None]


class _NeverWhole:
    """For `Choices`: whether a row has all its choices and forecasts is not known beforehand."""

    def __getitem__(self, row: int) -> bool:
        return False


class LiveChoices(Choices):
    """Choices that are put in while the run goes on; until then those of the trace stand there."""

    def __init__(self, recorded: Choices) -> None:
        super().__init__(recorded.trace, recorded.row, recorded.depth, recorded.norm)
        self.is_whole_forecast = _NeverWhole()  # type: ignore[assignment]
        self._is_whole = _NeverWhole()  # type: ignore[assignment]
        # Only rows that the trace has lookahead for are asked for it live.
        self.looks_ahead: NDArray[np.bool_] = np.zeros(len(self.row), np.bool_)
        if self.depth:
            known = np.isfinite(self.trace.lookahead[self.norm][self.row, :, 0]).all(-1)
            self.looks_ahead = np.asarray(known.any(-1))
            self.shown_scores = self.trace.lookahead[self.norm][self.row, :, : self.depth].copy()
            """What `recorded_live` gives back: lookahead scores [N, S, J, E]."""

    def put(self, rows: slice, site: int, ids: IntArray, weights: FloatArray, ahead: Sequence[FloatArray]) -> None:
        """What ``rows`` chose at a site [R, K], and the scores of the routers 1, 2, .. sites on [R, E]."""
        weights = np.where(ids < 0, np.float32(0), weights)
        order = need_order(ids, weights)
        self.chosen[0][rows, site] = np.take_along_axis(ids, order, -1)
        self.chosen[1][rows, site] = weights = np.take_along_axis(weights, order, -1)
        self.scores[rows, site] = shares_above(weights)
        for j, scores in enumerate(ahead, start=1):
            self.shown_scores[rows, site, j - 1] = scores
            rule = self.trace.header.sites[site + j].rule
            assert rule is not None  # the trace's own forecasts needed it
            experts, shares = rule.route(scores, self.top_k)
            self.forecasts[0][rows, site, j - 1], self.forecasts[1][rows, site, j - 1] = experts, shares
            self.forecast_scores[rows, site, j - 1] = shares_above(shares)

    def keys_at(self, row: int, site: int) -> list[int]:
        """The needs of one row at a site, as keys of precision 0."""
        first = site * self.units
        return [first + expert for expert in self.chosen[0][row, site].tolist() if expert >= 0]

    def forecast_keys(self, row: int) -> list[list[list[int]]]:
        targets = (np.arange(self.sites)[:, None] + np.arange(1, self.depth + 1)) * self.units
        experts = self.forecasts[0][row].astype(np.int64)
        keys = np.where(experts < 0, -1, experts + targets[..., None]).swapaxes(0, 1).tolist()
        return [[[key for key in keys_of if key >= 0] for keys_of in by_site] for by_site in keys]


@dataclass(frozen=True)
class Eyes:
    """What a live gate offers beside the choice itself.

    ``depth`` sites of lookahead from the ``layers``' routers, whose inputs are renormed by ``scales`` (of the norm
    before each router) if given. Active shares of channels by ``thresholds`` [S, E, P] of |x W_up|, with the up
    projections of ``variants`` at code 0, where a payload needs them.
    """

    layers: Sequence[MoELayer]
    depth: int = 0
    scales: Sequence[torch.Tensor] | None = None
    thresholds: torch.Tensor | None = None
    variants: Variants | None = None

    @cached_property
    def routers(self) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        return [router_linear(layer) for layer in self.layers]

    def scores(self, site: int, hidden: torch.Tensor) -> FloatArray:
        """What a site's own router says of its inputs, [R, E]."""
        weight, bias = self.routers[site]
        return np.asarray(functional.linear(hidden.float().cpu(), weight, bias).numpy())

    def ahead(self, site: int, hidden: torch.Tensor, reach: int) -> list[FloatArray]:
        """Lookahead scores [R, E] of the next ``reach`` sites, as far as they are offered and there."""
        found = []
        fed = hidden.float().cpu()
        for target in range(site + 1, min(site + 1 + min(reach, self.depth), len(self.layers))):
            weight, bias = self.routers[target]
            seen = fed if self.scales is None else fed / self.scales[site] * self.scales[target]
            found.append(functional.linear(seen, weight, bias).numpy())
        return found

    def shares(self, site: int, hidden: torch.Tensor, ids: IntArray) -> FloatArray | None:
        """Share of active channels of each choice, [R, K, P], 0 where it was dropped; None where nobody asks."""
        if self.thresholds is None or self.variants is None:
            return None
        shares = np.zeros((*ids.shape, self.thresholds.shape[-1]), np.float32)
        for row, rank in zip(*np.nonzero(ids >= 0), strict=True):
            expert = int(ids[row, rank])
            form = self.variants.forms[site]
            up = activations(form, self.variants.tensors(0, site, expert), hidden[row : row + 1])["up"]
            active = up.abs().float().cpu()[0, :, None] >= self.thresholds[site, expert]
            shares[row, rank] = active.float().mean(0).numpy()
        return shares


class LiveGate(StepGate):
    """A gate that the running model shows."""

    __slots__ = ("_live", "_shown_input", "_shown_share")

    def __init__(self, live: LiveRun) -> None:
        super().__init__(live.workload)
        self._live = live

    def open(self, step: Step) -> None:
        self._live.end_step()
        super().open(step)
        self._live.begin_step(step)

    def visit(self, site: int) -> None:
        asked = self._live.reach(site)
        choices = self._live.choices
        place = slice(self._step.start, self._step.stop)
        ids = torch.where(asked.ids < choices.experts, asked.ids, -1).cpu().numpy().astype(np.int16)
        weights = asked.weights.float().cpu().numpy()
        ahead: list[FloatArray] = []
        if choices.looks_ahead[place].all():
            ahead = self._live.eyes.ahead(site, asked.hidden, choices.reach[site])
        choices.put(place, site, ids, weights, ahead)
        self._union = self._ahead = None
        self._forecast_unions = {}
        if self._is_single:
            self._keys[site] = choices.keys_at(self._step.start, site)
        else:
            union = self._full_union()
            assert self._tokens is not None
            self._keys[site], self._tokens[site] = union.keys[site], union.tokens[site]
        self._shown_input, self._shown_share = asked.hidden, None
        if self._is_single:
            self._shown_share = self._live.eyes.shares(site, asked.hidden, choices.chosen[0][place, site])
        super().visit(site)
        self._live.shown(list(self.needs))

    @property
    def gate_input(self) -> FloatArray | None:
        return np.asarray(self._shown_input.float().cpu().numpy())

    @property
    def logits(self) -> FloatArray | None:
        return self._live.eyes.scores(self.site, self._shown_input)

    @property
    def share(self) -> FloatArray | None:
        return self._shown_share

    def lookahead(self, j: int) -> FloatArray | None:
        found = self._live.eyes.ahead(self.site, self._shown_input, j)
        is_there = len(found) == j and j <= self._choices.reach[self.site]
        return found[j - 1] if is_there and self._live.choices.looks_ahead[self._step.start] else None


class LiveRun:
    """One walk of a driver through ``workload``, whose gates a model shows.

    ``token_of(step)`` are the tokens fed in a step, asked for when it begins; ``on_step`` hears the logits [R, V] of
    each. Pass it as the driver's workload and ``close`` it when the driver has ended.

    ``workload`` must compose steps of one sequence at a time, prompts whole.
    """

    def __init__(self, workload: Workload, controller: Controller, paused: PausedModel, model: Any, eyes: Eyes,
                 tokens_of: Callable[[Step], Sequence[int]], on_step: OnStep) -> None:  # fmt: skip
        self.workload, self.eyes = workload, eyes
        # A text that the model writes itself puts its tokens in.
        workload.trace = replace(workload.trace, token=workload.trace.token.copy())
        self.choices = LiveChoices(workload.choices)
        workload.choices = self.choices
        self._controller, self._paused, self._model = controller, paused, model
        self._tokens_of, self._on_step = tokens_of, on_step
        self._reading: Reading | None = None
        self._step: Step | None = None
        self._asked: Asked | None = None
        self._needs: list[int] = []
        self._is_shown = False
        """The gate at which the model stands has been shown to the controller."""
        self._first = 0
        """The lookup with which the gate that is open began."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.workload, name)

    def gate(self) -> LiveGate:
        return LiveGate(self)

    def start(self) -> Schedule:
        return self.workload.start()

    def close(self) -> Workload:
        """The driver has ended: compute the last site. The workload, with the gates as they were shown."""
        self.end_step()
        return self.workload

    # ---- called by the gate

    def begin_step(self, step: Step) -> None:
        self._step = step
        tokens = list(self._tokens_of(step))
        self.workload.trace.token[self.choices.row[step.start : step.stop]] = tokens
        if step.begins:
            self._reading = Reading(self._model)
        reading = self._reading
        assert reading is not None
        if step.decode:
            self._take(self._paused.begin(lambda: reading.step(tokens[0])))
        else:
            self._take(self._paused.begin(lambda: reading.prompt(tokens)))

    def reach(self, site: int) -> Asked:
        """Let the model run on to a site."""
        if self._is_shown:
            self._serve()
        if self._asked is None or self._asked.site != site:
            found = "the pass has ended" if self._asked is None else f"the model is at site {self._asked.site}"
            raise RuntimeError(f"the driver visits site {site}, but {found}")
        return self._asked

    def shown(self, needs: list[int]) -> None:
        """The gate stands; the controller's lookups that follow are those of ``needs``, in their order."""
        self._needs, self._first, self._is_shown = needs, len(self._controller.lookup_keys), True

    def end_step(self) -> None:
        if self._is_shown:
            self._serve()

    # ---- what the controller decided

    def _serve(self) -> None:
        assert self._asked is not None
        served = self._decided(self._asked)
        self._is_shown = False
        self._take(self._paused.go_on(served))

    def _decided(self, asked: Asked) -> Served:
        keys = self._controller.lookup_keys[self._first :]
        outcomes = self._controller.lookup_outcomes[self._first :]
        if len(keys) != len(self._needs):
            raise RuntimeError(f"site {asked.site}: {len(self._needs)} needs, but {len(keys)} lookups since its gate")
        geometry = self._controller.geometry
        codes, serving = [], []
        for need, key, outcome in zip(self._needs, keys, outcomes, strict=True):
            is_left_out = outcome == Outcome.SKIP
            codes.append(-1 if is_left_out else geometry.precision_of(key))
            serving.append(need if is_left_out else geometry.expert_of(key))
        return served_by(asked, self._needs, serving, codes, geometry.experts)

    def _take(self, answer: Asked | torch.Tensor) -> None:
        if isinstance(answer, Asked):
            self._asked = answer
            return
        assert self._step is not None
        self._asked = None
        self._on_step(self._step, answer)


def recorded_live(workload: Workload) -> Trace:
    """The trace of a run that has ended, with the choices and tokens as the model showed them."""
    trace, rows = workload.trace, workload.choices.row
    ids, weights = trace.ids.copy(), trace.weights.copy()
    ids[rows], weights[rows] = workload.choices.chosen
    lookahead = {name: table.copy() for name, table in trace.lookahead.items()}
    if workload.depth:
        assert isinstance(workload.choices, LiveChoices)  # a live run's are
        lookahead[workload.norm][rows, :, : workload.depth] = workload.choices.shown_scores
    return replace(trace, ids=ids, weights=weights, lookahead=lookahead)
