"""The request of a fit, read from the words of a command and checked: a predictor, a trace, and
where the result goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.fitting.fits import check_recorded_for, fit_sequences
from sim.policies.base import Predictor
from sim.policies.requires import FitFile
from sim.results.folders import check_can_be_made
from sim.setup.choices import TraceChoice
from sim.setup.configure import configure
from sim.setup.own_gates import with_gates
from sim.setup.own_said import check_said
from sim.setup.parts import make_model, make_part
from sim.setup.refusals import checked_settings
from sim.setup.traces import load_trace
from sim.traces.trace import Trace
from sim.verbs.names import of_file

OUTPUT_DIR = "outputs/predictors"
GROUPS = ("predictor", "trace")
SEARCH_PATH = "hydra.searchpath"
"""Where a predictor's yaml may lie beside ``conf/`` (docs/add_policy.md)."""
OTHER_WORDS = ("output_dir", SEARCH_PATH)


@dataclass(frozen=True)
class FitRequest:
    """What to fit on what: a predictor and the ``fit`` that it asks for; a trace and which of its
    ``fit`` sequences; the folder of the result.
    """

    predictor: Predictor
    fit: FitFile
    choice: TraceChoice
    trace: Trace
    sequences: tuple[int, ...]
    output_dir: Path


def request_of(arguments: Sequence[str], trains: bool = False) -> FitRequest:
    """The request that a command line makes. The trace is read. Raise ValueError for the first
    thing that is wrong. ``trains``: only what no statistics of rows make is asked for.
    """
    words = dict.fromkeys(GROUPS, False)
    output_dir, overrides = OUTPUT_DIR, []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        group = key.split(".")[0]
        if not equals or (group not in GROUPS and key not in OTHER_WORDS) or not text:
            raise ValueError(
                f"{argument!r} is no key=value of predictor, trace, output_dir or hydra.searchpath;"
                " leave it out"
            )
        if key == "trace.split" and text != "fit":
            raise ValueError(f"{argument}: a fit is made of the fit sequences; leave it out")
        if key == "predictor.artefact":
            raise ValueError(
                f"{argument} names a fit that is there, and this makes one; leave it out"
            )
        if key == "output_dir":
            output_dir = text
            continue
        if group in GROUPS:
            words[group] = True
        overrides.append(argument)
    if not words["predictor"]:
        raise ValueError(
            "missing predictor=NAME (a file of conf/predictor) or cache=weighted_score"
        )
    part = _parts(overrides)
    predictor, choice = part["predictor"], part["trace"]
    fit = predictor.requires.fit
    if fit is None:
        raise ValueError(
            f"{type(predictor).__name__} has nothing to fit; moelab run takes it as it is"
        )
    if trains and fit.learn is not None:
        raise ValueError(
            f"{type(predictor).__name__} is no network; moelab fit makes its statistics"
        )
    check_can_be_made(Path(output_dir) / "fit.json")
    trace = load_trace(choice.path, predictor.requires.lookahead_sites)
    check_recorded_for(predictor, trace.header)
    return FitRequest(
        predictor,
        fit,
        choice,
        trace,
        fit_sequences(trace, choice.exclude, choice.max_sequences),
        Path(output_dir),
    )


def predictor_of(name: str) -> Predictor:
    """The predictor of this file of ``conf/predictor``, not made ready for any trace."""
    predictor: Predictor = make_part({"predictor": of_file("predictor", name)}, "predictor")
    return predictor


def _parts(overrides: Sequence[str]) -> dict[str, Any]:
    # The default system chooses a predictor; the words replace it.
    config = with_gates(checked_settings(configure(*overrides)[0]))
    made = {group: make_part(config, group) for group in GROUPS}
    check_said({"predictor": made["predictor"]}, make_model(config))
    return made
