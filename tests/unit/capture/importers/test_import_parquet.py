"""Importing routes from parquet as data sets publish them: any names, a row a token and layer or a
row a token, with logits and what the router read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("pyarrow")

from capture.importers import parquet, parquet_wide
from capture.importers.formats import FORMATS
from capture.importers.parts import make_request
from capture.importers.source import ImportFailure, untracked
from helpers.import_fixtures import FACTS, failure, imported, lacks, make_ids, make_weights, refusal
from sim.traces.gate_inputs import read_gate_inputs
from sim.traces.trace import CHUNK, DECODE, PREFILL, TraceError, read_trace
from unit.capture.importers.test_import_table import TOKENS
from unit.capture.importers.test_import_table import lines as table_lines
from unit.capture.importers.test_import_table import write as write_table

LAYERS, TOP_K, EXPERTS, HIDDEN = (3, 4, 7), 2, 8, 16
IDS = make_ids(len(TOKENS), len(LAYERS), TOP_K)
WEIGHTS = make_weights(len(TOKENS), len(LAYERS), TOP_K)
LOGITS = np.random.default_rng(1).normal(size=(len(TOKENS), len(LAYERS), EXPERTS))
INPUTS = np.random.default_rng(2).normal(size=(len(TOKENS), len(LAYERS), HIDDEN))
NAMES = "columns=sequence:prompt_idx,position:tok,layer:layer_idx,experts:top_indices"
LIST = {
    "experts": pl.Int16,
    "weights": pl.Float64,
    "logits": pl.Float32,
    "logit_experts": pl.Int32,
    "input": pl.Float32,
}
"""What the lists of each column hold."""
INTS = ("sequence", "position", "layer", "step", "token")
Line = dict[str, Any]


def lines(**more: np.ndarray) -> list[Line]:
    """A row for each token and layer, with lists of ``more`` [N, S, ..]."""
    return [
        {
            "sequence": sequence,
            "position": position,
            "phase": phase,
            "layer": layer,
            "experts": IDS[row, site].tolist(),
            **{name: values[row, site].tolist() for name, values in more.items()},
        }
        for row, (sequence, position, phase, _) in enumerate(TOKENS)
        for site, layer in enumerate(LAYERS)
    ]


def nested(content: list[Line]) -> list[Line]:
    """The same, as a row for each token with lists by layer."""
    size = len(LAYERS)
    return [
        {
            **content[at],
            **{
                name: [line[name] for line in content[at : at + size]]
                for name in content[at]
                if name == "layer" or name in LIST
            },
        }
        for at in range(0, len(content), size)
    ]


def frame(content: list[Line]) -> pl.DataFrame:
    depth = 1 + isinstance(content[0]["experts"][0], list)
    schema: dict[str, Any] = {}
    for name in content[0]:
        dtype: Any = LIST.get(name, pl.Int64 if name in INTS else pl.String)
        levels = depth if name in LIST else depth - 1 if name == "layer" else 0
        for _ in range(levels):
            dtype = pl.List(dtype)
        schema[name] = dtype
    return pl.DataFrame(content, schema=schema)


def write(folder: Path, content: list[Line], row_groups: int = 4) -> Path:
    frame(content).write_parquet(folder / "routes.parquet", row_group_size=row_groups)
    return folder / "routes.parquet"


forms = pytest.mark.parametrize("form", [list, nested], ids=["a_row_a_layer", "a_row_a_token"])


@forms
def test_rows_become_the_choices_that_were_written(tmp_path: Path, form: Any) -> None:
    path = write(tmp_path, form(lines(weights=WEIGHTS)))
    trace = imported("parquet", path, tmp_path / "trace")
    assert np.array_equal(trace.ids, IDS)
    assert np.allclose(trace.weights, WEIGHTS, rtol=0, atol=1e-6)
    assert trace.sequence.tolist() == [sequence for sequence, *_ in TOKENS]
    assert trace.position.tolist() == [position for _, position, *_ in TOKENS]
    phases = {"prefill": PREFILL, "decode": DECODE, "chunk": CHUNK}
    assert trace.phase.tolist() == [phases[phase] for *_, phase, _ in TOKENS]
    assert [site.layer for site in trace.header.sites] == list(LAYERS)
    assert lacks(trace) == {"steps", "tokens", "scores"}


def test_three_rows_by_hand_give_the_trace_worked_out_by_hand(tmp_path: Path) -> None:
    """One prompt token at layers 3 and 5; layer 5 was written first. Equal logits keep their order."""
    content = [
        {"sequence": 9, "position": 0, "phase": "prefill", "layer": 5, "experts": [2, 6]},
        {"sequence": 9, "position": 0, "phase": "prefill", "layer": 3, "experts": [1, 0]},
    ]
    scores = ([0, 0, 1, 0, 0, 0, 4, 0], [2, 2, 0, 0, 0, 0, 0, 0])
    content = [{**line, "logits": row} for line, row in zip(content, scores, strict=True)]
    trace = imported("parquet", write(tmp_path, content), tmp_path / "trace")
    assert trace.ids.tolist() == [[[1, 0], [6, 2]]]
    logits = read_trace(tmp_path / "trace", ("logits",)).logits
    assert logits is not None
    assert logits.tolist() == [[scores[1], scores[0]]]
    assert lacks(trace) == {"weights", "steps", "decode", "tokens", "scores"}


@forms
@pytest.mark.parametrize("weighted", [True, False])
def test_the_same_routes_as_csv_are_the_same_trace(
    tmp_path: Path, form: Any, weighted: bool
) -> None:
    optional = ("weights", "step", "token") if weighted else ()
    rows = table_lines(optional)
    (tmp_path / "csv").mkdir()
    csv = imported("csv", write_table(tmp_path / "csv", "csv", rows), tmp_path / "a")
    content = [{("layer" if k == "site" else k): v for k, v in row.items()} for row in rows]
    words = {} if weighted else {"order": "rank"}
    found = imported("parquet", write(tmp_path, form(content)), tmp_path / "b", **words)
    for name in ("ids", "weights", "sequence", "position", "phase", "step", "token"):
        assert np.array_equal(getattr(found, name), getattr(csv, name)), name
    assert lacks(found) == lacks(csv)


def test_columns_are_named_and_a_lack_of_them_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, lines())
    renamed = pl.read_parquet(path).rename(
        {
            "sequence": "prompt_idx",
            "position": "tok",
            "layer": "layer_idx",
            "experts": "top_indices",
        }
    )
    renamed.drop("phase").write_parquet(path)
    error = refusal("parquet", path)
    assert f"say {NAMES},phase:NAME (the nearest names" in str(error)
    assert "found layer_idx Int64, prompt_idx Int64, tok Int64, top_indices List(Int16)" in str(
        error
    )
    assert "or say phase=decode" in str(error)
    words = {"columns": NAMES.partition("=")[2], "phase": "decode"}
    trace = imported("parquet", path, tmp_path / "trace", **words)
    assert np.array_equal(trace.ids, IDS)
    assert set(trace.phase.tolist()) == {DECODE}
    assert "experts: top_indices" in str(trace.header.provenance["columns"])


@forms
def test_parts_of_a_folder_follow_each_other_in_the_order_of_their_names(
    tmp_path: Path, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of few rows cross the parts' ends, and the wide columns are read with them."""
    monkeypatch.setattr(parquet, "BLOCK_LINES", 6)
    monkeypatch.setattr(parquet_wide, "BLOCK_VALUES", 100)
    content = form(lines(logits=LOGITS, input=INPUTS))
    (tmp_path / "parts").mkdir()
    for number, begin in enumerate(range(0, len(content), 4)):
        part = frame(content[begin : begin + 4])
        part.write_parquet(tmp_path / "parts" / f"part-{number:03d}.parquet", row_group_size=2)
    path = write(tmp_path, content)
    for place, name in ((path, "one"), (tmp_path / "parts", "all")):
        imported("parquet", place, tmp_path / name)
        trace = read_trace(tmp_path / name, ("logits",))
        assert trace.logits is not None
        assert np.array_equal(trace.logits, LOGITS.astype(np.float32))
        inputs = read_gate_inputs(tmp_path / name, trace, (0, 4)).values
        assert np.array_equal(inputs, INPUTS[[0, 1, 3, 2, 4, 5, 6]].astype(np.float32))
    (tmp_path / "parts" / "part-009.parquet").write_bytes(path.read_bytes())
    error = refusal("parquet", tmp_path / "parts")
    assert error.field == "row 0 of part-009.parquet, layer"
    assert "must not come twice: row 0 of part-000.parquet has it" in str(error)


@forms
def test_what_the_router_read_and_its_logits_come_back(tmp_path: Path, form: Any) -> None:
    path = write(tmp_path, form(lines(logits=LOGITS, input=INPUTS)))
    imported("parquet", path, tmp_path / "trace")
    trace = read_trace(tmp_path / "trace", ("logits",))
    inputs = read_gate_inputs(tmp_path / "trace", trace, (0, 4))
    assert trace.logits is not None
    for row in range(len(TOKENS)):
        for site in range(len(LAYERS)):
            assert np.array_equal(trace.logits[row, site], LOGITS[row, site].astype(np.float32))
            found = inputs.of(np.array([row]), site)
            assert found is not None
            assert np.array_equal(found[0], INPUTS[row, site].astype(np.float32))
    less = imported("parquet", path, tmp_path / "less", logits="no", gate_inputs="no")
    assert not (tmp_path / "less" / "logits.parquet").exists()
    assert not (tmp_path / "less" / "hidden").exists()
    assert "order" in lacks(less)


def top(number: int) -> dict[str, np.ndarray]:
    """The largest logits, with every token's chosen experts among them, and whose they are."""
    order = np.argsort(-LOGITS, -1)[..., :number]
    return {"logits": np.take_along_axis(LOGITS, order, -1), "logit_experts": order}


def chosen_by_logit() -> list[Line]:
    """Rows that choose the two largest logits, the second one first."""
    content = lines(**top(4))
    for line in content:
        line["experts"] = line["logit_experts"][:2][::-1]
    return content


@forms
def test_logits_of_some_experts_tell_ranks_and_weights_and_are_not_kept(
    tmp_path: Path, form: Any
) -> None:
    path = write(tmp_path, form(chosen_by_logit()))
    trace = imported("parquet", path, tmp_path / "trace")
    best = np.argsort(-LOGITS, -1)[..., :2]
    assert np.array_equal(trace.ids, best)
    assert trace.logits is None
    assert "a trace has no place for" in str(trace.header.provenance["logits"])
    assert "weights" in lacks(trace)
    assert "order" not in lacks(trace)
    weighted = imported("parquet", path, tmp_path / "weighted", weights="softmax_topk")
    powers = np.exp(np.take_along_axis(LOGITS, best, -1))
    assert np.array_equal(weighted.ids, best)
    assert np.allclose(weighted.weights, powers / powers.sum(-1, keepdims=True), atol=1e-6)
    assert "as was asked" in str(weighted.header.provenance["weights"])
    assert "weights" not in lacks(weighted)
    unranked = imported("parquet", path, tmp_path / "unranked", order="unknown")
    assert "order" in lacks(unranked)


def test_a_chosen_expert_without_a_logit_is_refused(tmp_path: Path) -> None:
    content = chosen_by_logit()
    content[4]["experts"] = [int(np.argmin(LOGITS[1, 1])), content[4]["experts"][0]]
    error = refusal("parquet", write(tmp_path, content))
    assert error.field == "row 4, logit_experts"
    assert "leave the logits out, logits=no" in str(error)


def test_the_first_sequences_are_taken_wherever_their_rows_stand(tmp_path: Path) -> None:
    """Sequences are texts, and the rows of the second stand between those of the first."""
    content = lines(input=INPUTS)
    for line in content:
        line["sequence"] = "first" if line["sequence"] == 0 else "second"
    path = tmp_path / "routes.parquet"
    pl.DataFrame(content).write_parquet(path)
    trace = imported("parquet", path, tmp_path / "trace", prompts="1")
    mine = [row for row, (sequence, *_) in enumerate(TOKENS) if sequence == 0]
    assert np.array_equal(trace.ids, IDS[mine])
    inputs = read_gate_inputs(tmp_path / "trace", trace, (0,))
    found = inputs.of(np.array([2]), 1)
    assert found is not None
    assert np.array_equal(found[0], INPUTS[mine[2], 1].astype(np.float32))
    whole = imported("parquet", path, tmp_path / "whole")
    assert whole.sequence.tolist() == [int(sequence > 0) for sequence, *_ in TOKENS]


def test_phases_of_other_names_are_mapped(tmp_path: Path) -> None:
    content = lines()
    for line in content:
        line["phase"] = {"prefill": "prompt", "decode": "gen", "chunk": "prompt"}[line["phase"]]
    path = write(tmp_path, content)
    assert "phases=prompt:prefill,gen:decode" in str(refusal("parquet", path))
    given = {"phases": "prompt:prefill,gen:decode"}
    trace = imported("parquet", path, tmp_path / "trace", **given)
    phases = [DECODE if phase == "decode" else PREFILL for *_, phase, _ in TOKENS]
    assert trace.phase.tolist() == phases


@forms
def test_a_token_may_have_fewer_experts_at_a_layer_or_none(tmp_path: Path, form: Any) -> None:
    content = lines(weights=WEIGHTS, logits=LOGITS)
    content[0].update(experts=[5], weights=[0.5])
    content[1].update(experts=[], weights=[])
    trace = imported("parquet", write(tmp_path, form(content)), tmp_path / "trace", top_k="3")
    assert trace.ids[0, :2].tolist() == [[5, -1, -1], [-1, -1, -1]]
    assert trace.weights[0, :2].tolist() == [[0.5, 0, 0], [0, 0, 0]]


# What is wrong


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        ({"sequence": -1}, "row 4, sequence", "must lie in 0..2147483647"),
        ({"position": 1 << 31}, "row 4, position", "must lie in 0..2147483647"),
        ({"position": None}, "row 4, position", "must hold no null"),
        ({"phase": "verify"}, "row 4, phase", "must be one of prefill, decode, chunk"),
        ({"phase": None}, "row 4, phase", "must hold no null"),
        ({"phase": "decode"}, "row 4, phase", "must be prefill, as in the token's first line"),
        ({"layer": 40000}, "row 4, layer", "must lie in 0..32766"),
        ({"layer": 3}, "row 4, layer", "must not come twice: row 3 has it"),
        ({"experts": [8, 1]}, "row 4, experts", "must lie in 0..7"),
        ({"experts": [-1, 1]}, "row 4, experts", "must lie in 0..7"),
        ({"experts": [1, 1]}, "row 4, experts", "must not repeat"),
        ({"experts": None}, "row 4, experts", "must hold no null"),
        ({"experts": [1, None]}, "row 4, experts", "must hold no null"),
        ({"weights": [0.5]}, "row 4, values of weights", "must be as many as experts"),
        ({"weights": [0.5, -0.5]}, "row 4, weights", "must lie in 0..1000000"),
        ({"weights": [0.5, float("nan")]}, "row 4, weights", "must lie in 0..1000000"),
        ({"weights": [0.5, 1e7]}, "row 4, weights", "must lie in 0..1000000"),
        ({"logits": [0.0] * 7}, "row 4, values of logits", "must be 8, as experts="),
        ({"logits": [float("inf")] * 8}, "row 4, logits", "must be finite"),
        ({"input": [0.0] * 15}, "row 4, values of input", "must be 16, as hidden="),
        ({"input": [0.0] * 15 + [None]}, "row 4, input", "must hold no null"),
        ({"input": None}, "row 4, input", "must hold no null"),
    ],
)
def test_a_wrong_value_is_refused_by_row_column_and_rule(
    tmp_path: Path, change: Line, field: str, rule: str
) -> None:
    content = lines(weights=WEIGHTS, logits=LOGITS, input=INPUTS)
    content[4].update(change)
    error = refusal("parquet", write(tmp_path, content))
    assert (error.file, error.field) == ("routes.parquet", field)
    assert rule in str(error)


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        ({"layer": [3, 4]}, "row 1, layers of layer", "must be 3, 1 or more, as in the first row"),
        ({"layer": [3, 4, 4]}, "row 1, layer", "must not come twice"),
        ({"experts": [[1], [2]]}, "row 1, layers of experts", "must be 3"),
        ({"experts": [[1], [2], None]}, "row 1, experts", "must hold no null"),
        ({"weights": [[0.5], [0.5]]}, "row 1, values of weights", "must be as many as experts"),
        ({"logits": [[0.0] * 8] * 2}, "row 1, layers of logits", "must be 3, as experts have"),
        ({"logits": [[0.0] * 8, [], []]}, "row 1, values of logits", "must be 8"),
    ],
)
def test_a_wrong_list_by_layer_is_refused(
    tmp_path: Path, change: Line, field: str, rule: str
) -> None:
    content = nested(lines(weights=WEIGHTS, logits=LOGITS))
    content[1].update(change)
    error = refusal("parquet", write(tmp_path, content))
    assert (error.field, rule in str(error)) == (field, True)


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        ({"logit_experts": [0, 1, 2]}, "row 4, values of logit_experts", "must be 4, as many as"),
        ({"logit_experts": [0, 1, 2, 8]}, "row 4, logit_experts", "must lie in 0..7"),
        ({"logit_experts": [0, 1, 2, 2]}, "row 4, logit_experts", "must not repeat"),
    ],
)
def test_wrong_experts_of_logits_are_refused(
    tmp_path: Path, change: Line, field: str, rule: str
) -> None:
    content = chosen_by_logit()
    content[4].update(change)
    error = refusal("parquet", write(tmp_path, content))
    assert (error.field, rule in str(error)) == (field, True)


def test_a_missing_layer_is_refused(tmp_path: Path) -> None:
    content = lines()
    error = refusal("parquet", write(tmp_path, content[:4] + content[5:]))
    assert error.field == "layer 4 of sequence 0, position 1"
    assert "must be there: the file has the layers 3..7 (3 of them)" in str(error)


def test_a_column_of_another_type_is_refused_with_its_type(tmp_path: Path) -> None:
    path = write(tmp_path, lines())
    whole = pl.read_parquet(path)
    for changed, told in (
        (whole.with_columns(pl.col("experts").list.first()), "must be lists of whole numbers"),
        (whole.with_columns(pl.col("position").cast(pl.Float64)), "must be whole numbers"),
        (whole.with_columns(weights=pl.lit("x")), "must be lists of floats"),
    ):
        changed.write_parquet(path)
        assert told in str(refusal("parquet", path))


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """No reader of parquet looks at the bytes of a text; polars would take them as they are."""
    import pyarrow
    import pyarrow.parquet

    path = write(tmp_path, lines())
    whole = pyarrow.parquet.read_table(path)
    broken = pyarrow.array([b"\xff\xfe"] * len(whole), pyarrow.binary()).view(pyarrow.string())
    whole = whole.set_column(0, "sequence", broken)
    pyarrow.parquet.write_table(whole, path)
    assert refusal("parquet", path).field == "content"


def test_parts_of_different_columns_and_no_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    whole = frame(lines(weights=WEIGHTS))
    whole.write_parquet(tmp_path / "parts" / "a.parquet")
    whole.drop("weights").write_parquet(tmp_path / "parts" / "b.parquet")
    error = refusal("parquet", tmp_path / "parts")
    assert (error.file, error.field) == ("b.parquet", "columns")
    path = tmp_path / "empty.parquet"
    whole.clear().write_parquet(path)
    assert refusal("parquet", path).field == "rows"
    (tmp_path / "none").mkdir()
    assert "has no *.parquet" in failure("parquet", tmp_path / "none")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"columns": "expert:a"}, "none of the roles sequence, position, phase, layer, experts"),
        ({"columns": "experts"}, "must be NAME:VALUE"),
        ({"columns": "experts:a,experts:b"}, "each NAME once"),
        ({"phases": "a:b"}, "phases=b must be one of prefill, decode, chunk"),
        ({"weights": "softmax"}, "must be one of softmax_topk"),
        ({"prompts": "0"}, "prompts=0 must be a whole number"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_read(
    tmp_path: Path, words: dict[str, str], told: str
) -> None:
    assert told in failure("parquet", tmp_path / "absent", **words)


def test_what_a_file_does_not_have_cannot_be_asked_of_it(tmp_path: Path) -> None:
    path = write(tmp_path, lines(weights=WEIGHTS))
    assert "must have logits and no weights" in failure("parquet", path, weights="softmax_topk")
    error = refusal("parquet", path, columns="input:state")
    assert (error.field, "must be a column (found experts" in str(error)) == (
        "columns, input",
        True,
    )


def test_more_than_a_trace_is_held_in_memory_with_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, lines(logits=LOGITS))
    monkeypatch.setattr("capture.importers.parts.LARGEST_VALUES", 100)
    assert "prompts=N, or logits=no" in str(refusal("parquet", path))
    monkeypatch.setattr("capture.importers.parts.LARGEST_CELLS", 20)
    assert "take fewer, prompts=N" in str(refusal("parquet", path))


@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_damaged_byte_is_refused_or_leaves_whole_choices(tmp_path: Path, every: int) -> None:
    """The header of each column's first page states how many values follow: bytes 42 and on."""
    path = write(tmp_path, lines(weights=WEIGHTS)[:6], row_groups=100)
    content = path.read_bytes()
    for place in range(42, len(content), every):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            request = make_request({"path": str(path), **FACTS})
            trace = FORMATS["parquet"].read(request, untracked).trace
        except (TraceError, ImportFailure):
            continue
        assert -1 <= trace.ids.min() <= trace.ids.max() < EXPERTS
    for short in (b"", b"PAR1", content[: len(content) // 2], content[:-1]):
        path.write_bytes(short)
        assert refusal("parquet", path).field == "content"


def test_words_that_would_change_nothing_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, lines(weights=WEIGHTS))
    for word, told in {
        "phase": "phase=decode says what no column tells, and column phase has the phase",
        "order": "order=rank changes nothing: the weights tell the order; leave it out",
        "gate_inputs": "gate_inputs=keep changes nothing: no column is input; leave it out",
        "logits": "logits=no changes nothing: no column is logits; leave it out",
    }.items():
        error = failure("parquet", path, **{word: told.partition("=")[2].split()[0]})
        assert str(error).startswith(told)
    without = [{k: v for k, v in line.items() if k != "phase"} for line in lines()]
    error = failure("parquet", write(tmp_path, without), phase="decode", phases="gen:decode")
    assert "phases=gen:decode maps the values of a column, and none has the phase" in str(error)
