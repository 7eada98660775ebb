"""``python -m sim``: a multirun continues after a refusal, and interrupted runs leave nothing."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.results import outputs
from sim.results.outputs import write_outputs
from sim.values.places import ROOT

SMALL = ("system=lru", "model=tiny_mixtral", "trace.max_sequences=1")


def many(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sim", "-m", "outputs=summary", *words]
    return subprocess.run(
        [*command, f"hydra.sweep.dir={folder}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_multirun_compares_the_decode_times_of_its_runs(tmp_path: Path) -> None:
    words = ("system=lru", "model=tiny_mixtral", "trace.max_sequences=4")
    done = many(tmp_path, *words, "cache=lru,fifo", "budget.resident_share=0.25")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    speeds = [float(row["decode_tokens_per_s"]) for row in (first, second)]
    assert speeds[0] > speeds[1]
    assert float(second["times_best"]) == pytest.approx(speeds[1] / speeds[0])


# Contracts: C132
@pytest.mark.thorough
def test_a_multirun_goes_on_after_a_refused_run_and_lists_it_at_its_end(tmp_path: Path) -> None:
    done = many(tmp_path, *SMALL, "budget.resident_share=0.01,0.25,2,0.5")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    few, much = (line for line in done.stdout.splitlines() if line.startswith("refused (1)"))
    assert few.endswith("budget.resident_share=0.01")
    assert "budget.resident_share=2" in much
    assert done.stderr.count("refused") == 2
    assert done.stdout.count("━") <= 80, "one table, and no other"
    answers = [line for line in done.stdout.splitlines() if line.startswith("With ")]
    assert [line.split()[1] for line in answers] == ["25", "50"]
    names = {"table.csv", "table.md", "table.json", "figure.png", "figure.svg"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    assert sorted(path.parent.name for path in tmp_path.rglob("summary.json")) == ["1", "3"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["1", "3"]


class Broken:
    """Tables of which the last cannot be written."""

    names = ("sequences", "tokens")

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def parts(self, name: str, rows: int) -> Iterator[Any]:
        raise self.error


STOPPED = """
import os, runpy, signal, sys
import sim.setup.execute

def stop(*words, **named):
    os.kill(os.getpid(), signal.SIGINT)

sim.setup.execute.simulate = stop
sys.argv[0] = "sim"
runpy.run_module("sim", run_name="__main__", alter_sys=True)
"""


@pytest.mark.thorough
def test_a_multirun_that_is_stopped_in_its_first_run_leaves_nothing(tmp_path: Path) -> None:
    words = ["-m", "system=lru,hobbit", "trace.max_sequences=1", "outputs=summary"]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "interrupted; nothing was written\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt(), SystemExit(143)], ids=str)
def test_what_is_interrupted_while_it_writes_leaves_no_file(
    tmp_path: Path, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        write_outputs(tmp_path, {"system": "x"}, {}, Broken(error), "wait_all", None)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_what_is_interrupted_between_two_files_leaves_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, moved = os.replace, []

    def replace(source: Path, target: Path) -> None:
        if moved:
            raise SystemExit(143)
        moved.append(target)
        real(source, target)

    monkeypatch.setattr(outputs.os, "replace", replace)
    monkeypatch.setattr(
        outputs,
        "_write_json",
        lambda path, *_, **__: [
            path.with_name(name).write_text("{}", encoding="utf-8") for name in ("a.json", "b.json")
        ],
    )
    with pytest.raises(SystemExit):
        write_outputs(tmp_path, {}, {}, None, "wait_all", None)
    assert len(moved) == 1
    assert list(tmp_path.iterdir()) == []


# Contracts: C132
def test_sigterm_ends_a_run_at_once_with_its_own_status_and_no_folder(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sim", "system=hobbit", f"output_dir={tmp_path}/out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    while process.poll() is None and not (tmp_path / "out").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, told = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, told
    assert told.splitlines()[-1] == "interrupted; nothing was written"
    assert out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("predictor.recall=0.3", "Could not override 'predictor.recall'."),
        ("hardware.links=[1]", "hardware.links=[1] (Cannot merge DictConfig with ListConfig)"),
    ],
)
def test_a_word_that_does_not_fit_the_configuration_ends_a_run_with_one_line(
    word: str, told: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "sim", *SMALL, word]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert told in done.stderr
    assert not list(tmp_path.iterdir())
