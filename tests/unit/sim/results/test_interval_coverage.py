"""How often a 95 % interval covers the truth, by simulation, with few and unequal sequences.

The two systems differ by chance alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.interval_tails import (
    SIZES,
    SKEWED,
    TAILS,
    bootstrap_coverage,
    coverage,
    coverage_of_texts,
)
from sim.results.coverage import TAILS as TOLD_TAILS
from sim.results.coverage import Coverage, coverage_at, covered
from sim.results.intervals import MIN_SEQUENCES, Floats
from sim.results.latency import decode_time_and_tokens
from sim.results.paired import paired
from sim.study.trials import trial
from sim.values.places import ASSETS, ROOT

COUNTS = (4, 6, 8, 16, 32)
TRIALS = 20_000


@pytest.mark.alike
@pytest.mark.parametrize("sequences", COUNTS)
def test_intervals_cover_the_truth_in_93_to_97_of_100_cases_whatever_the_tails(
    sequences: int,
) -> None:
    found = {
        (size, tail): coverage(SIZES[size], TAILS[tail], sequences, TRIALS, sequences)
        for size in SIZES
        for tail in TAILS
    }
    assert {where: share for where, share in found.items() if not 0.93 <= share <= 0.97} == {}
    # A system against itself is called faster or slower wherever the interval does not cover 1.
    assert 1 - np.mean([*found.values()]) <= 0.06


def test_a_verdict_is_refused_below_the_fewest_sequences_that_are_shown_here() -> None:
    assert min(COUNTS) == MIN_SEQUENCES


def test_a_percentile_bootstrap_would_cover_far_less() -> None:
    assert bootstrap_coverage(SIZES["lognormal .5"], TAILS["5 %"], 4, 500, 4) < 0.85


@pytest.mark.parametrize(
    ("tail", "least", "most"), [("exponential", 0.87, 0.92), ("one in five is 1.5x", 0.5, 0.65)]
)
def test_few_sequences_do_not_show_a_rare_difference_that_only_one_system_has(
    tail: str, least: float, most: float
) -> None:
    """docs/metrics.md says so: no interval can know what four sequences do not contain."""
    assert least <= coverage(SIZES["equal"], SKEWED[tail], 4, TRIALS, 1, one_sided=True) <= most
    assert coverage(SIZES["equal"], SKEWED[tail], 64, TRIALS, 1, one_sided=True) >= 0.92


@pytest.mark.parametrize(
    ("each", "least", "most"), [(1, 0.94, 0.96), (2, 0.87, 0.91), (4, 0.75, 0.82)]
)
def test_sequences_of_one_text_are_no_independent_ones_as_docs_metrics_says(
    each: int, least: float, most: float
) -> None:
    assert least <= coverage_of_texts(32, each, 0.5, TRIALS, 32) <= most


@pytest.mark.thorough
def test_docs_metrics_says_what_the_command_of_its_coverages_prints() -> None:
    """Started as the page says, which no other test does: it finds what it imports by itself."""
    done = subprocess.run(
        [sys.executable, "tests/bench/interval_coverage.py"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    cells = {tuple(line.strip("| ").split(" | ")) for line in page.splitlines()}
    rows = [tuple(line.split(" | ")) for line in done.stdout.splitlines()]
    covered_by_ours = [row for row in rows if row[0].isdecimal()]
    texts = re.findall(r"(\d+) sequences, (\d) of each text.*: (.*), (.*), (.*)", done.stdout)
    assert (len(covered_by_ours), len(texts)) == (7, 4)
    assert [row for row in [*covered_by_ours, *texts] if row not in cells] == []
    bootstrap = dict(re.findall(r"bootstrap at (\d+) sequences.*: (\d+) %", done.stdout))
    said = "bootstrap covers: {2} % at 2 sequences, {4} % at 4 and {16} % at 16"
    assert said.format(*(bootstrap.get(str(count)) for count in range(17))) in page


def test_the_bundled_passages_are_of_as_many_files_as_docs_metrics_says() -> None:
    """32 of the ``eval`` split, of 18 files, at most three of one."""
    lines = (ASSETS / "prompts" / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    files = Counter(one["document"] for one in map(json.loads, lines) if one["split"] == "eval")
    assert (files.total(), len(files), max(files.values())) == (32, 18, 3)


@pytest.fixture(scope="module")
def chance() -> Floats:
    """Decoding times [8 seeds, 32 sequences] of one system whose cache evicts at random."""
    words = (
        "system=lru",
        "cache=random",
        "budget.resident_share=0.5",
        "workload.prompt_tokens=8",
        "workload.decode_tokens=16",
    )
    return np.array(
        [decode_time_and_tokens(trial([*words, f"cache.seed={seed}"]))[0] for seed in range(8)]
    )


@pytest.mark.alike
@pytest.mark.parametrize("sequences", [4, 8, 16, pytest.param(32, marks=pytest.mark.thorough)])
def test_a_system_against_itself_is_called_faster_or_slower_in_at_most_6_of_100_pairs(
    chance: Floats, sequences: int
) -> None:
    random = np.random.default_rng(sequences)
    picks = [random.choice(chance.shape[1], sequences, replace=False) for _ in range(20)]
    found = [
        paired(chance[a][pick], chance[b][pick])
        for a, b in combinations(range(8), 2)
        for pick in picks
    ]
    assert np.mean([one.is_decided for one in found]) <= 0.06


def test_one_sequence_has_no_interval_to_cover_anything() -> None:
    assert coverage_at(np.ones(1)) is None
    assert coverage_at(np.ones(2), trials=4) is not None


def test_an_interval_covers_its_own_ends_but_for_rounding() -> None:
    """Trials without chance, each half as long: the interval of every one is its ratio alone."""
    ours = np.array([[1.0, 2.0, 4.0], [3.0, 1.0, 1.0]])
    ratio = np.array([[2.0], [3.0]])
    assert covered(ratio * ours, ours, 2.0) == 0.5
    assert covered(2 * ours, ours, 2.0 * (1 + 5e-13)) == covered(2 * ours, ours, 2.0 - 1e-12) == 1
    assert covered(2 * ours, ours, 2.0 * (1 + 3e-12)) == covered(2 * ours, ours, 2.0 - 6e-12) == 0


def test_the_tails_that_are_drawn_and_the_same_answer_again() -> None:
    shape = (2, 3)

    def drawn(name: str, value: float = 0.0) -> Any:
        asked: list[Any] = []

        def draw(*words: Any) -> Any:
            asked.append(words)
            return np.full(shape, value)

        names = ("lognormal", "standard_t", "exponential")
        random: Any = SimpleNamespace(**dict.fromkeys(names, draw))
        return TOLD_TAILS[name](random, shape)[0, 0], asked

    assert drawn("5 %", 1.5) == (1.5, [(0, 0.05, shape)])
    assert drawn("20 %", 1.5) == (1.5, [(0, 0.2, shape)])
    assert drawn("t with 3 degrees", 2.0) == (pytest.approx(np.exp(0.1)), [(3, shape)])
    ends = [drawn("t with 3 degrees", value)[0] for value in (-99.0, 99.0)]
    assert ends == [pytest.approx(np.exp(-3)), pytest.approx(np.exp(3))]
    assert drawn("exponential", 2.0) == (pytest.approx(1.2), [(1, shape)])
    lengths = np.array([1.0, 2.0, 1.5, 3.0])
    found = coverage_at(lengths, trials=50)
    assert found == coverage_at(lengths, 50, 1) != coverage_at(lengths, 50, 2)
    assert isinstance(found, Coverage)
    assert (found.trials, found.lowest < found.highest) == (50, True)


def test_sequences_that_took_no_time_are_none_to_cover() -> None:
    """A leaderboard of four sequences of which one decodes."""
    assert coverage_at(np.array([5.0, 0.0, 0.0, 0.0]), trials=50) is None
    assert coverage_at(np.zeros(4), trials=50) is None
    assert coverage_at(np.array([5.0, 0.0, 3.0]), trials=50) is not None
