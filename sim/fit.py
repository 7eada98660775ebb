"""Fit a part of a system on a trace's ``fit`` sequences: a predictor's statistics, or a cache's
weights.

``python -m sim.fit predictor=NAME [trace=NAME | trace.path=DIR] [output_dir=DIR]`` fits a
predictor. It writes ``DIR/NAME.json`` and ``DIR/NAME.npz`` (default: outputs/predictors), which
``python -m sim`` takes by ``predictor.artefact=DIR/NAME.json``. Networks are trained by ``python -m
capture.fit``. A predictor of one's own: docs/add_policy.md.

``python -m sim.fit cache=weighted_score [step=0.1] [trace.max_sequences=8] [system=hobbit] ...``
calibrates the weights of a cache. Every point of a grid (weights that sum to 1) is a run of the fit
sequences without a predictor; the best point has the smallest miss penalty over decoded needs. The
command prints the best weights as an override for ``python -m sim``, and how flat the optimum is.
It writes nothing. Any other word is an override of the runs, as for ``python -m sim``.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence

from omegaconf import DictConfig

from sim.engine.simulate import simulate
from sim.fitting.artefact import write_artefact
from sim.fitting.cache_weights import (
    Fit,
    Weights,
    fit_weights,
    miss_penalty,
    override,
    simplex,
    table,
)
from sim.fitting.fits import fit_from_rows
from sim.process.interrupts import telling
from sim.process.progress import Shown
from sim.process.shared import Shared
from sim.results.labels import labels_of, told
from sim.results.run import Run
from sim.setup.build import build
from sim.setup.configure import changes, configure
from sim.setup.fit_requests import request_of
from sim.setup.own_failures import fail, is_own, who_is
from sim.workload.batching import NO_ARRIVALS

STEP = 0.1
FIXED = ("predictor=none", "trace.split=fit", "outputs=summary")
"""Overrides of every calibration. The paper minimises on-demand misses alone, so nothing may
prefetch.
"""
ROWS = 5


def calibrate(words: Sequence[str], progress: Shown) -> tuple[Run, Fit]:
    """Calibrate the cache of the run that ``words`` describe.

    Return that run, which has not been simulated, and the penalties of the grid. Raise ValueError
    for what cannot run or be calibrated.
    """
    step, overrides = STEP, []
    for word in words:
        key, equals, text = word.partition("=")
        if key == "step" and equals:
            step = _number(text)
        elif key == "output_dir":
            raise ValueError(f"{word}: a calibration writes no file; leave it out")
        elif key.split(".")[0] == "predictor" or key in ("trace.split", "outputs"):
            raise ValueError(
                f"{word}: a calibration runs the fit sequences without a predictor; leave it out"
            )
        else:
            overrides.append(word)
    cfg, _ = configure(*overrides, *FIXED)
    points = list(simplex(step, _terms(cfg)))
    shared = Shared()
    run = build(cfg, "calibration", shared=shared, changed=changes(overrides))
    if run.workload.is_timed:
        raise ValueError(f"a calibration wants the same steps at every point; {NO_ARRIVALS}")
    task = progress.add_task("calibrating: points of the grid", total=len(points))

    def penalty(weights: Weights) -> float:
        config = {**run.config, "cache": {**run.config["cache"], "weights": dict(weights)}}
        point = build(config, "calibration", run.trace, shared)
        simulate(point.controller, point.workload, point.durations)
        progress.advance(task)
        return miss_penalty(point.controller, point.workload)

    return run, fit_weights(points, penalty)


def _terms(cfg: DictConfig) -> tuple[str, ...]:
    """The names of the cache's weights. Raise ValueError for a cache without any."""
    if not cfg.cache.get("weights"):
        name = str(cfg.cache.get("_target_")).rpartition(".")[2]
        raise ValueError(f"{name} has no weights to calibrate; choose cache=weighted_score")
    return tuple(map(str, cfg.cache.weights))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"step={text} must be a number, such as {STEP}") from None


def fit_statistics(arguments: Sequence[str], progress: Shown) -> list[str]:
    """Fit a predictor and write its files. Return the lines to print."""
    request = request_of(arguments)

    def track(sites: Iterable[int]) -> Iterable[int]:
        return progress.track(list(sites), description=f"fitting {request.fit.kind}: sites")

    try:
        artefact = fit_from_rows(request.fit, request.trace, request.sequences, track)
    except Exception as error:
        if is_own(type(request.predictor)):
            raise
        fail(who_is("predictor", request.predictor), "fit", error)
    try:
        place = write_artefact(request.output_dir, request.fit.name, artefact)
    except OSError as error:
        raise OSError(
            f"output_dir={request.output_dir} cannot be written ({error}); choose another one"
        ) from error
    size = sum(path.stat().st_size for path in (place, place.with_suffix(".npz")))
    return [
        f"{place}: {artefact.kind} of {len(artefact.sequences)} fit sequences of"
        f" {artefact.trace['name']}, {size} bytes"
    ]


def fit_cache(words: Sequence[str], progress: Shown) -> list[str]:
    """Calibrate a cache's weights. Return the lines to print, the best override last."""
    run, fit = calibrate(words, progress)
    return [
        (
            f"{len(run.workload.sequences)} fit sequences of {run.workload.trace.header.name},"
            f" {len(fit.points)} points; {fit.near_best()} cost at most 1 % more than the best, the"
            f" worst costs {fit.penalties[-1]:.4f}"
        ),
        *(f"  {cost:.4f}  {shlex.quote(text)}" for text, cost in table(fit, ROWS)),
        *told([("", labels_of(run, None))]),
        shlex.quote(override(fit.best)),
    ]


@telling("nothing was written")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr and nothing written."""
    is_cache = any(argument.split("=")[0].split(".")[0] == "cache" for argument in arguments)
    try:
        with Shown() as progress:
            lines = (
                fit_cache(arguments, progress) if is_cache else fit_statistics(arguments, progress)
            )
    except (ValueError, OSError) as error:
        print(f"fit: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
