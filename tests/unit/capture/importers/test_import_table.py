"""Importing this project's own csv and jsonl: one line for each token and site, in any order.

Refusals name the line.
"""

from __future__ import annotations

import codecs
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capture.importers.formats import FORMATS, parse
from capture.importers.parts import NEEDED, make_request
from capture.importers.source import ImportFailure, untracked
from helpers.import_fixtures import FACTS, failure, imported, lacks, make_ids, make_weights, refusal
from sim.traces.trace import CHUNK, DECODE, PREFILL, TraceError

SITES, TOP_K = 3, 2
TOKENS = [
    (0, 0, "prefill", 0),
    (0, 1, "prefill", 0),
    (4, 0, "prefill", 1),
    (0, 2, "decode", 2),
    (4, 1, "chunk", 3),
    (4, 2, "chunk", 3),
    (4, 3, "decode", 4),
]
"""The tokens: sequence, position, phase and step of each."""
IDS, WEIGHTS = make_ids(len(TOKENS), SITES, TOP_K), make_weights(len(TOKENS), SITES, TOP_K)
ALL = ("weights", "step", "token")
Line = dict[str, Any]


def lines(optional: Sequence[str] = ALL) -> list[Line]:
    found = []
    for row, (sequence, position, phase, step) in enumerate(TOKENS):
        for site in range(SITES):
            line: Line = {
                "sequence": sequence,
                "position": position,
                "phase": phase,
                "site": site,
                "experts": IDS[row, site].tolist(),
            }
            extra = {"weights": WEIGHTS[row, site].tolist(), "step": 10 * step, "token": 100 + row}
            found.append(line | {name: extra[name] for name in optional})
    return found


def write(folder: Path, name: str, content: Sequence[Line]) -> Path:
    path = folder / f"routes.{name}"
    if name == "jsonl":
        path.write_text("".join(json.dumps(line) + "\n" for line in content))
        return path
    cells = [
        [
            " ".join(map(repr, cell)) if isinstance(cell, list) else str(cell)
            for cell in line.values()
        ]
        for line in content
    ]
    path.write_text("\n".join(",".join(row) for row in [list(content[0]), *cells]) + "\n")
    return path


both = pytest.mark.parametrize("name", ["csv", "jsonl"])


@both
def test_lines_become_the_choices_that_were_written(tmp_path: Path, name: str) -> None:
    trace = imported(name, write(tmp_path, name, lines()), tmp_path / "trace")
    assert np.array_equal(trace.ids, IDS)
    assert np.allclose(trace.weights, WEIGHTS, rtol=0, atol=1e-6)
    assert trace.sequence.tolist() == [sequence for sequence, *_ in TOKENS]
    assert trace.position.tolist() == [position for _, position, *_ in TOKENS]
    phases = {"prefill": PREFILL, "decode": DECODE, "chunk": CHUNK}
    assert trace.phase.tolist() == [phases[phase] for *_, phase, _ in TOKENS]
    assert trace.step.tolist() == [step for *_, step in TOKENS]
    assert trace.token.tolist() == [100 + row for row in range(len(TOKENS))]
    assert lacks(trace) == {"scores"}


@both
def test_what_is_left_out_is_named_as_lacking(tmp_path: Path, name: str) -> None:
    trace = imported(name, write(tmp_path, name, lines(())), tmp_path / "trace")
    assert np.array_equal(trace.ids, IDS)
    assert not trace.weights.any()
    assert set(trace.token.tolist()) == {-1}
    assert trace.step.tolist() == [0, 0, 1, 2, 3, 3, 4]
    assert lacks(trace) == {"weights", "steps", "tokens", "scores"}


@both
def test_lines_may_come_layer_by_layer(tmp_path: Path, name: str) -> None:
    shuffled = sorted(lines(), key=lambda line: (line["step"], line["site"], line["position"]))
    trace = imported(name, write(tmp_path, name, shuffled), tmp_path / "trace")
    assert np.array_equal(trace.ids, IDS)


@both
def test_steps_give_the_order_wherever_lines_stand(tmp_path: Path, name: str) -> None:
    trace = imported(
        name,
        write(tmp_path, name, sorted(lines(), key=lambda line: -line["step"])),
        tmp_path / "trace",
    )
    assert trace.step.tolist() == sorted(trace.step.tolist())
    found = {
        (s, p): row.tolist()
        for s, p, row in zip(trace.sequence, trace.position, trace.ids, strict=True)
    }
    assert found == {(s, p): IDS[row].tolist() for row, (s, p, *_) in enumerate(TOKENS)}


@both
def test_a_token_may_have_fewer_experts_at_a_site_or_none(tmp_path: Path, name: str) -> None:
    content = lines()
    content[0].update(experts=[5], weights=[0.5])
    content[1].update(experts=[], weights=[])
    trace = imported(name, write(tmp_path, name, content), tmp_path / "trace", top_k="3")
    assert trace.ids[0, :2].tolist() == [[5, -1, -1], [-1, -1, -1]]
    assert trace.weights[0, :2].tolist() == [[0.5, 0, 0], [0, 0, 0]]


def test_columns_of_csv_may_stand_in_any_order_and_the_text_be_that_of_another_system(
    tmp_path: Path,
) -> None:
    content = [dict(reversed(line.items())) for line in lines()]
    path = write(tmp_path, "csv", content)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes().replace(b"\n", b"\r\n"))
    assert np.array_equal(imported("csv", path, tmp_path / "trace").ids, IDS)


def test_the_example_of_the_text_is_read_as_it_stands(tmp_path: Path) -> None:
    from capture.importers import table

    assert table.__doc__ is not None
    blocks = [
        [line.strip() for line in block.splitlines() if line.strip()]
        for block in table.__doc__.split("::\n")[1:]
    ]
    for name, block, number in (("csv", blocks[0], 2), ("jsonl", blocks[1], 1)):
        (tmp_path / f"a.{name}").write_text("\n".join(block[:number]) + "\n")
        trace = imported(name, tmp_path / f"a.{name}", tmp_path / name, experts="32")
        assert (trace.ids.tolist(), trace.weights.tolist()) == ([[[3, 17]]], [[[0.75, 0.25]]])


@pytest.mark.parametrize("key", NEEDED)
@both
def test_what_no_line_tells_has_to_be_given(name: str, key: str) -> None:
    facts = [f"{fact}={text}" for fact, text in FACTS.items() if fact != key]
    with pytest.raises(ImportFailure, match=rf"needs {key}=\.\.\."):
        parse([f"format={name}", "path=p", "output_dir=o", *facts])


# What is wrong


def first_line(name: str) -> int:
    return 2 if name == "csv" else 1


@pytest.mark.parametrize(
    ("change", "field", "rule"),
    [
        ({"sequence": -1}, "sequence", "must be a whole number in 0..2147483647"),
        ({"sequence": "a"}, "sequence", "must be a whole number"),
        ({"position": 1 << 31}, "position", "must be a whole number"),
        ({"phase": "verify"}, "phase", "must be one of prefill, decode, chunk"),
        ({"site": 40000}, "site", "must be a whole number in 0..32766"),
        ({"step": "x"}, "step", "must be a whole number"),
        ({"step": 70}, "step", "must be 0, as in the token's first line"),
        ({"token": 99}, "token", "must be 100, as in the token's first line"),
        ({"phase": "decode"}, "phase", "must be prefill, as in the token's first line"),
        ({"experts": [8, 1]}, "experts", "must be a whole number in 0..7"),
        ({"experts": [-1, 1]}, "experts", "must be a whole number in 0..7"),
        ({"experts": [1, 1]}, "experts", "must not repeat"),
        ({"experts": [1.5, 1]}, "experts", "must be a whole number"),
        ({"weights": [0.5]}, "weights", "must be a list of 2 weights, one for each expert"),
        ({"weights": [0.5, -0.5]}, "weights", "must be a number in 0..1000000"),
        ({"weights": [0.5, "x"]}, "weights", "must be a number in 0..1000000"),
        ({"weights": [0.5, 1e7]}, "weights", "must be a number in 0..1000000"),
    ],
)
@both
def test_a_wrong_value_is_refused_by_line_field_and_rule(
    tmp_path: Path, name: str, change: Line, field: str, rule: str
) -> None:
    content = lines()
    content[1].update(change)
    error = refusal(name, write(tmp_path, name, content))
    assert (error.file, error.field) == (f"routes.{name}", f"line {first_line(name) + 1}, {field}")
    assert rule in str(error)
    way = "give experts= as the model has them; where the file counts them from 1"
    assert str(error).endswith("; correct the file") or (
        change == {"experts": [8, 1]} and way in str(error)
    )


@both
def test_a_site_that_comes_twice_or_is_missing_is_refused(tmp_path: Path, name: str) -> None:
    content = lines()
    error = refusal(name, write(tmp_path, name, [*content, content[4]]))
    begin = first_line(name)
    assert error.field == f"line {begin + len(content)}, site"
    assert f"must not come twice: line {begin + 4} has it" in str(error)
    error = refusal(name, write(tmp_path, name, content[:4] + content[5:]))
    assert error.field == "site 1 of sequence 0, position 1"
    assert "must be there: the file has the sites 0..2; add its line" in str(error)


@both
def test_more_experts_than_top_k_are_refused(tmp_path: Path, name: str) -> None:
    error = refusal(name, write(tmp_path, name, lines()), top_k="1")
    assert (error.field, "must be at most top_k=1" in str(error)) == (
        f"line {first_line(name)}, number of experts",
        True,
    )
    assert "top_k=0" in failure(name, tmp_path, top_k="0")


@both
def test_positions_that_fall_are_refused(tmp_path: Path, name: str) -> None:
    """The check of every trace before it is written refuses them."""
    content = [line for line in lines(("weights",)) if line["sequence"] == 0]
    path = write(tmp_path, name, content[3:6] + content[:3] + content[6:])
    with pytest.raises(AssertionError):
        imported(name, path, tmp_path / "trace")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("text", "place", "rule"),
    [
        ("", "line 1", "must name the columns sequence, position, phase, site, experts"),
        (
            "sequence,position,phase,site\n",
            "line 1",
            "must name the column experts; add it: sequence 0, position 0, phase",
        ),
        (
            "token,experts\n",
            "line 1",
            "must name the columns sequence, position, phase, site; add them: sequence 0, ",
        ),
        (
            "sequence,position,phase,site,experts,gate\n",
            "line 1",
            "must be one of the columns sequence, position",
        ),
        ("sequence,position,phase,site,experts,site\n", "line 1", "must not come twice"),
        ("sequence,position,phase,site,experts\n", "line 2", "must be a token at a site"),
        (
            "sequence,position,phase,site,experts\n0,0,decode,0\n",
            "line 2",
            "must have 5 values, as line 1 has names",
        ),
        ("sequence,position,phase,site,experts\n\n", "line 2", "must have 5 values"),
        (
            "sequence,position,phase,site,experts\n0,0,decode,0,1|2\n",
            "line 2, experts",
            "must be numbers separated by spaces",
        ),
        (
            "sequence,position,phase,site,experts\n0,0,decode,0,1  2\n",
            "line 2, experts",
            "must be a whole number",
        ),
        (
            "sequence,position,phase,site,experts\n0,0,decode,0,²\n",
            "line 2, experts",
            "must be a whole number",
        ),
        (
            "sequence,position,phase,site,experts\n0,0_0,decode,0,1\n",
            "line 2, position",
            "must be a whole number",
        ),
        (
            "sequence,position,phase,site,experts\n" + "9" * 5000 + ",0,decode,0,1\n",
            "line 2, sequence",
            "must be a whole",
        ),
    ],
)
def test_a_wrong_csv_is_refused_by_line_and_rule(
    tmp_path: Path, text: str, place: str, rule: str
) -> None:
    (tmp_path / "a.csv").write_text(text)
    error = refusal("csv", tmp_path / "a.csv")
    assert (error.file, error.field) == ("a.csv", place)
    assert rule in str(error)


GOOD = '{"sequence": 0, "position": 0, "phase": "decode", "site": 0, "experts": [1]}\n'


@pytest.mark.parametrize(
    ("text", "place", "rule"),
    [
        ("", "line 1", "must be an object for a token and a site"),
        ("[]\n", "line 1", "must be an object"),
        ("{}\n", "line 1", "must name the columns sequence"),
        (GOOD + "{", "line 2", "must be JSON"),
        (GOOD + "\n", "line 2", "must be JSON"),
        (GOOD.replace("0,", "NaN,", 1), "line 1", "must be JSON"),
        (GOOD.replace('"phase"', '"site": 1, "phase"'), "line 1", "must be JSON"),
        (GOOD.replace("[1]", "1"), "line 1, experts", "must be a list of at most 1024 ids"),
        (GOOD.replace("[1]", "[true]"), "line 1, experts", "must be a whole number"),
        (GOOD.replace('"decode"', "[]"), "line 1, phase", "must be one of prefill, decode, chunk"),
        (GOOD + GOOD.replace("}", ', "step": 1}'), "line 2", "give them at all lines, or at none"),
        (GOOD.replace('"site": 0', '"site": 0.0'), "line 1, site", "must be a whole number"),
        ("[" * 100_000 + "\n", "line 1", "must be JSON"),
    ],
)
def test_a_wrong_jsonl_is_refused_by_line_and_rule(
    tmp_path: Path, text: str, place: str, rule: str
) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    error = refusal("jsonl", tmp_path / "a.jsonl")
    assert (error.file, error.field) == ("a.jsonl", place)
    assert rule in str(error)


def test_text_that_is_not_utf8_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"sequence,position,phase,site,experts\n0,0,decode,\xff,1\n")
    error = refusal("csv", tmp_path / "a.csv")
    assert (error.field, "must be UTF-8" in str(error)) == ("line 2", True)


@both
def test_every_damaged_byte_is_refused_or_leaves_whole_choices(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, lines()[:6])
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            trace = FORMATS[name].read(make_request({"path": str(path), **FACTS}), untracked).trace
        except (TraceError, ImportFailure):
            continue
        assert -1 <= trace.ids.min() <= trace.ids.max() < 8


@both
def test_tokens_out_of_order_are_refused_by_line_with_the_way_out(
    tmp_path: Path, name: str
) -> None:
    unsorted = lines(("weights",))
    unsorted = unsorted[SITES : 2 * SITES] + unsorted[:SITES] + unsorted[2 * SITES :]
    error = refusal(name, write(tmp_path, name, unsorted))
    first = 2 if name == "csv" else 1
    assert str(error) == (
        f"routes.{name}: line {first + SITES}, position is 0, must be above 1, the position of line"
        f" {first} in the same sequence: tokens run in the order of their lines; sort the lines by"
        " position"
    )


@both
def test_an_order_beside_weights_is_refused_because_it_changes_nothing(
    tmp_path: Path, name: str
) -> None:
    told = failure(name, write(tmp_path, name, lines()), order="rank")
    assert str(told) == "order=rank changes nothing: the weights tell the order; leave it out"


@both
def test_more_experts_a_token_than_there_are_is_refused_by_its_word(
    tmp_path: Path, name: str
) -> None:
    told = failure(name, write(tmp_path, name, lines()), top_k="99", experts="8")
    assert str(told) == "top_k=99 must be at most experts=8"


@both
def test_ids_and_sites_that_count_from_1_are_told_so(tmp_path: Path, name: str) -> None:
    """They were to be restored, though the file was just as its owner wrote it; or a line was to be
    added for a site 0 that no token has."""
    content = [{**line, "experts": [one + 1 for one in line["experts"]]} for line in lines()]
    error = str(refusal(name, write(tmp_path, name, content)))
    assert "experts is 8, must be a whole number in 0..7; give experts= as the model has" in error
    content = [{**line, "site": line["site"] + 1} for line in lines()]
    error = str(refusal(name, write(tmp_path, name, content)))
    assert "lowest site is 1, must be 0" in error
    assert error.endswith("; subtract 1 from every site")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            lambda text: text + "\n",
            "must have 8 values, as line 1 has names; remove the empty line",
        ),
        (lambda text: text.replace(",", ";"), "columns stand between commas, numbers of a list"),
        (lambda text: text.replace("decode,0,", "decode,0,0,"), "correct the file: columns stand"),
    ],
)
def test_a_csv_in_other_signs_is_told_which_are_read(
    tmp_path: Path, changed: Callable[[str], str], told: str
) -> None:
    path = write(tmp_path, "csv", lines())
    path.write_text(changed(path.read_text()))
    assert told in str(refusal("csv", path))


@both
def test_a_packed_file_is_to_be_unpacked(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, lines())
    path.write_bytes(gzip.compress(path.read_bytes()))
    error = str(refusal(name, path))
    assert error.endswith("file is 'packed (gzip)', must be text; unpack it first")


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ('"sequence","position","phase","site","experts"\n', "in lower case, without quotes"),
        ("sequence, position, phase, site, experts\n", "in lower case, without quotes and blanks"),
        ("SEQUENCE,POSITION,PHASE,SITE,EXPERTS\n", "write the names in lower case"),
        (
            "sequence,position,phase,site,experts\r0,0,prefill,0,1 2",
            "end each line with LF or CRLF",
        ),
    ],
)
def test_names_that_are_only_written_otherwise_are_told_how(
    head: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "routes.csv"
    path.write_bytes(head.encode())
    with pytest.raises(TraceError, match=told):
        FORMATS["csv"].read(make_request({"path": str(path), **FACTS}), untracked)
