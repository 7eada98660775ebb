"""EdgeMoE's machine from the paper's own numbers: compute, drive and dequantisation.

Let c be the compute time of a token, r the drive's effective rate, and d the rate of dequantisation
in FP32 bytes. A token needs six experts of 18 MiB. Then

    0.789 s = c + 6 * 18 MiB / r

for IO-EXP (E076), which is 3.55 times c (E011), and

    0.392 s = c + 6 * 18 MiB * 3.24 / 32 / r + 6 * 18 MiB / d

with a bit-width for each expert (E077).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sim.machine.model import Model
from sim.reproduce.durations import EXPERT_BYTES, MEAN_BITS, Timing
from sim.reproduce.roles import Claim, Paper, load_paper

EXPERTS_A_TOKEN = 6
SECTORS = {"hdd": 50 / 550, "sd": 45e6}
"""The rates of other drives.

``hdd`` is the rate in the HDD's data sheet over that in the SSD's (E038, E037). ``sd`` is the
bytes a second of a microSD card; it is that of its bus, for the paper has none.
"""


def middle(claim: Claim) -> float:
    """The middle of a claim's printed range."""
    assert isinstance(claim.value, tuple)
    return sum(claim.value) / len(claim.value)


def printed(claim: Claim) -> float:
    assert isinstance(claim.value, int | float)
    return float(claim.value)


@cache
def constants() -> tuple[float, float, float]:
    """The constants c (s), r and d (bytes a second) of the TX2 with its SSD."""
    paper = load_paper("edgemoe")
    whole = printed(paper.claim("E076"))
    compute_s = whole / middle(paper.claim("E011"))
    read = EXPERTS_A_TOKEN * EXPERT_BYTES / (whole - compute_s)
    quantised_read_s = EXPERTS_A_TOKEN * EXPERT_BYTES * MEAN_BITS / 32 / read
    widen = (
        EXPERTS_A_TOKEN
        * EXPERT_BYTES
        / (printed(paper.claim("E077")) - compute_s - quantised_read_s)
    )
    return compute_s, read, widen


def timing_of(paper: Paper, name: str) -> Timing:
    """The timing with this name in the paper's file."""
    given: Mapping[str, Any] = paper.timing[name]
    compute_s, ssd, widen = constants()
    read = {
        "tx2_ssd": ssd,
        "tx2_hdd": ssd * SECTORS["hdd"],
        "tx2_hdd_nominal": 50e6,
        "pi_sd": SECTORS["sd"],
    }[given["read"]]
    if given["read"] == "pi_sd":
        # As with E011 on the TX2: on demand a token takes the middle of 3.3 to 3.8 times its
        # compute (E012).
        compute_s = EXPERTS_A_TOKEN * EXPERT_BYTES / read / (middle(paper.claim("E012")) - 1)
    return Timing(
        compute_s,
        printed(paper.claim("E009")) / 100,
        read,
        widen * float(given.get("dequantise_share", 1.0)),
        in_line=given.get("dequantise") == "compute",
    )


def whole_decoder_over_compute(sizes: Model) -> float:
    """The time to read the whole decoder for every token, over the time to compute a token.

    That is its blocks, all experts and the output matrix.
    """
    compute_s, read, _ = constants()
    decoder = range(sizes.encoder_sites, sizes.sites)
    dense = sum(sizes.block_params(site) for site in decoder) + sizes.head_params
    experts = len(decoder) * sizes.experts * sizes.expert_params
    return float((dense + experts) * 4 / read / compute_s)
