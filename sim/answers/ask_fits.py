"""What systems learn before a run, fitted on those sequences of a trace that nobody is judged on."""

from __future__ import annotations

from pathlib import Path

from sim.fitting.artefact import write_artefact
from sim.fitting.fits import fit_from_rows, fit_sequences
from sim.fitting.prepare import FITS
from sim.process.progress import tracked
from sim.setup.fit_requests import predictor_of
from sim.traces.trace import Trace
from sim.verbs.names import chosen_by, names


def fit_beside(trace: Trace, directory: Path) -> tuple[str, ...]:
    """Fit the statistics that systems of ``conf/system`` want, into the folder of their trace,
    where runs of it find them. Return the systems that have theirs then, in order.

    Networks are left out: they are trained in minutes (``python -m capture.fit``). So is what the
    trace's rows do not tell.
    """
    wanting: dict[str, list[str]] = {}
    for system in names("system"):
        if predictor := chosen_by(system, "predictor"):
            wanting.setdefault(predictor, []).append(system)
    sequences, found = fit_sequences(trace), []
    for predictor, systems in tracked(wanting.items(), "fitting what systems learn beforehand"):
        fit = predictor_of(predictor).requires.fit
        if fit is None or fit.learn is None:
            continue
        try:
            artefact = fit_from_rows(fit, trace, sequences)
        except ValueError:
            continue  # the run of such a system says what is missing
        write_artefact(directory / FITS, fit.name, artefact)
        found += systems
    return tuple(sorted(found))
