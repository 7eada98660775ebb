"""What the suite's command is told, what is missing on a machine, and what is carried to it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import real.suite.needs as needs
from real.suite.__main__ import main, parse
from real.suite.needs import Missing, advice, missing, pack


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("device=tpu", "device=tpu; allowed: cuda, host"),
        ("size=huge", "size=huge; allowed: full, small, tiny"),
        ("pieces=probe,nothing", "nothing is no piece; known: probe, verify"),
        ("minutes=0", "minutes=0 must be a number above 0"),
        ("archive=nowhere/all.tar.gz", "nowhere is no folder"),
        ("budget=1", "'budget=1' is no KEY=VALUE of device, size"),
    ],
)
def test_a_wrong_word_is_refused_with_what_is_allowed(word: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    assert told in capsys.readouterr().err


def test_pieces_come_in_the_order_asked_for() -> None:
    asked = parse(["device=host", "pieces=replay,probe", "again=probe", "minutes=2.5"])
    assert [piece.name for piece in asked.pieces] == ["replay", "probe"]
    assert (asked.size, asked.again, asked.minutes) == ("small", ("probe",), 2.5)


def test_what_is_missing_is_told_with_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(needs.NEEDED, "no_such_module", "no-such-package")
    (found,) = missing("host", ["simpy", "no_such_module", "triton"])
    assert found == Missing(
        "no_such_module", "no-such-package", "ModuleNotFoundError: No module named 'no_such_module'"
    )
    text = advice([found])
    assert "python -m pip install no-such-package" in text
    assert "python -m real.suite pack modules=no_such_module output=carried.tar.xz" in text


def test_packed_modules_can_be_imported_elsewhere(tmp_path: Path) -> None:
    packed = tmp_path / "carried.tar.xz"
    assert pack(["simpy"], packed) == packed.stat().st_size
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "there", filter="data")
    code = "import simpy; print(simpy.__file__); simpy.Environment().run(until=1)"
    done = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(tmp_path / "there")},
                          capture_output=True, text=True)  # fmt: skip
    assert done.stdout.startswith(str(tmp_path / "there")), done.stderr
    with pytest.raises(ValueError, match="must be a new file"):
        pack(["simpy"], packed)


def test_code_for_one_version_of_python_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"numpy holds .* which only Python 3\.\d+ can load"):
        pack(["numpy"], tmp_path / "carried.tar.xz")
    assert not list(tmp_path.iterdir())
