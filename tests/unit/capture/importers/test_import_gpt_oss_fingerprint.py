"""Importing the recorder's JSON of gpt-oss-20b: each file is a sequence.

What is wrong is refused by its place in the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture.importers import npz
from capture.importers.parts import make_request
from capture.importers.source import untracked
from helpers.import_fixtures import FACTS, failure, imported, lacks, make_ids, make_weights, refusal
from sim.traces.trace import DECODE
from sim.workload.steps import Workload

FORMAT = "gpt_oss_fingerprint"
SITES, TOP_K = 3, 2
POSITIONS = ([7, 8], [4, 5, 6])
Json = dict[str, Any]


def make_shares(rows: int) -> np.ndarray:
    """Weights that sum to 1, exact in float16."""
    first = (512 + make_weights(rows, SITES, 1)[..., 0] * 512) / 1024
    first = np.round(first * 1024) / 1024
    return np.stack([first, 1 - first], -1)


IDS, WEIGHTS = make_ids(5, SITES, TOP_K), make_shares(5)


def generation(first: int, positions: list[int], repeats: bool) -> Json:
    """A file with the keys and nesting that the publishers' `cleaner.py` leaves."""
    return {
        "row_index": 27995,
        "dataset": "mmlu_test",
        "category": "Astrophysics",
        "finished_successfully": not repeats,
        "has_repetition": repeats,
        "original_prompt": "Which?",
        "full_text": ["<|start|>", "Which", "?"],
        "generated_only": ["A"],
        "router_data": [
            {
                f"token_{position}": {
                    f"layer_{site}": {
                        "selected_experts": IDS[first + row, site].tolist(),
                        "selected_probs": WEIGHTS[first + row, site].tolist(),
                    }
                    for site in range(SITES)
                }
            }
            for row, position in enumerate(positions)
        ],
    }


def write(folder: Path, change: Callable[[Json], Any] = lambda value: None) -> Path:
    """Two files in the publishers' folders, the first altered by ``change``."""
    for number, (first, positions) in enumerate(zip((0, 2), POSITIONS, strict=True)):
        value = generation(first, positions, bool(number))
        if not number:
            change(value)
        place = folder / "data" / "mmlu_test" / "ab"[number] / "False_True_examples.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(value, indent=2))
        (place.parent / "False_True.json").write_text("[]")
    return folder / "data"


def test_every_generation_of_a_folder_becomes_a_sequence(tmp_path: Path) -> None:
    trace = imported(FORMAT, write(tmp_path), tmp_path / "trace")
    assert np.array_equal(trace.ids, IDS)
    assert np.allclose(trace.weights, WEIGHTS, rtol=0, atol=1e-6)
    assert trace.sequence.tolist() == [0, 0, 1, 1, 1]
    assert trace.position.tolist() == [7, 8, 4, 5, 6]
    assert set(trace.phase.tolist()) == {DECODE}
    first, second = trace.header.sequences
    assert (first.domain, first.flags) == ("mmlu_test", {"has_repetition": False, "finished": True})
    assert second.flags == {"has_repetition": True, "finished": False}
    assert lacks(trace) == {"prefill", "steps", "tokens", "scores"}
    assert "Which" not in trace.header.to_json()


def test_the_same_routing_as_arrays_is_the_same_trace(tmp_path: Path) -> None:
    by_json = imported(FORMAT, write(tmp_path), tmp_path / "trace")
    arrays = {"experts": IDS.astype(np.uint8), "weights": WEIGHTS.astype(np.float16)}
    numbers = {
        "pos": np.concatenate(POSITIONS).astype(np.int32),
        "seq": np.array([0, 0, 1, 1, 1], np.int32),
    }
    np.savez(tmp_path / "routing.npz", **arrays, **numbers)
    table = [
        {"seq": n, "T": 2 + n, "dataset": "mmlu_test", "has_repetition": bool(n), "finished": not n}
        for n in (0, 1)
    ]
    (tmp_path / "sequences.json").write_text(json.dumps(table))
    by_array = npz.read(
        make_request({"path": str(tmp_path / "routing.npz"), **FACTS}), untracked
    ).trace
    for name in ("ids", "weights", "step", "phase", "sequence", "position", "token"):
        assert np.array_equal(getattr(by_json, name), getattr(by_array, name))
    assert by_json.header.sequences == by_array.header.sequences


def test_one_file_is_one_sequence(tmp_path: Path) -> None:
    trace = imported(
        FORMAT, write(tmp_path) / "mmlu_test" / "b" / "False_True_examples.json", tmp_path / "trace"
    )
    assert np.array_equal(trace.ids, IDS[2:])
    assert [item.split for item in trace.header.sequences] == ["eval"]


def test_need_order_is_the_rank_where_probabilities_are_equal(tmp_path: Path) -> None:
    def tie(value: Json) -> None:
        layer = value["router_data"][0]["token_7"]["layer_1"]
        layer.update(selected_experts=[6, 2], selected_probs=[0.5, 0.5])

    trace = imported(FORMAT, write(tmp_path, tie), tmp_path / "trace")
    assert Workload(trace, split="all").chosen[0][0, 1].tolist() == [6, 2]


def test_files_of_another_shape_are_not_taken_for_the_published_model(tmp_path: Path) -> None:
    error = refusal(FORMAT, write(tmp_path), model="gpt-oss-20b")
    assert error.field == "sites and ranks"
    assert "must be (24, 4) for gpt-oss-20b; of another model, give model=" in str(error)


def test_a_folder_without_generations_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert "holds no *_examples.json" in failure(FORMAT, tmp_path / "data")
    assert "is no file" in failure(FORMAT, tmp_path / "absent")


def layer(value: Json, token: int = 0, site: int = 1) -> Json:
    (entries,) = value["router_data"][token].values()
    found: Json = entries[f"layer_{site}"]
    return found


@pytest.mark.parametrize(
    ("change", "place", "rule"),
    [
        (lambda v: v.pop("router_data"), "router_data", "must be there (found ["),
        (lambda v: v.pop("dataset"), "dataset", "must be there"),
        (lambda v: v.update(dataset=7), "dataset", "must be printable text"),
        (lambda v: v.update(has_repetition=1), "has_repetition", "must be true or false"),
        (lambda v: v.update(router_data={}), "router_data", "must be a list with tokens"),
        (lambda v: v.update(router_data=[]), "router_data", "must be a list with tokens"),
        (lambda v: v["router_data"].insert(0, 3), "router_data[0]", "must be an object"),
        (
            lambda v: v["router_data"].insert(0, {}),
            "router_data[0]",
            "must have one key, token_<position>",
        ),
        (
            lambda v: v["router_data"].insert(0, {"token_x": {}}),
            "router_data[0]",
            "must have one key, token_",
        ),
        (
            lambda v: v["router_data"][0].update(token_9={}),
            "router_data[0]",
            "must have one key, token_",
        ),
        (lambda v: v["router_data"].reverse(), "router_data, token[1]", "must increase"),
        (
            lambda v: v["router_data"].append(v["router_data"][1]),
            "router_data, token[2]",
            "must increase",
        ),
        (
            lambda v: v["router_data"][1]["token_8"].pop("layer_2"),
            "router_data[1], layers",
            "must be layer_0 to layer_2",
        ),
        (
            lambda v: layer(v).pop("selected_probs"),
            "router_data[0].layer_1.selected_probs",
            "must be there",
        ),
        (lambda v: layer(v).update(selected_experts=[1]), "selected_experts", "equally long lists"),
        (
            lambda v: layer(v).update(selected_experts=["1", "2"]),
            "selected_experts",
            "must be numbers",
        ),
        (
            lambda v: layer(v).update(selected_experts=[1.5, 2]),
            "selected_experts",
            "must be numbers",
        ),
        (
            lambda v: layer(v).update(selected_experts=[8, 2]),
            "selected_experts at layer_1[0, 0]",
            "must lie in 0..7",
        ),
        (
            lambda v: layer(v).update(selected_experts=[-1, 2]),
            "selected_experts at layer_1[0, 0]",
            "must lie in 0..7",
        ),
        (
            lambda v: layer(v).update(selected_experts=[2, 2]),
            "selected_experts at layer_1[0, 0]",
            "must not repeat",
        ),
        (
            lambda v: layer(v).update(selected_experts=[1 << 70, 2]),
            "selected_experts",
            "must be numbers",
        ),
        (
            lambda v: layer(v).update(selected_probs=[0.2, 0.8]),
            "weights at layer_1[0, 0]",
            "must not rise",
        ),
        (
            lambda v: layer(v).update(selected_probs=[0.5, 0.2]),
            "sum of weights at layer_1[0]",
            "must be 1 within 0.01",
        ),
        (
            lambda v: layer(v).update(selected_probs=[1.5, -0.5]),
            "weights at layer_1[0, 0]",
            "must lie in 0..1",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_place_and_rule(
    tmp_path: Path, change: Callable[[Json], Any], place: str, rule: str
) -> None:
    error = refusal(FORMAT, write(tmp_path, change))
    assert (error.file, error.field) == ("False_True_examples.json", place)
    assert rule in str(error)


@pytest.mark.parametrize(
    "text", ["", "[", "[" * 100_000, '{"dataset": NaN}', '{"a": 1, "a": 2}', "[]"]
)
def test_text_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a_examples.json").write_text(text)
    error = refusal(FORMAT, tmp_path / "a_examples.json")
    assert error.field == "text"
    assert "must be JSON" in str(error) or "must be an object" in str(error)


def test_a_file_too_large_for_one_generation_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "a_examples.json").open("wb") as stream:
        stream.truncate((1 << 26) + 1)
    assert refusal(FORMAT, tmp_path / "a_examples.json").field == "size"
