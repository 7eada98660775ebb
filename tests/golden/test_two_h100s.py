"""What two H100s showed is in their files: each figure of the pages is computed from them again."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from capture.import_trace import main as import_trace
from real.suite.pairs import Pair, read_pairs
from real.suite.prediction import calibrating_facts, predict, write_machine
from real.suite.targets import kernel_targets
from sim.values.places import ROOT

FOLDER = ROOT / "real" / "results" / "nvidia_h100_80gb_hbm3" / "2026-11-27"
SHEETS = [p for p in read_pairs() if (p.machine, p.basis) == ("H100", "data sheets")]
ROUTES = ROOT / ".." / "shared" / "traces" / "phone_qwen3_30b" / "qwen.route.csv"
COMPUTED_ELSEWHERE = ("floe", "fiddler")
"""Systems whose rows are gathered, or whose experts the CPU computes: no data sheet tells those."""


def read(name: str) -> Any:
    return json.loads((FOLDER / "suite" / f"{name}.json").read_text(encoding="utf-8"))


def page(name: str) -> str:
    """The text of a page, without line breaks."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


PAGE = page(str(FOLDER.relative_to(ROOT) / "README.md"))


def test_every_check_of_a_kernel_holds() -> None:
    checks = read("verify")["checks"]
    worst = max(check["error"] for check in checks)
    told = f"{sum(check['holds'] for check in checks)} of {len(checks)}"
    assert f"{told} within 1e-5, the worst {worst:.1e}".replace("e-0", "e-") in PAGE
    for name in ("README.md", "docs/kernels.md", "docs/gpu_run.md"):
        assert told in page(name), name


def test_lossless_live_runs_have_the_whole_models_bits() -> None:
    lossless = [row["result"]["equal"] for row in read("live")["rows"] if row["result"]["lossless"]]
    assert f"the bits of the whole model, {sum(lossless)} of {len(lossless)}" in PAGE


def test_decisions_are_equal_and_the_simulator_comes_out_where_the_runs_did() -> None:
    checks = read("validation/validation")["checks"]
    assert all(check["first_difference"] is None for check in checks)
    assert {f"{check['makespan_error']:.3%}" for check in checks} == {"0.000%"}
    assert f"equal in {len(checks)} of {len(checks)}" in PAGE


def test_predictions_from_other_systems_are_off_by_so_much_and_in_order() -> None:
    found = read("validation/validation")
    errors = [100 * abs(case["error"]) for case in found["cases"]]
    noise = [100 * case["noise"] for case in found["cases"]]
    told = f"median error {median(errors):.1f} %, worst {max(errors):.1f} %"
    assert f"{told}; repeats of one run differ by {min(noise):.1f} to {max(noise):.1f} %" in PAGE
    for name in ("README.md", "docs/validation.md"):
        assert f"median {median(errors):.1f} %, worst {max(errors):.1f} %" in page(name), name
    (ranking,) = found["rankings"]
    assert ranking["told_apart"] == ranking["right"]
    assert f"all {ranking['told_apart']} pairs right" in PAGE


def test_the_engine_takes_so_many_times_a_bare_loops_time() -> None:
    ratios = [f"{row['result']['ratio']:.2f}" for row in read("engine")["rows"]]
    assert f"{', '.join(ratios)} times; 1.3 were asked" in PAGE
    for name in ("README.md", "docs/real.md"):
        assert f"{', '.join(ratios[:-1])} and {ratios[-1]} times" in page(name), name


def test_loads_reach_so_much_of_the_best_pinned_copy() -> None:
    best = max(row["bytes_per_s"] for row in read("facts")["copies"] if row["memory"] == "pinned")
    shares = [100 * row["result"]["bytes_per_s_behind"] / best for row in read("copies")["rows"]]
    assert f"{shares[0]:.1f} and {shares[1]:.1f} %" in PAGE


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("expert int2 mixtral", "a whole int2 expert of Mixtral's sizes, of a device copy | {} |"),
        ("8 experts int4 qwen3", "768 x 2048 in one launch, of a device copy | {} |"),
    ],
)
def test_a_target_that_was_missed_is_told_as_the_suite_judges_it(what: str, told: str) -> None:
    rows = kernel_targets(read("kernels")["rows"])
    ((_, _, measured, holds),) = (row for row in rows if row[0].startswith(what))
    assert not holds
    assert told.format(f"{float(measured.rstrip('%')):.0f} %") in PAGE


def test_as_many_kernels_hold_their_target_as_the_pages_say() -> None:
    rows = list(kernel_targets(read("kernels")["rows"]))
    held = sum(holds for *_, holds in rows)
    for name in ("README.md", "docs/kernels.md", "docs/gpu_run.md"):
        assert f"{held} of {len(rows)} speeds of kernels" in page(name), name


def errors(pairs: list[Pair]) -> list[float]:
    return [100 * abs(pair.error) for pair in pairs]


def test_data_sheets_alone_are_off_by_so_much() -> None:
    far = [pair for pair in SHEETS if pair.run.startswith(COMPUTED_ELSEWHERE)]
    near = [pair for pair in SHEETS if pair not in far]
    told = f"{min(errors(far)):.0f} to {max(errors(far)):.0f} % too fast"
    assert f"median error {median(errors(SHEETS)):.1f} % over {len(SHEETS)}" in PAGE
    assert f"{told}, others within {max(errors(near)):.1f} %" in PAGE
    for name in ("README.md", "docs/validation.md"):
        assert f"median {median(errors(SHEETS)):.1f} %" in page(name), name
        assert f"within {max(errors(near)):.1f} %" in page(name), name


def test_the_calibrated_machine_is_off_by_so_much() -> None:
    told = [
        pair
        for pair in read_pairs()
        if pair.file == "h100_sxm_pcie5_measured" and pair.source == "replay" and pair.is_scored
    ]
    worst = max(told, key=lambda pair: abs(pair.error))
    for name in ("README.md", "docs/validation.md"):
        assert f"median {median(errors(told)):.1f} %" in page(name), name
        at = f"(`{worst.run}` at {100 * (worst.share or 0):.0f} % resident)"
        assert f"worst {100 * abs(worst.error):.1f} % {at}" in page(name), name


ROWS = {
    "load_on_demand": "`load_on_demand`",
    "mixtral_offloading": "`mixtral_offloading`",
    "hobbit": "`hobbit`",
    "fate": "`fate`",
    "fiddler": "`fiddler`",
    "lru": "`lru`, calibrates",
    "floe": "`floe`, staged, calibrates",
    "floe zero_copy": "`floe`, zero-copy, calibrates",
}
"""What the page's table calls the cells of a replay."""


def in_table(system: str, column: int, found: dict[tuple[str, float], float]) -> None:
    """Whether the page has these errors of a system at 40, 60 and 80 % resident."""
    told = ", ".join(f"{100 * found[system, share]:+.1f}" for share in (0.4, 0.6, 0.8))
    (line,) = (
        line
        for line in (ROOT / "docs" / "validation.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {ROWS[system]} |")
    )
    assert line.split("|")[column].strip() == f"{told} %", system


def test_the_table_of_replays_has_the_kept_errors() -> None:
    kept = {
        (pair.run, pair.share or 0.0): pair.error
        for pair in read_pairs()
        if pair.file == "h100_sxm_pcie5_measured" and pair.source == "replay"
    }
    for system in ROWS:
        in_table(system, 3, kept)


@pytest.mark.thorough
def test_the_table_of_replays_has_the_errors_of_the_calibration_alone(tmp_path: Path) -> None:
    facts, params = calibrating_facts(FOLDER, [])
    write_machine(tmp_path, FOLDER, facts, params, contention=True)
    rows = predict(FOLDER, tmp_path, [], ())
    found = {(row.system, row.share): row.error or 0.0 for row in rows if row.source == "replay"}
    for system in ROWS:
        in_table(system, 2, found)


@pytest.mark.thorough
@pytest.mark.skipif(not ROUTES.exists(), reason="the phone's routing is not here")
def test_a_calibration_with_large_experts_is_off_by_so_much_for_small_ones(tmp_path: Path) -> None:
    assert import_trace(["format=bigmoe", f"path={ROUTES}", f"output_dir={tmp_path / 't'}"]) == 0
    facts, params = calibrating_facts(FOLDER, [])
    write_machine(tmp_path, FOLDER, facts, params, contention=True)
    rows = predict(FOLDER, tmp_path, [], (f"qwen3_30b_a3b:trace.path={tmp_path / 't'}",))
    small = [row for row in rows if row.system.endswith("(qwen3_30b_a3b)")]
    loads = [100 * (row.error or 0) for row in small if row.system.startswith("load_on_demand")]
    lru = sorted(100 * (row.error or 0) for row in small if row.system.startswith("lru"))
    told = page("docs/validation.md")
    own, others = loads
    both = f"{own:+.1f} % on the calibrated machine and {others:+.1f} % on the other"
    assert f"`load_on_demand` is by {both}" in told
    assert f"`lru` by {lru[-1]:+.1f} to {lru[1]:+.1f} %, but by {lru[0]:+.1f} %" in told
