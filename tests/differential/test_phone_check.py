"""The check of another engine's log, on a phone's own log.

It must explain every flag, and name first what contradicts it first. Oracle: the phone's cache in
plain Python (`test_phone_trace` has its rule), which says at which lookups each altered log
contradicts the contract. Faulty engines are tested in `test_phone_faults`.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest
from altered_phone import ALTERATIONS, BUDGET, CONTRACT, ROUTES, contradiction, first_steps, plain

from capture.import_trace import main as import_trace
from sim.check import check, main
from sim.checking.cache_replay import Replayer, deviations
from sim.traces.residency_log import ResidencyLog, read_log

STEPS = 8
"""Decoded tokens of the altered logs, after the prompt: replays take their time."""
pytestmark = pytest.mark.skipif(
    not ROUTES.exists(), reason="the published Qwen3-30B-A3B phone trace is not here"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("phone") / "trace"
    assert import_trace(["format=bigmoe", f"path={ROUTES}", f"output_dir={made}"]) == 0
    return made


@pytest.fixture(scope="module")
def log(folder: Path) -> ResidencyLog:
    return read_log(folder)


@pytest.fixture(scope="module")
def beginning(log: ResidencyLog) -> ResidencyLog:
    """The log up to its `STEPS`-th decoded token."""
    return first_steps(log, STEPS)


# ---- the contract


def test_a_contract_explains_every_flag_of_the_phone_and_the_rivals_are_ranked_below(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder), "budget=4000MiB", "policy=lru", "scope=global", "initial=empty"]) == 0
    lines = capsys.readouterr().out.splitlines()
    explained = (
        "explains all 44766 flags: policy=lru initial=empty scope=global recency=rows retention="
    )
    hits = ": hits 66.11 %, 80.28 % of decoded tokens'"
    assert lines[0].endswith(f"flagged resident{hits}")
    assert lines[1:3] == [
        f"{explained}{retention}{hits}" for retention in ("after_batch", "strict")
    ]
    assert lines[3] == "this log cannot tell these contracts apart"
    # By need order 8 flags are wrong, in plain Python too (test_phone_trace).
    assert [line.split(":")[0] for line in lines if "44758" in line] == [
        "explains 44758 of 44766 flags (99.98 %)"
    ] * 2


def test_a_budget_one_mib_off_is_no_explanation(log: ResidencyLog) -> None:
    for budget in (3999 << 20, 4001 << 20):
        wrong = check(Replayer(log), CONTRACT, budget).wrong
        assert wrong is not None
        assert len(wrong) == 4  # as in plain Python


# ---- altered logs


def test_plain_python_gives_every_flag(log: ResidencyLog) -> None:
    assert contradiction(log) is None


def test_the_first_contradiction_of_an_altered_log_is_named_to_the_lookup(
    beginning: ResidencyLog,
) -> None:
    """`localised.py` counts it, and how often the altered lookup itself is told, of a thousand."""
    for kind, alter in enumerate(ALTERATIONS):
        made = next(
            made
            for seed in count()
            if (made := alter(beginning, np.random.default_rng((kind, seed)))).first is not None
        )
        replayer = Replayer(made.log)
        wrong = deviations(made.log, replayer.replay(CONTRACT, BUDGET))
        assert int(wrong[0]) == made.first, made.kind
        assert np.array_equal(wrong, np.flatnonzero(plain(made.log) != made.log.resident))
