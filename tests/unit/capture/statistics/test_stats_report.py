"""Statistics of real traces, and the command that shows them beside published values."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from capture.statistics import figures as stats_figures
from capture.statistics.gating_report import report as gating_report
from capture.statistics.published import PAPERS, PUBLISHED
from capture.statistics.report import STATISTICS, headlines, merged, report
from capture.statistics.reuse import (
    gini,
)
from capture.statistics.sample import Unavailable, take
from capture.stats import main, parse, read_named, summary_table
from helpers.brute_stats import at
from sim.traces.routing import RoutingRule
from sim.traces.synthesis import synthesize
from sim.traces.trace import (
    DECODE,
    ModelShape,
    Trace,
    TraceError,
    read_trace,
    write_trace,
)
from sim.values.places import ROOT

BUNDLED = ROOT / "capture" / "assets" / "traces" / "tiny_mixtral"
SHARED = ROOT / ".." / "shared" / "traces"
NPZ, OWN = (
    SHARED / "gpt_oss_20b" / "gptoss20b_decode_routing.npz",
    SHARED / "stats" / "gptoss20b_decode_norep.json",
)

# The bundled trace, which holds what only a real capture does


@pytest.fixture(scope="module")
def bundled() -> Trace:
    return read_trace(BUNDLED, "all")


def test_cosines_of_the_bundled_trace_are_those_of_its_kept_inputs(bundled: Trace) -> None:
    table = report(bundled, BUNDLED, only=["input_cosine"]).tables["input_cosine"]
    safetensors = pytest.importorskip("safetensors.numpy")
    kept = [safetensors.load_file(path) for path in sorted((BUNDLED / "hidden").iterdir())]
    for site, distance in ((0, 1), (7, 2), (12, 3)):
        cosines = []
        for tensors in kept:
            for inputs in tensors["gate_in"].astype(int).tolist():
                one, other = inputs[site], inputs[site + distance]
                dot = sum(a * b for a, b in zip(one, other, strict=True))
                cosines.append(dot / math.hypot(*one) / math.hypot(*other))
        row = at(table, site=site, distance=distance)
        assert row["rows"] == len(cosines)
        assert row["value"] == pytest.approx(sum(cosines) / len(cosines), abs=1e-5)
    assert len(table) == 15 + 14 + 13


def test_activations_of_the_bundled_trace_are_as_sparse_as_they_were_fitted(bundled: Trace) -> None:
    table = report(bundled, BUNDLED, only=["up_concentration"]).tables["up_concentration"]
    thresholds = pytest.importorskip("safetensors.numpy").load_file(
        BUNDLED / "thresholds.safetensors"
    )["thresholds"]
    for row in table.iter_rows(named=True):
        place = [0.5, 0.8, 0.9].index(row["sparsity"])
        mine = thresholds[row["site"]].astype(float)
        assert row["value"] == pytest.approx(mine[:, place].mean() / mine[:, 2].mean())
        assert row["active"] == pytest.approx(1 - row["sparsity"], abs=0.02)
        assert row["low"] <= row["active"] <= row["high"]
    # In a normal distribution |x| is below 0.6745 sd in half of the cases, below 1.6449 sd in 90 %.
    assert table.filter(sparsity=0.5)["gaussian"][0] == pytest.approx(0.6745 / 1.6449, abs=1e-4)


@pytest.mark.thorough
def test_what_a_trace_cannot_serve_says_why(bundled: Trace) -> None:
    bare = replace(
        bundled,
        logits=None,
        lookahead={},
        expert_norms=None,
        active_shares=None,
        header=replace(bundled.header, lookahead=None, sparsities=(), files={}),
    )
    of = report(bare, BUNDLED)
    assert set(of.missing) == {
        "input_cosine",
        "lookahead_recall",
        "router_entropy",
        "weight_norms",
        "up_concentration",
    }
    assert of.missing["router_entropy"] == "logits were not recorded"
    assert set(of.tables) | set(of.missing) == set(STATISTICS)
    prompts = report(
        bundled, BUNDLED, phase="prompt", only=["lookahead_recall", "weight_norms", "least_popular"]
    )
    assert set(prompts.missing) == {"lookahead_recall", "weight_norms"}
    assert "recorded for decoded rows" in prompts.missing["lookahead_recall"]
    assert prompts.tokens == 3094
    with pytest.raises(
        Unavailable, match="no decode rows of the 0 sequences left by exclude=has_repetition"
    ):
        report(_flagged(bundled), exclude=["has_repetition"])


def _flagged(trace: Trace) -> Trace:
    sequences = tuple(
        replace(item, flags={"has_repetition": True}) for item in trace.header.sequences
    )
    return replace(trace, header=replace(trace.header, sequences=sequences))


def test_every_published_number_has_its_measure_and_its_paper(bundled: Trace) -> None:
    """Its measure is in one of three reports.

    They are of a model at work, of a trace, and of a trace recorded at another position.
    """
    from unit.capture.statistics.test_gating_stats import random_gating

    ahead = bundled.header.lookahead
    assert ahead is not None
    rows = headlines(report(bundled, BUNDLED))
    assert len({row.measure for row in rows}) == len(rows)
    measures = {row.name for row in gating_report(random_gating())} | {row.measure for row in rows}
    for position in ("attn_in", "next_attn_in"):
        header = replace(bundled.header, lookahead=replace(ahead, position=position))
        measures |= {
            row.measure
            for row in headlines(report(replace(bundled, header=header), only=["lookahead_recall"]))
        }
    assert set(PUBLISHED) <= measures
    assert {published.paper for published in PUBLISHED.values()} == set(PAPERS)


@pytest.mark.thorough
def test_traces_stand_side_by_side_in_tables_files_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(
        tmp_path / "other",
        synthesize(ModelShape("other", "none", 5, 9, 2, 8, 8), tokens=30, sequences=3),
    )
    output = tmp_path / "output"
    assert main([str(BUNDLED), str(tmp_path / "other"), f"output_dir={output}"]) == 0
    figures = {f"{name}.{kind}" for name in stats_figures.FIGURES for kind in ("png", "svg")}
    assert {path.name for path in output.iterdir()} == figures | {
        "missing.json",
        "summary.parquet",
        *(f"{name}.parquet" for name in STATISTICS),
    }
    heads = {"png": b"\x89PNG", "svg": b"<?xml"}
    for name in figures:
        assert (output / name).read_bytes().startswith(heads[name.rpartition(".")[2]]), name
    summary = pl.read_parquet(output / "summary.parquet")
    expected = headlines(report(read_trace(BUNDLED, "all"), BUNDLED))
    mine = summary.filter(trace="tiny_mixtral")
    assert sorted(zip(mine["measure"], mine["value"], strict=True)) == sorted(
        (r.measure, r.value) for r in expected
    )
    assert at(summary, trace="tiny_mixtral", measure="p1(+1)")["source"] == "HOBBIT, fig. 7b"
    assert set(pl.read_parquet(output / "unions.parquet")["trace"]) == {"tiny_mixtral", "other"}
    assert set(json.loads((output / "missing.json").read_text())["other"]) == {
        "input_cosine",
        "least_popular",
        "weight_norms",
        "up_concentration",
    }
    out = capsys.readouterr().out
    assert "other: no weight_norms: expert_norms were not recorded" in out
    assert "HOBBIT: Tang et al." in out


def test_an_older_answer_is_replaced_where_one_says_so_and_kept_where_the_new_one_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ModelShape("x", "none", 2, 4, 1, 8, 8)
    write_trace(tmp_path / "trace", synthesize(shape, tokens=5, sequences=1))
    output = tmp_path / "output"
    output.mkdir()
    (output / "old.txt").write_text("old")
    words = [str(tmp_path / "trace"), "only=popularity", f"output_dir={output}"]
    assert main(words) == 2
    assert "choose another one, or add overwrite=yes" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere"), *words[1:], "overwrite=yes"]) == 2
    assert [path.name for path in output.iterdir()] == ["old.txt"]
    assert main([*words, "overwrite=yes"]) == 0
    assert (output / "summary.parquet").is_file()
    assert not (output / "old.txt").exists()


def test_two_traces_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_trace(
            tmp_path / folder,
            synthesize(ModelShape("x", "none", 2, 4, 1, 8, 8), tokens=5, sequences=1),
        )
    named = read_named([tmp_path / "a", tmp_path / "b"])
    assert list(named) == [f"x ({tmp_path / 'a'})", f"x ({tmp_path / 'b'})"]
    reports = {name: report(trace, only=["popularity"]) for name, (trace, _) in named.items()}
    assert summary_table(reports, merged(reports)["summary"]).row_count == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "missing TRACE..."),
        (["a", "only=popularity,fame"], "only=fame is unknown"),
        (["a", "output_dir=/"], "output_dir=/ is not empty"),
        (["/nowhere"], "header.json"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_arguments_are_read() -> None:
    assert parse(["./a=b", "seed=1"]).traces == (Path("./a=b"),)
    read = parse(["a", "b", "exclude=x,y", "only=paths", "seed=4", "phase=all"])
    assert (read.traces, read.exclude, read.only, read.seed) == (
        (Path("a"), Path("b")),
        ("x", "y"),
        ("paths",),
        4,
    )


# Real traces: third-party data that is not part of the project


@pytest.mark.thorough
@pytest.mark.skipif(
    not (NPZ.exists() and OWN.exists()), reason="the published gpt-oss trace is not here"
)
def test_the_published_gpt_oss_trace_has_the_statistics_that_another_program_found(
    gpt_oss: Path,
) -> None:
    """The other program shares no line with this one.

    It computed them from the same file, without its flagged sequences.
    """
    known = json.loads(OWN.read_text())
    only = ["popularity", "reuse_by_lag"]
    of = report(read_trace(gpt_oss), only=only, exclude=["has_repetition"])
    assert of.tokens == known["N"]
    shares = [part["share"].to_numpy() for part in of.tables["popularity"].partition_by("site")]
    assert [share.max() * 32 for share in shares] == pytest.approx(known["max_over_mean"], abs=6e-4)
    assert [gini(share) for share in shares] == pytest.approx(known["gini"], abs=6e-5)
    for lag in ("1", "2", "4", "8"):
        rows = of.tables["reuse_by_lag"].filter(lag=int(lag)).sort("site")
        assert rows["value"].to_list() == pytest.approx(known["reuse_lag"][lag], abs=6e-5)
        assert rows["popularity_alone"].to_list() == pytest.approx(
            known["reuse_iid_global"], abs=6e-5
        )


def test_a_trace_that_is_given_twice_is_refused_however_it_is_spelt(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for second in (tmp_path, tmp_path / "x" / "..", tmp_path / "link"):
        with pytest.raises(ValueError, match=r" is given twice; name each trace once$"):
            parse([str(tmp_path), str(second)])


# What a recording left out


def recorded_without(lacks: str, order: str = "unknown") -> Trace:
    """A trace whose recording lacks these; each token's experts stand by falling id."""
    made = synthesize(
        ModelShape("m", "none", 4, 8, 2, 8, 8), tokens=12, prompt_tokens=4, sequences=4
    )
    header = replace(made.header, provenance={"lacks": lacks, "order": order})
    return replace(
        made,
        header=header,
        ids=-np.sort(-made.ids, axis=-1),
        weights=np.zeros_like(made.weights) if "weights" in lacks else made.weights,
    )


@pytest.mark.parametrize(
    ("lacks", "missing"),
    [
        ("weights", {"score_shares"}),
        ("weights, order", {"score_shares", "paths", "prior_coverage"}),
        ("sequences", {"reuse_by_lag", "reuse_distance", "unions", "least_popular"}),
        (
            "rows",
            {
                "score_shares",
                "paths",
                "prior_coverage",
                "reuse_by_lag",
                "reuse_distance",
                "unions",
            },
        ),
    ],
)
def test_a_statistic_of_what_the_recording_left_out_is_missing(
    lacks: str, missing: set[str]
) -> None:
    """C92: weights of 0 have no shares, and the lowest id is no first choice."""
    whole = report(recorded_without(""))
    found = report(recorded_without(lacks))
    assert set(whole.tables) - set(found.tables) == missing
    assert "the recording does not tell " in found.missing[min(missing)]


def test_without_weights_the_first_choice_is_the_first_that_stands_there() -> None:
    trace = recorded_without("weights", order="rank")
    ids = trace.ids.copy()
    ids[trace.phase == DECODE, 1, 0] = -1
    sample = take(replace(trace, ids=ids))
    assert (sample.top[:, 0] == sample.ids[:, 0, 0]).all()
    assert (sample.top[:, 1] == sample.ids[:, 1, 1]).all()


def test_null_experts_count_in_no_popularity_and_no_chance() -> None:
    """C97: they are never among the selections, so what is even is even over the others."""
    made = synthesize(ModelShape("m", "none", 3, 12, 2, 8, 8), tokens=40, sequences=2)
    sites = tuple(replace(site, rule=RoutingRule(null_experts=4)) for site in made.header.sites)
    every = np.arange(80 * 3 * 2).reshape(80, 3, 2) % 8
    trace = replace(
        made, header=replace(made.header, sites=sites), ids=every.astype(np.int16), lookahead={}
    )
    found = {row.measure: row for row in headlines(report(trace, phase="all"))}
    assert found["Gini of popularity"].value == pytest.approx(0, abs=0.03)
    assert found["most popular expert over the mean"].value == pytest.approx(1, abs=0.1)
    assert found["experts reused at lag 1"].chance == pytest.approx(2 / 8)
    assert found["experts needed by 16 consecutive tokens"].chance == pytest.approx(
        8 * (1 - (1 - 2 / 8) ** 16)
    )
    entropy = found["entropy of the router, share of log2 E"].value
    assert made.logits is not None
    shares = np.exp(made.logits.astype(float))
    shares /= shares.sum(-1, keepdims=True)
    assert entropy == pytest.approx(-(shares * np.log2(shares)).sum(-1).mean() / np.log2(12))


# Gate inputs


def test_cosines_are_of_the_rows_that_are_asked_for_and_of_sites_that_they_visit(
    tmp_path: Path,
) -> None:
    """Site 0 is not visited, as an encoder's by decoded rows; sequence 1 is excluded."""
    safetensors = pytest.importorskip("safetensors.numpy")
    made = synthesize(
        ModelShape("m", "none", 3, 4, 2, 2, 8), tokens=2, prompt_tokens=1, sequences=2, lookahead=1
    )
    one, other = made.header.sequences
    header = replace(made.header, sequences=(one, replace(other, flags={"loops": True})))
    codes = np.array([[[9, 9], [1, 0], [0, 1]], [[9, 9], [1, 0], [3, 4]]], np.int8)
    scale = np.array([[np.nan, 1, 2], [np.nan, 1, 2]], np.float32)
    files = {
        f"hidden/sequence_{number:03d}.safetensors": safetensors.save(
            {"gate_in": codes if number == 0 else -codes[::-1], "scale": scale, "position": at}
        )
        for number, at in ((0, np.array([0, 1], np.int32)), (1, np.array([1, 2], np.int32)))
    }
    write_trace(tmp_path / "t", replace(made, header=header), files)
    trace = read_trace(tmp_path / "t", "all")

    def cosine(phase: str) -> pl.DataFrame:
        only = ["input_cosine"]
        found = report(trace, tmp_path / "t", phase=phase, exclude=["loops"], only=only)
        return found.tables["input_cosine"]

    assert cosine("all").select("site", "distance", "rows", "value").rows() == [
        (1, 1, 2, pytest.approx(0.3))
    ]
    assert cosine("decode").select("site", "rows", "value").rows() == [(1, 1, pytest.approx(0.6))]
    assert cosine("prompt").select("site", "rows", "value").rows() == [(1, 1, pytest.approx(0))]


def test_thresholds_of_other_shapes_are_refused_by_name(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    made = synthesize(ModelShape("m", "none", 3, 4, 2, 2, 8), tokens=4)
    shares = np.full((4, 3, 2, 1), 0.5, np.float32)
    whole = replace(
        made, header=replace(made.header, sparsities=(0.5,)), active_shares=shares, lookahead={}
    )
    whole = replace(whole, header=replace(whole.header, lookahead=None))
    for name, tensor in (("thresholds", np.ones((3, 2, 1), np.float32)), ("other", np.ones(1))):
        place = tmp_path / name
        write_trace(place, whole, {"thresholds.safetensors": safetensors.save({name: tensor})})
        with pytest.raises(TraceError, match=r"thresholds.*must be \[3, 4, 1\]"):
            report(read_trace(place, "all"), place, only=["up_concentration"])


def test_positions_with_gaps_have_popularity_alone_and_no_reuse_at_lag_1() -> None:
    made = synthesize(ModelShape("m", "none", 2, 8, 2, 8, 8), tokens=12, sequences=2)
    found = report(replace(made, position=2 * made.position), only=["reuse_by_lag"])
    measures = {row.measure: row for row in headlines(found)}
    assert set(measures) == {"experts reused at lag 8", "experts reused, by popularity alone"}
    whole = {row.measure: row for row in headlines(report(made, only=["reuse_by_lag"]))}
    name = "experts reused, by popularity alone"
    assert measures[name] == whole[name]
