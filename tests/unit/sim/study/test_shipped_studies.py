"""Every cell of every study in conf/study can run."""

from __future__ import annotations

import pytest

from sim.study.plan import read_plan
from sim.study.trials import prepared
from sim.values.places import ROOT

LISTED = ("hobbit_parts", "hobbit_front_check")
OF_BUNDLED_TRACES = (
    *LISTED,
    "budgets",
    "new_policy_test",
    "new_policy_rivals",
    "policy_test_bundled",
)
SEARCHES = ("hobbit_front", "hobbit_weights", "new_policy")
OF_OTHER_TRACES = (
    "new_policy_gpt_oss",
    "new_policy_gpt_oss_all",
    "policy_test",
    "prefetch_test",
)
OF_ALL_FILES = ("leaderboard",)
"""Some files need settings that others have not: the page names what is refused, and why."""


def test_each_study_is_one_that_is_tried_here_or_needs_what_is_not_bundled() -> None:
    there = {path.stem for path in (ROOT / "conf" / "study").glob("*.yaml")}
    assert there == {*OF_BUNDLED_TRACES, *SEARCHES, *OF_OTHER_TRACES, *OF_ALL_FILES}
    assert all(read_plan(name).search and not read_plan(name).cells() for name in SEARCHES)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in LISTED else pytest.mark.thorough)
        for name in OF_BUNDLED_TRACES
    ],
)
def test_no_cell_is_refused(name: str) -> None:
    plan = read_plan(name)
    cells = plan.cells()
    assert cells
    for values, words in cells:
        varied = (f"{key}={value}" for key, value in values.items())
        prepared([*plan.base, *varied, *words, *plan.last, "trace.max_sequences=1"])


def test_every_cache_predictor_and_selector_is_on_the_leaderboard() -> None:
    cells = [values for values, _ in read_plan("leaderboard").cells()]
    for group in ("cache", "predictor", "precision"):
        files = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
        assert files == {values[group] for values in cells if group in values} | (files & {"none"})
