"""What is said and written of a run, from a summary and in folders that are made by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helpers.bundled import Configure
from helpers.listed import names
from helpers.printed import Heard, plain, rows_of
from sim.results.forecasts import NO_FORECAST, NOT
from sim.results.intervals import OVER
from sim.results.outputs import answer, lost_of, print_summary, served, write_outputs
from sim.setup.build import build
from sim.setup.execute import execute

SURE = {"low_share": 0.0, "skip_share": 0.0, "reroute_share": 0.0}
SUMMARY: dict[str, Any] = {
    "system": "lru [x]",
    "hardware": "h",
    "model": "m",
    "decode_tokens_per_s": 12.34567,
    "ttft_s": {"mean": 0.5, "p50": 9.0, "p95": 0.75},
    "tpot_s": {"mean": 0.0625, "p50": 9.0, "p95": 0.125, "p99": 9.0},
    "hit_ratio": 0.9,
    "makespan_s": 20.0,
    "compute_busy_s": 12.0,
    "stall_s": {"demand": 3.0, "late_prefetch": 5.0, "host": 0.0},
    "slowed_s": {"compute": 0.25, "cpu": 0.0},
    "link_utilisation": {"pcie": 0.375, "nvme": 0.0},
    "ram": {"hit_ratio": 0.7},
    "bounds": {"lower_s": 8.0, "method": "max"},
    "gap": 1.5,
    "load_s": 1.5,
    "storage_bytes": 3 << 29,
    "budget": {
        "resident_share": 0.25,
        "device_bytes": 8,
        "allowed_bytes": 8,
        "slots": {"fp16": 4, "int4": 2},
    },
    "ci95": {
        "decode_tokens_per_s": (10.123456, 15.98765),
        "ttft_s": (0.25, 1.0),
        "tpot_s": None,
        "hit_ratio": (0.8, 0.95),
    },
    "calibration": {"ci95": None},
    "labels": {},
    "overrides": [],
    "quality_proxy": SURE,
    "prediction": {"prompts": None},
    "trace": {"sequences": 4, "findings": None, "expert_bytes": None},
}
LINES = [
    ("decode", "12.35 tok/s", "10.12 .. 15.99"),
    ("time to first token", "0.5 s", "0.25 .. 1"),
    ("  p95 of requests", "0.75 s", ""),
    ("time per output token", "0.0625 s", ""),
    ("  p95 of requests", "0.125 s", ""),
    ("hit ratio (decode)", "0.9", "0.8 .. 0.95"),
    ("makespan", "20 s", ""),
    ("compute busy", "12 s", ""),
    ("stall: demand", "3 s", ""),
    ("stall: late prefetch", "5 s", ""),
    ("slowed: compute", "0.25 s", ""),
    ("link pcie busy", "37.5 %", ""),
    ("link nvme busy", "0 %", ""),
    ("hit ratio (RAM)", "0.7", ""),
    ("proven lower bound", "8 s", ""),
    ("cold start", "1.5 s", ""),
    ("all experts", "1.5 GiB", ""),
]
ANSWER = (
    "With 25% of the expert bytes resident, lru [x] decodes at 12.3 tokens/s (95 % over 4"
    " sequences: 10.1 to 16) on h; it waits 40% of the time, mostly late prefetch; no cache or"
    " schedule of these bytes and precisions can be over 2.50x as fast."
)


def heard(**changed: Any) -> Heard:
    console = Heard()
    print_summary(SUMMARY | changed, console)  # type: ignore[arg-type]
    return console


def test_what_a_cache_leaves_of_its_budget_is_not_called_resident() -> None:
    budget = SUMMARY["budget"] | {"resident_share": 0.5, "device_bytes": 2}
    told = answer(SUMMARY | {"budget": budget})  # type: ignore[arg-type]
    assert told.startswith("With 12% of the expert bytes resident, lru [x] decodes")


def test_a_run_is_one_table_and_one_sentence() -> None:
    found = heard()
    (table,) = found.tables
    assert [column.header for column in table.columns] == ["metric", "value", "95 % interval"]
    assert [tuple(row.values()) for row in rows_of(table)] == LINES
    assert (plain(table.title), plain(table.caption)) == ("lru [x] on h, m", OVER)
    assert found.lines == [ANSWER]


def test_what_a_run_has_not_has_no_row_or_a_dash() -> None:
    nothing = {"mean": None, "p95": None}
    found = heard(
        decode_tokens_per_s=None,
        tpot_s=nothing,
        hit_ratio=None,
        ci95=dict.fromkeys(SUMMARY["ci95"]),
        slowed_s=None,
        ram=None,
        bounds={"lower_s": None, "method": "none"},
        stall_s={"demand": 0.0},
    )
    rows = [tuple(row.values()) for row in rows_of(found.tables[0])]
    assert rows == [
        ("decode", "-", ""),
        ("time to first token", "0.5 s", ""),
        ("  p95 of requests", "0.75 s", ""),
        ("time per output token", "-", ""),
        ("  p95 of requests", "-", ""),
        ("hit ratio (decode)", "-", ""),
        ("makespan", "20 s", ""),
        ("compute busy", "12 s", ""),
        ("link pcie busy", "37.5 %", ""),
        ("link nvme busy", "0 %", ""),
        ("proven lower bound", "-", ""),
        ("cold start", "1.5 s", ""),
        ("all experts", "1.5 GiB", ""),
    ]
    assert not found.tables[0].caption


def test_labels_findings_and_notes_are_said_with_their_brackets() -> None:
    found = heard(
        labels={"synthetic": "SYNTHETIC gates: [t]"},
        overrides=["a=[1]"],
        trace={
            "sequences": 4,
            "findings": ["order: [x] is late", "gaps: 2"],
            "expert_bytes": {"note": "sizes of [y]"},
        },
    )
    said = "SYNTHETIC gates: [t]; with a=[1]"
    assert plain(found.tables[0].caption) == f"{said}. {OVER}"
    assert found.lines == [
        "WARNING: the trace: order: [x] is late",
        "WARNING: the trace: gaps: 2",
        "NOTE: sizes of [y]",
        f"{ANSWER} [{said}]",
    ]
    silent = {"sequences": 4, "findings": [], "expert_bytes": {"note": None}}
    assert heard(trace=silent).lines == [ANSWER]


WITHOUT = {"decode_tokens_per_s": None}
LOSSY = {"lossy": "lossy (experts skipped)", "reference": "a reference"}


@pytest.mark.parametrize(
    ("changed", "old", "new"),
    [
        (
            {"budget": SUMMARY["budget"] | {"resident_share": 1.0, "slots": {"bf16": 1}}},
            "25%",
            "100%",
        ),
        (
            {"budget": SUMMARY["budget"] | {"slots": {"int8": 1, "fp16": 2}}},
            "bytes resident",
            "bytes at int8 resident",
        ),
        ({"ci95": WITHOUT}, " (95 % over 4 sequences: 10.1 to 16)", ""),
        (
            {"ci95": WITHOUT, "decode_tokens_per_s": None},
            "at 12.3 tokens/s (95 % over 4 sequences: 10.1 to 16)",
            "nothing",
        ),
        (
            {"calibration": {"ci95": {"decode_tokens_per_s": (8.765, 20.25)}}},
            " to 16)",
            " to 16; with the machine's error 8.8 to 20)",
        ),
        ({"contracts": {"together": 1}}, "", ""),
        ({"contracts": {"together": 3}}, "over 4", "over the batches of 4"),
        ({"calibration": {"ci95": WITHOUT}}, "", ""),
        (
            {"stall_s": {"demand": 0.0, "host": 0.0}},
            "waits 40% of the time, mostly late prefetch",
            "waits 0% of the time",
        ),
        (
            {"stall_s": {"behind_demand": 9.5, "host": 5.5}},
            "40% of the time, mostly late prefetch",
            "75% of the time, mostly behind demand",
        ),
        ({"labels": LOSSY}, "fast.", "fast; lossy (experts skipped). [a reference]"),
        (
            {"labels": LOSSY, "quality_proxy": SURE | {"skip_share": 0.125}},
            "fast.",
            "fast; lossy (experts skipped): 0% of needs at low precision, 12.5% skipped."
            " [a reference]",
        ),
        ({"prediction": {"prompts": f"{NOT}why"}}, "fast.", f"fast. Prompts were {NOT}why."),
        ({"prediction": {"prompts": "forecast"}}, "", ""),
        (
            {"prediction": {"prompts": f"forecast; 3 of 5 {NO_FORECAST}, as"}},
            "fast.",
            f"fast. Prompts were forecast; 3 of 5 {NO_FORECAST}, as.",
        ),
        ({"prediction": {}}, "", ""),
    ],
)
def test_the_sentence_says_what_the_run_is(changed: dict[str, Any], old: str, new: str) -> None:
    assert old in ANSWER
    assert answer(SUMMARY | changed) == ANSWER.replace(old, new, 1)


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ((0.0, 0.0, 0.0), ""),
        ((None, None, None), ""),
        ((0.25, 0.0, 0.0), "25% of needs at low precision, 0.0% skipped"),
        ((0.0, 0.0625, 0.0), "0% of needs at low precision, 6.2% skipped"),
        (
            (0.0, 0.0, 0.015),
            "0% of needs at low precision, 0.0% skipped, 1.5% served by other experts",
        ),
    ],
)
def test_what_was_lost_is_told_in_shares_of_needs(
    shares: tuple[float | None, ...], told: str
) -> None:
    summary = SUMMARY | {"quality_proxy": dict(zip(SURE, shares, strict=True))}
    assert lost_of(summary) == told
    at = f"at fp16, {told}" if told else "at fp16"
    assert served(summary) == at
    assert served(summary | {"labels": LOSSY}) == f"{at} (lossy)"


# Folders


def test_without_tables_only_the_summary_is_written(tmp_path: Path) -> None:
    write_outputs(tmp_path / "a" / "b", {"seed": 1, "x": [None]}, {}, None, "as_ready", None)
    assert names(tmp_path) == ["a", "a/b", "a/b/summary.json"]
    text = (tmp_path / "a" / "b" / "summary.json").read_text(encoding="utf-8")
    assert text == json.dumps({"seed": 1, "x": [None]}, indent=1) + "\n"
    with pytest.raises(ValueError, match="JSON"):
        write_outputs(tmp_path, {"x": float("nan")}, {}, None, "as_ready", None)
    assert names(tmp_path) == ["a", "a/b", "a/b/summary.json"]


def test_the_table_is_printed_as_wide_as_its_console(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(SUMMARY, Console(width=70))
    assert ANSWER in capsys.readouterr().out.splitlines()


def test_the_summary_comes_last_so_that_a_folder_with_one_is_whole(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    replace = os.replace

    def noted(source: Path, target: Path) -> None:
        moved.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr("sim.results.outputs.os.replace", noted)
    run = build(configure("system=lru", "trace.max_sequences=1"), "lru")
    result = execute(run)
    write_outputs(tmp_path, result.summary, run.config, result.frames, "wait_all", 1)
    assert sorted(moved) == sorted(path.name for path in tmp_path.iterdir())
    assert moved[-1] == "summary.json"
