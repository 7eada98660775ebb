"""The two small runs that docs/metrics.md works out by hand.

Here are their trace, model and machine, and the numbers that the page itself prints.
"""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from sim.core.loader import Loader
from sim.results.run import Run
from sim.setup.build import build
from sim.traces.synthesis import synthesize
from sim.traces.trace import DECODE, PREFILL, ModelShape, Trace, TraceSequence
from sim.values.places import ROOT

PAGE = ROOT / "docs" / "metrics.md"
FIRST, SECOND = "### The first run, key by key", "### The second run"
HALVES, LOW, LIGHT = (0.5, 0.5), (0.75, 0.25), (0.875, 0.125)
"""Gate weights of a row's two experts. The second one's score is the first one's weight."""
ROWS = (
    # sequence, phase, step, experts and weights at A, experts and weights at B, forecast at A for B
    (0, PREFILL, 0, (0, 1), HALVES, (0, 1), HALVES, None),
    (0, PREFILL, 0, (2, 3), HALVES, (0, 1), HALVES, None),
    (0, DECODE, 1, (3, 2), LOW, (2, 3), LOW, ((2, 3), LOW)),
    (0, DECODE, 2, (3, 2), LIGHT, (2, 1), LIGHT, ((0, 1), LOW)),
    (0, DECODE, 3, (3, 2), HALVES, (3, 2), LOW, ((2, 1), HALVES)),
    (0, DECODE, 4, (3, 2), LIGHT, (3, 0), LOW, ((3, 0), LOW)),
    (1, PREFILL, 5, (3, 1), LIGHT, (2, 3), LOW, None),
)
CONFIG: dict[str, Any] = {
    "seed": 0,
    "outputs": "all",
    "bounds": "max",
    "timeline_steps": None,
    "output_dir": "unused",
    "budget": {"resident_share": 0.375, "slots_gib": None},
    "trace": {
        "_target_": "sim.setup.TraceChoice",
        "path": "by_hand",
        "split": "eval",
        "exclude": [],
        "max_sequences": None,
    },
    "workload": {
        "_target_": "sim.setup.WorkloadChoice",
        "batching": "sequential",
        "lookahead_norm": "raw",
        "together": 1,
        "prefill_chunk": None,
        "arrivals_per_s": None,
        "arrivals_s": None,
        "arrival_seed": 0,
    },
    "model": {
        "_target_": "sim.machine.Model",
        "name": "tiny",
        "sites": 2,
        "experts": 4,
        "top_k": 2,
        "hidden": 8,
        "expert_intermediate": 5,
        "expert_matrices": 1,
        "heads": 1,
        "kv_heads": 1,
        "head_dim": 1,
        "vocab": 2,
        "source": "by hand",
    },
    "hardware": {
        "_target_": "sim.machine.Hardware",
        "name": "pencil",
        "preset": "none",
        "validated": "none",
        "memory_gib": 1.0,
        "reserved_gib": 0.0,
        "ram": None,
        "cpu": None,
        "prediction_us": 0.0,
        "source": "by hand",
        "links": {
            "pcie": {
                "_target_": "sim.machine.Link",
                "peak_gb_per_s": 1.0,
                "efficiency": 1.0,
                "overhead_us": 0.02,
            }
        },
        # So fast that an operation takes only its launches, which take 1 ns each.
        "compute": {
            "_target_": "sim.machine.Compute",
            "peak_tflops": 1e6,
            "flops_efficiency": 1.0,
            "memory_gb_per_s": 1e5,
            "memory_efficiency": 1.0,
            "launch_us": 0.001,
            "dense_launches": 30,
            "expert_launches": 20,
            "tail_launches": 10,
        },
        "host": {
            "_target_": "sim.machine.Host",
            "sync_us": 0.0,
            "issue_us": 0.0,
            "wake_us": 0.0,
            "post_us": 0.0,
        },
    },
    "predictor": {"_target_": "sim.policies.GateLookahead", "sites": 1, "experts": None},
    "cache": {
        "_target_": "sim.policies.LRU",
        "scope": "global",
        "initial": "empty",
        "recency": "needs",
    },
    "ram_cache": {"_target_": "sim.policies.LRU"},
    "precision": {
        "_target_": "sim.policies.ScoreThreshold",
        "high": "fp16",
        "low": "int4",
        "low_above": 0.5,
        "skip_above": 0.8,
        "quantiles": None,
    },
    "placement": {"_target_": "sim.policies.Load"},
    "payload": {"_target_": "sim.policies.Whole"},
    "loader": {"_target_": "sim.core.Loader", **vars(Loader(wait="as_ready"))},
    "kernels": {"_target_": "sim.machine.Kernels"},
}
STAGED = {"destination": "staging", "staging_slots": 2, "retention": "after_batch"}
"""The settings of the second run's loader that differ."""


def make_trace() -> Trace:
    base = synthesize(ModelShape("tiny", "none", 2, 4, 2, 8, 5), tokens=1, sequences=2, lookahead=1)
    lookahead = np.full((len(ROWS), 2, 1, 4), np.nan, np.float32)
    for row, (*_, forecast) in enumerate(ROWS):
        if forecast is not None:
            lookahead[row, 0, 0] = -9
            lookahead[row, 0, 0, list(forecast[0])] = np.log(forecast[1])
    sequence = np.array([row[0] for row in ROWS], np.int32)
    phase = np.array([row[1] for row in ROWS], np.uint8)
    lengths = [
        (
            int(sum((sequence == n) & (phase == PREFILL))),
            int(sum((sequence == n) & (phase == DECODE))),
        )
        for n in (0, 1)
    ]
    told = tuple(
        TraceSequence(number, "eval", "none", *length) for number, length in enumerate(lengths)
    )
    return replace(
        base,
        header=replace(base.header, name="by_hand", sequences=told),
        sequence=sequence,
        phase=phase,
        position=np.array([*range(6), 0], np.int32),
        step=np.array([row[2] for row in ROWS], np.int32),
        token=np.full(len(ROWS), -1, np.int32),
        valid=np.ones(len(ROWS), np.bool_),
        logits=None,
        ids=np.array([(row[3], row[5]) for row in ROWS], np.int16),
        weights=np.array([(row[4], row[6]) for row in ROWS], np.float32),
        lookahead={"raw": lookahead},
    )


def make_run(**loader: Any) -> Run:
    """A fresh run of the first example; ``loader`` has the switches that differ."""
    config = deepcopy(CONFIG)
    config["loader"] |= loader
    return build(config, "by hand", make_trace())


def page_values(heading: str) -> dict[str, int | float | None]:
    """The values, by key, in the table under a heading of the page.

    They are seconds, bytes and shares, as in a summary.
    """
    text = PAGE.read_text(encoding="utf-8").split(f"{heading}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| `([^|]+)` \|[^|]*\| ([^|]+) \|$", text, flags=re.MULTILINE)
    return {key: _value(said) for keys, said in rows for key in keys.split("`, `")}


def _value(said: str) -> int | float | None:
    """The value of a text such as ``1960 ns``, ``240 B``, ``3 / 920 ns`` (a rate) or ``7/16``."""
    if said == "null":
        return None
    if match := re.fullmatch(r"(\d+) / (\d+) ns", said):
        return int(match[1]) / (int(match[2]) / 10**9)
    number, _, unit = said.partition(" ")
    value = Fraction(number)
    if unit == "ns":
        return float(value / 10**9)
    assert unit in ("", "B"), said
    return float(value) if "/" in number or "." in number else int(value)
