"""Importing the CSV of llama-moe-trace, in lines as its source writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capture.importers import llama_moe_trace
from capture.importers.parts import make_request
from capture.importers.source import ImportFailure, untracked
from helpers.import_fixtures import FACTS, imported, lacks, make_ids, refusal
from sim.traces.trace import DECODE, TraceError
from sim.workload.steps import Workload

FORMAT = "llama_moe_trace"
LAYERS = (1, 2, 5)
TOP_K = 3


def text(tokens: int = 4, prompt: int = 3, seed: int = 0) -> tuple[str, np.ndarray]:
    """What the tool writes of one prompt and its continuation.

    A layer's lines of a prompt follow each other; the last layer has the last token's alone.
    """
    ids = make_ids(tokens, len(LAYERS), TOP_K, seed)
    lines = [
        f"{position},{layer},1,2,3"
        for layer in LAYERS
        for position in range(-prompt if layer != LAYERS[-1] else -bool(prompt), 0)
    ]
    lines += [
        f"{token},{layer},{','.join(map(str, ids[token, site]))}"
        for token in range(tokens)
        for site, layer in enumerate(LAYERS)
    ]
    return "".join(f"{line}\n" for line in lines), ids


def write(folder: Path, content: str) -> Path:
    (folder / "trace.csv").write_text(content)
    return folder / "trace.csv"


def test_decoded_tokens_become_steps_and_prompts_are_left_out(tmp_path: Path) -> None:
    content, ids = text()
    trace = imported(FORMAT, write(tmp_path, content), tmp_path / "trace")
    assert np.array_equal(trace.ids, ids)
    assert trace.step.tolist() == trace.position.tolist() == [0, 1, 2, 3]
    assert set(trace.phase.tolist()) == {DECODE}
    assert [site.layer for site in trace.header.sites] == list(LAYERS)
    assert lacks(trace) == {"weights", "prefill", "tokens", "scores"}
    assert trace.header.provenance["prompt_lines"] == 7
    assert trace.header.stands_in_order
    needs = Workload(trace, split="all").experts_by_gate()
    assert needs == ids.reshape(-1, TOP_K).tolist(), "in order of rank"


def test_files_behind_one_another_are_sequences(tmp_path: Path) -> None:
    first, ids = text(3)
    second, more = text(2, prompt=0, seed=1)
    third, last = text(1, seed=2)
    trace = imported(FORMAT, write(tmp_path, third + first + second), tmp_path / "trace")
    assert np.array_equal(trace.ids, np.concatenate([last, ids, more]))
    assert trace.sequence.tolist() == [0, 1, 1, 1, 2, 2]
    assert [item.decode_tokens for item in trace.header.sequences] == [1, 3, 2]


@pytest.mark.parametrize(
    ("content", "field", "rule"),
    [
        ("phase,token,layer,rank,expert\n", "line 1", "must be pos,layer,id0"),
        ("0,1,2.5\n", "line 1", "must be pos,layer,id0"),
        ("0,1\n", "line 1", "must be pos,layer,id0"),
        ("0,1,12345678901\n", "line 1", "must be pos,layer,id0"),
        ("0,1,2\n\n", "line 2", "must be pos,layer,id0"),
        ("0,1,2,3\n0,2,2\n", "line 2", "must be 2 experts"),
        ("0,-1,2\n", "line 1, layer", "must be 0 or more"),
        ("-1,1,2\n", "lines", "must have positions from 0 on"),
        ("", "lines", "must have positions from 0 on"),
        ("3,1,2\n", "first position", "must be 0"),
        ("0,2,2\n0,1,3\n", "layer of a position's line[1, 0]", "must be [2] in turn"),
        ("0,1,2\n0,2,3\n1,1,2\n", "lines of decoded tokens", "must be a multiple of 2"),
        # To cut the last position did not mend a line that lacks in the middle.
        ("0,1,2\n0,2,3\n1,2,3\n2,1,2\n2,2,3\n", "layer of a position's line[1, 0]", "in turn"),
        ("0,1,2\n0,2,3\n1,1,2\n1,3,2\n", "layer of a position's line[1, 1]", "must be [1, 2]"),
        ("0,1,2\n0,2,3\n1,1,2\n2,2,2\n", "position of a layer's line[1, 1]", "the same for all"),
        ("0,1,2\n2,1,2\n", "position[0]", "must be one more than the last, or 0"),
        ("0,1,2\n1,1,2\n1,1,2\n", "position[1]", "must be one more than the last, or 0"),
        ("0,40000,2\n", "layer[0]", "must be at most 32767"),
        ("0,1,8\n", "experts of layer 1[0, 0]", "must lie in 0..7"),
        ("0,1,-1\n", "experts of layer 1[0, 0]", "must lie in 0..7"),
        ("0,1,2,2\n", "experts of layer 1[0, 0]", "must not repeat"),
    ],
)
def test_what_differs_is_refused_by_line(
    tmp_path: Path, content: str, field: str, rule: str
) -> None:
    error = refusal(FORMAT, write(tmp_path, content))
    assert error.field == field
    assert rule in str(error)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    path.write_bytes(b"\xff\xfe\x00\x01")
    assert "must be UTF-8" in str(refusal(FORMAT, path))


def test_facts_that_the_file_does_not_tell_must_be_given(tmp_path: Path) -> None:
    request = make_request({"path": str(write(tmp_path, text()[0])), "model": "tiny"})
    with pytest.raises(ImportFailure, match=r"model=tiny also needs experts=\.\.\., hidden=\.\.\."):
        llama_moe_trace.check(request)


def test_every_damaged_byte_is_refused_or_leaves_whole_choices(tmp_path: Path) -> None:
    content = text(2)[0]
    for place in range(len(content)):
        damaged = content[:place] + chr(ord(content[place]) ^ 0x01) + content[place + 1 :]
        path = write(tmp_path, damaged)
        request = make_request({"path": str(path), **FACTS})
        try:
            trace = llama_moe_trace.read(request, untracked).trace
        except TraceError:
            continue
        assert trace.ids.shape[2] == TOP_K
        assert 0 <= trace.ids.min() <= trace.ids.max() < 8
