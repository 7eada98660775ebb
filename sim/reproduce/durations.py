"""EdgeMoE's durations, given outright from the paper's numbers and not from a machine's rates."""

from __future__ import annotations

from dataclasses import dataclass

from sim.machine.durations import FixedDurations
from sim.machine.precision import PRECISION_BITS
from sim.results.run import Run
from sim.values.units import NS_PER_S

EXPERT_BYTES = 768 * 3072 * 2 * 4
"""The bytes of an expert of Switch-base in FP32."""
MEAN_BITS = 0.62 * 4 + 0.38 * 2
"""The mean bits a weight: 38 % of the experts are in INT2, the rest in INT4 (table 2)."""


@dataclass(frozen=True)
class Timing:
    """The numbers from which durations follow.

    - ``compute_s``: how long a token computes.
    - ``after_gate``: the share of that time that comes after gates.
    - ``read_bytes_per_s``: the rate at which experts are read.
    - ``widen_bytes_per_s``: the rate of dequantisation, in FP32 bytes.
    - ``in_line``: experts are dequantised on the compute stream whenever they are computed; else by
      the loader, after they are read.
    """

    compute_s: float
    after_gate: float
    read_bytes_per_s: float
    widen_bytes_per_s: float
    in_line: bool


def timed(run: Run, timing: Timing) -> FixedDurations:
    """The run's durations, made from ``timing``.

    The decoder's sites share a token's compute equally, and an encoder's site costs as much as a
    decoder's. On the loader dequantisation is charged by the stored byte, so that a part of an
    expert takes its share of the time. An expert of the mean width takes the time of a whole
    expert. Raise ValueError for a machine with more than one link to the device.
    """
    if len(run.hardware.links) != 1:
        raise ValueError(
            f"hardware {run.hardware.name}: a timing is of one link, from the drive to memory"
        )
    model, precisions = run.model, run.controller.geometry.precisions
    site_s = timing.compute_s / (model.sites - model.encoder_sites)
    widen_s = EXPERT_BYTES / timing.widen_bytes_per_s
    widened = [precision for precision in precisions if PRECISION_BITS[precision] < 32]
    late_s = [
        widen_s if timing.in_line and precision in widened else 0.0 for precision in precisions
    ]
    expert_ns = [round((site_s * timing.after_gate + late) * NS_PER_S) for late in late_s]
    dense_ns = [round(site_s * (1 - timing.after_gate) * NS_PER_S)] * model.sites
    bits = MEAN_BITS if len(widened) > 1 else PRECISION_BITS[precisions[0]]
    on_loader_s = widen_s if widened and not timing.in_line else 0.0
    return ByBytes(
        dense_ns, expert_ns, 1 / timing.read_bytes_per_s + on_loader_s / (EXPERT_BYTES * bits / 32)
    )


class ByBytes(FixedDurations):
    """Durations given outright, where a hop's time is in proportion to its bytes."""

    def __init__(self, dense_ns: list[int], expert_ns: list[int], s_per_byte: float) -> None:
        super().__init__(dense_ns, 0, expert_ns, {})
        self._ns_per_byte = s_per_byte * NS_PER_S

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        return round(moved_bytes * self._ns_per_byte)
