"""The audit's rules for what a configuration says, on files that are written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from helpers.audited import files, given
from sim.audit import __main__ as command
from sim.audit import lookups, settings
from sim.audit.__main__ import Audit, Difference, audit
from sim.audit.rules import Between, Left, Rule

# ---- files


@pytest.mark.parametrize(
    ("split", "links", "names"),
    [
        ("layers", "own", ["pcie", "pcie_1", "pcie_2"]),
        ("owners", "own", ["pcie", "pcie_1", "pcie_2"]),
        ("experts", "own", ["pcie"]),
        ("layers", "shared", ["pcie"]),
    ],
)
def test_devices_with_links_of_their_own_have_one_each(
    split: str, links: str, names: list[str]
) -> None:
    devices = {"count": 3, "split": split, "links": links}
    run = files(hardware={"links": {"pcie": {}}, "devices": devices})
    assert (run.links, run.last_links) == (names, len(names))


ERROR = {"log_error": 0.2, "systems": 5}
SHARED = {"machines": 9, "middle_factor": 1.5, "log_error": 0.6}


@pytest.mark.parametrize(
    ("words", "machine", "error"),
    [
        ([], {}, ERROR),
        (["hardware.memory_gib=3", "+hardware.reserved_gib=1", "seed=2"], {}, ERROR),
        (["++hardware.efficiency=0.5"], {}, None),
        (["hardware.memory_gib=3", "hardware.host.sync_us=0.5"], {}, None),
        ([], {"validated": "none"}, None),
        ([], {"devices": {"count": 2, "split": "experts", "links": "own"}}, None),
    ],
)
def test_a_machine_has_its_error_unless_its_times_were_changed(
    words: list[str], machine: dict[str, Any], error: dict[str, Any] | None
) -> None:
    told = {"links": {"pcie": {}}, "validated": {"_target_": "x"} | ERROR, "name": "m"} | machine
    run = files(hardware=told, summary={"overrides": words}, preset="p")
    assert run.machine_error == error


@pytest.mark.parametrize(
    ("workload", "first_ns"),
    [({}, 0), ({"arrivals_per_s": 2.0}, 5), ({"arrivals_s": [1.0]}, 5), ({"requests": "x"}, 5)],
)
def test_time_counts_from_the_first_arrival_where_requests_arrive(
    workload: dict[str, Any], first_ns: int
) -> None:
    run = files(workload=workload)
    assert (run.first_arrival_ns, run.makespan_ns) == (first_ns, 250 - first_ns)


# ---- settings


def test_a_machine_is_told_with_its_devices_its_preset_and_its_error() -> None:
    machine = {"links": {"pcie": {}}, "name": "m", "preset": "p"}
    config: dict[str, Any] = {
        "model": {"name": "x", "sites": 2, "experts": 3},
        "workload": {"batching": "static"},
        "seed": 3,
        "summary": {"overrides": []},
    }
    same = {"model": "x", "workload": "static", "seed": 3, "preset": "p", "calibration.id": "m/p"}
    compared = files(hardware=machine | {"validated": {"_target_": "x"} | ERROR}, **config)
    assert given(settings._identity(compared)) == same | {
        "hardware": "m",
        "calibration.validated": "compared",
        "calibration.error.log_error": pytest.approx(0.2),
        "calibration.error.systems": 5,
        "calibration.data_sheets": None,
    }
    devices = {"count": 2, "split": "experts", "links": "own"}
    assert given(settings._identity(files(hardware=machine | {"devices": devices}, **config))) == (
        same
        | {
            "hardware": "2 x m (experts)",
            "calibration.validated": "none",
            "calibration.error": None,
            "calibration.data_sheets": None,
            "calibration.ci95": None,
        }
    )
    shared = {"overrides": [], "calibration": {"data_sheets": SHARED}}
    sheets = files(hardware=machine | {"preset": "paper"}, **config | {"summary": shared})
    assert sheets.shared_error == SHARED
    assert given(settings._identity(sheets)) == same | {
        "hardware": "m",
        "preset": "paper",
        "calibration.id": "m/paper",
        "calibration.validated": "none",
        "calibration.error": None,
        "calibration.data_sheets": Left,
    }


@pytest.mark.parametrize(
    ("bounds", "lower", "gap"),
    [
        # 245 ns in all
        ({"compute_s": 49e-9, "link_s": 98e-9, "relaxed_s": 24.5e-9, "lower_s": 98e-9}, 98e-9, 1.5),
        ({"compute_s": 49e-9, "link_s": 24.5e-9, "relaxed_s": None, "lower_s": 49e-9}, 49e-9, 4.0),
        ({"compute_s": 0.0, "link_s": 0.0, "relaxed_s": None, "lower_s": 0.0}, 0.0, None),
        ({"compute_s": 49e-9, "link_s": None, "relaxed_s": None, "lower_s": None}, None, None),
    ],
)
def test_the_largest_bound_is_the_lower_one_and_the_gap_is_what_is_beyond_it(
    bounds: dict[str, float | None], lower: float | None, gap: float | None
) -> None:
    near = pytest.approx
    assert given(settings._bounds(files(summary={"bounds": bounds}))) == {
        "bounds.lower_s": None if lower is None else near(lower),
        "gap": None if gap is None else near(gap),
    }


def test_steps_are_as_the_workload_says_and_waves_are_calls_after_a_gates_first() -> None:
    """Gate 2 is looked up in three calls, of which two are waves; gate 4 in one, of two lookups."""
    decisions = pl.DataFrame(
        [(1, "lookup", 2), (2, "lookup", 2), (3, "lookup", 2), (3, "issue", 2), (4, "issue", 4)]
        + [(5, "lookup", 4)] * 2,
        ["call", "kind", "tick"],
        orient="row",
    )
    workload = {
        "batching": "continuous",
        "together": 4,
        "prefill_chunk": 7,
        "context_tokens": 99,
        "draft_tokens": 3,
        "draft_accepted": 0.75,
        "draft_seed": 8,
        "draft_layers": 2,
        "draft_experts": "offloaded",
        "block_tokens": 16,
    }
    rest: dict[str, Any] = {"precision": {}, "payload": {}}
    run = files(workload=workload, cache={"initial": "empty"}, summary={"prefixes": {}}, **rest)
    found = given(settings._steps(replace(run, decisions=decisions)))
    assert found == {
        "contracts.batching": "continuous",
        "contracts.together": 4,
        "contracts.prefill_chunk": 7,
        "contracts.context_tokens": 99,
        "contracts.draft_tokens": 3,
        "contracts.draft_accepted": pytest.approx(0.75),
        "contracts.draft_seed": 8,
        "contracts.draft_layers": 2,
        "contracts.draft_experts": "offloaded",
        "contracts.arrivals": None,
        "contracts.prefixes.block_tokens": 16,
        **{f"contracts.prefixes.{tier}": Left for tier in ("device", "ram", "disk")},
        "contracts.initial_cache": "empty",
        "contracts.waves": 2,
    }
    assert given(settings._steps(files(workload={}, cache={}, **rest))) == {
        **dict.fromkeys(("contracts.batching", "contracts.together")),
        **dict.fromkeys(("contracts.prefill_chunk", "contracts.context_tokens")),
        "contracts.draft_tokens": 0,
        "contracts.draft_accepted": pytest.approx(1.0),
        "contracts.draft_seed": 0,
        "contracts.draft_layers": 0,
        "contracts.arrivals": None,
        "contracts.initial_cache": Left,
        "contracts.waves": 1,  # the usual decisions: two calls for gate 0
    }


@pytest.mark.parametrize(
    ("workload", "at_ns", "expected"),
    [
        ({"arrivals_s": [0.0]}, [0, 0, 0], {"": Left}),
        ({"requests": "x.csv", "arrivals_per_s": 2.0}, [0, 0, 1], {"": Left}),
        ({}, [0, 0, 1], {"": None}),
        ({"arrivals_per_s": 2.0, "arrival_seed": 4}, [0, 0, 0], {"": None}),
        (
            {"arrivals_per_s": 2.0, "arrival_seed": 4},
            [0, 0, 1],
            {".per_s": pytest.approx(2.0), ".seed": 4},
        ),
    ],
)
def test_arrivals_are_a_file_or_none_or_drawn(
    workload: dict[str, Any], at_ns: list[int], expected: dict[str, Any]
) -> None:
    run = files(workload=workload)
    of = run.sequences.with_columns(arrival_ns=pl.Series(at_ns))
    found = given(settings._arrivals(replace(run, sequences=of), workload))
    assert found == {f"contracts.arrivals{key}": value for key, value in expected.items()}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, {}),
        (
            {"_target_": "a.ScoreThreshold", "quantiles": [0.1], "low_above": 1},
            {"from": "fit split"},
        ),
        (
            {"_target_": "a.ScoreThreshold", "low_above": 1, "skip_above": 2},
            {"from": "given", "low_above": 1, "skip_above": 2},
        ),
    ],
)
def test_thresholds_are_fitted_or_those_that_were_given(
    told: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = given(settings._thresholds(files(precision=told)))
    assert found == {f"contracts.score_thresholds.{key}": value for key, value in expected.items()}


@pytest.mark.parametrize(
    ("contracts", "share"),
    [
        ({"channels": {"rows": 7}}, Between(0.0, 1.0)),
        ({"channels": {"rows": 0}}, None),
        ({}, Between(0.0, 1.0)),
    ],
)
def test_forecast_channels_have_shares_unless_no_row_was_compared(
    contracts: dict[str, Any], share: Between | None
) -> None:
    summary = {"contracts": contracts}
    reused = {"_target_": "a.ReusedChannels", "missed": "wait"}
    assert given(settings._channels(files(summary=summary, payload=reused))) == {
        "contracts.channels.missed": "wait",
        "contracts.channels.rows": Left,
        "contracts.channels.recall": share,
        "contracts.channels.precision": share,
    }
    assert given(settings._channels(files(summary=summary))) == {}


# ---- lookups


@pytest.mark.parametrize(
    ("model", "gates"),
    [({}, 5 * 2), ({"encoder_sites": 0}, 5 * 2), ({"sites": 5, "encoder_sites": 2}, 3 * 2 + 2 * 3)],
)
def test_a_step_of_an_encoder_and_a_decoder_visits_one_of_the_two(
    model: dict[str, int], gates: int
) -> None:
    """Three of five steps read a prompt."""
    sizes = {"sites": 2, "experts": 3, "hidden": 2, "expert_intermediate": 5}
    assert lookups._gates(files(model=sizes | model)) == gates


def test_shares_of_no_needs_or_of_no_weight_are_not_known() -> None:
    run = files()
    weightless = run.lookups.with_columns(weight=pl.lit(0.0))
    for rows in (run.lookups[:2], weightless):
        found = given(lookups._quality(replace(run, lookups=rows)))
        assert len(found) == 6
        assert set(found.values()) == {None}


# ---- the audit


def test_what_agrees_what_differs_and_what_nobody_computes_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parts of stalls add up in whole ns. An end that is no number differs."""
    told = {
        "a": {"b": 1, "c": 2, "d": {"e": 3}},
        "stall_s": {"x": 0.1, "y": 0.2},
        "ci95": {"n": [1.0, 2.0], "o": None, "p": ["low", 4.0]},
        "calibration": {"ci95": {"n": [0.5, 3.0]}},
        "odd": 0,
    }
    ends = {"ci95.p[0]": 4.0, "ci95.n[0]": 1.0, "calibration.ci95.n[1]": 3.5}
    rules = [
        *(Rule(key, end, "an end") for key, end in ends.items()),
        Rule("stall_s", 0.3, "the sum"),
        Rule("a.b", 1, "of b"),
        Rule("gone", 5, "of none"),
        Left("a", "outer"),
        Left("a.d", "inner"),
        Left("ci95", "ends"),
        Left("calibration", "ends"),
        Left("stall_s", "parts"),
    ]
    for name in ("times", "lookups", "traffic", "sizes", "growth", "settings", "intervals"):
        own = rules if name == "times" else []
        monkeypatch.setattr(f"sim.audit.{name}.rules", lambda run, own=own: iter(own))
    run = replace(files(), summary=told)
    found = audit(run)
    assert found == Audit(
        ["ci95.n[0]", "stall_s", "a.b"],
        [Difference(rules[0], "low"), Difference(rules[2], 3.0), Difference(rules[5], "(nothing)")],
        {
            "outer": ["a.c"],
            "inner": ["a.d.e"],
            "parts": ["stall_s.x", "stall_s.y"],
            "ends": ["ci95.n", "ci95.o", "ci95.p", "calibration.ci95.n"],
            "no rule of this version knows it": ["odd"],
        },
    )
    assert list(map(str, found.differences)) == [
        "ci95.p[0]: summary.json has 'low', the files give 4.0 (an end)",
        "calibration.ci95.n[1]: summary.json has 3.0, the files give 3.5 (an end)",
        "gone: summary.json has '(nothing)', the files give 5 (of none)",
    ]


@pytest.mark.parametrize("differ", [0, 1])
def test_differences_are_printed_first_then_what_is_not_recomputed_and_the_counts(
    differ: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    differences = [Difference(Rule("a", 1, "why"), 2)] * differ
    found = Audit(["x", "y"], differences, {"no file": ["b", "c"], "another": ["d"]})
    monkeypatch.setattr(command, "read_run", str)
    monkeypatch.setattr(command, "audit", lambda run: found if run == "here" else None)
    assert command.main(["here"]) == differ
    assert capsys.readouterr().out.splitlines() == [
        *["DIFFERS a: summary.json has 2, the files give 1 (why)"] * differ,
        "not recomputed:",
        "  b, c: no file",
        "  d: another",
        f"2 keys agree, {differ} differ",
    ]
