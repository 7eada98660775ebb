"""The phone's recorded run as a machine file, a trace and words, where the log is here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.reproduce import phone
from sim.reproduce.checks import phone_lines
from sim.reproduce.phone import (
    FITTED_ON,
    METRICS,
    QUANTITIES,
    ROUTES,
    PhoneError,
    PhoneRun,
    read_run,
)
from sim.values.places import ROOT

FOLDER = ROOT / ".." / "shared" / "traces" / "phone_qwen3_30b"
with_log = pytest.mark.skipif(
    not FOLDER.exists(), reason="the published Qwen3-30B-A3B phone trace is not here"
)


def test_a_folder_without_the_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PhoneError, match=r"qwen\.route\.csv is not there"):
        read_run(tmp_path)


def test_a_log_without_its_columns_and_routes_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / ROUTES).write_text("# no route trace\n", encoding="utf-8")
    (tmp_path / METRICS).write_text("step,wall_ms\n1,2.0\n", encoding="utf-8")
    with pytest.raises(PhoneError, match="must have numbers in the columns io_ms, stall_ms"):
        read_run(tmp_path)
    columns = "step,wall_ms,io_ms,stall_ms,read_bytes\n1,2.0,3.0,1.0,5\n"
    (tmp_path / METRICS).write_text(columns, encoding="utf-8")
    with pytest.raises(PhoneError, match=r"qwen\.route\.csv cannot be imported"):
        read_run(tmp_path)


def test_routes_and_metrics_of_other_tokens_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ROUTES).touch()
    columns = "step,wall_ms,io_ms,stall_ms,read_bytes\n1,2.0,3.0,1.0,5\n"
    (tmp_path / METRICS).write_text(columns, encoding="utf-8")
    monkeypatch.setattr(phone, "_import", lambda routes, trace: None)
    found = np.ones(1)
    monkeypatch.setattr(phone, "simulated_ms", lambda words: dict.fromkeys(QUANTITIES, found))
    assert read_run(tmp_path).read_bytes.tolist() == [5.0]
    found = np.ones(2)
    with pytest.raises(
        PhoneError,
        match=f"^{tmp_path}: 2 decoded tokens in the routes, 1 in the metrics$",
    ):
        read_run(tmp_path)


def test_the_printed_line_has_medians_of_errors_their_signs_and_the_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second half is 10 % and 20 % off; a line in the bytes meets what grows with them."""
    tokens = np.arange(1.0, 2 * FITTED_ON + 1)
    columns = dict.fromkeys(QUANTITIES, 3.0 + 2.0 * tokens)
    predicted = {
        name: columns[name] * by for name, by in zip(QUANTITIES, (1.1, 0.8, 1.0), strict=True)
    }
    run = PhoneRun(columns, predicted, tokens)
    monkeypatch.setattr(phone, "read_run", lambda folder: run)
    told = " ".join(phone_lines(Path("any")))
    for name, words in zip(
        QUANTITIES, ("10.0% (+10.0%", "20.0% (-20.0%", "0.0% (+0.0%"), strict=True
    ):
        assert f"{name} {words}; a line 0.0%)" in told


def test_errors_are_of_the_tokens_after_the_fitted_ones_and_so_is_the_line() -> None:
    tokens = np.arange(1.0, 2 * FITTED_ON + 1)
    columns = dict.fromkeys(("io", "stall", "wall"), 3.0 + 2.0 * tokens)
    predicted = {name: column * 1.5 for name, column in columns.items()}
    run = PhoneRun(columns, predicted, tokens)
    assert np.allclose(run.error("stall"), [0.5] * FITTED_ON)
    assert np.allclose(run.line("stall"), columns["stall"])


@pytest.fixture(scope="module")
def recorded() -> PhoneRun:
    return read_run(FOLDER)


@pytest.mark.alike
@with_log
@pytest.mark.parametrize(
    ("name", "most", "most_signed"),
    [("io", 0.03, 0.02), ("stall", 0.055, 0.02), ("wall", 0.07, 0.07)],
)
def test_the_recorded_run_is_predicted_by_the_machine_file(
    recorded: PhoneRun, name: str, most: float, most_signed: float
) -> None:
    error = recorded.error(name)
    assert np.median(np.abs(error)) <= most
    assert abs(np.median(error)) <= most_signed
