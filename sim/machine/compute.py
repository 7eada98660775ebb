"""What computes: the device, and the host's cores. Both are rooflines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

from sim.machine.link_parts import RATES
from sim.values.units import NS_PER_S, gb_per_s, require_number, require_range, tflops, us


@dataclass(frozen=True)
class Compute:
    """The device's compute, as a roofline.

    An operation takes ``max(flops / (peak * efficiency), bytes / (bandwidth * efficiency)) +
    launches * launch``. The ``*_launches`` count the kernels of one operation.

    ``dequantise_launches`` is 0 where an expert's kernels read quantised weights directly. Else
    quantised weights are written out in 16 bits before each use, in so many launches, and are read
    from there.

    ``replay_us`` is the time in which one kernel follows another where a step is replayed as a graph
    that was recorded before; None where the driver has no graphs.
    """

    peak_tflops: float
    flops_efficiency: float
    memory_gb_per_s: float
    memory_efficiency: float
    launch_us: float
    dense_launches: int
    expert_launches: int
    tail_launches: int
    dequantise_launches: int = 0
    replay_us: float | None = None

    def __post_init__(self) -> None:
        _check_roofline("hardware.compute", self)
        require_range("hardware.compute.launch_us", self.launch_us, 0, 1e6, "microseconds")
        if self.replay_us is not None:
            require_range("hardware.compute.replay_us", self.replay_us, 0, 1e6, "microseconds")
        for name in ("dense_launches", "expert_launches", "tail_launches", "dequantise_launches"):
            require_number(f"hardware.compute.{name}", getattr(self, name), maximum=inf, whole=True)
            require_range(
                f"hardware.compute.{name}", getattr(self, name), 0, 1e5, "launches of one operation"
            )

    @property
    def replayed(self) -> Compute:
        """The same compute where a step's kernels are replayed, as far as that is faster."""
        if self.replay_us is None:
            return self
        return replace(self, launch_us=min(self.launch_us, self.replay_us))

    def operation_ns(self, flops: float, moved_bytes: float, launches: int) -> int:
        return self.operations_ns(((flops, moved_bytes),), launches)

    def operations_ns(self, parts: Iterable[tuple[float, float]], launches: int) -> int:
        """The time of operations one after another: the flops and bytes of each, and all launches."""
        return _roofline_ns(self, parts) + launches * us(self.launch_us)


@dataclass(frozen=True)
class Cpu:
    """The host's cores, which compute experts from DRAM: a roofline and a round trip for each.

    ``round_trip_us`` is the time to bring activations to the host and the result back, launch and
    synchronisation included.
    """

    peak_tflops: float
    flops_efficiency: float
    memory_gb_per_s: float
    memory_efficiency: float
    round_trip_us: float

    def __post_init__(self) -> None:
        _check_roofline("hardware.cpu", self)
        require_range("hardware.cpu.round_trip_us", self.round_trip_us, 0, 1e7, "microseconds")

    def operation_ns(self, flops: float, moved_bytes: float) -> int:
        return _roofline_ns(self, ((flops, moved_bytes),)) + us(self.round_trip_us)


def _check_roofline(place: str, part: Compute | Cpu) -> None:
    require_range(f"{place}.peak_tflops", part.peak_tflops, 1e-6, 1e6, "10**12 operations a second")
    require_range(f"{place}.memory_gb_per_s", part.memory_gb_per_s, *RATES, "10**9 bytes a second")
    for name in ("flops_efficiency", "memory_efficiency"):
        require_range(f"{place}.{name}", getattr(part, name), 1e-3, 1, "a share of the peak")


def _roofline_ns(part: Compute | Cpu, operations: Iterable[tuple[float, float]]) -> int:
    """The time of operations one after another. Rounding happens once."""
    flops_per_s = tflops(part.peak_tflops) * part.flops_efficiency
    bytes_per_s = gb_per_s(part.memory_gb_per_s) * part.memory_efficiency
    seconds = (max(flops / flops_per_s, moved / bytes_per_s) for flops, moved in operations)
    return round(sum(seconds) * NS_PER_S)
