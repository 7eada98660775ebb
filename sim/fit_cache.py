"""``python -m sim.fit_cache [system=hobbit] [trace=NAME] [trace.max_sequences=8] [step=0.1] ...``: a cache's weights.

A grid over the weights of the weighted-score cache (they sum to 1), each point a run of the trace's fit sequences with
no predictor; what counts is the miss penalty of decoded needs. Prints the best weights as an override for
``python -m sim``, and how flat the optimum is. Any other word is an override of the run, as there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import Progress

from sim.build import ROOT, build, inform_caches, make_controller
from sim.engine import simulate
from sim.fitting.cache_weights import Fit, Weights, fit_weights, miss_penalty, override, simplex, table
from sim.policies.scores import WeightedScore
from sim.run import Run

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
            raise ValueError(f"{word}: a calibration runs the fit sequences without a predictor; leave it out")
        else:
            overrides.append(word)
    points = list(simplex(step))
    try:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            cfg = compose("config", overrides=[*overrides, *FIXED])
        run = build(cfg, "calibration")
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).splitlines()[0]) from error
    cache = run.controller.cache
    if not isinstance(cache, WeightedScore):
        raise ValueError(
            f"{type(cache).__name__} has no weights to calibrate; choose cache=weighted_score, or a system that has it"
        )
    if run.workload.is_timed:
        raise ValueError("a calibration wants the same steps at every point; set workload.arrivals_per_s=null")
    task = progress.add_task("calibrating: points of the grid", total=len(points)) if progress else None

    def penalty(weights: Weights) -> float:
        fresh = WeightedScore(weights, cache.scope, cache.shares, cache.initial, cache.quotas)
        part = {**_parts(run), "cache": fresh}
        inform_caches(part, run.workload, run.controller.geometry)
        controller = make_controller(run.controller.geometry, part)
        simulate(controller, run.workload, run.durations)
        if progress is not None and task is not None:
            progress.advance(task)
        return miss_penalty(controller, run.workload)

    return run, fit_weights(points, penalty)


def _parts(run: Run) -> dict[str, Any]:
    """The run's own, again: a RAM tier's cache begins anew with its pools, the others remember nothing."""
    used = run.controller
    ram_cache = used.ram.cache if used.ram is not None else None
    return {
        "hardware": run.hardware, "model": run.model, "predictor": used.predictor, "precision": used.selector,
        "placement": used.placement, "payload": used.payload, "loader": used.loader, "ram_cache": ram_cache,
    }  # fmt: skip


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"step={text} must be a number, such as {STEP}") from None


def main(words: Sequence[str]) -> int:
    """Exit status: 0, or 2 with one message on stderr."""
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            run, fit = calibrate(words, progress)
    except (ValueError, OSError) as error:
        print(f"fit_cache: {error}", file=sys.stderr)
        return 2
    print(
        f"{len(run.workload.sequences)} fit sequences of {run.workload.trace.header.name}, {len(fit.points)} points; "
        f"{fit.near_best()} cost at most 1 % more than the best, the worst costs {fit.penalties[-1]:.4f}"
    )
    for text, cost in table(fit, ROWS):
        print(f"  {cost:.4f}  {text}")
    print(override(fit.best))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
