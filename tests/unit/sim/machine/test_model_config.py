"""Sizes from a transformers config.json: the bundled models', some by hand, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from sim.machine.config_values import ConfigError
from sim.machine.model import Model
from sim.machine.model_config import config_text, model_from_config, read_config
from sim.models import main, request_of, sizes
from sim.setup.sections import make_object
from sim.values.places import ROOT
from sim.values.units import GIB

SMALL = {
    "model_type": "mixtral",
    "num_hidden_layers": 3,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 10,
}


TWO_SIDES = {
    "is_encoder_decoder": True,
    "num_hidden_layers": 4,
    "num_decoder_layers": 4,
    "num_sparse_encoder_layers": 2,
    "num_sparse_decoder_layers": 2,
}
"""Changes by which half the layers of an encoder and of a decoder have experts."""


def small(**changes: Any) -> Model:
    """A model with 240 dense parameters a layer and experts of 384 (see test_model)."""
    config = {key: value for key, value in (SMALL | changes).items() if value != "absent"}
    return model_from_config(config, "small", "a test")


def config_file(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def conf(name: str) -> Model:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return make_object(compose(f"model/{name}").model)  # type: ignore[no-any-return]


# Against the bundled files


@pytest.mark.parametrize("name", ["tiny_qwen2moe", "tiny_switch", "tiny_mixtral"])
def test_the_bundled_models_files_say_what_their_configurations_say(name: str) -> None:
    config = read_config(ROOT / "capture" / "assets" / name / "config.json")
    read, written = model_from_config(config, name, "a test"), conf(name)
    assert vars(read) | {"source": ""} == vars(written) | {"source": ""}


@pytest.mark.parametrize(
    ("method", "stored", "bits"),
    [("fp8", "fp8", 10.81), ("mxfp4", "mxfp4", 16), ("gptq", "fp16", 16)],
)
def test_the_precision_of_publication_is_read(
    method: str, stored: str, bits: float, tmp_path: Path
) -> None:
    """A model published in FP8 was lossy at precision=fp8, and its dense weights had 16 bits.

    Of 888 dense parameters 576 are projections of attention. The others are embedding and head, 96
    of routers, 56 of norms: 312 in 16 bits make 2.810 more than 8.002. Of a
    model with sight the key stands beside that of its text.
    """
    quantized = {"quantization_config": {"quant_method": method}}
    whole = config_file(tmp_path, SMALL | quantized)
    assert small(**quantized) == model_from_config(read_config(whole), "small", "a test")
    whole.write_text(json.dumps({"text_config": SMALL, **quantized}), encoding="utf-8")
    found = model_from_config(read_config(whole), "small", "a test")
    assert (found.stored, found.dense_bits) == (stored, bits)
    assert found.keeps(stored)
    assert f"stored: {json.dumps(stored)}" in config_text(found, whole) or stored == "fp16"


# By hand


def test_a_plain_configuration_by_hand() -> None:
    model = small()
    assert (model.sites, model.experts, model.top_k, model.head_dim) == (3, 4, 2, 4)
    assert (model.block_params(0), model.expert_params, model.total_params) == (
        240,
        384,
        888 + 12 * 384,
    )


@pytest.mark.parametrize(
    ("key", "usual"),
    [
        ("num_layers", "num_hidden_layers"),
        ("num_experts", "num_local_experts"),
        ("n_routed_experts", "num_local_experts"),
        ("moe_num_experts", "num_local_experts"),
        ("experts_per_token", "num_experts_per_tok"),
        ("moe_topk", "num_experts_per_tok"),
        ("moe_k", "num_experts_per_tok"),
        ("d_model", "hidden_size"),
        ("num_heads", "num_attention_heads"),
        ("d_ff", "intermediate_size"),
    ],
)
def test_one_size_has_the_names_that_families_give_it(key: str, usual: str) -> None:
    assert small(**{usual: "absent", key: SMALL[usual]}) == small()


def test_layers_without_experts_stand_before_the_sites() -> None:
    """Five layers, the first without experts.

    It has 240 - 32 parameters (no router) and a block of 3 x 8 x 16, beside the experts' 3 x 8 x 4.
    """
    model = small(num_hidden_layers=5, first_k_dense_replace=1, moe_intermediate_size=4)
    assert (model.sites, model.leading_dense_layers, model.expert_intermediate) == (4, 1, 4)
    assert [model.block_params(site) for site in range(4)] == [240 + 208 + 384, 240, 240, 240]
    assert [model.layers_at(site) for site in range(4)] == [2, 1, 1, 1]
    assert model.kv_bytes_per_token == 5 * model.layer_kv_bytes
    assert small(num_hidden_layers=5, mlp_only_layers=[0], moe_intermediate_size=4) == model
    assert (
        small(num_hidden_layers=5, moe_layer_freq=[0, 1, 1, 1, 1], moe_intermediate_size=4) == model
    )


def test_every_second_layer_may_have_experts() -> None:
    model = small(num_hidden_layers=6, decoder_sparse_step=2)
    assert (model.sites, model.dense_layers_per_site, model.layers_at(1)) == (3, 1, 2)


def test_an_encoder_and_a_decoder_have_experts_in_the_last_layer_of_every_group() -> None:
    """The count, the step, or both say how many: two of four layers each."""
    model = small(**TWO_SIDES)
    assert (model.sites, model.encoder_sites, model.dense_layers_per_site) == (4, 2, 1)
    steps = {f"{side}_sparse_step": 2 for side in ("encoder", "decoder")}
    assert small(**(TWO_SIDES | steps)) == model
    counts = {f"num_sparse_{side}_layers": "absent" for side in ("encoder", "decoder")}
    assert small(**(TWO_SIDES | steps | counts)) == model


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_the_text_part_of_a_configuration_of_several_is_read(key: str, tmp_path: Path) -> None:
    """InternVL's and DeepSeek-VL2's was refused: "take it out, if it changes no size"."""
    path = config_file(tmp_path, {"model_type": "both", "vision_config": {"x": 1}, key: SMALL})
    assert model_from_config(read_config(path), "small", "a test") == small()


def test_what_is_said_of_the_whole_holds_for_its_text_unless_that_says_otherwise(
    tmp_path: Path,
) -> None:
    """The embedding of a model with sight was read as two matrices, where only the whole tied it."""
    tied = {"tie_word_embeddings": True}
    whole = config_file(tmp_path, {"text_config": SMALL, **tied})
    assert model_from_config(read_config(whole), "small", "a test") == small(**tied)
    config_file(tmp_path, {"text_config": SMALL | tied, "tie_word_embeddings": False})
    assert model_from_config(read_config(whole), "small", "a test") == small(**tied)


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"nobody_knows": 2},
            r"nobody knows whether these keys change sizes: nobody_knows=2; take out",
        ),
        (
            {"num_local_experts": "absent"},
            r"none of num_local_experts, num_experts, .* is given \(this is the model's",
        ),
        (
            {"num_experts": 5},
            r"{'num_local_experts': 4, 'num_experts': 5} name one thing and differ",
        ),
        ({"hidden_size": "8"}, r"hidden_size='8' must be a whole number of 0 to 1,073,741,824"),
        ({"hidden_size": -8}, r"hidden_size=-8 must be a whole number of 0 to 1,073,741,824"),
        (
            {"num_attention_heads": 3},
            r"hidden 8 is no multiple of 3 heads, and head_dim is not given",
        ),
        ({"num_key_value_heads": 3}, r"^small: 2 heads are no multiple of 3 key-value heads$"),
        ({"tie_word_embeddings": "false"}, r"tie_word_embeddings='false' must be true or false"),
        ({"num_experts_per_tok": 5}, r"model\.top_k=5 exceeds model\.experts=4"),
        (
            {"layer_types": ["star_attention"]},
            r"layer_types has star_attention; only layers of full",
        ),
        (
            {"mlp_only_layers": [1]},
            r"layers \[1\] of 3 have no experts; only the first ones may lack them",
        ),
        ({"decoder_sparse_step": 2}, r"layers \[0, 2\] of 3 have no experts"),
        ({"moe_layer_end_index": 1}, r"moe_layer_end_index=1 leaves layers without experts after"),
        (
            {"num_experts_per_tok": "absent"},
            r"^small: none of num_experts_per_tok, .* is given \(this is the model's top_k\)$",
        ),
        (
            TWO_SIDES | {"num_decoder_layers": 8},
            r"^small: 4 layers in the encoder, 8 in the decoder; they must be equal$",
        ),
        (
            TWO_SIDES | {"encoder_ffn_dim": 16, "decoder_ffn_dim": 8},
            r"^small: 16 width in the encoder, 8 in the decoder; they must be equal$",
        ),
        (
            TWO_SIDES | {"encoder_attention_heads": 2, "decoder_attention_heads": 1},
            r"^small: 2 heads in the encoder, 1 in the decoder; they must be equal$",
        ),
        (
            TWO_SIDES | {"num_sparse_decoder_layers": 4},
            r"^small: 2 layers with experts in the encoder, 4 in the decoder; they must be equal$",
        ),
        (
            TWO_SIDES | {"num_sparse_encoder_layers": 3},
            r"^small: 3 of 4 encoder layers have experts, one in 0: these do not go together$",
        ),
        (
            TWO_SIDES | {"num_sparse_encoder_layers": "absent"},
            r"^small: 0 of 4 encoder layers have experts, one in 0: these do not go together$",
        ),
        (
            TWO_SIDES | {"decoder_sparse_step": 4},
            r"^small: 2 of 4 decoder layers have experts, one in 4: these do not go together$",
        ),
    ],
)
def test_what_cannot_be_told_is_refused_with_what_was_found(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "holds a list"),
        ("{", "is no JSON"),
        ('{"a":' * 100_000, "is no JSON"),
        (None, "No such file"),
    ],
    ids=("a list", "cut short", "deeply nested", "absent"),
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_config(path)


# The command


def test_the_command_writes_a_file_that_is_the_same_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_file(
        tmp_path,
        SMALL
        | {
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 4,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 2,
            "qk_nope_head_dim": 4,
            "v_head_dim": 4,
        },
    )
    output = tmp_path / "model" / "mine.yaml"
    assert main([f"from={path}", "name=mine", f"output={output}"]) == 0
    told = capsys.readouterr().out
    assert f"moelab ask machine=rtx4090_pcie4 model=mine 'hydra.searchpath=[{tmp_path}]'\n" in told
    with initialize_config_dir(str(output.parent), version_base="1.3"):
        written = make_object(compose("mine"))
    source = "its transformers config.json (config.json)"
    assert written == model_from_config(read_config(path), "mine", source)
    assert config_text(written, path) == output.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("My-Model-7B/config.json", "my_model_7b"),
        ("My-Model-7B", "my_model_7b"),
        ("Other.Model.json", "other_model"),
    ],
)
def test_a_model_is_named_after_its_folder_or_its_file(
    given: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "My-Model-7B").mkdir()
    for file in ("My-Model-7B/config.json", "Other.Model.json"):
        (tmp_path / file).write_text("{}", encoding="utf-8")
    assert request_of([f"from={tmp_path / given}"])[1] == name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "missing from=...; moelab models --help tells the options"),
        (("model=x",), "'model=x': model is no option"),
        (
            ("from=/nowhere/config.json",),
            "from=/nowhere/config.json: there is no such file or folder",
        ),
        (("from=FILE", "name=Two Words"), "name='Two Words' must be lower-case letters"),
        (("from=FILE", "output=FILE"), "exists; remove it"),
        (("from=FILE", "output=/nowhere/x.yaml"), "say output=mine/model/x.yaml"),
    ],
)
def test_a_wrong_word_is_refused_with_one_message(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_file(tmp_path, SMALL)
    assert main([word.replace("FILE", str(path)) for word in words]) == 2
    assert message in capsys.readouterr().err


def test_the_table_has_the_bytes_of_a_model_as_it_is_published() -> None:
    """Of gpt-oss-120b it had 217.6 GiB in 16 bits and nothing of the 60.8 GiB that it is said to take."""
    model = conf("gpt_oss_120b")
    table = sizes(model)
    (published,) = [column for column in table.columns if column.header == "as published"]
    experts = 36 * 128 * (3 * 2880 * 2880 * 4.25 + 8640 * 16) / 8
    assert [*published.cells] == [
        *(f"{experts / 36 / 128 / 2**20:.4g} MiB", f"{experts / GIB:.4g} GiB"),
        *(f"{2 * model.dense_params / GIB:.4g} GiB", "60.77 GiB"),
        f"{(experts / 32 + 2 * model.dense_params) / GIB:.4g} GiB",
    ]
    assert "published with experts in mxfp4, all else in 16 bits" in str(table.caption)
    plain = sizes(small())
    assert [column.header for column in plain.columns][2] == "at fp16"
    assert "published" not in str(plain.caption)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quant_method=gptq is not read: these are"),
        ({"quant_method": "modelopt"}, "quant_method=modelopt is not read: these are"),
        ({"quant_method": "fp8"}, ""),
        (None, ""),
    ],
)
def test_the_command_says_where_it_does_not_read_how_weights_are_quantised(
    part: dict[str, Any] | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sizes of 16 bits were given for a file of 4, without a word."""
    assert main([f"from={config_file(tmp_path, SMALL | {'quantization_config': part})}"]) == 0
    err = capsys.readouterr().err
    assert told in err if told else not err


def test_the_command_says_where_no_command_has_gates_of_a_models_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, experts in (("other", 5), ("like_mixtral", 8)):
        path = config_file(
            tmp_path, SMALL | {"num_local_experts": experts, "num_hidden_layers": 32}
        )
        assert main([f"from={path}", f"name={name}", f"output=mine/model/{name}.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("first: ")] == [
        "first: there are no gates of 32 x 5 top-2 for model other, recorded or synthetic;"
        " docs/ask.md (A model of another shape) has ways"
    ]


def test_keys_of_rotary_width_and_capacity_change_no_size() -> None:
    keys = {
        "partial_rotary_factor": 0.5,
        "rotary_dim": 4,
        "moe_capacity": [64, 64, 64],
        "moe_use_aux_free": True,
    }
    assert small(**keys) == small()
