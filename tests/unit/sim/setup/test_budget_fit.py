"""budget=fit: as many expert bytes as the device's memory leaves, and not one step more."""

from __future__ import annotations

import pytest

from sim.setup.budgets import SHARES
from sim.setup.build import build
from sim.setup.configure import configure
from sim.study.trials import prepared

FEW = ("trace.max_sequences=1",)


@pytest.mark.alike
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


# Contracts: C183
def test_what_could_be_swapped_out_is_no_memory_to_fill() -> None:
    words = ["system=lru", "budget=fit", "model=tiny_mixtral", "hardware=paced_cpu", *FEW]
    words.append("hardware.memory_gib=0.0092")
    swap = "+hardware.swap={_target_: sim.machine.Swap, gib: 1, page_kib: 4, in_us: 5, out_us: 7}"
    alone, swapping = prepared(words), prepared([*words, swap])
    assert swapping.config["budget"] == alone.config["budget"]
    assert swapping.ledger.total_bytes <= swapping.hardware.memory_bytes


def test_what_leaves_no_room_is_refused_with_the_reason() -> None:
    words = ["system=lru", "budget=fit", *FEW]
    with pytest.raises(ValueError, match=r"nothing fits: the device holds 1\.5 GiB, but"):
        prepared([*words, "hardware.memory_gib=1.5", "loader.staging_slots=2"])


def test_where_the_memory_has_room_for_less_than_one_token_needs_both_are_told() -> None:
    """Of Mixtral's experts 2 of 8 a layer are a quarter; the memory has room for less."""
    words = ("system=lru", "model=mixtral_8x7b", "hardware=rtx4090_pcie4", "budget=fit")
    with pytest.raises(ValueError, match="nothing fits") as found:
        prepared([*words, "cache.scope=site", "trace.max_sequences=1"])
    told = str(found.value)
    assert "less than 25 % of the expert bytes are too few: pool 31 holds 352321536 B" in told
    assert "so many are refused: the device holds 24 GiB, but the run needs 24.51 GiB" in told
    assert "but one token may need 2 experts" in told
    assert "say budget=fit" not in told


def test_a_refused_fit_names_no_smaller_budget_as_the_way_out() -> None:
    for words in (["loader.staging_slots=2"], []):
        with pytest.raises(ValueError, match=r"; choose fewer bits \(precision=\)") as found:
            prepared(["system=lru", "budget=fit", "hardware.memory_gib=1.5", *words, *FEW])
        assert "resident_share" not in str(found.value)


def test_another_word_for_the_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="budget=fill must be a section of values"):
        build(*configure("system=lru", "budget=fill", *FEW))
