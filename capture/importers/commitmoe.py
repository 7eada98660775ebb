"""Importer of format commitmoe: decode routing of Qwen3.5-35B-A3B-FP8, as a data set of Hugging Face.

``path`` is one chunk of huggingface.co/datasets/RASMUS/commitmoe-qwen35-fp8-layers-v2, a folder of
``layers_v1``. Its card names files and tensors, not their types; whole numbers and floats of any
width are taken, and what differs is refused::

    labels/part_*.safetensors           top_indices [M, 8], prompt_idx, tok, layer, gen_token_id [M]
    logits/layer=NN/part_*.safetensors  logits [M, 256], prompt_idx, tok

A row is a decoded token of a prompt at a layer. Every token must have all layers, and a prompt's
tokens must be numbered in turn. ``logits=no`` leaves the logits out, which are large;
``prompts=N`` takes the first N prompts.

Prompts themselves were not recorded. Whether ``top_indices`` stand in order of rank the card does
not say; ``order=rank`` says it. Left out are ``hidden`` (the state before the MoE block: whether it
is what the router reads is not said) and ``gen_token_id`` (the token read, or the one made).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.parts import (
    FACTS,
    LARGEST_VALUES,
    Recording,
    Request,
    Rows,
    assemble,
    check_ids,
    check_numbers,
    check_size,
    complete,
    is_ranked,
)
from capture.importers.source import (
    INT16_MAX,
    Imported,
    ImportFailure,
    Refuse,
    Track,
    count,
    one_of,
    sha256_of_all,
)
from sim.traces.gate_inputs import read_tensors
from sim.traces.trace import DECODE

KEYS = (*FACTS, "order", "logits", "prompts")
PUBLISHED: Mapping[str, str] = {"model": "qwen3_5_35b_a3b", "experts": "256", "hidden": "2048"}
"""Facts of the model, as the data set's card tells them."""
LABELS = ("top_indices", "prompt_idx", "tok", "layer")
PLACES = ("prompt_idx", "tok")
Arrays = dict[str, NDArray[Any]]


def check(request: Request) -> None:
    complete(request.facts, PUBLISHED, "decode")
    is_ranked(request, False)
    one_of("logits", request.options.get("logits", "keep"), ("keep", "no"))
    if "prompts" in request.options:
        count("prompts", request.options["prompts"])


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace of a chunk. Raise `TraceError` or `ImportFailure`."""
    check(request)
    facts = complete(request.facts, PUBLISHED, "decode")
    paths = _parts(request.path, "labels")
    labels = _joined([_tensors(path, LABELS, "top_indices") for path in track(paths, "labels")])
    refuse = Refuse("labels")
    for name in LABELS[1:]:
        check_numbers(refuse, name, labels[name])
    if "prompts" in request.options:
        known = np.unique(labels["prompt_idx"])[: int(request.options["prompts"])]
        chosen = np.isin(labels["prompt_idx"], known)
        labels = {name: values[chosen] for name, values in labels.items()}
    layers = np.unique(labels["layer"])
    refuse.where("layer", layers > INT16_MAX, layers, f"must be at most {INT16_MAX}")
    order = np.lexsort((labels["layer"], labels["tok"], labels["prompt_idx"]))
    sorted_labels = {name: values[order] for name, values in labels.items()}
    prompt, tok = _tokens(refuse, sorted_labels, layers)
    ids = sorted_labels["top_indices"].reshape(len(tok), len(layers), -1)
    check_size(refuse, "rows", *ids.shape, "take fewer, prompts=N")
    for site, layer in enumerate(layers.tolist()):
        check_ids(refuse, f"top_indices of layer {layer}", ids[:, site], int(facts["experts"]))
    ranked = is_ranked(request, False)
    logits = None
    if request.options.get("logits") != "no" and (request.path / "logits").is_dir():
        logits = _logits(request.path, prompt, tok, layers.tolist(), int(facts["experts"]), track)
    sequence = np.unique(prompt, return_inverse=True)[1]
    rows = Rows(np.arange(len(tok)), np.full(len(tok), DECODE), sequence, tok, ids, ranked=ranked)
    recording = Recording(
        format="commitmoe",
        files={},
        layers=layers.tolist(),
        lacks=("weights", *([] if ranked else ["order"]), "steps", "tokens", "scores"),
        told={
            "origin": "huggingface.co/datasets/RASMUS/commitmoe-qwen35-fp8-layers-v2",
            "files": len(paths),
            "files_sha256": sha256_of_all(paths),
            "prompts": "not recorded; positions count decoded tokens",
            "logits": "not taken" if logits is None else "as recorded; routing rules are not",
        },
    )
    return Imported(replace(assemble(facts, rows, recording), logits=logits))


def _parts(folder: Path, name: str) -> list[Path]:
    paths = sorted((folder / name).glob("part_*.safetensors"))
    if not paths:
        raise ImportFailure(
            f"path={folder} has no {name}/part_*.safetensors; name one chunk of layers_v1"
        )
    return paths


def _tensors(path: Path, names: Sequence[str], wide: str) -> Arrays:
    """These tensors of a file: ``wide`` [M, ..], the others [M] of whole numbers."""
    found, refuse = read_tensors(path, tuple(names)), Refuse(path.name)
    for name in names:
        refuse(name, name not in found, "absent", f"must be there (found {sorted(found)})")
        values, dimensions = found[name], 1 + (name == wide)
        kinds = "iuf" if name == "logits" else "iu"
        rows = len(found[names[0]]) if found[names[0]].ndim else -1
        wrong = values.ndim != dimensions or values.dtype.kind not in kinds or len(values) != rows
        rule = f"must have {rows} rows, {dimensions} dimension(s) and a kind of {kinds}"
        refuse(name, wrong or not values.size, f"{values.dtype} {list(values.shape)}", rule)
    return {
        name: found[name].astype(np.float32 if name == "logits" else np.int64) for name in names
    }


def _joined(parts: Sequence[Arrays]) -> Arrays:
    first = parts[0]["top_indices"].shape[1]
    for part in parts:
        width = part["top_indices"].shape[1]
        Refuse("labels")(
            "top_indices", width != first, width, f"must be {first} wide, as in part 0"
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _tokens(
    refuse: Refuse, labels: Arrays, layers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompt and number of each token. Refuse a token without all layers, and a gap."""
    rule = f"must be a multiple of {len(layers)}: every token has all layers"
    refuse("rows", len(labels["tok"]) % len(layers) != 0, len(labels["tok"]), rule)
    prompt, tok, layer = (
        labels[name].reshape(-1, len(layers)) for name in ("prompt_idx", "tok", "layer")
    )
    for name, values, expected in (
        ("prompt_idx", prompt, prompt[:, :1]),
        ("tok", tok, tok[:, :1]),
        ("layer", layer, layers),
    ):
        rule = "must be the same for all layers of a token, each layer once"
        refuse.where(f"sorted {name}", values != expected, values, rule)
    prompts, tokens = prompt[:, 0], tok[:, 0]
    gaps = (np.diff(prompts) == 0) & (np.diff(tokens) != 1)
    refuse.where("tok of a prompt", gaps, tokens[1:], "must be one more than the token before")
    return prompts, tokens


def _logits(
    folder: Path,
    prompt: NDArray[np.int64],
    tok: NDArray[np.int64],
    layers: Sequence[int],
    experts: int,
    track: Track[Any],
) -> NDArray[np.float32]:
    """The logits [N, S, E] of these tokens. Others of the files are left out."""
    many = len(tok) * len(layers) * experts
    rule = f"must be at most {LARGEST_VALUES} values"
    Refuse("logits")(
        "size", many > LARGEST_VALUES, many, rule, "take fewer, prompts=N or logits=no"
    )
    found = np.full((len(tok), len(layers), experts), np.nan, np.float32)
    row_of = {
        place: row for row, place in enumerate(zip(prompt.tolist(), tok.tolist(), strict=True))
    }
    for site, layer in enumerate(track(layers, "logits")):
        name = f"layer={layer:02d}"
        for path in _parts(folder / "logits", name):
            part = _tensors(path, ("logits", *PLACES), "logits")
            width, refuse = part["logits"].shape[1], Refuse(f"{name}/{path.name}")
            refuse("logits", width != experts, width, f"must be {experts} wide, the experts")
            places = zip(part["prompt_idx"].tolist(), part["tok"].tolist(), strict=True)
            at = np.array([row_of.get(place, -1) for place in places])
            found[at[at >= 0], site] = part["logits"][at >= 0]
        missing = np.asarray(~np.isfinite(found[:, site]).all(1))
        rule = "must have finite logits"
        Refuse(name).where("tokens", missing, np.arange(len(tok)), rule)
    return found
