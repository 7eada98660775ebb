"""Traces: what is written is read back; altered files are refused by file, field and reason."""

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest

from helpers.traces import (
    EXPERTS,
    EXTRA,
    SITES,
    TOP_K,
    a_finding,
    assert_equal,
    edit_header,
    edit_rows,
    make_trace,
    put,
    with_step,
)
from sim.traces.trace import (
    PREFILL,
    Finding,
    TraceError,
    read_trace,
    trace_sha256,
    write_findings,
    write_trace,
)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_trace(tmp_path / "trace", make_trace(step=1 / 16), EXTRA)
    return tmp_path / "trace"


@pytest.mark.parametrize("step", [None, 1 / 16])
def test_round_trip(tmp_path: Path, step: float | None) -> None:
    trace = make_trace(step)
    header = write_trace(tmp_path / "trace", trace, EXTRA)
    back = read_trace(tmp_path / "trace", "all")
    assert back.header == header
    assert header.columns == ("logits", "lookahead", "expert_norms", "active_shares")
    assert set(header.files) == {"routes.parquet", *EXTRA}
    assert_equal(back, replace(trace, header=header))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace"]


def test_fixed_point_rounds_to_the_step(tmp_path: Path) -> None:
    trace = make_trace(step=1 / 4)
    write_trace(tmp_path / "trace", trace)
    back = read_trace(tmp_path / "trace", ["logits", "lookahead"])
    assert back.logits is not None
    assert trace.logits is not None
    np.testing.assert_array_equal(back.logits, np.rint(trace.logits * 4) / 4)
    np.testing.assert_array_equal(back.lookahead["raw"], np.rint(trace.lookahead["raw"] * 4) / 4)


@pytest.mark.parametrize(("step", "dtype"), [(1 / 4096, pl.Int16), (1 / 100, pl.Int8)])
def test_weights_round_to_their_step_and_come_back_as_float32(
    tmp_path: Path, step: float, dtype: Any
) -> None:
    trace = make_trace()
    write_trace(tmp_path / "trace", with_step(trace, weights=step))
    assert pl.read_parquet_schema(tmp_path / "trace" / "routes.parquet")["weights"] == pl.Array(
        dtype, TOP_K
    )
    back = read_trace(tmp_path / "trace")
    assert back.weights.dtype == np.float32
    multiples = np.rint(trace.weights / np.float64(step))
    np.testing.assert_array_equal(back.weights, (multiples * np.float64(step)).astype(np.float32))
    assert np.abs(back.weights - trace.weights).max() <= step / 2 + 1e-7
    np.testing.assert_array_equal(back.ids, trace.ids)


def test_a_trace_is_read_from_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    place = tmp_path / "trace (1), x=[2]*"
    write_trace(place, make_trace())
    np.testing.assert_array_equal(read_trace(place).ids, make_trace().ids)


def test_weights_without_a_step_are_exact(written: Path) -> None:
    assert pl.read_parquet_schema(written / "routes.parquet")["weights"] == pl.Array(
        pl.Float32, TOP_K
    )
    np.testing.assert_array_equal(read_trace(written).weights, make_trace().weights)


@pytest.mark.parametrize("compression", ["zstd", "brotli"])
def test_compression_changes_the_bytes_only(
    tmp_path: Path, compression: Literal["zstd", "brotli"]
) -> None:
    header = write_trace(
        tmp_path / "trace", make_trace(), compression=compression, compression_level=11
    )
    assert_equal(read_trace(tmp_path / "trace", "all"), replace(make_trace(), header=header))


def test_wide_columns_are_read_only_when_asked_for(written: Path) -> None:
    trace = read_trace(written)
    assert (trace.logits, trace.expert_norms, trace.active_shares, dict(trace.lookahead)) == (
        None,
        None,
        None,
        {},
    )
    assert read_trace(written, ["logits"]).logits is not None
    with pytest.raises(ValueError, match="read-only"):
        trace.ids[0, 0, 0] = 0


# Contracts: C90
def test_one_norm_of_the_lookahead_is_read_as_it_is_in_all_of_them(written: Path) -> None:
    both = read_trace(written, ["lookahead"]).lookahead
    assert set(both) == {"raw", "renormed"}
    for norm, scores in both.items():
        (alone,) = read_trace(written, [f"lookahead_{norm}"]).lookahead.items()
        assert alone[0] == norm
        np.testing.assert_array_equal(alone[1], scores)
    with pytest.raises(
        TraceError, match=r"header.json: columns is 'lookahead_scaled', was not recorded"
    ):
        read_trace(written, ["lookahead_scaled"])


def test_a_column_that_was_not_recorded_is_refused(tmp_path: Path) -> None:
    whole = make_trace()
    bare = replace(whole, logits=None, lookahead={}, header=replace(whole.header, lookahead=None))
    write_trace(tmp_path / "trace", bare)
    assert read_trace(tmp_path / "trace", "all").header.columns == ("expert_norms", "active_shares")
    with pytest.raises(TraceError, match=r"header.json: columns is 'lookahead', was not recorded"):
        read_trace(tmp_path / "trace", ["lookahead"])


def test_extra_files_may_be_written_by_a_function(tmp_path: Path) -> None:
    def fill(path: Path) -> None:
        path.write_text("made late")

    header = write_trace(tmp_path / "trace", make_trace(), {"sub/late.txt": fill})
    assert header.files["sub/late.txt"] == hashlib.sha256(b"made late").hexdigest()


def test_trace_sha256_is_over_sorted_lines() -> None:
    header = replace(make_trace().header, files={"b": "1" * 64, "a": "2" * 64})
    assert (
        trace_sha256(header) == hashlib.sha256(f"a {'2' * 64}\nb {'1' * 64}\n".encode()).hexdigest()
    )


# Contracts: C88
def test_what_an_import_was_told_is_part_of_its_identity() -> None:
    header = replace(make_trace().header, source="imported")
    first, *rest = header.sequences
    same = replace(header, created="later", findings=(), provenance={**header.provenance, "x": 1})
    assert trace_sha256(same) == trace_sha256(header)
    told = [
        replace(header, dtype="q8_0"),
        replace(header, model=replace(header.model, name="another")),
        replace(header, provenance={"lacks": "weights"}),
        replace(header, provenance={"lacks": "weights", "order": "rank"}),
        replace(header, sequences=(replace(first, flags={"has_repetition": True}), *rest)),
        replace(header, sequences=(replace(first, split="odd"), *rest)),
    ]
    assert len({*map(trace_sha256, [header, *told])}) == 7
    of_files = replace(header, source="captured")
    assert {trace_sha256(replace(one, source="captured")) for one in told} == {
        trace_sha256(of_files)
    }


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_trace(tmp_path / "trace", make_trace(), {"late": fail})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "trace").mkdir()
    write_trace(tmp_path / "trace", make_trace())
    with pytest.raises(TraceError, match="must be new"):
        write_trace(tmp_path / "trace", make_trace())


@pytest.mark.parametrize("path", ["../out", "/abs", "header.json", "a/../b", "", ".", "a\\b"])
def test_paths_stay_inside(tmp_path: Path, path: str) -> None:
    with pytest.raises(TraceError, match="plain relative path"):
        write_trace(tmp_path / "trace", make_trace(), {path: b""})


# Contracts: C88
@pytest.mark.parametrize("name", ["routes.parquet", "hidden/part.bin", "README.md"])
@pytest.mark.parametrize("harm", ["alter", "truncate", "remove", "link"])
def test_harmed_files_are_refused_by_name(written: Path, name: str, harm: str) -> None:
    place = written / name
    content = place.read_bytes()
    if harm == "alter":
        place.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif harm == "truncate":
        place.write_bytes(content[:-1])
    else:
        place.unlink()
        if harm == "link":
            outside = written.parent / "outside"
            outside.write_bytes(content)
            place.symlink_to(outside)
    with pytest.raises(TraceError) as caught:
        read_trace(written)
    assert caught.value.file == name
    assert caught.value.field == ("sha256" if harm in ("alter", "truncate") else "file")


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda h: h.update(schema=2), "schema"),
        (lambda h: h.update(name=3), "name"),
        (lambda h: h.pop("licence"), "fields"),
        (lambda h: h.update(surprise=1), "fields"),
        (lambda h: h.update(source="guessed"), "source"),
        (lambda h: h["model"].update(sites=2), "sites[].site"),
        (lambda h: h["model"].update(top_k=7), "model.top_k"),
        (lambda h: h["model"].update(top_k=True), "model.top_k"),
        (lambda h: h["model"].update(hidden=1.5), "model.hidden"),
        (lambda h: h["sites"][1].update(rule_match=1.5), "sites[1].rule_match"),
        (lambda h: h["sites"][1].update(rule={"score": "softmax"}), "sites[1].rule"),
        (lambda h: h["sites"][1]["rule"].update(bias=[0.0]), "sites[1].rule"),
        (lambda h: h["sequences"][0].update(split="test"), "sequences[0].split"),
        (lambda h: h["sequences"][0].update(sequence=7), "sequences[].sequence"),
        (lambda h: h["sequences"][0].update(flags={"a": 1}), "sequences[0].flags"),
        (lambda h: h["sequences"][0].update(prompt_tokens=4), "prompt_tokens of sequence 0"),
        (lambda h: h["sequences"][1].update(decode_tokens=3), "decode_tokens of sequence 7"),
        (lambda h: h["lookahead"].update(depth=3), "lookahead_raw"),
        (lambda h: h["lookahead"].update(step=0), "lookahead.step"),
        (lambda h: h["lookahead"].update(norms=["raw", "raw"]), "lookahead.norms"),
        (lambda h: h.update(lookahead=None), "lookahead"),
        (lambda h: h.update(sparsities=[0.9, 0.5]), "sparsities"),
        (lambda h: h.update(steps={"ids": 0.5}), "steps"),
        (lambda h: h["steps"].update(weights=0.5), "weights"),
        (lambda h: h["steps"].update(weights=0), "steps"),
        (lambda h: h["files"].pop("routes.parquet"), "files"),
        (lambda h: h["files"].update({"../../etc/hostname": "0" * 64}), "files"),
        (lambda h: h["files"].update({"README.md": "0" * 63}), "files"),
        (lambda h: h["files"].update({"absent.bin": "0" * 64}), "file"),
        (lambda h: h.update(columns=["weights"]), "columns[0]"),
        (lambda h: h["columns"].append("logits"), "columns"),
        (lambda h: h["columns"].remove("logits"), "columns"),
        (lambda h: h["steps"].pop("logits"), "logits"),
        (lambda h: h.update(findings=3), "findings"),
        (lambda h: h.update(findings=[{"check": "x"}]), "findings[0]"),
        (lambda h: h.update(findings=[a_finding(serious=1)]), "findings[0].serious"),
        (lambda h: h.update(findings=[a_finding(sequences=[8])]), "findings[0].sequences"),
        (lambda h: h.update(findings=[a_finding(), a_finding(sites=[SITES])]), "findings[1].sites"),
        (lambda h: h.update(findings=[a_finding(sites=[True])]), "findings[0].sites"),
    ],
)
def test_headers_are_refused_by_field(
    written: Path, edit: Callable[[dict[str, Any]], object], field: str
) -> None:
    edit_header(written, edit)
    with pytest.raises(TraceError) as caught:
        read_trace(written, columns="all")
    assert caught.value.field == field, str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", "NaN", "[" * 100_000, '{"schema": Infinity}', "\ud800"]
)
def test_texts_that_are_no_header_are_refused(written: Path, text: str) -> None:
    (written / "header.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(TraceError, match=r"header\.json"):
        read_trace(written)


def test_a_header_with_a_key_twice_is_refused(written: Path) -> None:
    text = (written / "header.json").read_text()
    (written / "header.json").write_text(
        text.replace('"licence":', '"licence": "none", "licence":')
    )
    with pytest.raises(TraceError, match="a key comes twice"):
        read_trace(written)


def test_a_column_that_was_not_asked_for_is_checked_for_its_type_too(written: Path) -> None:
    edit_header(written, lambda header: header["steps"].pop("logits"))
    with pytest.raises(TraceError, match=r"logits is .*must be Float32, 6 in a row"):
        read_trace(written)


# Contracts: C89
def test_weights_scaled_by_a_wrong_step_are_refused_by_the_sum_that_their_rule_gives(
    tmp_path: Path,
) -> None:
    write_trace(tmp_path / "trace", with_step(make_trace(), weights=1 / 4096))
    read_trace(tmp_path / "trace")
    edit_header(tmp_path / "trace", lambda header: header["steps"].update(weights=1 / 2048))
    with pytest.raises(
        TraceError, match=r"sum of weights at site 0, row.* must be 1 within"
    ) as caught:
        read_trace(tmp_path / "trace")
    assert caught.value.file == "routes.parquet"


def test_weights_of_a_rule_that_misses_selections_need_not_sum_to_its_scale(tmp_path: Path) -> None:
    trace = make_trace()
    sites = tuple(replace(site, rule_match=0.5) for site in trace.header.sites)
    halved = replace(trace, weights=trace.weights / 2, header=replace(trace.header, sites=sites))
    write_trace(tmp_path / "trace", halved)
    assert read_trace(tmp_path / "trace").weights.sum() == pytest.approx(halved.weights.sum())


def test_a_header_that_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "header.json")
    with pytest.raises(TraceError, match=r"is missing, or is no file"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match=r"cannot be read|is missing"):
        read_trace("a\0b")


@pytest.mark.parametrize(
    ("limit", "field"), [("LARGEST_HEADER_BYTES", "size"), ("LARGEST_ROWS_BYTES", "rows")]
)
def test_what_is_too_large_for_memory_is_refused_before_it_is_read(
    written: Path, limit: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"sim.traces.reading.{limit}", 1000)
    with pytest.raises(TraceError, match="must be at most") as caught:
        read_trace(written)
    assert caught.value.field == field


# Contracts: C88
@pytest.mark.parametrize(
    ("edit", "field", "rule"),
    [
        (put("weights", 0, [math.nan, 0.5]), "weights[0, 0, 0]", "must be finite and >= 0"),
        (put("weights", 0, [math.inf, 0.5]), "weights[0, 0, 0]", "must be finite and >= 0"),
        (put("weights", 13, [0.5, -0.5]), "weights[1, 1, 1]", "must be finite and >= 0"),
        (put("ids", 0, [0, EXPERTS]), "ids[0, 0, 1]", "must lie in -1..5"),
        (put("ids", 0, [-2, 0]), "ids[0, 0, 0]", "must lie in -1..5"),
        (put("ids", 0, [1, 1]), "ids[0, 0, 0]", "must not repeat"),
        (put("ids", 0, [1, -1]), "weights[0, 0, 1]", "must be 0 where the id is -1"),
        (put("ids", 0, [1, None]), "ids", "must hold no null"),
        (put("ids", 0, None), "ids", "must hold no null"),
        (put("step", 0, None), "step", "must hold no null"),
        (put("token", 12, 49), "token", "must have the same token-rows as site 0"),
        (put("site", 0, 1), "site", "must be 0..2 in order with equal counts"),
        (put("expert_norms", 0, [-1.0, 0.0]), "expert_norms[0, 0, 0]", "must be >= 0"),
        (put("active_shares", 8, [40, 0, 0, 0]), "active_shares[8, 0, 0, 0]", "must lie in 0..1"),
        (
            lambda frame: frame.with_columns(more=pl.lit(1)),
            "columns",
            "must be listed in header.json",
        ),
        (lambda frame: frame.head(24), "site", "with equal counts"),
        (lambda frame: frame.tail(-1), "site", "with equal counts"),
        (lambda frame: frame.drop("ids"), "ids", "must be a column"),
        (lambda frame: frame.with_columns(pl.col("step").cast(pl.Int64)), "step", "must be Int32"),
        (
            lambda frame: frame.with_columns(pl.col("ids").cast(pl.Array(pl.Int32, TOP_K))),
            "ids",
            "must be Int16, 2",
        ),
        (
            lambda frame: frame.with_columns(pl.col("ids").cast(pl.List(pl.Int16))),
            "ids",
            "must be Int16, 2",
        ),
        (
            lambda frame: frame.with_columns(ids=pl.col("token").cast(pl.Int16)),
            "ids",
            "must be Int16, 2",
        ),
    ],
)
def test_rows_are_refused_by_field(
    written: Path, edit: Callable[[pl.DataFrame], pl.DataFrame], field: str, rule: str
) -> None:
    edit_rows(written, edit)
    with pytest.raises(TraceError) as caught:
        read_trace(written, columns="all")
    assert caught.value.file in ("routes.parquet", "header.json")
    assert (caught.value.field, rule in caught.value.rule) == (field, True), str(caught.value)


@pytest.mark.parametrize(
    ("name", "row", "value", "field"),
    [
        ("phase", 3, 3, "phase[3]"),
        ("step", 2, 0, "step[2]"),
        ("position", 1, 0, "position[1]"),
        ("position", 10, 5, "position[10]"),
        ("position", 0, -1, "position[0]"),
        ("sequence", 0, 1, "sequence[0]"),
        ("token", 0, -2, "token[0]"),
        ("valid", 0, False, "prompt_tokens of sequence 0"),
        ("phase", 9, PREFILL, "prompt_tokens of sequence 7"),
    ],
)
def test_token_rows_are_checked_before_writing_too(
    tmp_path: Path, name: str, row: int, value: int, field: str
) -> None:
    trace = make_trace()
    column = getattr(trace, name).copy()
    column[row] = value
    with pytest.raises(TraceError) as caught:
        write_trace(tmp_path / "trace", replace(trace, **{name: column}))
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []


def test_lookahead_past_the_last_site_is_refused(tmp_path: Path) -> None:
    trace = make_trace()
    scores = trace.lookahead["raw"].copy()
    scores[9, SITES - 1, 0, 2] = 1.0
    with pytest.raises(TraceError, match="must be NaN past the last site"):
        write_trace(
            tmp_path / "trace", replace(trace, lookahead={**trace.lookahead, "raw": scores})
        )


def test_a_step_too_fine_for_16_bits_is_refused(tmp_path: Path) -> None:
    for trace in (make_trace(step=1e-6), with_step(make_trace(), weights=1e-6)):
        with pytest.raises(TraceError, match="does not fit 16 bits"):
            write_trace(tmp_path / "trace", trace)


@pytest.mark.parametrize(
    ("value", "rule"),
    [([-(1 << 15), 1], "must be finite and >= 0"), ([-1, 1], "must be finite and >= 0")],
)
def test_fixed_point_weights_are_refused_like_others(
    tmp_path: Path, value: list[int], rule: str
) -> None:
    """The lowest integer stands for NaN, which no weight may be."""
    write_trace(tmp_path / "trace", with_step(make_trace(), weights=1 / 4096))
    edit_rows(tmp_path / "trace", put("weights", 0, value))
    with pytest.raises(TraceError) as caught:
        read_trace(tmp_path / "trace")
    assert (caught.value.field, caught.value.rule) == ("weights[0, 0, 0]", rule)


def test_fixed_point_weights_need_their_step(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace", with_step(make_trace(), weights=1 / 4096))
    edit_header(tmp_path / "trace", lambda header: header["steps"].clear())
    with pytest.raises(TraceError, match=r"weights is .*must be Float32, 2 in a row"):
        read_trace(tmp_path / "trace")


# Findings


def test_findings_are_put_into_the_header_and_nothing_else_changes(written: Path) -> None:
    before, text = read_trace(written, "all"), (written / "header.json").read_text()
    assert before.header.findings is None
    assert "findings" not in json.loads(text)
    (written / "header.json").chmod(0o640)
    findings = (
        Finding("padding", True, "much", sequences=(7,)),
        Finding("top_k", False, "low", sites=(0, 2)),
    )
    header = write_findings(written, findings)
    after = read_trace(written, "all")
    assert_equal(after, replace(before, header=replace(before.header, findings=findings)))
    assert header == after.header
    assert trace_sha256(header) == trace_sha256(before.header)
    assert (written / "header.json").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in written.iterdir()) == [
        "README.md",
        "header.json",
        "hidden",
        "routes.parquet",
    ]
    write_findings(written, ())
    assert json.loads((written / "header.json").read_text()) == {**json.loads(text), "findings": []}
    assert read_trace(written).header.findings == ()


def test_findings_about_what_the_trace_has_not_are_refused_and_change_nothing(
    written: Path,
) -> None:
    text = (written / "header.json").read_text()
    with pytest.raises(TraceError, match=r"findings\[0\].sequences"):
        write_findings(written, [Finding("padding", True, "much", sequences=(3,))])
    assert (written / "header.json").read_text() == text
    assert len(list(written.iterdir())) == 4
