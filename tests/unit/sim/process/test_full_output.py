"""A command whose standard output takes no more says so in one line, and keeps its files."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sim.process.interrupts import Unprinted, is_terminal, own_streams
from sim.process.progress import Shown
from sim.values.places import ASSETS, ROOT

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


class Full(StringIO):
    """A stream that takes nothing more."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


def test_an_error_of_a_file_is_none_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Full())
    own_streams()
    with pytest.raises(Unprinted, match="No space left") as failed:
        print("what was found")
    assert not isinstance(failed.value, Exception)  # no command catches it as one of a file
    with pytest.raises(Unprinted, match="Broken pipe"):
        sys.stdout.flush()
    with pytest.raises(OSError, match="No space left"):
        Path("/dev/full").write_text("x", encoding="utf-8")


def test_what_standard_error_does_not_take_is_lost_and_the_work_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    own_streams()
    first = sys.stderr
    own_streams()
    assert sys.stderr is first
    with Shown(console=Console(stderr=True), clock=iter(range(0, 100, 20)).__next__) as bar:
        bar.advance(bar.add_task("measuring", total=2))
    print("three quarters", file=sys.stderr)
    sys.stderr.writelines(["a", "b"])
    sys.stderr.flush()
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_a_table_that_cannot_be_printed_is_told_as_one() -> None:
    words = ("-m", "sim.moelab", "models", f"from={ASSETS / 'tiny_mixtral'}")
    assert ended(">/dev/full", *words) == (1, FULL)
