"""EdgeMoE's machine from the paper's own numbers: what a token computes, how fast experts are read and widened.

With c the compute of a token, r the drive's effective rate, d the rate of dequantisation in FP32 bytes, and six experts
of 18 MiB a token:

    0.789 s = c + 6 * 18 MiB / r                           IO-EXP (E076), 3.55 times c (E011)
    0.392 s = c + 6 * 18 MiB * 3.24 / 32 / r + 6 * 18 MiB / d      with a bit-width for each expert (E077)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from sim.costs import FixedDurations
from sim.model import PRECISION_BITS, Model
from sim.reproduce.roles import Claim, Paper, load_paper
from sim.run import Run
from sim.units import NS_PER_S

EXPERTS_A_TOKEN = 6
EXPERT_BYTES = 768 * 3072 * 2 * 4
MEAN_BITS = 0.62 * 4 + 0.38 * 2
"""38 % of the experts are in INT2, the rest in INT4 (table 2)."""
SECTORS = {"hdd": 50 / 550, "sd": 45e6}
"""The HDD's data sheet over the SSD's (E038, E037); a microSD card's bytes a second (its bus; the paper has none)."""
READS = ("tx2_ssd", "tx2_hdd", "tx2_hdd_nominal", "pi_sd")


@dataclass(frozen=True)
class Timing:
    """Seconds a token computes, how it is split by its gates, bytes a second read and widened, and who widens them.

    ``in_line``: experts are widened on the compute stream, after a load or not; else by the loader.
    """

    compute_s: float
    after_gate: float
    read_bytes_per_s: float
    widen_bytes_per_s: float
    in_line: bool = False


def middle(claim: Claim) -> float:
    """Of a printed range."""
    assert isinstance(claim.value, tuple)
    return sum(claim.value) / len(claim.value)


def printed(claim: Claim) -> float:
    assert isinstance(claim.value, int | float)
    return float(claim.value)


@cache
def constants() -> tuple[float, float, float]:
    """Compute of a token in s, bytes a second read, FP32 bytes a second widened, on the TX2 with its SSD."""
    paper = load_paper("edgemoe")
    whole = printed(paper.claim("E076"))
    compute_s = whole / middle(paper.claim("E011"))
    read = EXPERTS_A_TOKEN * EXPERT_BYTES / (whole - compute_s)
    quantised_read_s = EXPERTS_A_TOKEN * EXPERT_BYTES * MEAN_BITS / 32 / read
    widen = EXPERTS_A_TOKEN * EXPERT_BYTES / (printed(paper.claim("E077")) - compute_s - quantised_read_s)
    return compute_s, read, widen


def timing_of(paper: Paper, name: str) -> Timing:
    """A named timing of the paper's file."""
    given: Mapping[str, Any] = paper.timing[name]
    compute_s, ssd, widen = constants()
    read = {"tx2_ssd": ssd, "tx2_hdd": ssd * SECTORS["hdd"], "tx2_hdd_nominal": 50e6, "pi_sd": SECTORS["sd"]}[
        given["read"]
    ]
    if given["read"] == "pi_sd":
        # E012, likewise: on demand a token takes the middle of 3.3 to 3.8 times its compute.
        compute_s = EXPERTS_A_TOKEN * EXPERT_BYTES / read / (middle(paper.claim("E012")) - 1)
    return Timing(
        compute_s, printed(paper.claim("E009")) / 100, read, widen * float(given.get("dequantise_share", 1.0)),
        in_line=given.get("dequantise") == "compute",
    )  # fmt: skip


def timed(run: Run, timing: Timing) -> FixedDurations:
    """The run's durations from ``timing``. A decoder's sites share a token's compute; an encoder's cost as much.

    On the loader, widening goes by the stored bytes, so that an expert of the mean width takes its time whatever
    part of it has been moved. Raise ValueError for a machine whose way to the device has more than one link.
    """
    if len(run.hardware.links) != 1:
        raise ValueError(f"hardware {run.hardware.name}: a timing is of one link, from the drive to memory")
    model, precisions = run.model, run.controller.geometry.precisions
    site_s = timing.compute_s / (model.sites - model.encoder_sites)
    widen_s = EXPERT_BYTES / timing.widen_bytes_per_s
    widened = [precision for precision in precisions if PRECISION_BITS[precision] < 32]
    late_s = [widen_s if timing.in_line and precision in widened else 0.0 for precision in precisions]
    expert_ns = [round((site_s * timing.after_gate + late) * NS_PER_S) for late in late_s]
    dense_ns = [round(site_s * (1 - timing.after_gate) * NS_PER_S)] * model.sites
    bits = MEAN_BITS if len(widened) > 1 else PRECISION_BITS[precisions[0]]
    on_loader_s = widen_s if widened and not timing.in_line else 0.0
    return ByBytes(dense_ns, expert_ns, 1 / timing.read_bytes_per_s + on_loader_s / (EXPERT_BYTES * bits / 32))


class ByBytes(FixedDurations):
    """Durations given outright, a link's by its bytes alone."""

    def __init__(self, dense_ns: list[int], expert_ns: list[int], s_per_byte: float) -> None:
        super().__init__(dense_ns, 0, expert_ns, {})
        self._ns_per_byte = s_per_byte * NS_PER_S

    def hop_ns(self, link: int, moved_bytes: int) -> int:
        return round(moved_bytes * self._ns_per_byte)


def whole_decoder_over_compute(sizes: Model) -> float:
    """Reading the decoder's blocks, experts and output matrix for every token, over computing it."""
    compute_s, read, _ = constants()
    decoder = range(sizes.encoder_sites, sizes.sites)
    dense = sum(sizes.block_params(site) for site in decoder) + sizes.head_params
    experts = len(decoder) * sizes.experts * sizes.expert_params
    return float((dense + experts) * 4 / read / compute_s)
