"""What of a build needs no run: workloads, and durations of what parts are made of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.process.shared import Shared
from sim.setup import build as build_module
from sim.setup.build import _durations, _shared_workload


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
        model=SimpleNamespace(kv_bytes_per_token=7, windows=(128, 0)),
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
        "windows": (128, 0),
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

        def driven_by(self, kernels: str) -> Machine:
            return Machine(f"{self} {kernels}")

        def together(self, cpu: bool) -> str:
            return f"{self} {cpu}"

    monkeypatch.setattr(build_module, "Roofline", lambda *given, **named: (*given, named))
    parts: Any = SimpleNamespace(
        hardware=Machine("m"),
        loader=SimpleNamespace(copies=copies),
        kernels="kernels",
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
        "kernels": "kernels",
        "forecast_sites": 6,
        "held_bits": 4.5,
        "moves_in_part": True,
        "draft_layers": 3,
    }
    made = (parts.model, f"{reached} kernels True", ("fp16",), (9,), costs)
    assert _durations(parts, geometry, 4.5) == made
    monkeypatch.setattr(
        build_module, "durations_on", lambda whole, model, alone: (whole, model, alone(machine))
    )
    machine, parts.hardware = parts.hardware, SimpleNamespace(devices="two")
    assert _durations(parts, geometry, 4.5) == (parts.hardware, parts.model, made)
