"""Commands let numpy compute in one thread, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sim.verbs.begin import one_thread_for_arrays

NAME = "OPENBLAS_NUM_THREADS"
BY_VERB = """
import os, sys
import sim.moelab
assert "numpy" not in sys.modules, "too late to say it"
sim.moelab.runpy.run_module = lambda *_, **__: print(os.environ["OPENBLAS_NUM_THREADS"])
sim.moelab.main(["run", "system=lru"])
"""


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("4", "4")])
def test_a_number_that_the_user_says_holds(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(NAME, before)
    one_thread_for_arrays()
    assert os.environ[NAME] == after


def test_a_verb_says_it_before_numpy_is_loaded() -> None:
    environment = {name: value for name, value in os.environ.items() if name != NAME}
    done = subprocess.run(
        [sys.executable, "-c", BY_VERB], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"
