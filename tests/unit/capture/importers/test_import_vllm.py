"""Importing responses of vLLM: both layouts give the choices that were returned.

What does not add up is refused.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.import_fixtures import failure, imported, lacks, make_ids, refusal
from sim.traces.trace import CHUNK, DECODE, PREFILL
from sim.workload.steps import Workload

LAYERS, TOP_K = 3, 2
PROMPT, GENERATED = 4, 3
FED = PROMPT + GENERATED - 1
IDS = make_ids(FED, LAYERS, TOP_K)
Json = dict[str, Any]


def encoded(ids: np.ndarray, dtype: str = "uint8") -> str:
    """Ids as vLLM's servers encode them: base64 of `np.save`."""
    stream = io.BytesIO()
    np.save(stream, ids.astype(dtype))
    return base64.b64encode(stream.getvalue()).decode()


def response(
    routed: Any, of_prompt: Any = None, prompt: int = PROMPT, generated: int = GENERATED
) -> Json:
    """A response of /v1/completions, with its keys."""
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1780911108,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "text": "..",
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": routed,
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt + generated,
            "completion_tokens": generated,
            "prompt_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "prompt_routed_experts": of_prompt,
        "kv_transfer_params": None,
    }


def write(folder: Path, value: object, name: str = "response.json") -> Path:
    (folder / name).write_text(json.dumps(value))
    return folder / name


def whole() -> Json:
    return response(encoded(IDS))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int32"])
def test_an_encoded_response_becomes_the_choices_of_every_token_fed(
    tmp_path: Path, dtype: str
) -> None:
    trace = imported("vllm", write(tmp_path, response(encoded(IDS, dtype))), tmp_path / "trace")
    assert np.array_equal(trace.ids, IDS)
    assert trace.phase.tolist() == [PREFILL] * PROMPT + [DECODE] * (GENERATED - 1)
    assert trace.step.tolist() == [0] * PROMPT + [1, 2]
    assert trace.position.tolist() == list(range(FED))
    assert set(trace.token.tolist()) == {-1}
    assert trace.header.model.name == "tiny"


@pytest.mark.parametrize("rows", [GENERATED, GENERATED - 1])
def test_lists_for_prompt_and_generated_tokens_give_the_same(tmp_path: Path, rows: int) -> None:
    generated = make_ids(FED + 1, LAYERS, TOP_K)
    generated[:FED] = IDS
    value = response(generated[PROMPT : PROMPT + rows].tolist(), IDS[:PROMPT].tolist())
    trace = imported("vllm", write(tmp_path, value), tmp_path / "trace")
    assert np.array_equal(trace.ids, IDS)
    assert trace.phase.tolist() == [PREFILL] * PROMPT + [DECODE] * (GENERATED - 1)


def test_weights_are_not_invented(tmp_path: Path) -> None:
    trace = imported("vllm", write(tmp_path, whole()), tmp_path / "trace")
    assert not trace.weights.any()
    assert lacks(trace) == {"weights", "order", "steps", "scores", "tokens"}
    chosen = Workload(trace, split="all", batching="recorded").chosen[0]
    assert np.array_equal(chosen, np.sort(IDS, -1))


def test_a_layer_of_zeros_is_refused_where_a_token_has_one_expert(tmp_path: Path) -> None:
    """Of several experts zeros are one expert twice; of one they were a layer where all chose it."""
    ids = np.tile(np.arange(16, dtype=np.int64)[:, None, None] % 3, (1, LAYERS, 1))
    ids[:, 0] = 0

    def of(rows: int) -> Path:
        value = response(encoded(ids[-rows:]), prompt=rows, generated=1)
        return write(tmp_path, value, f"of_{rows}.json")

    told = str(refusal("vllm", of(16)))
    assert "routed_experts at layers 0 is 'expert 0 in all 16 rows'" in told
    assert "name the layers that have none: dense_layers=0" in told
    named = imported("vllm", of(16), tmp_path / "named", dense_layers="0")
    assert named.ids.shape == (16, LAYERS - 1, 1)
    assert imported("vllm", of(15), tmp_path / "few").ids.shape == (15, LAYERS, 1)


def test_several_responses_are_sequences_as_a_list_or_line_by_line(tmp_path: Path) -> None:
    values = [whole(), response(encoded(IDS[:3]), prompt=2, generated=2)]
    listed = imported("vllm", write(tmp_path, values), tmp_path / "list")
    (tmp_path / "responses.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    lines = imported("vllm", tmp_path / "responses.jsonl", tmp_path / "lines")
    for trace in (listed, lines):
        assert np.array_equal(trace.ids, np.concatenate([IDS, IDS[:3]]))
        assert trace.sequence.tolist() == [0] * FED + [1] * 3
        assert trace.step.tolist() == [0, 0, 0, 0, 1, 2, 3, 3, 4]
        assert [item.split for item in trace.header.sequences] == ["fit", "eval"]


def test_prompts_that_follow_each_other_are_steps_of_their_own(tmp_path: Path) -> None:
    values = [
        response(encoded(IDS[:3]), prompt=3, generated=1),
        response(encoded(IDS[:2]), prompt=2, generated=0),
    ]
    trace = imported("vllm", write(tmp_path, values), tmp_path / "trace")
    assert trace.step.tolist() == [0, 0, 0, 1, 1]
    assert set(trace.phase.tolist()) == {PREFILL}
    assert "decode" in lacks(trace)


def test_rows_that_the_request_left_out_leave_their_positions_out(tmp_path: Path) -> None:
    trace = imported("vllm", write(tmp_path, response(encoded(IDS[2:]))), tmp_path / "trace")
    assert trace.position.tolist() == [2, 3, 4, 5]
    assert trace.phase.tolist() == [CHUNK, CHUNK, DECODE, DECODE]
    assert np.array_equal(trace.ids, IDS[2:])
    trace = imported("vllm", write(tmp_path, response(encoded(IDS[PROMPT:]))), tmp_path / "decoded")
    assert "prefill" in lacks(trace)


def test_tokens_of_the_prefix_cache_are_left_out(tmp_path: Path) -> None:
    ids = IDS.copy()
    ids[:3] = -1
    trace = imported("vllm", write(tmp_path, response(encoded(ids, "int16"))), tmp_path / "trace")
    assert trace.position.tolist() == [3, 4, 5]
    assert trace.phase.tolist() == [CHUNK, DECODE, DECODE]
    assert trace.header.provenance["left_out_rows"] == 3


def test_layers_without_experts_are_left_out_where_they_are_named(tmp_path: Path) -> None:
    ids = np.concatenate([np.zeros((FED, 1, TOP_K), int), IDS], 1)
    path = write(tmp_path, response(encoded(ids)))
    error = refusal("vllm", path)
    assert error.field == "response 0, routed_experts at site 0, rows[0, 0]"
    assert "must not repeat in a row" in str(error)
    assert "layers without experts are to be named, dense_layers=0,1" in str(error)
    trace = imported("vllm", path, tmp_path / "trace", dense_layers="0")
    assert np.array_equal(trace.ids, IDS)
    assert [site.layer for site in trace.header.sites] == [1, 2, 3]
    for wrong in ("4", "0,1,2,3"):
        assert "must be some of the layers 0..3" in failure("vllm", path, dense_layers=wrong)
    assert "must be numbers of layers" in failure("vllm", path, dense_layers="a")
    error = refusal("vllm", path, dense_layers="0,2")
    assert error.field.startswith("response 0, routed_experts at layer 2[")
    assert "dense_layers=2 says that layer 2 has no experts" in str(error)


def test_ids_of_tokens_are_taken_if_the_request_asked_for_them(tmp_path: Path) -> None:
    value = whole()
    value["prompt_token_ids"] = [5, 6, 7, 8]
    value["choices"][0]["token_ids"] = [9, 10, 11]
    trace = imported("vllm", write(tmp_path, value), tmp_path / "trace")
    assert trace.token.tolist() == [5, 6, 7, 8, 9, 10]
    assert "tokens" not in lacks(trace)


def choice(value: Json) -> Json:
    found: Json = value["choices"][0]
    return found


def npy(shape: str, descr: str = "'|u1'") -> str:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + b"\0" * 6
    return base64.b64encode(content).decode()


PICKLED = io.BytesIO()
np.save(PICKLED, np.array([print], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("change", "place", "rule"),
    [
        (lambda v: v.pop("choices"), "response.choices", "must be there"),
        (
            lambda v: v.update(choices=[]),
            "response.choices",
            "must be a list of one choice; ask with n=1",
        ),
        (
            lambda v: v.update(choices=v["choices"] * 2),
            "response.choices",
            "must be a list of one choice",
        ),
        (lambda v: v.update(usage=None), "response.usage", "must be an object"),
        (
            lambda v: v["usage"].update(prompt_tokens=0),
            "response.usage.prompt_tokens",
            "must be a whole number in 1..",
        ),
        (
            lambda v: v["usage"].update(completion_tokens=None),
            "response.usage.completion_tokens",
            "must be a whole",
        ),
        (
            lambda v: v["usage"].update(completion_tokens=2),
            "response.choices[0].routed_experts",
            "at most 5 rows",
        ),
        (lambda v: v.update(model=3), "response.model", "must be printable text"),
        (
            lambda v: choice(v).update(routed_experts=None),
            "response.choices[0].routed_experts",
            "start the server with --enable-return-routed-experts",
        ),
        (
            lambda v: (
                choice(v).update(routed_experts=None)
                or v.update(prompt_routed_experts=IDS[:4].tolist())
            ),
            "response.choices[0].routed_experts",
            "must be recorded",
        ),
        (
            lambda v: choice(v).update(routed_experts="%%%"),
            "response.choices[0].routed_experts",
            "must be base64",
        ),
        (
            lambda v: choice(v).update(routed_experts="aGVsbG8="),
            "response.choices[0].routed_experts",
            "must be base64",
        ),
        (
            lambda v: choice(v).update(
                routed_experts=base64.b64encode(PICKLED.getvalue()).decode()
            ),
            "response.choices[0].routed_experts",
            "must be whole numbers [tokens, layers, ranks]",
        ),
        (
            lambda v: choice(v).update(routed_experts=npy("(6, 3, 2)", "__import__('os')")),
            "response.choices[0].routed_experts",
            "must be base64",
        ),
        (
            lambda v: choice(v).update(routed_experts=npy("(6, 3, 2")),
            "response.choices[0].routed_experts",
            "must be base64 of an .npy file of numbers (its header is cut short",
        ),
        (
            lambda v: choice(v).update(routed_experts=npy("(1000000, 1000, 4)")),
            "response.choices[0].routed_experts",
            "must be at most 1073741824",
        ),
        (
            lambda v: choice(v).update(routed_experts=npy("(6, 3, 2)")),
            "response.choices[0].routed_experts",
            "must be a whole .npy file",
        ),
        (
            lambda v: choice(v).update(routed_experts=npy("(6, 3, 0)")),
            "response.choices[0].routed_experts",
            "must be whole numbers [tokens, layers, ranks]",
        ),
        (
            lambda v: choice(v).update(routed_experts=encoded(IDS[0])),
            "response.choices[0].routed_experts",
            "must be whole numbers [tokens, layers, ranks]",
        ),
        (
            lambda v: choice(v).update(routed_experts=encoded(IDS, "float32")),
            "response.choices[0].routed_experts",
            "must be whole numbers",
        ),
        (
            lambda v: choice(v).update(routed_experts=encoded(IDS + 8)),
            "response 0, routed_experts at site 0, rows[0, 0]",
            "must lie in 0..7",
        ),
        (
            lambda v: choice(v).update(routed_experts=[[[1, 2]], [[1]]]),
            "response.choices[0].routed_experts",
            "must be numbers in 3 levels",
        ),
        (
            lambda v: choice(v).update(routed_experts=[[["1"]]]),
            "response.choices[0].routed_experts",
            "must be numbers",
        ),
        (
            lambda v: choice(v).update(routed_experts=IDS[:1].tolist()),
            "response.choices[0].routed_experts",
            "must be 3 or 2, the generated tokens",
        ),
        (
            lambda v: (
                v.update(prompt_routed_experts=IDS[:3].tolist())
                or choice(v).update(routed_experts=IDS[4:].tolist())
            ),
            "response.prompt_routed_experts",
            "must be 4, the prompt's tokens",
        ),
        (
            lambda v: (
                v.update(prompt_routed_experts=IDS[:4, :2].tolist())
                or choice(v).update(routed_experts=IDS[4:].tolist())
            ),
            "response.choices[0].routed_experts",
            "must have the layers and ranks of prompt_routed_experts",
        ),
        (
            lambda v: v.update(prompt_token_ids=[1]) or choice(v).update(token_ids=[1, 2, 3]),
            "response.prompt_token_ids",
            "must have 4 ids, as usage says",
        ),
        (
            lambda v: (
                v.update(prompt_token_ids=[1, 2, 3, -4]) or choice(v).update(token_ids=[1, 2, 3])
            ),
            "response.prompt_token_ids[3]",
            "must lie in 0..",
        ),
    ],
)
def test_a_wrong_response_is_refused_by_field_and_rule(
    tmp_path: Path, change: Callable[[Json], Any], place: str, rule: str
) -> None:
    value = whole()
    change(value)
    error = refusal("vllm", write(tmp_path, value))
    assert (error.file, error.field) == ("response.json", place)
    assert rule in str(error)


def test_responses_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    other = response(encoded(IDS[:, :2]))
    assert (
        refusal("vllm", write(tmp_path, [whole(), other])).field == "[1].choices[0].routed_experts"
    )
    assert (
        refusal("vllm", write(tmp_path, [whole(), {**whole(), "model": "big"}])).field
        == "[1].model"
    )


def test_a_response_with_nothing_but_cached_rows_is_refused(tmp_path: Path) -> None:
    error = refusal("vllm", write(tmp_path, response(encoded(np.full_like(IDS, -1), "int16"))))
    assert "must be recorded for one token or more" in str(error)


@pytest.mark.parametrize(
    ("text", "place"), [("", "text"), ("[]", "text"), ("{", "text"), ("3", "response")]
)
def test_text_that_is_no_response_is_refused(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "response.json").write_text(text)
    assert refusal("vllm", tmp_path / "response.json").field == place


def test_an_empty_file_of_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "responses.jsonl").touch()
    assert refusal("vllm", tmp_path / "responses.jsonl").field == "line 1"


def test_rows_of_a_prompt_beside_encoded_rows_without_it_are_refused(tmp_path: Path) -> None:
    mixed = response(encoded(IDS[PROMPT:]), IDS[:PROMPT].tolist())
    error = refusal("vllm", write(tmp_path, mixed))
    assert "must have all 6 rows, or prompt_routed_experts must be null" in str(error)
