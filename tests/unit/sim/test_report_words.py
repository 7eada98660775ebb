"""The words of a report's page by hand: its head, what its figures are of, warnings and the table."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim import report
from sim.report import STYLE, main, make_report
from sim.reporting.runs import ReportedRun


def run(label: str, speed: float = 4.0, **others: Any) -> ReportedRun:
    trace = {"name": "t", "split": "eval", "sequences": 1} | others.pop("trace", {})
    summary: dict[str, Any] = {
        "hardware": "h",
        "model": "m",
        "trace": trace,
        "workload": "w",
        "overrides": [],
        "labels": {},
        "budget": {"resident_share": 0.25, "slots": {"fp16": 2, "int4": 1}},
        "decode_tokens_per_s": speed,
        "ttft_s": {"mean": 0.5},
        "tpot_s": {"mean": 0.0123456},
        "hit_ratio": None,
        "quality_proxy": {"low_share": None, "skip_share": 0.0},
        "makespan_s": 12.0,
        "gap": 0.5,
    }
    return ReportedRun(label, Path("nowhere"), summary | others)


@pytest.mark.parametrize("count", [1, 2])
def test_a_page_has_a_chapter_for_each_kind_of_work_and_tells_how_many_runs(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run("a"), run("b")][:count]
    told = lambda mine, place, suffix, others: f"[{mine[0].label}{suffix} {others}]"  # noqa: E731
    monkeypatch.setattr(report, "_chapter", told)
    monkeypatch.setattr(report, "by_work", lambda runs: [[one] for one in runs])
    place = make_report(runs, tmp_path / "new" / "folder")
    assert place == tmp_path / "new" / "folder" / "report.html"
    assert place.read_text(encoding="utf-8") == (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>MoE offload lab:"
        " report</title><link rel='icon' href='data:,'><style>"
        + STYLE
        + "</style></head><body>"
        + ("<h1>1 run</h1>[a False]" if count == 1 else "<h1>2 runs</h1>[a True][b_2 True]")
        + "</body></html>\n"
    )


def test_what_figures_are_of_is_told_in_one_line_of_all_runs() -> None:
    other = run(
        "b", hardware="g", trace={"split": "fit", "sequences": 3}, budget={"resident_share": 1 / 3}
    )
    assert report._configuration([run("a")]) == (
        "h · m · trace t (eval) · resident 0.25 · w, 1 sequence"
    )
    assert report._configuration([run("a"), other, run("c", hardware="")]) == (
        ", g, h · m · trace t (eval), trace t (fit) · resident 0.25, 0.3333 · w, 1 sequence,"
        " w, 3 sequences"
    )
    assert report._configuration([run("a", hardware="")]).startswith("m · trace")


def test_warnings_are_labels_then_findings_then_notes_each_in_order() -> None:
    runs = [
        run("b", trace={"findings": ["x<y", "a"], "expert_bytes": {"note": "z"}}),
        run("a", trace={"findings": ["w"], "expert_bytes": {"note": "v"}}),
        run("c", trace={"findings": None, "expert_bytes": {"note": ""}}, labels={"lossy": "lossy"}),
    ]
    assert re.findall(r"<p class='warning'>(.*?)</p>", report._labels(runs)) == [
        "c: lossy",
        "a: w",
        "b: a",
        "b: x&lt;y",
        "a: v",
        "b: z",
    ]
    assert report._labels([run("a")]) == ""


def test_runs_on_machines_of_other_figures_have_an_answer_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slower link makes another machine: no system is slower for it."""
    monkeypatch.setattr(report, "FIGURES", {})
    of: dict[str, Any] = {
        "contracts": {},
        "budget": {"resident_share": 0.25, "allowed_bytes": 2**30, "slots": {"fp16": 2}},
    }
    slow = ["hardware.links.pcie.peak_gb_per_s=8"]
    runs = [
        run("lru", 4.0, system="lru", **of),
        run("lfu", 1.0, system="lfu", overrides=slow, **of),
        run("arc", 2.0, system="arc", overrides=slow, **of),
    ]
    page = report._chapter(runs, tmp_path, "", has_others=False)
    assert re.findall(r"<p class='answer'>(.*?)</p>", page) == [
        "m on h; trace t (eval), 1 sequence; w: With 25 % of the experts resident (1 GiB) lru"
        " decodes 4 tokens/s.",
        "m on h; trace t (eval), 1 sequence; w; hardware.links.pcie.peak_gb_per_s=8: With 25 % of"
        " the experts resident (1 GiB) arc has the highest speed of lossless systems, 2 tokens/s (not"
        " sure: not paired, for times by sequence are not known).",
    ]
    assert re.findall(r"<tr><td>(\w+)</td><td>([^<]*)</td>", page) == [
        ("lru", "best"),
        ("arc", "best"),
        ("lfu", "0.50x (unpaired)"),
    ]


def test_a_table_is_fastest_first_with_the_columns_that_some_run_has() -> None:
    """No run has a hit ratio or a share at low precision."""
    slow, best, far = run("s<", 4.0), run("best", 8.0), run("far", 2.0, gap=None)
    line: Any = lambda one, ahead: SimpleNamespace(  # noqa: E731
        summary=one.summary, ahead=ahead, tokens_per_s=one.summary["decode_tokens_per_s"]
    )
    lines = [line(best, None), line(slow, "0.5x [0.4, 0.6]"), line(far, None)]
    found: Any = SimpleNamespace(sets=[SimpleNamespace(lines=lines, best=lines[0])])
    heads = (
        "run",
        "x the best of its budget [95 %]",
        "precision at best",
        "decode (tokens/s)",
        "TTFT (s)",
        "TPOT (s)",
        "skipped (share)",
        "makespan (s)",
        "makespan / bound",
    )
    rows = (
        ("best", "best", "fp16", "8", "0.5", "0.01235", "0", "12", "1.5"),
        ("s&lt;", "0.5x [0.4, 0.6]", "fp16", "4", "0.5", "0.01235", "0", "12", "1.5"),
        ("far", "0.25x (unpaired)", "fp16", "2", "0.5", "0.01235", "0", "12", "-"),
    )
    assert report._table([far, slow, best], found) == (
        "<table><tr>"
        + "".join(f"<th>{head}</th>" for head in heads)
        + "</tr>"
        + "".join("<tr>" + "".join(f"<td>{one}</td>" for one in row) + "</tr>" for row in rows)
        + "</table>"
    )


def test_the_command_writes_into_its_folder_and_says_how_many_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(report, "read_runs", lambda places: [run(str(one)) for one in places])
    monkeypatch.setattr(
        report, "make_report", lambda runs, place: asked.append(place) or place / "report.html"
    )
    place = tmp_path / "out"
    assert main(["a", f"output_dir={place}"]) == 0
    assert capsys.readouterr().out == f"{place}/report.html: 1 run\n"
    (place / "mine.txt").touch()
    assert main(["a", "b", f"output_dir={place}"]) == 2, "what is there is not written over"
    assert main(["a", "b", f"output_dir={place}", "overwrite=yes"]) == 0
    assert capsys.readouterr().out == f"{place}/report.html: 2 runs\n"
    assert asked == [place, place]
