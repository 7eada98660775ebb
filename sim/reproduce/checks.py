"""Worked checks, printed beside the claims.

They say which constants were drawn from which published numbers, and how near other numbers come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.reproduce import phone
from sim.reproduce.experiments import Outcome
from sim.reproduce.identities import compute
from sim.reproduce.phone import PhoneError, PhoneRun, relative
from sim.reproduce.roles import Paper
from sim.reproduce.rules import Value, odds, published
from sim.reproduce.storage import constants

Outcomes = Mapping[str, Outcome]


def worked(paper: Paper, outcomes: Outcomes) -> list[str]:
    """The lines for one paper; experiments that were not run are left out."""
    return {"hobbit": _hobbit, "edgemoe": _edgemoe, "fate": _fate, "floe": _floe}[paper.name](
        paper, outcomes
    )


def _floe(paper: Paper, outcomes: Outcomes) -> list[str]:
    points = [
        claim for claim in paper.claims if claim.check == "kernel_ms" and claim.role == "predicted"
    ]
    errors = [abs(float(compute(paper, claim)) / published(claim)[0] - 1) for claim in points]
    return [
        f"Table 1: a line through each GPU's 0 and 90 % points; the {len(errors)} others are off by"
        f" at most {max(errors):.1%}, median {float(np.median(errors)):.1%}."
    ]


def _edgemoe(paper: Paper, outcomes: Outcomes) -> list[str]:
    compute_s, read, widen = constants()
    lines = [
        f"Ablation: compute {compute_s:.3f} s a token, read {read / 1e6:.0f} MB/s, dequantisation "
        f"{widen / 1e9:.2f} GB/s from 0.789 and 0.392 s."
    ]
    for name, claim in (("ablation_preload", "E078"), ("ablation_buffer", "E079")):
        if (found := _default(outcomes, name)) is not None:
            target = published(paper.claim(claim))[0]
            lines.append(
                f"  {claim}: {found.point:.3f} s, published {target} s"
                f" ({found.point / target - 1:+.0%})."
            )
    return lines


def _hobbit(paper: Paper, outcomes: Outcomes) -> list[str]:
    lines = []
    for name, claim, machine in (
        ("loading_share_4090", "H010", "4090"),
        ("loading_share_orin", "H011", "Orin"),
    ):
        if (found := _default(outcomes, name)) is not None:
            target = odds(published(paper.claim(claim))[0])
            lines.append(
                f"Load : compute on the {machine} {odds(found.point):.1f} : 1, published"
                f" {target:.1f} : 1."
            )
    alone, mixed = (
        _default(outcomes, name) for name in ("prefetch_alone_mixtral", "prefetch_mixed")
    )
    if alone is not None and mixed is not None:
        above = "above" if mixed.point > alone.point else "NOT above"
        lines.append(
            f"Prefetch alone {alone.point:.3f}x, with mixed precision {mixed.point:.3f}x:"
            f" {above} it."
        )
    for name, other in (("gain_over_lru", "LRU"), ("gain_over_lfu", "LFU")):
        if (found := _default(outcomes, name)) is not None:
            arms = paper.experiments[name].over
            by_trace = [
                f"{_trace_word(group)} {_reduction(found, place)}"
                for place, group in enumerate(arms)
            ]
            lines.append(f"Miss penalty below {other}'s: {'; '.join(by_trace)}.")
    return lines


def _reduction(value: Value, place: int) -> str:
    low, high = value.intervals[place]
    mark = "" if low > 0 or high < 0 else " ~"
    return f"{value.points[place]:+.1%} [{low:+.1%}, {high:+.1%}]{mark}"


def _trace_word(group: Sequence[str]) -> str:
    return next(
        str(word).removeprefix("trace=") for word in group if str(word).startswith("trace=")
    )


def _fate(paper: Paper, outcomes: Outcomes) -> list[str]:
    if "ladder" not in outcomes:
        return []
    ladder = outcomes["ladder"]
    every = {"default": ladder.default, **ladder.grid}
    kept = [name for name, value in every.items() if value is not None and value.holds]
    lost = [
        f"{name} (least step {value.point:.2f}x)"
        for name, value in every.items()
        if value and not value.holds
    ]
    line = (
        f"Ladder (load on demand, prefetch, cache, quantisation): its order holds at {len(kept)} of"
        f" {len(every)} points"
    )
    return [f"{line}{'; not at ' + '; '.join(lost) if lost else ''}."]


def _default(outcomes: Outcomes, name: str) -> Value | None:
    return outcomes[name].default if name in outcomes else None


def phone_lines(folder: Path) -> list[str]:
    """The lines for the recorded phone runs in ``folder``.

    Raise PhoneError if none is there, or none of its tokens can be judged.
    """
    qwen, *others = phone.read_runs(folder)
    half, tokens = qwen.half, len(qwen.read_bytes)
    if tokens <= half:
        raise PhoneError(
            f"{folder / qwen.recording.metrics} has {tokens} decoded tokens; the machine is drawn from"
            f" the first {half}, and those after them are judged"
        )

    def told(name: str) -> str:
        own, signed = _middle(qwen.error(name))
        other, _ = _middle(relative(qwen.line(name), qwen.measured[name])[half:])
        return f"{name} {own:.1%} ({signed:+.1%}; a line {other:.1%})"

    return [
        (
            f"Phone: {' '.join(qwen.recording.words)}: the machine is drawn from decoded tokens 1"
            f" to {half}, never from a stall."
        ),
        (
            "  Tokens after them, median error (with its sign; a straight line on the bytes, fitted"
            f" to the column itself): {', '.join(map(told, qwen.judged))}."
        ),
        *(line for run in others for line in _other_phone_lines(run, qwen)),
    ]


def _other_phone_lines(run: PhoneRun, qwen: PhoneRun) -> list[str]:
    """The lines of a run that nothing is fitted to, beside both straight lines on its bytes."""
    half, model = run.half, run.recording.model

    def all_of_it(name: str) -> str:
        own, signed = _middle(run.error(name))
        line, line_signed = _middle(relative(run.line(name, qwen), run.measured[name]))
        return f"{name} {own:.1%} ({signed:+.1%}; a line {line:.1%}, {line_signed:+.1%})"

    def second_half(name: str) -> str:
        own, _ = _middle(run.error(name)[half:])
        line, _ = _middle(relative(run.line(name), run.measured[name])[half:])
        return f"{name} {own:.1%} (a line {line:.1%})"

    return [
        f"Phone, {model}: {' '.join(run.recording.words)}: nothing of this run is fitted.",
        (
            f"  Its {len(run.read_bytes)} tokens, median error (with its sign; a line with"
            f" {qwen.recording.model}'s constants): {', '.join(map(all_of_it, run.judged))}."
        ),
        (
            f"  Its tokens after {half} (a line fitted to this run's first {half}):"
            f" {', '.join(map(second_half, run.judged))}."
        ),
    ]


def _middle(errors: NDArray[np.float64]) -> tuple[float, float]:
    """The median size of the errors of tokens that took any time, and the median with its sign."""
    known = errors[~np.isnan(errors)]
    return float(np.median(np.abs(known))), float(np.median(known))
