"""Measures every system in token-layers a second at 48 x 128 top-8.

It asserts nothing. Numbers are of the simulation's CPU time alone, the best of the repeats. Machine
and loader are as in conf/; half of the expert bytes are resident on a device that holds them; one
synthetic trace has random tokens. What a system's predictor needs is first fitted on two of its
four sequences (networks with torch, if it is installed). A slow run is not repeated.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from engine_speed import timeouts_per_s
from omegaconf import OmegaConf

import capture.fit
import sim.fit
from sim.engine.simulate import simulate
from sim.setup.build import build
from sim.setup.configure import configure
from sim.traces.synthesis import PRESETS, synthesize
from sim.traces.trace import Trace, read_trace, write_trace
from sim.values.places import ROOT

FITTED_BY = {"learned": capture.fit, "learned_stride_2": capture.fit}
"""The command that fits each of these predictors' options; sim.fit fits all others."""
WORDS = ("output_dir=unused", "model=qwen3_30b_a3b", "hardware.memory_gib=192", "trace.split=all")
LONG_S = 0.5
"""A run is not repeated again once its repeats have taken this much CPU time, in s."""


def drawn_trace(folder: Path, tokens: int) -> Trace:
    """Four sequences, written to ``folder`` for the commands that fit."""
    trace = synthesize(
        PRESETS["qwen3_30b_a3b"],
        tokens=tokens,
        sequences=4,
        prompt_tokens=1,
        lookahead=3,
        lookahead_accuracy=0.8,
        skew=1.2,
    )
    drawn = np.random.default_rng(0).integers(0, 100, len(trace.token), dtype=np.int32)
    write_trace(folder, replace(trace, token=drawn))
    return read_trace(folder, columns="all")


def words_of(name: str, folder: Path, fits: Path) -> list[str]:
    """The words that compose a system here, with its predictor fitted.

    Raise ValueError if it cannot be fitted.
    """
    words = [f"system={name}", *WORDS, f"trace.path={folder}"]
    if name == "floe":
        words.append("payload=active_share_nominal")  # synthetic gates have no channels
    config, _ = configure(*words)
    if config.predictor.get("artefact", "") is not None:
        return words
    if config.predictor.get("collection") == "empty":  # it forecasts without one
        return words
    chosen = OmegaConf.load(ROOT / "conf/system" / f"{name}.yaml").defaults
    (option,) = (one["override /predictor"] for one in chosen if "override /predictor" in one)
    command, place = FITTED_BY.get(option, sim.fit), fits / option
    told = io.StringIO()
    with redirect_stderr(told), redirect_stdout(io.StringIO()):
        failed = command.main(
            [f"predictor={option}", f"trace.path={folder}", f"output_dir={place}"]
        )
    if failed:
        raise ValueError(told.getvalue())
    (artefact,) = place.glob("*.json")
    return [*words, f"predictor.artefact={artefact}"]


def token_layers_per_s(name: str, words: Sequence[str], trace: Trace, repeats: int) -> float:
    """Gates a second, the best of so many fresh runs.

    Raise ValueError where the system cannot run on this trace.
    """
    best, spent = 0.0, 0.0
    config, _ = configure(*words)
    for _ in range(repeats):
        run = build(config, name, trace)
        start = time.process_time()
        simulate(run.controller, run.workload, run.durations)
        took = time.process_time() - start
        best, spent = max(best, len(run.controller.gate_calls) / took), spent + took
        if spent > LONG_S:
            break
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--systems",
        nargs="*",
        default=sorted(p.stem for p in (ROOT / "conf/system").glob("*.yaml")),
    )
    arguments = parser.parse_args()
    results, timeouts = dict[str, float](), timeouts_per_s()
    print(f"{timeouts / 1e6:.2f} million SimPy timeouts/s\n{'':30}{'TL/s':>9}{'/timeout':>10}")
    with TemporaryDirectory() as made:
        folder = Path(made) / "trace"
        trace = drawn_trace(folder, arguments.tokens)
        for name in arguments.systems:
            try:
                words = words_of(name, folder, Path(made) / "fits")
                results[name] = token_layers_per_s(name, words, trace, arguments.repeats)
            except ValueError as error:
                print(f"{name:30}{' '.join(str(error).split())}", flush=True)
                continue
            print(
                f"{name:30}{results[name] / 1e3:8.1f}k{results[name] / timeouts:10.3f}", flush=True
            )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
