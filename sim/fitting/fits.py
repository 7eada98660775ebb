"""What policies learn from a trace before a run; it comes from the trace's ``fit`` sequences
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sim.fitting.artefact import Artefact
from sim.policies.base import Policy
from sim.policies.profile import Profile
from sim.policies.requires import RECORDED, FitFile, Sample, Shape, Track
from sim.traces.flags import check_flags
from sim.traces.routing import need_order
from sim.traces.trace import DECODE, Header, Trace, trace_sha256
from sim.workload.steps import Workload

_PROFILES: WeakKeyDictionary[Trace, dict[tuple[str, ...], Profile]] = WeakKeyDictionary()
"""Kept for as long as the trace is, so that many runs of one trace measure its profile once."""


def shape_of(header: Header) -> Shape:
    model = header.model
    return Shape(model.sites, model.experts, model.top_k, header.encoder_sites, header.draft_sites)


def check_recorded_for(policy: Policy, header: Header) -> None:
    """Raise ValueError where the recording left out what the policy is fitted on (contract C92)."""
    for word in policy.requires.recorded:
        if word in header.lacks:
            raise ValueError(
                f"trace {header.name} ({header.provenance.get('format')}) does not tell"
                f" {RECORDED[word]}, which {type(policy).__name__} is fitted on; choose another"
                " policy"
            )


def fit_sequences(
    trace: Trace, exclude: Sequence[str] = (), most: int | None = None
) -> tuple[int, ...]:
    """The numbers of the sequences that a fit may use, ascending.

    They are of the split ``fit``, carry none of the flags ``exclude``, and have rows in the trace;
    ``most`` limits how many. Raise ValueError where there is none, and for a flag that no sequence
    has.
    """
    header = trace.header
    check_flags(exclude, header)
    chosen = [
        s.sequence
        for s in header.sequences
        if s.split == "fit" and not any(s.flags.get(f) for f in exclude)
    ]
    present = set(np.unique(trace.sequence[trace.valid]).tolist())
    chosen = [number for number in chosen if number in present][:most]
    if not chosen:
        splits = sorted({s.split for s in header.sequences})
        flags = f" and none of the flags {', '.join(exclude)}" if exclude else ""
        raise ValueError(
            f"trace {header.name} has no sequence to fit on: none of its sequences (splits:"
            f" {', '.join(splits)}) has split fit{flags}; choose a trace with a fit split"
        )
    return tuple(sorted(chosen))


def sample_rows(trace: Trace, sequences: Sequence[int]) -> NDArray[np.int64]:
    """The valid rows of these sequences, in the trace's order. Prompts of which the trace keeps
    only counts have no rows of their own, and are left out.
    """
    kept = trace.valid & ((trace.phase == DECODE) | (trace.header.prefill == "rows"))
    return np.flatnonzero(np.isin(trace.sequence, sequences) & kept)


def sample_of(trace: Trace, sequences: Sequence[int]) -> Sample:
    """The sample of these sequences: `sample_rows`, with each row's choices in need order."""
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


def fit_from_rows(
    fit: FitFile, trace: Trace, sequences: Sequence[int], track: Track = iter
) -> Artefact:
    """Fit on these sequences what a policy asks for by ``fit``.

    Raise ValueError where the trace does not tell it, or where another command makes the file.
    """
    if fit.learn is None:
        raise ValueError(f"{fit.name} is made by moelab {fit.command}")
    header = trace.header
    arrays = fit.learn(sample_of(trace, sequences), track)
    return Artefact(
        fit.kind,
        fit.parameters or {},
        {"name": header.name, "sha256": trace_sha256(header)},
        shape_of(header),
        tuple(sequences),
        arrays,
        {},
    )


def profile_of(trace: Trace, exclude: tuple[str, ...] = ()) -> Profile:
    """What the trace's fit sequences without the flags ``exclude`` chose. Raise ValueError if it has
    none.
    """
    made = _PROFILES.setdefault(trace, {})
    if exclude not in made:
        made[exclude] = _profile(trace, exclude)
    return made[exclude]


def _profile(trace: Trace, exclude: tuple[str, ...]) -> Profile:
    try:
        workload = Workload(trace, split="fit", batching="sequential", exclude=exclude)
    except ValueError as error:
        raise ValueError(
            f"a policy of this run is fitted on what the fit sequences of the trace chose; {error}"
        ) from error
    chosen, experts = workload.experts_in_order, trace.header.model.experts
    uses = [
        np.bincount(of_site[of_site >= 0], minlength=experts) for of_site in chosen.swapaxes(0, 1)
    ]
    decode = np.array([step.start for step in workload.steps if step.decode], dtype=np.int64)
    decoded = chosen[decode]
    scores = np.asarray(workload.scores[decode][decoded >= 0], dtype=np.float64)
    scores.setflags(write=False)
    return Profile(np.stack(uses), decoded, trace.header.encoder_sites, scores)
