"""Assesses a system: its run in open and closed loop, and the quality of what it serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from capture.recording.load import load_model, require_weights
from capture.recording.settings import Settings
from real.live.foresight import Eyes, read_thresholds
from real.lossy.loss import Quality, TokenLoss, quality_of
from real.lossy.mixture import Forward, plain_forward
from real.lossy.replay import (
    Reference,
    Replayed,
    Subject,
    Track,
    check_steps,
    closed_loop,
    eyes_of,
    open_loop,
    refer,
    silent,
)
from real.lossy.sparse import require_gated, sparse_forward
from real.lossy.variants import Scheme, Variants, roundings
from sim.machine.precision import AS_STORED
from sim.policies.payloads import ActiveShare
from sim.results.labels import labels_in
from sim.results.overview import work_of
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.configure import changes, configure
from sim.setup.traces import load_trace, trace_directory
from sim.traces.trace import Header, Trace, trace_sha256
from sim.values.places import ASSETS

LOOPS = ("open", "closed")


@dataclass(frozen=True)
class Weights:
    """Where a model's weights are, and how they run.

    ``place``: a folder, or a name on the hub; None: the weights that come with the project.
    """

    place: str | None = None
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 0

    def load(self, header: Header) -> Any:
        """Load the model that a trace was captured from.

        Raise ValueError where it is not there, or is another model.
        """
        place = self.place or str(ASSETS / Path(header.model.name).name)
        if self.place is None and not Path(place).is_dir():
            raise ValueError(
                f"no weights of {header.model.name} come with the project; say where they are:"
                " weights=DIR, or weights=OWNER/NAME"
            )
        require_weights("weights", place, header)
        return load_model(
            Settings(
                model=place,
                prompts=Path(),
                output_dir=Path(),
                dtype=self.dtype,
                device=self.device,
                threads=self.threads,
            )
        )


@dataclass(frozen=True)
class Loop:
    """A system in one loop: its simulated speed, and its quality.

    Quality is over decoded rows and over prompts (None where a prompt has no logits). ``decoded``:
    the losses of each sequence's decoded rows, for a paired comparison of two systems.
    """

    name: str
    replayed: Replayed
    decode: Quality
    prefill: Quality | None
    decoded: tuple[TokenLoss, ...]

    def row(self) -> dict[str, Any]:
        """A flat row, for tables and joins: speed and what was served, then quality of decoding."""
        summary = self.replayed.result.summary
        proxy = summary["quality_proxy"]
        ci = summary["ci95"]["decode_tokens_per_s"]
        return {
            "system": summary["system"],
            "loop": self.name,
            "labels": labels_in(summary).row(),
            "work": work_of(summary),
            "trace": summary["trace"]["name"],
            "model": summary["model"],
            "hardware": summary["hardware"],
            "resident_share": summary["budget"]["resident_share"],
            "decode_tokens_per_s": summary["decode_tokens_per_s"],
            "decode_tokens_per_s_low": None if ci is None else ci[0],
            "decode_tokens_per_s_high": None if ci is None else ci[1],
            "hit_ratio": summary["hit_ratio"],
            "low_share": proxy["low_share"],
            "skip_share": proxy["skip_share"],
            **self.decode.row(),
        }


@dataclass(frozen=True)
class Tools:
    """Of one run: its experts at each precision, what its live gates know, how experts compute."""

    variants: Variants
    eyes: Eyes
    forward: Forward


def is_lossless(run: Run) -> bool:
    """Whether all that the run may serve is the model as it is stored."""
    selector, placement = run.controller.selector, run.controller.placement
    keeps = all(name in AS_STORED for name in selector.precisions) and selector.constant is not None
    keeps = keeps and not selector.reroutes
    return (
        keeps
        and type(placement).__name__ != "SkipAbsent"
        and not isinstance(run.controller.payload, ActiveShare)
    )


class Assessment:
    """Some configurations, and the full-precision model that each is compared with.

    A configuration is a list of overrides of ``python -m sim``. Those assessed together run the
    same sequences of one trace, so the full-precision pass is made once. Everything is checked
    before the model is loaded. Raise ValueError for what cannot run.
    """

    def __init__(
        self,
        configurations: Sequence[Sequence[str]],
        weights: Weights,
        scheme: Scheme,
        track: Track = silent,
    ) -> None:
        self.scheme, self.track = scheme, track
        runs = [built(words) for words in configurations]
        for run in runs:
            check_steps(run)
            _check_lookahead(run)
            # This refuses precisions that nothing here makes.
            for precision in run.controller.geometry.precisions:
                roundings(precision, scheme)
        scheme.check_used({name for run in runs for name in run.controller.geometry.precisions})
        first = runs[0]
        self._path = _path_of(first)
        self.sequences = _sequences_of(first)
        for run in runs:
            self._check_same(run)
        deepest = max(runs, key=lambda run: run.workload.depth)
        self.depth, self.norm = deepest.workload.depth, deepest.workload.norm
        shares = any(run.controller.payload.requires.active_shares for run in runs)
        trace = load_trace(str(self._path), self.depth, shares, logits=True)
        self.subject = Subject(weights.load(trace.header), trace, self.sequences)

    @cached_property
    def reference(self) -> Reference:
        """The full-precision model on the texts, read when it is first asked for."""
        return refer(self.subject, self.depth, self.norm, self.track)

    def _check_same(self, run: Run) -> None:
        if (_sequences_of(run), _path_of(run)) != (self.sequences, self._path):
            raise ValueError("systems that are compared run the same sequences of the same trace")

    def assess(self, overrides: Sequence[str], loops: Sequence[str] = LOOPS) -> list[Loop]:
        """Assess one system in each of ``loops``."""
        found = []
        for name in loops:
            run = self.run_of(overrides, self.reference)
            tools = self.tools_for(run)
            if name == "open":
                replayed = open_loop(
                    run, self.subject, self.reference, tools.variants, tools.forward, self.track
                )
            else:
                check_may_close(run)
                replayed = closed_loop(
                    run,
                    self.subject,
                    self.reference,
                    tools.variants,
                    tools.eyes,
                    tools.forward,
                    self.track,
                )
            found.append(self._loop(name, replayed))
        return found

    def run_of(self, overrides: Sequence[str], reference: Reference) -> Run:
        """A fresh run on the full-precision gates.

        Raise ValueError unless it fits the configurations that were announced.
        """
        run = built(overrides, reference.trace)
        self._check_same(run)
        if run.workload.depth > self.depth or (
            run.workload.depth and run.workload.norm != self.norm
        ):
            raise ValueError(
                f"lookahead of {self.depth} sites ({self.norm}) was computed; this system needs"
                " more"
            )
        return run

    def tools_for(self, run: Run) -> Tools:
        """The tools with which a run computes experts and shows gates."""
        variants = Variants(self.subject.forms, run.controller.geometry.precisions, self.scheme)
        forward, thresholds = self._forward(run)
        eyes = eyes_of(self.subject, run.workload.depth, run.workload.norm, thresholds, variants)
        return Tools(variants, eyes, forward)

    def _forward(self, run: Run) -> tuple[Forward, torch.Tensor | None]:
        """How experts compute in a run, and the thresholds [S, E, P] of its active shares."""
        payload = run.controller.payload
        if not isinstance(payload, ActiveShare):
            return plain_forward, None
        require_gated(self.subject.forms[0])
        thresholds = read_thresholds(
            trace_directory(str(self._path)), run.trace.header, payload.sparsity
        )
        column = thresholds[..., list(run.trace.header.sparsities).index(payload.sparsity)]
        # Only gates of one row are sparse: prompts move whole experts.
        return sparse_forward("up", column, decoded_only=True), thresholds

    def _loop(self, name: str, replayed: Replayed) -> Loop:
        decode: list[TokenLoss] = []
        prefill: list[TokenLoss] = []
        for text, loss in zip(self.subject.texts, replayed.losses, strict=True):
            rows = self.subject.is_decode(text)
            decode.append(loss.rows(rows))
            prefill.append(loss.rows(~rows))
        has_prompts = any(np.isfinite(loss.full).any() for loss in prefill)
        return Loop(
            name,
            replayed,
            quality_of(decode),
            quality_of(prefill) if has_prompts else None,
            tuple(decode),
        )


def built(overrides: Sequence[str], trace: Trace | None = None) -> Run:
    """A fresh run of a configuration, composed from its overrides."""
    cfg, system = configure(*overrides)
    return build(cfg, system, trace, changed=changes(overrides))


def _sequences_of(run: Run) -> tuple[int, ...]:
    return tuple(s.sequence for s in run.workload.sequences)


def _check_lookahead(run: Run) -> None:
    lookahead = run.trace.header.lookahead
    if run.workload.depth and lookahead is not None and lookahead.position != "gate_in":
        raise ValueError(
            f"trace {run.trace.header.name} has lookahead at {lookahead.position}: a live gate"
            " shows that of gate_in; capture with lookahead_position=gate_in, or choose"
            " predictor=none"
        )


def _path_of(run: Run) -> Path:
    return Path(str(run.config["trace"]["path"]))


def check_may_close(run: Run) -> None:
    """Raise ValueError for a lossy system that knows the future.

    It knows the future of the full-precision model; no recording has that of a lossy one.
    """
    controller = run.controller
    knows = [part for part in (controller.predictor, controller.cache) if part.requires.future]
    if knows and not is_lossless(run):
        raise ValueError(
            f"{type(knows[0]).__name__} knows what gates will need from the trace, but a lossy"
            " model's gates need something else; choose loop=open, or another predictor or cache"
        )


def sequence_frame(loops: Sequence[Loop], sequences: Sequence[int]) -> pl.DataFrame:
    """One row for each loop and sequence, for further paired comparisons.

    Its columns are sums over decoded rows: nats of tokens under both models, KL and agreement.
    """
    rows: list[Mapping[str, Any]] = []
    for loop in loops:
        for number, loss in zip(sequences, loop.decoded, strict=True):
            known = np.isfinite(loss.full)
            rows.append(
                {
                    "loop": loop.name,
                    "sequence": number,
                    "tokens": int(known.sum()),
                    "rows": len(loss.divergence),
                    "full_nats": float(loss.full[known].sum()),
                    "lossy_nats": float(loss.lossy[known].sum()),
                    "divergence_nats": float(loss.divergence.sum()),
                    "same_top_token": int(loss.agrees.sum()),
                }
            )
    return pl.DataFrame(rows)


def identity(assessment: Assessment, weights: Weights) -> dict[str, Any]:
    """What the numbers were measured on: trace, sequences, weights and quantiser."""
    trace = assessment.subject.trace
    return {
        "trace": {"name": trace.header.name, "sha256": trace_sha256(trace.header)},
        "sequences": list(assessment.sequences),
        "weights": weights.place or trace.header.model.name,
        "dtype": weights.dtype,
        "quantiser": {"by": assessment.scheme.by, "group": assessment.scheme.group},
    }
