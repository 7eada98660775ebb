"""Two small runs worked by hand in docs/metrics.md: every key of summary.json, and the audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.worked import FIRST, SECOND, STAGED, make_run, page_values
from sim.audit.__main__ import main as audit_main
from sim.audit.rules import flat
from sim.results.outputs import write_outputs
from sim.setup.execute import execute

NOT_BY_HAND = (
    "schema",
    "version",
    "system",
    "model",
    "hardware",
    "preset",
    "workload",
    "seed",
    "calibration",
    "ci95",
    "trace.name",
    "trace.sha256",
    "trace.source",
    "trace.gates",
    "trace.split",
    "trace.findings",
    "bounds.link_s",
    "bounds.relaxed_s",
    "bounds.lower_s",
    "bounds.method",
    "bounds.belady_loads",
    "bounds.why_no_belady",
    "gap",
    "slowed_s",
    "trace.numbers",
    "labels",
    "prediction.prompts",
)
"""Keys that the page does not work out: identity, proofs (docs/bounds.md), intervals.

Of the contracts it has only the number of waves.
"""


def summary_of(folder: Path, **loader: Any) -> dict[str, Any]:
    """The summary.json of a run written into ``folder``, with dotted keys."""
    run = make_run(**loader)
    result = execute(run)
    write_outputs(folder, result.summary, run.config, result.frames, "as_ready", None)
    return dict(flat(json.loads((folder / "summary.json").read_text(encoding="utf-8"))))


def by_hand(run: str) -> dict[str, int | float | None]:
    return page_values(FIRST) | (page_values(SECOND) if run == "second" else {})


def is_same(told: Any, value: float | None) -> bool:
    return (
        told is None
        if value is None
        else told is not None and told == pytest.approx(value, rel=1e-12)
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp("worked") / name for name in ("first", "second")}


@pytest.fixture(scope="module", params=["first", "second"])
def worked(request: pytest.FixtureRequest, folders: dict[str, Path]) -> tuple[str, dict[str, Any]]:
    loader = STAGED if request.param == "second" else {}
    return request.param, summary_of(folders[request.param], **loader)


# Contracts: C51, C107, C108, C109, C111, C112
def test_every_key_is_what_the_page_works_out(worked: tuple[str, dict[str, Any]]) -> None:
    run, told = worked
    expected = by_hand(run)
    assert len(page_values(FIRST)) > 60
    assert set(expected) <= set(told), set(expected) - set(told)
    wrong = {
        key: (told[key], value) for key, value in expected.items() if not is_same(told[key], value)
    }
    assert not wrong, "summary.json, page"
    silent = {
        key: value
        for key, value in told.items()
        if key not in expected
        and not key.startswith("contracts.")
        and not any(key == name or key.startswith(f"{name}.") for name in NOT_BY_HAND)
    }
    assert [key for key, value in silent.items() if value not in (0, None, [])] == [], (
        "what the page does not name is 0"
    )


def test_the_gap_is_to_the_lower_bound(worked: tuple[str, dict[str, Any]]) -> None:
    told = worked[1]
    assert told["gap"] == pytest.approx(told["makespan_s"] / told["bounds.lower_s"] - 1)


def test_the_audit_agrees(
    worked: tuple[str, dict[str, Any]], folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit_main([str(folders[worked[0]])]) == 0
    assert ", 0 differ" in capsys.readouterr().out
