"""budget=fit: as many expert bytes as the device's memory leaves, and not one step more."""

from __future__ import annotations

import pytest

from sim.setup.build import SHARES, build
from sim.setup.configure import configure
from sim.study.trials import prepared

FEW = ("trace.max_sequences=1",)


@pytest.mark.parametrize("system", ["lru", "hobbit", "floe", "llama_cpp"])
def test_the_share_fits_and_the_next_one_does_not(system: str) -> None:
    run = prepared([f"system={system}", "budget=fit", *FEW])
    share = run.config["budget"]["resident_share"]
    assert 0.1 < share < 1
    assert run.ledger.total_bytes <= run.hardware.memory_bytes
    with pytest.raises(ValueError, match="the device holds 24 GiB, but the run needs"):
        prepared([f"system={system}", f"budget.resident_share={share + 1 / SHARES:.4f}", *FEW])


def test_all_experts_are_the_most_that_fits() -> None:
    words = ("system=lru", "budget=fit", "model=tiny_mixtral", *FEW)
    assert prepared(words).config["budget"] == {"resident_share": 1.0, "slots_gib": None}


def test_what_leaves_no_room_is_refused_with_the_reason() -> None:
    for memory in ("0.9", "1.5"):
        with pytest.raises(ValueError, match=f"nothing fits: the device holds {memory} GiB, but"):
            prepared(["system=lru", "budget=fit", f"hardware.memory_gib={memory}", *FEW])


def test_another_word_for_the_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="budget=fill must be a section of values"):
        build(*configure("system=lru", "budget=fill", *FEW))
