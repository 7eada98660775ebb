"""The arithmetic behind the papers' numbers, against plain arithmetic written out here."""

from __future__ import annotations

import pytest

from sim.reproduce.identities import CHECKS, compute, model
from sim.reproduce.kernels import fitted, kernel_ms
from sim.reproduce.roles import PAPERS, load_paper
from sim.reproduce.storage import constants
from sim.reproduce.verdicts import verdict_of

GIB = 2**30


@pytest.mark.alike
@pytest.mark.parametrize("name", PAPERS)
def test_every_identity_is_met_or_is_the_misprint_it_is_known_for(name: str) -> None:
    paper = load_paper(name)
    for claim in paper.claims:
        if claim.role == "identity":
            found = verdict_of(paper, claim, {})
            assert found.verdict == ("misprint" if claim.misprint else "holds"), (
                claim.id,
                claim.value,
                found.simulated,
            )


def test_every_check_is_used() -> None:
    used = {claim.check for name in PAPERS for claim in load_paper(name).claims}
    assert set(CHECKS) == used - {None, "ablation"}


def test_sizes_are_those_that_the_papers_print() -> None:
    mixtral, phi = model("mixtral_8x7b"), model("phi_3_5_moe")
    assert round(mixtral.total_params * 2 / GIB) == 87
    assert mixtral.sites * mixtral.experts * mixtral.expert_bytes("fp16") == 84 * GIB
    assert round(phi.total_params * 2 / GIB) == 78
    assert mixtral.expert_bytes("fp16") > 300e6
    assert 10 * model("switch_base_8").expert_bytes("fp32") == 180 * 2**20


def test_a_kernels_line_goes_through_its_first_and_last_point() -> None:
    """RTX 3090: 0.542 ms for 352.3 MB, 0.283 ms for 140.9 MB: 816 GB/s and 110 us."""
    points = load_paper("floe").kernels["rtx3090"]
    assert kernel_ms(points, 0) == pytest.approx(0.542, abs=1e-6)
    assert kernel_ms(points, 0.9) == pytest.approx(0.283, abs=1e-6)
    assert fitted(points).memory_gb_per_s == pytest.approx(352.321536 * 0.6 / 0.259, rel=1e-6)
    assert fitted(points).launch_us == pytest.approx(110.33, abs=0.01)


def test_table_1_follows_from_two_constants_a_gpu() -> None:
    """The 16 points between them are each within 8 %, half of them within 4 %."""
    errors = []
    for claim in load_paper("floe").claims:
        if claim.check == "kernel_ms" and claim.role == "predicted":
            assert isinstance(claim.value, float)
            errors.append(abs(float(compute(load_paper("floe"), claim)) / claim.value - 1))
    assert len(errors) == 16
    assert max(errors) <= 0.08
    assert sorted(errors)[8] <= 0.04


def test_edgemoes_machine_gives_back_what_it_was_drawn_from() -> None:
    """Six experts of 18 MiB: 0.222 s of compute, read at 0.2 GB/s, widened at 1 GB/s."""
    compute_s, read, widen = constants()
    six = 6 * 18 * 2**20
    assert compute_s == pytest.approx(0.789 / 3.55)
    assert compute_s + six / read == pytest.approx(0.789)
    assert compute_s + six * 3.24 / 32 / read + six / widen == pytest.approx(0.392)
    assert read == pytest.approx(200e6, rel=0.01)
    assert widen == pytest.approx(1.0e9, rel=0.02)
