"""The command that checks whether a synthetic trace can stand in for a real one.

``python -m capture.check_synthesis [traces=DIR,DIR ...] [sequences=32] [tokens=64]``

docs/synthesis_check.md laid the check down before it was first run, and shows its results. For each
trace:

1. Measure statistics of the kind that papers print, on the trace's fit sequences.
2. Calibrate a synthetic walk to these statistics alone.
3. Compare what was not fitted with the trace's eval sequences: hit rates of caches, recall of
   predictors, and the simulated speed of five systems.

Prints the tables of that page. Without ``traces`` the bundled trace is checked. ``sequences`` (of
each split) and ``tokens`` (of each sequence) cut longer traces.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from capture.statistics.gating_stats import Floats, lru_hit_rate
from capture.synthetic.calibration import Stack, calibrate
from capture.synthetic.cases import Case, load_case
from capture.synthetic.comparisons import (
    belady_hit_rate,
    lfu_hit_rate,
    popularity_recall,
    previous_token_recall,
    transition_recall,
)
from capture.synthetic.targets import STATISTICS, Gates, forecast_recall, quarter, synthetic_gates
from sim.process.interrupts import telling
from sim.process.progress import saying
from sim.results.latency import decode_time_and_tokens
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute
from sim.synthetic.gate_walk import Walk
from sim.synthetic.preset import Fit, Preset, Target
from sim.synthetic.synthesis import Request, synthesize_like
from sim.traces.trace import Trace
from sim.values.places import ASSETS
from sim.verbs.table import verb_of
from sim.verbs.words import read

BUNDLED = ASSETS / "traces" / "tiny_mixtral"
SEEDS = (201, 202, 203)
SHARES = (0.25, 0.5)
NEAR_CACHE, NEAR_RECALL, NEAR_SPEEDUP, TIE = 0.03, 0.05, 0.10, 0.02
"""Thresholds of docs/synthesis_check.md, in order: of H1, of H2 and H3, of H4 (b), of H4 (a)."""
WITH_LOOKAHEAD = {
    name: [f"system={name}"]
    for name in ("load_on_demand", "lru", "mixtral_offloading", "hobbit", "oracle")
}
WITHOUT = {
    "load_on_demand": ["system=load_on_demand"],
    "lru": ["system=lru"],
    "fifo": ["system=lru", "cache=fifo"],
    "lfu": ["system=lru", "cache=lfu"],
    "oracle": ["system=oracle"],
}
SIZES = {
    8: "mixtral_8x7b",
    16: "mixtral_8x7b",
    32: "gpt_oss_20b",
    64: "qwen3_30b_a3b",
    128: "qwen3_30b_a3b",
}
"""By number of experts: the model file whose expert sizes a trace with at most so many gets."""


# Calibration


def targets_of(case: Case) -> tuple[Target, ...]:
    """The statistics that are fitted, with their values on the fit half and the knob of each."""
    lag = case.longest_lag
    knobs: dict[str, tuple[str, float, float]] = {
        f"kept_{lag}": ("topic", 0.0, 0.9),
        "kept_8": ("slow", 0.0, 1.0),
        "score_high" if case.fit.experts.shape[-1] == 2 else "first_weight": ("spread", 0.2, 6.0),
        "overlap": ("memory_middle", 0.0, 1.0),
        "overlap_first": ("memory_first", 0.0, 1.0),
        "overlap_last": ("memory_last", 0.0, 1.0),
        "gini": ("popularity", 0.0, 2.0),
        "paths_2": ("affinity", 0.0, 0.98),
    }
    if case.has_lookahead:
        knobs["used_1_deep"] = ("carry_deep", 0.8, 0.9999)
        knobs["used_1_first"] = ("carry_first", 0.02, 0.99)
    if case.fit.inputs is not None:
        knobs["cosine"] = ("constant", 0.01, 8.0)
    measured = [
        Target(
            name,
            max(0.0, STATISTICS[name](case.fit)),
            0.01,
            "the fit half of the trace",
            knob,
            (low, high),
        )
        for name, (knob, low, high) in knobs.items()
    ]
    if not case.has_lookahead:
        measured += [
            Target(
                "used_1_deep",
                0.96,
                0.01,
                "borrowed",
                "carry_deep",
                (0.8, 0.9999),
                "Mixtral-8x7B (HOBBIT)",
            ),
            Target(
                "used_1_first", 0.85, 0.01, "borrowed", "carry_first", (0.02, 0.99), "tiny_mixtral"
            ),
        ]
    return tuple(measured)


def fit_case(case: Case, told: Callable[[str], None]) -> Fit:
    """The walk calibrated to the statistics of the fit half."""
    sequences, tokens, layers, top_k = case.fit.experts.shape
    stack = Stack(case.rule, layers, case.fit.num_experts, top_k, sequences, tokens)
    return calibrate(stack, Walk(), targets_of(case), told)


# Comparison


@dataclass(frozen=True)
class Row:
    """One comparison between the real trace and the synthetic ones.

    ``near`` is the largest difference at which the hypothesis holds, None where nothing is claimed.
    ``shuffled`` is the value of the baseline (`shuffled`), None where there is no baseline.
    """

    hypothesis: str
    name: str
    real: float
    synthetic: tuple[float, ...]
    near: float | None
    shuffled: float | None = None

    @property
    def difference(self) -> float:
        return float(np.mean(self.synthetic)) - self.real

    @property
    def holds(self) -> bool:
        if self.near is None:
            return True
        beaten = self.shuffled is None or abs(self.difference) < abs(self.shuffled - self.real)
        return abs(self.difference) <= self.near and beaten


def shuffled(gates: Gates, seed: int = 0) -> Gates:
    """The baseline: the same tokens in random order over all sequences, so that time is lost."""
    shape = gates.experts.shape
    order = np.random.default_rng(seed).permutation(shape[0] * shape[1])
    experts = gates.experts.reshape(-1, *shape[2:])[order].reshape(shape)
    return Gates(
        gates.num_experts, experts, gates.weights.reshape(-1, *shape[2:])[order].reshape(shape)
    )


def cache_rates(gates: Gates) -> dict[str, Floats]:
    """Hit rates by layer, of each cache policy at each share of resident experts."""
    found = {}
    for share in SHARES:
        slots = max(gates.experts.shape[-1], round(gates.num_experts * share))
        found[f"LRU {share:.0%}"] = lru_hit_rate(gates.experts, slots, max_tokens=1 << 31)
        found[f"LFU {share:.0%}"] = lfu_hit_rate(gates.experts, slots)
        found[f"Belady {share:.0%}"] = belady_hit_rate(gates.experts, slots)
    return found


def recalls(fit: Gates, asked: Gates) -> dict[str, float]:
    """Recall of each predictor, mean over layers: those of H2 first, then those of H3."""
    found = {
        "most popular": float(popularity_recall(fit, asked).mean()),
        "previous token": float(previous_token_recall(asked).mean()),
        "layer before": float(transition_recall(fit, asked).mean()),
    }
    if asked.ahead is not None:
        found |= {
            f"lookahead +{distance}": forecast_recall(asked, distance) for distance in (1, 2, 3)
        }
        found["lookahead +1, best quarter"] = forecast_recall(asked, 1, quarter(asked))
    return found


def compare_gates(case: Case, walk: Walk) -> list[Row]:
    """The comparisons of H1 (caches), H2 and H3 (predictors)."""
    sequences, tokens, layers, top_k = case.fit.experts.shape
    rates: list[dict[str, Floats]] = []
    scores: list[dict[str, float]] = []
    for seed in SEEDS:
        both = synthetic_gates(
            walk, case.rule, layers, case.fit.num_experts, top_k, 2 * sequences, tokens, seed
        )
        halves = [_half(both, slice(0, sequences)), _half(both, slice(sequences, None))]
        rates.append(cache_rates(halves[1]))
        scores.append(recalls(*halves))
    real_rates, base, real_scores = (
        cache_rates(case.eval),
        cache_rates(shuffled(case.eval)),
        recalls(case.fit, case.eval),
    )
    rows = [
        Row(
            "H1",
            name,
            float(real.mean()),
            tuple(float(rate[name].mean()) for rate in rates),
            NEAR_CACHE,
            float(base[name].mean()) if name.startswith("LRU") else None,
        )
        for name, real in real_rates.items()
    ]
    for name in (f"LRU {share:.0%}" for share in SHARES):
        apart = tuple(float(np.abs(rate[name] - real_rates[name]).mean()) for rate in rates)
        rows.append(Row("-", f"{name}, mean absolute difference of a layer", 0.0, apart, None))
    for name, real_score in real_scores.items():
        hypothesis = "H3" if name.startswith("lookahead") and case.has_lookahead else "H2"
        synthetic = tuple(score[name] for score in scores)
        rows.append(Row(hypothesis, f"recall: {name}", real_score, synthetic, NEAR_RECALL))
    return rows


def _half(gates: Gates, own: slice) -> Gates:
    ahead = gates.ahead
    assert ahead is not None
    return Gates(
        gates.num_experts,
        gates.experts[own],
        gates.weights[own],
        lambda distance: ahead(distance)[own],
    )


# Systems


def speeds(trace: Trace, systems: Mapping[str, list[str]]) -> dict[tuple[float, str], float]:
    """Simulated decode tokens/s of each system at each share, on the eval sequences of a trace."""
    shape = trace.header.model
    sizes = SIZES[min(most for most in SIZES if most >= min(shape.experts, max(SIZES)))]
    common = [
        f"model={sizes}",
        f"model.sites={shape.sites}",
        f"model.experts={shape.experts}",
        f"model.top_k={shape.top_k}",
        f"model.gates_of={shape.name}",
        f"model.sizes_of={sizes}",
        "trace=tiny_mixtral",  # No file is read: the trace is at hand.
        "trace.split=eval",
        "experiment=more_memory",
        "outputs=summary",
        "output_dir=unused",
    ]
    found = {}
    for share in SHARES:
        for name, choice in systems.items():
            cfg, _ = configure(*choice, *common, f"budget.resident_share={share}")
            spent, tokens = decode_time_and_tokens(execute(build(cfg, name, trace)).frames)
            found[share, name] = float(tokens.sum() / spent.sum() * 1e9)
    return found


def compare_systems(
    case: Case, fit: Fit, told: Callable[[str], None]
) -> tuple[list[Row], list[str]]:
    """The comparisons of H4, and the pairs of systems that the synthetic traces rank wrongly.

    The rows are tokens/s of each system and share (nothing is claimed of them), and speed-ups over
    the system ``lru``.
    """
    systems = WITH_LOOKAHEAD if case.has_lookahead else WITHOUT
    told("simulating the real trace")
    real = speeds(case.trace, systems)
    synthetic = []
    for seed in SEEDS:
        told(f"simulating a synthetic trace, seed {seed}")
        synthetic.append(speeds(_trace_like(case, fit, seed), systems))
    rows = []
    for (share, name), value in real.items():
        found = tuple(speed[share, name] for speed in synthetic)
        rows.append(Row("-", f"{share:.0%} {name}, tokens/s", value, found, None))
        if name != "lru":
            against = tuple(speed[share, name] / speed[share, "lru"] for speed in synthetic)
            base = value / real[share, "lru"]
            rows.append(
                Row("H4", f"{share:.0%} {name}, over lru", base, against, NEAR_SPEEDUP * base)
            )
    wrong = []
    for share in SHARES:
        for one, other in combinations(systems, 2):
            truth = real[share, one] / real[share, other]
            told_so = np.mean([speed[share, one] for speed in synthetic]) / np.mean(
                [speed[share, other] for speed in synthetic]
            )
            if abs(truth - 1) > TIE and (truth > 1) != (told_so > 1):
                wrong.append(f"{share:.0%}: {one} and {other}")
    return rows, wrong


def _trace_like(case: Case, fit: Fit, seed: int) -> Trace:
    """A synthetic trace of as many sequences as the case, with prompts of its mean length."""
    header, shape = case.trace.header, case.trace.header.model
    sequences, tokens = case.fit.experts.shape[:2]
    model = replace(shape, name=f"synthetic_{shape.name}")
    preset = Preset(
        case.name,
        model,
        case.rule,
        (tuple(range(shape.sites)),),
        {},
        {"measured": "its fit half"},
        (),
    )
    prompt = round(float(np.mean([item.prompt_tokens for item in header.sequences])))
    depth = header.lookahead.depth if header.lookahead else 0
    request = Request(case.name, tokens, "measured", 2 * sequences, prompt, seed, depth)
    return synthesize_like(preset, fit, request).trace


# Reporting


def report(case: Case, fit: Fit, rows: Sequence[Row], wrong: Sequence[str]) -> str:
    """The case's tables and verdicts in markdown, as docs/synthesis_check.md prints them."""
    sequences, tokens, layers, top_k = case.fit.experts.shape
    lines = [
        (
            f"### {case.name}: {layers} x {case.fit.num_experts} top-{top_k}, 2 x {sequences}"
            f" sequences of {tokens} tokens"
        ),
        "",
        "| fitted | target | achieved (fresh seeds) | knob |",
        "|---|---:|---:|---|",
    ]
    for item in fit.rows:
        knob = item.target.knob
        assert knob is not None
        lines.append(
            f"| {item.target.statistic} | {item.target.value:.3f} | {item.achieved:.3f} ±"
            f" {item.deviation:.3f} | {knob} = {getattr(fit.walk, knob):.3f} |"
        )
    lines += [
        "",
        "| | not fitted | real | synthetic (3 seeds) | difference | shuffled | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        spread = float(np.std(row.synthetic, ddof=1))
        base = "" if row.shuffled is None else f"{row.shuffled:.3f}"
        verdict = "" if row.near is None else "holds" if row.holds else "**fails**"
        lines.append(
            f"| {row.hypothesis} | {row.name} | {row.real:.3f} | {np.mean(row.synthetic):.3f} ±"
            f" {spread:.3f} | {row.difference:+.3f} | {base} | {verdict} |"
        )
    verdicts = []
    for name in ("H1", "H2", "H3", "H4"):
        own = [row for row in rows if row.hypothesis == name]
        if own:
            failed = sum(not row.holds for row in own)
            good = not failed and not (name == "H4" and wrong)
            verdicts.append(
                f"{name} {'holds' if good else 'FAILS'} ({len(own) - failed} of {len(own)})"
            )
    order = (
        f"wrong order: {'; '.join(wrong)}" if wrong else "every pair of systems in the right order"
    )
    return "\n".join([*lines, "", f"{case.name}: {', '.join(verdicts)}; {order}."])


def parse(arguments: Sequence[str]) -> tuple[list[Path], int, int]:
    """Trace directories, sequences of each split, and tokens of each sequence.

    Raise ValueError for the first argument that is wrong.
    """
    given = {"traces": str(BUNDLED), "sequences": "32", "tokens": "64"}
    given |= read(verb_of("capture check_synthesis"), arguments).own
    counts = [int(given[key]) for key in ("sequences", "tokens")]
    return [Path(text) for text in given["traces"].split(",")], counts[0], counts[1]


@telling("the reports above are whole")
def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 whether or not the hypotheses hold, 2 with one message when input is wrong."""
    try:
        directories, sequences, tokens = parse(arguments)
        for directory in directories:
            begun = time.monotonic()
            with saying(str(directory)) as tell:
                case = load_case(directory, sequences, tokens)
                fit = fit_case(case, tell)
                rows = compare_gates(case, fit.walk)
                systems, wrong = compare_systems(case, fit, tell)
            print(report(case, fit, [*rows, *systems], wrong))
            print(f"\n{time.monotonic() - begun:.0f} s")
    except ValueError as error:
        print(f"check_synthesis: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
