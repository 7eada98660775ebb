"""A layer's stall from lanes and kernels, worked by hand; and on the recorded run where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.reproduce.phone import Constants, PhoneError, errors, fit, layer_stall_ms, read_run
from sim.values.places import ROOT

FOLDER = ROOT / ".." / "shared" / "traces" / "phone_qwen3_30b"
GATE = 884_736
"""Bytes of a gate, up or (here) down projection: 2048 x 768 weights of 4.5 bits."""
EXPERT = 3 * GATE


def constants(
    wake: float = 0.0, read: float = 1.0, compute: float = 0.0, booking: float = 0.0
) -> Constants:
    """The constants of a phone; ``read`` is in ms a projection."""
    return Constants(wake, read / GATE * 1e6, compute, booking, 0.0)


def test_a_layer_without_an_absent_expert_waits_for_nothing() -> None:
    assert layer_stall_ms([False] * 6, EXPERT, constants(compute=1.0)) == 0


def test_one_absent_expert_keeps_three_of_four_lanes_busy_at_once() -> None:
    assert layer_stall_ms([True], EXPERT, constants()) == pytest.approx(1.0)
    assert layer_stall_ms([True], EXPERT, constants(wake=0.25)) == pytest.approx(1.25)


def test_two_absent_experts_need_a_second_round_of_two_reads() -> None:
    """Six reads on four lanes: gates and ups end at 1 ms, downs at 2 ms."""
    assert layer_stall_ms([True, True], EXPERT, constants()) == pytest.approx(2.0)


def test_kernels_hide_reads_behind_experts_that_are_there() -> None:
    """Each of 3 projections of 2 experts computes 0.1 ms.

    The first expert is resident, so 0.1 ms of the read is hidden.
    """
    assert layer_stall_ms([False, True], EXPERT, constants(compute=0.6)) == pytest.approx(0.9)
    # The absent expert comes first: nothing is hidden before its gate projection is there, then
    # everything is.
    assert layer_stall_ms([True, False], EXPERT, constants(compute=0.6)) == pytest.approx(1.0)


def test_half_of_the_books_is_kept_while_the_lanes_read() -> None:
    assert layer_stall_ms([True], EXPERT, constants(booking=0.4)) == pytest.approx(0.8)
    assert layer_stall_ms([True], EXPERT, constants(booking=4.0)) == 0


def test_a_folder_without_the_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PhoneError, match=r"qwen\.route\.csv is not there"):
        read_run(tmp_path)


@pytest.mark.skipif(
    not FOLDER.exists(), reason="the published Qwen3-30B-A3B phone trace is not here"
)
def test_the_recorded_run_is_predicted_from_its_first_half() -> None:
    run = read_run(FOLDER)
    found = errors(run)
    assert found.io <= 0.03
    assert found.stall <= 0.10
    assert 0.9 <= found.wall_ratio <= 1.1
    # The fit does not use the second half, so other stalls there change no constant.
    later = {name: values.copy() for name, values in run.metrics.items()}
    for values in later.values():
        values[64:] *= 3
    assert fit(type(run)(run.layers, run.expert_bytes, later)) == fit(run)
    stalls = dict(run.metrics) | {"stall_ms": run.metrics["stall_ms"] * 2}
    assert fit(type(run)(run.layers, run.expert_bytes, stalls)) == fit(run), (
        "a stall is never fitted"
    )
