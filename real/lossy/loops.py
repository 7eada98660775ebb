"""How far a lossy model's gates stray from recorded ones, and how much that changes a simulation.

There are two modes. Teacher-forced: both models read the document. Free-running: each writes its
own text from the same prompt, by its most likely token. In either mode the open loop simulates on
the full-precision model's gates in that mode, and the closed loop on the lossy model's. Intervals
are paired, over sequences (``sim.results.intervals``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from real.lossy.assess import Assessment, check_may_close, is_lossless
from real.lossy.loss import Estimate, TokenLoss, estimate_of, token_losses
from real.lossy.replay import Reference, Subject, agreement, live_run, refer
from real.lossy.texts import Reading, Text
from sim.policies.base import IntArray
from sim.results.frames import Frames
from sim.results.hits import asked, is_found
from sim.results.intervals import from_errors, ratio_interval, share_interval
from sim.results.labels import Labels, caption, labels_in
from sim.results.latency import decode_time_and_tokens
from sim.results.run import Run
from sim.setup.execute import Result, execute
from sim.values.types import Step

MODES = ("teacher-forced", "free-running")
DISTANCES = ((0, 1), (1, 8), (8, 16), (16, 32), (32, 64), (64, 1 << 30))
"""Ranges of decoded tokens since the prompt, [from, below)."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Shift:
    """How a system changes from the open to the closed loop, in one mode.

    - ``routing``: the share of a decoded row's experts that both models choose. ``by_site`` and
      ``by_distance`` (name, share): the same by site, and by tokens since the prompt.
    - ``hit_ratio``, ``moved_bytes``, ``time`` are (open, closed, shift). The shift of the hit ratio
      is a difference; those of all bytes moved and of the time of decoded tokens are relative.
    - ``same_tokens``: the share of decoded tokens that both wrote (1 where both are forced).
    - ``divergence``: KL in nats a decoded token (teacher-forced only).
    """

    system: str
    mode: str
    lossless: bool
    routing: Estimate
    by_site: tuple[float, ...]
    by_distance: tuple[tuple[str, Estimate], ...]
    hit_ratio: tuple[float, float, Estimate]
    moved_bytes: tuple[float, float, Estimate]
    time: tuple[float, float, Estimate]
    same_tokens: Estimate
    divergence: Estimate | None
    labels: Labels
    """The labels of the closed loop's run."""

    @property
    def is_zero(self) -> bool:
        """Whether nothing at all has changed."""
        shifts = (self.hit_ratio[2].value, self.moved_bytes[2].value, self.time[2].value)
        exact = self.divergence is None or self.divergence.value == 0
        return not any(shifts) and self.routing.value == 1 and self.same_tokens.value == 1 and exact

    def row(self) -> dict[str, Any]:
        """A flat row, for a table."""
        flat: dict[str, Any] = {"system": self.system, "mode": self.mode, "lossless": self.lossless}
        for name in ("hit_ratio", "moved_bytes", "time"):
            open_value, closed_value, shift = getattr(self, name)
            flat |= {
                f"{name}_open": open_value,
                f"{name}_closed": closed_value,
                **_flat(f"{name}_shift", shift),
            }
        flat |= _flat("routing", self.routing) | _flat("same_tokens", self.same_tokens)
        flat["labels"] = caption([("", self.labels)])
        return flat | ({} if self.divergence is None else _flat("divergence", self.divergence))


def _flat(name: str, estimate: Estimate) -> dict[str, float | None]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def free_subject(subject: Subject, track: Any) -> Subject:
    """The same prompts, continued by the full-precision model's most likely tokens.

    The new texts are as long as the old ones.
    """
    return replace_texts(subject, [write(subject, text, track) for text in subject.texts])


def write(subject: Subject, text: Text, track: Any) -> Text:
    """A text's prompt, and what the model itself writes after it, as long as the text is."""
    reading = Reading(subject.model)
    logits = reading.prompt(text.prompt)
    fed: list[int] = []
    for index in range(len(text.fed)):
        # Behind an encoder the first token is the decoder's start, which nobody chooses.
        fed.append(
            text.fed[0] if subject.behind_encoder and not index else int(logits[-1].argmax())
        )
        logits = reading.step(fed[-1])
    track("full precision writes", text.sequence)
    return Text(text.sequence, text.prompt, tuple(fed))


def replace_texts(subject: Subject, texts: list[Text]) -> Subject:
    """A subject that reads these texts; they must be as long as its own."""
    token = subject.trace.token.copy()
    for rows, text in zip(subject.rows, texts, strict=True):
        token[rows] = (*text.prompt, *text.fed)
    return Subject(
        subject.model, replace(subject.trace, token=token), [text.sequence for text in texts]
    )


class Loops:
    """Both loops in one mode, for the systems of an assessment.

    The full-precision side is done once.
    """

    def __init__(self, assessment: Assessment, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"unknown mode={mode}; known: {', '.join(MODES)}")
        self.assessment, self.mode = assessment, mode
        if mode == "free-running":
            self.subject = free_subject(assessment.subject, assessment.track)
            self.reference: Reference = refer(
                self.subject, assessment.depth, assessment.norm, assessment.track
            )
        else:
            self.subject, self.reference = assessment.subject, assessment.reference

    def shift(self, overrides: Sequence[str]) -> Shift:
        """How one system changes. Raise ValueError where its loop cannot be closed."""
        run = self.assessment.run_of(overrides, self.reference)
        check_may_close(run)
        opened = execute(run)
        closed = self.assessment.run_of(overrides, self.reference)
        result, chosen, losses, same = self._close(closed)
        shares = [
            agreement(mine, ids) for mine, ids in zip(chosen, self.reference.ids, strict=True)
        ]
        decoded = [
            share[len(text.prompt) :]
            for share, text in zip(shares, self.subject.texts, strict=True)
        ]
        return Shift(
            closed.system,
            self.mode,
            is_lossless(closed),
            _share_over(decoded),
            tuple(
                float(np.nanmean([np.nanmean(rows[:, site]) for rows in decoded]))
                if np.isfinite(decoded[0][:, site]).any()
                else float("nan")
                for site in range(decoded[0].shape[1])
            ),
            tuple(_by_distance(decoded)),
            _change(_hits(opened), _hits(result), relative=False),
            _change(_bytes(opened), _bytes(result), relative=True),
            _change(
                decode_time_and_tokens(opened.frames),
                decode_time_and_tokens(result.frames),
                relative=True,
            ),
            _share_over(same),
            _divergence_over(losses) if losses else None,
            labels_in(result.summary),
        )

    def _close(self, run: Run) -> tuple[Result, list[IntArray], list[TokenLoss], list[Floats]]:
        subject, tools = self.subject, self.assessment.tools_for(run)
        is_free = self.mode == "free-running"
        texts = {text.sequence: text for text in subject.texts}
        logits: dict[int, list[torch.Tensor]] = {number: [] for number in texts}
        fed: dict[int, list[int]] = {number: [] for number in texts}

        def tokens_of(step: Step) -> Sequence[int]:
            text = texts[step.sequences[0]]
            if not step.decode:
                return text.prompt
            written = fed[text.sequence]
            is_given = not is_free or (subject.behind_encoder and not written)
            written.append(
                text.fed[len(written)] if is_given else int(logits[text.sequence][-1][-1].argmax())
            )
            return written[-1:]

        def on_step(step: Step, found: torch.Tensor) -> None:
            logits[step.sequences[0]].append(found)
            if step.ends:
                self.assessment.track(f"{run.system} {self.mode}", step.sequences[0])

        result, chosen = live_run(
            run, subject, tools.variants, tools.eyes, tokens_of, on_step, tools.forward
        )
        rows = run.workload.trace.sequence[run.workload.row]
        by_text = [chosen[np.flatnonzero(rows == number)] for number in texts]
        losses = []
        if not is_free:
            for index, text in enumerate(subject.texts):
                mine = torch.cat([part for part in logits[text.sequence] if part.numel()])
                loss = token_losses(self.reference.logits[index], mine, subject.following(text))
                losses.append(loss.rows(subject.is_decode(text)))
        same = [np.array(fed[number]) == np.array(text.fed) for number, text in texts.items()]
        return result, by_text, losses, [found.astype(np.float64) for found in same]


def _hits(result: Result) -> tuple[Floats, Floats]:
    """By sequence: hits of decoded tokens, and lookups that were asked for."""
    frames = result.frames
    step_of = {step.index: step.sequences[0] for step in frames.workload.steps}
    decode = asked(frames.lookups.filter(pl.col("phase") == "decode"))
    number = decode["step"].replace_strict(step_of, return_dtype=pl.Int64)
    counted = (
        decode.select(sequence=number, hit=is_found())
        .group_by("sequence")
        .agg(pl.col("hit").sum(), pl.len().alias("lookups"))
    )
    return _in_order(frames, counted, "hit"), _in_order(frames, counted, "lookups")


def _bytes(result: Result) -> tuple[Floats, Floats]:
    """By sequence: the bytes over all links whose service began while it ran; and ones."""
    frames = result.frames
    begins = frames.tokens.group_by("sequence", maintain_order=True).agg(pl.col("start_ns").min())
    # Sequences run one after another, so a time tells to which of them it belongs.
    at = (
        np.searchsorted(
            begins["start_ns"].to_numpy(), frames.transfers["start_ns"].to_numpy(), side="right"
        )
        - 1
    )
    moved = np.bincount(
        np.maximum(at, 0), frames.transfers["moved_bytes"].to_numpy(), minlength=len(begins)
    )
    return moved.astype(np.float64), np.ones(len(moved))


def _in_order(frames: Frames, counted: pl.DataFrame, column: str) -> Floats:
    order = frames.tokens["sequence"].unique(maintain_order=True)
    joined = pl.DataFrame({"sequence": order}).join(
        counted, on="sequence", how="left", maintain_order="left"
    )
    return joined[column].fill_null(0).to_numpy().astype(np.float64)


def _change(
    before: tuple[Floats, Floats], after: tuple[Floats, Floats], *, relative: bool
) -> tuple[float, float, Estimate]:
    """Ratios of sums before and after, and their difference or relative change.

    The change is paired over sequences. A relative change from 0 is NaN, and has no interval.
    """
    (a, b), (c, d) = before, after
    old, new = float(a.sum() / b.sum()), float(c.sum() / d.sum())
    # A system that moves nothing in either loop has not changed.
    if old == new == 0:
        return old, new, Estimate(0.0, *((0.0, 0.0) if len(a) > 1 else (None, None)))
    if relative and not old:
        return old, new, Estimate(float("nan"), None, None)
    value = new / old - 1 if relative else new - old
    if len(a) < 2 or (relative and not new):
        return old, new, Estimate(value, None, None)
    parts = [column / column.sum() for column in ((a, b, c, d) if relative else (b, d))]
    share = np.mean(parts, axis=0)
    if relative:
        errors = parts[2] - parts[3] - parts[0] + parts[1]
        low, high = from_errors(1 + value, errors, share, True).interval()
        return old, new, Estimate(value, float(low) - 1, float(high) - 1)
    errors = (c - new * d) / d.sum() - (a - old * b) / b.sum()
    low, high = from_errors(value, errors, share, False, max(old, new)).interval()
    return old, new, Estimate(value, float(low), float(high))


def _share_over(parts: Sequence[Any]) -> Estimate:
    """The mean of shares (NaN: none there), and its interval over sequences, from 0 to 1."""
    above = np.array([np.nansum(part) for part in parts])
    below = np.array([np.isfinite(part).sum() for part in parts], np.float64)
    return estimate_of(above, below, share_interval(above, below))


def _divergence_over(losses: Sequence[TokenLoss]) -> Estimate:
    """The mean divergence a token, and its interval over sequences, which is never below 0."""
    above = np.array([loss.divergence.sum() for loss in losses])
    below = np.array([len(loss.divergence) for loss in losses], np.float64)
    return estimate_of(above, below, ratio_interval(above, below))


def _by_distance(decoded: Sequence[Floats]) -> list[tuple[str, Estimate]]:
    found = []
    for first, stop in DISTANCES:
        parts = [rows[first:stop] for rows in decoded]
        if any(part.size for part in parts):
            last = min(stop, max(len(rows) for rows in decoded)) - 1
            found.append((f"{first}" if last == first else f"{first}-{last}", _share_over(parts)))
    return found
