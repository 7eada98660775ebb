"""Before a run: give each policy what it requires, or refuse the run by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sim.fitting.artefact import Artefact, ArtefactError, read_artefact
from sim.fitting.fits import check_recorded_for, profile_of, shape_of
from sim.policies.base import Policy
from sim.policies.requires import (
    FitError,
    FitFile,
    Fitted,
    FutureNeeds,
    Given,
    PolicyError,
    Requires,
)
from sim.traces.gate_inputs import read_gate_inputs
from sim.traces.trace import trace_sha256
from sim.values.places import ASSETS
from sim.values.types import Geometry
from sim.workload.steps import Workload

SHIPPED = ASSETS / "predictors"
"""A folder for each trace, by its name, with the fits that come with the project."""
FITS = "fits"
"""The folder of fits inside that of a trace."""


def prepare(
    policy: Policy,
    section: str,
    workload: Workload,
    directory: Path,
    *,
    geometry: Geometry | None = None,
    precision: int | None = None,
) -> int:
    """Make ``policy``, from this section of the configuration, ready for a run of ``workload``.

    ``directory`` is where the run's trace lies. ``geometry``: None while there is none.
    ``precision``: the one at which every need is wanted, None where that varies.

    Return on how many of the run's sequences that rests which the policy knows beforehand, by a fit
    or a profile: 0 where the run has no fit sequence. Raise ValueError for a fit that is not there,
    that is not of this trace and policy, or that was made on sequences of the run, unless every
    sequence was asked for.
    """
    requires = policy.requires
    artefact, seen = None, 0
    check_recorded_for(policy, workload.trace.header)
    if requires.fit is not None:
        artefact = find_artefact(requires.fit, section, workload, directory)
        if artefact is not None and requires.fit.learnt:
            seen = _check_leakage(artefact, section, workload)
    if requires.profile:
        seen = max(seen, profiled(workload))
    if requires.gate_inputs:
        _offer_gate_inputs(workload, directory)
    try:
        policy.prepare(_given(requires, workload, artefact, geometry, precision))
    except FitError as error:
        assert requires.fit is not None
        raise ArtefactError(
            f"the fit {requires.fit.artefact or requires.fit.name} of {section}: {error}"
        ) from None
    except PolicyError:
        raise
    except ValueError as error:
        raise ValueError(f"{section}: {error}") from error
    return seen


def _given(
    requires: Requires,
    workload: Workload,
    artefact: Artefact | None,
    geometry: Geometry | None,
    precision: int | None,
) -> Given:
    header = workload.trace.header
    return Given(
        shape_of(header),
        geometry,
        fit=None if artefact is None else Fitted(artefact.parameters, artefact.arrays),
        profile=profile_of(workload.trace, workload.exclude) if requires.profile else None,
        future=future_needs(workload, precision) if requires.future else None,
        sparsities=header.sparsities if requires.active_shares else None,
    )


def _offer_gate_inputs(workload: Workload, directory: Path) -> None:
    if workload.gate_inputs is None:
        numbers = tuple(sequence.sequence for sequence in workload.sequences)
        workload.gate_inputs = read_gate_inputs(directory, workload.trace, numbers)


# ---- the files of fits


def find_artefact(
    fit: FitFile, section: str, workload: Workload, directory: Path
) -> Artefact | None:
    """The fit that the policy names, or the one that lies in the folder of the trace, or that comes
    with the project for this trace; None where there is none and the policy does without. Raise
    `ArtefactError`.
    """
    header, named = workload.trace.header, fit.artefact
    if named is not None and (not isinstance(named, str) or Path(named).suffix != ".json"):
        raise ArtefactError(
            f"{section}.artefact={named!r} must be the .json file of a fit, or null"
        )
    how = (
        f"fit one with moelab {fit.command.replace('TRACE', str(directory))}, where runs of the"
        f" trace find it, or give {section}.artefact=DIR/{fit.name}.json"
    )
    beside = directory / FITS / f"{fit.name}.json"
    place = beside if named is None else Path(named)
    if named is None and not beside.is_file():
        shipped = _shipped(header.name, fit.name)
        if shipped is None and fit.optional:
            return None
        if shipped is None:
            raise ArtefactError(
                f"no fit {fit.name} comes with the project for trace {header.name}; {how}"
            )
        place = shipped
    artefact = read_artefact(place)
    digest = trace_sha256(header)
    for what, found, wanted in (
        ("kind", artefact.kind, fit.kind),
        (
            "parameters",
            dict(artefact.parameters),
            dict(artefact.parameters if fit.parameters is None else fit.parameters),
        ),
        ("model shape", artefact.shape, shape_of(header)),
        ("trace", artefact.trace["sha256"][:12], digest[:12]),
        ("trace", artefact.trace["sha256"], digest),
    ):
        if found != wanted:
            raise ArtefactError(
                f"{place} was fitted on trace {artefact.trace['name']} with {what} {found}, this"
                f" run of trace {header.name} has {wanted}; {how}"
            )
    return artefact


def _shipped(trace: str, name: str) -> Path | None:
    """The fit of this name that comes with the project for a trace of that one."""
    # A trace's name comes from its header, so it must not lead elsewhere.
    folders = {folder.name: folder for folder in SHIPPED.iterdir()} if SHIPPED.is_dir() else {}
    place = folders[trace] / f"{name}.json" if trace in folders else None
    return place if place is not None and place.is_file() else None


def _check_leakage(artefact: Artefact, section: str, workload: Workload) -> int:
    """How many sequences of the run the fit was made on. Raise `ArtefactError` if there are any,
    unless all sequences of the trace were asked for.
    """
    seen = sorted(set(artefact.sequences) & {sequence.sequence for sequence in workload.sequences})
    if seen and workload.split != "all":
        raise ArtefactError(
            f"the {section} was fitted on {len(seen)} of the sequences of this run"
            f" (trace.split={workload.split}:"
            f" {', '.join(map(str, seen[:8]))}{', ..' if len(seen) > 8 else ''}), so it would be"
            " flattered; run trace.split=eval, or trace.split=all to run every sequence all the"
            " same"
        )
    return len(seen)


def profiled(workload: Workload) -> int:
    """How many of the run's sequences are among those of which a profile is made."""
    ran = {sequence.sequence for sequence in workload.sequences}
    return sum(one.split == "fit" for one in workload.trace.header.sequences if one.sequence in ran)


def future_needs(workload: Workload, precision: int | None = None) -> FutureNeeds:
    """What the gates of a run will need, all at ``precision`` if it is given. Raise ValueError
    where the steps depend on time.
    """
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
        precision,
    )
