"""Importer of format gpt_oss_fingerprint: published decode routing of gpt-oss-20b, as recorded.

``path`` is one ``*_examples.json`` of github.com/AmanPriyanshu/GPT-OSS-MoE-ExpertFingerprinting, or
a directory of them at any depth. A file is one generation::

    {"row_index": .., "dataset": "mmlu_test", "category": ..,
     "finished_successfully": .., "has_repetition": ..,
     "original_prompt": .., "full_text": [..], "generated_only": [..],
     "router_data": [{"token_198": {"layer_0": {"selected_experts": [0, 15, 17, 11],
                                                "selected_probs": [0.41, 0.25, 0.2, 0.13]},
                                    ..}}, ..]}

``token_198`` is the token's position in the full text. Experts stand in rank order; probabilities
are the softmax over the selected experts. Prompts were not recorded. Texts are not copied. Files
become sequences in the order of their paths.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capture.importers.parts import (
    FACTS,
    Recording,
    Request,
    Rows,
    assemble,
    check_ids,
    check_shares,
    check_size,
    complete,
)
from capture.importers.source import (
    Imported,
    ImportFailure,
    Refuse,
    Track,
    parsed_json,
    require_file,
    sha256_of_all,
    unreadable,
)
from sim.traces.trace import DECODE

KEYS = FACTS
GPT_OSS_20B = "gpt-oss-20b"
GPT_OSS_20B_SITES, GPT_OSS_20B_TOP_K = 24, 4
GPT_OSS_20B_FACTS: Mapping[str, str] = {
    "model": GPT_OSS_20B,
    "architecture": "GptOssForCausalLM",
    "experts": "32",
    "hidden": "2880",
    "expert_intermediate": "2880",
    "licence": "Apache-2.0 (routing); the texts behind it are not part of the trace",
}
WEIGHT_SUM_TOLERANCE = 0.01
"""A token's shares must sum to 1 within this; the published ones, rounded twice, do to 0.0035."""
LARGEST_FILE_BYTES = 1 << 26
PATTERN = "*_examples.json"
TOKEN = re.compile(r"token_(\d{1,9})", re.A)


def published_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """The model's facts: as given, else those of gpt-oss-20b if the model is that one."""
    model = facts.get("model", GPT_OSS_20B)
    return complete(
        facts, GPT_OSS_20B_FACTS if model == GPT_OSS_20B else {"model": model}, "decode"
    )


def check_published_shape(refuse: Refuse, name: str, model: str, shape: tuple[int, int]) -> None:
    """Refuse a file said to be of gpt-oss-20b whose (sites, top-k) are not that model's."""
    published = (GPT_OSS_20B_SITES, GPT_OSS_20B_TOP_K)
    rule = f"must be {published} for {GPT_OSS_20B}; of another model, give model="
    refuse(name, model == GPT_OSS_20B and shape != published, shape, rule)


def check(request: Request) -> None:
    published_facts(request.facts)


@dataclass
class _Generations:
    """What was read from the files.

    Positions and sequences are by token, domains and flags by sequence; a file is a sequence.
    """

    position: array[int] = field(default_factory=lambda: array("q"))
    sequence: array[int] = field(default_factory=lambda: array("q"))
    experts: list[NDArray[np.int16]] = field(default_factory=list)
    weights: list[NDArray[np.float32]] = field(default_factory=list)
    domains: dict[int, str] = field(default_factory=dict)
    flags: dict[int, dict[str, bool]] = field(default_factory=dict)


def read(request: Request, track: Track[Any]) -> Imported:
    """The trace of one file, or of all in a directory. Raise `TraceError` or `ImportFailure`."""
    facts = published_facts(request.facts)
    paths = _files(request.path)
    found = _Generations()
    for path in track(paths, "reading generations"):
        _read_generation(path, facts, found)
        first, last = found.experts[0].shape[1:], found.experts[-1].shape[1:]
        refuse = Refuse(path.name)
        refuse(
            "router_data",
            last != first,
            last,
            f"must have {first} sites and ranks, as {paths[0].name}",
        )
        check_size(
            refuse, "router_data", len(found.position), first[0], first[1], "import fewer files"
        )
    experts = np.concatenate(found.experts)
    rows = Rows(
        np.arange(len(experts)),
        np.full(len(experts), DECODE),
        np.array(found.sequence),
        np.array(found.position),
        experts,
        np.concatenate(found.weights),
    )
    recording = Recording(
        format="gpt_oss_fingerprint",
        files={},
        layers=range(experts.shape[1]),
        lacks=("steps", "tokens", "scores"),
        domains=found.domains,
        flags=found.flags,
        told={
            "origin": "github.com/AmanPriyanshu/GPT-OSS-MoE-ExpertFingerprinting",
            "files": len(paths),
            "files_sha256": sha256_of_all(paths),
            "prompts": "not recorded; the first position of a sequence is the length of its prompt",
            "steps": (
                "one step for each sequence and position; how tokens were batched is not recorded"
            ),
            "weights": (
                "softmax over the selected; equal neighbours set apart by a float32 ulp, to keep"
                " their rank"
            ),
        },
    )
    return Imported(assemble(facts, rows, recording))


def _files(path: Path) -> list[Path]:
    what = f"one {PATTERN} or a directory of them"
    try:
        paths = sorted(path.rglob(PATTERN)) if path.is_dir() else [path]
    except OSError as error:
        raise unreadable("path", path, error, what) from None
    if not paths:
        raise ImportFailure(f"path={path} holds no {PATTERN}; name {what}")
    return [require_file("path", place, what, LARGEST_FILE_BYTES) for place in paths]


def _read_generation(path: Path, facts: Mapping[str, str], found: _Generations) -> None:
    """Append one file to ``found``."""
    refuse = Refuse(path.name)
    value = refuse.has(
        "",
        parsed_json(path.read_bytes(), refuse, "text"),
        "dataset",
        "has_repetition",
        "router_data",
    )
    number = len(found.domains)
    found.domains[number] = refuse.text("dataset", value["dataset"])
    found.flags[number] = {"has_repetition": refuse.flag("has_repetition", value["has_repetition"])}
    if "finished_successfully" in value:
        name = "finished_successfully"
        found.flags[number]["finished"] = refuse.flag(name, value[name])
    data = value["router_data"]
    refuse(
        "router_data",
        not isinstance(data, list) or not data,
        type(data).__name__,
        "must be a list with tokens",
    )
    tokens = [_token(refuse, f"router_data[{index}]", entry) for index, entry in enumerate(data)]
    positions = np.array([position for position, _ in tokens])
    refuse.where(
        "router_data, token", np.diff(positions, prepend=-1) <= 0, positions, "must increase"
    )
    found.position.extend(positions.tolist())
    found.sequence.extend([number] * len(tokens))
    experts, weights = _columns(refuse, [layers for _, layers in tokens])
    check_published_shape(refuse, "sites and ranks", facts["model"], experts.shape[1:])
    for site in range(experts.shape[1]):
        check_ids(
            refuse, f"selected_experts at layer_{site}", experts[:, site], int(facts["experts"])
        )
        check_shares(refuse, f" at layer_{site}", weights[:, site], WEIGHT_SUM_TOLERANCE)
    found.experts.append(experts.astype(np.int16))
    found.weights.append(weights.astype(np.float32))


def _token(refuse: Refuse, where: str, entry: object) -> tuple[int, dict[str, Any]]:
    """The token's position and its layers, from one entry of ``router_data``."""
    value = refuse.has(where, entry)
    name = next(iter(value), "")
    match = TOKEN.fullmatch(name)
    if match is None or len(value) != 1:
        refuse(where, True, sorted(value), "must have one key, token_<position>")
        raise AssertionError
    return int(match[1]), refuse.has(f"{where}.{name}", value[name])


def _columns(
    refuse: Refuse, tokens: list[dict[str, Any]]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Experts and probabilities [N, S, K] of a file's tokens.

    Every token must have the same layers as the first.
    """
    layers = [f"layer_{site}" for site in range(len(tokens[0]))]
    for index, token in enumerate(tokens):
        rule = f"must be layer_0 to layer_{len(layers) - 1}"
        refuse(
            f"router_data[{index}], layers",
            set(token) != set(layers) or not layers,
            sorted(token),
            rule,
        )
    entries = [
        [
            refuse.has(
                f"router_data[{i}].{layer}", token[layer], "selected_experts", "selected_probs"
            )
            for layer in layers
        ]
        for i, token in enumerate(tokens)
    ]
    experts = refuse.numbers(
        "selected_experts", [[e["selected_experts"] for e in row] for row in entries], "iu", 3
    )
    weights = refuse.numbers(
        "selected_probs", [[e["selected_probs"] for e in row] for row in entries], "iuf", 3
    )
    rule = f"must have the shape {list(experts.shape)} of selected_experts"
    refuse("selected_probs", weights.shape != experts.shape, list(weights.shape), rule)
    return experts.astype(np.int64), weights.astype(np.float64)
