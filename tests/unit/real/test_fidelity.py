"""``python -m real.fidelity``: what it prints, how it leaves, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml  # type: ignore[import-untyped]

from real import fidelity
from real.fidelity import disagreeing, main
from real.suite.pairs import read_pairs, validated_of
from real.suite.prediction import REPLAYS, Row, calibrating_facts, calibrating_runs, write_machine
from real.suite.sheets import by_machine, sheet_errors
from sim.machine.data_sheets import KEPT
from sim.machine.hardware import NEVER
from sim.results.labels import Labels
from sim.study.trials import trial
from sim.values.places import ROOT

MEASURED = "h100_sxm_pcie5_measured"
OURS = ROOT / "real" / "results" / "nvidia_h100_80gb_hbm3" / "2026-11-27"
"""What the H100s left that the file was made of."""


def test_it_prints_both_tables_and_leaves_with_1_where_a_line_is_missed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([]) == 1
    told = capsys.readouterr().out
    assert "as kept in pairs.csv" in told
    assert "errors of predicted times" in told
    assert "missed" in told
    assert "H100, an engine of threads: TRANSPLANTED: gates of tiny_mixtral, sizes of mix" in told
    assert (
        "RTX 5090; OnePlus 15R; RTX 4090; GB10; Strix Halo: SYNTHETIC gates: synthetic_qwen3_30b_a3b"
        in told
    )
    monkeypatch.setattr(fidelity, "all_lines", lambda _: [])
    assert main([]) == 0


def test_it_writes_pairs_tables_and_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([f"output_dir={tmp_path / 'out'}"])
    names = ("fidelity.md", "fidelity.png", "fidelity.svg", "pairs.csv")
    assert sorted(place.name for place in (tmp_path / "out").iterdir()) == sorted(names)
    assert read_pairs(tmp_path / "out" / "pairs.csv") == read_pairs()
    capsys.readouterr()


def test_kept_tokens_of_phone_runs_that_are_not_in_the_folder_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The folder has Qwen3's run alone: the two others come from the kept pairs."""
    tokens = [pair for pair in read_pairs() if pair.source == "token"]
    again = [replace(pair, predicted_s=1.0) for pair in tokens if pair.basis == tokens[0].basis]
    monkeypatch.setattr(fidelity.gather, "of_phone", lambda place: again)
    pairs, _ = fidelity._gathered({"phone": "any"}, [])
    found = [pair for pair in pairs if pair.source == "token"]
    assert found[: len(again)] == again
    assert found[len(again) :] == [pair for pair in tokens if pair.basis != tokens[0].basis]
    assert len({pair.basis for pair in found}) == 3


def test_a_report_of_the_suite_gives_the_kept_pairs_of_its_machine() -> None:
    """Kept pairs of other machines stay."""
    kept = [pair for pair in read_pairs() if pair.source == "validation"]
    found = fidelity.gather.of_validation(OURS)
    assert [(p.machine, p.run, p.predicted_s) for p in found] == [
        (p.machine, p.run, pytest.approx(p.predicted_s)) for p in kept if p.machine == "H100"
    ]
    assert len(found) < len(kept)
    assert fidelity.gather.of_validation(ROOT) == []


def test_a_run_without_a_pair_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine with three replays one did not end, and one cannot be simulated here."""
    rows = [
        Row("replay", "lru", 0.4, 2.0, 1.0, False),
        Row("replay", "fate", 0.4, None, None, False, "failed: out of memory"),
        Row("recording", "floe (qwen3)", 0.25, 2.0, None, False, "no trace at /nowhere"),
    ]
    facts = SimpleNamespace(left_out=["experts on the CPU: not measured"])
    for name, answer in (
        ("of_suite", lambda folder, name, shape: {"gpu": "some GPU"}),
        ("calibrating_runs", lambda folder: []),
        ("noise_of", lambda folder: 0.01),
        ("calibrating_facts", lambda folder, runs: (facts, {})),
        ("_predicted", lambda folder, runs, words, **of: rows),
        ("gates_of_replays", Labels),
    ):
        monkeypatch.setattr(fidelity.gather, name, answer)
    monkeypatch.setattr(fidelity, "read_pairs", list)
    pairs, told = fidelity._gathered({"data": "kept"}, [])
    assert [pair.run for pair in pairs if pair.machine == "some GPU"] == ["lru"]
    assert told[:4] == [
        "left out of the calibration: experts on the CPU: not measured",
        "no pair: replay fate at 0.4: failed: out of memory",
        "no pair: recording floe (qwen3) at 0.25: no trace at /nowhere",
        "replay, recording: 1 pair, simulated again from kept",
    ]


def test_every_machine_says_the_error_that_its_pairs_have() -> None:
    assert list(disagreeing(validated_of(read_pairs()), KEPT)) == []


def test_the_errors_of_data_sheets_are_those_of_the_pairs_and_another_one_is_told() -> None:
    found = sheet_errors(by_machine(read_pairs()))
    assert list(disagreeing(validated_of(read_pairs()), found)) == []
    (line,) = disagreeing(validated_of(read_pairs()), replace(found, machines=found.machines + 1))
    assert line.startswith("sim/machine/data_sheets.py says")


def test_a_machine_that_says_another_error_is_told_and_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = validated_of(read_pairs())
    name = next(iter(found))
    wrong = {**found, name: replace(found[name], runs=found[name].runs + 1)}
    assert [line.split()[0] for line in disagreeing(wrong, KEPT)] == [f"conf/hardware/{name}.yaml"]
    assert [line.split()[0] for line in disagreeing({**found, "gb10": found[name]}, KEPT)] == [
        "conf/hardware/gb10.yaml"
    ]
    monkeypatch.setattr(fidelity, "all_lines", lambda _: [])
    monkeypatch.setattr(fidelity, "validated_of", lambda _: wrong)
    assert main([]) == 1
    assert "its pairs say" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(("system", "share"), [("lru", 0.6), ("load_on_demand", 0.4)])
def test_a_kept_time_is_what_the_machines_file_gives_today(system: str, share: float) -> None:
    """Else what is kept is of another simulator: moelab fidelity data=DIR makes it anew."""
    (kept,) = (
        pair
        for pair in read_pairs()
        if (pair.source, pair.file, pair.run, pair.share) == ("replay", MEASURED, system, share)
    )
    words = (f"system={system}", f"hardware={MEASURED}", f"budget.resident_share={share}")
    found = trial((*words, *REPLAYS)).summary
    assert found["tpot_s"]["mean"] == pytest.approx(kept.predicted_s, rel=1e-5)
    assert found["labels"]["machine"].startswith(f"{MEASURED}: tokens/s are within")


@pytest.mark.thorough
def test_the_machine_of_the_catalogue_is_what_its_data_make(tmp_path: Path) -> None:
    facts, params = calibrating_facts(OURS, calibrating_runs(OURS))
    write_machine(tmp_path, OURS, facts, params, contention=True, name=MEASURED)
    made = yaml.safe_load((tmp_path / "hardware" / f"{MEASURED}.yaml").read_text())
    kept = yaml.safe_load((ROOT / "conf" / "hardware" / f"{MEASURED}.yaml").read_text())
    assert {**kept, "validated": NEVER} == made


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["control=off"], "control=off: off is none of rates_1.1"),
        (["data=nowhere"], "data=nowhere: there is no such file or folder"),
        (["fields=x"], "'fields=x' is neither KEY=VALUE of data"),
        (["m:trace.path=x"], "m:trace.path=x changes recordings, and data=DIR does not name any"),
    ],
)
def test_words_that_are_wrong_are_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ("{}", "lacks gpu: it was changed"),
        ("[]", "lacks gpu: it was changed"),
        ("{", "is no JSON ("),
        (None, "cannot be read (No such file or directory): name a folder with suite/"),
    ],
)
def test_facts_of_no_machine_are_refused_by_their_file(
    facts: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "suite" / "facts.json"
    path.parent.mkdir()
    if facts is not None:
        path.write_text(facts)
    assert main([f"data={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {path} {told}")
