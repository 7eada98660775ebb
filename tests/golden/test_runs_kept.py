"""Whole runs leave what they left, and verbs take what they took.

Kept are every table, timeline and summary of each system, cache and feature, and every option.

What is right is said by the reference, the audit and the worked runs. Here nothing changes without
a word, whatever those do not ask about. ``runs.json`` keeps of each run a digest of each table and
of each part of its summary. ``python -m pytest tests/golden/test_runs_kept.py --anew`` writes it
anew; its difference names the runs and the parts that have changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import polars as pl
import pytest
from omegaconf import DictConfig

from helpers.golden import KEPT
from sim.answers.whatif_questions import QUESTIONS
from sim.fitting.fits import profile_of
from sim.results.outputs import answer
from sim.results.timeline import trace_events
from sim.setup.build import build
from sim.setup.execute import execute
from sim.traces.synthesis import PRESETS, synthesize
from sim.traces.trace import Trace
from sim.verbs.names import names
from sim.verbs.table import VERBS
from sim.verbs.verb import Verb
from unit.sim.results.test_metrics import RUNS

Configure = Callable[..., DictConfig]
PLACE = KEPT / "runs.json"
SHORT = "trace.max_sequences=1 workload.decode_tokens=8 budget.resident_share=0.4 bounds=max"
REFUSE = ("belady_bypass", "llama_cpp_class_lru", "llama_cpp_lru", "n_cpu_moe", "popular")
"""Caches that leave some variants to staging."""
WORDS = {
    **{f"run: {name}": f"{SHORT} trace.max_sequences=2 {words}" for name, words in RUNS.items()},
    **{f"system: {name}": f"{SHORT} system={name}" for name in names("system")},
    "system: edgemoe": f"{SHORT} system=edgemoe budget.resident_share=0.6 hardware.memory_gib=64",
    **{
        f"cache: {name}": f"{SHORT} system=lru cache={name}"
        + " loader.staging_slots=8" * (name in REFUSE)
        for name in names("cache")
    },
    **{
        f"devices: {name}": f"{SHORT} system=lru devices={name} bounds=none"
        for name in names("devices")
        if name != "none"
    },
}
UNKEPT = ("version", "trace")
"""Parts of a summary that change with the project's version, or with the trace's files."""
DIGITS = 9
"""Floats are compared to so many digits: sums may be added up in another order elsewhere."""


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Callable[[str, dict[str, str]], None]]:
    anew = request.config.getoption("--anew")
    before = json.loads(PLACE.read_text(encoding="utf-8")) if PLACE.is_file() else {}

    def check(name: str, now: dict[str, str]) -> None:
        if anew:
            before[name] = now
        else:
            assert now == before.get(name)

    yield check
    if anew:
        lines = [f"{json.dumps(name)}: {json.dumps(told)}" for name, told in sorted(before.items())]
        PLACE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def digest(value: Any) -> str:
    """A digest of lists, dictionaries, tables, arrays, texts and numbers."""
    told = json.dumps(_plain(value), sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:8]


def _plain(value: Any) -> Any:
    if isinstance(value, pl.DataFrame):
        return [[name, _plain(value[name].to_list())] for name in value.columns]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else value


@pytest.mark.parametrize("name", WORDS)
def test_a_run_leaves_what_it_left(
    name: str, configure: Configure, bundled_trace: Trace, kept: Callable[..., None]
) -> None:
    try:
        run = build(configure(*WORDS[name].split()), name, bundled_trace)
    except ValueError as refusal:
        kept(name, {"refused": str(refusal)})
        return
    result = execute(run)
    tables = {table: digest(rows) for table, rows in result.frames.tables().items()}
    timeline = trace_events(result.frames, run.controller.loader.wait, 4, {})
    summary = {
        f"summary.{part}": digest(told)
        for part, told in result.summary.items()
        if part not in UNKEPT
    }
    kept(name, {**tables, "timeline": digest(timeline), "said": answer(result.summary), **summary})


@pytest.mark.parametrize("preset", PRESETS)
def test_synthetic_gates_are_what_they_were(preset: str, kept: Callable[..., None]) -> None:
    given = {"persistence": 0.7, "skew": 0.9, "lookahead": 2, "lookahead_accuracy": 0.8}
    trace = synthesize(PRESETS[preset], tokens=6, sequences=3, prompt_tokens=4, seed=5, **given)
    now = {}
    for name, values in sorted(vars(trace).items()):
        if isinstance(values, np.ndarray):
            # The last digits of logarithms are the machine's own.
            is_whole = np.issubdtype(values.dtype, np.integer)
            now[name] = digest(values) if is_whole else f"{np.nanmean(values):.4g}"
    kept(f"synthetic: {preset}", now)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_takes_the_options_that_it_took(verb: Verb, kept: Callable[..., None]) -> None:
    parts = {name: digest(repr(value)) for name, value in vars(verb).items() if name != "options"}
    options = {f"option {one.key}": digest(repr(one)) for one in verb.options}
    kept(f"verb: {verb.name}", {**parts, **options})


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_asks_at_the_values_that_it_asked_at(
    name: str, kept: Callable[..., None]
) -> None:
    parts = vars(QUESTIONS[name]).items()
    kept(f"question: {name}", {part: digest(told) for part, told in parts if not callable(told)})


def test_what_is_fitted_is_what_it_was(bundled_trace: Trace, kept: Callable[..., None]) -> None:
    found = profile_of(bundled_trace)
    kept("fit: profile", {one.name: digest(getattr(found, one.name)) for one in fields(found)})
