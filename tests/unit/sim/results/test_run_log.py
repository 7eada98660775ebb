"""The history of keys in a run's files, of which every row is written here by hand.

Two sites of three experts, so key ``4 * site + expert``, and 8 more at the second precision. Times
are in ns.

| call | tick | what |
|---|---|---|
| 1 | -1 | a prefetch of 3 is queued |
| 2 | 0 | gate 0, site 0, at 100: 1 is a hit; 2 is a miss, issued in the place of 0 |
| 3 | 0 | the prefetch of 3 is issued, over two links; prefetches of 5 and 7 are queued |
| 4 | 0 | the prefetch of 7 is cancelled |
| 5 | 1 | gate 1, site 1, at 400: 13 is left out; 6 is a miss, issued in the place of 3, and of 4 too |
| 6 | 3 | gate 3, site 0, at 700: 2 is a hit; 0 waits for a later wave |
| 7 | 3 | 0 is looked up at 750: a miss, issued in the place of 2 |
| 8 | 3 | the pool is trimmed: 1 goes |
| 9 | 3 | the prefetch of 5 is issued in the place of 6; it is dropped |
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from helpers.summaries import summary_of
from sim.results import kept_tables, run_log
from sim.results.labels import Labels
from sim.results.run_log import COLUMNS, Event, Move, RunLog, Stay

LOOKUPS = [
    (0, 0, "prefill", 0, 1, 1, "fp16", "fp16", "hit", 1, 100, 100),
    (0, 0, "prefill", 0, 2, 2, "fp16", "fp16", "miss", 1, 100, 250),
    (1, 0, "prefill", 1, 13, 1, None, "int4", "high_for_low", 1, 400, 400),
    (1, 0, "prefill", 1, -1, 0, None, None, "skip", 1, 400, 400),
    (1, 0, "prefill", 1, 6, 2, "fp16", "fp16", "miss", 1, 400, 600),
    (3, 1, "decode", 0, 2, 2, "fp16", "fp16", "hit", 1, 700, 700),
    (3, 1, "decode", 0, 0, 0, "fp16", "fp16", "miss", 1, 750, 900),
]
TRANSFERS = [
    (0, "pcie", 0, 2, "demand", 9, 100, 110, 250, 0, None),
    (1, "nvme", 0, 3, "prefetch", 9, 120, 130, 200, None, "evicted_unused"),
    (1, "pcie", 1, 3, "prefetch", 9, 200, 250, 300, None, "evicted_unused"),
    (2, "pcie", 0, 6, "demand", 9, 400, 410, 600, 3, None),
    (3, "pcie", 0, 0, "demand", 9, 750, 760, 900, 2, None),
    (4, "pcie", 0, 5, "prefetch", 3, 800, 900, 930, 6, "dropped"),
]
DECISIONS = [
    (1, "queue_prefetch", -1, 3, None, None),
    (2, "lookup", 0, 1, None, "hit"),
    (2, "lookup", 0, 2, None, "miss"),
    (2, "issue", 0, 2, 0, None),
    (3, "issue", 0, 3, None, None),
    (3, "queue_prefetch", 0, 5, None, None),
    (3, "queue_prefetch", 0, 7, None, None),
    (4, "cancel", 0, 7, None, None),
    (5, "lookup", 1, 13, None, "high_for_low"),
    (5, "lookup", 1, -1, None, "skip"),
    (5, "lookup", 1, 6, None, "miss"),
    (5, "issue", 1, 6, 3, None),
    (5, "evict", 1, 4, None, None),
    (6, "lookup", 3, 2, None, "hit"),
    (7, "lookup", 3, 0, None, "miss"),
    (7, "issue", 3, 0, 2, None),
    (8, "evict", 3, 1, None, None),
    (9, "issue", 3, 5, 6, None),
]
TOKENS = [(0, 0, 0), (1, 0, 1)]
CONFIG = """
model: {sites: 2, experts: 3}
cache: {_target_: sim.policies.LRU}
loader: {retention: strict, staging_slots: 0, depth: 2}
seed: 5
"""
DEMAND_2 = Move(0, 2, "demand", 0, 2, None, 100, 110, 250, "pcie", None)  # type: ignore[arg-type]
PREFETCH_3 = Move(1, 3, "prefetch", 0, 3, -1, 120, 130, 300, "pcie", "evicted_unused")
DEMAND_6 = Move(2, 6, "demand", 1, 5, None, 400, 410, 600, "pcie", None)  # type: ignore[arg-type]
DEMAND_0 = Move(3, 0, "demand", 3, 7, None, 750, 760, 900, "pcie", None)  # type: ignore[arg-type]
PREFETCH_5 = Move(4, 5, "prefetch", 3, 9, 0, 800, 900, 930, "pcie", "dropped")


def files(folder: Path, config: str = CONFIG, **tables: list[tuple[Any, ...]]) -> Path:
    told = {
        "lookups": LOOKUPS,
        "transfers": TRANSFERS,
        "decisions": DECISIONS,
        "tokens": TOKENS,
    } | tables
    for name, rows in told.items():
        found = pl.DataFrame(rows, list(COLUMNS[name]), orient="row", infer_schema_length=None)
        found.with_columns(more=0).write_parquet(folder / f"{name}.parquet")
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    return folder


@pytest.fixture
def log(tmp_path: Path) -> RunLog:
    return RunLog(files(tmp_path))


def test_a_run_is_read_whole(log: RunLog, tmp_path: Path) -> None:
    assert (log.root, log.sites, log.experts, log.units, log.plane) == (tmp_path, 2, 3, 4, 8)
    tables = log.lookups, log.transfers, log.decisions, log.tokens
    assert [table.rows() for table in tables] == [LOOKUPS, TRANSFERS, DECISIONS, TOKENS]
    assert [table.columns for table in tables] == [list(names) for names in COLUMNS.values()]
    assert RunLog(str(tmp_path)).config["seed"] == 5
    assert log.precision_names == {0: "fp16", 1: "int4"}
    found = log.choice("loader", "depth"), log.choice("loader", "lanes"), log.choice("seed", "x", 1)
    assert found == (2, None, 1)
    assert (log.choice("loader", "lanes", 7), log.choice("none", "depth", 8)) == (7, 8)
    assert (log.mechanism("cache"), log.mechanism("loader")) == ("LRU", "?")


def test_gates_that_had_needs_have_a_step_a_site_and_a_time(log: RunLog) -> None:
    ticks = range(-1, 5)
    assert [tick for tick in ticks if log.is_gate(tick)] == [0, 1, 3]
    assert [log.gate(tick) for tick in (0, 1, 3)] == [(0, 0, 100), (0, 1, 400), (1, 0, 700)]
    assert [log.ticks_of_step(step) for step in (0, 1, 2)] == [[0, 1], [3], []]
    before = [[log.last_gate(site, tick) for tick in range(6)] for site in (0, 1)]
    assert before == [[-1, 0, 0, 0, 3, 3], [-1, -1, 1, 1, 1, 1]]
    assert [log.admitted_by(1, call) for call in (4, 5)] == [[], [13, 6]]
    assert [log.admitted_by(3, call) for call in (6, 7)] == [[2], [2, 0]]
    assert [log.has_waves(tick) for tick in (0, 1, 3)] == [False, False, True]
    assert [log.uses_of(key) for key in (2, 6, 3)] == [[0, 3], [1], []]


def test_a_transfer_starts_on_its_first_link_and_ends_on_its_last(log: RunLog) -> None:
    moves = [DEMAND_2, PREFETCH_3, DEMAND_6, DEMAND_0, PREFETCH_5]
    assert log.moves == moves
    assert [log.moves_of(key) for key in (3, 4)] == [[PREFETCH_3], []]


def test_what_happened_to_a_key_is_told_in_order_with_whom_it_made_room_for(log: RunLog) -> None:
    expected = {
        0: [Event("evicted", 2, 0, 2), Event("issue", 7, 3)],
        1: [Event("evicted", 8, 3)],
        2: [Event("issue", 2, 0), Event("evicted", 7, 3, 0)],
        3: [Event("queue_prefetch", 1, -1), Event("issue", 3, 0), Event("evicted", 5, 1, 6)],
        4: [Event("evicted", 5, 1, 6)],
        5: [Event("queue_prefetch", 3, 0), Event("issue", 9, 3)],
        6: [Event("issue", 5, 1), Event("evicted", 9, 3, 5)],
        7: [Event("queue_prefetch", 3, 0), Event("cancel", 4, 0)],
        13: [],
    }
    assert {key: log.events_of(key) for key in expected} == expected


def test_a_victim_without_an_issue_made_room_for_the_transfer_that_names_it(tmp_path: Path) -> None:
    """The transfer of the victim's own call, at 700 or later; what is earlier or trimmed is not."""
    late = (5, "pcie", 0, 7, "demand", 9, 700, 700, 990, 1, None)
    early = (5, "pcie", 0, 7, "demand", 9, 699, 699, 990, 1, None)
    second = (6, "pcie", 0, 3, "demand", 9, 710, 710, 999, 1, None)
    gone = Event("evicted", 8, 3, 7)
    tables = [[second, late], [early], [early, second]]
    found = [RunLog(files(tmp_path, transfers=[*TRANSFERS, *rows])) for rows in tables]
    assert [one.events_of(1) for one in found] == [
        [gone],
        [Event("evicted", 8, 3)],
        [Event("evicted", 8, 3, 3)],
    ]
    trims = CONFIG.replace("strict", "after_batch")
    assert RunLog(files(tmp_path, trims, transfers=[*TRANSFERS, late])).events_of(1) == [
        Event("evicted", 8, 3)
    ]
    # Before the first gate every transfer is late enough.
    decisions = [(1, "evict", -1, 3, None, None), *DECISIONS]
    transfers = [*TRANSFERS, (5, "pcie", 0, 7, "demand", 9, 0, 0, 9, 3, None)]
    before = RunLog(files(tmp_path, decisions=decisions, transfers=transfers))
    assert before.events_of(3)[0] == Event("evicted", 1, -1, 7)


@pytest.mark.parametrize(
    ("retention", "allocation", "staging", "trims"),
    [
        ("after_batch", "reserved", 0, [True, True]),
        ("strict", "reserved", 0, [False, False]),
        ("strict", "growing", 0, [True, False]),
        ("strict", "growing", 2, [False, False]),
    ],
)
def test_pools_are_trimmed_after_batches_or_at_gates_where_slots_shrink(
    log: RunLog, retention: str, allocation: str, staging: int, trims: list[bool]
) -> None:
    """Call 5 is a gate's and call 8 is not."""
    log.config["loader"] = {"retention": retention, "staging_slots": staging}
    log.config["workload"] = {"kv_allocation": allocation}
    assert [log.trims_at(call) for call in (5, 8)] == trims


def test_stays_begin_with_a_transfer_or_with_the_run(log: RunLog) -> None:
    expected = {
        0: [Stay(None, Event("evicted", 2, 0, 2)), Stay(DEMAND_0, None)],
        1: [Stay(None, Event("evicted", 8, 3))],
        2: [Stay(DEMAND_2, Event("evicted", 7, 3, 0))],
        3: [Stay(PREFETCH_3, Event("evicted", 5, 1, 6))],
        7: [],
        13: [Stay(None, None)],
    }
    assert {key: log.stays_of(key) for key in expected} == expected


@pytest.mark.parametrize("outcome", ["hit", "high_for_low", "low_for_high"])
def test_a_key_that_is_found_before_it_is_moved_was_there_from_the_start(
    log: RunLog, outcome: str
) -> None:
    """It left staging, which no row tells, before the transfer at tick 1; a later hit says nothing."""
    rows = log.lookups

    def stays(tick: int) -> list[Stay]:
        hit = (tick, 0, "prefill", 0, 6, 2, "fp16", "fp16", outcome, 1, 100, 100)
        log.lookups = pl.concat([pl.DataFrame([hit], rows.schema, orient="row"), rows])
        return log.stays_of(6)

    came = Stay(DEMAND_6, Event("evicted", 9, 3, 5))
    assert [stays(tick) for tick in (0, 1)] == [[Stay(None, None), came], [came]]


def test_a_key_that_leaves_twice_goes_the_first_time(tmp_path: Path) -> None:
    """The second is the eviction of a copy that came without a transfer."""
    again = [*DECISIONS, (10, "evict", 3, 1, None, None)]
    log = RunLog(files(tmp_path, decisions=again))
    assert log.stays_of(1) == [Stay(None, Event("evicted", 8, 3))]


@pytest.mark.parametrize(
    ("key", "there"),
    [
        (0, [False, False, False]),  # evicted in the call of gate 0; arrives at 900, after 750
        (1, [True, True, True]),  # until call 8, after the lookups of gate 3
        (2, [False, True, True]),  # arrives at 250; looked up in call 6, and evicted in call 7
        (3, [False, False, False]),  # arrives at 300, evicted in the call of gate 1
        (4, [True, False, False]),
        (5, [False, False, False]),
        (6, [False, False, True]),
        (13, [True, True, True]),
    ],
)
def test_a_key_is_there_from_its_arrival_to_its_eviction(
    log: RunLog, key: int, there: list[bool]
) -> None:
    assert [log.is_there(key, tick) for tick in (0, 1, 3)] == there


@pytest.mark.parametrize(
    ("end_ns", "outcome", "is_there"),
    [(750, None, True), (751, None, False), (750, "dropped", False)],
)
def test_a_need_of_a_later_wave_finds_what_has_come_by_its_own_lookup(
    tmp_path: Path, end_ns: int, outcome: str | None, is_there: bool
) -> None:
    """0 is looked up at 750, in call 7, 50 ns after its gate."""
    other = (3, "pcie", 0, 0, "demand", 9, 650, 660, end_ns, None, outcome)
    sooner = [*DECISIONS[:14], (6, "issue", 3, 0, None, None), DECISIONS[14], *DECISIONS[16:]]
    transfers = [*TRANSFERS[:4], other, TRANSFERS[5]]
    log = RunLog(files(tmp_path, transfers=transfers, decisions=sooner))
    assert log.is_there(0, 3) is is_there


def test_a_link_serves_what_overlaps_the_span_and_counts_what_is_inside(log: RunLog) -> None:
    spans = {
        (250, 410): [(3, "prefetch", 50)],
        (249, 411): [(2, "demand", 1), (3, "prefetch", 50), (6, "demand", 1)],
        (500, 550): [(6, "demand", 50)],
        (600, 760): [],
    }
    assert {span: log.served_between("pcie", *span) for span in spans} == spans
    assert log.served_between("nvme", 0, 999) == [(3, "prefetch", 70)]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("model: {sites: 2, experts: 0}", "model.sites and model.experts are [2, 0], must be"),
        ("model: {sites: 65537, experts: 1}", "model.sites and model.experts are [65537, 1], must"),
        ("model: {sites: true, experts: 1}", "model.sites and model.experts are [True, 1], must"),
        ("model: {experts: 2.0}", "model.sites and model.experts are [None, 2.0], must"),
        ("model: 3", "model.sites and model.experts are [None, None], must be whole numbers; "),
        ("[1, 2]", "must be a section of values; "),
        ("a: [", "cannot be read ("),
    ],
)
def test_a_configuration_that_is_no_runs_is_refused(tmp_path: Path, config: str, told: str) -> None:
    with pytest.raises(ValueError, match="name the output directory of ") as refused:
        RunLog(files(tmp_path, config))
    assert told in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path}/config.yaml")


@pytest.mark.parametrize("size", [1, 65536])
def test_a_model_may_have_from_one_expert_to_65536(tmp_path: Path, size: int) -> None:
    log = RunLog(files(tmp_path, f"model: {{sites: {size}, experts: {size}}}"))
    assert (log.sites, log.experts, log.plane) == (size, size, size * (size + 1))


def test_what_is_missing_or_too_large_is_refused_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = "; name the output directory of `moelab run ... outputs=all`"

    def refused() -> str:
        with pytest.raises(ValueError, match=r"name the") as told:
            RunLog(tmp_path)
        return str(told.value)

    assert refused() == f"{tmp_path} is no run: it has no config.yaml{again}"
    size = len(CONFIG.encode())
    files(tmp_path)
    assert (run_log.LARGEST_CONFIG_BYTES, kept_tables.LARGEST_ROWS) == (1_048_576, 268_435_456)
    monkeypatch.setattr(run_log, "LARGEST_CONFIG_BYTES", size)
    monkeypatch.setattr(kept_tables, "LARGEST_ROWS", 18)
    RunLog(tmp_path)
    monkeypatch.setattr(kept_tables, "LARGEST_ROWS", 17)
    assert refused() == f"{tmp_path}/decisions.parquet has 18 rows, must have at most 17{again}"
    monkeypatch.setattr(run_log, "LARGEST_CONFIG_BYTES", size - 1)
    assert refused() == f"{tmp_path}/config.yaml has {size} B, must have at most {size - 1}{again}"
    monkeypatch.undo()
    pl.read_parquet(tmp_path / "decisions.parquet").clear().write_parquet(
        tmp_path / "decisions.parquet"
    )
    rows = "has no rows, but every lookup is one"
    assert refused() == f"{tmp_path}/decisions.parquet {rows}{again}"
    (tmp_path / "decisions.parquet").unlink()
    assert refused() == f"{tmp_path} has no decisions.parquet{again}"
    files(tmp_path)
    pl.DataFrame({"step": [0], "more": [0]}).write_parquet(tmp_path / "tokens.parquet")
    assert refused() == f"{tmp_path}/tokens.parquet lacks the columns sequence, position{again}"


def test_labels_are_those_of_the_summary(log: RunLog, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no run: no summary\.json is in it"):
        _ = log.labels
    told = summary_of(labels={"lossy": "lossy (experts skipped)"}, overrides=["trace.path=x"])
    (tmp_path / "summary.json").write_text(json.dumps(told), encoding="utf-8")
    assert log.labels == Labels(lossy="lossy (experts skipped)", changed=("trace.path=x",))
