"""The steps of a live run as they come into being, and its gates, whose choices are told while the run goes on.

A sequence is a prompt in one step, then one token a step. Of encoder-decoder models the prompt visits the encoder's
sites, decoded tokens the decoder's. What has been seen becomes a trace in the end, so that the run is measured, and its
decisions are replayed, by the code for any other: there, gates must offer what these did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sim.choices import SiteChoice, choice_at_site
from sim.gate_inputs import GateInputs
from sim.policies.base import FloatArray, IntArray
from sim.trace import DECODE, PREFILL, Header, Trace, TraceSequence
from sim.types import Step
from sim.workload import Limits, Workload

Scores = Callable[[int, NDArray[np.float32]], NDArray[np.float32]]
"""``scores(site, inputs [R, H]) -> [R, E]``: what a site's router makes of inputs, its own or another site's."""


@dataclass(frozen=True)
class LivePrompt:
    """A sequence to come: how many tokens it is fed, and where its text is from."""

    domain: str
    split: str
    prompt_tokens: int
    new_tokens: int


@dataclass
class SeenStep:
    """What a step showed: ``ids`` and ``weights`` [R, S, K], gate inputs [R, S, H], scores [R, S, J, E], tokens [R]."""

    step: Step
    position: int
    ids: NDArray[np.int16]
    weights: NDArray[np.float32]
    inputs: NDArray[np.float32] | None
    lookahead: NDArray[np.float32] | None
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))


class LiveWorkload:
    """``header`` is of a trace of the same model: its sites and their rules. ``depth``: sites that forecasts reach.

    ``keeps_inputs``: gates offer the inputs of their routers, of ``hidden`` channels.
    """

    is_timed = False

    def __init__(
        self, header: Header, prompts: Sequence[LivePrompt], depth: int, *, keeps_inputs: bool = False
    ) -> None:
        self.header, self.prompts, self.depth, self.keeps_inputs = header, list(prompts), depth, keeps_inputs
        self.steps: list[Step] = []
        self.seen: list[SeenStep] = []
        self.scores: Scores | None = None
        model = header.model
        self.sites, self.experts, self.top_k, self.units = model.sites, model.experts, model.top_k, model.experts + 1
        encoder = header.encoder_sites
        everywhere = tuple(range(self.sites))
        self._sites_by_decode = everywhere[:encoder] or everywhere, everywhere[encoder:]
        self.reach = [min(depth, (encoder if s < encoder else self.sites) - 1 - s) for s in everywhere]
        self._at = 0, -1  # the sequence, and which of its steps comes next (-1: the prompt)
        longest = max(p.prompt_tokens + p.new_tokens for p in prompts)
        self.limits = Limits(longest, max(p.prompt_tokens for p in prompts))

    # ---- as the driver walks

    def start(self) -> LiveWorkload:
        return self

    def next(self, now_ns: int) -> Step | None:
        """The next step; None when all sequences are through."""
        number, place = self._at
        if number == len(self.prompts):
            return None
        prompt, is_prompt = self.prompts[number], place < 0
        rows = prompt.prompt_tokens if is_prompt else 1
        position = 0 if is_prompt else prompt.prompt_tokens + place
        is_last = place + 1 == prompt.new_tokens
        start = self.steps[-1].stop if self.steps else 0
        step = Step(
            len(self.steps), start, start + rows, (number,), position + rows, not is_prompt,
            (number,) if is_prompt else (), (number,) if is_last else (), self._sites_by_decode[not is_prompt],
        )  # fmt: skip
        self._at = (number + 1, -1) if is_last else (number, place + 1)
        self.steps.append(step)
        self._open(step, position)
        return step

    def _open(self, step: Step, position: int) -> None:
        shape, model = (step.rows, self.sites), self.header.model
        self.seen.append(SeenStep(
            step, position, np.full((*shape, self.top_k), -1, np.int16), np.zeros((*shape, self.top_k), np.float32),
            np.full((*shape, model.hidden), np.nan, np.float32) if self.keeps_inputs else None,
            np.full((*shape, self.depth, self.experts), np.nan, np.float32) if self.depth else None,
        ))  # fmt: skip

    def gate(self) -> LiveGate:
        return LiveGate(self)

    def see(self, site: int, ids: NDArray[np.int16], weights: NDArray[np.float32],
            inputs: NDArray[np.float32] | None) -> None:  # fmt: skip
        """What the routers of the open step's next site chose: ids [R, K] (-1: nothing), and what they were fed."""
        seen = self.seen[-1]
        seen.ids[:, site], seen.weights[:, site] = ids, weights
        if seen.inputs is not None and inputs is not None:
            seen.inputs[:, site] = inputs
        if seen.lookahead is not None and self.scores is not None and inputs is not None:
            for j in range(1, self.reach[site] + 1):
                seen.lookahead[:, site, j - 1] = self.scores(site + j, inputs)

    # ---- afterwards

    def trace(self) -> Trace:
        """All that was seen, as a trace of its own."""
        rows = [seen.step.rows for seen in self.seen]
        sequences = []
        for number, prompt in enumerate(self.prompts):
            sequences.append(
                TraceSequence(number, prompt.split, prompt.domain, prompt.prompt_tokens, prompt.new_tokens)
            )
        lookahead = self.header.lookahead
        header = replace(
            self.header, name=f"{self.header.model.name} live", source="captured", sequences=tuple(sequences), steps={},
            sparsities=(), provenance={"format": "live run"}, files={}, findings=None,
            lookahead=None if lookahead is None or not self.depth else replace(lookahead, norms=("raw",),
                                                                                depth=self.depth, step=None),
        )  # fmt: skip

        def by_step(values: Sequence[int], dtype: type) -> NDArray[np.generic]:
            return np.repeat(np.array(values), rows).astype(dtype)

        ahead = [seen.lookahead for seen in self.seen if seen.lookahead is not None]
        return Trace(
            header, by_step([seen.step.index for seen in self.seen], np.int32),  # type: ignore[arg-type]
            by_step([DECODE if seen.step.decode else PREFILL for seen in self.seen], np.uint8),  # type: ignore[arg-type]
            by_step([seen.step.sequences[0] for seen in self.seen], np.int32),  # type: ignore[arg-type]
            np.concatenate([seen.position + np.arange(seen.step.rows) for seen in self.seen]).astype(np.int32),
            np.concatenate([seen.tokens for seen in self.seen]).astype(np.int32), np.ones(sum(rows), np.bool_),
            np.concatenate([seen.ids for seen in self.seen]), np.concatenate([seen.weights for seen in self.seen]),
            lookahead={"raw": np.concatenate(ahead)} if ahead else {},
        )  # fmt: skip

    def as_it_was(self) -> Workload:
        """The same steps and gates as a workload over ``trace()``."""
        workload = Workload(self.trace(), split="all", batching="sequential", lookahead=self.depth)
        if self.keeps_inputs:
            values = np.concatenate([seen.inputs for seen in self.seen if seen.inputs is not None])
            workload.gate_inputs = GateInputs(values, np.arange(len(values)))
        return workload


class LiveChoice:
    """A forecast for a site, made at an earlier one. Implements ``Choice``."""

    def __init__(self, site: int, choice: SiteChoice, units: int) -> None:
        self.site, self.experts, self.weights = site, choice.experts, choice.weights
        self.needs: list[int] = choice.needs.expert.tolist()
        self.keys = [need + site * units for need in self.needs]
        self.tokens: list[int] = choice.needs.tokens.tolist()
        self.scores: list[float] = choice.needs.score.tolist()


class LiveGate:
    """The gate object of a live run: ``open`` a step, then ``visit`` its sites when they have been seen."""

    share = preferences = None

    def __init__(self, workload: LiveWorkload) -> None:
        self._workload, self.tick, self.site = workload, -1, 0

    def open(self, step: Step) -> None:
        self._step, self.step, self.token = step, step.index, step.token

    def visit(self, site: int) -> None:
        self.tick += 1
        self.site = site
        seen = self._workload.seen[-1]
        self._choice = LiveChoice(
            site, choice_at_site(seen.ids[:, site], seen.weights[:, site], self._workload.experts), self._workload.units
        )
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
        return np.full(self._step.rows, self._step.sequences[0], np.int32)

    @property
    def row_phase(self) -> IntArray:
        return np.full(self._step.rows, DECODE if self._step.decode else PREFILL, np.uint8)

    @property
    def row_position(self) -> IntArray:
        return (self._workload.seen[-1].position + np.arange(self._step.rows)).astype(np.int32)

    @property
    def row_token(self) -> IntArray:
        return self._workload.seen[-1].tokens

    @property
    def gate_input(self) -> FloatArray | None:
        inputs = self._workload.seen[-1].inputs
        return None if inputs is None else inputs[:, self.site]

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
        seen = self._workload.seen[-1].lookahead
        if seen is None or j > self._workload.reach[self.site]:
            return None
        scores = seen[:, self.site, j - 1]
        return scores if bool(np.isfinite(scores).all()) else None

    def _forecast(self, j: int) -> LiveChoice | None:
        if j not in self._forecasts:
            self._forecasts[j] = self._make_forecast(j)
        return self._forecasts[j]

    def _make_forecast(self, j: int) -> LiveChoice | None:
        workload, scores = self._workload, self.lookahead(j)
        if scores is None:
            return None
        rule = workload.header.sites[self.site + j].rule
        if rule is None:
            raise ValueError(f"no routing rule is known of site {self.site + j}; choose predictor=none")
        choice = LiveChoice(
            self.site + j, choice_at_site(*rule.route(scores, workload.top_k), workload.experts), workload.units
        )
        return choice if choice.keys else None
