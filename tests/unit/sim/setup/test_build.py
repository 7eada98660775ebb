"""What of a build needs no run: budgets that fit, columns, and what parts are made of."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.machine.budget import Budget
from sim.process.shared import Shared
from sim.setup import build as build_module
from sim.setup.build import (
    LESS,
    _durations,
    _shared_workload,
    _smallest_budget,
    fitting_budget,
    load_trace,
    trace_directory,
)
from sim.values.places import ROOT
from sim.values.types import CapacityError
from sim.values.units import GIB


def test_a_trace_is_looked_for_where_one_stands_and_then_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trace_directory("mine") == ROOT / "mine"
    assert trace_directory("/mine") == Path("/mine")
    (tmp_path / "mine").mkdir()
    assert trace_directory("mine") == Path("mine")


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
            ("_prepare", lambda *given: self.given.append(given[1:])),
            ("make_controller", self.controller),
            ("check_run_memory", self.memory),
            ("make_geometry", self.geometry),
            ("held_bits", lambda held, hardware: 4.5),
            ("device_of", lambda hardware, model: (0, 1)),
            ("all_slot_bytes", lambda geometry: 10 * GIB + 1),
        ):
            monkeypatch.setattr(build_module, name, answer)

    def geometry(self, *_: object, **of: Any) -> float:
        self.given.append(of)
        budget: Budget = of["budget"] if "budget" in of else _[2]
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
        return fitting_budget(config, "hardware", self.geometry, self.workload)  # type: ignore[arg-type]


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
            "less than 50 % of the expert bytes are too few: pool 0 holds 1 B, and so many are too"
            f" many: the device holds 1 GiB, not 0.5; {LESS}, cache.scope or loader.staging_slots",
        ),
        (
            0.0003,
            0.0001,
            "less than 0.03 % of the expert bytes are too few: pool 0 holds 1 B, and so many are"
            f" too many: the device holds 1 GiB, not 0.0003; {LESS}, cache.scope or loader.staging_slots",
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
    sizes: dict[str, Any] = {}
    assert _smallest_budget(config, made.parts, made.workload, sizes) == told
    whole, tried = made.given[:2]
    assert whole == {"held_bits": 4.5, "recorded": sizes}
    assert tried == {"held_bits": 4.5, "recorded": sizes, "device_of": (0, 1)}


@pytest.mark.parametrize(
    ("asked", "columns"),
    [
        ((0,), []),
        ((2,), ["lookahead"]),
        ((1, False, "raw"), ["lookahead_raw"]),
        ((1, False, "renormed"), ["lookahead"]),
        ((0, True, "raw", True), ["active_shares", "logits"]),
        ((1, True, "raw", True), ["lookahead_raw", "active_shares", "logits"]),
    ],
)
def test_a_trace_is_read_with_the_columns_that_are_asked_for_and_that_it_has(
    asked: tuple[Any, ...], columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    header = SimpleNamespace(
        lookahead=SimpleNamespace(norms=("raw",)), sparsities=(0.5,), columns=("ids", "logits")
    )
    monkeypatch.setattr(build_module, "read_header", lambda directory: header)
    monkeypatch.setattr(build_module, "read_trace", lambda *given: given)
    assert load_trace("/t", *asked) == (Path("/t"), columns)
    header.lookahead, header.sparsities, header.columns = None, (), ("ids",)
    assert load_trace("/t", *asked) == (Path("/t"), [])


def test_a_workload_has_all_that_its_sections_say_and_is_shared_unless_it_depends_on_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(
        build_module,
        "Workload",
        lambda trace, **of: made.append({"trace": trace, **of}) or made[-1],
    )
    steps = SimpleNamespace(
        batching="static",
        together=2,
        prefill_chunk=3,
        arrivals_per_s=None,
        arrival_seed=4,
        arrivals_ns=None,
        lookahead_norm="raw",
        lengths="lengths",
        speculation="drafts",
        told=(SimpleNamespace(blocks=(1, 2)),),
        tiers=lambda bytes_per_token: bytes_per_token + 1,
    )
    parts: Any = SimpleNamespace(
        trace=SimpleNamespace(split="fit", exclude=["loops"], max_sequences=5),
        workload=steps,
        of_trace=lambda: SimpleNamespace(lookahead_sites=6),
        model=SimpleNamespace(kv_bytes_per_token=7),
    )
    trace: Any = "trace"
    shared = Shared()
    first = _shared_workload(parts, trace, shared)
    assert first == {
        "trace": "trace",
        "split": "fit",
        "batching": "static",
        "together": 2,
        "prefill_chunk": 3,
        "arrivals_per_s": None,
        "arrival_seed": 4,
        "arrivals": None,
        "lookahead": 6,
        "norm": "raw",
        "exclude": ("loops",),
        "max_sequences": 5,
        "lengths": "lengths",
        "speculation": "drafts",
        "blocks": ((1, 2),),
        "tiers": 8,
    }
    assert _shared_workload(parts, trace, shared) is first
    steps.arrival_seed = 5
    assert _shared_workload(parts, trace, shared) is not first
    for name, value in (("arrivals_per_s", 1.0), ("arrivals_ns", (0,))):
        setattr(steps, name, value)
        assert _shared_workload(parts, trace, shared) is not _shared_workload(parts, trace, shared)
        setattr(steps, name, None)


@pytest.mark.parametrize(
    ("copies", "reached", "free"),
    [("pinned", "m", False), ("pageable", "m unpinned", False), ("free", "m", True)],
)
def test_durations_are_of_the_machine_as_its_parts_reach_it(
    copies: str, reached: str, free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Machine(str):
        devices = None

        def unpinned(self) -> Machine:
            return Machine(f"{self} unpinned")

        def together(self, cpu: bool) -> str:
            return f"{self} {cpu}"

    monkeypatch.setattr(build_module, "Roofline", lambda *given, **named: (*given, named))
    parts: Any = SimpleNamespace(
        hardware=Machine("m"),
        loader=SimpleNamespace(copies=copies),
        model=SimpleNamespace(experts=8),
        placement=SimpleNamespace(uses_cpu=True, decision_us=lambda experts: experts / 4),
        precision=SimpleNamespace(precisions=("fp16",)),
        payload=SimpleNamespace(active_share=0.3, partial=True),
        workload=SimpleNamespace(speculation=SimpleNamespace(layers_in_use=3)),
        of_trace=lambda: SimpleNamespace(lookahead_sites=6),
    )
    geometry: Any = SimpleNamespace(site_bytes=(9,))
    costs = {
        "active_share": 0.3,
        "decision_ns": 2_000,
        "free_copies": free,
        "forecast_sites": 6,
        "held_bits": 4.5,
        "moves_in_part": True,
        "draft_layers": 3,
    }
    made = (parts.model, f"{reached} True", ("fp16",), (9,), costs)
    assert _durations(parts, geometry, 4.5) == made
    monkeypatch.setattr(
        build_module, "durations_on", lambda whole, model, alone: (whole, model, alone(machine))
    )
    machine, parts.hardware = parts.hardware, SimpleNamespace(devices="two")
    assert _durations(parts, geometry, 4.5) == (parts.hardware, parts.model, made)
