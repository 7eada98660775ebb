"""The faults of a thousand engines, found from the residency logs that they leave.

Oracle: `faulty_phone`, the phone's cache in plain Python, with one fault at random. A fault that changes no flag leaves
the right engine's log, and another is drawn. A fault is *decidable* if one of the flags that it changes is of its own
expert (of the one that went for another, was not refreshed or not kept; of the one that stayed): else the log shows no
more than that something went wrong, which many faults would explain alike. Decidable ones must be told of, with their
kind, their expert, its lookups before and after, and a span of batches that contains theirs. ``FAULTY_ENGINES=1000`` in
the environment makes a thousand of them, ``FAULTY_FROM`` chooses other ones.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from faulty_phone import KINDS, Course, Key, Wrong, course, draw, log_of, stay

from capture.import_trace import main as import_trace
from sim.cache_replay import Contract, Replayer
from sim.cache_walk import BUDGET, LOST, PINNED, UNREFRESHED, VICTIM, CacheWalk
from sim.fault_search import FLAG, Explanation, FaultSearch
from sim.residency_log import ResidencyLog, read_log

ROUTES = Path(__file__).parents[2] / ".." / "shared" / "traces" / "phone_qwen3_30b" / "qwen.route.csv"
ALLOWED = 4000 << 20
ENGINES = int(os.environ.get("FAULTY_ENGINES", "6"))
FROM = int(os.environ.get("FAULTY_FROM", "0"))
STEPS = 24 if ENGINES > 6 else 8
"""Decoded tokens of the logs, after the prompt."""
CONTRACT = Contract("lru", (("initial", "empty"), ("recency", "rows"), ("retention", "after_batch")))
TOLD_AS = {
    "wrong victim": VICTIM, "not refreshed": UNREFRESHED, "not admitted": LOST, "never evicted": PINNED,
    "budget": BUDGET, "flag": FLAG,
}  # fmt: skip
pytestmark = pytest.mark.skipif(not ROUTES.exists(), reason="the published Qwen3-30B-A3B phone trace is not here")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ResidencyLog:
    """The prompt and the first decoded tokens."""
    made = tmp_path_factory.mktemp("faults") / "trace"
    assert import_trace(["format=bigmoe", f"path={ROUTES}", f"output_dir={made}"]) == 0
    whole = read_log(made)
    rows, lookups = whole.trace.step <= STEPS, whole.step <= STEPS
    columns = ("step", "phase", "sequence", "position", "token", "valid", "ids", "weights")
    trace = replace(whole.trace, **{name: getattr(whole.trace, name)[rows] for name in columns})
    columns = ("line", "row", "site", "slot", "expert", "resident", "loaded_bytes")
    return replace(whole, trace=trace, **{name: getattr(whole, name)[lookups] for name in columns})


@pytest.fixture(scope="module")
def right(log: ResidencyLog) -> Course:
    found = course(log, ALLOWED)
    assert found.flags == log.resident.tolist()
    return found


@dataclass(frozen=True)
class Case:
    """A faulty engine's log; whether a flag of the fault's own expert tells of it."""

    wrong: Wrong
    log: ResidencyLog
    decidable: bool


def cases(kind: str, right: Course, log: ResidencyLog, number: int) -> list[Case | None]:
    """``number`` logs that are not the right engine's, and a None for each engine that left the right one's."""
    made: list[Case | None] = []
    for seed in count(FROM):
        rng = np.random.default_rng((KINDS.index(kind), seed))
        if kind == "flag":
            lookup = int(rng.integers(len(log)))
            flags = log.resident.copy()
            flags[lookup] = not flags[lookup]
            place = (int(log.site[lookup]), int(log.expert[lookup]))
            batch = int(np.flatnonzero([place in found for found in right.found])[0])
            made.append(Case(Wrong(kind, batch, place), replace(log, resident=flags), True))
        else:
            wrong = draw(kind, right, log, rng)
            found = course(log, ALLOWED, wrong).flags
            changed = [i for i, (a, b) in enumerate(zip(found, right.flags, strict=True)) if a is not b]
            about = wrong.key or wrong.other
            own = any((int(log.site[i]), int(log.expert[i])) == about for i in changed)
            made.append(Case(wrong, log_of(log, found), own or kind == "budget") if changed else None)
        if len(made) - made.count(None) == number or len(made) == 40 * number:
            return made
    raise AssertionError


def is_told(explanation: Explanation, wrong: Wrong, right: Course, units: int) -> bool:
    """The explanation is the fault: its kind, its expert and that one's lookups around it, and its batch among those
    that it leaves open."""
    if explanation.kind != TOLD_AS[wrong.kind] or not explanation.first.tick <= wrong.batch <= explanation.last.tick:
        return False
    if wrong.kind == "budget":
        return explanation.first.change_bytes == wrong.change_bytes

    def number(key: Key | None) -> int:
        assert key is not None
        return key[0] * units + key[1]

    if wrong.kind == "never evicted":
        return explanation.first.other == number(wrong.other)
    return explanation.first.key == number(wrong.key) and (explanation.since, explanation.shown) == stay(right, wrong)


def test_an_engine_that_spares_an_expert_once_leaves_the_log_of_one_that_does_not(
    log: ResidencyLog, right: Course
) -> None:
    """The least recent stays the least recent: it goes next, unless the next batch asks for it."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        assert course(log, ALLOWED, draw("spared once", right, log, rng)).flags == right.flags


def tell(kind: str, number: int, log: ResidencyLog, right: Course) -> Counter[str]:
    """So many logs of faulty engines, and what was told of them."""
    told: Counter[str] = Counter()
    for case in cases(kind, right, log, number):
        if case is None:
            told["no flag differs"] += 1
            continue
        told["logs"] += 1
        replayer = Replayer(case.log)
        walk = CacheWalk(replayer, CONTRACT, ALLOWED, replayer.replay(CONTRACT, ALLOWED))
        found = FaultSearch(walk).search().explanations
        told["explained"] += bool(found)
        told["decidable"] += case.decidable
        if kind == "flag":
            lookups = np.flatnonzero(case.log.resident != log.resident)
            (only,) = found
            is_it = (replayer.tick == only.first.tick) & (replayer.keys == only.first.key)
            mine = [only] if is_it[lookups].all() else []
        else:
            mine = [e for e in found if is_told(e, case.wrong, right, replayer.units)]
        if case.decidable and mine:
            told["decidable and told"] += 1
            told["told as the only one"] += len(found) == 1
            told["told with one batch"] += mine[0].first == mine[0].last
            told["told with the expert and its lookups as the only ones"] += (
                len({(e.first.key, e.first.other if e.kind == PINNED else -1, e.since, e.shown) for e in found}) == 1
            )
    return told


def hold(told: Counter[str]) -> None:
    assert told["decidable"] > 0
    assert told["decidable and told"] >= 0.95 * told["decidable"]


@pytest.mark.parametrize("kind", ["wrong victim", "flag"])
def test_a_fault_that_shows_in_a_flag_of_its_own_expert_is_told_of(log: ResidencyLog, right: Course, kind: str) -> None:
    hold(tell(kind, 1, log, right))


@pytest.mark.thorough
def test_faults_of_every_kind_are_told_of_where_a_flag_of_their_own_expert_shows_them(
    log: ResidencyLog, right: Course
) -> None:
    everything: Counter[str] = Counter()
    for kind in TOLD_AS:
        told = tell(kind, -(-ENGINES // len(TOLD_AS)), log, right)
        print(f"{kind}: {', '.join(f'{what} {number}' for what, number in told.items())}", flush=True)
        everything += told
    print(f"all: {', '.join(f'{what} {number}' for what, number in everything.items())}", flush=True)
    hold(everything)
