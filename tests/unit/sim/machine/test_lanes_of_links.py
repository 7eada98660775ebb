"""Engines with a pace of their own, as figures of a machine: what they give, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sim.machine.contention import WHOLE
from sim.machine.hardware import Hardware
from sim.machine.lanes import Lanes, in_projections, in_proportion
from sim.machine.link import Link
from sim.machine.link_parts import Reads
from sim.machine.model import Model
from sim.machine.parts import Host, SharedMemory
from sim.machine.precision import PRECISIONS
from sim.machine.roofline import Roofline
from sim.setup.configure import configure
from sim.setup.sections import make_object


def made(section: str, word: str) -> Any:
    cfg, _ = configure(word)
    return make_object(cfg[section])


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    found: Hardware = made("hardware", "hardware=oneplus_15r")
    return found


@pytest.fixture(scope="module")
def model() -> Model:
    found: Model = made("model", "model=qwen3_30b_a3b")
    return found


# Contracts: C166
def test_the_last_projection_takes_what_the_others_leave() -> None:
    assert in_projections((4, 4, 6), 14) == (4, 4, 6)
    assert in_projections((4, 4, 6), 17) == (4, 4, 9)
    assert in_projections((4, 4, 6), 6) == (4, 2, 0)
    assert in_projections((5,), 9) == (9,)


# Contracts: C167
def test_times_by_projection_sum_to_the_whole() -> None:
    assert in_proportion(10, (1, 1, 1)) == (3, 3, 4)
    assert sum(in_proportion(1_000_003, (884_736, 884_736, 1_290_240))) == 1_000_003


@pytest.mark.parametrize("name", [*PRECISIONS])
def test_projections_of_a_precision_are_the_bytes_that_move(model: Model, name: str) -> None:
    whole, parts = model.expert_bytes(name), model.projection_bytes(name)
    assert len(parts) == 3 - len(PRECISIONS[name].resident)
    assert whole <= sum(parts) < whole + len(parts)


# Contracts: C166
def test_a_fused_gate_is_read_with_the_up_projection(model: Model) -> None:
    fused = replace(model, fused_gate=True)
    gate, up, down = model.projection_bytes("q4_k_m")
    assert fused.projection_bytes("q4_k_m") == (gate + up, down)
    assert fused.projection_bytes("fp16") == (2 * 2 * 2048 * 768, 2 * 2048 * 768)
    assert fused.expert_bytes("q4_k_m") == model.expert_bytes("q4_k_m")


def test_a_gate_that_does_not_move_is_read_with_nothing(model: Model) -> None:
    fused = replace(model, fused_gate=True)
    assert fused.projection_bytes("floe") == model.projection_bytes("floe")
    with pytest.raises(ValueError, match=r"fused_gate=true needs experts of three matrices"):
        replace(fused, expert_matrices=2)
    with pytest.raises(ValueError, match=r"model\.fused_gate"):
        replace(model, fused_gate=1)


def test_recorded_experts_have_the_projections_of_their_format(
    hardware: Hardware, model: Model
) -> None:
    """Q4_K_M keeps half of the down projections in Q6_K; gate and up are Q4_K everywhere."""
    roofline = Roofline(model, hardware, ("q4_k_m",))
    assert roofline.projection_bytes(0, 0, 2_654_208) == (884_736, 884_736, 884_736)
    assert roofline.projection_bytes(0, 0, 3_059_712) == (884_736, 884_736, 1_290_240)


# Contracts: C165
def test_lanes_of_a_link_are_in_whole_millionths_and_ns() -> None:
    plain = Link(4.0, 0.5, 100.0, engines=4, name="ufs")
    assert plain.lanes is None
    assert replace(plain, wake_us=1.5).lanes == Lanes(wake_ns=1500)
    laned = replace(plain, engine_gb_per_s=0.5, copy_gb_per_s=5.0, unit="projection")
    assert laned.lanes == Lanes(WHOLE // 4, 0, 5e9, True)
    assert laned.lanes.copy_ns(10_000) == 2_000
    # An engine may reach all of the link's rate, or just its part of it.
    for own, pace in ((2.0, WHOLE), (0.5, WHOLE // 4)):
        assert Lanes(pace) == (replace(plain, engine_gb_per_s=own).lanes or Lanes())
    # The time of a hop is the whole link's: only an engine's pace is another.
    assert laned.hop_ns(2_000_000) == plain.hop_ns(2_000_000)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"unit": "expert"}, r"unit='expert'; allowed: variant, projection"),
        ({"engine_gb_per_s": 0.4}, r"engine_gb_per_s=0\.4: .* give 0\.5 to 2"),
        ({"engine_gb_per_s": 3.0}, r"engine_gb_per_s=3: .* give 0\.5 to 2"),
        ({"wake_us": -1.0}, r"wake_us=-1"),
        ({"copy_gb_per_s": 0.0}, r"copy_gb_per_s=0"),
        ({"wake_us": 2.0, "call_bytes": 4096, "engines": 1}, r"do not go with call_bytes"),
        (
            {"unit": "projection", "engines": 1, "reads": Reads(4096, 1, 80.0)},
            r"unit=projection, which do not go with reads",
        ),
    ],
)
def test_figures_that_cannot_be_are_refused_by_name(changes: dict[str, Any], told: str) -> None:
    plain = Link(4.0, 0.5, 100.0, engines=4, name="ufs")
    with pytest.raises(ValueError, match=r"hardware\.links\.ufs.*" + told):
        replace(plain, **changes)


# Contracts: C141, C168
def test_lanes_and_parties_that_slow_each_other_are_refused(hardware: Hardware) -> None:
    (link,) = hardware.links
    machine = replace(hardware, links=(replace(link, wake_us=2.0),), host=Host(load_us=3.0))
    assert machine.lanes == ["links.ufs.wake_us=2.0", "host.load_us=3"]
    with pytest.raises(ValueError, match=r"links\.ufs\.wake_us=2\.0 of oneplus_15r does not go"):
        replace(machine, beside={"compute": {"ufs": 1.5}})
    memory = SharedMemory(40.0, ("compute", "ufs"), "as_drawn")
    with pytest.raises(ValueError, match="beside and shared_memory"):
        replace(machine, shared_memory=memory)
    assert hardware.lanes == []
    assert machine.host.costs.load_ns == 3000


# Contracts: C168
def test_book_keeping_of_a_load_is_a_time_and_its_bytes_at_a_rate(hardware: Hardware) -> None:
    host = Host(load_us=3.0, load_gb_per_s=2.0)
    assert replace(hardware, host=host).lanes == ["host.load_us=3", "host.load_gb_per_s=2"]
    assert host.costs.loading_ns(1_000) == 3_000 + 500
    assert Host(load_us=3.0).costs.loading_ns(1_000) == 3_000
    with pytest.raises(ValueError, match=r"hardware\.host\.load_gb_per_s=0\.0 must be"):
        Host(load_gb_per_s=0.0)
