"""What a command refuses by itself it refuses before it loads or makes what takes long."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.wrong_words import FILES, LATER
from real.suite import __main__ as suite
from real.suite import needs
from sim.values.places import ASSETS, ROOT

CALL = """
import json, sys
from sim.moelab import main
try:
    status = main(sys.argv[1:])
except SystemExit as left:
    status = left.code
print(json.dumps([status, [*sys.modules]]))
"""


@pytest.mark.alike
@pytest.mark.parametrize(("line", "told"), LATER.items(), ids=list(LATER))
def test_a_wrong_input_is_refused_before_anything_slow(
    line: str, told: str, tmp_path: Path
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "tiny_mixtral").symlink_to(ASSETS / "tiny_mixtral")
    before = {path.name for path in tmp_path.iterdir()}
    ran = subprocess.run(
        [sys.executable, "-c", CALL, *shlex.split(line)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    status, loaded = json.loads(ran.stdout.splitlines()[-1])
    assert status == 2, ran.stderr
    assert told in ran.stderr
    # A question of whatif needs no composed run, either.
    slow = {"torch", "transformers", "matplotlib.pyplot", *["hydra"] * line.startswith("whatif")}
    assert not slow & set(loaded)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_the_suite_imports_nothing_where_a_package_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tried(device: str) -> list[needs.Missing]:
        raise AssertionError("importing torch alone takes seconds")

    monkeypatch.setattr(suite, "missing", tried)
    monkeypatch.setitem(needs.NEEDED, "no_such_package.part", "no-such-package")
    told = suite.lacking_here("host", "tiny")
    assert told is not None
    assert told.startswith("no_such_package.part cannot be imported (it is not installed)")
    monkeypatch.delitem(needs.NEEDED, "no_such_package.part")
    assert needs.absent("host") == []
