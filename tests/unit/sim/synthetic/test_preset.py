"""Presets: every promised model is there with its sources, and wrong files are refused by name."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace

import pytest

from sim.synthetic import preset as module
from sim.synthetic.gate_walk import Walk
from sim.synthetic.preset import (
    Fit,
    FitRow,
    Preset,
    Target,
    load_fit,
    load_preset,
    preset_names,
    write_fits,
)
from sim.traces.header import ModelShape
from sim.traces.routing import RoutingRule
from sim.values.places import ROOT
from sim.verbs.names import names, of_file

SHAPES = {
    "mixtral_8x7b": (32, 8, 2),
    "phi_3_5_moe": (32, 16, 2),
    "qwen1_5_moe_a2_7b": (24, 60, 4),
    "qwen3_8_flash_next": (48, 512, 10),
    "qwen3_30b_a3b": (48, 128, 8),
    "deepseek_moe_16b": (27, 64, 6),
    "deepseek_v2_lite": (26, 64, 6),
    "gpt_oss_20b": (24, 32, 4),
    "olmoe_1b_7b": (16, 64, 8),
    "switch_base_8": (12, 8, 1),
    "switch_base_16": (12, 16, 1),
    "switch_base_32": (12, 32, 1),
    "switch_base_64": (12, 64, 1),
    "switch_base_128": (12, 128, 1),
    "switch_large_128": (24, 128, 1),
    "mixtral_8x22b": (56, 8, 2),
    "qwen3_235b_a22b": (94, 128, 8),
    "gpt_oss_120b": (36, 128, 4),
    "deepseek_v2": (59, 160, 6),
    "deepseek_v3": (58, 256, 8),
    "gptsan_japanese": (10, 16, 1),
    "nllb_moe_54b": (12, 128, 2),
}
TARGET = Target("gini", 0.3, 0.05, "a paper, table 1", "popularity", (0.0, 1.0))
SHAPE = ModelShape("synthetic_some", "none", 3, 4, 2, 8, 8)


def some(**given) -> Preset:
    plain = {
        "name": "some",
        "shape": SHAPE,
        "rule": RoutingRule(),
        "layers": ((0, 1, 2),),
        "assumed": {},
        "readings": {"plain": "as printed", "other": "otherwise"},
        "targets": (TARGET,),
    }
    return Preset(**(plain | given))


def test_every_promised_model_is_there_with_its_shape():
    assert set(preset_names()) == set(SHAPES)
    for name, shape in SHAPES.items():
        found = load_preset(name).shape
        assert (found.sites, found.experts, found.top_k) == shape
        assert found.name == f"synthetic_{name}"


@pytest.mark.parametrize("name", SHAPES)
def test_every_target_has_a_source_and_none_is_the_chance_of_two_of_eight(name):
    loaded = load_preset(name)
    assert loaded.start == replace(Walk(), **dict(loaded.assumed))
    for target in loaded.targets:
        assert len(target.source) > 10
        if (loaded.shape.experts, loaded.shape.top_k) == (8, 2):
            assert not (
                target.statistic.startswith(("any", "overlap", "repeat"))
                and target.value in (0.25, 0.46)
            )


def test_a_switch_model_has_two_stacks_of_every_second_layer():
    assert load_preset("switch_base_8").layers == ((1, 3, 5, 7, 9, 11), (1, 3, 5, 7, 9, 11))
    assert load_preset("deepseek_moe_16b").layers == (tuple(range(1, 28)),)


def test_readings_choose_targets_and_the_first_is_the_default():
    other = Target(
        "gini", 0.6, 0.05, "another paper", "popularity", (0.0, 1.0), readings=("other",)
    )
    chosen = some(targets=(replace(TARGET, readings=("plain",)), other))
    assert [target.value for target in chosen.targets_of("plain")] == [0.3]
    assert [target.value for target in chosen.targets_of("other")] == [0.6]
    assert chosen.reading(None) == "plain"
    with pytest.raises(
        ValueError, match=r"unknown reading=odd of some; known: plain \(as printed\); other"
    ):
        chosen.reading("odd")
    mixtral = load_preset("mixtral_8x7b")
    statistics = {
        name: {target.statistic for target in mixtral.targets_of(name) if target.knob}
        for name in mixtral.readings
    }
    assert "used_1" in statistics["used"]
    assert "equal_1" not in statistics["used"]
    assert "equal_1" in statistics["equality"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"statistic": "beauty"}, "unknown statistic 'beauty'; known: used_1"),
        ({"knob": "volume"}, "unknown knob 'volume'; known: channels, spread"),
        ({"within": None}, "give both knob and within"),
        ({"within": (1.0, 1.0)}, "must be [low, high]"),
        ({"uncertainty": 0.0}, "uncertainty=0.0 must be above 0"),
        ({"value": float("inf")}, "target gini: value=inf"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(given, told):
    with pytest.raises(ValueError, match=r".") as refused:
        replace(TARGET, **given)
    assert told in str(refused.value)


def test_a_preset_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="reading plain: two targets move popularity"):
        some(targets=(TARGET, TARGET))
    with pytest.raises(ValueError, match=r"gini has unknown readings \['odd'\]"):
        some(targets=(replace(TARGET, readings=("odd",)),))
    with pytest.raises(ValueError, match="top_k"):
        some(shape=replace(SHAPE, top_k=5))
    with pytest.raises(ValueError, match="unknown like=gpt5; known: deepseek_moe_16b, "):
        load_preset("gpt5")


def test_a_broken_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken.yaml").write_text("experts: 8\ntargets: []\n", encoding="utf-8")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    with pytest.raises(
        ValueError, match=r"broken.yaml: preset broken: KeyError\('layers'\); correct the file"
    ):
        load_preset("broken")


def test_fits_survive_writing_and_go_stale_with_their_targets(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FITTED", tmp_path / "fitted")
    preset = some()
    with pytest.raises(
        ValueError, match=r"no fit of some for reading=plain; run python -m capture\.calibrate"
    ):
        load_fit(preset, "plain")
    fit = Fit(replace(Walk(), popularity=0.25), (FitRow(TARGET, 0.31234, 0.01234),), 8, 128)
    path = write_fits(preset, {"plain": fit})
    write_fits(preset, {"other": replace(fit, tokens=64)})
    assert load_fit(preset, "plain") == fit
    stored = json.loads(path.read_text())
    assert {name: one["tokens"] for name, one in stored.items()} == {"plain": 128, "other": 64}
    assert stored["plain"]["sequences"] == 8
    assert stored["plain"]["knobs"] == asdict(fit.walk)
    row = {
        "statistic": "gini",
        "target": 0.3,
        "uncertainty": 0.05,
        "source": "a paper, table 1",
        "borrowed": None,
        "knob": "popularity",
        "achieved": 0.31234,
        "deviation": 0.01234,
        "residual": 0.01234,
    }
    assert stored["plain"]["table"] == [row]
    write_fits(preset, {"plain": replace(fit, rows=(FitRow(TARGET, 0.312345678, 0.0987654),))})
    (row,) = json.loads(path.read_text())["plain"]["table"]
    told = (row["achieved"], row["deviation"], row["residual"])
    assert told == (0.31235, 0.09877, 0.01235), "five digits"
    with pytest.raises(ValueError, match="is of other targets than the preset has"):
        load_fit(some(targets=(replace(TARGET, value=0.4),)), "plain")


def test_reached_is_within_the_uncertainty_and_the_deviation():
    assert FitRow(TARGET, 0.355, 0.01).is_reached
    assert not FitRow(TARGET, 0.365, 0.01).is_reached
    even = replace(TARGET, value=0.25, uncertainty=0.125)
    assert FitRow(even, 0.5, 0.125).is_reached, "the end counts"
    assert FitRow(even, 0.0, 0.125).is_reached, "on either side"


def test_every_preset_has_a_fit_and_the_page_names_the_nearest_of_those_that_borrow_one():
    page = (ROOT / "docs/ask.md").read_text(encoding="utf-8")
    for name in preset_names():
        preset = load_preset(name)
        assert load_fit(preset, preset.reading(None)).rows
        if preset.nearest:
            assert re.search(rf"\| [^|]*\b{name}\b[^|]* \| {preset.nearest} \|", page), name


def test_every_model_of_conf_has_a_preset_of_its_name_and_shape_or_recorded_gates():
    recorded = set(names("trace")) - {"of_model"}
    for name in names("model"):
        sizes = of_file("model", name)
        if {name, sizes["gates_of"]} & recorded:
            continue
        preset = load_preset(name)
        shape = preset.shape
        for key in ("sites", "experts", "top_k", "hidden", "expert_intermediate"):
            assert getattr(shape, key) == sizes[key], (name, key)
        encoder = len(preset.layers[0]) if len(preset.layers) > 1 else 0
        assert encoder == sizes.get("encoder_sites", 0), name


def test_a_model_without_statistics_borrows_targets_and_starts_from_the_nearest_fit():
    own, nearest = load_preset("mixtral_8x22b"), load_preset("mixtral_8x7b")
    assert own.nearest == "mixtral_8x7b"
    assert own.start == load_fit(nearest, "used").walk
    values = [target.value for target in nearest.targets_of("used")]
    assert [target.value for target in own.targets] == values
    assert all(target.borrowed for target in own.targets)
    assert "nearest" in own.note


FAMILY = """
architecture: none
layers: [[0, 4, 2], [1, 4]]
experts: 4
top_k: 2
hidden: 8
expert_intermediate: 16
rule: {score: softmax, weight: norm}
readings: {plain: as printed}
targets:
  - {statistic: gini, value: 0.3, uncertainty: 0.05, source: a paper, knob: popularity, within: [0, 1]}
members:
  small:
  large:
    experts: 16
    note: larger
    assumed: {spread: 2.5}
    targets:
      - {statistic: cosine, value: 0.9, uncertainty: 0.1, source: another, readings: [plain]}
"""


def test_members_of_a_family_share_its_file_and_add_what_is_their_own(tmp_path, monkeypatch):
    (tmp_path / "family.yaml").write_text(FAMILY, encoding="utf-8")
    (tmp_path / "alone.yaml").write_text(FAMILY.partition("members")[0], encoding="utf-8")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    assert preset_names() == ("alone", "large", "small")
    gini = Target("gini", 0.3, 0.05, "a paper", "popularity", (0, 1))
    cosine = Target("cosine", 0.9, 0.1, "another", readings=("plain",))
    shape = ModelShape("synthetic_small", "none", 5, 4, 2, 8, 16)
    small = Preset(
        "small",
        shape,
        RoutingRule(score="softmax", weight="norm"),
        ((0, 2), (1, 2, 3)),
        {},
        {"plain": "as printed"},
        (gini,),
    )
    assert load_preset("small") == small
    assert load_preset("alone") == replace(
        small, name="alone", shape=replace(shape, name="synthetic_alone")
    )
    large = load_preset("large")
    assert large == replace(
        small,
        name="large",
        shape=replace(shape, name="synthetic_large", experts=16),
        assumed={"spread": 2.5},
        targets=(gini, cosine),
        note="larger",
    )
    assert large.start == replace(Walk(), spread=2.5)
    assert load_preset("large") == large, "reading changes nothing"


def test_a_preset_like_another_has_its_shape_and_the_others_targets_and_knobs(
    tmp_path, monkeypatch
):
    own = FAMILY.partition("readings")[0] + "nearest: near\nnote: borrowed\n"
    near = FAMILY.partition("members")[0].replace(
        "{plain: as printed}", "{first: as printed, second: else}"
    )
    near += "  - {statistic: cosine, value: 0.9, uncertainty: 0.1, source: x, borrowed: y}\n"
    near += (
        "  - {statistic: equal_1, value: 0.9, uncertainty: 0.1, source: x, readings: [second]}\n"
    )
    (tmp_path / "own.yaml").write_text(own, encoding="utf-8")
    (tmp_path / "near.yaml").write_text(near, encoding="utf-8")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "FITTED", tmp_path / "fitted")
    walk = replace(Walk(), spread=2.5)
    nearest = load_preset("near")
    rows = tuple(FitRow(target, 0.3, 0.01) for target in nearest.targets_of("first"))
    write_fits(nearest, {"first": Fit(walk, rows, 8, 128)})
    found = load_preset("own")
    assert (found.name, found.nearest, found.note) == ("own", "near", "borrowed")
    assert found.readings == {"first": "near: as printed"}
    assert [(one.statistic, one.borrowed, one.readings) for one in found.targets] == [
        ("gini", "near", ()),
        ("cosine", "y", ()),
    ]
    assert found.start == walk
