"""The faults of engines, found from the residency logs that they leave.

Oracle: `faulty_phone`, the phone's cache in plain Python with one random fault. A fault that
changes no flag leaves the right engine's log, and another is drawn.

A fault is *decidable* if one of the flags that it changes is of its own expert. That is the expert
that went in another's place, was not refreshed or not kept, or stayed. Otherwise the log shows only
that something went wrong, which many faults would explain alike. Decidable faults must be reported
with their kind, their expert, its lookups before and after, and a span of batches that contains
theirs. `localised.py` counts how often they are, over a thousand engines.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest
from altered_phone import BUDGET, ROUTES, first_steps
from faulty_phone import TOLD_AS, Course, course, draw, draw_case
from localised import Checked, main, of_engine, of_text, read, table

from capture.import_trace import main as import_trace
from sim.traces.residency_log import ResidencyLog, read_log

DECODED = 8
"""Decoded tokens of the logs, after the prompt."""
pytestmark = pytest.mark.skipif(
    not ROUTES.exists(), reason="the published Qwen3-30B-A3B phone trace is not here"
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ResidencyLog:
    made = tmp_path_factory.mktemp("faults") / "trace"
    assert import_trace(["format=bigmoe", f"path={ROUTES}", f"output_dir={made}"]) == 0
    return first_steps(read_log(made), DECODED)


@pytest.fixture(scope="module")
def right(log: ResidencyLog) -> Course:
    found = course(log, BUDGET)
    assert found.flags == log.resident.tolist()
    return found


@pytest.fixture(scope="module")
def checked(log: ResidencyLog) -> Checked:
    return Checked(log)


def test_an_engine_that_spares_an_expert_once_leaves_the_log_of_one_that_does_not(
    log: ResidencyLog, right: Course
) -> None:
    """The least recent stays the least recent: it goes next, unless the next batch asks for it."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        assert course(log, BUDGET, draw("spared once", right, log, rng)).flags == right.flags


def decidable(kind: str, number: int, right: Course, log: ResidencyLog) -> list[int]:
    """The seeds of the first engines whose fault is."""
    found = []
    for seed in count():
        case = draw_case(kind, seed, right, log, BUDGET)
        if case is not None and case.decidable:
            found.append(seed)
            if len(found) == number:
                return found
    raise AssertionError


@pytest.mark.parametrize("kind", ["wrong victim", "flag"])
def test_a_fault_that_shows_in_a_flag_of_its_own_expert_is_told_of(
    log: ResidencyLog, right: Course, checked: Checked, kind: str
) -> None:
    (seed,) = decidable(kind, 1, right, log)
    told = of_engine(kind, seed, right, log, checked)
    assert told["told"]
    assert told["first"]


def test_an_altered_lookup_is_told_among_those_that_explain_the_log_alike(
    log: ResidencyLog, checked: Checked
) -> None:
    for kind in ("flip", "resize"):
        seeds = (seed for seed in count() if of_text(kind, seed, log, checked)["shows"])
        told = of_text(kind, next(seeds), log, checked)
        assert told["told"], kind
        assert told["first"], kind


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TOLD_AS)
def test_faults_of_every_kind_are_told_of_where_a_flag_of_their_own_expert_shows_them(
    log: ResidencyLog, right: Course, checked: Checked, kind: str
) -> None:
    for seed in decidable(kind, 4, right, log):
        assert of_engine(kind, seed, right, log, checked)["told"], seed


@pytest.mark.thorough
def test_a_count_that_was_killed_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told() -> list[str]:
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]

    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert main([str(whole), "engines=6", "texts=4"]) == 0
    first, text = told(), whole.read_bytes()
    cut.write_bytes(text[: len(text) // 2])
    assert main([str(cut), "engines=6", "texts=4"]) == 0
    assert sorted(cut.read_bytes().splitlines()) == sorted(text.splitlines())
    assert told() == first == [line for line in table(read(whole)) if line]
