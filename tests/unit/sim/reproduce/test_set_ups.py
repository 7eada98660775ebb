"""The set-ups of experiments follow from the papers' numbers: tables, sizes, baselines."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pytest

from sim.reproduce.experiments import points_of
from sim.reproduce.identities import model
from sim.reproduce.recorded import GAINS, with_recorded
from sim.reproduce.roles import load_paper
from sim.values.places import ROOT

TINY = ROOT / "capture/assets/traces/tiny_mixtral"


def test_an_expert_of_floe_takes_what_its_table_says() -> None:
    """The table prints 283 us at 90 %."""
    floe = load_paper("floe")
    (table,) = floe.words["table_1"]
    assert f"[[1, {1000 * floe.kernels['rtx3090'][0.9]:g}]]" in table


def test_floe_at_80_per_cent_is_not_the_floe_of_its_other_numbers() -> None:
    """INT2 up projections make experts 9.2 times smaller beside 10 % of gate and down.

    Beside 20 % they make them 5.7 times smaller.
    """
    floe = load_paper("floe")
    smaller = {share: 1 / (1 / 3 * 2 / 16 + 2 / 3 * share) for share in (0.1, 0.2)}
    assert smaller[0.1] == pytest.approx(floe.claim("L001").value, rel=0.01)
    assert smaller[0.2] < 0.62 * floe.claim("L001").value
    assert all("sparsity" not in experiment.grid for experiment in floe.experiments.values())


def test_no_expert_takes_six_milliseconds_on_fates_high_end_pc() -> None:
    """An expert takes half as long there.

    The PC reaches 14 tokens/s, at most 4.1 times as fast as loading every expert of every token.
    """
    fate, qwen = load_paper("fate"), model("qwen1_5_moe_a2_7b")
    loaded = qwen.sites * qwen.top_k
    most_ms = 1e3 * fate.claim("F003").value / fate.claim("F038").value / loaded
    assert most_ms == pytest.approx(3.05, abs=0.005)
    assert most_ms < fate.claim("F010").value / 1.9
    for name, experiment in fate.experiments.items():
        for point in points_of(fate, experiment, {"host_us": 0.0}) if name != "ladder" else ():
            for arm in (arm for group in point.groups for arm in group.values()):
                slow = "hardware.links.pcie.peak_gb_per_s=2.9" in arm.words
                assert not (slow and "hardware=rtx3090_pcie3" in arm.words), (name, point.name)


def test_all_experts_at_three_bits_fit_in_21_gb() -> None:
    mixtral = model("mixtral_8x7b")
    experts = mixtral.sites * mixtral.experts * mixtral.expert_params * 3 / 8
    dense = (mixtral.total_params - mixtral.sites * mixtral.experts * mixtral.expert_params) * 2
    assert experts / 1e9 == pytest.approx(16.9, abs=0.05)
    assert experts + dense < 21e9
    assert "budget.resident_share=1.0" in load_paper("floe").words["offloading_21"]


def test_fiddlers_cpu_takes_three_milliseconds_a_token() -> None:
    """H103: that is for one token of an expert of Mixtral.

    Fiddler's code counts the same for every further token.
    """
    hobbit = load_paper("hobbit")
    (efficiency,) = (
        float(word.partition("=")[2])
        for word in hobbit.words["fiddler"]
        if "flops_efficiency" in word
    )
    flops = 2 * model("mixtral_8x7b").expert_params
    assert flops / (4.7e12 * efficiency) * 1e3 == pytest.approx(
        hobbit.claim("H103").value, rel=0.01
    )


def test_a_point_may_change_each_group_in_its_own_way() -> None:
    hobbit = load_paper("hobbit")
    by_name = {
        point.name: point
        for point in points_of(hobbit, hobbit.experiments["dynamic_loading_gains"], {})
    }
    changed = by_name["pools all_high_int8 / all_high"]
    precisions = [
        next(word for word in reversed(group["theirs"].words) if word.startswith("precision="))
        for group in changed.groups
    ]
    assert precisions == ["precision=hobbit_int8"] * 2 + ["precision=hobbit"] * 4
    for group, default in zip(changed.groups, by_name["default"].groups, strict=True):
        assert group["ours"] == default["ours"]
        assert "precision.quantiles=[1.0, 1.0]" in group["theirs"].words


def test_a_recorded_trace_joins_where_every_trace_is_asked() -> None:
    paper = load_paper("hobbit")
    more = with_recorded(paper, f"tiny_gates_half_mixtral:{TINY}")
    for name, experiment in paper.experiments.items():
        assert len(more.experiments[name].over) == len(experiment.over) + (name in GAINS)
    (group,) = points_of(more, more.experiments["gain_over_lru"], {})[0].groups[-1:]
    assert group["ours"].trace == "tiny_mixtral"
    assert "trace.max_sequences=12" in group["ours"].words
    floe = load_paper("floe")
    assert with_recorded(floe, f"tiny_gates_half_mixtral:{TINY}") is floe


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("tiny", "must be MODEL:DIR"),
        ("mixtral_8x7b:/nowhere", "/nowhere is no trace"),
        (f"no_model:{TINY}", "no model no_model"),
        (f"gpt_oss_20b:{TINY}", "gpt_oss_20b"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(asked: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_recorded(load_paper("hobbit"), asked)


def test_a_recorded_trace_never_stands_in_place_of_one_of_the_papers(tmp_path: Path) -> None:
    """Every experiment on the paper's own trace would have run on it, unsaid."""
    paper = load_paper("hobbit")
    name = next(iter(paper.traces))
    copytree(TINY, tmp_path / name)
    with pytest.raises(ValueError, match=f"has a trace {name} of its own, in whose place"):
        with_recorded(paper, f"tiny_gates_half_mixtral:{tmp_path / name}")
