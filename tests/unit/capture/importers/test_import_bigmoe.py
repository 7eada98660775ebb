"""Importing a phone's route trace: what arrives is what was recorded.

What is wrong is refused by line and column.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from capture.import_trace import main
from capture.importers import bigmoe
from capture.importers.bigmoe_lookups import COLUMNS
from capture.importers.formats import parse
from capture.importers.parts import make_request
from capture.importers.source import Imported, ImportFailure, untracked
from sim.traces.residency_log import EXPERT_BYTES_FILE, RESIDENCY_FILE
from sim.traces.trace import DECODE, PREFILL, TraceError, read_trace
from sim.workload.steps import Workload

# Two prompt and two decoded tokens. The last layer lacks the first token, and layer 1 has no
# experts. Lookups begin in line 7. The second prompt token repeats expert 2 and has a tie; one
# expert was prefetched, one is dropped.
TINY = """\
# route_trace v1
# model=/models/my models/Tiny-Q4.gguf arch=tinymoe n_layer=3 n_expert=6 n_expert_used=2
# layer=0 expert_bytes=100 dense_bytes=7
# layer=1 expert_bytes=0 dense_bytes=8
# layer=2 expert_bytes=200 dense_bytes=9
turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped
0,0,0,0,0,1,0.75,0,100,0
0,0,0,0,1,2,0.25,0,100,0
0,0,1,0,0,3,0.5,0,100,0
0,0,1,0,1,2,0.5,0,0,0
0,0,1,2,0,4,0.75,0,200,0
0,0,1,2,1,0,2.5e-1,0,200,0
0,1,2,0,0,3,0.75,1,0,0
0,1,2,0,1,5,0.25,0,100,0
0,1,2,2,0,4,0.75,1,0,0
0,1,2,2,1,1,0.25,2,0,0
0,1,3,0,0,5,0.75,1,0,0
0,1,3,0,1,1,0.25,1,0,0
0,1,3,2,0,2,0.75,0,200,0
0,1,3,2,1,3,0.25,0,0,1
"""
NAMES = (*COLUMNS, "dropped")
GIVEN = {"hidden": "16", "expert_intermediate": "32", "licence": "CC0-1.0"}


def write(folder: Path, text: str = TINY) -> Path:
    (folder / "tiny.route.csv").write_text(text, encoding="utf-8")
    return folder / "tiny.route.csv"


def read(folder: Path, text: str = TINY) -> Imported:
    return bigmoe.read(make_request({"path": str(write(folder, text)), **GIVEN}), untracked)


def residency(imported: Imported) -> pl.DataFrame:
    return pl.read_parquet(imported.files[RESIDENCY_FILE])


def lines_with(changes: dict[int, str]) -> str:
    """The text with some lines replaced, by their number."""
    lines = TINY.splitlines()
    return "\n".join(changes.get(number, line) for number, line in enumerate(lines, 1)) + "\n"


def cell(line: int, column: str, value: str) -> str:
    cells = TINY.splitlines()[line - 1].split(",")
    cells[NAMES.index(column)] = value
    return lines_with({line: ",".join(cells)})


def without(first: int, last: int) -> str:
    """The text without the lines first..last."""
    lines = TINY.splitlines()
    return "\n".join(lines[: first - 1] + lines[last:]) + "\n"


def refused(folder: Path, text: str) -> TraceError:
    with pytest.raises(TraceError) as error:
        read(folder, text)
    assert error.value.file == "tiny.route.csv"
    return error.value


# What arrives


def test_prompt_tokens_share_one_step_and_decoded_tokens_have_one_each(tmp_path: Path) -> None:
    trace = read(tmp_path).trace
    assert trace.step.tolist() == [0, 0, 1, 2]
    assert trace.phase.tolist() == [PREFILL, PREFILL, DECODE, DECODE]
    assert trace.position.tolist() == [0, 1, 2, 3]
    assert set(trace.token.tolist()) == {-1}
    assert trace.valid.all()


def test_choices_come_by_site_and_are_minus_one_where_none_was_made_or_it_was_dropped(
    tmp_path: Path,
) -> None:
    trace = read(tmp_path).trace
    assert trace.ids.tolist() == [
        [[1, 2], [-1, -1]],
        [[3, 2], [4, 0]],
        [[3, 5], [4, 1]],
        [[5, 1], [2, -1]],
    ]
    assert trace.weights[0].tolist() == [[0.75, 0.25], [0, 0]]
    assert trace.weights[3].tolist() == [[0.75, 0.25], [0.75, 0]]


def test_need_order_is_the_slot_where_rounding_made_weights_equal(tmp_path: Path) -> None:
    imported = read(tmp_path)
    assert np.allclose(imported.trace.weights[1, 0], 0.5, rtol=0, atol=1e-7)
    assert Workload(imported.trace, split="all").chosen[0][1, 0].tolist() == [3, 2]


def test_what_the_cache_did_comes_lookup_by_lookup_in_the_files_order(tmp_path: Path) -> None:
    table = residency(read(tmp_path))
    assert table.columns == [
        "site",
        "step",
        "sequence",
        "position",
        "slot",
        "expert",
        "resident",
        "prefetched",
        "loaded_bytes",
        "dropped",
    ]
    assert table["site"].to_list() == [0] * 4 + [1] * 2 + [0, 0, 1, 1] * 2
    assert table["step"].to_list() == [0] * 6 + [1] * 4 + [2] * 4
    assert table["position"].to_list() == [0, 0, 1, 1, 1, 1] + [2] * 4 + [3] * 4
    assert table["expert"].to_list() == [1, 2, 3, 2, 4, 0, 3, 5, 4, 1, 5, 1, 2, 3]
    assert [row for row, found in enumerate(table["resident"]) if found] == [6, 8, 9, 10, 11]
    assert [row for row, found in enumerate(table["prefetched"]) if found] == [9]
    assert table["loaded_bytes"].to_list() == [
        100,
        100,
        100,
        0,
        200,
        200,
        0,
        100,
        0,
        0,
        0,
        0,
        200,
        0,
    ]
    assert [row for row, found in enumerate(table["dropped"]) if found] == [13]


def test_bytes_of_an_expert_come_by_site(tmp_path: Path) -> None:
    assert json.loads(read(tmp_path).files[EXPERT_BYTES_FILE]) == [
        {"site": 0, "layer": 0, "expert_bytes": 100, "dense_bytes": 7},
        {"site": 1, "layer": 2, "expert_bytes": 200, "dense_bytes": 9},
    ]


def test_the_header_says_what_the_file_told_and_what_it_lacks(tmp_path: Path) -> None:
    header = read(tmp_path).trace.header
    shape = header.model
    assert (shape.name, shape.architecture, shape.sites, shape.experts, shape.top_k) == (
        "Tiny-Q4",
        "tinymoe",
        2,
        6,
        2,
    )
    assert (shape.hidden, shape.expert_intermediate, header.licence) == (16, 32, "CC0-1.0")
    assert [(site.layer, site.rule) for site in header.sites] == [(0, None), (2, None)]
    (sequence,) = header.sequences
    assert (sequence.prompt_tokens, sequence.decode_tokens, sequence.split) == (2, 2, "eval")
    for lacking in ("logits", "token ids", "routing rules", "cache budget"):
        assert lacking in str(header.provenance["missing"])
    assert "last prompt token only" in str(header.provenance["last_site"])
    assert (header.provenance["weight_sum_least"], header.provenance["weight_sum_most"]) == (
        1.0,
        1.0,
    )
    assert header.provenance["dropped"] == 1
    assert "/models" not in header.to_json()
    assert str(tmp_path) not in header.to_json()


def test_the_command_writes_a_trace_whose_header_lists_every_file_by_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["format=bigmoe", f"path={write(tmp_path)}", f"output_dir={tmp_path / 'trace'}"]
    assert main(arguments + [f"{key}={value}" for key, value in GIVEN.items()]) == 0
    files = read_trace(tmp_path / "trace").header.files
    assert set(files) == {"routes.parquet", RESIDENCY_FILE, EXPERT_BYTES_FILE}
    for name, digest in files.items():
        assert hashlib.sha256((tmp_path / "trace" / name).read_bytes()).hexdigest() == digest
    assert (
        "Tiny-Q4_bigmoe: 2 prompt and 2 decode tokens of 1 sequence at 2 sites"
        in capsys.readouterr().out
    )


def test_a_file_without_the_dropped_column_has_dropped_nothing(tmp_path: Path) -> None:
    lines = TINY.replace(",0,0,1\n", ",0,200,0\n").splitlines()
    text = "\n".join(lines[:5] + [line.rpartition(",")[0] for line in lines[5:]])
    imported = read(tmp_path, text)
    assert imported.trace.ids[3, 1].tolist() == [2, 3]
    assert not residency(imported)["dropped"].any()


def test_columns_are_read_by_name_in_any_order(tmp_path: Path) -> None:
    lines = TINY.splitlines()
    text = "\n".join(lines[:5] + [",".join(reversed(line.split(","))) for line in lines[5:]]) + "\n"
    assert read(tmp_path, text).trace.ids.tolist() == read(tmp_path).trace.ids.tolist()


def test_line_ends_of_another_system_change_nothing(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(TINY.replace("\n", "\r\n").encode())
    imported = bigmoe.read(make_request({"path": str(path), **GIVEN}), untracked)
    assert imported.trace.ids.tolist() == read(tmp_path).trace.ids.tolist()


def test_a_file_may_hold_decode_alone_and_begin_at_any_position(tmp_path: Path) -> None:
    trace = read(tmp_path, without(7, 12)).trace
    assert (trace.step.tolist(), trace.position.tolist()) == ([0, 1], [2, 3])
    assert (trace.header.sequences[0].prompt_tokens, trace.header.sequences[0].decode_tokens) == (
        0,
        2,
    )


def test_a_file_may_hold_prefill_alone(tmp_path: Path) -> None:
    trace = read(tmp_path, without(13, 20)).trace
    assert (trace.step.tolist(), trace.position.tolist()) == ([0, 0], [0, 1])
    assert trace.header.sequences[0].decode_tokens == 0


def test_the_last_layer_may_have_every_prompt_token(tmp_path: Path) -> None:
    first = "0,0,0,2,0,4,0.75,0,200,0\n0,0,0,2,1,5,0.25,0,200,0"
    second = "0,0,1,2,0,4,0.75,0,0,0"
    trace = read(tmp_path, lines_with({11: f"{first}\n{second}"})).trace
    assert trace.ids[:2, 1].tolist() == [[4, 5], [4, 0]]
    assert trace.header.provenance["last_site"] == "complete"


# Arguments


def test_what_the_file_does_not_tell_has_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(ImportFailure) as failure:
        bigmoe.read(make_request({"path": str(write(tmp_path))}), untracked)
    assert all(
        f"{key}=..." in str(failure.value) for key in ("hidden", "expert_intermediate", "licence")
    )


def test_what_is_given_goes_before_what_the_file_says(tmp_path: Path) -> None:
    given = {
        "path": str(write(tmp_path)),
        **GIVEN,
        "model": "mine",
        "architecture": "Mine",
        "name": "run",
    }
    header = bigmoe.read(make_request(given), untracked).trace.header
    assert (header.model.name, header.model.architecture, header.name) == ("mine", "Mine", "run")


def test_facts_of_a_published_model_are_not_taken_for_a_file_of_another_shape(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, TINY.replace("Tiny-Q4", "Qwen3-30B-A3B-Q4_K_M"))
    with pytest.raises(ImportFailure, match=r"needs hidden=\.\.\."):
        bigmoe.read(make_request({"path": str(path)}), untracked)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("sequences=s.json", "sequences=s.json is no key of format=bigmoe"),
        ("experts=6", "experts=6 is no key of format=bigmoe"),
        ("hidden=0", "hidden=0 must be a whole number"),
        ("expert_intermediate=x", "expert_intermediate=x must be a whole number"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(given: str, told: str) -> None:
    with pytest.raises(ImportFailure) as failure:
        parse(["format=bigmoe", "path=p", "output_dir=o", given])
    assert told in str(failure.value)


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "pipe"):
        with pytest.raises(ImportFailure, match="is no file; name a route trace"):
            bigmoe.read(make_request({"path": str(path)}), untracked)


# Hostile files


@pytest.mark.parametrize(
    ("text", "place", "rule"),
    [
        ("", "line 1", "must be '# route_trace v1'"),
        (
            lines_with({1: "# route_trace v2"}),
            "line 1",
            "must be '# route_trace v1'; name a route trace",
        ),
        ("# route_trace v1\n", "line 2", "must be '# model=.. arch=.."),
        (
            lines_with({2: "# model=a.gguf arch=a n_layer=3 n_expert=6"}),
            "line 2",
            "n_expert_used=..",
        ),
        (
            lines_with({2: "# model=a.gguf arch=a n_layer=-3 n_expert=6 n_expert_used=2"}),
            "line 2",
            "must be '# model",
        ),
        (
            TINY.replace("n_layer=3", "n_layer=0"),
            "line 2, n_layer",
            "must be a whole number in 1..32767",
        ),
        (
            TINY.replace("n_layer=3", "n_layer=99999"),
            "line 2, n_layer",
            "must be a whole number in 1..32767",
        ),
        (
            TINY.replace("n_expert=6", "n_expert=40000"),
            "line 2, n_expert",
            "must be a whole number in 1..32767",
        ),
        (
            TINY.replace("used=2", "used=7"),
            "line 2, n_expert_used",
            "must be a whole number in 1..6",
        ),
        (
            TINY.replace("used=2", "used=0"),
            "line 2, n_expert_used",
            "must be a whole number in 1..6",
        ),
        (TINY.replace("Tiny-Q4.gguf", ""), "line 2, model", "must end in a printable file name"),
        (TINY.replace("Tiny-Q4", "Ti\x07ny"), "line 2, model", "must end in a printable file name"),
        (
            lines_with({4: "# layer=2 expert_bytes=0 dense_bytes=8"}),
            "line 4",
            "must be '# layer=1 expert_bytes=..",
        ),
        (
            lines_with({4: "# layer=1 expert_bytes=x dense_bytes=8"}),
            "line 4",
            "must be '# layer=1 expert_bytes=..",
        ),
        (TINY.replace("n_layer=3", "n_layer=4"), "line 6", "must be '# layer=3 expert_bytes=.."),
        ("\n".join(TINY.splitlines()[:4]), "line 5", "must be '# layer=2 expert_bytes=.."),
        (
            TINY.replace("bytes=100", "bytes=0").replace("bytes=200", "bytes=0"),
            "lines 3 to 5, expert_bytes",
            "must be above 0 for one layer or more",
        ),
        ("\n".join(TINY.splitlines()[:5]), "line 6", "must name the column turn"),
        (TINY.replace("weight", "mass"), "line 6", "must name the column weight"),
        (TINY.replace("dropped", "dripped"), "line 6", "must be one of the columns turn, phase"),
        (TINY.replace("dropped", "turn"), "line 6", "must not come twice"),
        (without(7, 20), "line 7", "must be a lookup"),
        (lines_with({9: ""}), "line 9", "must have 10 values, as line 6 has names"),
        (lines_with({9: "0,0,1,0,0,3,0.5,0,100"}), "line 9", "must have 10 values"),
        (lines_with({9: "0,0,1,0,0,3,0.5,0,100,0,0"}), "line 9", "must have 10 values"),
        (lines_with({9: "# a remark"}), "line 9", "must have 10 values"),
    ],
)
def test_a_wrong_line_is_refused_by_number_and_rule(
    tmp_path: Path, text: str, place: str, rule: str
) -> None:
    error = refused(tmp_path, text)
    assert error.field == place
    assert rule in str(error)


@pytest.mark.parametrize(
    ("line", "column", "value", "rule"),
    [
        (7, "turn", "1", "must be 0: a file with several turns is to be split"),
        (7, "phase", "2", "must be a whole number in 0..1"),
        (7, "phase", "", "must be a whole number in 0..1"),
        (7, "step", "-1", "must be a whole number in 0..2147483647"),
        (7, "step", "2147483648", "must be a whole number in 0..2147483647"),
        (7, "step", "9" * 5000, "must be a whole number in 0..2147483647"),
        (7, "step", "²", "must be a whole number in 0..2147483647"),
        (7, "layer", "3", "must be a whole number in 0..2"),
        (7, "slot", "2", "must be a whole number in 0..1"),
        (7, "expert", "6", "must be a whole number in 0..5"),
        (7, "expert", "1.0", "must be a whole number in 0..5"),
        (7, "weight", "nan", "nan: the engine saw no weights"),
        (7, "weight", "inf", "must be a number in 0..1000000"),
        (7, "weight", "-0.75", "must be a number in 0..1000000"),
        (7, "weight", "1e7", "must be a number in 0..1000000"),
        (7, "weight", "1e999", "must be a number in 0..1000000"),
        (7, "weight", "0_1", "must be a number in 0..1000000"),
        (7, "weight", "", "must be a number in 0..1000000"),
        (7, "residency", "3", "must be a whole number in 0..2"),
        (7, "expert_bytes", "1000000000000001", "must be a whole number in 0..1000000000000000"),
        (7, "dropped", "2", "must be a whole number in 0..1"),
        (8, "slot", "0", "must be 1: slots count 0..1 in every choice"),
        (8, "phase", "1", "must be 0: as in slot 0"),
        (8, "step", "1", "must be 0: as in slot 0"),
        (8, "layer", "2", "must be 0: as in slot 0"),
        (8, "expert", "1", "must not repeat in a choice"),
        (8, "weight", "0.76", "must not rise from slot to slot"),
        (10, "residency", "1", "must be 0: as in the batch's first lookup of the expert"),
        (
            10,
            "expert_bytes",
            "100",
            "must be 0: the layer's expert_bytes at a batch's first lookup",
        ),
        (7, "expert_bytes", "0", "must be 100: the layer's expert_bytes at a batch's first lookup"),
        (
            11,
            "expert_bytes",
            "100",
            "must be 200: the layer's expert_bytes at a batch's first lookup",
        ),
        (
            13,
            "expert_bytes",
            "100",
            "must be 0: the layer's expert_bytes at a batch's first lookup",
        ),
        (13, "residency", "0", None),
        (13, "dropped", "1", "must be 0 where the expert is resident"),
        (14, "dropped", "1", None),
    ],
)
def test_a_wrong_value_is_refused_by_line_column_and_rule(
    tmp_path: Path, line: int, column: str, value: str, rule: str | None
) -> None:
    error = refused(tmp_path, cell(line, column, value))
    assert error.field == f"line {line}, column {column if rule else 'expert_bytes'}"
    assert (rule or "must be") in str(error)
    assert "restore the file" in str(error)


@pytest.mark.parametrize(
    ("text", "place", "rule"),
    [
        (without(20, 20), "line 19, column slot", "must not be the file's last"),
        (without(19, 20), "line 18, choices of decode", "must be a multiple of the 2 layers"),
        (without(11, 12), "line 10, choices of prefill", "must be 4 for 2 tokens at 2 layers"),
        (without(7, 10), "line 7, column layer", "must be 0: prefill goes layer by layer"),
        (without(9, 10), "line 9, column step", "must be 0: prefill goes layer by layer"),
        (without(13, 14), "line 13, column layer", "must be 0: prefill goes layer by layer"),
        (without(13, 16), "line 13, column step", "must be 2: prefill goes layer by layer"),
        (without(15, 18), "line 15, column step", "must be 2: prefill goes layer by layer"),
        (
            lines_with({13: TINY.splitlines()[16], 14: TINY.splitlines()[17]}),
            "line 13, column step",
            "must be 2",
        ),
        (
            lines_with({9: "0,1,1,0,0,3,0.5,0,100,0", 10: "0,1,1,0,1,2,0.5,0,100,0"}),
            "line 11, column phase",
            "must not return to prefill (0) after decode (1)",
        ),
        (
            lines_with({11: "0,0,1,1,0,4,0.75,0,0,0", 12: "0,0,1,1,1,0,0.25,0,0,0"}),
            "line 11, column layer",
            "must be a layer with expert_bytes in the preamble",
        ),
        (
            lines_with({12: TINY.splitlines()[11] + "\n" + "\n".join(TINY.splitlines()[6:12])}),
            "line 13, column layer",
            "must be 2: prefill goes layer by layer with all its tokens, once",
        ),
    ],
)
def test_choices_that_are_missing_twice_or_out_of_order_are_refused(
    tmp_path: Path, text: str, place: str, rule: str
) -> None:
    error = refused(tmp_path, text)
    assert error.field == place
    assert rule in str(error)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(TINY.encode().replace(b"tinymoe", b"tiny\xff"))
    with pytest.raises(TraceError, match="must be UTF-8"):
        bigmoe.read(make_request({"path": str(path), **GIVEN}), untracked)


def test_a_file_too_large_to_be_one_run_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path)
    with path.open("r+b") as stream:
        stream.truncate((1 << 26) + 1)
    with pytest.raises(
        TraceError, match=r"size is 67108865, must be at most 67108864 bytes; split the run"
    ):
        bigmoe.read(make_request({"path": str(path), **GIVEN}), untracked)


def test_every_damaged_byte_is_refused_or_leaves_a_trace_that_can_be_written(
    tmp_path: Path,
) -> None:
    for place in range(len(TINY)):
        damaged = TINY[:place] + chr(ord(TINY[place]) ^ 0x01) + TINY[place + 1 :]
        try:
            imported = read(tmp_path, damaged)
        except (TraceError, ImportFailure):
            continue
        assert imported.trace.ids.shape == (4, 2, 2)
        assert imported.trace.ids.max() < 6


def test_a_refusal_exits_with_2_and_one_message_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, cell(9, "expert", "77"))
    arguments = ["format=bigmoe", f"path={path}", f"output_dir={tmp_path / 'trace'}"]
    assert main(arguments + [f"{key}={value}" for key, value in GIVEN.items()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "import: tiny.route.csv: line 9, column expert is '77', must be a whole number in 0..5; "
        "restore the file, or import another one"
    )
    assert [item.name for item in tmp_path.iterdir()] == ["tiny.route.csv"]
