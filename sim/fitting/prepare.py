"""Before a run: give a predictor what it has to know, or refuse the run by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sim.fitting.artefact import Artefact, ArtefactError, read_artefact
from sim.fitting.fits import artefact_name, shape_of
from sim.policies.base import Payload, Predictor
from sim.policies.fitted import FittedPredictor
from sim.policies.payloads import ReusedChannels
from sim.policies.precisions import LowForFew, PerExpert
from sim.policies.references import Foreseen, FutureNeeds, StatedAccuracy
from sim.traces.gate_inputs import read_gate_inputs
from sim.traces.trace import trace_sha256
from sim.values.places import ASSETS
from sim.workload.steps import Workload

SHIPPED = ASSETS / "predictors"
"""A folder for each trace, by its name, with the fits that come with the project."""


def prepare_predictor(
    predictor: Predictor | Foreseen | StatedAccuracy, workload: Workload, directory: Path
) -> int:
    """Make ``predictor`` ready for a run of ``workload``, whose trace lies in ``directory``.

    Return how many of the run's sequences it was fitted on: 0 but where every sequence was asked
    for. Raise ValueError for a fit that is not there, is not of this trace and predictor, or was
    made on sequences of the run.
    """
    if isinstance(predictor, Foreseen | StatedAccuracy):
        predictor.foresee_needs(future_needs(workload))
    if not isinstance(predictor, FittedPredictor):
        return 0
    seen = 0
    if predictor.needs_artefact:
        artefact = find_artefact(predictor, workload)
        seen = _check_leakage(artefact, workload)
        try:
            predictor.know(artefact.shape, artefact.arrays)
        except ValueError as error:
            raise ArtefactError(f"the fit {artefact_name(predictor)}: {error}") from None
    else:
        predictor.know(shape_of(workload.trace.header), {})
    if predictor.parameters.get("inputs") == "scores" and workload.norm != "raw":
        raise ValueError(
            f"workload.lookahead_norm={workload.norm}: the networks of predictor.inputs=scores were"
            " trained on raw scores; set workload.lookahead_norm=raw"
        )
    if predictor.parameters.get("inputs") == "gate_input":
        numbers = tuple(sequence.sequence for sequence in workload.sequences)
        workload.gate_inputs = read_gate_inputs(directory, workload.trace, numbers)
    return seen


def prepare_payload(payload: Payload, workload: Workload) -> None:
    """Give a payload what is known of its forecasts, if anything. Raise ValueError for what is
    not of this trace.
    """
    if not isinstance(payload, ReusedChannels):
        return
    place = (
        Path(payload.artefact)
        if payload.artefact is not None
        else _shipped(workload.trace.header.name, payload.kind)
    )
    if place is None:
        return
    artefact, digest = read_artefact(place), trace_sha256(workload.trace.header)
    if (artefact.kind, artefact.trace["sha256"]) != (payload.kind, digest):
        raise ArtefactError(
            f"{place} is of kind {artefact.kind} and trace {artefact.trace['name']}"
            f" ({artefact.trace['sha256'][:12]}), this run needs {payload.kind} of"
            f" {workload.trace.header.name} ({digest[:12]}); make it with python -m"
            " capture.channels model=DIR trace=..., or choose payload=active_share"
        )
    try:
        payload.know(artefact.arrays)
    except ValueError as error:
        raise ArtefactError(f"{place}: {error}") from None


def _shipped(trace: str, name: str) -> Path | None:
    """The fit of this name that comes with the project for a trace of that one."""
    # A trace's name comes from its header, so it must not lead elsewhere.
    folders = {folder.name: folder for folder in SHIPPED.iterdir()} if SHIPPED.is_dir() else {}
    place = folders[trace] / f"{name}.json" if trace in folders else None
    return place if place is not None and place.is_file() else None


def find_artefact(predictor: FittedPredictor, workload: Workload) -> Artefact:
    """The fit that ``predictor.artefact`` names, or the one that comes with the project for this
    trace.
    """
    header, name = workload.trace.header, artefact_name(predictor)
    command = "capture.fit" if predictor.kind == "learned" else "sim.fit"
    fit = (
        f"fit one with python -m {command} predictor=... trace=... (or trace.path=DIR)"
        f" output_dir=DIR, and give predictor.artefact=DIR/{name}.json"
    )
    if predictor.artefact is not None:
        place = Path(predictor.artefact)
    else:
        shipped = _shipped(header.name, name)
        if shipped is None:
            raise ArtefactError(
                f"no fit {name} comes with the project for trace {header.name}; {fit}"
            )
        place = shipped
    artefact = read_artefact(place)
    digest = trace_sha256(header)
    for what, found, wanted in (
        ("kind", artefact.kind, predictor.kind),
        ("parameters", dict(artefact.parameters), predictor.parameters),
        ("model shape", artefact.shape, shape_of(header)),
        ("trace", artefact.trace["sha256"][:12], digest[:12]),
    ):
        if found != wanted:
            raise ArtefactError(
                f"{place} was fitted on trace {artefact.trace['name']} with {what} {found}, this"
                f" run of trace {header.name} has {wanted}; {fit}"
            )
    if artefact.trace["sha256"] != digest:
        raise ArtefactError(
            f"{place} was fitted on another trace, sha256 {artefact.trace['sha256']}; {fit}"
        )
    return artefact


def prepare_selector(selector: object, workload: Workload) -> None:
    """Give a selector the fit that it names, if it names one. Raise ValueError for one that is
    not of this run.
    """
    place = getattr(selector, "artefact", None)
    if place is None:
        return
    assert isinstance(selector, PerExpert | LowForFew)
    artefact, header = read_artefact(Path(place)), workload.trace.header
    found = (artefact.kind, artefact.shape, artefact.trace["sha256"])
    for what, got, wanted in zip(
        ("kind", "model shape", "trace"),
        found,
        (selector.fit_kind, shape_of(header), trace_sha256(header)),
        strict=True,
    ):
        if got != wanted:
            raise ArtefactError(
                f"precision.artefact={place} has {what} {got!s:.60}, this run of trace"
                f" {header.name} wants {wanted!s:.60}; fit again (python -m real.quality_fit), or"
                " set precision.artefact=null"
            )
    _check_leakage(artefact, workload, "precision selector")
    try:
        selector.know(artefact.parameters, artefact.arrays)
    except ValueError as error:
        raise ArtefactError(f"precision.artefact={place}: {error}") from None


def _check_leakage(artefact: Artefact, workload: Workload, what: str = "predictor") -> int:
    seen = sorted(set(artefact.sequences) & {sequence.sequence for sequence in workload.sequences})
    if seen and workload.split != "all":
        raise ArtefactError(
            f"the {what} was fitted on {len(seen)} of the sequences of this run"
            f" (trace.split={workload.split}:"
            f" {', '.join(map(str, seen[:8]))}{', ..' if len(seen) > 8 else ''}), so it would be"
            " flattered; run trace.split=eval, or trace.split=all to run every sequence all the"
            " same"
        )
    return len(seen)


def future_needs(workload: Workload) -> FutureNeeds:
    """What the gates of a run will need. Raise ValueError where its steps depend on time."""
    experts = workload.experts_by_gate()
    needs = workload.needs
    cuts = np.searchsorted(needs.tick, np.arange(1, workload.num_gates))
    weights: Sequence[Sequence[float]] = [part.tolist() for part in np.split(needs.weight, cuts)]
    return FutureNeeds(
        workload.experts + 1,
        workload.gate_step.tolist(),
        workload.gate_site.tolist(),
        experts,
        weights,
    )
