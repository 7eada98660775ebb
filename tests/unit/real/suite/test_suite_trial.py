"""What stops the project on a machine is told before a piece runs.

There the project lies in a folder and is not installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from real.suite.__main__ import main
from real.suite.bundle import is_read
from real.suite.trial import trial
from sim.values.places import ROOT


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A folder with the project's files that a bundle holds."""
    for path in (
        path for part in ("sim", "real", "capture", "conf") for path in (ROOT / part).rglob("*")
    ):
        name = path.relative_to(ROOT)
        if path.is_file() and "__pycache__" not in name.parts and is_read(str(name)):
            (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, tmp_path / "there" / name)
    return tmp_path / "there"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with all packages that are installed here, but not the project."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).iterdir():
            if "moe_offload" not in path.name:
                (folder / path.name).symlink_to(path)
    return folder


def command(folder: Path, *words: str, path: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m real.suite`` in an interpreter that sees ``path`` and nothing installed."""
    arguments = [sys.executable, "-S", "-m", "real.suite", *words]
    return subprocess.run(
        arguments,
        cwd=folder,
        env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.thorough
def test_an_unpacked_bundle_has_all_that_its_pieces_import_and_runs_without_being_installed(
    unpacked: Path, packages: Path
) -> None:
    done = command(unpacked, "missing", "device=host", "size=tiny", path=f"{unpacked}:{packages}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is missing for device=host size=tiny" in done.stdout
    assert "their systems run on device=null" in done.stdout


def test_a_machine_without_any_package_is_told_of_each(unpacked: Path) -> None:
    done = command(unpacked, "missing", path=str(unpacked))
    assert done.returncode == 1, done.stderr
    assert "simpy cannot be imported (it is not installed)" in done.stdout
    assert "without one: where they are installed, python -m real.suite pack" in done.stdout


@pytest.mark.thorough
def test_a_module_that_a_piece_imports_inside_a_function_is_tried_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "real.live.run", None)
    monkeypatch.setattr("real.suite.__main__.missing", lambda device: [])
    assert main(["missing", "device=host", "size=tiny"]) == 1
    told = capsys.readouterr().out
    assert (
        "real.live.run cannot be imported (ModuleNotFoundError: import of real.live.run halted"
        in told
    )
    assert "unpack the bundle anew" in told
    # The command runs nothing, either.
    assert main(["device=host", "size=tiny", "output=nowhere"]) == 2
    assert "error: real.live.run cannot be imported" in capsys.readouterr().err
    assert not Path("nowhere").exists()


def test_a_system_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_words: object) -> None:
        raise ValueError("no trace here")

    monkeypatch.setattr("real.setup.prepare.prepare_replay", refuse)
    assert trial("tiny") == [
        "lru does not run on device=null (ValueError: no trace here)",
        "floe does not run on device=null (ValueError: no trace here)",
    ]
