"""Durations that are given outright instead of following from a machine's rates: EdgeMoE's, from
its own numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.machine.costs import FixedDurations
from sim.machine.model import PRECISION_BITS
from sim.results.run import Run
from sim.values.units import NS_PER_S

EXPERT_BYTES = 768 * 3072 * 2 * 4
"""Of Switch-base in FP32."""
MEAN_BITS = 0.62 * 4 + 0.38 * 2
"""38 % of the experts are in INT2, the rest in INT4 (table 2)."""


@dataclass(frozen=True)
class Timing:
    """Seconds a token computes, how it is split by its gates, bytes a second read and widened, and
    who widens them.

    ``in_line``: experts are widened on the compute stream, after a load or not; else by the loader.
    """

    compute_s: float
    after_gate: float
    read_bytes_per_s: float
    widen_bytes_per_s: float
    in_line: bool = False


def timed(run: Run, timing: Timing) -> FixedDurations:
    """The run's durations from ``timing``. A decoder's sites share a token's compute; an encoder's
    cost as much.

    On the loader, widening goes by the stored bytes, so that an expert of the mean width takes its
    time whatever part of it has been moved. Raise ValueError for a machine whose way to the device
    has more than one link.
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
    """Durations given outright, a link's by its bytes alone."""

    def __init__(self, dense_ns: list[int], expert_ns: list[int], s_per_byte: float) -> None:
        super().__init__(dense_ns, 0, expert_ns, {})
        self._ns_per_byte = s_per_byte * NS_PER_S

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        return round(moved_bytes * self._ns_per_byte)
