"""A system's decisions in a real forward pass, in an open and in a closed loop.

Open: as the simulation on recorded gates takes them. Closed: with the model in the loop.

`Subject` is a model with the texts of a trace. Its full-precision pass (`Reference`) feeds each
text as it is served: the prompt in one step, then a token a step. It records unrounded gates, and
both loops start from the trace of these. So a system that loses nothing repeats the very operations
of the reference, and differs by exactly nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capture.models.discover import MoELayer
from capture.models.norms import gate_norms
from real.live.asked import Asked, asking
from real.live.foresight import Eyes
from real.live.workload import LiveWorkload
from real.lossy.live import LiveRun
from real.lossy.loss import TokenLoss, token_losses
from real.lossy.mixture import LEFT_OUT, Forward, Served, mix, mixing, plain_forward
from real.lossy.paused import PausedModel
from real.lossy.texts import Reading, Text, following, texts_of_trace
from real.lossy.variants import Variants
from real.store.experts import ModelForm
from real.store.swapping import expert_forms, swapped_experts
from sim.engine.simulate import simulate
from sim.policies.base import FloatArray, IntArray
from sim.results.frames import Frames
from sim.results.metrics import summarise
from sim.results.run import Run
from sim.setup.execute import Result, bounds_asked
from sim.traces.trace import Trace
from sim.values.types import Outcome, Step
from sim.workload.steps import Workload

Track = Callable[[str, int], None]
"""``track(what, sequence)`` is called when a sequence of a pass has ended."""


def silent(what: str, sequence: int) -> None:
    """A `Track` that shows nothing."""


class Subject:
    """A model, the forms of its experts, and the texts of some sequences of its trace.

    Raise ValueError where trace and model have different shapes, or the trace lacks its tokens.
    """

    def __init__(self, model: Any, trace: Trace, sequences: Sequence[int]) -> None:
        self.model, self.trace = model, trace
        self.forms: list[ModelForm] = expert_forms(model)
        self.texts, self.rows = texts_of_trace(trace, sequences)
        self.behind_encoder = bool(model.config.is_encoder_decoder)
        ours, shape = self.layers[0], trace.header.model
        found = (len(self.layers), ours.num_experts, ours.top_k)
        if found != (shape.sites, shape.experts, shape.top_k):
            raise ValueError(
                f"the model has {found[0]} sites of {found[1]} experts, top-{found[2]}; trace"
                f" {trace.header.name} has {shape.sites} of {shape.experts}, top-{shape.top_k};"
                " name the weights it was captured from"
            )

    @property
    def layers(self) -> list[MoELayer]:
        return [form.layer for form in self.forms]

    def following(self, text: Text) -> tuple[int, ...]:
        """The token after each row of a text's logits."""
        return following(text, behind_encoder=self.behind_encoder)

    def is_decode(self, text: Text) -> NDArray[np.bool_]:
        """Which rows of a text's logits are of decoded tokens."""
        prompt = 0 if self.behind_encoder else len(text.prompt)
        return np.arange(prompt + len(text.fed)) >= prompt


@dataclass(frozen=True)
class Reference:
    """The full-precision model on the subject's texts.

    By text, it has the logits and the choices of its rows [T, S, K]; an id is -1 where a row does
    not visit a site. ``trace`` is the subject's with these gates.
    """

    logits: list[torch.Tensor]
    ids: list[NDArray[np.int16]]
    trace: Trace


def refer(subject: Subject, depth: int, norm: str, track: Track = silent) -> Reference:
    """Run the full-precision model; its trace gets lookahead of ``norm`` for ``depth`` sites."""
    variants = Variants(subject.forms, ("fp32",))
    workload = Workload(
        subject.trace, split="all", batching="sequential", lookahead=depth, norm=norm
    )
    live = LiveWorkload(workload, eyes_of(subject, depth, norm))

    def serve(asked: Asked) -> torch.Tensor:
        live.see(asked)
        return mix(
            variants,
            asked.site,
            asked.hidden,
            Served(asked.ids, asked.weights, torch.zeros_like(asked.ids)),
        )

    logits = []
    for text, rows in zip(subject.texts, subject.rows, strict=True):

        def begin(first: int, text: Text = text, rows: NDArray[np.int64] = rows) -> None:
            live.rows = rows[first : first + (1 if first else len(text.prompt))]

        with asking(subject.model, subject.forms, serve):
            logits.append(_read(subject, text, begin))
        track("full precision", text.sequence)
    return Reference(logits, [live.trace.ids[rows] for rows in subject.rows], live.trace_shown())


def _read(subject: Subject, text: Text, before_step: Callable[[int], object]) -> torch.Tensor:
    """The logits of a text as it is served; ``before_step`` gets the first row of each step."""
    reading = Reading(subject.model)
    before_step(0)
    found = [reading.prompt(text.prompt)]
    for index, token in enumerate(text.fed):
        before_step(len(text.prompt) + index)
        found.append(reading.step(token))
    return torch.cat([part for part in found if part.numel()])


def eyes_of(
    subject: Subject,
    depth: int,
    norm: str,
    thresholds: torch.Tensor | None = None,
    variants: Variants | None = None,
) -> Eyes:
    """What live gates can be told: lookahead of ``norm``, and active shares.

    Shares need ``thresholds`` of |x W_up| and the experts' ``variants``.
    """
    scales = None
    if depth and norm == "renormed":
        scales = [scale.float().cpu() for scale in gate_norms(subject.model, subject.layers)]
    if thresholds is None or variants is None:
        return Eyes(subject.layers, depth, scales)

    def up_of(site: int, expert: int) -> torch.Tensor:
        return subject.forms[site].matrices(variants.tensors(0, site, expert))["up"]

    return Eyes(subject.layers, depth, scales, thresholds, up_of)


# A run of the simulator, and the model that computes what it decided


@dataclass(frozen=True)
class Replayed:
    """A system's run in one loop.

    It has the simulator's result, the losses of each text against full precision, and the choices
    of each text's rows [T, S, K] in need order, as the controller saw them.
    """

    result: Result
    losses: list[TokenLoss]
    chosen: list[IntArray]


def measured(run: Run, record: Any) -> Result:
    """The result that ``sim.setup.execute`` would give of a run with this record."""
    names = run.hardware.link_names
    frames = Frames(run.controller, run.workload, run.durations, record, names, kv_room=run.kv_room)
    return Result(summarise(run, frames, bounds_asked(run)), frames, 0.0)


def check_steps(run: Run) -> None:
    """Raise ValueError unless steps are of one sequence, whole prompts, and recorded lengths."""
    workload = run.workload
    lengths = [
        name
        for name in ("prompt_tokens", "decode_tokens", "context_tokens")
        if run.config["workload"].get(name) is not None
    ]
    if lengths:
        raise ValueError(
            f"workload.{' and workload.'.join(lengths)}: a text is read as long as it was recorded;"
            " leave lengths out, and choose fewer texts with trace.max_sequences"
        )
    if workload.speculation.tokens:
        raise ValueError(
            f"workload.draft_tokens={workload.speculation.tokens}: a text is read token by token;"
            " set workload.draft_tokens=0"
        )
    if workload.batching != "sequential" or workload.prefill_chunk is not None or workload.is_timed:
        raise ValueError(
            f"workload.batching={workload.batching}: a text is read by itself, its prompt in one"
            " step; choose workload=sequential without chunks and arrivals"
        )


def open_loop(
    run: Run,
    subject: Subject,
    reference: Reference,
    variants: Variants,
    forward: Forward = plain_forward,
    track: Track = silent,
) -> Replayed:
    """Simulate on the full-precision gates; the model computes their choices as they were served.

    The choices keep their weights. So what was served is lossy but what was chosen is not, just as
    in the simulation.
    """
    check_steps(run)
    record = simulate(run.controller, run.workload, run.durations)
    ids, weights, serving, codes = _decided(run)
    losses, chosen = [], []
    for index, text in enumerate(subject.texts):
        rows = _rows_of(run.workload, text.sequence)
        forced = _Forced(serving[rows], weights[rows], codes[rows], subject.model)
        with swapped_experts(subject.model, mixing(variants, forced, forward), subject.forms):
            logits = _read(subject, text, partial(setattr, forced, "first"))
        losses.append(token_losses(reference.logits[index], logits, subject.following(text)))
        chosen.append(ids[rows])
        track("open loop", text.sequence)
    return Replayed(measured(run, record), losses, chosen)


class _Forced:
    """Serves rows as a table says, whatever the model's routers choose."""

    def __init__(
        self, serving: NDArray[Any], weights: NDArray[Any], codes: NDArray[Any], model: Any
    ) -> None:
        device = next(model.parameters()).device
        self._ids, self._weights, self._codes = (
            torch.from_numpy(t).to(device) for t in (serving, weights, codes)
        )
        self.first = 0

    def __call__(
        self, site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> Served:
        place = slice(self.first, self.first + len(ids))
        return Served(
            self._ids[place, site],
            self._weights[place, site].to(weights.dtype),
            self._codes[place, site],
        )


def _rows_of(workload: Workload, sequence: int) -> NDArray[np.int64]:
    """The rows of the run that are a sequence's, in the order in which they are fed."""
    return np.flatnonzero(workload.trace.sequence[workload.row] == sequence)


def _decided(run: Run) -> tuple[IntArray, FloatArray, IntArray, IntArray]:
    """What a finished run decided, by its rows [N, S, K].

    These are the experts in need order, their weights, which expert serves, and at which code.
    """
    workload, geometry = run.workload, run.controller.geometry
    key = np.array(run.controller.lookup_keys, np.int64)
    is_left_out = np.array(run.controller.lookup_outcomes) == Outcome.SKIP
    tick, expert = workload.needs.tick, workload.needs.expert
    codes = np.full((workload.num_gates, geometry.experts + 1), LEFT_OUT, np.int64)
    serving = np.broadcast_to(np.arange(geometry.experts + 1), codes.shape).copy()
    codes[tick, expert] = np.where(is_left_out, LEFT_OUT, key // geometry.plane)
    serving[tick, expert] = np.where(is_left_out, expert, key % geometry.units)
    # Which gate each row belongs to at each site; steps visit consecutive sites.
    gate = np.full((len(workload.row), geometry.sites), -1, np.int64)
    at = 0
    for step in workload.steps:
        gate[step.start : step.stop, list(step.sites)] = at + np.arange(len(step.sites))
        at += len(step.sites)
    ids, weights = workload.chosen
    place = np.where(ids < 0, geometry.experts, ids)
    codes_by_row = np.where(ids < 0, LEFT_OUT, codes[gate[..., None], place])
    return ids, weights, np.where(ids < 0, LEFT_OUT, serving[gate[..., None], place]), codes_by_row


def closed_loop(
    run: Run,
    subject: Subject,
    reference: Reference,
    variants: Variants,
    eyes: Eyes,
    forward: Forward = plain_forward,
    track: Track = silent,
) -> Replayed:
    """Simulate on the gates that the model shows while it computes what the simulation decided.

    Both read the text: the model is teacher-forced.
    """
    order = {text.sequence: index for index, text in enumerate(subject.texts)}
    logits: dict[int, list[torch.Tensor]] = {number: [] for number in order}

    def tokens_of(step: Step) -> Sequence[int]:
        rows = run.workload.choices.row[step.start : step.stop]
        return [int(token) for token in subject.trace.token[rows]]

    def on_step(step: Step, found: torch.Tensor) -> None:
        if found.numel():
            logits[step.sequences[0]].append(found)
        if step.ends:
            track("closed loop", step.sequences[0])

    result, chosen = live_run(run, subject, variants, eyes, tokens_of, on_step, forward)
    losses = [
        token_losses(
            reference.logits[index], torch.cat(logits[text.sequence]), subject.following(text)
        )
        for index, text in enumerate(subject.texts)
    ]
    return Replayed(
        result, losses, [chosen[_rows_of(run.workload, text.sequence)] for text in subject.texts]
    )


def live_run(
    run: Run,
    subject: Subject,
    variants: Variants,
    eyes: Eyes,
    tokens_of: Callable[[Step], Sequence[int]],
    on_step: Callable[[Step, torch.Tensor], None],
    forward: Forward = plain_forward,
) -> tuple[Result, IntArray]:
    """Simulate with the model in the loop.

    Return the result, and what each row of the run chose, [N, S, K].
    """
    check_steps(run)
    with PausedModel(subject.model, variants, forward) as paused:
        live = LiveRun(
            run.workload, run.controller, paused, subject.model, eyes, tokens_of, on_step
        )
        record = simulate(run.controller, live, run.durations)  # type: ignore[arg-type]
        live.close()
    return measured(run, record), run.workload.chosen[0]


def agreement(ours: NDArray[np.integer], theirs: NDArray[np.integer]) -> NDArray[np.float64]:
    """The share of a row's experts in ``theirs`` that ``ours`` has, too, [T, S].

    It is NaN where a row does not visit a site.
    """
    known = theirs >= 0
    both = ((theirs[..., :, None] == ours[..., None, :]) & known[..., None]).any(-1).sum(-1)
    count = known.sum(-1)
    return np.where(count > 0, both / np.maximum(count, 1), np.nan)
