"""The report: every figure with its units and configuration, from what runs wrote, in a page that asks for nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from sim.build import build
from sim.configure import configure
from sim.execute import execute
from sim.outputs import write_outputs
from sim.report import main
from sim.reporting.figures import FIGURES
from sim.reporting.runs import read_runs

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


def run_into(place: Path, *words: str) -> Path:
    cfg, name = configure("model=tiny_mixtral", "trace.max_sequences=2", *words)
    run = build(cfg, name)
    result = execute(run)
    write_outputs(place, {**result.summary, "overrides": [], "wall_s": 0.0}, run.config,
                  result.frames if cfg.outputs == "all" else None, run.controller.loader.wait, 8)  # fmt: skip
    return place


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    folder = tmp_path_factory.mktemp("report")
    runs = [run_into(folder / "lru", "system=lru"), run_into(folder / "hobbit", "system=hobbit"),
            run_into(folder / "short", "system=load_on_demand", "outputs=summary")]  # fmt: skip
    assert main([*map(str, runs), f"output_dir={folder}/out"]) == 0
    return folder / "out", runs


def test_every_figure_is_on_the_page_and_beside_it_with_its_configuration(report: tuple[Path, list[Path]]) -> None:
    place, _ = report
    page = (place / "report.html").read_text(encoding="utf-8")
    for name, (question, _, _) in FIGURES.items():
        assert question in page
        assert f"id='{name}'" in page
        assert (place / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        svg = (place / f"{name}.svg").read_text(encoding="utf-8")
        assert "rtx4090_pcie4" in svg, "a figure by itself says what it is of"
        assert re.search(r"\((s|ms|GiB|tokens/s)\)|ratio|share|tokens|prefetches", svg), "and in which unit"


def test_the_page_names_no_other_place(report: tuple[Path, list[Path]]) -> None:
    page = (report[0] / "report.html").read_text(encoding="utf-8")
    names = set(re.findall(r"https?://[^\"'<> ]+", page))
    assert names <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, "namespaces are no requests"
    assert "<script" not in page
    identities = re.findall(r'id="([^"]+)"', page)
    assert len(identities) == len(set(identities))


def test_what_arrives_and_goes_adds_up_to_what_the_slots_hold(report: tuple[Path, list[Path]]) -> None:
    (run,) = read_runs([report[1][0]])
    found = run.resident_change()
    assert found is not None
    transfers = pl.read_parquet(report[1][0] / "transfers.parquet")
    # LRU's slots are full from the start: each load puts one out, at its issue, and comes in at its end.
    one = transfers["moved_bytes"][0] / 2**30
    assert np.ptp(found[1]) == pytest.approx(one)
    assert found[1][-1] == pytest.approx(0, abs=1.01 * one)


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text(json.dumps({"schema": 1}), encoding="utf-8")
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(tmp_path / "run")]) == 2
    assert main([]) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert "holds no run" in first
    assert "it lacks system, hardware" in second
    assert "which runs?" in third


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_page_opens_in_a_browser_without_errors_or_requests(
    report: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    log = tmp_path / "net.json"
    done = subprocess.run(
        [str(CHROMIUM), *QUIET, f"--user-data-dir={tmp_path}/profile", "--enable-logging=stderr", "--v=0",
         f"--log-net-log={log}", "--dump-dom", (report[0] / "report.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == len(FIGURES)
    # Chromium asks its maker for things of its own; what the page asked for is in the log with its initiator.
    asked = re.findall(r'"initiator":"file:[^}]*"url":"(https?:[^"]+)"', log.read_text(encoding="utf-8"))
    assert asked == []
