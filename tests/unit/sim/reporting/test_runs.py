"""Runs read back for a report: what is asked of their files, and what tells one from the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from helpers.summaries import summary_of
from sim.reporting import runs
from sim.reporting.runs import ReportedRun, by_work, read_runs
from sim.results.kept import SHAPE

TOKENS = pl.DataFrame(
    {
        "sequence": [3, 3, 3, 5],
        "phase": ["prefill", "decode", "decode", "prefill"],
        "step": [0, 1, 2, 3],
        "start_ns": [0, 10, 30, 70],
        "end_ns": [10, 30, 70, 80],
    }
)
SEQUENCES = pl.DataFrame({"sequence": [3, 5], "arrival_ns": [0, 0], "end_ns": [70, 80]})


def run_in(place: Path, summary: dict[str, Any] | None = None) -> ReportedRun:
    return ReportedRun("a", place, summary or {})


def summary(system: str = "lru", **others: Any) -> dict[str, Any]:
    trace = {"name": others.pop("trace", "t"), "sequences": 2}
    share = others.pop("share", 0.25)
    return summary_of(system=system, trace=trace, budget={"resident_share": share}, **others)


def write(place: Path, content: object) -> Path:
    place.mkdir(parents=True)
    (place / "summary.json").write_text(json.dumps(content), encoding="utf-8")
    return place


def test_the_time_of_each_sequence_in_decode_steps_is_known_from_both_tables_alone(
    tmp_path: Path,
) -> None:
    run = run_in(tmp_path)
    assert run.decode_ns is None
    TOKENS.write_parquet(tmp_path / "tokens.parquet")
    assert run.decode_ns is None
    SEQUENCES.write_parquet(tmp_path / "sequences.parquet")
    assert run.decode_ns is not None
    assert run.decode_ns.tolist() == [20 + 40, 0]
    (tmp_path / "tokens.parquet").unlink()
    assert run.decode_ns is None
    kept = ReportedRun("a", tmp_path, {}, np.array([7.0]))
    assert kept.decode_ns is kept.kept_ns


def test_a_table_that_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokens.parquet").write_bytes(b"no\nparquet")
    with pytest.raises(ValueError, match=r"tokens\.parquet cannot be read \(.*\); run it again$"):
        run_in(tmp_path).table("tokens")


@pytest.mark.parametrize(
    "missing",
    ["transfers.parquet", "decisions.parquet", "lookups.parquet", "config.yaml", "staged", None],
)
def test_what_is_on_the_device_is_known_from_all_files_of_a_run_without_staging(
    missing: str | None, tmp_path: Path
) -> None:
    pl.DataFrame(
        {
            "class": ["demand"],
            "link": ["pcie"],
            "hop": [0],
            "start_ns": [1],
            "end_ns": [2],
            "key": [0],
            "victim": pl.Series([None], dtype=pl.Int64),
            "outcome": pl.Series([None], dtype=pl.String),
        }
    ).write_parquet(tmp_path / "transfers.parquet")
    pl.DataFrame({"kind": ["evict"], "tick": [0], "key": [1]}).write_parquet(
        tmp_path / "decisions.parquet"
    )
    lookups = {"tick": [0], "gate_ns": [1], "step": [0], "site": [0]}
    texts = {"phase": ["decode"], "outcome": ["hit"]}
    pl.DataFrame({**lookups, **texts}).write_parquet(tmp_path / "lookups.parquet")
    (tmp_path / "config.yaml").write_text("model: {sites: 2, experts: 3}\n", encoding="utf-8")
    told = {
        "contracts": {"staging_slots": int(missing == "staged")},
        "link_utilisation": {"pcie": 0.5},
        "budget": {"slot_bytes": {"fp16": 2**30}, "initial_bytes": 2**31},
        "makespan_s": 3e-9,
    }
    if missing is not None and missing != "staged":
        (tmp_path / missing).unlink()
    run = run_in(tmp_path, told)
    found = run.resident_gib()
    assert (found is None) == (missing is not None)
    if found is not None:
        assert [list(one) for one in found] == [[0, 1e-9, 2e-9], [2, 1, 2]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "model: [",
        "model: {sites: 2}",
        "model: {sites: x, experts: 3}",
        "model: {sites: 2, experts: 3}\nworkload: 5",
        "model: {sites: 2, experts: 3}\nhardware: .nan",
    ],
)
def test_a_configuration_that_was_changed_is_told_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.yaml is no configuration of a run") as refused:
        _ = run_in(tmp_path).config
    assert "\n" not in str(refused.value)


def test_tokens_of_a_sequence_that_is_not_there_are_told(tmp_path: Path) -> None:
    TOKENS.write_parquet(tmp_path / "tokens.parquet")
    SEQUENCES.head(1).write_parquet(tmp_path / "sequences.parquet")
    with pytest.raises(ValueError, match=r"sequences\.parquet lacks sequence "):
        _ = run_in(tmp_path).decode_ns


@pytest.mark.parametrize("key", SHAPE)
def test_every_key_that_a_report_reads_is_asked_for(key: str, tmp_path: Path) -> None:
    content = summary()
    del content[key]
    with pytest.raises(ValueError, match=rf"summary\.json lacks {key}.*: it was changed"):
        read_runs([write(tmp_path / "run", content)])


def test_a_file_that_holds_no_summary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no summary of a run: it is no JSON object"):
        read_runs([write(tmp_path / "list", [])])
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"cut/summary\.json cannot be read \(.*\); run it again"):
        read_runs([tmp_path / "cut"])


def test_folders_below_stand_in_the_order_of_their_numbers_and_those_before_names(
    tmp_path: Path,
) -> None:
    for name in ("10", "b", "2", "a"):
        write(tmp_path / name, summary(name))
    assert [run.label for run in read_runs([tmp_path])] == ["2", "10", "a", "b"]


def test_a_studys_runs_are_its_rows_and_what_lies_below_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four rows one was refused, and one is of the first one's words, before a policy was edited.
    Files of both are there, too, and are not read again.
    """
    rows = [
        {
            "key": key,
            "status": status,
            "decode_ns": times,
            "summary": json.dumps(summary(key)),
            "overrides": f"system={key[:2]}",
        }
        for key, status, times in (
            ("k1 before", "done", [5, 6]),
            ("k1", "done", [5, 7]),
            ("k2", "refused", [1]),
            ("k3", "done", []),
        )
    ]
    monkeypatch.setattr(runs, "read_cells", lambda place: pl.DataFrame(rows))
    for name in ("k1", "k1 before", "other"):
        write(tmp_path / "runs" / name, summary(f"file of {name}"))
    found = [
        (run.label, run.directory, None if run.kept_ns is None else run.kept_ns.tolist())
        for run in read_runs([tmp_path])
    ]
    assert found == [
        ("file of other", tmp_path / "runs" / "other", None),
        ("k1", tmp_path / "runs" / "k1", [5.0, 7.0]),
        ("k3", tmp_path / "runs" / "k3", None),
    ]
    single = write(tmp_path / "one", summary("one"))
    write(single / "below", summary("below"))
    assert [run.label for run in read_runs([single])] == ["one"], "a run's own folder is one run"


def test_a_run_that_is_named_twice_is_refused_however_it_is_spelt(tmp_path: Path) -> None:
    one = write(tmp_path / "all" / "one", summary("one"))
    for again in (one, one / ".." / "one", tmp_path / "all"):
        with pytest.raises(ValueError, match=r"one is named twice, by itself or by a folder above"):
            read_runs([one, again])


def test_a_folder_without_runs_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        read_runs([tmp_path])
    assert str(refused.value) == (
        f"{tmp_path} holds no run: no summary.json in it or below, and no cells of a study; name"
        " what moelab run, sweep or study wrote"
    )


@pytest.mark.parametrize(
    ("other", "label"),
    [
        ({"hardware": "g"}, "lru g"),
        ({"model": "n"}, "lru n"),
        ({"trace": "u"}, "lru u"),
        ({"share": 0.5}, "lru 0.5"),
        ({"hardware": "g", "share": 0.125}, "lru g 0.125"),
        ({"system": "lfu"}, "lfu"),
        ({}, "lru #2"),
    ],
)
def test_a_label_has_what_tells_runs_apart_and_else_a_number(
    other: dict[str, Any], label: str
) -> None:
    first, second = runs._labels([summary(), summary(**other)])
    assert second == label
    assert (first == "lru #1") == (not other)


def test_runs_of_the_same_work_stand_together_in_order() -> None:
    found = [
        ReportedRun(name, Path("x"), summary(name, trace=trace))
        for name, trace in (("a", "t"), ("b", "u"), ("c", "t"))
    ]
    assert [[run.label for run in group] for group in by_work(found)] == [["a", "c"], ["b"]]
