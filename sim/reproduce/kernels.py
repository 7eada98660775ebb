"""FloE's Table 1: the time of one expert of Mixtral on four GPUs, by sparsity.

Each GPU's times are predicted from the line through its first and its last point.
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.machine.compute import Compute

EXPERT_BYTES = 352_321_536
"""The bytes of an expert of Mixtral-8x7B in fp16."""
UNLIMITED_TFLOPS = 1e5
"""A peak that makes arithmetic free: one token is bound by memory."""


def read_bytes(sparsity: float) -> float:
    """The bytes that the kernel reads: all of the up projection, active channels of the others."""
    return EXPERT_BYTES * (1 + 2 * (1 - sparsity)) / 3


def fitted(points: Mapping[float, float]) -> Compute:
    """The line ``t = t0 + bytes / bandwidth`` through two points, as a machine's compute.

    ``points`` are times in ms by sparsity; the two points are those at 0 and 0.9.
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
    """The time of one expert for one token at ``sparsity``, by the simulator's own formula."""
    compute = fitted(points)
    return compute.operation_ns(0.0, read_bytes(sparsity), compute.expert_launches) / 1e6


def kernel_speedup(points: Mapping[float, float], sparsity: float) -> float:
    """How many times as fast the kernel is at ``sparsity`` as the dense kernel."""
    return kernel_ms(points, 0) / kernel_ms(points, sparsity)
