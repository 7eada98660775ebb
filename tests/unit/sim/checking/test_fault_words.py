"""Faults in sentences: each kind, at one time or between two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.checking.cache_walk import BUDGET, LOST, PINNED, UNREFRESHED, VICTIM, Fault
from sim.checking.fault_search import FLAG, Explanation, Found
from sim.checking.fault_words import tell, tell_faults


def walk(tells_bytes: bool = True) -> Any:
    """Gate 2 s + site of two sites, layers 0 and 5, is of the trace's step s + 7; four experts and
    one more unit a site. At gate 4 expert 1 was found, expert 2 loaded.
    """
    log = SimpleNamespace(
        layers=[0, 5],
        line=[0, 31],
        tells_bytes=tells_bytes,
        trace=SimpleNamespace(step=np.array([0, 7, 8, 9])),
    )
    workload = SimpleNamespace(
        gate_step=[0, 0, 1, 1, 2, 2],
        gate_site=[0, 1, 0, 1, 0, 1],
        steps=[SimpleNamespace(start=start) for start in (0, 1, 2)],
        row=np.array([1, 2, 3]),
    )
    return SimpleNamespace(
        replayer=SimpleNamespace(log=log, workload=workload, units=5),
        lookup=lambda tick, key: 1 if (tick, key) == (4, 1) else 0,
        keys={4: [1, 2]},
        found={4: [True, False]},
    )


def explanation(kind: str, until: int = 4, **more: int) -> Explanation:
    first = Fault(kind, 4, **{"key": 1, "other": 7, **more})
    return Explanation(
        kind, first, Fault(kind, until, first.key, first.other, first.change_bytes), 0, 5
    )


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (
            explanation(FLAG),
            "flag: row 31, step 9, layer 0, expert 1 of layer 0: the flag alone is wrong (what was"
            " read says the contrary)",
        ),
        (
            explanation(VICTIM),
            "victim: at step 9, layer 0 expert 1 of layer 0 was evicted instead of expert 2 of layer"
            " 5 (site 1)",
        ),
        (
            explanation(VICTIM, until=5),
            "victim: once from step 9, layer 0 to step 9, layer 5 (site 1) expert 1 of layer 0 was"
            " evicted instead of what the contract chose",
        ),
        (
            explanation(VICTIM, key=0),
            "victim: at step 9, layer 0 expert 0 of layer 0 was evicted instead of expert 2 of layer"
            " 5 (site 1)",
        ),
        (
            explanation(VICTIM, key=-1),
            "victim: at step 9, layer 0 expert 2 of layer 5 (site 1) was spared and the next one"
            " went",
        ),
        (
            explanation(UNREFRESHED),
            "recency: at step 9, layer 0 expert 1 of layer 0 was asked for and the policy not told",
        ),
        (explanation(LOST), "dropped: at step 9, layer 0 expert 1 of layer 0, for nobody"),
        (
            explanation(LOST, key=2),
            "admission: at step 9, layer 0 expert 2 of layer 0 was loaded and not kept",
        ),
        (
            explanation(LOST, until=5, key=2),
            "dropped: once from step 9, layer 0 to step 9, layer 5 (site 1) expert 2 of layer 0, for"
            " nobody",
        ),
        (
            explanation(PINNED),
            "pin: at step 9, layer 0 expert 2 of layer 5 (site 1) ceased to be evicted",
        ),
        (
            explanation(PINNED, until=5),
            "pin: some time from step 9, layer 0 to step 9, layer 5 (site 1) expert 2 of layer 5"
            " (site 1) ceased to be evicted",
        ),
        (
            explanation(BUDGET, change_bytes=-10),
            "budget: from step 9, layer 0 the engine held 10 B less",
        ),
        (
            explanation(BUDGET, until=5, change_bytes=10),
            "budget: beginning between step 9, layer 0 and step 9, layer 5 (site 1), the engine held"
            " 10 B more",
        ),
    ],
)
def test_a_fault_is_told_with_its_expert_and_its_time(told: Explanation, text: str) -> None:
    assert tell(walk(), told) == text


def test_a_flag_is_told_with_what_there_is_to_say_so() -> None:
    assert tell(walk(False), explanation(FLAG)).endswith("is wrong (nothing else is wrong)")


ONE, TWO = explanation(LOST), explanation(UNREFRESHED)
LINES = tuple(f"  {tell(walk(), one)}" for one in (ONE, TWO))
LIMIT = "not every fault was tried: the search has a limit"


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (
            Found((), True),
            ["no single fault of the engine or the log that was tried explains every flag"],
        ),
        (Found((ONE,), False), ["one fault explains every flag:", LINES[0], LIMIT]),
        (
            Found((ONE, TWO), True, 3),
            [
                "each of 2 faults explains every flag; this log cannot tell them apart:",
                *LINES,
                "3 more experts were there and not asked for since: that any of them went too soon"
                " shows nowhere else, and was not tried",
            ],
        ),
    ],
)
def test_all_faults_are_told_and_what_was_not_tried(found: Found, lines: list[str]) -> None:
    assert list(tell_faults(walk(), found)) == lines
