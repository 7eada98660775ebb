"""Ctrl-C ends every command with one line and 130, from its first import on."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sim.process.interrupts import NO_MEMORY
from sim.values.places import ROOT

COMMANDS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for package in ("sim", "capture", "real")
    for path in (ROOT / package).rglob("*.py")
    if '\nif __name__ == "__main__":\n' in path.read_text(encoding="utf-8")
    and path.name != "moelab.py"  # imports only what it is asked for: test_moelab
)
PRESSES = """
import os, signal, sys

COMMAND = os.environ["COMMAND"]
ITS_OWN = {"sim", "sim.process", "sim.process.interrupts", "usercustomize", COMMAND, f"{COMMAND}.__main__"}

class Presses:
    def find_spec(name, path=None, target=None):
        if not (name.split(".")[0] in sys.stdlib_module_names or name in ITS_OWN or COMMAND.startswith(f"{name}.")):
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Presses)
"""
"""Presses Ctrl-C at a command's first import of something of the project, or of others."""


# Contracts: C132
def test_every_command_ends_on_ctrl_c_with_one_line_and_130(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PRESSES, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    def ended(command: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", command],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**environment, "COMMAND": command},
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    assert len(COMMANDS) > 30
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(COMMANDS, pool.map(ended, COMMANDS), strict=True))
    assert found == dict.fromkeys(COMMANDS, (130, "", "interrupted\n"))


@pytest.mark.parametrize("module", ["sim", "sim.moelab"])
def test_a_lack_of_memory_is_told_in_one_line(module: str, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise MemoryError\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            module,
            *(["run"] if module.endswith("moelab") else []),
            "system=lru",
        ],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, f"{NO_MEMORY}\n")


def test_another_error_is_told_as_python_tells_it(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('broken')\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "capture.import_trace", "format=csv", "path=.", "output_dir=out"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: broken\n")


def test_a_program_that_imports_the_packages_keeps_its_own_way_of_telling_errors() -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, sim, capture, real; print(sys.excepthook is sys.__excepthook__)",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert told.stdout == "True\n"


LONG = {
    "sim": "ask check compare demo export fit frontier leaderboard reproduce.__main__ screen"
    " study.__main__ whatif",
    "capture": "__main__ calibrate channels check_synthesis fit get import_trace stats synthesize"
    " train_tiny",
    "real": "calibrate closed_loop quality quality_figures quality_fit quality_front"
    " suite.__main__ validate",
}


class Pressed(Sequence[str]):
    """Words at which somebody presses a key, or ends the process from outside."""

    def __init__(self, press: BaseException | None) -> None:
        self.press = press

    def __getitem__(self, place: object) -> str:  # type: ignore[override]
        if self.press is not None:
            raise self.press
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("SIGTERM was not heard")

    def __len__(self) -> int:
        return len(self[0])

    def __eq__(self, other: object) -> bool:
        return bool(self[0])

    __hash__ = None  # type: ignore[assignment]


# Contracts: C132
@pytest.mark.parametrize(
    "name", [f"{package}.{name}" for package, names in LONG.items() for name in names.split()]
)
def test_a_long_command_that_is_stopped_says_what_it_leaves(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(name).main
    before = signal.getsignal(signal.SIGTERM)
    told = []
    for press, code in ((KeyboardInterrupt(), 130), (None, 128 + signal.SIGTERM)):
        assert main(Pressed(press)) == code
        out, line = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(r"interrupted; .*(written|kept|go(es)? on|whole).*\n", line), line
        told.append(line)
    assert told[0] == told[1]
    assert signal.getsignal(signal.SIGTERM) == before
