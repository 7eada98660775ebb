"""Importing colibri's stream: calls become passes, and passes steps.

What is wrong is refused by line.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from capture.importers import colibri
from capture.importers.formats import parse
from capture.importers.parts import NEEDED, make_request
from capture.importers.source import ImportFailure, untracked
from helpers.import_fixtures import FACTS, failure, imported, lacks, make_ids, make_weights, refusal
from sim.traces.trace import CHUNK, DECODE, PREFILL, TraceError
from sim.workload.steps import Workload

LAYERS = (1, 2, 5)
TOP_K = 3
PASSES = (4, 1, 1, 3, 2, 1)


def stream(
    passes: tuple[int, ...] = PASSES, first_call: int = 0
) -> tuple[str, np.ndarray, np.ndarray]:
    """The text that the engine writes for passes of so many rows, and the choices in it."""
    ids, weights = (
        make_ids(sum(passes), len(LAYERS), TOP_K),
        make_weights(sum(passes), len(LAYERS), TOP_K),
    )
    lines, call, begin = [], first_call, 0
    for rows in passes:
        for site, layer in enumerate(LAYERS):
            for row in range(rows):
                token = begin + row
                chosen = zip(ids[token, site], weights[token, site], strict=True)
                lines.append(
                    f"{call} {row} {layer}"
                    + "".join(f" {expert}:{gate:.4f}" for expert, gate in chosen)
                )
            call += 1
        begin += rows
    return "\n".join(lines) + "\n", ids, weights


def write(folder: Path, text: str) -> Path:
    (folder / "route.txt").write_text(text)
    return folder / "route.txt"


def changed(line: int, text: str) -> str:
    lines = stream((2, 1))[0].splitlines()
    lines[line - 1] = text
    return "\n".join(lines) + "\n"


def test_a_stream_becomes_the_choices_that_were_written(tmp_path: Path) -> None:
    text, ids, weights = stream()
    trace = imported("colibri", write(tmp_path, text), tmp_path / "trace", sequences="prompts")
    assert np.array_equal(trace.ids, ids)
    # Gates have four digits, and equal ones are an ulp apart.
    assert np.allclose(trace.weights, np.round(weights, 4), rtol=0, atol=1e-6)
    assert trace.step.tolist() == np.repeat(np.arange(len(PASSES)), PASSES).tolist()
    assert [(site.layer, site.name) for site in trace.header.sites] == [
        (n, f"layer {n}") for n in LAYERS
    ]
    assert (trace.header.model.top_k, trace.header.model.experts) == (TOP_K, 8)
    assert {"tokens", "scores"} == lacks(trace)


def test_a_prompt_after_decoded_tokens_begins_a_sequence_if_that_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, stream()[0])
    trace = imported("colibri", path, tmp_path / "prompts", sequences="prompts")
    assert trace.sequence.tolist() == [0] * 6 + [1] * 6
    assert trace.phase.tolist() == [PREFILL] * 4 + [DECODE] * 2 + [PREFILL] * 3 + [CHUNK] * 2 + [
        DECODE
    ]
    assert trace.position.tolist() == [*range(6), *range(6)]
    trace = imported("colibri", path, tmp_path / "one", sequences="one")
    assert set(trace.sequence.tolist()) == {0}
    assert trace.phase.tolist() == [PREFILL] * 4 + [DECODE] * 2 + [CHUNK] * 5 + [DECODE]
    assert trace.position.tolist() == [*range(12)]
    assert trace.header.provenance["sequences"] == "not recorded: sequences=one"


@pytest.mark.parametrize("sequences", ["one", "prompts"])
def test_sequences_is_refused_where_it_changes_nothing(sequences: str, tmp_path: Path) -> None:
    said = failure("colibri", write(tmp_path, stream((4, 2, 1))[0]), sequences=sequences)
    assert f"sequences={sequences} changes nothing: no prompt of route.txt comes after" in said


def test_whether_a_prompt_begins_a_sequence_is_not_invented(tmp_path: Path) -> None:
    said = failure("colibri", write(tmp_path, stream()[0]))
    assert "route.txt: line 19 begins a prompt after decoded tokens" in said
    assert "sequences=prompts (it is) or sequences=one" in said
    assert (
        imported("colibri", write(tmp_path, stream((4, 2, 1))[0]), tmp_path / "trace").phase[-1]
        == DECODE
    )


def test_a_stream_without_prompts_says_so(tmp_path: Path) -> None:
    trace = imported("colibri", write(tmp_path, stream((1, 1))[0]), tmp_path / "trace")
    assert "prefill" in lacks(trace)
    assert set(trace.phase.tolist()) == {DECODE}


def test_a_stream_may_begin_at_any_call(tmp_path: Path) -> None:
    text, ids, _ = stream((2, 1), first_call=700)
    assert np.array_equal(imported("colibri", write(tmp_path, text), tmp_path / "trace").ids, ids)


def test_a_row_with_fewer_experts_has_none_in_their_place(tmp_path: Path) -> None:
    text = "0 0 1 3:0.7500 1:0.2500\n1 0 2 4:1.0000\n"
    trace = imported("colibri", write(tmp_path, text), tmp_path / "trace", top_k="3")
    assert trace.ids.tolist() == [[[3, 1, -1], [4, -1, -1]]]
    assert trace.weights.tolist() == [[[0.75, 0.25, 0], [1, 0, 0]]]


def test_gates_that_four_digits_made_equal_keep_the_order_of_the_file(tmp_path: Path) -> None:
    trace = imported(
        "colibri", write(tmp_path, "0 0 1 6:0.5000 2:0.5000 4:0.7000\n"), tmp_path / "trace"
    )
    assert Workload(trace, split="all").chosen[0][0, 0].tolist() == [4, 6, 2]


@pytest.mark.parametrize("key", NEEDED)
def test_what_the_stream_does_not_tell_has_to_be_given(key: str) -> None:
    facts = [f"{name}={text}" for name, text in FACTS.items() if name != key]
    with pytest.raises(ImportFailure, match=rf"needs {key}=\.\.\.: the file does not tell them"):
        parse(["format=colibri", "path=p", "output_dir=o", *facts])


def test_a_wrong_option_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, stream()[0])
    assert "sequences=both must be one of one, prompts" in failure(
        "colibri", path, sequences="both"
    )
    assert "top_k=0 must be a whole number of 1 or more" in failure("colibri", path, top_k="0")


@pytest.mark.parametrize(
    ("text", "place", "rule"),
    [
        ("", "line 1", "must be '<call> <row> <layer> <expert>:<gate> ..'"),
        (changed(2, ""), "line 2", "must be '<call> <row> <layer>"),
        (changed(2, "0 1 1"), "line 2", "must be '<call> <row> <layer>"),
        (changed(2, "0 1 1 3:0.5"), "line 2", "gates with four digits"),
        (changed(2, "0 1 1 3:nan"), "line 2", "gates with four digits"),
        (changed(2, "0 1 1 3:-0.5000"), "line 2", "gates with four digits"),
        (changed(2, "0 1 1 -3:0.5000"), "line 2", "gates with four digits"),
        (changed(2, "0 1 1 3:0.5000 "), "line 2", "gates with four digits"),
        (changed(2, "0 1 1 8:0.5000"), "line 2, experts", "must lie in 0..7"),
        (changed(2, "0 1 1 3:0.5000 3:0.2500"), "line 2, experts", "must not repeat in a line"),
        (
            changed(2, "0 2 1 3:0.5000"),
            "line 2, call row layer",
            "must be 0 1 1, or a new call's row 0",
        ),
        (changed(2, "0 1 2 3:0.5000"), "line 2, call row layer", "must be 0 1 1"),
        (changed(1, "0 1 1 3:0.5000"), "line 1, row", "must be 0: the stream begins with a call"),
        (
            changed(3, "7 0 2 3:0.5000"),
            "line 3, call",
            "must be 1, the next call: no line may be missing",
        ),
        (changed(3, "0 0 2 3:0.5000"), "line 3, call", "must be 1, the next call"),
        (changed(1, "0 0 99999 3:0.5000"), "line 1, layer", "must be at most 32767"),
        (
            stream((2, 1))[0].rsplit("\n", 2)[0],
            "line 8, layer",
            "must not be the last: a pass ends at layer 5",
        ),
        (
            changed(9, "5 0 4 3:0.5000"),
            "line 9, layer",
            "must be 5: every pass goes through the layers of the first",
        ),
        (
            "0 0 1 3:0.5000\n1 0 2 3:0.5000\n1 1 2 3:0.5000\n",
            "line 2, rows of the call",
            "must be 1, as at the first",
        ),
    ],
)
def test_a_wrong_line_is_refused_by_number_and_rule(
    tmp_path: Path, text: str, place: str, rule: str
) -> None:
    error = refusal("colibri", write(tmp_path, text))
    assert (error.file, error.field) == ("route.txt", place)
    assert rule in str(error)


def test_more_experts_in_a_line_than_the_model_chooses_are_refused(tmp_path: Path) -> None:
    error = refusal("colibri", write(tmp_path, stream((2, 1))[0]), top_k="2")
    assert (error.field, "must be at most top_k=2" in str(error)) == ("line 1, experts", True)


def test_a_line_that_never_ends_is_refused_before_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capture.importers.source.LARGEST_LINE_BYTES", 100)
    error = refusal("colibri", write(tmp_path, "0 0 1" + " 3:0.5000" * 50))
    assert (error.field, "must be at most 100 bytes" in str(error)) == ("line 1", True)


def test_every_damaged_byte_is_refused_or_leaves_whole_choices(tmp_path: Path) -> None:
    text = stream((2, 1))[0]
    for place in range(len(text)):
        path = write(tmp_path, text[:place] + chr(ord(text[place]) ^ 0x01) + text[place + 1 :])
        try:
            trace = colibri.read(make_request({"path": str(path), **FACTS}), untracked).trace
        except (TraceError, ImportFailure):
            continue
        assert trace.ids.shape[1:] == (len(LAYERS), TOP_K)
        assert -1 <= trace.ids.min() <= trace.ids.max() < 8
