"""Every piece of the suite, tiny, on the host: all but a GPU's calls is done for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import real.suite.engine as engine
import real.suite.runs as runs
from real.calibration.calibration import Asked, plan_of
from real.calibration.deadline import Deadline
from real.calibration.sizes import RUNS, SIZES
from real.setup.stores import weights_folder
from real.suite.context import Cells, Context, GoOnAfresh, LeftOut
from real.suite.pieces import PIECES, REPORT, piece_of
from real.validation.cases import request_of
from sim.setup.sections import make_object
from sim.values.places import ROOT


def outcome(name: str) -> dict[str, Any]:
    return {"status": "done", "seconds": 1.0, "reason": ""}


def rows(folder: Path, name: str) -> dict[str, Any]:
    return {row["cell"]: row for row in json.loads((folder / f"{name}.json").read_text())["rows"]}


def check(folder: Path) -> None:
    """Check the results of the pieces that need no whole model."""
    replayed = rows(folder, "replay")
    assert replayed["lru 0.5"]["status"] == "done"
    assert replayed["lru 0.5"]["result"]["real"]["device"] == "host"
    assert replayed["lru 0.5"]["result"]["decode_tokens_per_s"] > 0
    for cell in ("floe 0.5", "floe zero_copy 0.5"):
        assert replayed[cell]["result"]["link"]["services"] > 0
    loads = rows(folder, "copies")["in_flight=2"]["result"]
    assert loads["services"] >= 2
    assert loads["bytes_per_s"] > 0
    checks = json.loads((folder / "verify.json").read_text())
    assert checks["all"]
    assert len(checks["checks"]) > 50
    assert all(one["holds"] for one in checks["checks"])
    timed = json.loads((folder / "kernels.json").read_text())
    assert timed["all"]
    kinds = {row["operator"] for row in timed["rows"]}
    assert {
        "gemv int4",
        "expert int4",
        "expert bf16",
        "gemv int4 by size",
        "expert of 50% of its neurons",
    } <= kinds
    page = (folder / "report.md").read_text()
    assert "A rehearsal on the host: no figure here is a GPU's" in page
    assert "| kernels against fp64 | all, within 1e-5 |" in page
    assert "| lru 0.5 |" in page
    assert (
        "| a token of the engine, mixtral_8x7b at 25%, beside a bare loop | <= 1.3 times |" in page
    )
    assert not list(folder.rglob("*.experts")), "results are packed and kept; stores are large"


def check_models(folder: Path) -> None:
    """Check the results of the other pieces."""
    for cell in ("tiny_mixtral lru", "tiny_mixtral lru, 4 at once"):
        assert rows(folder, "live")[cell]["result"] | {"makespan_s": 0} == {
            "steps": 3,
            "makespan_s": 0,
            "lossless": True,
            "equal": True,
        }, cell
    validated = json.loads((folder / "validation" / "validation.json").read_text())
    assert [one["first_difference"] for one in validated["checks"]] == [None, None]
    assert "hardware=host_measured" in (folder / "report.md").read_text()
    assert "validated: none" in (folder / "hardware" / "host_measured.yaml").read_text()


@pytest.mark.thorough
def test_pieces_run_with_the_host_as_their_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (runs, engine):
        monkeypatch.setattr(module, "STORES", tmp_path / "stores")
    folder = tmp_path / "results"
    folder.mkdir()
    context = Context("host", "tiny", folder, Deadline(600))
    names = ("probe", "verify", "kernels", "copies", "engine", "replay")
    pieces = [piece_of(name) for name in names]
    for piece in pieces:
        piece.load()(context)
    state = {
        "device": "host",
        "size": "tiny",
        "pieces": {piece.name: outcome(piece.name) for piece in pieces},
    }
    (folder / "suite.json").write_text(json.dumps(state))
    REPORT.load()(context)
    check(folder)


@pytest.mark.thorough
def test_the_command_does_it_all_and_goes_on_where_it_was(tmp_path: Path) -> None:
    command = (
        sys.executable,
        "-m",
        "real.suite",
        "device=host",
        "size=tiny",
        f"output={tmp_path / 'results'}",
        "minutes=20",
        f"archive={tmp_path / 'all.tar.gz'}",
    )
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    check(tmp_path / "results")
    check_models(tmp_path / "results")
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert [f"{piece.name}: done before" in again.stdout for piece in PIECES] == [True] * len(
        PIECES
    )


def context(folder: Path, device: str = "host", seconds: float = 60.0) -> Context:
    return Context(device, "tiny", folder, Deadline(seconds))


@pytest.mark.alike
@pytest.mark.parametrize("size", SIZES)
def test_a_rehearsal_of_any_size_replays_what_a_gpu_does_stand_ins_for_experts(size: str) -> None:
    """A stand-in's code is another than a bundled model's. Only numbers may differ."""
    full, here = SIZES["full"].words, SIZES[size].words
    for words in (
        here,
        plan_of(asked_for(size, "host")).words,
        plan_of(asked_for(size, "cuda")).words,
    ):
        request = request_of(words, "lru", 0.5)
        assert weights_folder(request.engine, make_object(request.simulated.model)) is None, words
    assert {word.partition("=")[0] for word in full} <= {word.partition("=")[0] for word in here}
    assert set(RUNS) <= set(here)


def asked_for(size: str, device: str) -> Asked:
    return Asked("here", device, size, Path("here.yaml"), None, 60.0, ())


# Contracts: C128
def test_cells_are_kept_one_by_one_and_a_killed_one_has_failed(tmp_path: Path) -> None:
    cells = Cells(context(tmp_path), "runs")
    cells.run("a", lambda: 1, 0.0)

    def killed() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cells.run("b", killed, 0.0)
    again = Cells(context(tmp_path), "runs")
    assert [(row["cell"], row["status"]) for row in again.rows] == [("a", "done"), ("b", "failed")]
    again.run("b", lambda: 2, 0.0)
    assert again.done() == {"a": 1}, "what has ended its process is not tried again"


def test_a_cell_that_cannot_run_is_refused_and_one_that_fails_on_a_gpu_asks_for_another_process(
    tmp_path: Path,
) -> None:
    cells = Cells(context(tmp_path, "cuda"), "runs")

    def refuse() -> None:
        raise ValueError("device=cuda does not run this")

    def fault() -> None:
        raise RuntimeError("an illegal memory access")

    cells.run("a", refuse, 0.0)
    with pytest.raises(GoOnAfresh):
        cells.run("b", fault, 0.0)
    again = Cells(context(tmp_path, "cuda"), "runs")
    again.run("a", refuse, 0.0)
    again.run("b", fault, 0.0)
    again.run("c", lambda: 3, 0.0)
    assert [row["status"] for row in again.rows] == ["refused", "failed", "done"]


def test_what_there_is_no_time_for_is_named(tmp_path: Path) -> None:
    cells = Cells(context(tmp_path, seconds=1.0), "runs")
    cells.run("long", lambda: 1, 5.0)
    assert json.loads((tmp_path / "runs.json").read_text()) == {"rows": [], "left_out": ["long"]}
    with pytest.raises(LeftOut, match="no time for long"):
        cells.check_whole()
    later = Cells(context(tmp_path), "runs")
    later.run("long", lambda: 1, 5.0)
    later.check_whole()
