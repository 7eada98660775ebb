"""What a part of a system has to know beforehand, from the trace's ``fit`` sequences alone.

``python -m sim.fit predictor=NAME [trace=NAME | trace.path=DIR] [output_dir=DIR]``: a predictor's
statistics, as ``DIR/NAME.json`` and ``DIR/NAME.npz`` (default: outputs/predictors). ``python -m
sim`` takes them by ``predictor.artefact=DIR/NAME.json``. Networks are trained by ``python -m
capture.fit``.

``python -m sim.fit cache=weighted_score [step=0.1] [trace.max_sequences=8] [system=hobbit] ...``: a
cache's weights. A grid over them (they sum to 1), each point a run of the fit sequences with no
predictor; what counts is the miss penalty of decoded needs. Prints the best weights as an override
for ``python -m sim``, and how flat the optimum is; nothing is written. Any other word is an
override of the run, as there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import Progress

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
from sim.fitting.fits import artefact_name, fit_predictor
from sim.policies.learned import LearnedPerSite
from sim.policies.scores import WeightedScore
from sim.results.labels import labels_of, told
from sim.results.run import Run
from sim.setup.build import build, inform_caches, make_controller
from sim.setup.configure import changes
from sim.setup.fit_requests import request_of
from sim.values.places import CONF
from sim.workload.batching import NO_ARRIVALS

STEP = 0.1
FIXED = ("predictor=none", "trace.split=fit", "outputs=summary", "output_dir=unused")
"""On-demand misses alone are what the paper minimises; nothing is written."""
ROWS = 5


def calibrate(words: Sequence[str], progress: Progress | None = None) -> tuple[Run, Fit]:
    """Raise ValueError for what cannot run or be calibrated."""
    step, overrides = STEP, []
    for word in words:
        key, equals, text = word.partition("=")
        if key == "step" and equals:
            step = _number(text)
        elif key.split(".")[0] == "predictor" or key in ("trace.split", "outputs", "output_dir"):
            raise ValueError(
                f"{word}: a calibration runs the fit sequences without a predictor; leave it out"
            )
        else:
            overrides.append(word)
    points = list(simplex(step))
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("config", overrides=[*overrides, *FIXED])
        run = build(cfg, "calibration", changed=changes(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).splitlines()[0]) from error
    cache = run.controller.cache
    if not isinstance(cache, WeightedScore):
        raise ValueError(
            f"{type(cache).__name__} has no weights to calibrate; choose cache=weighted_score"
        )
    if run.workload.is_timed:
        raise ValueError(f"a calibration wants the same steps at every point; {NO_ARRIVALS}")
    task = (
        progress.add_task("calibrating: points of the grid", total=len(points))
        if progress
        else None
    )

    def penalty(weights: Weights) -> float:
        fresh = WeightedScore(weights, cache.scope, cache.shares, cache.initial, cache.quotas)
        part = {**_parts_of(run), "cache": fresh}
        inform_caches(part, run.workload, run.controller.geometry)
        controller = make_controller(run.controller.geometry, part)
        simulate(controller, run.workload, run.durations)
        if progress is not None and task is not None:
            progress.advance(task)
        return miss_penalty(controller, run.workload)

    return run, fit_weights(points, penalty)


def _parts_of(run: Run) -> dict[str, Any]:
    """The run's own, again: a RAM tier's cache begins anew with its pools, the others remember
    nothing.
    """
    used = run.controller
    ram_cache = used.ram.cache if used.ram is not None else None
    return {
        "hardware": run.hardware,
        "model": run.model,
        "predictor": used.predictor,
        "precision": used.selector,
        "placement": used.placement,
        "payload": used.payload,
        "loader": used.loader,
        "ram_cache": ram_cache,
    }


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"step={text} must be a number, such as {STEP}") from None


def fit_statistics(arguments: Sequence[str], progress: Progress) -> list[str]:
    """Fit a predictor and write its files; what to tell of it."""
    request = request_of(arguments)
    if isinstance(request.predictor, LearnedPerSite):
        raise ValueError(
            "a learned predictor is trained by python -m capture.fit, which needs torch"
        )

    def track(sites: Iterable[int]) -> Iterable[int]:
        return progress.track(list(sites), description=f"fitting {request.predictor.kind}: sites")

    artefact = fit_predictor(request.predictor, request.trace, request.sequences, track)
    place = write_artefact(request.output_dir, artefact_name(request.predictor), artefact)
    size = sum(path.stat().st_size for path in (place, place.with_suffix(".npz")))
    return [
        f"{place}: {artefact.kind} of {len(artefact.sequences)} fit sequences of"
        f" {artefact.trace['name']}, {size} bytes"
    ]


def fit_cache(words: Sequence[str], progress: Progress) -> list[str]:
    """Fit a cache's weights; what to tell of them, the override last."""
    run, fit = calibrate(words, progress)
    return [
        (
            f"{len(run.workload.sequences)} fit sequences of {run.workload.trace.header.name},"
            f" {len(fit.points)} points; {fit.near_best()} cost at most 1 % more than the best, the"
            f" worst costs {fit.penalties[-1]:.4f}"
        ),
        *(f"  {cost:.4f}  {text}" for text, cost in table(fit, ROWS)),
        *told([("", labels_of(run, None))]),
        override(fit.best),
    ]


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr and nothing written."""
    console = Console(stderr=True)
    is_cache = any(argument.split("=")[0].split(".")[0] == "cache" for argument in arguments)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
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
