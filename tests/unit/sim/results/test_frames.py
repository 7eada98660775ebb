"""Tables of small runs worked by hand: steps of several sequences, arrivals, phases, places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from sim.core.controller import Controller
from sim.core.loader import Loader
from sim.engine.simulate import simulate
from sim.machine.durations import FixedDurations
from sim.policies.placements import AbsentOnCpu, Load
from sim.policies.precisions import Fixed
from sim.policies.predictors import NoPrediction
from sim.policies.recency import LRU
from sim.results import outputs
from sim.results.frames import LOOKUP_OUTCOMES, Frames, compute_busy_ns, idle_ns
from sim.results.latency import (
    decode_time_and_tokens,
    prefill_time,
    request_times,
    tokens_after_the_first,
)
from sim.results.outputs import write_outputs
from sim.traces.synthesis import synthesize
from sim.traces.trace import ModelShape
from sim.values.record import NOTED
from sim.values.types import Geometry, HostCosts
from sim.workload.steps import Workload

SHAPE = ModelShape("tiny", "none", 2, 4, 2, 8, 8)
DURATIONS = FixedDurations((10, 20), 5, (7,), {8: 100}, (1,))
"""A step has dense work of 10 and 20 and a tail of 5; each expert takes 7 + its rows at a site."""


def workload(experts: Sequence[int] = (0, 1), *, prompt: int = 2, **options: Any) -> Workload:
    """Two sequences of ``prompt`` and 2 tokens.

    All of them choose the same experts at both sites, with weights 3/4 and 1/4.
    """
    base = synthesize(SHAPE, tokens=2, sequences=2, prompt_tokens=prompt, lookahead=0)
    ids = np.broadcast_to(np.array(experts, np.int16), base.ids.shape)
    weights = np.broadcast_to(np.array([0.75, 0.25], np.float32), base.ids.shape)
    return Workload(replace(base, ids=ids, weights=weights), split="all", **options)


def ran(
    steps: Workload,
    *,
    slots: int = 8,
    initial: str = "ascending",
    durations: FixedDurations = DURATIONS,
    **options: Any,
) -> Frames:
    """A run; by default all experts are resident from the start."""
    geometry = Geometry(2, 4, 2, ("fp16",), (16.0,), (8,), 8 * slots)
    placement, loader = options.pop("placement", Load()), Loader(**options)
    controller = Controller(
        geometry, NoPrediction(), LRU(initial=initial), Fixed("fp16"), placement, loader
    )
    frames = Frames(controller, steps, durations, simulate(controller, steps, durations), ("pcie",))
    assert compute_busy_ns(frames) + sum(idle_ns(frames).values()) == frames.makespan_ns
    measured = replace(frames, computed=())
    assert compute_busy_ns(measured) == compute_busy_ns(frames), "where it was measured, too"
    return frames


# One sequence at a time


def test_one_sequence_after_another() -> None:
    """A prompt of 2 rows: 10 + 18 + 20 + 18 + 5 = 71; a decoded row: 10 + 16 + 20 + 16 + 5 = 67."""
    frames = ran(workload(batching="sequential"))
    columns = ("step", "sequence", "position", "phase", "start_ns", "end_ns")
    assert frames.tokens.select(columns).rows() == [
        (0, 0, 1, "prefill", 0, 71),
        (1, 0, 2, "decode", 71, 138),
        (2, 0, 3, "decode", 138, 205),
        (3, 1, 1, "prefill", 205, 276),
        (4, 1, 2, "decode", 276, 343),
        (5, 1, 3, "decode", 343, 410),
    ]
    assert frames.sequences.select("arrival_ns", "first_token_ns", "end_ns").rows() == [
        (0, 71, 205),
        (205, 276, 410),
    ]
    assert frames.makespan_ns == 410


# Contracts: C104
def test_needs_say_in_which_phase_and_at_which_gate_they_were() -> None:
    lookups = ran(workload(batching="sequential")).lookups
    assert lookups.columns == [
        "tick",
        "step",
        "phase",
        "site",
        "key",
        "expert",
        "wanted",
        "served",
        "outcome",
        "skips",
        "tokens",
        "weight",
        "gate_ns",
        "ready_ns",
    ]
    assert lookups["phase"].to_list() == (["prefill"] * 4 + ["decode"] * 8) * 2
    assert lookups["site"].to_list() == [0, 0, 1, 1] * 6
    assert lookups["step"].to_list() == sorted([*range(6)] * 4)
    assert lookups["tokens"].to_list() == ([2] * 4 + [1] * 8) * 2
    assert lookups["skips"].unique().to_list() == ["never"]


def test_without_prompts_the_first_step_gives_the_first_token() -> None:
    frames = ran(workload(prompt=0, batching="sequential"))
    assert frames.sequences.select("arrival_ns", "first_token_ns", "end_ns").rows() == [
        (0, 67, 134),
        (134, 201, 268),
    ]
    assert tokens_after_the_first(frames).select("step", "sequence", "since_last_ns").rows() == [
        (1, 0, 67),
        (3, 1, 67),
    ]


# Several at a time


def test_a_step_of_several_sequences_gives_each_a_token() -> None:
    """Both prompts in one step: 10 + 22 + 20 + 22 + 5 = 79. Then both decode: 71 each step."""
    frames = ran(workload(batching="static", together=2))
    assert frames.tokens.select("step", "sequence", "position", "phase", "end_ns").rows() == [
        (0, 0, 1, "prefill", 79),
        (0, 1, 1, "prefill", 79),
        (1, 0, 2, "decode", 150),
        (1, 1, 2, "decode", 150),
        (2, 0, 3, "decode", 221),
        (2, 1, 3, "decode", 221),
    ]
    assert frames.sequences.select("arrival_ns", "first_token_ns", "end_ns").rows() == [
        (0, 79, 221),
        (0, 79, 221),
    ]
    times = request_times(frames)
    assert times["tpot_s"]["mean"] == times["itl_s"]["mean"] == 71e-9
    assert times["decode_tokens_per_s"] == pytest.approx(4 / 142e-9)
    assert times["prefill_tokens_per_s"] == pytest.approx(4 / 79e-9)
    assert [column.tolist() for column in decode_time_and_tokens(frames)] == [[142, 0], [4, 0]]
    assert prefill_time(frames).tolist() == [79, 0]


def test_requests_that_arrive_over_time_count_from_their_arrival() -> None:
    """They arrive at 100 and 120.

    The first's prompt takes 100..171, the second's 171..242; then both decode in 71 each.
    """
    frames = ran(workload(batching="continuous", together=2, arrivals=(100, 120)))
    columns = ("arrival_ns", "first_token_ns", "end_ns")
    assert frames.sequences.select(columns).rows() == [(100, 171, 384), (120, 242, 384)]
    assert (frames.record.makespan_ns, frames.makespan_ns) == (384, 284)
    assert sum(idle_ns(frames).values()) == 0, (
        "what passes before the first arrival is nobody's waiting"
    )
    assert tokens_after_the_first(frames).select("sequence", "since_last_ns").rows() == [
        (0, 142),
        (1, 71),
        (0, 71),
        (1, 71),
    ]
    times = request_times(frames)
    assert times["ttft_s"]["mean"] == pytest.approx((71 + 122) / 2 * 1e-9)
    assert times["tpot_s"]["mean"] == pytest.approx((213 / 2 + 71) / 2 * 1e-9)
    assert times["makespan_s"] == 284e-9
    assert times["decode_tokens_per_s"] == pytest.approx(4 / 142e-9)


def test_waiting_for_a_request_is_no_steps_stall() -> None:
    """The first runs alone, 100..305; nothing arrives until 1000."""
    frames = ran(workload(batching="continuous", together=2, arrivals=(100, 1000)))
    assert {part: ns for part, ns in idle_ns(frames).items() if ns} == {"no_request": 695}
    assert frames.sequences["stall_ns"].to_list() == [0, 0]
    assert frames.tokens["stall_ns"].sum() == 0


def test_a_chunk_of_a_prompt_beside_a_decoded_row_is_prefill_of_the_one_and_decode_of_the_other() -> (
    None
):
    """There is one prompt row a step.

    Both prompts are read in turn, the second while the first decodes.
    """
    frames = ran(workload(batching="continuous", together=2, prefill_chunk=1))
    rows = frames.tokens.select("step", "sequence", "position", "phase").rows()
    assert rows == [
        (0, 0, 0, "prefill"),
        (1, 0, 1, "prefill"),
        (2, 0, 2, "decode"),
        (2, 1, 0, "prefill"),
        (3, 0, 3, "decode"),
        (3, 1, 1, "prefill"),
        (4, 1, 2, "decode"),
        (5, 1, 3, "decode"),
    ]
    assert frames.lookups.filter(frames.lookups["step"] == 2)["phase"].unique().to_list() == [
        "prefill"
    ]
    assert decode_time_and_tokens(frames)[1].tolist() == [4, 0]


# Where needs are computed


def test_what_the_cpu_computes_is_no_work_of_the_device() -> None:
    """Nothing is resident.

    Dense work and tails take 35 a step, and the CPU 30 ns for each need, one after another.
    """
    durations = FixedDurations((10, 20), 5, (7,), {8: 100}, (1,), cpu_ns=30)
    frames = ran(
        workload(batching="sequential"),
        initial="empty",
        durations=durations,
        placement=AbsentOnCpu(),
    )
    assert compute_busy_ns(frames) == 6 * 35
    assert idle_ns(frames)["cpu_join"] == 6 * 2 * 60
    assert frames.lookups["outcome"].unique().to_list() == ["cpu"]
    assert frames.lookups["served"].unique().to_list() == ["fp16"]
    assert frames.lookups["ready_ns"].to_list()[:4] == [40, 70, 120, 150]
    assert frames.tokens["hits"].sum() == frames.tokens["misses"].sum() == 0


def test_host_time_is_idle_time_by_its_own_name() -> None:
    """Twelve gates take 1 + 2 + 3 each; nothing is waited for, so nothing wakes up."""
    durations = FixedDurations((10, 20), 5, (7,), {8: 100}, (1,), host=HostCosts(1, 2, 50, 3))
    assert idle_ns(ran(workload(batching="sequential"), durations=durations))["host"] == 12 * 6


def test_loads_stall_the_step_that_waits_for_them() -> None:
    """There are two loads of 100 at either site of the first prompt; then both stay."""
    frames = ran(workload(batching="sequential"), initial="empty")
    assert frames.tokens["stall_ns"].to_list() == [400, 0, 0, 0, 0, 0]
    assert frames.tokens["misses"].to_list() == [4, 0, 0, 0, 0, 0]
    assert frames.tokens["hits"].to_list() == [0, 4, 4, 4, 4, 4]
    assert frames.sequences["stall_ns"].to_list() == [400, 0]
    assert frames.transfers.select("class", "queued_ns", "start_ns", "end_ns").rows()[:2] == [
        ("demand", 10, 10, 110),
        ("demand", 10, 110, 210),
    ]


# Contracts: C104
def test_every_answer_has_a_row_in_the_order_of_the_calls() -> None:
    frames = ran(workload(batching="sequential"), initial="empty")
    decisions = frames.decisions
    assert decisions["call"].is_sorted()
    assert dict(decisions["kind"].value_counts().iter_rows()) == {"lookup": 24, "issue": 4}
    assert (
        decisions.filter(decisions["kind"] == "lookup")["outcome"].to_list()
        == frames.lookups["outcome"].to_list()
    )


# ---- columns of several owners


@pytest.mark.parametrize(
    ("owner", "column", "tables"),
    [
        ("controller", "lookup_keys", ("lookups", "decisions")),
        ("controller", "lookup_outcomes", ("lookups", "decisions")),
        ("record", "lookup_ns", ("lookups", "decisions")),
        ("record", "ready_ns", ("lookups", "decisions")),
        ("record", "step_start_ns", ("tokens",)),
        ("record", "step_end_ns", ("tokens",)),
        ("record", "idle_end_ns", ("tokens",)),
    ],
)
@pytest.mark.parametrize("change", ["a row too many", "a row too few"])
def test_a_column_of_another_length_is_refused_by_its_name(
    owner: str, column: str, tables: Sequence[str], change: str
) -> None:
    for table in tables:
        frames = ran(workload(batching="sequential"), initial="empty")
        values = getattr(getattr(frames, owner), column)
        values.append(values[-1]) if change == "a row too many" else values.pop()
        with pytest.raises(RuntimeError, match=f"{owner}.{column} has {len(values)}"):
            getattr(frames, table)


def test_a_summary_reads_arrays_and_makes_no_list_of_a_noted_column() -> None:
    """A list of ints takes five times the bytes of an array."""
    frames = ran(workload(batching="sequential"), initial="empty")
    record = frames.record
    arrays = {name: record.array(name) for name in NOTED}
    assert frames.lookups["ready_ns"].to_list() == arrays["ready_ns"].tolist()
    assert not vars(record).keys() & set(NOTED)
    assert {name: getattr(record, name) for name in NOTED} == {
        name: array.tolist() for name, array in arrays.items()
    }


def test_the_needs_of_a_summary_are_columns_of_its_lookups() -> None:
    frames = ran(workload(batching="sequential"), initial="empty")
    names = frames.needs.columns
    assert frames.needs["outcome"].dtype == pl.Enum(LOOKUP_OUTCOMES)
    assert frames.lookups["outcome"].dtype == pl.String
    assert frames.needs.rows() == frames.lookups.select(names).rows()


def test_a_long_table_is_written_in_parts_and_is_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "PART_ROWS", 5)
    frames = ran(workload(), slots=3, initial="empty")
    of_run = dict.fromkeys(("system", "model", "hardware", "trace", "budget", "labels"))
    write_outputs(tmp_path, of_run, {}, frames, "all", 1)
    for name, table in frames.tables().items():
        parts = list(frames.parts(name, 5))
        assert len(parts) > 1 or name not in ("lookups", "decisions"), name
        written = pl.read_parquet(tmp_path / f"{name}.parquet")
        assert written.schema == table.schema, name
        assert written.equals(table, null_equal=True), name


def test_a_run_without_needs_has_tables_without_rows() -> None:
    frames = ran(workload((-1, -1)))
    assert [len(part) for name in ("lookups", "decisions") for part in frames.parts(name, 5)] == [
        0,
        0,
    ]


@pytest.mark.parametrize(
    "column", ["lookup_keys", "lookup_outcomes", "lookup_wanted", "lookup_tokens"]
)
def test_columns_of_other_lengths_than_the_needs_are_an_error(column: str) -> None:
    frames = ran(workload())
    setattr(frames.controller, column, [*[0] * len(frames.workload.needs.tick), 0])
    with pytest.raises(RuntimeError, match=rf"controller\.{column}"):
        assert frames.num_needs
