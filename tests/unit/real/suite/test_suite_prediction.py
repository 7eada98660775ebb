"""Predictions of a machine's runs: what holds, what misses, and what is fitted and not scored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from real.calibration.facts import Facts, as_json
from real.predict import main
from real.suite.prediction import (
    NAME,
    Row,
    calibrating_facts,
    lines,
    predict,
    taus,
    write_machine,
)
from sim.__main__ import main as simulate

CELLS = ("load_on_demand 0.4", "lru 0.4", "mixtral_offloading 0.4")


def facts() -> Facts:
    """Experts take 5 ms, and 15 ms beside a copy, which takes 7 ms."""
    return Facts(
        copy=[(4096, 150_000.0), (352_321_536, 7_000_000.0)],
        overlapped=[(352_321_536, 7_000_000.0)],
        experts={"fp16": [(1, 5_000_000.0), (16, 5_000_000.0)]},
        expert_bytes={"fp16": 352_321_536},
        beside_copy=15_000_000.0,
        on_cpu=[(1, 6_000_000.0)],
        dense=1_200_000.0,
        tail=3_700_000.0,
        operation=8_000.0,
        host={"sync": 10_000, "issue": 80_000, "wake": 150_000, "post": 25_000},
    )


def write_rows(folder: Path, times_s: Sequence[float]) -> None:
    rows = [
        {
            "cell": cell,
            "result": {
                "tpot_s": {"mean": time_s},
                "real": {"store": {"precisions": {"fp16": {"bytes": 352_321_536}}}},
            },
        }
        for cell, time_s in zip(CELLS, times_s, strict=True)
    ]
    (folder / "suite" / "replay.json").write_text(json.dumps({"rows": rows}))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine whose replays took what it is predicted to take."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "suite").mkdir()
    (folder / "recordings").mkdir()
    (folder / "suite" / "calibration.json").write_text(json.dumps(as_json(facts())))
    told = {"gpu": "a GPU", "processor": "a CPU", "date": "2026-01-02T00:00:00", "gather": []}
    (folder / "suite" / "facts.json").write_text(json.dumps(told))
    write_rows(folder, [1.0] * len(CELLS))
    made = tmp_path_factory.mktemp("machine")
    write_machine(made, folder, *calibrating_facts(folder, []), contention=True)
    rows = predict(folder, made, [], [])
    write_rows(folder, [row.predicted_s or 0.0 for row in rows])
    return folder


def test_replays_that_took_what_was_predicted_hold_every_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"data={data}", f"output_dir={tmp_path}"]) == 0, capsys.readouterr()
    printed = " ".join(capsys.readouterr().out.split())
    assert "MISSED" not in printed
    told = json.loads((tmp_path / "predicted.json").read_text())
    gates = "TRANSPLANTED: gates of tiny_mixtral, sizes of mixtral_8x7b, 16 of its 32 layers"
    assert gates in printed
    assert told["labels"] == [gates]
    assert [row["error"] for row in told["rows"]] == pytest.approx([0.0] * len(CELLS), abs=1e-9)
    assert (tmp_path / "hardware" / f"{NAME}.yaml").is_file()


def with_rows(data: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """The machine of ``data`` with other replays, in a folder without recordings."""
    folder = data.parent / "with_rows"
    (folder / "suite").mkdir(parents=True, exist_ok=True)
    for name in ("calibration.json", "facts.json"):
        (folder / "suite" / name).write_bytes((data / "suite" / name).read_bytes())
    (folder / "suite" / "replay.json").write_text(json.dumps({"rows": rows}))
    return folder


def test_replays_that_did_not_end_or_that_nobody_knows_are_told_and_the_others_scored(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = json.loads((data / "suite" / "replay.json").read_text())["rows"][:2]
    odd = [
        {"cell": "floe 0.4", "status": "refused", "reason": "no room"},
        {"cell": "floe 0.6", "status": "begun"},
        known[0] | {"cell": "unheard_of 0.5"},
    ]
    assert main([f"data={with_rows(data, [*known, *odd])}"]) == 0
    told = capsys.readouterr().out
    assert "2 replays: worst error" in told
    assert "replay of floe at 40%: refused: no room\n" in told
    assert "replay of floe at 60%: begun: it did not end\n" in told
    assert "replay of unheard_of at 50%: In 'config': Could not find 'system/unheard_of'\n" in told


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "has no measured run: neither suite/replay.json nor a folder"),
        ([{"cell": "lru 0.4", "status": "begun"}], "no run was scored, so no line holds"),
    ],
)
def test_nothing_that_can_be_scored_is_an_error(
    rows: list[dict[str, Any]], told: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"data={with_rows(data, rows)}"]) == 2
    assert told in capsys.readouterr().err


def test_a_precision_that_nobody_knows_is_told_and_the_others_are_scored(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times of it stood in the machine's file, on which no run could be built then."""
    rows = json.loads((data / "suite" / "replay.json").read_text())["rows"]
    folder = with_rows(data, rows)
    told = facts()
    told.experts["nf9"] = [(1, 4_000_000.0)]
    told.expert_bytes["nf9"] = 88_080_384
    (folder / "suite" / "calibration.json").write_text(json.dumps(as_json(told)))
    assert main([f"data={folder}"]) == 0
    says = "experts at nf9: no precision here; known: fp32, fp16,"
    assert f"left out of the calibration: {says}" in capsys.readouterr().err
    told.experts.pop("fp16")
    (folder / "suite" / "calibration.json").write_text(json.dumps(as_json(told)))
    assert main([f"data={folder}"]) == 2
    assert f"calibration.json has {says}" in capsys.readouterr().err


@pytest.mark.alike
@pytest.mark.parametrize("control", ["rates=1.1", "rates=0.9", "contention=off"])
def test_a_machine_that_is_wrong_misses(
    control: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"data={data}", control]) == 1
    assert "MISSED" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["recordings", "suite/recordings"])
def test_the_systems_of_calibrating_runs_are_fitted_and_not_scored(
    where: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite leaves recordings in its own folder; a machine's folder has them beside that."""
    place = data / where / "own"
    words = ["system=lru", "model=tiny_gates_half_mixtral", "hardware=h100_sxm_pcie5"]
    words += ["trace.max_sequences=1", "workload=hobbit_16_128", "budget.resident_share=0.4"]
    words += ["workload.prompt_tokens=2", "workload.decode_tokens=4", f"output_dir={place}"]
    monkeypatch.setattr("sys.argv", ["sim", *words, f"hydra.run.dir={data.parent / 'hydra'}"])
    simulate()
    try:
        main([f"data={data}", f"output_dir={tmp_path}"])
    finally:
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
        if where != "recordings":
            place.parent.rmdir()
    rows = json.loads((tmp_path / "predicted.json").read_text())["rows"]
    fitted = [(row["source"], row["system"].split()[0]) for row in rows if row["fitted"]]
    assert fitted == [("replay", "lru"), ("recording", "lru")]
    assert all(row["error"] is not None for row in rows)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["data={data}", "rates=x"], "rates=x must be a number from 0.1 to 10"),
        (["data={data}", "contention=maybe"], "contention=maybe; allowed: on, off"),
        (["data={data}", "calibrating=that"], "that holds no run: there is no such folder"),
        (["data={data}", "what=else"], "'what=else' is neither an option"),
    ],
)
def test_words_that_are_wrong_are_refused(
    words: list[str], told: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(data=data) for word in words]) == 2
    assert told in capsys.readouterr().err


def row(system: str, recorded_s: float, predicted_s: float, **more: Any) -> Row:
    return Row("replay", system, 0.5, recorded_s, predicted_s, more.get("fitted", False))


def test_the_lines_are_of_scored_rows_alone() -> None:
    rows = [row("a", 1.0, 1.02), row("b", 1.0, 0.9), row("c", 1.0, 9.0, fitted=True)]
    median, worst, mean, *_ = lines(rows)
    assert [one.found for one in (median, worst, mean)] == pytest.approx([0.06, 0.1, -0.04])
    assert [one.holds for one in (median, worst, mean)] == [False, True, False]


def test_the_order_counts_pairs_that_differ_by_more_than_twice_the_noise() -> None:
    rows = [row("a", 1.0, 3.0), row("b", 1.05, 2.0), row("c", 2.0, 4.0)]
    assert taus(rows, 0.04) == {0.5: 1.0}
    assert taus(rows, 0.02) == {0.5: pytest.approx(1 / 3)}


def test_a_pair_of_one_predicted_time_has_no_order() -> None:
    assert taus([row("a", 1.0, 3.0), row("b", 2.0, 3.0)], 0.0) == {0.5: 0.0}
