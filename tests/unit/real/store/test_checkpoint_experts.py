"""Experts streamed from a checkpoint, and models loaded without them.

The weights are the same, and never all in memory at once. Oracle: the whole model as transformers
loads it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from capture.recording.settings import Settings
from capture.tiny.model import load_model
from helpers.architectures import tiny
from real.kernels.quantise import error_bound, quantise
from real.store.checkpoint import CheckpointExperts, weight_files
from real.store.store import open_or_write
from real.store.swapping import compute_all, expert_forms, swapped_experts
from real.store.variants import StoreError, variant_of
from real.store.weightless import load_weightless
from sim.values.places import ROOT

ASSETS = ROOT / "capture" / "assets"
SAVED = (
    *("gpt_oss", "nemotron_h", "qwen3_moe", "deepseek_v3", "switch_transformers"),
    *("granitemoe", "granitemoehybrid", "aria_text"),
)
RENAMED = ("granitemoe", "aria_text")
"""Those in whose files experts have other names than in the model; all were refused."""


def settings(folder: Path) -> Settings:
    return Settings(str(folder), Path("prompts"), Path("out"))


@pytest.mark.parametrize(
    "name",
    [
        "tiny_mixtral",
        *(pytest.param(n, marks=pytest.mark.thorough) for n in ("tiny_qwen2moe", "tiny_switch")),
    ],
)
def test_a_bundled_checkpoint_gives_the_experts_of_the_loaded_model(name: str) -> None:
    weightless = load_weightless(settings(ASSETS / name))
    assert not [p for layer in weightless.layers for p in layer.experts.parameters() if p.dim() > 1]
    experts = CheckpointExperts(ASSETS / name, weightless.forms)
    forms = expert_forms(load_model(ASSETS / name))
    assert len(forms) == len(weightless.forms)
    for site in (0, len(forms) // 2, len(forms) - 1):
        for expert in (0, forms[0].layer.num_experts - 1):
            expected = forms[site].tensors(expert)
            found = experts.tensors(site, expert)
            assert list(found) == list(expected)
            assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in RENAMED else pytest.mark.thorough) for n in SAVED],
)
def test_a_model_saved_by_transformers_runs_the_same_without_its_experts_weights(
    name: str, tmp_path: Path
) -> None:
    """Fused and single tensors, biases, transposed and gateless layouts, lists of modules."""
    transformers.logging.set_verbosity_error()
    model = tiny(name)
    model.save_pretrained(tmp_path)
    weightless = load_weightless(settings(tmp_path))
    experts = CheckpointExperts(tmp_path, weightless.forms)
    forms = weightless.forms

    def compute(
        site: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        return compute_all(
            forms[site], lambda expert: experts.tensors(site, expert), hidden, ids, weights
        )

    ids = torch.randint(4, 100, (1, 7), generator=torch.Generator().manual_seed(0))
    extra: dict[str, Any] = (
        {"decoder_input_ids": ids[:, :3]} if model.config.is_encoder_decoder else {}
    )
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    with torch.no_grad(), swapped_experts(weightless.model, compute, forms):
        assert torch.equal(
            weightless.model(input_ids=ids, **extra)[0], model(input_ids=ids, **extra)[0]
        )


def test_writing_a_store_asks_for_one_expert_at_a_time(tmp_path: Path) -> None:
    """No two experts' tensors are alive at once, so any model's store takes one expert's memory."""
    import weakref

    forms = expert_forms(load_model(ASSETS / "tiny_mixtral"))
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    def tensors(site: int, expert: int) -> dict[str, torch.Tensor]:
        nonlocal most
        found = {name: values.clone() for name, values in forms[site].tensors(expert).items()}
        most = max(most, len(alive))
        for values in found.values():
            alive.add(values)
        return found

    told: list[int] = []
    open_or_write(tmp_path / "a.experts", {}, forms, ("fp16", "int2"), tensors, advance=told.append)
    assert told == list(range(1, 129))
    assert most <= 2, "what was written before is still held"


class Peak:
    """The most anonymous memory that the process had within the block, beyond what it had before,
    in bytes.
    """

    def __enter__(self) -> Peak:
        gc.collect()
        # Memory that earlier tests have freed would be used again, and hide what is taken here.
        ctypes.CDLL(None).malloc_trim(0)
        self._before = self._most = own_bytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self._most = max(self._most, own_bytes())

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def num_bytes(self) -> int:
        return self._most - self._before


def own_bytes() -> int:
    """The process's own bytes: pages of files that it reads do not count."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssAnon")
    )
    return int(line.split()[1]) << 10


@pytest.mark.thorough
def test_loading_a_model_and_writing_its_store_take_the_memory_of_few_experts(
    tmp_path: Path,
) -> None:
    """94 MB of experts of 1 MB each, all of which a whole model takes."""
    transformers.logging.set_verbosity_error()
    shape = {
        "hidden_size": 64,
        "intermediate_size": 1280,
        "num_hidden_layers": 6,
        "num_local_experts": 16,
    }
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}
    config = transformers.MixtralConfig(**shape, **heads)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    experts_bytes = 6 * 16 * 3 * 64 * 1280 * 4
    # A first load brings modules and thread pools, which are not counted.
    load_weightless(settings(ASSETS / "tiny_mixtral"))
    with Peak() as whole:
        model = transformers.MixtralForCausalLM.from_pretrained(tmp_path)
        touched = sum(float(values.detach().sum()) for values in model.parameters())
    assert touched == touched
    assert whole.num_bytes > 0.9 * experts_bytes, "the measure sees a model that is loaded whole"
    del model
    with Peak() as ours:
        weightless = load_weightless(settings(tmp_path))
        experts = CheckpointExperts(tmp_path, weightless.forms)
        open_or_write(tmp_path / "a.experts", {}, weightless.forms, ("fp32",), experts.tensors)
    assert (tmp_path / "a.experts").stat().st_size > experts_bytes
    assert ours.num_bytes < experts_bytes / 5


def test_stored_tensors_are_read_back_exactly_or_within_the_bound_of_their_rounding() -> None:
    """Raw precisions cast; grouped ones keep the quantiser's bound, flipped ones by columns."""
    form = expert_forms(tiny("gpt_oss"))[0]
    tensors = form.tensors(3)
    for precision, bits in (
        ("fp32", 0),
        ("fp16", 0),
        ("bf16", 0),
        ("int8", 8),
        ("int4", 4),
        ("int2", 2),
    ):
        variant = variant_of(precision, form.like, form.flipped)
        blob = variant.encode(tensors)
        assert len(blob) == variant.num_bytes
        again = variant.decode(blob, torch.float32)
        for name, values in tensors.items():
            if bits and values.dim() == 2:
                matrix = quantise(values.T, bits, 64)
                off = (again[name].T.double() - values.T.double()).abs()
                bound = error_bound(matrix).repeat_interleave(64, dim=1)[:, : values.shape[0]]
                assert (off <= bound).all(), (precision, name)
                assert (off > 0).any()
            else:
                dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(
                    precision, torch.float16
                )
                assert torch.equal(again[name], values.to(dtype).float()), (precision, name)


def test_checkpoints_that_do_not_come_out_as_the_models_experts_are_refused(tmp_path: Path) -> None:
    forms = expert_forms(load_model(ASSETS / "tiny_mixtral"))
    with pytest.raises(StoreError, match="has no safetensors files"):
        CheckpointExperts(tmp_path, forms)
    with pytest.raises(
        StoreError, match=r"tensors of 12 expert blocks .* but the model has 16 sites"
    ):
        CheckpointExperts(ASSETS / "tiny_qwen2moe", forms)
    with pytest.raises(StoreError, match=r"expert 0 needs \['down', 'gate', 'up'\], found \[\]"):
        CheckpointExperts(
            ASSETS / "tiny_switch", expert_forms(load_model(ASSETS / "tiny_qwen2moe"))
        ).tensors(0, 0)


def test_weights_beyond_a_precision_are_refused_by_name() -> None:
    form = expert_forms(load_model(ASSETS / "tiny_mixtral"))[0]
    tensors = {name: values.clone() for name, values in form.tensors(0).items()}
    tensors["down_proj"][3, 5] = 1e5
    with pytest.raises(StoreError, match="down_proj has weights that are not finite as fp16"):
        variant_of("fp16", form.like).encode(tensors)


def test_other_weights_beside_a_checkpoint_are_not_read(tmp_path: Path) -> None:
    """Some publish the same weights once more under other names, of which transformers reads none.

    Their experts were counted as sites that the model does not have.
    """
    model = tiny("mixtral")
    model.save_pretrained(tmp_path)
    forms = expert_forms(model)
    whole = load_file(tmp_path / "model.safetensors")
    other = {name.removeprefix("model."): torch.zeros_like(t) for name, t in whole.items()}
    save_file(other, tmp_path / "consolidated.safetensors")
    for _ in range(2):
        experts = CheckpointExperts(tmp_path, forms)
        found, expected = experts.tensors(1, 2), forms[1].tensors(2)
        assert all(torch.equal(found[name], values) for name, values in expected.items())
        # The same weights in shards, which an index names.
        (tmp_path / "model.safetensors").unlink(missing_ok=True)
        model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(weight_files(tmp_path)) > 1
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(StoreError, match=r"index\.json cannot be read"):
        CheckpointExperts(tmp_path, forms)


def test_an_index_may_name_files_beside_it_only(tmp_path: Path) -> None:
    named = {"weight_map": {"model.norm.weight": "../elsewhere.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(named))
    with pytest.raises(StoreError, match=r"names '\.\./elsewhere\.safetensors', which is no file"):
        weight_files(tmp_path)
