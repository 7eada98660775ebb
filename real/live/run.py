"""A live run from its configuration: its prompts, what it refuses, and its workload afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from capture.models.discover import CaptureError
from capture.models.norms import gate_norms
from capture.recording.load import load_tokenizer
from capture.recording.prompts import Passage, Prompt, cut_passages, prompts_file, read_prompts
from real.driver.loop import Driver
from real.driver.settings import Live
from real.live.asked import asking
from real.live.batch import check_batches
from real.live.channels import LiveChannels
from real.live.foresight import Eyes, read_thresholds
from real.live.live import LiveDriver, LiveModel
from real.live.workload import LivePrompt, LiveWorkload, blank_trace
from real.setup.prepare import Prepared, Request, prepare_live, settings_of
from real.setup.stores import Advance, weights_folder
from real.store.weightless import Weightless
from sim.policies.payloads import ActiveShare
from sim.results.run import Run
from sim.setup.choices import WorkloadChoice
from sim.setup.run_memory import check_run_memory
from sim.setup.sections import make_object
from sim.setup.traces import trace_directory
from sim.traces.trace import Trace
from sim.workload.steps import Workload

GENERATED = "generated.jsonl"


def prepare(
    request: Request, trace: Trace | None = None, advance: Advance = lambda done, total: None
) -> Prepared:
    """Prepare a live run. Raise ValueError for what a live run cannot have, `CaptureError` for
    prompts that are too few or cannot be read.
    """
    _prompts_of(request.live)
    return prepare_live(request, _check, trace, advance)


def _check(request: Request, run: Run, weightless: Weightless, by_neuron: bool) -> None:
    """Raise ValueError for what a live run cannot have, also of its texts and batches."""
    controller, workload = run.controller, run.workload
    depth, lookahead = controller.predictor.requires.lookahead_sites, run.trace.header.lookahead
    payload, precisions = controller.payload, ", ".join(controller.geometry.precisions)
    parts = f"payload {type(payload).__name__} of {precisions}"
    refused = {
        "a cache that knows the future (belady)": controller.cache.requires.future,
        "a predictor that is told the run's needs": controller.predictor.requires.future,
        f"{parts} (parts of experts move with precision=floe)": (
            payload.active_share < 1 and not by_neuron
        ),
        f"loader.dense_slots={controller.loader.dense_slots} (the model's own dense blocks stay where they are)": (
            controller.loader.dense_slots > 0 and request.device != "null"
        ),
        "workload.batching=recorded (a live run has no trace's steps)": (
            workload.batching == "recorded"
        ),
        f"workload.prefill_chunk={workload.prefill_chunk} (prompts are read whole)": (
            workload.prefill_chunk is not None
        ),
        "workload.prompt_tokens or decode_tokens (its lengths are live.prompt_tokens and live.new_tokens)": bool(
            workload.lengths.asked
        ),
        f"workload.context_tokens={workload.lengths.context} (no tokens come before a prompt)": (
            workload.lengths.context is not None
        ),
        f"workload.draft_tokens={workload.speculation.tokens} (no token is drafted)": (
            workload.speculation.tokens > 0
        ),
        "a selector that lets other experts serve": controller.selector.reroutes,
        "lookahead from another place than the gate's input": (
            depth > 0 and lookahead is not None and lookahead.position != "gate_in"
        ),
    }
    if wrong := [what for what, is_asked in refused.items() if is_asked]:
        raise ValueError(
            f"input=live does not go with {' nor '.join(wrong)}; choose input=replay, or another"
            " system"
        )
    passages, _ = read_passages(request, run)
    _steps_of(request, run, weightless, passages)
    _thresholds_of(run)


def _prompts_of(live: Live) -> list[Prompt]:
    """As many prompts as the run has sequences, in the order of their file."""
    found = [
        prompt
        for prompt in read_prompts(prompts_file(Path(live.prompts)))
        if prompt.split == live.split
    ]
    if len(found) < live.sequences:
        raise CaptureError(
            f"live.sequences={live.sequences}, but {live.prompts} has {len(found)} prompts with"
            f" split={live.split}"
        )
    return found[: live.sequences]


def read_passages(request: Request, run: Run) -> tuple[list[Passage], Any]:
    """The prompts, cut to their lengths, and the tokenizer.

    Raise `CaptureError` where one is too short.
    """
    live = request.live
    folder = weights_folder(request.engine, run.model)
    assert folder is not None
    tokenizer = load_tokenizer(settings_of(request, folder))
    prompts = _prompts_of(live)
    forced = live.continuation == "document"
    lengths = live.lengths()

    def encode(text: str) -> Sequence[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    passages = []
    for prompt, (prompt_tokens, new_tokens) in zip(prompts, lengths, strict=True):
        # cut_passages takes half of the sequences, rounded up, of each split: of one sequence that
        # is one of the split "fit".
        passages += cut_passages(
            [replace(prompt, split="fit")],
            encode,
            sequences=1,
            prompt_tokens=(prompt_tokens, prompt_tokens),
            following_tokens=new_tokens if forced else 0,
            seed=0,
            words=("live.prompt_tokens", "live.new_tokens"),
        )
    return [replace(p, prompt=replace(p.prompt, split=live.split)) for p in passages], tokenizer


def live_driver(
    prepared: Prepared,
    output_dir: Path | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> LiveDriver:
    """A driver for a prepared live run.

    With an ``output_dir`` each sequence's text is written there when it has ended.
    """
    run = prepared.run
    passages, tokenizer = read_passages(prepared.request, run)
    assert prepared.weightless is not None
    assert prepared.weights is not None
    predictor, payload = run.controller.predictor, run.controller.payload
    steps = _steps_of(prepared.request, run, prepared.weightless, passages)
    device: Any = prepared.device
    thresholds = _thresholds_of(run)
    eyes = replace(_eyes(prepared.weightless, steps), thresholds=thresholds, up_of=device.up_of)
    workload = LiveWorkload(steps, eyes, keeps_inputs=predictor.requires.gate_inputs)
    driver = LiveDriver(
        run.controller,
        workload,
        run.durations,
        device,
        LiveModel(prepared.weightless, passages),
        None if output_dir is None else output_dir / GENERATED,
        tokenizer,
        advance,
    )
    if isinstance(payload, ActiveShare):
        geometry, width = run.controller.geometry, prepared.weights.store.header.neurons
        driver.channels = LiveChannels(workload, payload, geometry, width, device.up_of, thresholds)
        device.arrivals.rank = driver.channels.ranked
    return driver


def _steps_of(
    request: Request, run: Run, weightless: Weightless, passages: Sequence[Passage]
) -> Workload:
    """The workload of these texts. Raise ValueError where model or machine cannot run it."""
    prompts = [
        LivePrompt(passage.prompt.domain, request.live.split, *lengths)
        for passage, lengths in zip(passages, request.live.lengths(), strict=True)
    ]
    steps = _composed(run, prompts)
    check_batches(weightless.model, steps)
    check_run_memory(run.model, run.hardware, steps.limits, run.controller, draft_layers=0)
    return steps


def _thresholds_of(run: Run) -> torch.Tensor | None:
    """The thresholds of active channels that the run's payload reads; None if it reads none."""
    payload = run.controller.payload
    if not (isinstance(payload, ActiveShare) and payload.requires.active_shares):
        return None
    directory = trace_directory(str(run.config["trace"]["path"]))
    return read_thresholds(directory, run.trace.header, payload.sparsity)


def _composed(run: Run, prompts: Sequence[LivePrompt]) -> Workload:
    """The workload of the sequences to come, with steps as the run's own workload has them."""
    depth, shares = (
        run.controller.predictor.requires.lookahead_sites,
        run.controller.payload.requires.active_shares,
    )
    choice: WorkloadChoice = make_object(run.config["workload"], "workload")
    norm = choice.lookahead_norm
    trace = blank_trace(run.trace.header, prompts, depth, norm, active_shares=shares)
    return Workload(
        trace,
        split="all",
        batching=choice.batching,
        together=choice.together,
        arrivals_per_s=choice.arrivals_per_s,
        arrival_seed=choice.arrival_seed,
        arrivals=choice.arrivals_ns,
        lookahead=depth,
        norm=norm,
        windows=run.model.windows,
    )


def _eyes(weightless: Weightless, workload: Workload) -> Eyes:
    """What the gates of a live run can be told beside their choices."""
    if not workload.depth or workload.norm == "raw":
        return Eyes(weightless.layers, workload.depth)
        # The norms do not depend on what experts add, so the experts are left out.
    with asking(weightless.model, weightless.forms, lambda asked: torch.zeros_like(asked.hidden)):
        scales = gate_norms(weightless.model, weightless.layers)
    return Eyes(weightless.layers, workload.depth, [scale.float().cpu() for scale in scales])


def run_as_it_was(prepared: Prepared, driver: Driver) -> Run:
    """The run with the gates that the model has shown, as if they were a trace's."""
    live: Any = driver.workload
    workload = live.as_it_was()
    run = prepared.run
    ledger = check_run_memory(
        run.model, run.hardware, workload.limits, run.controller, draft_layers=0
    )
    return replace(
        run, trace=workload.trace, workload=workload, ledger=ledger, fitted_on=0, known=0
    )
