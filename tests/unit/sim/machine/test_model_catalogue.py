"""Every model of the catalogue, against published figures and a second count of its parameters."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from helpers.catalogue import conf
from sim.machine.model import Model
from sim.values.places import ROOT

GIB, MIB = 1 << 30, 1 << 20
FACTS = ROOT.parent / "shared" / "facts" / "models.csv"
CATALOGUE = {
    "Mixtral-8x7B": ("mixtral_8x7b", 46.7, 12.9),
    "Mixtral-8x22B": ("mixtral_8x22b", 141, 39),
    "Phi-3.5-MoE": ("phi_3_5_moe", 41.9, 6.6),
    "Qwen1.5-MoE-A2.7B": ("qwen1_5_moe_a2_7b", 14.3, 2.7),
    "Qwen3-30B-A3B": ("qwen3_30b_a3b", 30.5, 3.3),
    "Qwen3-235B-A22B": ("qwen3_235b_a22b", 235, 22),
    "DeepSeekMoE-16B": ("deepseek_moe_16b", 16.4, 2.8),
    "DeepSeek-V2-Lite": ("deepseek_v2_lite", 15.7, None),
    "DeepSeek-V2": ("deepseek_v2", 236, 21),
    "DeepSeek-V3": ("deepseek_v3", 671, 37),
    "OLMoE-1B-7B": ("olmoe_1b_7b", 6.9, 1.3),
    "gpt-oss-20b": ("gpt_oss_20b", 20.9, None),
    "gpt-oss-120b": ("gpt_oss_120b", 116.8, None),
    "Switch-base-8": ("switch_base_8", 0.62, None),
    "Switch-base-16": ("switch_base_16", 1.07, None),
    "Switch-base-32": ("switch_base_32", 1.98, None),
    "Switch-base-64": ("switch_base_64", 3.79, None),
    "Switch-base-128": ("switch_base_128", 7.42, None),
    "Switch-large-128": ("switch_large_128", 26.4, None),
    "GPTSAN-japanese": ("gptsan_japanese", 2.8, None),
    "NLLB-MoE-54B": ("nllb_moe_54b", 54.5, None),
}
"""Name of the model: its file, and the published billions of parameters, in all and used by a
token. The latter is left out where its authors count otherwise: DeepSeek-V2-Lite and gpt-oss
without the input embedding."""


def all_experts(model: Model, precision: str) -> int:
    return model.sites * model.experts * model.expert_bytes(precision)


@pytest.mark.alike
@pytest.mark.parametrize("name", CATALOGUE)
def test_parameters_add_up_to_what_is_published(name: str) -> None:
    """All parameters within 0.8 %, active ones within 3 %.

    GPTSAN's 2.8 B and all active ones are printed with two digits.
    """
    file, total, active = CATALOGUE[name]
    model = conf(file)
    assert model.name == file
    assert model.total_params / 1e9 == pytest.approx(total, rel=8e-3)
    if active is not None:
        assert model.active_params / 1e9 == pytest.approx(active, rel=0.03)


def test_the_papers_sizes_come_out() -> None:
    """HOBBIT Table 1: 87 and 84, 78 and 75 "GB", which are GiB.

    FloE: over 300 MB an expert, 94 GB in all.
    """
    mixtral, phi = conf("mixtral_8x7b"), conf("phi_3_5_moe")
    assert all_experts(mixtral, "fp16") == 84 * GIB
    assert round((all_experts(mixtral, "fp16") + mixtral.dense_bytes) / GIB) == 87
    assert all_experts(phi, "fp16") == 75 * GIB
    assert round((all_experts(phi, "fp16") + phi.dense_bytes) / GIB) == 78
    assert mixtral.expert_bytes("fp16") / 1e6 == pytest.approx(352.3, abs=0.05)
    assert round((mixtral.total_params * 2) / 1e9) in (93, 94)


def test_ten_experts_of_a_switch_base_take_180_mib() -> None:
    """EdgeMoE section 4.5: ten more buffered experts are about 180 MB; each is 18 MiB in fp32."""
    switch = conf("switch_base_8")
    assert switch.expert_bytes("fp32") == 18 * MIB
    assert 10 * switch.expert_bytes("fp32") == 180 * MIB


def test_experts_take_nearly_all_of_a_switch_base_16() -> None:
    """EdgeMoE section 2: 86.5 % of the memory, which is the share without the embedding."""
    model = conf("switch_base_16")
    experts = model.sites * model.experts * model.expert_params
    assert experts / (model.total_params - model.head_params) == pytest.approx(0.865, abs=0.001)


def test_an_expert_of_gpt_oss_as_it_is_stored_has_13_236_480_bytes() -> None:
    """24,883,200 weights at 4.25 bits, and 8,640 biases at 16 bits."""
    assert (
        conf("gpt_oss_20b").expert_bytes("mxfp4") == 24_883_200 * 17 // 32 + 2 * 8_640 == 13_236_480
    )


def test_compressed_keys_and_values_are_what_deepseek_caches() -> None:
    """512 + 64 values a layer, at 2 B: 1152 B; DeepSeek-V3's 61 layers 70,272 B a token."""
    assert conf("deepseek_v3").layer_kv_bytes == 1_152
    assert conf("deepseek_v3").kv_bytes_per_token == 61 * 1_152 == 70_272


def test_deepseek_v3_takes_the_bytes_in_which_it_is_published() -> None:
    """Its checkpoint has 688.6 GB. 15.3 of them are of the prediction layer, which is left out: its
    11.5 B parameters in FP8, with copies of embedding and LM head in 16 bits.
    """
    model = conf("deepseek_v3")
    head = model.head_params
    left_out = 11.5e9 + 2 * 2 * head
    assert all_experts(model, "fp8") + model.dense_bytes == pytest.approx(
        688.6e9 - left_out, rel=1e-3
    )
    in_16_bits = 2 * head + model.sites * model.experts * model.hidden
    fp8 = 8 + 32 / 128**2
    mean = fp8 + (16 - fp8) * in_16_bits / model.dense_params
    assert model.dense_bits == pytest.approx(mean, abs=0.005)


def test_an_encoders_layers_keep_no_keys_and_values() -> None:
    """Twelve decoder layers, 768 keys and 768 values of 4 B."""
    assert conf("switch_base_8").kv_bytes_per_token == 12 * 2 * 768 * 4


@pytest.mark.skipif(
    not Path(FACTS).exists(), reason="the table of facts is not part of the project"
)
def test_the_catalogue_agrees_with_the_table_of_facts_to_its_last_digit() -> None:
    with FACTS.open(encoding="utf-8", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert set(rows) == set(CATALOGUE)
    for name, row in rows.items():
        model = conf(CATALOGUE[name][0])
        assert round(model.total_params / 1e9, 3) == float(row["computed_total_B"]), name
        assert round(model.active_params / 1e9, 3) == float(row["computed_active_B_incl_embed"]), (
            name
        )
        assert model.expert_params == int(row["expert_params"]), name
        assert model.expert_bytes("fp16") == int(row["expert_bytes_fp16"]), name
        assert (
            model.kv_bytes_per_token * 16 == int(row["kv_bytes_per_token_fp16"]) * model.kv_bits
        ), name
