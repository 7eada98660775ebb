"""``python -m real`` as a user runs it: files, messages, exit codes, what a stopped run keeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from sim.audit.__main__ import main as audit
from sim.values.places import ROOT

FILES = {
    "summary.json",
    "sequences.parquet",
    "tokens.parquet",
    "lookups.parquet",
    "transfers.parquet",
    "decisions.parquet",
    "timeline.json",
    "config.yaml",
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


def command(stores: Path, output_dir: Path, *words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "real",
        f"engine.store_dir={stores}",
        f"output_dir={output_dir}",
        *([] if "input=live" in words else ["trace.max_sequences=1"]),
        *words,
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def run(stores: Path, output_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(stores, output_dir, *words),
        cwd=output_dir.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# Contracts: C121
@pytest.mark.thorough
def test_a_live_run_writes_the_files_of_a_simulated_one_and_its_text(
    stores: Path, tmp_path: Path
) -> None:
    done = run(
        stores,
        tmp_path / "out",
        "system=lru",
        "input=live",
        "live.sequences=1",
        "live.new_tokens=3",
        "engine.links=free",
        "engine.compute=free",
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES | {"generated.jsonl"}
    assert audit([str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["real"]["device"] == "cpu"
    assert summary["real"]["stands_for"] is None
    assert summary["hardware"].endswith(f"{os.cpu_count()} cores"), (
        "the machine itself, not the one described"
    )
    assert summary["bounds"]["lower_s"] is None, "nominal times bound nothing that runs freely"
    assert summary["compute_busy_s"] + sum(summary["stall_s"].values()) == pytest.approx(
        summary["makespan_s"]
    )
    line = json.loads((tmp_path / "out" / "generated.jsonl").read_text())
    assert len(line["tokens"]) == 3
    tokens = pl.read_parquet(tmp_path / "out" / "tokens.parquet")
    assert tokens["phase"].to_list() == ["prefill", "decode", "decode", "decode"]
    assert tokens["position"].to_list() == [31, 32, 33, 34]
    timeline = json.loads((tmp_path / "out" / "timeline.json").read_text())
    slices = [
        event for event in timeline["traceEvents"] if event.get("name", "").startswith("expert ")
    ]
    assert len(slices) >= 4 * 16 * 2


@pytest.mark.thorough
def test_the_null_device_writes_what_the_simulator_writes(stores: Path, tmp_path: Path) -> None:
    """Tables are equal byte for byte, the summary but for the section about the device."""
    words = ("system=hobbit", "hardware=rtx4090_pcie4", "model=tiny_mixtral")
    real = run(stores, tmp_path / "real", "device=null", *words)
    assert real.returncode == 0, real.stderr
    assert audit([str(tmp_path / "real")]) == 0
    simulated = subprocess.run(
        [
            sys.executable,
            "-m",
            "sim",
            f"output_dir={tmp_path / 'sim'}",
            "trace.max_sequences=1",
            *words,
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert simulated.returncode == 0
    one, other = (
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("real", "sim")
    )
    assert one.pop("real") == {"device": "null", "input": "replay"}
    for summary in (one, other):
        del summary["wall_s"]
    assert one == other
    for name in sorted(FILES - {"summary.json", "config.yaml"}):
        assert (tmp_path / "real" / name).read_bytes() == (tmp_path / "sim" / name).read_bytes(), (
            name
        )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("system=sida", "engine.links=free"), "error: device=cpu does not run loader.write_back"),
        (("system=oracle", "input=live"), "error: input=live does not go with"),
        (
            ("workload.draft_tokens=2", "input=live"),
            "error: input=live does not go with workload.draft_tokens=2 (no token is drafted)",
        ),
        (
            ("workload.kv_allocation=growing",),
            "error: workload.kv_allocation=growing: a device's slots are allocated once",
        ),
        (
            ("workload.context_tokens=900", "input=live"),
            "input=live does not go with workload.context_tokens=900 (no tokens come before a",
        ),
    ],
)
def test_what_cannot_run_ends_with_one_line_and_nothing_written(
    stores: Path, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    done = run(stores, tmp_path / "out", *words)
    assert done.returncode == 2
    assert why in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_what_a_killed_run_left_is_marked_and_makes_room_for_the_next(
    stores: Path, tmp_path: Path
) -> None:
    place = tmp_path / "out"
    place.mkdir()
    for name in (".unfinished", "generated.jsonl"):
        (place / name).touch()
    done = run(stores, place, "system=lru", "device=null", "outputs=summary")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in place.iterdir()] == ["summary.json"]


@pytest.mark.thorough
def test_a_run_that_is_terminated_ends_at_once_and_keeps_how_far_it_came(
    stores: Path, tmp_path: Path
) -> None:
    slow = (
        "system=lru",
        "input=live",
        "live.new_tokens=8",
        "live.sequences=8",
        "hardware.compute.memory_gb_per_s=0.02",
    )
    process = subprocess.Popen(
        command(stores, tmp_path / "out", *slow),
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    generated = tmp_path / "out" / "generated.jsonl"
    until = time.monotonic() + 100
    while not generated.exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "interrupted; " in told
    assert "Traceback" not in told
    partial = json.loads((tmp_path / "out" / "partial.json").read_text())
    assert 9 <= partial["steps_done"] < 72
    assert len(partial["step_end_ns"]) == len(partial["step_start_ns"]) == partial["steps_done"]
    assert json.loads(generated.read_text().splitlines()[0])["sequence"] == 0


@pytest.mark.thorough
def test_outputs_that_do_not_fit_the_disk_leave_a_message_and_no_half_written_files(
    stores: Path, tmp_path: Path
) -> None:
    """Files are limited to a size that the outputs exceed; the store exists already."""
    run(stores, tmp_path / "first", "system=lru", "outputs=summary", "device=null")
    limited = (
        "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
        "sys.argv[0] = 'real'; runpy.run_module('real', run_name='__main__')"
    )
    words = command(
        stores, tmp_path / "out", "system=lru", "device=null", "hydra.output_subdir=null"
    )[3:]
    done = subprocess.run(
        [sys.executable, "-c", limited, *words],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "error: " in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {"partial.json"}
