"""Sizes of models, against published totals and worked by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from helpers.round_machine import small
from sim.machine.attention import LatentAttention
from sim.machine.model import Model
from sim.setup.sections import make_object
from sim.study.trials import prepared
from sim.values.places import ROOT

GIB = 1 << 30
LATENT = LatentAttention(query_rank=0, kv_rank=4, rope_dim=2, nope_dim=2, value_dim=2)


def conf(name: str) -> Model:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return make_object(compose(f"model/{name}").model)  # type: ignore[no-any-return]


def total_params(model: Model) -> int:
    return model.dense_bytes // 2 + model.sites * model.experts * model.expert_params


def test_a_mixtral_expert_has_352_321_536_bytes_at_16_bits() -> None:
    """3 x 4096 x 14336 x 2 B; at 4 bits a quarter of it, at 2 an eighth."""
    mixtral = conf("mixtral_8x7b")
    assert mixtral.expert_bytes("fp16") == mixtral.expert_bytes("bf16") == 352_321_536
    assert mixtral.expert_bytes("int8") == 176_160_768
    assert mixtral.expert_bytes("int4") == 88_080_384
    assert mixtral.expert_bytes("int2") == 44_040_192


def test_mixtral_takes_87_gib_of_which_its_experts_take_84() -> None:
    mixtral = conf("mixtral_8x7b")
    experts = mixtral.sites * mixtral.experts * mixtral.expert_bytes("fp16")
    assert experts == 84 * GIB
    assert round((experts + mixtral.dense_bytes) / GIB) == 87


@pytest.mark.parametrize(
    ("name", "billions"), [("mixtral_8x7b", 46.7), ("qwen3_30b_a3b", 30.5), ("gpt_oss_20b", 20.9)]
)
def test_parameters_add_up_to_the_published_total(name: str, billions: float) -> None:
    """46.7 B (arXiv:2401.04088), 30.5 B and 20.9 B (model cards).

    0.2 % are allowed for biases and per-head norms that are left out.
    """
    assert total_params(conf(name)) / 1e9 == pytest.approx(billions, rel=2e-3)


def test_mixtral_keeps_131_072_bytes_of_keys_and_values_a_token() -> None:
    """32 layers x (keys and values) x 8 heads x 128 channels x 2 B."""
    assert conf("mixtral_8x7b").kv_bytes_per_token == 131_072


def test_a_small_model_by_hand() -> None:
    """A layer: attention 8 * 4 * (2 * 2 + 2 * 1) = 192, two norms 16, router 32: 240.

    Head and embedding have 80 each, the norm 8. Dense: 3 * 240 + 2 * 80 + 8 = 888 parameters, 1776
    B; with one matrix for head and embedding 808. Expert: 3 * 8 * 16 = 384.
    """
    model = small()
    assert (model.block_params(0), model.head_params, model.expert_params) == (240, 80, 384)
    assert model.dense_bytes == 1776
    assert small(tied_embeddings=True).dense_bytes == 1616
    assert small(dense_bits=8.0).dense_bytes == 888
    assert model.expert_bytes("fp16") == 768
    assert small(expert_matrices=2).expert_bytes("fp16") == 512
    assert model.kv_bytes_per_token == 3 * 2 * 1 * 4 * 2


def test_an_odd_number_of_bits_takes_whole_bytes() -> None:
    """3 * 1 * 1 parameters of 2 bits are 6 bits, 1 B; of 4 bits 2 B."""
    tiny = small(hidden=1, expert_intermediate=1)
    assert (tiny.expert_bytes("int2"), tiny.expert_bytes("int4"), tiny.expert_bytes("int8")) == (
        1,
        2,
        3,
    )


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="unknown precision 'int3'; known: fp32, fp16, bf16, int8, int4, int2"
    ):
        small().expert_bytes("int3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sites": 0}, r"model\.sites=0 must be a whole number >= 1"),
        ({"hidden": 8.0}, r"model\.hidden=8\.0 must be a whole number"),
        ({"top_k": 5}, r"model\.top_k=5 exceeds model\.experts=4"),
        ({"gates_of": "a"}, "give both gates_of and sizes_of"),
        ({"sizes_of": "b"}, "give both gates_of and sizes_of"),
        (
            {"whole": 5},
            r"^model\.whole=5 must be null, or sites, experts and top_k of the published",
        ),
        ({"whole": (5, 4)}, r"^model\.whole=\(5, 4\) must be null, or sites, experts and top_k"),
        ({"whole": (5, 4, 0)}, r"^model\.whole=0 must be a whole number >= 1"),
        ({"latent": 3}, r"^model\.latent=3 must be null or a section with its _target_$"),
        (
            {"leading_dense_layers": 1, "dense_layers_per_site": 2},
            r"^model small: 3 layers without experts \(leading_dense_layers=1,"
            r" dense_layers_per_site=2\) and dense_intermediate=0 must be both given or both 0$",
        ),
        (
            {"dense_intermediate": 16},
            r"^model small: 0 layers without experts \(leading_dense_layers=0,"
            r" dense_layers_per_site=0\) and dense_intermediate=16 must be both given or both 0$",
        ),
        (
            {"encoder_sites": 3},
            r"^model\.encoder_sites=3 must be below model\.sites=3: the rest decode$",
        ),
        (
            {"encoder_sites": 2, "leading_dense_layers": 1, "dense_intermediate": 16},
            r"^model small: leading_dense_layers=1 and latent=None do not go with encoder_sites=2;"
            r" use dense_layers_per_site$",
        ),
        (
            {"encoder_sites": 1, "latent": LATENT},
            r"^model small: leading_dense_layers=0 and latent=LatentAttention\(.* do not go with"
            r" encoder_sites=1; use",
        ),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_layers_without_experts_or_an_encoder_are_taken_alone() -> None:
    assert small(latent=LATENT, leading_dense_layers=1, dense_intermediate=16).layers_at(0) == 2
    assert small(encoder_sites=2, dense_layers_per_site=1, dense_intermediate=16).encoder_sites == 2


def test_a_transplant_tells_each_way_in_which_it_is_not_the_whole() -> None:
    declared = small(gates_of="tiny", sizes_of="small")
    told = "TRANSPLANTED: gates of tiny, sizes of small"
    assert declared.transplant == f"{told}, how many layers that has is not known"
    assert replace(declared, whole=(3, 4, 2)).transplant == told
    assert replace(declared, whole=(6, 4, 2)).transplant == f"{told}, 3 of its 6 layers"
    assert (
        replace(declared, whole=(2, 8, 1)).transplant
        == f"{told}, 3 layers for its 2, 4 experts a layer for its 8, top-2 for its top-1"
    )


def test_a_model_of_fewer_layers_than_the_published_one_of_its_name_says_so() -> None:
    assert replace(small(), whole=(3, 4, 2)).part is None
    assert replace(small(), whole=(6, 4, 2)).part == "NOT the whole of small: 3 of its 6 layers"
    transplant = replace(small(gates_of="tiny", sizes_of="large"), whole=(6, 4, 2))
    assert transplant.part is None, "its own label says it"
    with_others = replace(small(leading_dense_layers=1, dense_intermediate=2), whole=(6, 4, 2))
    assert with_others.part == "NOT the whole of small: 3 of its 6 MoE layers"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "TRANSPLANTED: gates of tiny_mixtral, sizes of mixtral_8x7b, 16 of its 32 layers"),
        (("model=tiny_mixtral",), None),
        (
            (
                "model=mixtral_8x7b",
                "model.sites=16",
                "model.gates_of=tiny_mixtral",
                "model.sizes_of=mixtral_8x7b",
            ),
            "TRANSPLANTED: gates of tiny_mixtral, sizes of mixtral_8x7b, 16 of its 32 layers",
        ),
        (
            (
                "model=phi_3_5_moe",
                "model.sites=16",
                "model.experts=8",
                "model.gates_of=tiny_mixtral",
                "model.sizes_of=phi_3_5_moe",
            ),
            (
                "TRANSPLANTED: gates of tiny_mixtral, sizes of phi_3_5_moe, 16 of its 32 layers, 8"
                " experts a layer for its 16"
            ),
        ),
        (
            ("model.sizes_of=mine",),
            (
                "TRANSPLANTED: gates of tiny_mixtral, sizes of mine, how many layers that has is"
                " not known"
            ),
        ),
    ],
)
def test_a_transplant_says_which_part_of_the_published_model_it_has(
    words: tuple[str, ...], told: str | None
) -> None:
    """The published model is looked up in conf/model, whatever the command line changed."""
    assert prepared(("system=lru", "trace.max_sequences=1", *words)).model.transplant == told


# Contracts: C113
def test_served_as_it_is_published_nothing_is_lost() -> None:
    assert small().keeps("fp16")
    assert not small().keeps("mxfp4")
    assert small(stored="mxfp4").keeps("mxfp4")
    assert not small(stored="mxfp4").keeps("int4")
    with pytest.raises(ValueError, match=r"model\.stored='int3' is no precision; known: fp32"):
        small(stored="int3")


def test_bits_by_projection_suit_experts_of_two_or_three_matrices() -> None:
    """Q4_K_M has 4.5 bits, and 5.53125 in the down projection: of 128 parameters each, 72 B and
    88.5 B. FloE's two projections of 16 bits move, and 2.5 bits of the third stay: 40 B.
    """
    assert [small(expert_matrices=n).expert_bytes("q4_k_m") for n in (2, 3)] == [161, 233]
    assert (small().expert_bytes("floe"), small().resident_bytes("floe")) == (512, 40)
    assert (small().resident_bytes("fp16"), small().resident_bytes("q4_k_m")) == (0, 0)
    for matrices, name in ((1, "q4_k_m"), (4, "q4_k_m"), (2, "floe"), (4, "floe")):
        told = (
            f"precision {name} has bits for gate, up, down, but an expert of model small has"
            f" {matrices} matrices; choose precision=fp16 or another one that is the same for all"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
            small(expert_matrices=matrices).expert_bytes(name)


def test_biases_move_with_at_least_16_bits_whatever_the_weights_have() -> None:
    """384 weights and 10 biases: 20 B of them, in FP32 40 B."""
    model = small(expert_biases=10)
    sizes = [model.expert_bytes(name) for name in ("fp32", "fp16", "int4", "q4_k_m")]
    assert sizes == [4 * 394, 2 * 394, 192 + 20, 233 + 20]
    assert model.resident_bytes("floe") == 40


def test_parameters_in_all_and_of_one_token_by_hand() -> None:
    """888 dense ones, and 384 of each of three stored or two chosen experts at three sites."""
    model = small(null_experts=1)
    assert (model.total_params, model.active_params) == (888 + 9 * 384, 888 + 6 * 384)
    more = small(other_site_params=7, other_params=5, shared_intermediate=2)
    assert more.block_params(0) == 240 + 7 + 3 * 8 * 2
    assert more.dense_params == 888 + 5 + 3 * (7 + 48)
    layers = {"leading_dense_layers": 2, "dense_layers_per_site": 1, "dense_intermediate": 1}
    plain, told = small(**layers), small(**layers, other_layer_params=9)
    added = [told.block_params(site) - plain.block_params(site) for site in range(3)]
    assert added == [4 * 9, 2 * 9, 2 * 9], "a site's own layer, and those before it"
    assert small(other_layer_params=-16).block_params(0) == 240 - 16, "without its two norms"
    with pytest.raises(ValueError, match=r"^model\.other_layer_params=-17 must be "):
        small(other_layer_params=-17)
    assert small(dense_bits=5).block_bytes(0) == 150
    assert small(dense_bits=3).block_bytes(0) == 90
    odd = small(hidden=1, head_dim=1, heads=1, dense_bits=3)
    assert (odd.block_params(0), odd.block_bytes(0)) == (10, 4)
