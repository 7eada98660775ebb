"""The console script: what it lists is there, and runs as ``python -m`` runs it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.moelab import COMMANDS, chosen, help_lines, main, summary, way_to
from sim.values.places import ROOT

OF_DEVELOPERS = {
    "capture.calibrate",
    "capture.corpus",
    "capture.passages",
    "capture.train_tiny",
    "sim.moelab",
}
"""Commands that remake the project's own files, and the console script itself."""


def commands() -> set[str]:
    """What ``python -m`` runs: the modules at the root of a package, and packages themselves."""
    roots = [ROOT / name for name in ("sim", "capture", "real")]
    files = {path for root in roots for path in (*root.glob("*.py"), *root.rglob("__main__.py"))}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    return {name.removesuffix(".__main__") for name in names if not name.endswith("__init__")}


def test_every_command_for_users_is_listed_and_everything_listed_is_a_command() -> None:
    assert set(COMMANDS.values()) == commands() - OF_DEVELOPERS


@pytest.mark.parametrize("module", COMMANDS.values())
def test_every_command_says_what_it_does_in_words_that_are_no_usage(module: str) -> None:
    told = summary(module)
    assert len(told.split()) > 3
    assert "python -m" not in told


def test_the_longest_name_is_the_command_and_the_rest_are_its_words() -> None:
    assert chosen(["capture", "lint", "TRACE"]) == ("capture lint", ["TRACE"])
    assert chosen(["capture", "model=x"]) == ("capture", ["model=x"])
    assert chosen(["run", "list", "systems"]) == ("run", ["list", "systems"])


def test_a_word_that_is_no_command_is_refused_with_the_way_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rum", "system=lru"]) == 2
    assert capsys.readouterr().err == "error: 'rum' is no command; moelab --help lists them\n"
    assert main([]) == 2
    assert capsys.readouterr().out.splitlines() == list(help_lines())


@pytest.fixture
def study_that_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a command in the place of ``study`` that imports what is not there."""

    def put(name: str) -> None:
        (tmp_path / f"wants_{name.replace('.', '_')}.py").write_text(f"import {name}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setitem(COMMANDS, "study", f"wants_{name.replace('.', '_')}")
        monkeypatch.setitem(sys.modules, name, None)

    return put


def test_a_command_whose_package_is_missing_is_refused_in_one_line(
    study_that_imports: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    study_that_imports("optuna")
    assert main(["study"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: moelab study needs optuna, which is not installed")
    assert len(told.splitlines()) == 1


def test_a_module_of_the_project_that_is_missing_is_no_missing_package(
    study_that_imports: Callable[[str], None],
) -> None:
    study_that_imports("sim.lost")
    with pytest.raises(ModuleNotFoundError, match=r"sim\.lost"):
        main(["study"])


def test_ctrl_c_ends_a_command_with_one_line_and_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pressed(module: str, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runpy, "run_module", pressed)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_missing_package_is_named_with_the_smallest_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [
        "numpy>=1.26",
        "optuna>=4; extra == 'test'",
        "pytest>=8; extra == 'test'",
        'optuna>=4; extra == "study"',
        'lm-eval[hf]>=0.4.9; extra == "harness"',
    ]
    monkeypatch.setattr("sim.moelab.requires", lambda name: lines)
    assert way_to("optuna") == ": pip install 'moe-offload-lab[study]'"
    assert way_to("lm_eval") == ": pip install 'moe-offload-lab[harness]'"
    assert way_to("numpy") == ""


def moelab(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sim.moelab", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_run_writes_what_python_m_sim_writes_and_compare_its_exit_status(tmp_path: Path) -> None:
    words = ["system=lru", "trace.max_sequences=1", "outputs=summary", "output_dir=out"]
    done = moelab("run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "summary.json").is_file()
    assert "decodes at" in done.stdout
    refused = moelab("compare", "out", "lru", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: out is the directory of a run")
    assert len(refused.stderr.splitlines()) == 1


def test_the_workers_of_a_study_start_under_the_console_script(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(
        "question: do workers start?\n"
        "base: [trace.max_sequences=1]\n"
        "grid: {system: [lru, load_on_demand]}\n",
        encoding="utf-8",
    )
    done = moelab("study", "name=two.yaml", "workers=2", "launcher=pool", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 cells, 2 done" in done.stdout
