"""All that the audit's rules give for one run whose files are written by hand (helpers/audited)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from helpers.audited import files, given
from sim.audit import lookups, times, traffic
from sim.audit.files import RunFiles
from sim.audit.rules import Between, Holds, Left, agrees, flat


def test_times_and_rates_of_requests_are_those_of_their_tokens() -> None:
    """Between steps: 10 at first, of which 5 are before the first arrival, and 5 before step 4."""
    expected = {
        "makespan_s": 245e-9,
        # 95, 110, 190
        "ttft_s.mean": 395e-9 / 3,
        "ttft_s.p50": 110e-9,
        "ttft_s.p95": 182e-9,
        # 130 / 2, 40 / 1
        "tpot_s.mean": 52.5e-9,
        "tpot_s.p50": 52.5e-9,
        "tpot_s.p95": 63.75e-9,
        "tpot_s.p99": 64.75e-9,
        # 100, 40, 30
        "itl_s.mean": 170e-9 / 3,
        "itl_s.p50": 40e-9,
        "itl_s.p95": 94e-9,
        "itl_s.p99": 98.8e-9,
        # 225, 150, 190
        "latency_s.mean": 565e-9 / 3,
        "latency_s.p50": 190e-9,
        "latency_s.p95": 221.5e-9,
        # Steps of 90, 60 and 15; of 40 and 30.
        "prefill_tokens_per_s": 6 / 165e-9,
        "decode_tokens_per_s": 3 / 70e-9,
        "drafts": None,
        "compute_busy_s": 185e-9,
        "stall_s": 60e-9,
        **dict.fromkeys(("stall_s.demand", "stall_s.behind_demand"), Left),
        **dict.fromkeys(("stall_s.late_prefetch", "stall_s.storage", "stall_s.dense"), Left),
        **dict.fromkeys(("stall_s.cpu_join", "stall_s.predictor", "stall_s.host"), 0.0),
        "stall_s.no_request": 10e-9,
    }
    assert given(times.rules(files())) == expected


def test_prefetches_bytes_and_tiers_are_those_of_the_transfers() -> None:
    """Written back: keys 4, 5 and 1 of 60 B, and 8 of 15 B; but the run's end may have cut the last.

    RAM: two misses and eight prefetches asked; of 0, 1, 2, 3, 4 and 7 four begin there. Key 4 waits
    to the end.
    """
    expected = {
        "prefetch.queued": 8,
        "prefetch.started": 4,
        "prefetch.used": 1,
        "prefetch.late": 0,
        "prefetch.dropped": 1,
        "prefetch.evicted_unused": 1,
        "prefetch.unused_at_end": 1,
        "prefetch.promoted": 1,
        "prefetch.cancelled": 2,
        "prefetch.dropped_no_slot": 1,
        "prefetch.wasted_bytes": 124,
        "bytes.pcie.demand": 75,
        "bytes.pcie.prefetch": 184,
        "bytes.pcie.dense": 33,
        "bytes.pcie.activation": 0,
        "bytes.pcie.write_back": Between(0, 195),
        "bytes.nvme.demand": 60,
        "bytes.nvme.prefetch": 7,
        "bytes.nvme.dense": 21,
        "bytes.nvme.activation": 0,
        "bytes.nvme.write_back": 0,
        # 30..50, 60..80, 90..95, 100..140, 150..155, 230..250
        "link_utilisation.pcie": 110 / 245,
        "link_utilisation.nvme": 50 / 245,
        "ram.capacity_bytes": 1 << 29,
        "ram.lookups": 10,
        "ram.hits": Between(4, 7),
        "ram.hit_ratio": Between(0.4, 0.7),
        "peak_bytes.device": Left,
        "peak_bytes.staging": Between(0, 180),
        "peak_bytes.ram": Between(0, 1 << 29),
    }
    assert given(traffic.rules(files())) == expected


def test_without_a_tier_staging_or_writing_back_there_is_nothing_of_it() -> None:
    found = given(traffic.rules(files(hardware={"links": {"pcie": {}, "nvme": {}}}, loader={})))
    assert found["bytes.pcie.write_back"] == 0
    assert found["ram"] is None
    assert (found["peak_bytes.staging"], found["peak_bytes.ram"]) == (Between(0, 0), Between(0, 0))


def test_ratios_over_needs_are_those_of_the_lookups() -> None:
    """Decoded needs: eight, of which seven are asked for. Gates: ten of two sites in five steps."""
    bits = (16 * 0.25 + 16) / 16
    expected = {
        "lookups.hit": 2,
        "lookups.cpu": 0,
        "lookups.miss": 2,
        "lookups.high_for_low": 1,
        "lookups.skip": 2,
        "lookups.reroute": 1,
        "lookups.late": 1,
        "lookups.promoted": 1,
        "hit_ratio": 2 / 7,
        "hit_ratio_prefill": 0.5,
        "hit_ratio_by_precision.fp16": 1 / 4,
        "hit_ratio_by_precision.int4": 1 / 2,
        "miss_penalty": bits / 7,
        "quality_proxy.low_share": 1 / 8,
        "quality_proxy.low_mass": 0.125,
        "quality_proxy.skip_share": 2 / 8,
        "quality_proxy.skip_mass": 0.125,
        "quality_proxy.reroute_share": 1 / 8,
        "quality_proxy.reroute_mass": 0.0625,
        # 1, 1.5, 1, 1, 0.5 and five of 0: the place 8.55 is between 1 and 1.5.
        "union_over_capacity.mean": 0.5,
        "union_over_capacity.p95": 1.275,
        "prediction.top1": Left,
        "prediction.recall_at_issued": Left,
        "prediction.precision": Left,
        "prediction.exact_set": Left,
        "prediction.prefill": Left,
        "prediction.prompts": Left,
        "prediction.fitted_on": Left,
        # One used; two misses, one late and one promoted.
        "prediction.timely_recall": 1 / 5,
    }
    assert given(lookups.rules(files())) == expected
    silent = files(summary={"prediction": {"top1": None}})
    assert given(lookups.rules(silent))["prediction.timely_recall"] is None


def test_with_one_precision_every_need_asked_for_counts_at_it() -> None:
    """Five are, of which one is left out for being absent and has no wanted precision."""
    run = files(summary={"budget": {"slots": {"fp16": 2}, "device_bytes": 120}})
    fp16 = run.lookups.filter(pl.col("wanted").ne_missing("int4"))
    found = given(lookups.rules(replace(run, lookups=fp16)))
    assert found["hit_ratio_by_precision.fp16"] == found["hit_ratio"] == 1 / 5


def test_lookups_of_steps_that_draft_have_a_ratio_and_gates_of_their_own() -> None:
    """A step more, of one gate at site 2: two needs of 60 B, over 120. So 6 over 11 gates."""
    run = files(workload={"draft_experts": "offloaded", "draft_tokens": 2, "draft_layers": 1})
    needs: list[tuple[Any, ...]] = [
        (8, 5, "draft", 2, 8, 0, "fp16", "fp16", "hit", "never", 0.5),
        (8, 5, "draft", 2, 9, 1, "fp16", "fp16", "miss", "never", 0.5),
    ]
    step = [(5, 0, 3, "draft", 230, 232, 2)]
    more = (
        pl.concat([run.lookups, pl.DataFrame(needs, run.lookups.schema, orient="row")]),
        pl.concat([run.tokens, pl.DataFrame(step, run.tokens.schema, orient="row")]),
    )
    found = given(lookups.rules(replace(run, lookups=more[0], tokens=more[1])))
    assert (found["drafts.hit_ratio"], found["hit_ratio"]) == (1 / 2, 2 / 7)
    assert found["union_over_capacity.mean"] == pytest.approx(6 / 11)
    assert "drafts.hit_ratio" not in given(lookups.rules(files()))


@pytest.mark.parametrize(
    ("found", "expected", "is_same"),
    [
        (1.0, 1, True),
        (1.0, 1 + 0.9e-9, True),
        (1.0, 1 + 1.1e-9, False),
        (True, 1, False),
        (1, True, False),
        ("1", 1, False),
        ("a", "a", True),
        (None, None, True),
        (None, 0, False),
        ([1], [1], True),
        ([1], [2], False),
        (2.0, Between(2.0, 3.0), True),
        (3.0, Between(2.0, 3.0), True),
        (1.9, Between(2.0, 3.0), False),
        (3.1, Between(2.0, 3.0), False),
        (True, Between(0, 3), False),
        ((2.0, 3.0), Holds(2.0), True),
        ((2.0, 3.0), Holds(3.0), True),
        ((2.0, 3.0), Holds(3.1), False),
        ((2.0, 3.0), Holds(1.9), False),
        ((2.0,), Holds(2.0), False),
        ((2.0, None), Holds(2.0), False),
        (2.0, Holds(2.0), False),
    ],
)
def test_a_value_agrees_within_a_billionth_and_is_of_its_own_kind(
    found: Any, expected: Any, is_same: bool
) -> None:
    assert agrees(found, expected) is is_same


def test_a_summary_is_flat_by_dotted_keys_where_a_list_is_one_value() -> None:
    told = {"a": {"b": {"c": 1, "d": [2, {}]}, "e": {}}, "f": None}
    assert list(flat(told)) == [("a.b.c", 1), ("a.b.d", [2, {}]), ("a.e", {}), ("f", None)]


# ---- times of what a usual run does not have


def with_tokens(run: RunFiles, rows: list[tuple[Any, ...]], **more: list[int]) -> RunFiles:
    """The run with these steps of its first sequence: number, phase, start, end."""
    table = pl.DataFrame(
        [(step, 0, at, phase, start, end, 1) for at, (step, phase, start, end) in enumerate(rows)],
        run.tokens.schema,
        orient="row",
    ).with_columns(**{name: pl.Series(of) for name, of in more.items()})
    return replace(run, tokens=table, sequences=run.sequences[:1])


DRAFTED = [
    (0, "prefill", 5, 10),
    (1, "draft", 10, 14),
    (2, "draft", 14, 16),
    (3, "decode", 16, 30),
    (4, "draft", 30, 31),
    (5, "decode", 31, 35),
]


def test_a_step_that_checks_drafts_begins_with_the_first_of_them() -> None:
    """Four tokens in 20 and 5 ns: three drafts checked, two kept."""
    workload = {"draft_experts": "offloaded", "draft_tokens": 2, "draft_layers": 1}
    run = with_tokens(
        files(workload=workload), DRAFTED, drafts=[0, 0, 0, 2, 0, 1], new_tokens=[1, 0, 0, 3, 0, 1]
    )
    found = given(times.rules(run))
    assert {key: value for key, value in found.items() if key.startswith("drafts")} == {
        "drafts.checked": 3,
        "drafts.kept": 2,
        "drafts.tokens_per_step": 2.0,
        "drafts.time_s": pytest.approx(7e-9),
    }
    assert found["decode_tokens_per_s"] == pytest.approx(4 / 25e-9)
    assert found["itl_s.mean"] == pytest.approx(12.5e-9)
    assert times.counts_after_the_first(run) == {0: 4}
    assert times.shared_step_time_ns(run, times.after_the_first(run)) == {0: 25.0}
    own = with_tokens(files(), DRAFTED, drafts=[0] * 6, new_tokens=[1] * 6)
    assert "drafts.time_s" not in given(times.rules(own)), "without layers that draft"
    read = with_tokens(files(), DRAFTED, phase=["prefill"] * 6, drafts=[0] * 6, new_tokens=[0] * 6)
    assert given(times.rules(read))["drafts.tokens_per_step"] is None, "prompts alone"


@pytest.mark.parametrize(("links", "disk", "ram"), [(("pcie", "nvme"), 21, 33), (("pcie",), 0, 54)])
def test_what_was_reused_of_prompts_is_not_read_and_comes_from_the_drive_or_ram(
    links: tuple[str, ...], disk: int, ram: int
) -> None:
    """Of six prompt tokens three were reused. Dense bytes begin at the link's source alone."""
    run = files(
        summary={
            "prefixes": {"reused": {"device": 2, "ram": 1}},
            "stall_s": {"dense": 0.5},
        },
        hardware={"links": {key: {} for key in links}},
    )
    later = run.transfers.with_columns(hop=pl.when(pl.col("number") == 2).then(1).otherwise("hop"))
    assert given(times._prefixes(replace(run, transfers=later))) == {
        "prefixes.prompt_tokens": 6,
        "prefixes.read_tokens": 3,
        "prefixes.reused": Left,
        "prefixes.read_again": Left,
        "prefixes.moved_bytes.disk": disk,
        "prefixes.moved_bytes.ram": ram,
        "prefixes.waits_s": 0.5,
    }
    assert given(times._prefixes(files())) == {}


@pytest.mark.parametrize(
    ("host", "between_ns"),
    [
        (None, 10 + 5 - 5),
        ({"wake_us": 0.003}, 7 + 2 - 5),
        # A wait of 7 takes 3 more, one of 4 takes 2: half of it, down.
        ({"wake_us": [[0, 0.0], [0.01, 0.005]]}, 7 + 4 - 5),
    ],
)
def test_between_steps_the_host_waits_less_what_waking_takes(
    host: dict[str, Any] | None, between_ns: int
) -> None:
    """Gaps of 10 and 5 ns; the first request arrives at 5."""
    assert times.between_steps_ns(files(hardware={"links": {}, "host": host})) == between_ns


ALL_PARTS = {
    *("demand", "late_prefetch", "behind_prefetch", "storage", "dense", "cpu_join"),
    *("predictor", "host"),
}


@pytest.mark.parametrize(
    ("change", "hardware", "possible"),
    [
        ({}, {}, {"demand", "late_prefetch", "behind_prefetch", "storage", "dense"}),
        ({"kinds": []}, {}, {"storage"}),
        ({"kinds": ["demand"]}, {}, {"demand", "storage"}),
        ({"kinds": ["prefetch"], "links": 1}, {}, {"demand", "late_prefetch", "behind_prefetch"}),
        ({"kinds": [], "outcome": "cpu"}, {}, {"storage", "cpu_join"}),
        ({"kinds": []}, {"devices": {"split": "owners", "links": "x"}}, {"storage", "cpu_join"}),
        ({"kinds": []}, {"devices": {"split": "experts", "links": "x"}}, {"storage"}),
        ({"kinds": []}, {"prediction_us": 2}, {"storage", "predictor"}),
        ({"kinds": []}, {"forecasting": {"a": 1}}, {"storage", "predictor"}),
        ({"kinds": []}, {"host": {"sync_us": 0.5, "name": "x"}}, {"storage", "host"}),
        ({"kinds": []}, {"host": {"sync_us": 0}}, {"storage"}),
        ({"kinds": []}, {"swap": {"page_kib": 4.0}}, {"storage", "host"}),
        ({"kinds": []}, {"swap": None}, {"storage"}),
        ({"kinds": [], "placement": {"us_per_assignment": 1.0}}, {}, {"storage", "host"}),
        ({"kinds": [], "placement": {"us_per_assignment": 0.0}}, {}, {"storage"}),
        ({"kinds": [], "real": True}, {}, {"storage", "predictor", "host"}),
    ],
)
def test_a_part_of_waiting_is_0_where_nothing_could_cause_it(
    change: dict[str, Any], hardware: dict[str, Any], possible: set[str]
) -> None:
    links = {key: {} for key in ("pcie", "nvme")[: change.get("links", 2)]}
    run = files(
        hardware={"links": links} | hardware,
        placement=change.get("placement"),
        summary={"real": {}} if change.get("real") else {},
    )
    if "kinds" in change:
        run = replace(run, transfers=run.transfers.filter(pl.col("class").is_in(change["kinds"])))
    if "outcome" in change:
        run = replace(run, lookups=run.lookups.with_columns(outcome=pl.lit(change["outcome"])))
    assert ALL_PARTS - set(times._impossible(run)) == possible


def test_on_a_device_what_it_says_of_computing_gives_the_stalls() -> None:
    """245 ns in all, of which it says that it computed 200."""
    found = given(times._waiting(files(summary={"real": {}, "compute_busy_s": 200e-9})))
    assert found["compute_busy_s"] == Between(0.0, 245e-9)
    assert found["stall_s"] == pytest.approx(45e-9)
    assert found["stall_s.no_request"] is Left
    assert found["stall_s.cpu_join"] == 0.0


def test_devices_with_links_of_their_own_waste_and_move_over_each() -> None:
    """The third prefetch goes to another device: 4 B and 60 B of the others are wasted as before."""
    devices = {"count": 2, "split": "layers", "links": "own"}
    run = files(hardware={"links": {"pcie": {}}, "devices": devices})
    moved = pl.when(pl.col("number") == 3).then(pl.lit("pcie_1")).otherwise("link")
    found = given(traffic.rules(replace(run, transfers=run.transfers.with_columns(link=moved))))
    assert found["prefetch.wasted_bytes"] == 4 + 60 + 60
    assert (found["bytes.pcie.prefetch"], found["bytes.pcie_1.prefetch"]) == (124, 60)
    assert (found["bytes.pcie_1.write_back"], found["bytes.pcie_1.demand"]) == (0, 0)
    assert found["link_utilisation.pcie_1"] == pytest.approx(30 / 245)


@pytest.mark.parametrize(("cut", "is_whole"), [(False, True), (True, False)])
def test_what_is_written_back_is_exact_unless_the_run_may_have_cut_it(
    cut: bool, is_whole: bool
) -> None:
    """Whole if every transfer arrived before the last step's end at 250: the last one at 249."""
    run = files()
    last = pl.when(pl.col("number") == 7).then(250 if cut else 249).otherwise("end_ns")
    arrived = run.transfers.with_columns(
        end_ns=last, link=pl.when(pl.col("number") == 6).then(pl.lit("pcie")).otherwise("link")
    )
    found = traffic._written_back(replace(run, transfers=arrived))
    assert given([found]) == {"bytes.pcie.write_back": 195 if is_whole else Between(0, 195)}
