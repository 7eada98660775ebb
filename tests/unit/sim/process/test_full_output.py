"""A command whose standard output takes no more says so in one line, and keeps its files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sim.process.files import NotWrittenError
from sim.process.interrupts import is_of_output, is_terminal
from sim.values.places import ROOT

FULL = "error: standard output cannot be written ([Errno 28] No space left on device)\n"


def ended(shell: str, *words: str) -> tuple[int, str]:
    """The exit status of a Python command with these redirections, and what it says on stderr."""
    done = subprocess.run(
        ["sh", "-c", f'"$0" "$@" {shell}', sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [("--help",), ("list", "systems"), ("run", "--help")])
def test_a_list_or_a_help_that_cannot_be_written_ends_with_one_line(words: tuple[str, ...]) -> None:
    assert ended(">/dev/full", "-m", "sim.moelab", *words) == (1, FULL)


def test_a_run_whose_answer_cannot_be_printed_keeps_its_files(tmp_path: Path) -> None:
    place = tmp_path / "run"
    words = ("system=lru", "outputs=summary", f"output_dir={place}")
    status, said = ended(">/dev/full", "-m", "sim", *words)
    assert (status, said.splitlines()[-1:]) == (1, [FULL.strip()])
    assert sorted(path.name for path in place.iterdir()) == ["summary.json"]


def test_a_help_with_standard_output_closed_ends_well() -> None:
    assert ended(">&-", "-m", "sim.moelab", "--help") == (0, "")


def test_a_reader_that_has_left_ends_a_command_silently() -> None:
    status, said = ended("| head -c 1 >/dev/null", "-m", "sim.moelab", "list", "systems")
    assert (status, said) == (0, "")  # that of head


def test_closed_output_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert not is_terminal()


def test_an_error_of_a_file_is_none_of_the_output() -> None:
    assert is_of_output(OSError(28, "No space left on device"))
    assert not is_of_output(OSError(28, "No space left on device", "results.json"))
    assert not is_of_output(NotWrittenError("results.json cannot be written"))
    assert not is_of_output(FileNotFoundError(2, "no such file"))
