"""The bundled model and a few tokens of its trace, read once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from capture.tiny.model import load_model
from real.lossy.replay import Subject
from real.store.experts import ExpertForm
from real.store.swapping import expert_forms
from sim.setup.traces import load_trace
from sim.traces.trace import DECODE, Trace
from sim.values.places import ROOT

Shorten = Callable[[str, int, int], Trace]


def shortened(name: str, sequences: int, decoded: int) -> Trace:
    """A bundled trace with its first eval sequences, and ``decoded`` tokens of each.

    Its fit sequences stay.
    """
    trace = load_trace(f"capture/assets/traces/{name}", 3, name == "tiny_mixtral")
    chosen = [s.sequence for s in trace.header.sequences if s.split == "eval"][:sequences]
    is_fit = np.isin(
        trace.sequence, [s.sequence for s in trace.header.sequences if s.split == "fit"]
    )
    first = {
        number: trace.position[(trace.sequence == number) & (trace.phase == DECODE)].min()
        for number in chosen
    }
    end = np.array([first.get(number, 0) + decoded for number in trace.sequence.tolist()])
    kept = is_fit | (
        np.isin(trace.sequence, chosen) & ((trace.phase != DECODE) | (trace.position < end))
    )
    columns: dict[str, Any] = {
        field: getattr(trace, field)[kept]
        for field in ("step", "phase", "sequence", "position", "token", "valid", "ids", "weights")
    }
    columns["lookahead"] = {norm: table[kept] for norm, table in trace.lookahead.items()}
    if trace.active_shares is not None:
        columns["active_shares"] = trace.active_shares[kept]
    return replace(trace, logits=None, expert_norms=None, **columns)


@pytest.fixture(scope="session")
def mixtral() -> Any:
    return load_model(ROOT / "capture" / "assets" / "tiny_mixtral")


@pytest.fixture(scope="session")
def forms(mixtral: Any) -> list[ExpertForm]:
    return expert_forms(mixtral)


@pytest.fixture(scope="session")
def subject(mixtral: Any) -> Subject:
    trace = shortened("tiny_mixtral", 2, 6)
    return Subject(
        mixtral, trace, [s.sequence for s in trace.header.sequences if s.split == "eval"][:2]
    )
