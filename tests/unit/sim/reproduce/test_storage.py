"""EdgeMoE's timings follow from the numbers that the module's head prints, for each drive."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from sim.reproduce.identities import model
from sim.reproduce.roles import load_paper
from sim.reproduce.storage import constants, timing_of, whole_decoder_over_compute

SIX_BYTES = 6 * 18 * 2**20
COMPUTE_S = 0.789 / 3.55
READ = SIX_BYTES / (0.789 - COMPUTE_S)
WIDEN = SIX_BYTES / (0.392 - COMPUTE_S - SIX_BYTES * 3.24 / 32 / READ)
ON_A_PI_S = SIX_BYTES / 45e6 / (3.55 - 1)


def test_compute_and_rates_of_the_tx2_solve_both_equations() -> None:
    assert constants() == pytest.approx((COMPUTE_S, READ, WIDEN))


TIMED = {
    # read from, dequantised on: seconds of compute, rates of reading and dequantising, in line
    ("tx2_ssd", "loader"): (COMPUTE_S, READ, WIDEN, False),
    ("tx2_ssd", "compute"): (COMPUTE_S, READ, WIDEN, True),
    ("tx2_hdd", "loader"): (COMPUTE_S, READ / 11, WIDEN, False),
    ("tx2_hdd_nominal", "loader"): (COMPUTE_S, 50e6, WIDEN, False),
    ("pi_sd", "loader"): (ON_A_PI_S, 45e6, WIDEN, False),
}


@pytest.mark.parametrize(("read", "where"), TIMED)
def test_every_drive_has_its_rate_and_a_pi_its_compute(read: str, where: str) -> None:
    given = {"read": read, "dequantise": where}
    edgemoe = load_paper("edgemoe")
    paper = replace(edgemoe, timing={"one": given, "slow": given | {"dequantise_share": 0.25}})
    compute_s, rate, widen, in_line = TIMED[read, where]
    share = paper.claim("E009").value
    assert isinstance(share, float | int)
    assert astuple(timing_of(paper, "one")) == pytest.approx(
        (compute_s, share / 100, rate, widen, in_line)
    )
    assert timing_of(paper, "slow").widen_bytes_per_s == pytest.approx(widen / 4)


def test_no_drive_is_left_out() -> None:
    asked = {given["read"] for given in load_paper("edgemoe").timing.values()}
    assert asked == {read for read, _ in TIMED}


def test_a_whole_decoder_is_read_in_many_times_what_a_token_is_computed_in() -> None:
    """Half of 24 sites of 128 experts: 4 bytes for each of their parameters."""
    sizes = model("switch_base_8")
    decoder = range(sizes.encoder_sites, sizes.sites)
    parts = [sizes.block_params(site) + sizes.experts * sizes.expert_params for site in decoder]
    assert 0 < len(parts) < sizes.sites
    read_s = (sum(parts) + sizes.head_params) * 4 / READ
    assert whole_decoder_over_compute(sizes) == pytest.approx(read_s / COMPUTE_S)
