"""How far the times of a run can be believed: its machine's error, and intervals that have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from sim.machine.data_sheets import believed, of_preset
from sim.machine.hardware import NEVER
from sim.results.frames import Frames
from sim.results.intervals import interval_beside
from sim.results.labels import error_of
from sim.results.latency import (
    Floats,
    by_batch,
    decode_time_and_tokens,
    tokens_after_the_first,
    tokens_by_sequence,
)
from sim.results.run import Run

COMPARED = "compared"
"""Says of a machine that its times were compared with measured ones."""
OF_SHEETS = "the error of data sheets"


def decode_parts(frames: Frames) -> dict[str, tuple[Floats, Floats]]:
    """Numerators and denominators, by sequence or batch, of the numbers whose errors machines
    have.
    """
    sequences = frames.sequences
    decode_ns, of_batches = decode_time_and_tokens(frames)
    tokens = tokens_by_sequence(frames, tokens_after_the_first(frames))
    since_first = (sequences["end_ns"] - sequences["first_token_ns"]).to_numpy().astype(np.float64)
    tpot = np.divide(since_first, tokens, out=np.zeros_like(since_first), where=tokens > 0)
    return {
        "decode_tokens_per_s": (of_batches * 1e9, decode_ns),
        "tpot_s": (
            by_batch(frames, tpot / 1e9),
            by_batch(frames, (tokens > 0).astype(np.float64)),
        ),
    }


def calibration_section(run: Run, frames: Frames) -> dict[str, Any]:
    """The machine, its errors, and the 95 % intervals that add them to the sequences' (C112).

    A machine of data sheets shares the errors of all of these. The degrees of freedom are the
    machine's different systems, since runs of one system err alike, and those machines.
    """
    error, shared = error_of(run), of_preset(run.hardware.preset)
    both = believed(error, shared)
    return {
        "id": f"{run.hardware.name}/{run.hardware.preset}",
        "validated": NEVER if error is None else COMPARED,
        "error": None if error is None else asdict(error),
        "data_sheets": None if shared is None else asdict(shared),
        "ci95": None
        if both is None
        else {name: interval_beside(*parts, *both) for name, parts in decode_parts(frames).items()},
    }


def whose(calibration: Mapping[str, Any]) -> str:
    """Whose error the intervals of a summary's ``calibration`` add, in words.

    >>> whose({"data_sheets": {"machines": 18}}), whose({"data_sheets": None})
    ('the error of data sheets', "the machine's error")
    """
    return "the machine's error" if calibration.get("data_sheets") is None else OF_SHEETS


def coarse(value: float) -> str:
    """An end of such an interval: an error of a machine is not known to more than two digits.

    >>> coarse(2_813.0), coarse(0.9731)
    ('2800', '0.97')
    """
    return f"{float(f'{value:.2g}'):g}"
