"""A fit from a trace: on its ``fit`` sequences only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.fitting.artefact import Artefact
from sim.policies.fitted import FittedPredictor, Sample, Shape, Track
from sim.traces.trace import DECODE, Header, Trace, trace_sha256
from sim.workload.choices import need_order


def shape_of(header: Header) -> Shape:
    model = header.model
    return Shape(model.sites, model.experts, model.top_k, header.encoder_sites)


def fit_sequences(
    trace: Trace, exclude: Sequence[str] = (), most: int | None = None
) -> tuple[int, ...]:
    """The sequences that a fit may use: of the split ``fit``, without those flagged ``exclude``, at
    most so many.

    Raise ValueError where there is none.
    """
    header = trace.header
    chosen = [
        s.sequence
        for s in header.sequences
        if s.split == "fit" and not any(s.flags.get(f) for f in exclude)
    ]
    present = set(np.unique(trace.sequence[trace.valid]).tolist())
    chosen = [number for number in chosen if number in present][:most]
    if not chosen:
        splits = sorted({s.split for s in header.sequences})
        raise ValueError(
            f"trace {header.name} has no sequence to fit on: none of its sequences (splits:"
            f" {', '.join(splits)}) has split fit and none of the flags {list(exclude)}; choose a"
            " trace with a fit split"
        )
    return tuple(sorted(chosen))


def sample_rows(trace: Trace, sequences: Sequence[int]) -> NDArray[np.int64]:
    """The valid rows of these sequences, in the trace's order, without those of prompts that it
    keeps counts of.
    """
    kept = trace.valid & ((trace.phase == DECODE) | (trace.header.prefill == "rows"))
    return np.flatnonzero(np.isin(trace.sequence, sequences) & kept)


def sample_of(trace: Trace, sequences: Sequence[int]) -> Sample:
    """`sample_rows`, each row's choices in need order."""
    rows = sample_rows(trace, sequences)
    ids = trace.ids[rows]
    weights = np.where(ids < 0, np.float32(0), trace.weights[rows])
    order = need_order(ids, weights, trace.header.stands_in_order)
    return Sample(
        shape_of(trace.header),
        np.take_along_axis(ids, order, -1),
        trace.sequence[rows],
        trace.token[rows],
    )


def fit_predictor(
    predictor: FittedPredictor, trace: Trace, sequences: Sequence[int], track: Track = iter
) -> Artefact:
    """What ``predictor`` has to know, from these sequences. Raise ValueError where the trace
    does not tell it.
    """
    header = trace.header
    arrays = predictor.fit(sample_of(trace, sequences), track)
    return Artefact(
        predictor.kind,
        predictor.parameters,
        {"name": header.name, "sha256": trace_sha256(header)},
        shape_of(header),
        tuple(sequences),
        arrays,
        {},
    )


def artefact_name(predictor: FittedPredictor) -> str:
    """The file name of a fit, without its end: the kind and what it depends on."""
    return "-".join([predictor.kind, *(str(value) for value in predictor.parameters.values())])
