"""The report: every figure with its units and configuration, from what runs wrote.

Its page asks the network for nothing.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from helpers.printed import told_of
from sim.core.slots import UNUSED
from sim.report import MOST_LETTERS, _chapter, _told, _with_short_names, main, make_report
from sim.reporting.figures import FIGURES
from sim.reporting.runs import ReportedRun, by_work, read_runs
from sim.results.outputs import write_outputs
from sim.setup.build import build
from sim.setup.configure import configure
from sim.setup.execute import execute
from sim.study.cells import plan_cells
from sim.study.dataset import Dataset
from sim.study.plan import make_plan
from sim.study.worker import run_cell

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
)


def run_into(place: Path, *words: str) -> Path:
    cfg, name = configure("model=tiny_mixtral", "trace.max_sequences=2", "bounds=max", *words)
    run = build(cfg, name, changed=["trace.max_sequences=2"])
    result = execute(run)
    write_outputs(
        place,
        {**result.summary, "wall_s": 0.0},
        run.config,
        result.frames if cfg.outputs == "all" else None,
        run.controller.loader.wait,
        8,
    )
    return place


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    folder = tmp_path_factory.mktemp("report")
    runs = [
        run_into(folder / "lru", "system=lru"),
        run_into(folder / "hobbit", "system=hobbit"),
        run_into(folder / "short", "system=load_on_demand", "outputs=summary"),
    ]
    assert main([*map(str, runs), f"output_dir={folder}/out"]) == 0
    return folder / "out", runs


def test_every_figure_is_on_the_page_and_beside_it_with_its_configuration(
    report: tuple[Path, list[Path]],
) -> None:
    place, _ = report
    page = (place / "report.html").read_text(encoding="utf-8")
    for name, (question, _, _) in FIGURES.items():
        assert question in page
        assert f"id='{name}'" in page
        assert (place / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        svg = (place / f"{name}.svg").read_text(encoding="utf-8")
        assert "rtx4090_pcie4" in svg, "a figure by itself says what it is of"
        assert "with trace.max_sequences=2" in svg, "and what was changed"
        assert re.search(r"\((s|ms|GiB|tokens/s)\)|ratio|share|tokens|prefetches", svg), (
            "and in which unit"
        )


def test_the_page_says_what_was_changed_and_what_is_lossy(report: tuple[Path, list[Path]]) -> None:
    page = (report[0] / "report.html").read_text(encoding="utf-8")
    told = re.findall(r"<p class='warning'>([^<]*)</p>", page)
    assert "with trace.max_sequences=2" in told
    assert "hobbit: lossy (experts at low precision, experts skipped)" in told


def test_the_page_names_no_other_place(report: tuple[Path, list[Path]]) -> None:
    page = (report[0] / "report.html").read_text(encoding="utf-8")
    names = set(re.findall(r"https?://[^\"'<> ]+", page))
    assert names <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, (
        "namespaces are no requests"
    )
    assert "<script" not in page
    identities = re.findall(r'id="([^"]+)"', page)
    assert len(identities) == len(set(identities))
    assert page.count("<svg ") == len(FIGURES), "each figure is on the page itself"
    # Each picture has its own definitions, under names that begin with its own.
    asked = re.findall(r'(?:url\(#|"#)([^")]+)', page)
    assert asked
    assert set(asked) <= set(identities)
    assert {name.partition("_")[0] for name in identities} >= {"systems", "pareto"}


def test_what_arrives_and_goes_adds_up_to_what_the_slots_hold(
    report: tuple[Path, list[Path]],
) -> None:
    (run,) = read_runs([report[1][0]])
    found = run.resident_gib()
    assert found is not None
    transfers = pl.read_parquet(report[1][0] / "transfers.parquet")
    # LRU's slots are full from the start. Each load evicts one expert when it is issued, and enters
    # when it ends.
    one, all_gib = (
        transfers["moved_bytes"][0] / 2**30,
        run.summary["budget"]["device_bytes"] / 2**30,
    )
    assert found[0][0] == 0
    assert found[1][0] == pytest.approx(all_gib, abs=0.99 * one)
    assert np.ptp(found[1]) == pytest.approx(one)


@pytest.mark.alike
@pytest.mark.parametrize(
    "words",
    [
        ("system=lru",),
        ("system=lru", "cache.initial=empty"),
        ("system=hobbit",),
        ("system=edgemoe",),
        ("system=swapmoe", "hardware.links.pcie.peak_gb_per_s=0.05"),
        ("system=lru", "loader.retention=after_batch", "workload=static_4"),
        ("system=lru", "workload.kv_allocation=growing", "++model.kv_bits=100000"),
        ("system=hobbit", "loader.chunk_bytes=65536"),
        ("system=lru", "hardware=rtx4090_nvme"),
        ("system=lru", "hardware=rtx4090_nvme", "hardware.ram.capacity_gib=0.001"),
        ("system=hobbit", "hardware=rtx4090_nvme", "hardware.ram.capacity_gib=0.001"),
        ("system=lru", "devices=layers_2", "cache.initial=empty"),
        ("system=lru", "devices=owners_2", "cache.initial=empty"),
        (
            "system=lru",
            "workload.draft_tokens=2",
            "workload.draft_layers=2",
            "workload.draft_experts=offloaded",
        ),
    ],
    ids=" ".join,
)
def test_what_is_drawn_of_the_device_is_never_below_0_and_ends_with_what_is_there(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """Oracle: the bytes in the controller's own slots at the start and at the end."""
    cfg, name = configure("model=tiny_mixtral", "trace.max_sequences=2", *words)
    run = build(cfg, name)
    slots = run.controller.slots

    def held() -> int:
        return sum(
            size
            for size, state in zip(slots.slot_bytes, slots.state, strict=True)
            if state <= UNUSED
        )

    before = held()
    result = execute(run)
    write_outputs(tmp_path / "run", result.summary, run.config, result.frames, "wait_all", 1)
    (read,) = read_runs([tmp_path / "run"])
    found = read.resident_gib()
    assert found is not None
    assert found[1].min() >= 0
    assert (found[1][0] * 2**30, found[1][-1] * 2**30) == (before, held())


def test_of_a_run_with_staging_no_table_tells_what_is_on_the_device(tmp_path: Path) -> None:
    place = run_into(
        tmp_path / "staged",
        "system=hobbit",
        "loader.destination=staging",
        "loader.staging_slots=4",
        "budget.resident_share=0.25",
    )
    assert read_runs([place])[0].resident_gib() is None


COLUMNS: dict[str, Callable[[dict[str, Any]], float | str]] = {
    "precision at best": lambda summary: next(iter(summary["budget"]["slots"])),
    "decode (tokens/s)": lambda summary: summary["decode_tokens_per_s"],
    "TTFT (s)": lambda summary: summary["ttft_s"]["mean"],
    "TPOT (s)": lambda summary: summary["tpot_s"]["mean"],
    "hit ratio": lambda summary: summary["hit_ratio"],
    "low precision (share)": lambda summary: summary["quality_proxy"]["low_share"],
    "skipped (share)": lambda summary: summary["quality_proxy"]["skip_share"],
    "makespan (s)": lambda summary: summary["makespan_s"],
    "makespan / bound": lambda summary: summary["makespan_s"] / summary["bounds"]["lower_s"],
}


def test_every_cell_of_the_table_is_the_number_in_the_summary(
    report: tuple[Path, list[Path]],
) -> None:
    page = (report[0] / "report.html").read_text(encoding="utf-8")
    heads = re.findall(r"<th>([^<]*)</th>", page)
    assert heads == ["run", "x the best of its budget [95 %]", *COLUMNS]
    by_speed = [report[1][at] for at in (1, 0, 2)]
    for row, place in zip(re.findall(r"<tr>(<td>.*?)</tr>", page), by_speed, strict=True):
        summary = json.loads((place / "summary.json").read_text(encoding="utf-8"))
        cells = dict(zip(heads, re.findall(r"<td>([^<]*)</td>", row), strict=True))
        assert cells["run"] == summary["system"]
        for head, of in COLUMNS.items():
            value = of(summary)
            told_of(cells[head], value if isinstance(value, str) else [value])


def test_a_cell_without_a_value_is_a_dash_and_a_text_is_escaped() -> None:
    assert [_told(value) for value in (None, 0.0, "a<b")] == ["-", "0", "a&lt;b"]


# Contracts: C136
@pytest.mark.alike
@pytest.mark.parametrize(
    "words",
    [
        ("trace.max_sequences=1",),
        ("trace.split=fit",),
        ("trace.exclude=[has_repetition]",),
        ("workload=static_4",),
        ("workload.decode_tokens=3", "workload.batching=static"),
    ],
    ids=" ".join,
)
def test_runs_of_other_work_are_a_chapter_of_their_own_and_in_no_common_chart(
    words: tuple[str, ...], report: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    other = run_into(tmp_path / "other", "system=lru", "outputs=summary", *words)
    summary = json.loads((other / "summary.json").read_text(encoding="utf-8"))
    if words[0].startswith("trace.exclude"):
        # As if a sequence had been left out and another had taken its place.
        summary["trace"]["numbers"][0] += 1
        (other / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    chapters = by_work(read_runs([report[1][0], other, report[1][1]]))
    assert [[run.label for run in chapter] for chapter in chapters] == [
        ["lru #1", "hobbit"],
        ["lru #2"],
    ]


def test_a_page_of_two_kinds_of_work_has_two_answers_and_figures_of_each(
    report: tuple[Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.report.FIGURES", {"systems": FIGURES["systems"]})
    other = run_into(tmp_path / "other", "system=lru", "outputs=summary", "trace.split=fit")
    assert main([str(report[1][0]), str(other), f"output_dir={tmp_path}/out"]) == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("class='answer'") == 2
    assert page.count("class='work'") == 2
    for name, split, absent in (("systems", "eval", "fit"), ("systems_2", "fit", "eval")):
        svg = (tmp_path / "out" / f"{name}.svg").read_text(encoding="utf-8")
        assert f"({split})" in svg
        assert f"({absent})" not in svg


def test_a_question_whose_table_no_run_wrote_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(draw: str, able: list[Any], *_: object) -> str:
        return f"{draw} of {' '.join(run.label for run in able)}"

    questions = {
        "first": ("Who?", "bars", "lookups"),
        "second": ("Why <so>?", "lines", "transfers"),
        "third": ("How?", "dots", None),
    }
    monkeypatch.setattr("sim.report.FIGURES", questions)
    monkeypatch.setattr("sim.report.overview", lambda done: SimpleNamespace(sets=()))
    monkeypatch.setattr("sim.report._draw", drawn)
    for name in ("_configuration", "_labels"):
        monkeypatch.setattr(f"sim.report.{name}", lambda runs: "")
    monkeypatch.setattr("sim.report._table", lambda runs, found: "")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "lookups.parquet").touch()
    runs: Any = [
        SimpleNamespace(label=name, directory=tmp_path / name, summary={}, decode_ns=None)
        for name in ("a", "b")
    ]
    page = _chapter(runs, tmp_path, "_2", has_others=False)
    assert page.partition("</p>")[2] == (
        "<h2>Who?</h2><figure id='first_2'>bars of b</figure>"
        "<h2>Why &lt;so&gt;?</h2>"
        "<p class='note'>No run here wrote its transfers: run with outputs=all.</p>"
        "<h2>How?</h2><figure id='third_2'>dots of a b</figure>"
    )


def test_a_page_begins_with_who_is_fastest_and_has_paired_ratios(
    report: tuple[Path, list[Path]],
) -> None:
    page = (report[0] / "report.html").read_text(encoding="utf-8")
    answers = re.findall(r"<p class='answer'>([^<]*)</p>", page)
    assert len(answers) == 1
    assert "class='work'" not in page, "one kind of work needs no head of its own"
    assert "lru" in answers[0]
    assert "and lossy" in answers[0]
    assert page.index("class='answer'") < page.index("class='warning'") < page.index("<table")
    ratios = re.findall(r"<tr><td>(\w+)</td><td>([^<]*)</td>", page)
    assert dict(ratios)["lru"] == "best"
    assert re.fullmatch(r"[\d.]+x \[[\d.]+, [\d.]+\]", dict(ratios)["hobbit"])
    alone = dict(ratios)["load_on_demand"]
    assert alone.endswith("x (unpaired)"), "it wrote a summary alone"
    speeds = [
        json.loads((place / "summary.json").read_text(encoding="utf-8"))["decode_tokens_per_s"]
        for place in report[1]
    ]
    assert float(alone.partition("x")[0]) == pytest.approx(speeds[2] / speeds[0], abs=0.005)
    assert float(dict(ratios)["hobbit"].partition("x")[0]) == pytest.approx(
        speeds[1] / speeds[0], abs=0.005
    )


def test_folders_of_many_runs_are_taken_as_they_are(
    report: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    many = tmp_path / "multirun"
    for number, run in ((10, report[1][1]), (2, report[1][0])):
        shutil.copytree(run, many / str(number))
    assert [run.label for run in read_runs([many])] == ["lru", "hobbit"]
    cells = plan_cells(
        make_plan(
            "x",
            {
                "base": ["model=tiny_mixtral", "trace.max_sequences=2", "outputs=summary"],
                "grid": {"system": ["lru", "hobbit"]},
            },
            "x.yaml",
        )
    )
    with Dataset(tmp_path / "study", {}, lambda _: None) as kept:
        for cell in cells:
            kept.add(run_cell("x", cell, str(tmp_path / "study")))
    found = {run.label: run for run in read_runs([tmp_path / "study"])}
    assert set(found) == {"lru", "hobbit"}
    assert found["lru"].decode_ns is not None, "of rows alone, ratios are paired all the same"


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text(json.dumps({"schema": 1}), encoding="utf-8")
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(tmp_path / "run")]) == 2
    assert main([]) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert "nowhere is not there; name what moelab run" in first
    assert "lacks system: it was changed, or another version wrote it; run it again" in second
    assert "missing RUN..." in third


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_page_opens_in_a_browser_without_errors_or_requests(
    report: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    log = tmp_path / "net.json"
    done = subprocess.run(
        [
            str(CHROMIUM),
            *QUIET,
            f"--user-data-dir={tmp_path}/profile",
            "--enable-logging=stderr",
            "--v=0",
            f"--log-net-log={log}",
            "--dump-dom",
            (report[0] / "report.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == len(FIGURES)
    # Chromium makes requests of its own. Those of the page are in the log with their initiator.
    asked = re.findall(
        r'"initiator":"file:[^}]*"url":"(https?:[^"]+)"', log.read_text(encoding="utf-8")
    )
    assert asked == []


@pytest.mark.thorough
def test_names_of_any_length_and_letters_leave_the_figure_whole(tmp_path: Path) -> None:
    """A ``$`` began a formula, and a long name left no room for the axes, which were drawn over."""
    place = run_into(tmp_path / "run", "system=lru")
    told = json.loads((place / "summary.json").read_text(encoding="utf-8"))
    for at, name in enumerate((rf"$\bad{{$ {'z' * 150}", rf"$\bad{{$ {'z' * 151}")):
        told["trace"]["name"] = name
        copy = shutil.copytree(place, tmp_path / f"run_{at}")
        (copy / "summary.json").write_text(json.dumps(told), encoding="utf-8")
    with warnings.catch_warnings(action="error"):
        make_report(read_runs([tmp_path / "run_0", tmp_path / "run_1"]), tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count(f"{'z' * 150}") >= 2, "the page has the names in full"


def test_two_long_names_with_the_same_ends_stay_apart() -> None:
    runs = [ReportedRun(f"lru {'a' * 60}{mid}{'z' * 60}", Path("x"), {}) for mid in "pq"]
    names = [run.label for run in _with_short_names([*runs, ReportedRun("$5", Path("x"), {})])]
    assert len(set(names)) == 3
    assert max(map(len, names)) <= MOST_LETTERS + len("1: ..")
    assert names[2] == r"\$5"
