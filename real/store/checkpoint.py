"""Reads experts one by one from a checkpoint's safetensors files.

It finds them both where each has tensors of its own and where they are fused, whichever of the two
the model's own code uses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from real.store.experts import ExpertForm
from real.store.variants import StoreError

SINGLE = re.compile(
    r"(?P<block>.*\bexperts)\.(?:expert_)?(?P<expert>\d+)\.(?P<name>\w+)\.(?P<kind>weight|bias)$"
)
FUSED = re.compile(r"(?P<block>.*\bexperts)\.(?P<name>\w+)$")
RENAMED = (
    (
        re.compile(r"\bblock_sparse_moe\.input_linear\.weight$"),
        "block_sparse_moe.experts.gate_up_proj",
    ),
    (
        re.compile(r"\bblock_sparse_moe\.output_linear\.weight$"),
        "block_sparse_moe.experts.down_proj",
    ),
    (re.compile(r"\bmlp\.experts\.fc1\.weight$"), "mlp.experts.gate_up_proj"),
    (re.compile(r"\bmlp\.experts\.fc2\.weight$"), "mlp.experts.down_proj"),
)
"""Fused tensors whose names in a file are not the model's own: Granite's, and Aria's.

Source: ``conversion_mapping.py`` of transformers 5.23.
"""
GATED = {
    "w1": "gate",
    "gate_proj": "gate",
    "gate": "gate",
    "w3": "up",
    "up_proj": "up",
    "up": "up",
    "w2": "down",
    "down_proj": "down",
    "down": "down",
}
PLAIN = {
    "wi": "in",
    "fc1": "in",
    "up_proj": "in",
    "w1": "in",
    "wo": "out",
    "fc2": "out",
    "down_proj": "out",
    "w2": "out",
}


class CheckpointExperts:
    """The experts in a folder of safetensors files, for sites of the given forms.

    Sites are matched in order: blocks outside a decoder first, then by the numbers in their names.
    Raise StoreError for a folder whose expert tensors do not make up these sites' experts.
    """

    def __init__(self, folder: Path, forms: Sequence[ExpertForm]) -> None:
        self._folder, self._forms = folder, list(forms)
        self._dtype = next(iter(self._forms[0].like.values())).dtype
        self._words = GATED if "gate" in self._forms[0].matrices(self._forms[0].like) else PLAIN
        files = weight_files(folder)
        if not files:
            raise StoreError(
                f"{folder} has no safetensors files, from which experts are read one by one"
            )
        try:
            self._open: dict[Path, Any] = {path: safe_open(path, "pt") for path in files}
        except (OSError, SafetensorError) as error:
            raise StoreError(f"{folder}: a safetensors file cannot be read ({error})") from None
        # By the name that the model has for a tensor: the file, and its name there.
        self._file_of = {
            _of_model(key): (path, key)
            for path, stream in self._open.items()
            for key in stream.keys()  # noqa: SIM118
        }
        self._sites = self._match()

    def tensors(self, site: int, expert: int) -> dict[str, torch.Tensor]:
        """An expert's stored tensors, in the model's dtype, each in memory of its own.

        They are no views of the file: a file may begin a tensor at any multiple of 8 bytes, and
        with AVX-512 the last bits of a product depend on how its operands are aligned.
        """
        form, block = self._forms[site], self._sites[site]
        fused = {name: f"{block}.{name}" for name in form.like}
        if all(key in self._file_of for key in fused.values()):
            found = {name: self._slice(key, expert) for name, key in fused.items()}
        else:
            found = form.stored(
                {word: self._whole(key) for word, key in self._single(block, expert).items()}
            )
        shapes = {name: values.shape for name, values in form.like.items()}
        wrong = {name: list(v.shape) for name, v in found.items() if v.shape != shapes[name]}
        if wrong:
            raise StoreError(f"{block}: expert {expert} has {wrong}, but the model {shapes}")
        return {
            name: values.to(self._dtype, copy=True, memory_format=torch.contiguous_format)
            for name, values in found.items()
        }

    def _match(self) -> list[str]:
        blocks: dict[str, None] = {}
        for key in self._file_of:
            match = SINGLE.match(key) or FUSED.match(key)
            if match is not None:
                blocks[match["block"]] = None
        ordered = sorted(
            blocks,
            key=lambda block: ("decoder" in block, [int(n) for n in re.findall(r"\d+", block)]),
        )
        if len(ordered) != len(self._forms):
            raise StoreError(
                f"{self._folder}: tensors of {len(ordered)} expert blocks"
                f" ({', '.join(ordered[:3])}, ..), but the model has {len(self._forms)} sites; this"
                " layout of a checkpoint is not known"
            )
        return ordered

    def _single(self, block: str, expert: int) -> dict[str, str]:
        """The keys of one expert's tensors, by the project's name for the projection."""
        keys = {}
        for name, word in self._words.items():
            for place in (f"{expert}", f"expert_{expert}"):
                for kind, suffix in (("weight", ""), ("bias", "_bias")):
                    key = f"{block}.{place}.{name}.{kind}"
                    if key in self._file_of:
                        keys[word + suffix] = key
        need = set(self._forms[0].matrices(self._forms[0].like))
        if set(keys) != need:
            there = sorted(key for key in self._file_of if key.startswith(f"{block}."))[:4]
            raise StoreError(
                f"{block}: expert {expert} needs {sorted(need)}, found {sorted(keys)} among"
                f" {there}, .."
            )
        return keys

    def _whole(self, key: str) -> torch.Tensor:
        path, name = self._file_of[key]
        values: torch.Tensor = self._open[path].get_tensor(name)
        return values

    def _slice(self, key: str, expert: int) -> torch.Tensor:
        path, name = self._file_of[key]
        values: torch.Tensor = self._open[path].get_slice(name)[expert]
        return values


def weight_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that transformers reads: one, or those that an index names.

    Others may lie beside them. Where it has neither, all are taken. Raise StoreError for an index
    that is none.
    """
    if (one := folder / "model.safetensors").is_file():
        return [one]
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        outside = [name for name in named if Path(name).name != name]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise StoreError(
            f"{index} cannot be read ({error}): copy or download the checkpoint anew"
        ) from None
    if outside:
        raise StoreError(f"{index} names {outside[0]!r}, which is no file beside it")
    return sorted(folder / name for name in named)


def _of_model(key: str) -> str:
    """The name that the model has for a file's tensor."""
    for pattern, name in RENAMED:
        key = pattern.sub(name, key)
    return key
