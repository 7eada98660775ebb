"""A machine and a model of round numbers, for costs that are worked out by hand."""

from __future__ import annotations

from typing import Any

from sim.machine.compute import Compute
from sim.machine.hardware import Hardware
from sim.machine.link import Link
from sim.machine.model import Model


def compute(**changes: Any) -> Compute:
    """A device that reaches 1 TFLOP/s and 100 GB/s, with 2 us a launch."""
    values: dict[str, Any] = {
        "peak_tflops": 2.0,
        "flops_efficiency": 0.5,
        "memory_gb_per_s": 200.0,
        "memory_efficiency": 0.5,
        "launch_us": 2.0,
        "dense_launches": 4,
        "expert_launches": 3,
        "tail_launches": 1,
    }
    return Compute(**(values | changes))


def machine(**changes: Any) -> Hardware:
    """A machine of that device. Its two links reach 5 and 1 GB/s."""
    values: dict[str, Any] = {
        "name": "m",
        "preset": "roofline",
        "validated": "none",
        "memory_gib": 1.0,
        "reserved_gib": 0.25,
        "links": {"near": Link(10.0, 0.5, 6.0), "far": Link(2.0, 0.5, 80.0)},
        "compute": compute(),
        "source": "paper",
    }
    return Hardware(**(values | changes))


def small(**changes: Any) -> Model:
    """A model with 240 dense parameters a layer, a head of 80, experts of 384 (see test_model)."""
    values: dict[str, Any] = {
        "name": "small",
        "sites": 3,
        "experts": 4,
        "top_k": 2,
        "hidden": 8,
        "expert_intermediate": 16,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 4,
        "vocab": 10,
        "source": "paper",
    }
    return Model(**(values | changes))
