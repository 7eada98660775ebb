"""Importing arrays of decode routing: what arrives is what was published.

What is wrong is refused by file and field.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture.import_trace import main
from capture.importers import npz
from capture.importers.formats import parse
from capture.importers.parts import NEEDED, Request, make_request
from capture.importers.source import ImportFailure, untracked
from sim.traces.trace import DECODE, Trace, TraceError, read_trace
from sim.workload.steps import Workload

SITES, EXPERTS, TOP_K = 3, 8, 2
FACTS = {
    "architecture": "Tiny",
    "experts": "8",
    "hidden": "16",
    "expert_intermediate": "32",
    "licence": "CC0-1.0",
}
Table = list[dict[str, Any]]
Arrays = dict[str, np.ndarray]


def make_arrays() -> Arrays:
    """Three sequences of 2, 1 and 3 tokens.

    At site 1 the fourth token's two weights are equal and its ids fall.
    """
    experts = np.array(
        [
            [(row + site + 1) % EXPERTS, (row + 2 * site + 3) % EXPERTS]
            for row in range(6)
            for site in range(SITES)
        ]
    ).reshape(6, SITES, TOP_K)
    weights = np.tile(np.array([0.75, 0.25]), (6, SITES, 1))
    experts[3, 1], weights[3, 1] = (6, 2), (0.5, 0.5)
    return {
        "experts": experts.astype(np.uint8),
        "weights": weights.astype(np.float16),
        "pos": np.array([7, 8, 4, 10, 11, 12], np.int32),
        "seq": np.array([0, 0, 1, 2, 2, 2], np.int32),
    }


def make_table() -> Table:
    return [
        {"seq": 0, "T": 2, "dataset": "maths", "has_repetition": False, "finished": True},
        {"seq": 1, "T": 1, "dataset": "prose", "has_repetition": True, "finished": False},
        {"seq": 2, "T": 3, "dataset": "prose", "has_repetition": False, "finished": True},
    ]


def write(folder: Path, arrays: Arrays | None = None, table: object = None) -> Request:
    np.savez_compressed(folder / "routing.npz", **(make_arrays() if arrays is None else arrays))
    (folder / "sequences.json").write_text(json.dumps(make_table() if table is None else table))
    return make_request({"path": str(folder / "routing.npz"), "model": "tiny", **FACTS})


def read(source: Request) -> Trace:
    return npz.read(source, untracked).trace


def arguments(folder: Path, **others: str) -> list[str]:
    given = {
        "format": "npz",
        "path": str(folder / "routing.npz"),
        "output_dir": str(folder / "trace"),
        "model": "tiny",
    }
    return [f"{key}={value}" for key, value in {**given, **FACTS, **others}.items()]


# What arrives


def test_a_published_file_becomes_a_trace_directory_with_its_choices(tmp_path, capsys):
    write(tmp_path)
    assert main(arguments(tmp_path)) == 0
    trace, arrays = read_trace(tmp_path / "trace"), make_arrays()
    assert np.array_equal(trace.ids, arrays["experts"])
    assert np.allclose(trace.weights, arrays["weights"], rtol=0, atol=1e-6)
    assert np.array_equal(trace.position, arrays["pos"])
    assert np.array_equal(trace.sequence, arrays["seq"])
    assert trace.step.tolist() == [0, 1, 2, 3, 4, 5]
    assert set(trace.phase.tolist()) == {DECODE}
    assert set(trace.token.tolist()) == {-1}
    assert trace.valid.all()
    assert "6 decode tokens of 3 sequences at 3 sites" in capsys.readouterr().out


def test_the_header_says_what_the_file_told_and_what_it_lacks(tmp_path):
    header = read(write(tmp_path)).header
    shape = header.model
    assert (shape.name, shape.architecture) == ("tiny", "Tiny")
    assert (shape.sites, shape.experts, shape.top_k) == (SITES, EXPERTS, TOP_K)
    assert (shape.hidden, shape.expert_intermediate) == (16, 32)
    assert (header.source, header.licence, header.name) == ("imported", "CC0-1.0", "tiny_decode")
    assert [site.rule for site in header.sites] == [None] * SITES
    for lacking in ("prompt routing", "logits", "token ids"):
        assert lacking in str(header.provenance["missing"])
    assert header.provenance["split"] == "even sequences fit, odd sequences eval"
    assert len(str(header.provenance["file_sha256"])) == 64
    assert str(tmp_path) not in header.to_json()


def test_sequences_keep_their_flags_and_even_ones_are_for_fitting(tmp_path):
    sequences = read(write(tmp_path)).header.sequences
    assert [item.split for item in sequences] == ["fit", "eval", "fit"]
    assert [item.domain for item in sequences] == ["maths", "prose", "prose"]
    assert [item.flags for item in sequences] == [
        {"has_repetition": False, "finished": True},
        {"has_repetition": True, "finished": False},
        {"has_repetition": False, "finished": True},
    ]
    assert [(item.prompt_tokens, item.decode_tokens) for item in sequences] == [
        (0, 2),
        (0, 1),
        (0, 3),
    ]


def test_a_table_may_lack_finished_and_be_in_any_order(tmp_path):
    table = [
        {key: value for key, value in entry.items() if key != "finished"}
        for entry in reversed(make_table())
    ]
    sequences = read(write(tmp_path, table=table)).header.sequences
    assert [item.sequence for item in sequences] == [0, 1, 2]
    assert sequences[1].flags == {"has_repetition": True}


def test_need_order_is_the_rank_where_float16_made_weights_equal(tmp_path):
    trace = read(write(tmp_path))
    assert trace.ids[3, 1].tolist() == [6, 2]
    assert Workload(trace, split="all").chosen[0][3, 1].tolist() == [6, 2]
    untied = [row for row in range(6) if row != 3]
    assert np.array_equal(
        trace.weights[untied], make_arrays()["weights"][untied].astype(np.float32)
    )


def test_sequences_with_repetition_can_be_left_out_of_a_run(tmp_path):
    workload = Workload(read(write(tmp_path)), split="all", exclude=["has_repetition"])
    assert [step.sequences for step in workload.steps] == [(0,), (0,), (2,), (2,), (2,)]


def test_a_table_elsewhere_is_read_where_it_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sequences.json").rename(tmp_path / "elsewhere" / "table.json")
    assert main(arguments(tmp_path, sequences=str(tmp_path / "elsewhere" / "table.json"))) == 0


def test_the_same_file_gives_the_same_trace(tmp_path):
    source = write(tmp_path)
    assert (
        main(arguments(tmp_path))
        == main(arguments(tmp_path, output_dir=str(tmp_path / "again")))
        == 0
    )
    first, again = (
        (tmp_path / name / "routes.parquet").read_bytes() for name in ("trace", "again")
    )
    assert first == again
    assert source.path.exists()


def test_importing_needs_no_torch():
    code = "import sys, capture.import_trace; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Arguments


def test_the_published_files_facts_are_the_defaults_for_its_own_model():
    _, source, _ = parse(["format=npz", "path=a/routing.npz", "output_dir=b"])
    facts = npz.published_facts(source.facts)
    assert (facts["model"], facts["experts"], facts["hidden"], facts["expert_intermediate"]) == (
        "gpt-oss-20b",
        "32",
        "2880",
        "2880",
    )
    assert facts["licence"].startswith("Apache-2.0")


def test_each_fact_of_the_published_model_can_be_overridden():
    _, source, _ = parse(
        ["format=npz", "path=p", "output_dir=o", "hidden=10", "experts=64", "licence=none"]
    )
    facts = npz.published_facts(source.facts)
    assert (facts["hidden"], facts["experts"], facts["licence"]) == ("10", "64", "none")


def test_another_model_needs_every_fact_that_no_file_tells():
    with pytest.raises(ImportFailure) as refused:
        parse(["format=npz", "path=p", "output_dir=o", "model=other"])
    assert all(f"{key}=..." in str(refused.value) for key in NEEDED if key != "model")


def test_a_refusal_exits_with_2_and_one_message_and_leaves_nothing(tmp_path, capsys):
    write(tmp_path, table=[])
    assert main(arguments(tmp_path)) == 2
    assert main(["format=npz"]) == 2
    lines = capsys.readouterr().err.strip().split("\n")
    assert len(lines) == 2
    assert lines[0].startswith("import: sequences.json: T of seq 0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["routing.npz", "sequences.json"]


def test_an_output_directory_in_use_is_refused_before_anything_is_read(tmp_path, capsys):
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "mine").touch()
    assert main(arguments(tmp_path)) == 2
    assert "is not empty" in capsys.readouterr().err


# Hostile files


def change(name: str, place: Any, value: Any) -> Callable[[Arrays], None]:
    def apply(arrays: Arrays) -> None:
        arrays[name][place] = value

    return apply


def put(name: str, make: Callable[[np.ndarray], Any]) -> Callable[[Arrays], None]:
    def apply(arrays: Arrays) -> None:
        arrays[name] = make(arrays[name])

    return apply


@pytest.mark.parametrize(
    ("name", "damage", "rule"),
    [
        (
            "weights",
            lambda arrays: arrays.pop("weights"),
            "must hold the arrays experts, weights, pos, seq",
        ),
        (
            "seq",
            lambda arrays: arrays.pop("seq"),
            "found ['experts.npy', 'pos.npy', 'weights.npy']",
        ),
        (
            "experts",
            put("experts", lambda values: values.astype(np.int16)),
            "must be uint8 with 3 dimension(s)",
        ),
        ("experts", put("experts", lambda values: values[0]), "must be uint8 with 3 dimension(s)"),
        ("weights", put("experts", lambda values: values[:0]), "must be [0, 3, 2], as experts"),
        ("weights", put("weights", lambda values: values.astype(np.float32)), "must be float16"),
        ("weights", put("weights", lambda values: values[:, :2]), "must be [6, 3, 2], as experts"),
        ("pos", put("pos", lambda values: values[:4]), "must have 6 values, as experts"),
        ("pos", put("pos", lambda values: values.astype(">i4")), "must be int32"),
        ("seq", put("seq", lambda values: values[:, None]), "must be int32 with 1 dimension(s)"),
        ("seq", put("seq", lambda values: values.astype(object)), "must be int32"),
        ("experts at site 1[4, 0]", change("experts", (4, 1, 0), EXPERTS), "must lie in 0..7"),
        ("experts at site 2[1, 0]", change("experts", (1, 2), 5), "must not repeat in a row"),
        ("weights at site 0[5, 0]", change("weights", (5, 0, 0), np.nan), "must lie in 0..1"),
        ("weights at site 0[5, 1]", change("weights", (5, 0, 1), -0.25), "must lie in 0..1"),
        ("weights at site 0[2, 0]", change("weights", (2, 0, 0), np.inf), "must lie in 0..1"),
        (
            "weights at site 2[0, 0]",
            change("weights", (0, 2), (0.25, 0.75)),
            "must not rise from rank to rank",
        ),
        (
            "sum of weights at site 2[0]",
            change("weights", (0, 2), (0.5, 0.25)),
            "must be 1 within 0.01",
        ),
        ("seq[2]", change("seq", 2, -1), "must be >= 0"),
        ("seq[5]", change("seq", 5, 0), "must not return after another sequence has begun"),
        ("pos[0]", change("pos", 0, -7), "must be >= 0"),
        ("pos[4]", change("pos", 4, 10), "must increase inside a sequence"),
    ],
)
def test_a_wrong_array_is_refused_by_name_and_rule(tmp_path, name, damage, rule):
    arrays = make_arrays()
    damage(arrays)
    with pytest.raises(TraceError) as refused:
        read(write(tmp_path, arrays))
    assert (refused.value.file, refused.value.field) == ("routing.npz", name)
    assert rule in str(refused.value)


def test_empty_arrays_are_refused(tmp_path):
    with pytest.raises(TraceError, match=r"experts is .*must not be empty"):
        read(write(tmp_path, {name: values[:0] for name, values in make_arrays().items()}))


def test_arrays_of_another_shape_are_not_taken_for_the_published_model(tmp_path):
    write(tmp_path)
    source = make_request({"path": str(tmp_path / "routing.npz")})
    with pytest.raises(
        TraceError, match=r"must be \(24, 4\) for gpt-oss-20b; of another model, give model="
    ):
        read(source)


def replace_member(folder: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(folder / "routing.npz", "w") as archive:
        for key, values in make_arrays().items():
            if key == name:
                archive.writestr(f"{key}.npy", content)
            else:
                with archive.open(f"{key}.npy", "w") as stream:
                    np.save(stream, values)


def npy(shape: str, descr: str = "'|u1'") -> bytes:
    """An .npy file that states any shape and holds six bytes."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + b"\0" * 6


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (npy("(1000000, 1000, 4)"), "must be at most 1073741824"),
        (npy("(10**99,)"), "numpy reads without pickle"),
        (npy(f"({10**30}, 3, 2)"), "must be at most 1073741824"),
        (npy("(6, 3, 2)"), "numpy reads without pickle"),
        (npy("(-6, -3, 2)"), "numpy reads without pickle"),
        (npy("(6, 3, 2)", "'|O'"), "must be uint8"),
        (npy("(6, 3, 2)", "__import__('os')"), "numpy reads without pickle"),
        (npy("(6, (3, 2"), "numpy reads without pickle"),
        (npy("(6L, 3, 2)"), "numpy reads without pickle"),
        (b"", "numpy reads without pickle"),
        (b"\x93NUMPY\x03\x00" + b"\0" * 200, "version (3, 0) holds no plain numbers"),
        (b"\x80\x04N.", "numpy reads without pickle"),
    ],
    ids=[
        "bomb",
        "expression",
        "huge",
        "short",
        "negative",
        "object",
        "code",
        "open",
        "python2",
        "empty",
        "version",
        "pickle",
    ],
)
def test_an_array_is_judged_by_its_header_before_it_is_read(tmp_path, content, rule):
    source = write(tmp_path)
    replace_member(tmp_path, "experts", content)
    with pytest.raises(TraceError) as refused:
        read(source)
    assert refused.value.field == "experts"
    assert rule in str(refused.value)


def test_a_pickled_array_is_refused_without_being_loaded(tmp_path):
    source = write(tmp_path)
    stream = io.BytesIO()
    np.save(stream, np.array([print], dtype=object), allow_pickle=True)
    replace_member(tmp_path, "experts", stream.getvalue())
    with pytest.raises(TraceError, match=r"experts is 'object"):
        read(source)


def test_a_file_that_is_no_zip_archive_is_refused(tmp_path):
    source = write(tmp_path)
    source.path.write_bytes(b"no archive")
    with pytest.raises(TraceError, match="numpy reads without pickle"):
        read(source)


def test_every_damaged_byte_is_refused_or_changes_nothing(tmp_path):
    source = write(tmp_path)
    intact, content = read(source), source.path.read_bytes()
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        source.path.write_bytes(bytes(damaged))
        try:
            trace = read(source)
        except (TraceError, ImportFailure):
            continue
        assert np.array_equal(trace.ids, intact.ids)
        assert np.array_equal(trace.weights, intact.weights)


def test_an_absent_file_is_refused_with_the_argument_that_names_it(tmp_path):
    source = write(tmp_path)
    (tmp_path / "sequences.json").unlink()
    with pytest.raises(ImportFailure, match=r"give sequences=FILE\.json"):
        read(source)
    source.path.unlink()
    with pytest.raises(ImportFailure, match=r"path=.*is no file; name an .npz file"):
        read(source)


@pytest.mark.parametrize(
    ("name", "damage", "rule"),
    [
        ("text", lambda table: {"seq": 0}, "must be a list of objects"),
        ("[1]", lambda table: [table[0], 7, table[2]], "must be an object"),
        (
            "[0].seq",
            lambda table: [{**table[0], "seq": True}, *table[1:]],
            "must be a whole number",
        ),
        ("[0].T", lambda table: [{**table[0], "T": "2"}, *table[1:]], "must be a whole number"),
        (
            "[0].dataset",
            lambda table: [{"seq": 0, "T": 2, "has_repetition": False}, *table[1:]],
            "must be printable text",
        ),
        (
            "[2].has_repetition",
            lambda table: [*table[:2], {**table[2], "has_repetition": 1}],
            "must be true or false",
        ),
        (
            "[2].finished",
            lambda table: [*table[:2], {**table[2], "finished": None}],
            "must be true or false",
        ),
        ("[3].seq", lambda table: [*table, table[0]], "must not come twice"),
        ("T of seq 2", lambda table: table[:2], "must be 3, as there are rows"),
        (
            "T of seq 1",
            lambda table: [table[0], {**table[1], "T": 2}, table[2]],
            "must be 1, as there are rows",
        ),
        (
            "T of seq 9",
            lambda table: [*table, {**table[0], "seq": 9}],
            "must be 0, as there are rows",
        ),
    ],
)
def test_a_wrong_table_is_refused_by_name_and_rule(tmp_path, name, damage, rule):
    with pytest.raises(TraceError) as refused:
        read(write(tmp_path, table=damage(make_table())))
    assert (refused.value.file, refused.value.field) == ("sequences.json", name)
    assert rule in str(refused.value)


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "\xff", "9" * 5000])
def test_a_table_that_is_no_json_is_refused(tmp_path, text):
    source = write(tmp_path)
    (tmp_path / "sequences.json").write_text(text, encoding="latin-1")
    with pytest.raises(TraceError, match=r"sequences.json: text is .*must be (JSON|UTF-8)"):
        read(source)
