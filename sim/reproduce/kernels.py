"""FloE's Table 1: one expert of Mixtral on four GPUs, from the line through each GPU's first and
last point.
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.machine.hardware import Compute

EXPERT_BYTES = 352_321_536
"""Mixtral-8x7B's, fp16."""
UNLIMITED_TFLOPS = 1e5
"""One token is bound by memory: the arithmetic of 352 MB takes none of the time."""


def read_bytes(sparsity: float) -> float:
    """What the kernel reads: the up projection whole, of gate and down the channels that are
    active.
    """
    return EXPERT_BYTES * (1 + 2 * (1 - sparsity)) / 3


def fitted(points: Mapping[float, float]) -> Compute:
    """The two constants of ``t = t0 + bytes / bandwidth`` from the points at 0 and 0.9 (ms), as
    a machine's compute.
    """
    bytes_per_ms = (read_bytes(0) - read_bytes(0.9)) / (points[0] - points[0.9])
    fixed_ms = points[0] - read_bytes(0) / bytes_per_ms
    return Compute(
        peak_tflops=UNLIMITED_TFLOPS,
        flops_efficiency=1,
        memory_gb_per_s=bytes_per_ms / 1e6,
        memory_efficiency=1,
        launch_us=fixed_ms * 1000,
        dense_launches=0,
        expert_launches=1,
        tail_launches=0,
    )


def kernel_ms(points: Mapping[float, float], sparsity: float) -> float:
    """One expert for one token at ``sparsity``, by the machine's own rule for an operation."""
    compute = fitted(points)
    return compute.operation_ns(0.0, read_bytes(sparsity), compute.expert_launches) / 1e6


def kernel_speedup(points: Mapping[float, float], sparsity: float) -> float:
    """Against the dense kernel."""
    return kernel_ms(points, 0) / kernel_ms(points, sparsity)
