"""Step 4 of a validation: the same systems with the model in the loop.

They are compared with runs on the gates of the full-precision model, which is what a trace holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from real.lossy.closed import measure
from real.lossy.loops import MODES, Shift
from real.lossy.requests import request_of
from sim.results.labels import told

NOT_SIMULATED = ("device", "input", "engine", "live")
"""Sections that say how a device runs; they mean nothing to a closed loop, which is simulated."""
USUAL = {"model": "tiny_mixtral", "hardware": "paced_cpu"}
"""What is taken where the words choose nothing, as in ``conf/real.yaml``."""


def read_modes(text: str) -> tuple[str, ...]:
    """The modes of a comma-separated list. Raise ValueError for one that does not exist."""
    modes = tuple(name for name in text.split(",") if name)
    if unknown := [name for name in modes if name not in MODES]:
        raise ValueError(f"unknown closed_loop={','.join(unknown)}; known: {', '.join(MODES)}")
    return modes


def shifts_of(
    systems: Sequence[str],
    share: float,
    words: Sequence[str],
    modes: Sequence[str],
    console: Console,
) -> list[Shift]:
    """Measure every system in every mode at one budget.

    Raise ValueError for what a closed loop cannot have.
    """
    kept = [
        word
        for word in words
        if word.partition("=")[0].lstrip("+").split(".")[0] not in NOT_SIMULATED
    ]
    chosen = {word.partition("=")[0] for word in kept}
    usual = [f"{group}={name}" for group, name in USUAL.items() if group not in chosen]
    request = request_of("quality", [*usual, *kept, f"budget.resident_share={share}"])
    return measure(systems, modes, request, console)[0]


def as_lines(shifts: Sequence[Shift], share: float) -> list[str]:
    """The report's section on step 4, as lines."""
    lines = ["## 4. Closed loop", ""]
    if not shifts:
        return [
            *lines,
            (
                "Not made: closed_loop=teacher-forced,free-running runs the model with each system"
                " in the loop."
            ),
            "",
        ]
    lines += [
        (
            f"At {share:.0%} resident: from the gates of full precision to those of the model as it"
            " is served. Brackets:"
        ),
        "95 %.",
        "",
        "| system | mode | same experts | hit ratio, points | bytes | decode time | |",
        "|---|---|---|---|---|---|---|",
    ]
    for shift in shifts:
        verdict = (
            ("exactly zero" if shift.is_zero else "NOT zero: a defect")
            if shift.lossless
            else "lossy"
        )
        cells = [
            shift.routing.times(100),
            shift.hit_ratio[2].times(100),
            shift.moved_bytes[2].times(100),
            shift.time[2].times(100),
        ]
        texts = [
            cell.text(4) + unit for cell, unit in zip(cells, (" %", "", " %", " %"), strict=True)
        ]
        lines.append(f"| {shift.system} | {shift.mode} | {' | '.join(texts)} | {verdict} |")
    return [
        *lines,
        "",
        *(f"- {text}" for text in told((shift.system, shift.labels) for shift in shifts)),
        "",
    ]


def as_rows(shifts: Sequence[Shift]) -> list[dict[str, Any]]:
    """The same section as numbers."""
    return [{**shift.row(), "is_zero": shift.is_zero} for shift in shifts]
