"""A build asks each part for what is its own, in order; every part is made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.machine.budget import Budget
from sim.setup import build as module
from sim.setup.build import build
from sim.traces.residency_log import EXPERT_BYTES_FILE
from sim.values.types import CapacityError


def named(**values: Any) -> Any:
    return SimpleNamespace(**values)


class Roofline:
    """Durations on one device."""

    slots = 0
    paging: Any = None


class Built:
    """What a run is built of. ``seen`` has what was asked for, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[Any] = []
        self.header = named(
            model="shape", name="t", null_experts=1, draft_sites=2, files=("routes.parquet",)
        )
        self.trace = named(header=self.header)
        self.hardware = named(devices=None, swap=None, memory_bytes=1000)
        self.model = named(
            draft_sites=2,
            transplant=None,
            kv_bytes_by_window=lambda: {0: 7},
        )
        self.parts = named(
            model=self.model,
            hardware=self.hardware,
            precision=named(
                constant=3, held="fp16", precisions=("fp16",), missing=lambda: "missing"
            ),
            loader=named(prefetch_budget=4, staging_holds="projections"),
            workload=named(kv_allocation="once", speculation=named(layers_in_use=5)),
            trace=named(path="/t"),
            policies=lambda: "policies",
        )
        self.workload = named(exclude=(), limits="limits", trace=self.trace)
        self.config: dict[str, Any] = {"budget": {"resident_share": 0.25}, "seed": 9}
        self.durations: Any = Roofline()
        self.error: CapacityError | None = None
        self.recorded: Any = None
        for name, answer in (
            ("checked_settings", lambda cfg: ("checked", cfg)),
            ("with_gates", lambda cfg: self.config if cfg == ("checked", "cfg") else None),
            ("with_own_errors", lambda config: config),
            ("with_layer_staged", lambda config: config),
            ("make_parts", lambda config: self.parts if config is self.config else None),
            ("replace", lambda one, **new: named(**{**vars(one), **new})),
            ("_shared_trace", lambda parts, shared: self.trace),
            ("with_draft_sites", lambda trace, sites: self.told("drafts", sites) or trace),
            ("_shared_workload", lambda *given: self.told("workload") or self.workload),
            ("check_gates", lambda model, *given: self.told("gates", *given)),
            ("check_said", lambda policies, model: self.told("said", policies)),
            ("check_changed", lambda hardware, changed: self.told("changed", [*changed])),
            ("check_ram_cache", lambda system, hardware: self.told("ram_cache", system)),
            ("check_drafts", lambda parts, **of: self.told("check_drafts", of)),
            ("check_parts", lambda parts, workload: self.told("check_parts")),
            ("check_recorded", lambda config, constant, workload: self.told("recorded", constant)),
            ("check_cpu_reach", lambda parts, geometry: self.told("cpu_reach")),
            ("check_devices_parts", lambda *given: self.told("check_devices")),
            ("with_ranking", lambda hardware, ranking: named(**vars(hardware), ranking=ranking)),
            ("profile_of", lambda trace, exclude: named(ranking="ranking")),
            ("profiled", lambda workload: 50),
            ("prepare_parts", self.prepare),
            ("sizing_of", self.sizing),
            ("fitting_budget", lambda *given: self.told("fit", given[1].hardware) or Budget(0.5)),
            ("_durations", lambda parts, geometry, held: self.told("held", held) or self.durations),
            ("counted_prefetches", lambda budget, reach, *given: (budget, reach)),
            ("KvRoom", lambda workload, size: f"room of {size}"),
            ("make_controller", self.controller),
            (
                "smallest_budget",
                lambda config, parts, *of: f"; less than {of[1](Budget(1)).budget}",
            ),
            (
                "check_run_memory",
                lambda *given: self.told("memory", given[2], given[4]) or "ledger",
            ),
            ("Roofline", Roofline),
            ("paging_of", lambda *given: given),
            ("all_slot_bytes", lambda geometry: 100),
            ("Run", named),
        ):
            monkeypatch.setattr(module, name, answer)

    def told(self, *what: Any) -> None:
        self.seen.append(what)

    def prepare(
        self, parts: Any, sections: Any, workload: Any, geometry: Any = None, predictor: Any = None
    ) -> Any:
        self.told("prepare", sections, geometry is not None)
        return dict.fromkeys(sections, 6)

    def sizing(self, parts: Any, header: Any, stored_bytes: Any) -> Any:
        self.told("sizing", parts.hardware, header, stored_bytes)
        return named(
            geometry=lambda budget: named(budget=budget), held_bits=4.5, recorded=self.recorded
        )

    def controller(self, geometry: Any, parts: Any, kv_room: Any) -> Any:
        if self.error is not None:
            raise self.error
        slots = named(count=12)
        return named(geometry=geometry, loader=parts.loader, kv_room=kv_room, slots=slots)


FIELDS = (
    "system",
    "model",
    "hardware",
    "trace",
    "workload",
    "controller",
    "durations",
    "ledger",
    "resident_share",
    "seed",
    "config",
    "fitted_on",
    "changed",
    "recorded_bytes",
    "kv_room",
    "known",
)
OTHERS = ("predictor", "placement", "payload", "cache", "ram_cache")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Built:
    return Built(monkeypatch)


def test_a_run_is_checked_before_it_is_prepared_and_has_what_was_made(made: Built) -> None:
    run: Any = build("cfg", "lru", changed=["trace.x=1"])  # type: ignore[arg-type]
    assert made.seen == [
        ("said", "policies"),
        ("changed", ["trace.x=1"]),
        ("ram_cache", "lru"),
        ("gates", "shape", "t", 1, 2),
        ("check_drafts", {"tells_bytes": False, "is_real": False}),
        ("workload",),
        ("check_parts",),
        ("recorded", 3),
        ("check_devices",),
        ("prepare", ("precision",), False),
        ("sizing", made.hardware, made.header, ()),
        ("prepare", OTHERS, True),
        ("held", 4.5),
        ("cpu_reach",),
        ("memory", "limits", 5),
    ]
    assert run.controller.geometry.budget == Budget(0.25)
    assert (run.durations.slots, run.durations.paging) == (12, None)
    assert run.controller.loader.prefetch_budget == 4
    found = {name: getattr(run, name) for name in FIELDS if name not in ("controller", "durations")}
    assert found == {
        "system": "lru",
        "model": made.model,
        "hardware": made.hardware,
        "trace": made.trace,
        "workload": made.workload,
        "ledger": "ledger",
        "resident_share": 0.25,
        "seed": 9,
        "config": made.config,
        "fitted_on": 6,
        "changed": ("trace.x=1",),
        "recorded_bytes": None,
        "kv_room": None,
        "known": 6,
    }


def test_the_bytes_of_a_store_or_of_a_recording_replace_nominal_ones(made: Built) -> None:
    made.header.files = (EXPERT_BYTES_FILE,)
    made.recorded = "recorded"
    run: Any = build("cfg", "lru")  # type: ignore[arg-type]
    assert (made.seen[4][1]["tells_bytes"], run.recorded_bytes) == (True, "recorded")
    assert run.controller.loader.staging_holds == "projections"
    made.error = CapacityError("no room")
    with pytest.raises(CapacityError, match=r"^no room; less than Budget\(resident_share=1,"):
        build("cfg", "lru")  # type: ignore[arg-type]
    made.error = None
    made.seen.clear()
    made.model.transplant = "another's sizes"
    run = build("cfg", "lru", stored_bytes=[8])  # type: ignore[arg-type]
    assert made.seen[4] == ("check_drafts", {"tells_bytes": False, "is_real": True})
    assert ("sizing", made.hardware, made.header, [8]) in made.seen
    assert run.controller.loader.staging_holds == "experts", "a real engine's hold whole ones"


def test_a_budget_that_fits_is_found_and_written_into_the_configuration(made: Built) -> None:
    made.config["budget"] = "fit"
    made.hardware.devices = named(order="use")
    run: Any = build("cfg", "lru")  # type: ignore[arg-type]
    assert (run.hardware.ranking, run.known) == ("ranking", 50)
    assert ("fit", run.hardware) in made.seen
    assert run.config["budget"] == {"resident_share": 0.5, "slots_gib": None}
    assert (run.controller.geometry.budget, run.resident_share) == (Budget(0.5), 0.5)
    made.config["budget"] = {"resident_share": 0.5, "slots_gib": 1e-9}
    made.hardware.devices = named(order="number")
    plain: Any = build("cfg", "lru")  # type: ignore[arg-type]
    assert plain.hardware is made.hardware
    assert plain.resident_share == Budget(0.5, 1e-9).share_of(100)


def test_drafts_prefetches_growing_room_and_swap_are_made_where_they_are_asked_for(
    made: Built,
) -> None:
    made.model.draft_sites = 3
    made.hardware.links = (named(slot_us=0.0),)
    made.parts.loader.prefetch_budget = "within_layer"
    made.parts.predictor = named(reach=3)
    made.parts.workload.kv_allocation = "growing"
    made.hardware.swap = "swap"
    run: Any = build("cfg", "lru")  # type: ignore[arg-type]
    assert made.seen[4] == ("drafts", 3)
    assert run.controller.loader.prefetch_budget == ("within_layer", 3)
    assert run.controller.kv_room == run.kv_room == "room of {0: 7}"
    assert run.durations.paging == ("swap", 1000, made.model, "ledger")
    made.durations = named()
    run = build("cfg", "lru")  # type: ignore[arg-type]
    assert vars(run.durations) == {"slots": 12}, "only one device swaps"
