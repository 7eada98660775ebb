"""The phone's recorded run as a machine file, a trace and words, where the log is here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.reproduce import phone
from sim.reproduce.checks import phone_lines
from sim.reproduce.phone import (
    GEMMA,
    GPT_OSS,
    QUANTITIES,
    QWEN,
    PhoneError,
    PhoneRun,
    read_run,
    read_runs,
)
from sim.values.places import ROOT

FITTED_ON, ROUTES, METRICS = QWEN.fitted, QWEN.routes, QWEN.metrics
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


@pytest.mark.parametrize(
    ("row", "column"), [("1,2.0,3.0,nan,5", "stall_ms"), ("1,2.0,3.0,1.0,inf", "read_bytes")]
)
def test_what_is_no_number_is_refused_with_its_column(
    row: str, column: str, tmp_path: Path
) -> None:
    """The medians of its errors were told as nan%."""
    (tmp_path / ROUTES).touch()
    columns = f"step,wall_ms,io_ms,stall_ms,read_bytes\n{row}\n"
    (tmp_path / METRICS).write_text(columns, encoding="utf-8")
    with pytest.raises(PhoneError, match=f"numbers in the columns .*: {column} has what is no"):
        read_run(tmp_path)


def test_a_run_of_which_no_token_can_be_judged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.arange(1.0, FITTED_ON + 1)
    columns = dict.fromkeys(QUANTITIES, tokens)
    monkeypatch.setattr(phone, "read_runs", lambda folder: [PhoneRun(columns, columns, tokens)])
    with pytest.raises(
        PhoneError, match=r"qwen\.metrics has 64 decoded tokens; the machine is drawn"
    ):
        phone_lines(Path("any"))


def test_routes_and_metrics_of_other_tokens_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ROUTES).touch()
    columns = "step,wall_ms,io_ms,stall_ms,read_bytes\n1,2.0,3.0,1.0,5\n"
    (tmp_path / METRICS).write_text(columns, encoding="utf-8")
    monkeypatch.setattr(phone, "_import", lambda routes, trace, facts: None)
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
    monkeypatch.setattr(phone, "read_runs", lambda folder: [run])
    told = " ".join(phone_lines(Path("any")))
    for name, words in zip(
        QUANTITIES, ("10.0% (+10.0%", "20.0% (-20.0%", "0.0% (+0.0%"), strict=True
    ):
        assert f"{name} {words}; a line 0.0%)" in told


@pytest.mark.filterwarnings("error")
def test_tokens_that_took_no_time_have_no_error_and_a_column_of_them_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Errors of tokens without a stall were infinite, and of those predicted so nan%."""
    tokens = np.arange(1.0, 2 * FITTED_ON + 1)
    columns = {"io": 2 * tokens, "stall": 2 * tokens, "wall": np.zeros(len(tokens))}
    columns["stall"][FITTED_ON : 2 * FITTED_ON - 10] = 0
    predicted = dict.fromkeys(columns, 1.5 * tokens)
    predicted["stall"][FITTED_ON] = 0
    qwen = PhoneRun(columns, predicted, tokens)
    other = PhoneRun(columns, predicted, tokens, GEMMA)
    monkeypatch.setattr(phone, "read_runs", lambda folder: [qwen, other])
    _, head, _, whole, half = phone_lines(Path("any"))
    for line in (head, whole, half):
        assert "stall 25.0% (" in line
        assert "wall" not in line
        assert "nan%" not in line
        assert "inf%" not in line


def test_errors_are_of_the_tokens_after_the_fitted_ones_and_so_is_the_line() -> None:
    tokens = np.arange(1.0, 2 * FITTED_ON + 1)
    columns = dict.fromkeys(("io", "stall", "wall"), 3.0 + 2.0 * tokens)
    predicted = {name: column * 1.5 for name, column in columns.items()}
    run = PhoneRun(columns, predicted, tokens)
    assert np.allclose(run.error("stall"), [0.5] * FITTED_ON)
    assert np.allclose(run.line("stall"), columns["stall"])


def test_a_line_of_another_run_has_that_runs_constants() -> None:
    """Qwen's column is 3 + 2 a byte, and says so of a run whose own column is 5 + 7 a byte."""
    tokens = np.arange(1.0, 2 * FITTED_ON + 1)
    qwen = PhoneRun(dict.fromkeys(QUANTITIES, 3 + 2 * tokens), {}, tokens)
    other = PhoneRun(dict.fromkeys(QUANTITIES, 5 + 7 * tokens), {}, tokens, GEMMA)
    assert np.allclose(other.line("io", qwen), 3 + 2 * tokens)
    assert np.allclose(other.line("io"), 5 + 7 * tokens)


def test_every_token_of_a_run_that_nothing_is_fitted_to_is_scored() -> None:
    column = dict.fromkeys(QUANTITIES, np.ones(6))
    run = PhoneRun(column, {name: 1.5 * one for name, one in column.items()}, np.ones(6), GPT_OSS)
    assert run.error("wall").tolist() == [0.5] * 6
    assert run.half == 3


def test_the_printed_lines_of_another_run_set_it_beside_both_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Predicted 10 % too long; Qwen's line is half as much, the run's own meets it."""
    tokens = np.arange(1.0, 2 * FITTED_ON + 1)
    qwen = PhoneRun(dict.fromkeys(QUANTITIES, tokens), dict.fromkeys(QUANTITIES, tokens), tokens)
    column = dict.fromkeys(QUANTITIES, 2 * tokens)
    predicted = {name: 1.1 * one for name, one in column.items()}
    run = PhoneRun(column, predicted, tokens, GEMMA)
    monkeypatch.setattr(phone, "read_runs", lambda folder: [qwen, run])
    _, _, head, whole, half = phone_lines(Path("any"))
    assert head.startswith("Phone, Gemma-4-26B-A4B: system=lru loader=bigmoe")
    assert head.endswith("nothing of this run is fitted.")
    own = [f"{name} 10.0% (+10.0%; a line 50.0%, -50.0%)" for name in QUANTITIES]
    assert whole == (
        "  Its 128 tokens, median error (with its sign; a line with Qwen3-30B-A3B's constants): "
        f"{', '.join(own)}."
    )
    later = [f"{name} 10.0% (a line 0.0%)" for name in QUANTITIES]
    assert half == (
        f"  Its tokens after 64 (a line fitted to this run's first 64): {', '.join(later)}."
    )


# A log by hand, of the published schema


def routes_by_hand(model: str, arch: str, layers: int, size: int, top_k: int) -> str:
    """One prompt token and two decoded ones; each layer asks for experts 0 and on, then for others.

    The second decoded token finds what the first has read.
    """
    lines = [
        "# route_trace v1",
        f"# model=/data/{model}.gguf arch={arch} n_layer={layers} n_expert=128"
        f" n_expert_used={top_k}",
        *(f"# layer={layer} expert_bytes={size} dense_bytes=40000000" for layer in range(layers)),
        "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes",
    ]
    for step, (first, resident) in enumerate(((0, 0), (top_k, 0), (top_k, 1))):
        lines += [
            f"0,{min(step, 1)},{step},{layer},{slot},{first + slot},{0.9 - slot / 10:.1f},"
            f"{resident},{0 if resident else size}"
            for layer in range(layers)
            for slot in range(top_k)
        ]
    return "\n".join([*lines, ""])


HAND = {
    QWEN: ("Qwen3-30B-A3B-Q4_K_M", "qwen3moe", 48, 3_059_712, 6),
    GEMMA: ("google_gemma-4-26B-A4B-it-Q4_K_M", "gemma4", 30, 4_336_640, 6),
    GPT_OSS: ("gpt-oss-120b-Q4_K_M", "gpt-oss", 36, 13_219_200, 2),
}
TIMES = "step,wall_ms,io_ms,stall_ms,read_bytes\n1,200,300,100,500\n2,100,10,5,7\n# summary\n"


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phone")
    for recording, told in HAND.items():
        (folder / recording.routes).write_text(routes_by_hand(*told), encoding="utf-8")
        (folder / recording.metrics).write_text(TIMES, encoding="utf-8")
    return folder


@pytest.mark.thorough
def test_each_run_whose_files_are_there_is_simulated_with_its_own_sizes(by_hand: Path) -> None:
    runs = read_runs(by_hand)
    assert [run.recording for run in runs] == [QWEN, GEMMA, GPT_OSS]
    for run in runs:
        _, _, layers, size, top_k = HAND[run.recording]
        first, second = run.predicted["io"]
        read_ms = layers * top_k * size / 0.886928e6
        assert read_ms < first < 1.3 * read_ms
        assert second == 0
        assert run.measured["stall"].tolist() == [100.0, 5.0]


def test_a_run_with_one_of_its_two_files_is_refused(by_hand: Path, tmp_path: Path) -> None:
    for recording, told in HAND.items():
        (tmp_path / recording.routes).write_text(routes_by_hand(*told), encoding="utf-8")
    (tmp_path / QWEN.metrics).write_text(TIMES, encoding="utf-8")
    with pytest.raises(PhoneError, match=r"gemma\.metrics is not there"):
        read_runs(tmp_path)


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
