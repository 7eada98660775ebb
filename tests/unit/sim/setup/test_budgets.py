"""The largest budget that fits, and the smallest that works; parts are made by hand."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from sim.machine.budget import Budget
from sim.setup import budgets
from sim.setup.budgets import LESS, fitting_budget, smallest_budget
from sim.values.types import CapacityError
from sim.values.units import GIB


class Made:
    """Stands for what a run is built of, where shares below ``few`` are too few for the parts, and
    those above ``much`` too many for the memory.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, few: float, much: float) -> None:
        self.few, self.much = few, much
        self.given: list[Any] = []
        parts = SimpleNamespace(
            model="model",
            hardware="hardware",
            precision=SimpleNamespace(precisions=("fp16",), held=None),
            workload=SimpleNamespace(speculation=SimpleNamespace(layers_in_use=3)),
        )
        self.parts: Any = parts
        self.workload: Any = SimpleNamespace(limits="limits")
        for name, answer in (
            ("make_parts", lambda config: config["parts"]),
            ("replace", lambda made, **changes: made),
            ("prepare_parts", lambda *given: self.given.append(given[1:])),
            ("make_controller", self.controller),
            ("check_run_memory", self.memory),
            ("all_slot_bytes", lambda share: 10 * GIB + 1 if share == 1 else 0),
        ):
            monkeypatch.setattr(budgets, name, answer)

    def geometry(self, budget: Budget) -> Any:
        return budget.resident_share

    def controller(self, share: float, parts: Any) -> Any:
        assert parts is self.parts
        if share < self.few:
            raise CapacityError("pool 0 holds 1 B; lower something")
        return share

    def memory(self, model: str, hardware: str, limits: str, share: float, *rest: Any) -> None:
        assert (model, hardware, limits, *rest) == (
            "model",
            "hardware",
            "limits",
            3,
            self.workload,
        )
        if share > self.much:
            raise ValueError(f"the device holds 1 GiB, not {share:g}; lower something")

    def fitting(self) -> Budget:
        config = {"parts": self.parts}
        return fitting_budget(config, self.parts, self.workload, self.geometry)


@pytest.mark.parametrize(
    ("few", "much", "share"),
    [
        (0.1, 0.3333, 0.3333),
        (0.3333, 0.3333, 0.3333),
        (0.1, 1, 1.0),
        (1, 1, 1.0),
        (0, 0.0001, 1e-4),
    ],
)
def test_the_largest_share_that_fits_is_taken(
    few: float, much: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(monkeypatch, few, much)
    assert made.fitting() == Budget(share)
    assert (("cache", "ram_cache"), made.workload, share) in made.given


@pytest.mark.parametrize(
    ("few", "much", "told"),
    [
        (0, 0, f"the device holds 1 GiB, not 0.0001; {LESS}"),
        (
            0.5,
            0.25,
            "less than 50 % of the expert bytes are too few: pool 0 holds 1 B, and so many are"
            f" refused: the device holds 1 GiB, not 0.5; {LESS}, cache.scope or loader.staging_slots",
        ),
        (
            0.0003,
            0.0001,
            "less than 0.03 % of the expert bytes are too few: pool 0 holds 1 B, and so many are"
            f" refused: the device holds 1 GiB, not 0.0003; {LESS}, cache.scope or loader.staging_slots",
        ),
        (2, 3, f"pool 0 holds 1 B; {LESS}, cache.scope or loader.staging_slots"),
    ],
)
def test_where_no_share_fits_what_is_in_the_way_is_told(
    few: float, much: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'budget=fit: nothing fits: {told}')}$"):
        Made(monkeypatch, few, much).fitting()


@pytest.mark.parametrize(
    ("few", "slots_gib", "told"),
    [
        (0.1234, None, "; the smallest budget.resident_share that works is 0.1234"),
        (0, None, "; the smallest budget.resident_share that works is 0.0001"),
        (1, None, "; the smallest budget.resident_share that works is 1"),
        (2, None, ""),
        (2, 3.0, ""),
        (0.1234, 3.0, "; budget.slots_gib=1.2341 works"),
    ],
)
def test_a_budget_that_is_too_small_is_answered_with_the_smallest_that_works(
    few: float, slots_gib: float | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All experts are 10 GiB and a byte."""
    made = Made(monkeypatch, few, 0)
    config = {"parts": made.parts, "budget": {"slots_gib": slots_gib}}
    assert smallest_budget(config, made.parts, made.workload, made.geometry) == told
    sections, workload, share = made.given[0]
    assert (sections, workload) == (("cache", "ram_cache"), made.workload)
    assert 0 < share <= 1
