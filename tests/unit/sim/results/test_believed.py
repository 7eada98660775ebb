"""Intervals with a machine's error: by hand, by simulation, and where there are none."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import stdtrit

from sim.audit.__main__ import main as audit_main
from sim.machine.data_sheets import KEPT, believed
from sim.machine.validated import Validated
from sim.results.believed import coarse, decode_parts
from sim.results.intervals import estimate, interval_beside, mean_interval, ratio_interval
from sim.results.outputs import answer, write_outputs
from sim.setup.execute import execute
from sim.study.trials import prepared, trial

ERROR = "{_target_:sim.machine.Validated,runs:18,systems:6,median_factor:1.05,worst_factor:1.3,log_error:0.1}"
FEW = ("system=lru", "trace.max_sequences=3", "workload.decode_tokens=4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two machines whose times were compared: one that was measured, and one from data sheets."""
    place = tmp_path_factory.mktemp("conf")
    (place / "hardware").mkdir()
    error = ERROR.replace(",", ", ").replace(":", ": ")
    for name, preset in (("known", "calibrated"), ("sheets", "roofline")):
        text = (
            f"defaults: [a5000_pcie4, _self_]\nname: {name}\npreset: {preset}\nvalidated: {error}\n"
        )
        (place / "hardware" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return place


def on(folder: Any, *words: str, machine: str = "known") -> dict[str, Any]:
    place = f"hydra.searchpath=[file://{folder}]"
    return trial((*FEW, f"hardware={machine}", place, *words)).summary


def test_variances_add_and_the_degrees_of_freedom_are_satterthwaites() -> None:
    """Two equal sequences: one degree of freedom. Worked out with the definition's own numbers."""
    above, below = np.array([1.0, 1.0]), np.array([1.0, 1.21])
    own = estimate(above, below)
    assert own is not None
    square, more = float(own.error) ** 2, 0.04
    freedom = (square + more) ** 2 / (square**2 / float(own.freedom) + more**2 / 5)
    reach = stdtrit(freedom, 0.975) * sqrt(square + more)
    low, high = interval_beside(above, below, 0.2, 5) or (0, 0)
    assert (low, high) == pytest.approx((2 / 2.21 / exp(reach), 2 / 2.21 * exp(reach)))


def test_sequences_that_do_not_vary_leave_the_machines_error_alone() -> None:
    same = np.ones(4)
    reach = stdtrit(6, 0.975) * 0.1
    assert interval_beside(same, same, 0.1, 6) == pytest.approx((exp(-reach), exp(reach)))


def test_a_machine_without_error_changes_nothing() -> None:
    above, below = np.array([3.0, 4.0, 5.0]), np.array([1.0, 1.2, 1.9])
    assert interval_beside(above, below, 0.0, 6) == pytest.approx(ratio_interval(above, below))


def test_a_difference_has_no_factor_beside_it() -> None:
    found = estimate(np.array([1.0, 2.0]), np.ones(2), is_log=False)
    assert found is not None
    assert mean_interval(np.array([1.0, 2.0]), np.ones(2)) is not None
    with pytest.raises(ValueError, match="goes with a ratio's logarithm"):
        found.beside(0.1, 3)


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("sequences", "systems"), [(4, 3), (4, 8), (16, 6)])
def test_nineteen_of_twenty_intervals_hold_what_a_new_system_takes(
    sequences: int, systems: int, shared: float
) -> None:
    """A machine's errors are of systems, three runs each, of which a part is the system's own.

    ``shared`` is that part of the variance; the next run is of a new system.
    """
    random, trials, spread = np.random.default_rng(sequences * 100 + systems), 20_000, 0.1
    own = random.normal(0, sqrt(shared), (trials, systems, 1))
    runs = spread * (own + random.normal(0, sqrt(1 - shared), (trials, systems, 3)))
    new = spread * random.normal(0, 1, (trials, 1))
    found = estimate(
        np.ones((trials, sequences)), np.exp(random.normal(0, 0.1, (trials, sequences)) + new)
    )
    assert found is not None
    low, high = found.beside(np.sqrt((runs**2).mean((1, 2))), systems).interval()
    truth = exp(-(0.1**2) / 2)
    assert 0.94 <= np.mean((low <= truth) & (truth <= high)) <= 0.98
    # The sequences' interval alone knows nothing of the machine.
    low, high = found.interval()
    assert np.mean((low <= truth) & (truth <= high)) <= 0.8


def test_a_run_quotes_its_machine_and_adds_its_error(folder: Any) -> None:
    summary = on(folder)
    told = summary["calibration"]
    assert (told["validated"], told["error"]["runs"]) == ("compared", 18)
    assert summary["labels"]["machine"] == f"known: {Validated(18, 6, 1.05, 1.3, 0.1)}"
    for name in ("decode_tokens_per_s", "tpot_s"):
        (low, high), (least, most) = summary["ci95"][name], told["ci95"][name]
        assert least < low < high < most
    low, high = told["ci95"]["decode_tokens_per_s"]
    assert f"; with the machine's error {coarse(low)} to {coarse(high)})" in answer(summary)


def test_a_machine_from_data_sheets_shares_the_errors_of_all_of_them(folder: Any) -> None:
    """Its own six systems and those machines are averaged; alone these are what is expected."""
    for machine, own in (("sheets", Validated(18, 6, 1.05, 1.3, 0.1)), ("a5000_pcie4", None)):
        result = execute(
            prepared((*FEW, f"hardware={machine}", f"hydra.searchpath=[file://{folder}]"))
        )
        told = result.summary["calibration"]
        expected = believed(own, KEPT)
        assert expected is not None
        parts = decode_parts(result.frames)["decode_tokens_per_s"]
        assert told["ci95"]["decode_tokens_per_s"] == interval_beside(*parts, *expected)
        assert told["data_sheets"] == asdict(KEPT)
        low, high = told["ci95"]["decode_tokens_per_s"]
        words = f"; with the error of data sheets {coarse(low)} to {coarse(high)})"
        assert words in answer(result.summary)


@pytest.mark.alike
@pytest.mark.parametrize(
    ("word", "is_known"),
    [
        ("hardware.memory_gib=48", True),
        ("hardware.reserved_gib=1", True),
        ("hardware.links.pcie.peak_gb_per_s=20", False),
        ("+hardware.beside={compute:{pcie:2.0}}", False),
        ("devices=copies_2", False),
    ],
)
def test_a_machine_with_other_figures_is_another_machine(
    folder: Any, word: str, is_known: bool
) -> None:
    summary = on(folder, word)
    assert (summary["calibration"]["error"] is not None) == is_known
    assert ("was ever compared" in summary["labels"]["machine"]) != is_known
    assert ("machine's error" in answer(summary)) == is_known


def test_one_sequence_has_the_quote_and_no_interval(folder: Any) -> None:
    summary = on(folder, "trace.max_sequences=1")
    assert summary["calibration"]["ci95"] == {"decode_tokens_per_s": None, "tpot_s": None}
    assert "within 30 %" in answer(summary)
    assert "machine's error" not in answer(summary)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", ["known", "sheets"])
def test_the_audit_computes_both_intervals_again_and_finds_a_wrong_one(
    machine: str, folder: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = prepared((*FEW, f"hardware={machine}", f"hydra.searchpath=[file://{folder}]"))
    result = execute(run)
    write_outputs(tmp_path / "run", result.summary, run.config, result.frames, "as_ready", None)
    assert audit_main([str(tmp_path / "run")]) == 0
    place = tmp_path / "run" / "summary.json"
    summary = json.loads(place.read_text(encoding="utf-8"))
    ends = summary["calibration"]["ci95"]["tpot_s"]
    ends[1] *= 1.001
    place.write_text(json.dumps(summary), encoding="utf-8")
    capsys.readouterr()
    assert audit_main([str(tmp_path / "run")]) == 1
    assert "DIFFERS calibration.ci95.tpot_s[1]" in capsys.readouterr().out


def test_a_machine_that_begins_from_a_compared_one_says_that_itself_was_not(folder: Any) -> None:
    (folder / "hardware" / "mine.yaml").write_text(
        "defaults: [known, _self_]\nname: mine\nvalidated: none\n", encoding="utf-8"
    )
    summary = on(folder, "hardware=mine")
    assert summary["calibration"]["validated"] == "none"
