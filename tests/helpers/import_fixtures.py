"""What the tests of importers share: made-up choices, the command as a user runs it, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capture.import_trace import main
from capture.importers.formats import FORMATS
from capture.importers.parts import make_request
from capture.importers.source import ImportFailure, untracked
from sim.traces.trace import Trace, TraceError, read_trace

FACTS = {
    "model": "tiny",
    "experts": "8",
    "hidden": "16",
    "expert_intermediate": "32",
    "licence": "CC0-1.0",
}
EXPERTS = 8


def make_ids(
    rows: int, sites: int, top_k: int, seed: int = 0, experts: int = EXPERTS
) -> np.ndarray:
    """Distinct experts [rows, sites, top_k] in any order."""
    draws = np.random.default_rng(seed).random((rows, sites, experts))
    return draws.argsort(-1)[..., :top_k].astype(np.int64)


def make_weights(rows: int, sites: int, top_k: int, seed: int = 0) -> np.ndarray:
    """Shares [rows, sites, top_k] that fall from rank to rank.

    They are multiples of 2**-11, so float16 holds them exactly.
    """
    drawn = np.sort(np.random.default_rng(seed).integers(1, 1 << 10, (rows, sites, top_k)), -1)[
        ..., ::-1
    ]
    return (drawn + np.arange(top_k)[::-1]) / (1 << 11)


def given(name: str, path: Path, **facts: str) -> dict[str, str]:
    """The arguments for format ``name``: those of `FACTS` that it knows, and ``facts``."""
    known = {key: text for key, text in FACTS.items() if key in FORMATS[name].keys}
    return {"path": str(path), **known, **facts}


def imported(name: str, path: Path, output_dir: Path, **facts: str) -> Trace:
    """The trace that the command writes into ``output_dir``."""
    arguments = {"format": name, "output_dir": str(output_dir), **given(name, path, **facts)}
    assert main([f"{key}={text}" for key, text in arguments.items()]) == 0
    return read_trace(output_dir)


def refusal(name: str, path: Path, **facts: str) -> TraceError:
    """The error with which format ``name`` refuses a file."""
    with pytest.raises(TraceError) as refused:
        FORMATS[name].read(make_request(given(name, path, **facts)), untracked)
    assert str(path) not in str(refused.value)
    return refused.value


def failure(name: str, path: Path, **facts: str) -> str:
    """The message with which format ``name`` refuses its arguments."""
    request = make_request(given(name, path, **facts))

    def run() -> None:
        FORMATS[name].check(request)
        FORMATS[name].read(request, untracked)

    with pytest.raises(ImportFailure) as refused:
        run()
    return str(refused.value)


def lacks(trace: Trace) -> set[str]:
    return set(str(trace.header.provenance["lacks"]).split(", "))
