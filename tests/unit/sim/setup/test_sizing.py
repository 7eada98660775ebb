"""The bytes of a run's experts are those of its store, of its trace, or of its model, in this order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.machine.budget import Budget
from sim.machine.recorded_bytes import RecordedBytes
from sim.setup import sizing as module
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.own_gates import with_gates
from sim.setup.parts import Parts, make_parts
from sim.setup.refusals import checked_settings
from sim.setup.sizing import sizing_of
from sim.values.types import CapacityError


def parts_of(*words: str) -> Parts:
    config, _ = configure("trace.max_sequences=1", *words)
    return make_parts(with_gates(checked_settings(config)))


HEADER: Any = SimpleNamespace(files=())


def test_the_variants_of_a_run_take_the_models_bytes_unless_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = parts_of("system=hobbit")
    model = parts.model
    asked = []
    monkeypatch.setattr(
        module, "recorded_bytes", lambda directory, header, model: asked.append((header, model))
    )
    plain = sizing_of(parts, HEADER, ())
    assert asked == [(HEADER, model)]
    nominal = tuple(map(model.expert_bytes, ("fp16", "int4")))
    geometry = plain.geometry(Budget(0.25))
    assert geometry.variant_bytes == nominal
    assert geometry.capacity_bytes == model.sites * model.stored_experts * nominal[0] // 4
    of_site = tuple(range(nominal[0], nominal[0] + model.sites))
    monkeypatch.setattr(module, "recorded_bytes", lambda *given: RecordedBytes(of_site, "FP16"))
    recorded = sizing_of(parts, HEADER, ()).geometry(Budget(0.25))
    assert recorded.site_bytes == (of_site, (nominal[1],) * model.sites)
    stored = sizing_of(parts, HEADER, (80, 30))
    assert stored.recorded is None
    assert stored.geometry(Budget(1.0)).variant_bytes == (80, 30)


def test_slots_hold_dequantised_experts_unless_a_store_says_how_it_holds_them() -> None:
    parts = parts_of("system=edgemoe")
    held = sizing_of(parts, HEADER, ())
    assert held.held_bits == 32.0
    assert held.geometry(Budget(1.0)).held_bytes
    stored = sizing_of(parts, HEADER, (80, 30))
    assert stored.held_bits == 0.0
    assert stored.geometry(Budget(1.0)).held_bytes == ()


def test_a_variant_that_does_not_exist_and_the_device_of_each_are_told() -> None:
    parts = parts_of("system=lru")
    parts.precision.missing = lambda: frozenset({(0, 1, 2)})  # type: ignore[method-assign]
    found = sizing_of(parts, HEADER, ()).geometry(Budget(1.0))
    assert found.missing == {found.units + 2}
    assert found.device_of == ()
    two = sizing_of(parts_of("system=lru", "devices=layers_2"), HEADER, ())
    assert set(two.geometry(Budget(1.0)).device_of) == {0, 1}


def test_the_smallest_budget_is_one_that_works_with_a_stores_bytes() -> None:
    """Int4 experts of nearly the size of fp16 ones: their pool, a fifth, must hold two."""
    words = ("system=hobbit", "trace.max_sequences=1")
    stored = (10_000_000, 9_000_000)

    def built(share: float) -> float:
        config, name = configure(*words, f"budget.resident_share={share}")
        return build(config, name, stored_bytes=stored).resident_share

    with pytest.raises(
        CapacityError, match=r"the smallest budget\.resident_share that works is"
    ) as of:
        built(0.01)
    least = float(str(of.value).rsplit(maxsplit=1)[1])
    assert least == pytest.approx(2 * 9 / (0.2 * 10 * 16 * 8), abs=1e-4)
    assert built(least) == least
    with pytest.raises(CapacityError):
        built(least - 1e-4)
