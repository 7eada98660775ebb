"""Which sequences a run's words choose, by the trace's header alone."""

from __future__ import annotations

from typing import Any

import pytest

from sim.board.chosen import chosen_fault

CHOICE = {
    "path": "capture/assets/traces/tiny_mixtral",
    "split": "eval",
    "exclude": [],
    "max_sequences": 3,
}


@pytest.mark.pure
@pytest.mark.parametrize(
    ("told", "workload", "is_fault"),
    [
        ([32, 33, 34], {}, False),
        ([34, 33, 32], {}, False),
        ([32, 33], {}, True),
        ([32, 33, 35], {}, True),
        ([32, 33, 33], {}, True),
        ([0, 1, 2], {}, True),
        ([32, 35], {"short_sequences": "drop"}, False),
        ([32, 32], {"short_sequences": "drop"}, True),
        ([0, 32], {"short_sequences": "drop"}, True),
        ([32, 33, 34, 35], {"short_sequences": "drop"}, True),
        ([32], {"requests": "requests.jsonl"}, False),
    ],
)
def test_sequences_are_those_of_the_words(
    told: list[int], workload: dict[str, Any], is_fault: bool
) -> None:
    fault = chosen_fault(told, {"trace": CHOICE, "workload": workload})
    assert bool(fault) == is_fault
    assert not fault or fault.startswith(f"the words do not choose {told[0]}, ")
