"""Importing the data set commitmoe, in files made to its card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.import_fixtures import EXPERTS, failure, imported, lacks, make_ids, refusal
from sim.traces.gate_inputs import read_tensors
from sim.traces.trace import DECODE, read_trace

save_file = pytest.importorskip("safetensors.numpy").save_file

FORMAT = "commitmoe"
LAYERS, TOP_K = (0, 1, 4), 2
TOKENS = ((7, 0), (7, 1), (7, 2), (9, 0), (9, 1))
"""Prompt and number of each token."""
Tables = dict[str, dict[str, np.ndarray]]


def tables() -> tuple[Tables, np.ndarray, np.ndarray]:
    """What the files hold, in two parts and in no order; the experts and the logits in it."""
    rng = np.random.default_rng(2)
    ids = make_ids(len(TOKENS), len(LAYERS), TOP_K)
    logits = rng.standard_normal((len(TOKENS), len(LAYERS), EXPERTS)).astype(np.float16)
    cells = rng.permutation([(t, s) for t in range(len(TOKENS)) for s in range(len(LAYERS))])
    found: Tables = {}
    for part, mine in enumerate(np.array_split(cells, 2)):
        found[f"labels/part_{part}"] = {
            "top_indices": np.stack([ids[t, s] for t, s in mine]).astype(np.int16),
            "prompt_idx": np.array([TOKENS[t][0] for t, _ in mine], np.int32),
            "tok": np.array([TOKENS[t][1] for t, _ in mine], np.int32),
            "layer": np.array([LAYERS[s] for _, s in mine], np.int64),
            "gen_token_id": np.zeros(len(mine), np.int32),
        }
    for site, layer in enumerate(LAYERS):
        found[f"logits/layer={layer:02d}/part_0"] = {
            "logits": logits[::-1, site].copy(),
            "prompt_idx": np.array([prompt for prompt, _ in TOKENS[::-1]], np.int32),
            "tok": np.array([tok for _, tok in TOKENS[::-1]], np.int32),
        }
    return found, ids, logits.astype(np.float32)


def write(folder: Path, change: Callable[[Tables], Any] = lambda found: None) -> Path:
    found = tables()[0]
    change(found)
    for name, tensors in found.items():
        place = folder / "chunk" / f"{name}.safetensors"
        place.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: np.ascontiguousarray(values) for key, values in tensors.items()}, place)
    return folder / "chunk"


def test_rows_in_any_order_become_tokens_with_all_layers_and_logits(tmp_path: Path) -> None:
    trace = imported(FORMAT, write(tmp_path), tmp_path / "trace")
    _, ids, logits = tables()
    assert np.array_equal(trace.ids, ids)
    assert trace.sequence.tolist() == [0, 0, 0, 1, 1]
    assert trace.position.tolist() == [0, 1, 2, 0, 1]
    assert set(trace.phase.tolist()) == {DECODE}
    assert [site.layer for site in trace.header.sites] == list(LAYERS)
    assert np.array_equal(read_trace(tmp_path / "trace", ["logits"]).logits, logits)
    assert lacks(trace) == {"weights", "order", "prefill", "steps", "tokens", "scores"}


def test_some_prompts_without_logits(tmp_path: Path) -> None:
    options = {"prompts": "1", "logits": "no", "order": "rank"}
    trace = imported(FORMAT, write(tmp_path), tmp_path / "trace", **options)
    assert np.array_equal(trace.ids, tables()[1][:3])
    assert "logits" not in trace.header.columns
    assert trace.header.stands_in_order


def drop(found: Tables, name: str, row: int) -> None:
    found[name] = {key: np.delete(values, row, 0) for key, values in found[name].items()}


def put(name: str, key: str, values: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tables], Any]:
    return lambda found: found[name].update({key: values(found[name][key])})


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        (lambda found: found["labels/part_0"].pop("tok"), "tok", "must be there"),
        (put("labels/part_0", "tok", lambda v: v.astype(np.float32)), "tok", "a kind of iu"),
        (put("labels/part_0", "tok", lambda v: v[:-1]), "tok", "dimension(s)"),
        (put("labels/part_0", "top_indices", lambda v: v[:, 0]), "top_indices", "dimension(s)"),
        (put("labels/part_0", "top_indices", lambda v: v[:, :1]), "top_indices", "wide"),
        (put("labels/part_0", "layer", lambda v: v - 1), "layer", "must lie in"),
        (lambda found: drop(found, "labels/part_0", 0), "rows", "a multiple of 3"),
        (put("labels/part_0", "tok", lambda v: v * 0), "sorted", "the same for all layers"),
        (put("labels/part_0", "top_indices", lambda v: v + 8), "top_indices of", "must lie in"),
        (put("labels/part_0", "top_indices", lambda v: v * 0), "top_indices of", "not repeat"),
        (put("logits/layer=01/part_0", "logits", lambda v: v[:, :5]), "logits", "8 wide"),
        (put("logits/layer=01/part_0", "logits", lambda v: v / 0), "tokens", "finite"),
        (lambda found: drop(found, "logits/layer=04/part_0", 2), "tokens", "finite"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_differs_from_the_card_is_refused(
    tmp_path: Path, change: Callable[[Tables], Any], field: str, rule: str
) -> None:
    error = refusal(FORMAT, write(tmp_path, change))
    assert error.field.startswith(field)
    assert rule in str(error)


def test_a_gap_among_a_prompts_tokens_is_refused(tmp_path: Path) -> None:
    def later(found: Tables) -> None:
        for tensors in found.values():
            tensors["tok"] = np.where(tensors["tok"] == 2, 3, tensors["tok"])

    error = refusal(FORMAT, write(tmp_path, later))
    assert (error.field, "must be one more" in str(error)) == ("tok of a prompt[1]", True)


def test_a_folder_without_parts_is_refused_with_the_way_out(tmp_path: Path) -> None:
    message = failure(FORMAT, tmp_path)
    assert "has no labels/part_*.safetensors; name one chunk of layers_v1" in message
    assert "prompts=0 must be" in failure(FORMAT, tmp_path, prompts="0")


def test_bfloat16_becomes_single_precision_exactly(tmp_path: Path) -> None:
    header = b'{"x":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    halves = (np.array([1.5, -3e38], np.float32).view(np.uint32) >> 16).astype("<u2")
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + halves.tobytes())
    found = read_tensors(path, ("x",))["x"]
    assert found.dtype == np.float32
    assert np.array_equal(found.view(np.uint32) >> 16, halves)
