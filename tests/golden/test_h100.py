"""What an H100 with the engine of threads showed: each figure is computed from its files again."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest

from sim.study.trials import trial
from sim.values.places import ROOT

FOLDER = ROOT / "real" / "results" / "nvidia_h100_80gb_hbm3" / "2026-11-22"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
WORDS = (
    "model=tiny_gates_half_mixtral",
    "trace=tiny_mixtral",
    "workload=hobbit_16_128",
    "trace.max_sequences=1",
    "workload.prompt_tokens=8",
    "workload.decode_tokens=12",
    "hardware=nvidia_h100_80gb_hbm3_measured",
    f"hydra.searchpath=[file://{FOLDER}]",
)
"""The words of a replay's configuration, except for system and budget."""


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def test_every_check_of_a_kernel_holds() -> None:
    checks = read("verify")["checks"]
    worst = max(check["error"] for check in checks)
    held = sum(check["holds"] for check in checks)
    assert (
        f"{held} of {len(checks)} within 1e-5, the worst {worst:.1e}".replace("e-0", "e-") in PAGE
    )


def test_lossless_live_runs_have_the_whole_models_bits() -> None:
    lossless = [row["result"]["equal"] for row in read("live")["rows"] if row["result"]["lossless"]]
    assert f"the bits of the whole model, {sum(lossless)} of {len(lossless)}" in PAGE


def test_decisions_are_equal_and_the_simulator_comes_out_where_the_runs_did() -> None:
    checks = read("validation/validation")["checks"]
    equal, exact = (
        sum(bool(one) for one in found)
        for found in (
            [check["first_difference"] is None for check in checks],
            [f"{check['makespan_error']:.3%}" == "0.000%" for check in checks],
        )
    )
    assert f"equal in {equal} of {len(checks)}" in PAGE
    assert f"off by 0.000 % in {exact} of {len(checks)}" in PAGE


def test_predictions_from_other_systems_are_off_by_so_much_and_in_order() -> None:
    found = read("validation/validation")
    errors = [100 * abs(case["error"]) for case in found["cases"]]
    noise = [100 * case["noise"] for case in found["cases"]]
    told = f"median error {median(errors):.1f} %, worst {max(errors):.1f} %"
    assert f"{told}; repeats of one run differ by {min(noise):.1f} to {max(noise):.1f} %" in PAGE
    (ranking,) = found["rankings"]
    assert f"all {ranking['told_apart']} pairs right" in PAGE
    assert ranking["told_apart"] == ranking["right"]


def test_shares_of_a_device_copy_that_kernels_reach() -> None:
    rows = {(row["operator"], row["shape"]): row for row in read("kernels")["rows"]}
    for operator, shape, told in (
        (
            "expert int4",
            "mixtral",
            "a whole int4 expert of Mixtral's sizes, of a device copy | {:.0%} | 80 %",
        ),
        (
            "gemv int4 by size",
            "128 MiB",
            "the largest int4 product (128 MiB), of a device copy | {:.0%} | 80 %",
        ),
        (
            "expert int2",
            "mixtral",
            "a whole int2 expert of Mixtral's sizes, of a device copy | {:.0%} |",
        ),
    ):
        share = rows[operator, shape]["share"]
        assert told.format(share).replace("%", " %").replace("  ", " ") in PAGE


def test_floes_sparse_expert_misses_its_ceiling_by_what_the_report_says() -> None:
    lines = [
        line
        for line in (FOLDER / "report.md").read_text().splitlines()
        if "of its byte ceiling" in line
    ]
    shares = [float(line.split("|")[3].strip(" %")) for line in lines]
    assert len(shares) == 9
    assert f"{min(shares):.0f} to {max(shares):.0f} % | 85 %" in PAGE


def best_copy() -> float:
    return max(
        float(row["bytes_per_s"]) for row in read("facts")["copies"] if row["memory"] == "pinned"
    )


def test_loads_reach_so_much_of_the_best_pinned_copy() -> None:
    one, two = (row["result"]["bytes_per_s_behind"] / best_copy() for row in read("copies")["rows"])
    assert f"{100 * two:.1f} % of the best pinned copy, 95 were asked" in PAGE
    assert f"{100 * one:.1f} % | 95 %" in PAGE


def test_loads_of_small_experts_reach_a_third_of_the_link_or_less() -> None:
    rates = []
    for name in ("load_on_demand_025", "lru_025", "lru_050"):
        told = read(f"qwen3_30b_sizes/{name}")
        busy_s = told["link_utilisation"]["pcie"] * told["makespan_s"]
        rates.append(sum(told["bytes"]["pcie"].values()) / busy_s)
    low, high, peak = min(rates), max(rates), best_copy()
    told = (
        f"{low / 1e9:.0f} to {high / 1e9:.0f} GB/s: {100 * low / peak:.0f} to"
        f" {100 * high / peak:.0f} %"
    )
    assert f"of {peak / 1e9:.1f} GB/s | {told}" in PAGE


def test_quantised_experts_of_several_rows_take_ten_times_as_long_as_plain_ones() -> None:
    experts = read("calibration")["experts"]
    several = [
        ns / 1e6
        for name, points in experts.items()
        if name != "fp16"
        for rows, ns in points
        if rows > 1
    ]
    plain = median(ns / 1e6 for rows, ns in experts["fp16"] if rows > 1)
    assert f"{min(several):.1f} to {max(several):.1f} ms; fp16 takes {plain:.2f} ms" in PAGE


def times(system: str) -> dict[str, tuple[float, float]]:
    """By cell, seconds a token: simulated and measured."""
    found = {}
    for row in read("replay")["rows"]:
        name, share = row["cell"].split()[0], row["cell"].split()[-1]
        if name == system:
            own = ("payload=active_share_nominal",) if name == "floe" else ()
            ours = trial((f"system={name}", f"budget.resident_share={share}", *WORDS, *own)).summary
            found[row["cell"]] = ours["tpot_s"]["mean"], row["result"]["tpot_s"]["mean"]
    return found


@pytest.mark.thorough
def test_times_simulated_on_the_calibrated_machine_are_too_short_by_what_the_pages_say() -> None:
    simple, others = (
        ("load_on_demand", "lru", "mixtral_offloading"),
        ("hobbit", "fate", "fiddler", "floe"),
    )
    told = {name: times(name) for name in (*simple, *others)}
    shares = {cell: a / b for found in told.values() for cell, (a, b) in found.items()}

    def too_fast(names: tuple[str, ...], budgets: tuple[str, ...] = ("0.4", "0.6", "0.8")) -> str:
        off = [
            100 * (1 - x)
            for cell, x in shares.items()
            if cell.startswith(names) and cell.endswith(budgets)
        ]
        return f"{min(off):.0f} to {max(off):.0f} %"

    low, high, lossy = (
        too_fast(simple, ("0.4", "0.6")),
        too_fast(simple, ("0.8",)),
        too_fast(others[:3]),
    )
    floe = [1 / x for cell, x in shares.items() if cell.startswith("floe")]
    factor = f"{min(floe):.0f} to {max(floe):.0f} times"
    assert f"{low} too fast at 40 and 60 % resident, {high} at 80 %" in PAGE
    assert f"`hobbit`, `fiddler`, `fate` | {lossy} too fast" in PAGE
    assert f"`floe` | {factor} too fast" in PAGE
    for budget in ("0.4", "0.6", "0.8"):
        both = [told[name][f"{name} {budget}"] for name in (*simple, "hobbit", "fate")]
        ours, measured = zip(*both, strict=True)
        assert sorted(range(5), key=ours.__getitem__) == sorted(
            range(5), key=measured.__getitem__
        ), budget
