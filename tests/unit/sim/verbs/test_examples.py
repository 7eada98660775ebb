"""The examples of a verb's help run as printed, one after the other in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.pages import Shell
from sim.verbs.table import VERBS, verb_of

QUICK = ("list", "lint")
NOT_RUN = {
    "get": "it downloads",
    "check": "its log is the reader's",
    "import": "its files are the reader's",
    "calibrate": "its log is the reader's",
    "models": "its config.json is the reader's",
    "leaderboard": "it takes many minutes",
    "certify": "its certificates are of the leaderboard",
    "study": "its searches take many minutes",
    "reproduce": "it takes an hour",
    "capture check_synthesis": "it takes many minutes",
}
"""Verbs whose examples no test runs, and why. Those of a device are with `real`'s own tests."""
SLOW = [
    verb.name
    for verb in VERBS
    if verb.name not in (*QUICK, *NOT_RUN) and not verb.module.startswith("real")
]


def run_all(name: str, folder: Path) -> None:
    shell = Shell(folder, {})
    for example in verb_of(name).examples:
        told = shell.run(f"moelab {example}")
        assert told.status == 0, f"{example}: {told.err or told.out}"


@pytest.mark.filterwarnings("default", "ignore:.*found in sys.modules")
@pytest.mark.parametrize("name", QUICK)
def test_quick_examples_run_as_printed(name: str, tmp_path: Path) -> None:
    run_all(name, tmp_path / "here")


@pytest.mark.thorough
@pytest.mark.filterwarnings("default", "ignore:.*found in sys.modules")
@pytest.mark.parametrize("name", SLOW)
def test_examples_run_as_printed(name: str, tmp_path: Path) -> None:
    run_all(name, tmp_path / "here")


def test_every_verb_has_its_examples_run_or_a_reason() -> None:
    assert set(NOT_RUN) | set(QUICK) <= {verb.name for verb in VERBS}
