"""A machine as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from sim.units import NS_PER_S, gb_per_s, gib, require_number, tflops, us


@dataclass(frozen=True)
class Link:
    """One direction of a host-device link: ``overhead + bytes / (peak * efficiency)`` for each transfer."""

    name: str
    peak_gb_per_s: float
    efficiency: float
    overhead_us: float

    def __post_init__(self) -> None:
        require_number("hardware.link.peak_gb_per_s", self.peak_gb_per_s, minimum=1e-6)
        require_number("hardware.link.efficiency", self.efficiency, minimum=1e-6)
        require_number("hardware.link.overhead_us", self.overhead_us)
        if self.efficiency > 1:
            raise ValueError(f"hardware.link.efficiency={self.efficiency} must be <= 1, a share of the peak")

    def transfer_ns(self, moved_bytes: int) -> int:
        rate = gb_per_s(self.peak_gb_per_s) * self.efficiency
        return us(self.overhead_us) + round(moved_bytes * NS_PER_S / rate)


@dataclass(frozen=True)
class Compute:
    """``max(flops / (peak * efficiency), bytes / (bandwidth * efficiency)) + launches * launch`` for each operation."""

    peak_tflops: float
    flops_efficiency: float
    memory_gb_per_s: float
    memory_efficiency: float
    launch_us: float
    dense_launches: int
    expert_launches: int
    tail_launches: int

    def __post_init__(self) -> None:
        for name in ("peak_tflops", "flops_efficiency", "memory_gb_per_s", "memory_efficiency"):
            require_number(f"hardware.compute.{name}", getattr(self, name), minimum=1e-6)
        require_number("hardware.compute.launch_us", self.launch_us)
        for name in ("dense_launches", "expert_launches", "tail_launches"):
            require_number(f"hardware.compute.{name}", getattr(self, name), whole=True)

    def operation_ns(self, flops: float, moved_bytes: float, launches: int) -> int:
        flops_s = flops / (tflops(self.peak_tflops) * self.flops_efficiency)
        memory_s = moved_bytes / (gb_per_s(self.memory_gb_per_s) * self.memory_efficiency)
        return round(max(flops_s, memory_s) * NS_PER_S) + launches * us(self.launch_us)


@dataclass(frozen=True)
class Hardware:
    """One device and its link. ``preset``: where the figures come from; ``validated``: what was measured here."""

    name: str
    preset: str
    validated: str
    memory_gib: float
    reserved_gib: float
    link: Link
    compute: Compute
    source: str

    def __post_init__(self) -> None:
        if not isinstance(self.link, Link) or not isinstance(self.compute, Compute):
            raise ValueError(f"hardware {self.name} needs a link and a compute section, each with its _target_")
        require_number("hardware.memory_gib", self.memory_gib, minimum=1e-9)
        require_number("hardware.reserved_gib", self.reserved_gib)
        if self.validated not in ("measured", "emulated", "none"):
            raise ValueError(f"hardware.validated={self.validated!r}; allowed: measured, emulated, none")

    @property
    def memory_bytes(self) -> int:
        return gib(self.memory_gib)
