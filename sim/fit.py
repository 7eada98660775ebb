"""``python -m sim.fit predictor=NAME [trace=NAME | trace.path=DIR] [output_dir=DIR]``: what a predictor has to know.

Statistics of the trace's ``fit`` sequences, as ``DIR/NAME.json`` and ``DIR/NAME.npz`` (default: outputs/predictors).
``python -m sim`` takes them by ``predictor.artefact=DIR/NAME.json``. Networks are trained by ``python -m capture.fit``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import Progress

from sim.build import ROOT, TraceChoice, load_trace
from sim.fitting.artefact import write_artefact
from sim.fitting.fits import artefact_name, fit_predictor, fit_sequences
from sim.policies.fitted import FittedPredictor
from sim.policies.learned import LearnedPerSite
from sim.trace import Trace

OUTPUT_DIR = "outputs/predictors"
GROUPS = ("predictor", "trace")


@dataclass(frozen=True)
class FitRequest:
    """A predictor, the trace to fit it on with the sequences of its fit split, and where the fit goes."""

    predictor: FittedPredictor
    choice: TraceChoice
    trace: Trace
    sequences: tuple[int, ...]
    output_dir: Path


def request_of(arguments: Sequence[str]) -> FitRequest:
    """What the command line asks for, with the trace read. Raise ValueError for the first thing that is wrong."""
    words = dict.fromkeys(GROUPS, False)
    output_dir, overrides = OUTPUT_DIR, []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        group = key.split(".")[0]
        if not equals or (group not in GROUPS and key != "output_dir") or not text:
            raise ValueError(f"{argument!r} is no key=value of predictor, trace or output_dir; leave it out")
        if key == "output_dir":
            output_dir = text
            continue
        words[group] = True
        overrides.append(argument)
    if not words["predictor"]:
        raise ValueError("missing predictor=NAME (a file of conf/predictor)")
    part = _parts(overrides)
    predictor, choice = part["predictor"], part["trace"]
    if not isinstance(predictor, FittedPredictor) or not predictor.needs_artefact:
        raise ValueError(f"{type(predictor).__name__} has nothing to fit; run it with python -m sim as it is")
    trace = load_trace(choice.path, predictor.lookahead_sites)
    return FitRequest(
        predictor, choice, trace, fit_sequences(trace, choice.exclude, choice.max_sequences), Path(output_dir)
    )


def _parts(overrides: Sequence[str]) -> dict[str, Any]:
    try:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            # A system's own predictor must not stand in the way of the one that is named.
            cfg = compose("config", ["output_dir=unused", *overrides])
        return {group: instantiate(cfg[group], _convert_="all") for group in GROUPS}
    except InstantiationException as error:
        raise ValueError(str(error.__cause__ or error)) from None
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).strip()) from None


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr and nothing written."""
    console = Console(stderr=True)
    try:
        request = request_of(arguments)
        if isinstance(request.predictor, LearnedPerSite):
            raise ValueError("a learned predictor is trained by python -m capture.fit, which needs torch")
        with Progress(console=console, transient=True) as progress:

            def track(sites: Iterable[int]) -> Iterable[int]:
                return progress.track(list(sites), description=f"fitting {request.predictor.kind}: sites")

            artefact = fit_predictor(request.predictor, request.trace, request.sequences, track)
        place = write_artefact(request.output_dir, artefact_name(request.predictor), artefact)
    except (ValueError, OSError) as error:
        print(f"fit: {error}", file=sys.stderr)
        return 2
    size = sum(path.stat().st_size for path in (place, place.with_suffix(".npz")))
    print(
        f"{place}: {artefact.kind} of {len(artefact.sequences)} fit sequences of {artefact.trace['name']}, {size} bytes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
