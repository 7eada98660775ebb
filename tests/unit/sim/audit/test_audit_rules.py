"""Rules for what a small run does not have: hand-made files, and what the rules give for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl
import pytest

from sim.audit import lookups, settings, sizes, times, traffic
from sim.audit.files import RunFiles
from sim.audit.intervals import interval, of_share
from sim.audit.rules import Between, Holds, Left, Rule, mean, quantile

UNKNOWN = "the files do not tell what a variant of every precision takes"
WHOLE, PART = "sim.policies.payloads.Whole", "sim.policies.payloads.ActiveShare"
TABLES = {
    "lookups": {"tick": [0, 0, 1], "site": [0, 0, 1], "outcome": ["miss", "hit", "miss"]},
    # Keys of site 0 are 0 to 3, of site 1 4 to 7; at the second precision 8 to 15.
    "transfers": {
        "number": [0, 1, 2, 3],
        "key": [0, 5, 5, 3],
        "class": ["demand", "prefetch", "demand", "dense"],
        "moved_bytes": [60, 50, 60, 999],
        "link": ["pcie", "pcie", "pcie", "pcie"],
        "hop": [0, 0, 0, 0],
        "start_ns": [0, 1, 2, 3],
        "end_ns": [1, 2, 3, 4],
    },
    "tokens": {"step": [0], "phase": ["decode"], "end_ns": [9]},
    "sequences": {"sequence": [0]},
    "decisions": {
        "kind": ["queue_prefetch", "evict"],
        "key": [1, 5],
        "victim": [None, 0],
        "outcome": ["", ""],
    },
}


def files(*precisions: str, tables: dict[str, Any] | None = None, **config: Any) -> RunFiles:
    """Two sites of three experts, of 2 x 5 weights in each of three matrices: 60 bytes at fp16."""
    sections: dict[str, Any] = {
        "model": {"sites": 2, "experts": 3, "hidden": 2, "expert_intermediate": 5},
        "hardware": {"links": {"pcie": {}}},
        "workload": {},
        "loader": {},
        "budget": {"resident_share": 0.5},
        "cache": {"scope": "global"},
        "precision": {},
        "payload": {"_target_": WHOLE},
        "trace": {"split": "all"},
    }
    summary: dict[str, Any] = {
        "budget": {"slots": dict.fromkeys(precisions or ("fp16",), 1), "device_bytes": 120},
        "contracts": {},
        "overrides": [],
    }
    summary |= config.pop("summary", {})
    frames = {name: pl.DataFrame(of) for name, of in {**TABLES, **(tables or {})}.items()}
    return RunFiles(summary, sections | config, **frames)


REAL = {"real": {}}
DEVICELESS = {"budget": {"slots": {"fp16": 0}, "device_bytes": 0}}


def given(rules: Iterable[Rule | Left]) -> dict[str, Any]:
    """By key what is expected, or why it is not recomputed."""
    return {one.key: one.reason if isinstance(one, Left) else one.expected for one in rules}


# ---- intervals


@pytest.mark.parametrize(
    ("above", "below", "ends"),
    [
        ([0, 0], [2, 3], (0, 0)),
        ([0, 0, 0], [2, 0, 0], None),
        ([1, 0], [0, 0], None),
        ([1, 2], [0, 0], None),
        ([2, 4], [1, 2], (2, 2)),
    ],
)
def test_nothing_over_something_is_exactly_0_where_two_sequences_say_so(
    above: list[float], below: list[float], ends: tuple[float, float] | None
) -> None:
    assert interval(above, below) == (ends and pytest.approx(ends))


@pytest.mark.parametrize(
    ("part", "whole", "ends"),
    [
        ([2, 3], [2, 3], (1, 1)),
        ([2, 0], [2, 0], None),
        ([0, 0], [2, 3], (0, 0)),
        ([2, 4], [4, 8], (0.5, 0.5)),
    ],
)
def test_all_of_something_is_exactly_1_where_two_sequences_say_so(
    part: list[float], whole: list[float], ends: tuple[float, float] | None
) -> None:
    assert of_share(part, whole) == (ends and pytest.approx(ends))


def test_an_interval_and_a_range_are_told_by_their_values() -> None:
    assert str(Holds(0.25)) == "an interval that holds 0.25"
    assert str(Between(1, 2.5)) == "1 to 2.5"
    assert (quantile([], 0.95), mean([])) == (None, None)
    assert quantile([4, 0, 2], 0.75) == 3


# ---- sizes


def test_sizes_of_a_precision_without_a_name_are_what_whole_transfers_moved() -> None:
    """The most of each site: a part that was cut moved less. A dense block is no expert."""
    run = files("odd")
    assert [sizes.variant_bytes(run, "odd", site) for site in (0, 1)] == [60, 60]
    assert sizes.variant_bytes(files("odd", payload={"_target_": PART}), "odd", 0) is None
    two = files("odd", "even")
    assert [sizes.variant_bytes(two, name, 1) for name in ("odd", "even")] == [60, None]
    assert sizes.variant_bytes(files("fp16"), "fp16", 0) == 60
    measured = files("fp16", tables={"transfers": {**TABLES["transfers"], "moved_bytes": [64] * 4}})
    assert sizes.variant_bytes(measured, "fp16", 0) == 60
    measured.summary["real"] = {}  # type: ignore[index]
    assert sizes.variant_bytes(measured, "fp16", 0) == 64


@pytest.mark.parametrize(
    ("held", "links", "summary", "bits"),
    [
        (None, {"pcie": {}}, {}, 0.0),
        (None, {"pcie": None, "nvme": {"unpack": {"bits": 8}}}, {}, 8.0),
        ("int4", {"pcie": {"unpack": {"bits": 8}}}, {}, 8.0),
        ("fp16", {"pcie": {"unpack": {"bits": 8}}}, {}, 16.0),
        ("odd", {"pcie": {}}, {}, None),
        ("odd", {"pcie": {}}, REAL, 0.0),
    ],
)
def test_slots_hold_at_the_most_bits_that_precision_or_a_link_says(
    held: str | None, links: dict[str, Any], summary: dict[str, Any], bits: float | None
) -> None:
    run = files(precision={"held": held}, hardware={"links": links}, summary=summary)
    assert sizes.held_bits(run) == bits


@pytest.mark.parametrize(
    ("precisions", "held", "size"),
    [
        (("int4",), None, 15),
        (("int4",), "fp16", 60),
        (("int4",), "int2", 15),
        (("int4", "int2"), "int4", 15),
        (("odd",), None, 60),
        (("odd",), "fp16", 60),  # the least of no known bits
        (("odd", "int4"), "fp16", None),
        (("int4",), "unknown", None),
        (("even",), None, 60),
    ],
)
def test_the_bytes_of_a_slot_are_those_of_the_bits_that_it_holds(
    precisions: tuple[str, ...], held: str | None, size: int | None
) -> None:
    run = files(*precisions, precision={"held": held})
    assert sizes.slot_bytes(run, precisions[0], 0) == size


def test_without_sizes_or_a_budget_nothing_of_it_is_recomputed() -> None:
    unknown = {"storage_bytes": UNKNOWN, "budget": UNKNOWN}
    assert given(sizes.rules(files("odd", "even"))) == unknown
    moved = {**TABLES["transfers"], "moved_bytes": [60, 50, 50, 999]}
    assert given(sizes.rules(files("odd", tables={"transfers": moved}))) == unknown, "sites differ"
    stored = {"storage_bytes": 2 * 3 * 60}
    assert given(sizes.rules(files(budget={}))) == {
        **stored,
        "budget": "config.yaml names no budget",
    }
    assert given(sizes.rules(files(precision={"held": "odd"}))) == {**stored, "budget": UNKNOWN}
    assert given(sizes.rules(files())) == {
        **stored,
        "budget.allowed_bytes": 180,
        "budget.resident_share": 0.5,
        "budget.slot_bytes.fp16": 60,
        "budget.initial_bytes": "what was on the device at the start is in no file",
        "budget.device_bytes": Between(60, 180),
        "budget.slots.fp16": Between(0, 2),
    }


# ---- lookups, times, traffic


def test_needs_over_slots_are_not_told_without_sizes_and_are_null_without_slots() -> None:
    assert given(lookups._unions(files("odd", "even", precision={"held": "x"}))) == {
        "union_over_capacity": UNKNOWN
    }
    assert given(lookups._unions(files(summary=DEVICELESS))) == {"union_over_capacity": None}
    # Two needs of 60 bytes at one gate, one at the other, over 120 bytes.
    assert given(lookups._unions(files())) == {
        "union_over_capacity.mean": 0.75,
        "union_over_capacity.p95": pytest.approx(0.975),
    }


def test_a_penalty_in_bits_is_not_told_where_a_precision_is_not_known_by_name() -> None:
    why = "the bits of a precision are not known by its name"
    for precisions in (("odd",), ("odd", "fp16"), ("fp16", "odd")):
        assert given(lookups._penalty(files(*precisions))) == {"miss_penalty": why}


@pytest.mark.parametrize(
    ("host", "numbers"),
    [
        ({"sync_us": 2, "name": "x"}, [2]),
        ({"wake_us": [[1, 3.0], [5, 0.0]], "load_us": 4}, [3.0, 0.0, 4]),
    ],
)
def test_the_numbers_of_a_host_are_its_times_and_what_waking_takes(
    host: dict[str, object], numbers: list[float]
) -> None:
    assert list(times._numbers(host)) == numbers


def test_what_is_written_back_is_what_was_evicted() -> None:
    assert given([traffic._written_back(files())]) == {"bytes.pcie.write_back": 120}
    unknown = given([traffic._written_back(files("odd", payload={"_target_": PART}))])
    assert unknown == {"bytes.pcie.write_back": UNKNOWN}


def test_hits_in_ram_are_not_told_where_parts_move() -> None:
    ram = {"ram": {"capacity_gib": 0.5, "filled_by": "nvme"}, "links": {"pcie": {}, "nvme": {}}}
    why = "the rest of a partial move begins at RAM without asking it"
    # Two misses and one prefetch that was queued.
    plain = {"ram.capacity_bytes": Between(0, 1 << 29), "ram.lookups": 3}
    found = given(traffic._ram(files(hardware=ram, payload={"_target_": PART})))
    assert found == {**plain, "ram.hits": why, "ram.hit_ratio": why}
    # The prefetch never started: it may have been a hit. Only three transfers are of experts.
    found = given(traffic._ram(files(hardware=ram)))
    assert found == {
        **plain,
        "ram.hits": Between(3, 4),
        "ram.hit_ratio": Between(1.0, pytest.approx(4 / 3)),
    }


@pytest.mark.parametrize(
    ("precisions", "slots", "most"),
    [(("fp16", "int4"), 2, 120), (("odd", "even"), 2, None), (("odd", "even"), 0, 0)],
)
def test_staging_holds_at_most_its_slots_of_the_largest_size(
    precisions: tuple[str, ...], slots: int, most: int | None
) -> None:
    found = given(traffic._peaks(files(*precisions, loader={"staging_slots": slots})))
    assert found["peak_bytes.staging"] == (UNKNOWN if most is None else Between(0, most))


# ---- settings


def test_a_device_has_its_own_name_and_no_error_of_a_file() -> None:
    of_a_device = "a device has a name, sizes and links of its own"
    config = {"model": {"name": "m"}, "workload": {"batching": "static"}, "seed": 3}
    assert given(settings._identity(files(summary=REAL, **config))) == {
        "model": "m",
        "workload": "static",
        "seed": 3,
        "calibration.error": None,
        "calibration.data_sheets": None,
        "calibration.ci95": None,
        "hardware": of_a_device,
        "preset": of_a_device,
        "calibration.id": of_a_device,
        "calibration.validated": of_a_device,
    }


@pytest.mark.parametrize(
    ("summary", "told"), [(REAL, "a live run has no split"), ({}, "all")], ids=["real", "simulated"]
)
def test_only_a_simulated_run_has_a_split(summary: dict[str, Any], told: str) -> None:
    sequences = {"sequence": [4, 1], "prompt_tokens": [2, 3], "decode_tokens": [7, 9]}
    assert given(settings._trace(files(summary=summary, tables={"sequences": sequences}))) == {
        "trace.sequences": 2,
        "trace.numbers": [1, 4],
        "trace.prefill_tokens": 5,
        "trace.decode_tokens": 16,
        "trace.split": told,
    }


@pytest.mark.parametrize("word", ["within_layer", "in_time"])
def test_a_counted_budget_of_prefetches_is_a_number_of_the_machines_times(word: str) -> None:
    contracts = {"contracts": {"prefetch_budget": 7, "queue": "x", "of_no_loader": 1}}
    loader = {"prefetch_budget": word, "queue": "replace"}
    assert given(settings._loader(files(summary=contracts, loader=loader))) == {
        "contracts.prefetch_budget": (
            f"loader.prefetch_budget={word} becomes a number of the machine's times"
        ),
        "contracts.queue": "replace",
    }
