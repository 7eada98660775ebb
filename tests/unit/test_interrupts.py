"""Ctrl-C ends every command with one line and 130, from its first import on."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
