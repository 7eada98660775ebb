"""Workloads whose steps are composed: random traces against plain Python, and what cannot be composed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.batching import Request
from sim.synthesis import synthesize
from sim.trace import CHUNK, DECODE, PREFILL, ModelShape, Trace
from sim.types import Step
from sim.workload import BLOCK_CELLS, Limits, Workload
from unit.sim.composer import Rows, compose_by_rows

SITES, EXPERTS, TOP_K, DEPTH = 3, 5, 2, 2
SHAPE = ModelShape("tiny", "none", SITES, EXPERTS, TOP_K, 8, 8)


def make_trace(lengths: dict[int, tuple[int, int]], seed: int = 0, padding: int = 0) -> Trace:
    """Sequences of so many prompt and decoded rows, recorded in random turns with random choices.

    One choice in eight is dropped; weights tie often. Prompts have no lookahead. ``padding`` rows of the first
    sequence stand among the others.
    """
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    phases = {number: [PREFILL] * prompt + [DECODE] * decode for number, (prompt, decode) in lengths.items()}
    turns = [number for number, rows in phases.items() for _ in rows]
    draw.shuffle(turns)
    done = dict.fromkeys(phases, 0)
    rows = []
    for number in turns:
        rows.append((number, done[number], phases[number][done[number]], True))
        done[number] += 1
    for _ in range(padding):
        rows.insert(draw.randrange(len(rows) + 1), (next(iter(lengths)), -1, DECODE, False))
    sequence, position, phase, valid = (np.array(column) for column in zip(*rows, strict=True))
    count = len(rows)
    ids = rng.permuted(np.tile(np.arange(EXPERTS, dtype=np.int16), (count, SITES, 1)), axis=-1)[..., :TOP_K]
    ids = np.where(rng.random(ids.shape) < 1 / 8, np.int16(-1), ids)
    weights = np.where(ids < 0, 0, rng.integers(1, 5, ids.shape) / 4).astype(np.float32)
    lookahead = rng.integers(-9, 9, (count, SITES, DEPTH, EXPERTS)).astype(np.float32)
    lookahead[phase == PREFILL] = np.nan
    base = synthesize(SHAPE, tokens=1, sequences=max(lengths) + 1, lookahead=DEPTH)
    return replace(
        base, sequence=sequence.astype(np.int32), position=position.astype(np.int32), phase=phase.astype(np.uint8),
        step=np.arange(count, dtype=np.int32), token=np.full(count, -1, np.int32), valid=valid,
        ids=ids, weights=weights, logits=None, lookahead={"raw": lookahead},
    )  # fmt: skip


def random_lengths(draw: random.Random) -> dict[int, tuple[int, int]]:
    numbers = draw.sample(range(9), draw.randint(1, 6))
    lengths = {number: (draw.choice((0, 1, 2, 5)), draw.randint(0, 4)) for number in numbers}
    return {number: length if sum(length) else (1, 0) for number, length in lengths.items()}


def drive(workload: Workload, step_ns: Callable[[Rows], int]) -> tuple[list[Step | int], list[Rows | int]]:
    """What the schedule of a run says to a driver whose steps take so long; also as (sequence, position)."""
    schedule, now = workload.start(), 0
    told: list[Step | int] = []
    rows: list[Rows | int] = []
    while (following := schedule.next(now)) is not None:
        told.append(following)
        if isinstance(following, int):
            rows.append(now := following)
            continue
        of_step = workload.row[following.start : following.stop]
        trace = workload.trace
        step = [*zip(trace.sequence[of_step].tolist(), trace.position[of_step].tolist(), strict=True)]
        rows.append(step)
        now += step_ns(step)
    assert schedule.next(now) is None
    return told, rows


def in_need_order(ids: np.ndarray, weights: np.ndarray) -> list[tuple[int, float, float]]:
    """One row's choices as (expert, weight, score)."""
    chosen = sorted((-w, e) for e, w in zip(ids.tolist(), weights.tolist(), strict=True) if e >= 0)
    total, above, needs = sum(-w for w, _ in chosen), 0.0, []
    for negative, expert in chosen:
        needs.append((expert, -negative, above / total if total else 0.0))
        above -= negative
    return needs


def union_by_hand(rows: list[list[tuple[int, float, float]]]) -> list[tuple[int, int, float, float]]:
    """Rows of one site as (expert, tokens, weight, score), in need order."""
    if len(rows) == 1:
        return [(expert, 1, weight, score) for expert, weight, score in rows[0]]
    merged: dict[int, tuple[int, float, float]] = {}
    for row in rows:
        for expert, weight, score in row:
            tokens, mass, least = merged.get(expert, (0, 0.0, float("inf")))
            merged[expert] = tokens + 1, mass + weight, min(least, score)
    ordered = sorted(merged, key=lambda expert: (-merged[expert][0], expert))
    return [(expert, *merged[expert]) for expert in ordered]


def assert_needs(workload: Workload) -> None:
    """Every gate of the walk, and the needs of the run, against the rows one by one."""
    trace, gate, tick = workload.trace, workload.gate(), -1
    needs = workload.needs
    columns = [c.tolist() for c in (needs.tick, needs.expert, needs.tokens, needs.weight, needs.score)]
    told = list(zip(*columns, strict=True))
    expected = []
    for step in workload.steps:
        gate.open(step)
        rows = workload.row[step.start : step.stop]
        for site in step.sites:
            gate.visit(site)
            tick += 1
            union = union_by_hand([in_need_order(trace.ids[row, site], trace.weights[row, site]) for row in rows])
            assert (gate.tick, gate.step, gate.site, gate.token) == (tick, step.index, site, step.token)
            assert list(gate.needs) == [need[0] for need in union]
            assert list(gate.tokens) == [need[1] for need in union]
            assert list(gate.scores) == pytest.approx([need[3] for need in union])
            assert gate.row_sequence.tolist() == trace.sequence[rows].tolist()
            assert gate.row_position.tolist() == trace.position[rows].tolist()
            assert gate.row_phase.tolist() == trace.phase[rows].tolist()
            expected += [(tick, *need) for need in union]
    assert [need[:3] for need in told] == [need[:3] for need in expected]
    assert [need[3] for need in told] == pytest.approx([need[3] for need in expected])
    assert [need[4] for need in told] == pytest.approx([need[4] for need in expected])
    assert workload.num_gates == tick + 1
    assert workload.gate_step.tolist() == [step.index for step in workload.steps for _ in step.sites]
    assert workload.gate_site.tolist() == [site for step in workload.steps for site in step.sites]


def assert_steps(workload: Workload) -> None:
    """What steps say of themselves, from their rows."""
    trace = workload.trace
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step in workload.steps:
        for number in step.sequences:
            first.setdefault(number, step.index)
            last[number] = step.index
    stop = 0
    for index, step in enumerate(workload.steps):
        rows = workload.row[step.start : step.stop]
        assert (step.index, step.start, step.sites) == (index, stop, tuple(range(workload.sites)))
        assert step.sequences == tuple(dict.fromkeys(trace.sequence[rows].tolist()))
        assert step.token == trace.position[rows].max() + 1
        assert step.decode == (trace.phase[rows] == DECODE).all()
        assert step.begins == tuple(sorted(number for number in step.sequences if first[number] == index))
        assert step.ends == tuple(sorted(number for number in step.sequences if last[number] == index))
        stop = step.stop
    assert len(workload.row) == stop == len(workload.chosen[0]) == len(workload.scores)


# ---- against plain Python --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timed", [False, True], ids=["all there at 0", "arriving over time"])
@pytest.mark.parametrize("cells", [BLOCK_CELLS, 200], ids=["unions in one block", "unions in blocks"])
def test_steps_unions_and_needs_are_those_of_the_rows_one_by_one(
    timed: bool, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.workload.BLOCK_CELLS", cells)
    for seed in range(100):
        draw = random.Random(seed)
        lengths = random_lengths(draw)
        trace = make_trace(lengths, seed, padding=draw.choice((0, 2)))
        arrivals = [draw.choice((0, 3, 3, 9, 30)) for _ in lengths] if timed else [0] * len(lengths)
        batching, together = draw.choice(("static", "continuous")), draw.randint(1, 4)
        chunk = draw.choice((None, 1, 3))
        workload = Workload(
            trace, split="all", batching=batching, together=together, prefill_chunk=chunk, arrivals=arrivals
        )
        assert workload.is_timed == (max(arrivals) > 0)
        assert workload.arrivals_ns == dict(zip(sorted(lengths), arrivals, strict=True))
        before = list(workload.steps)
        told, rows = drive(workload, lambda step: 2 + len(step))
        requests = [Request(n, *lengths[n], at) for n, at in zip(sorted(lengths), arrivals, strict=True)]
        assert rows == compose_by_rows(requests, batching, together, chunk, lambda step: 2 + len(step)), f"seed {seed}"
        assert workload.steps == [step for step in told if isinstance(step, Step)]
        assert before == ([] if workload.is_timed else workload.steps)
        assert_steps(workload)
        assert_needs(workload)
        assert max(step.rows for step in workload.steps) <= workload.limits.rows
        most = most_tokens_held(workload)
        assert workload.limits.tokens >= most if workload.is_timed else workload.limits.tokens == most


def most_tokens_held(workload: Workload) -> int:
    """Row by row: what the sequences hold that have begun and not ended."""
    held: Counter[int] = Counter()
    most = 0
    for step in workload.steps:
        held.update(workload.trace.sequence[workload.row[step.start : step.stop]].tolist())
        most = max(most, held.total())
        for number in step.ends:
            del held[number]
    return most


def test_sequential_is_static_with_one() -> None:
    trace = make_trace({0: (2, 2), 3: (0, 2), 4: (3, 0)})
    sequential, static = (Workload(trace, split="all", batching=name) for name in ("sequential", "static"))
    assert sequential.steps == static.steps
    assert sequential.row.tolist() == static.row.tolist()
    assert {len(step.sequences) for step in sequential.steps} == {1}


def test_a_forecast_of_a_composed_step_is_the_union_of_those_of_its_rows() -> None:
    """In chunked prefill some rows have none, and count for nothing."""
    for seed in range(40):
        trace = make_trace({0: (2, 6), 1: (3, 3), 2: (4, 2)}, seed)
        workload = Workload(trace, split="all", batching="continuous", together=3, prefill_chunk=2, lookahead=DEPTH,
                            arrivals=[0, 4, 4])  # fmt: skip
        drive(workload, len)
        assert any(len(step.sequences) > 1 and not step.decode for step in workload.steps)
        gate = workload.gate()
        for step in workload.steps:
            gate.open(step)
            rows = workload.row[step.start : step.stop]
            for site in step.sites:
                gate.visit(site)
                for j in range(1, DEPTH + 1):
                    known = [row for row in rows if trace.phase[row] == DECODE and site + j < SITES]
                    routes = [forecast_of(trace, row, site, j) for row in known]
                    choice = gate.routed(j)
                    if not known:
                        assert choice is None
                        continue
                    # One row alone keeps its own order; beside others that have none it is a union of one.
                    union = union_by_hand(routes if len(rows) == 1 else [*routes, []])
                    assert choice is not None
                    assert (choice.site, list(choice.needs)) == (site + j, [need[0] for need in union])
                    assert list(choice.tokens) == [need[1] for need in union]
                    assert list(choice.scores) == pytest.approx([need[3] for need in union])
                    assert choice.experts.shape == (len(rows), TOP_K)
                    assert (gate.lookahead(j) is None) == (len(known) < len(rows))


def forecast_of(trace: Trace, row: int, site: int, j: int) -> list[tuple[int, float, float]]:
    rule = trace.header.sites[site + j].rule
    assert rule is not None
    return in_need_order(*rule.route(trace.lookahead["raw"][row, site, j - 1], TOP_K))


# ---- runs over time --------------------------------------------------------------------------------------------------


def timed(**choices: Any) -> Workload:
    """Prompts of 2 and 1, two tokens each; the second arrives at 5."""
    trace = make_trace({0: (2, 2), 1: (1, 2)})
    given: dict[str, Any] = {"split": "all", "batching": "continuous", "together": 2, "arrivals": [0, 5]} | choices
    return Workload(trace, **given)


def test_steps_depend_on_how_long_they_take_and_a_new_start_forgets_those_of_the_last_run() -> None:
    workload = timed()
    assert workload.steps == []
    slow = drive(workload, lambda step: 10)[1]
    assert slow == [[(0, 0), (0, 1)], [(1, 0)], [(0, 2), (1, 1)], [(0, 3), (1, 2)]]
    assert_needs(workload)
    quick = drive(workload, lambda step: 1)[1]
    assert quick == [[(0, 0), (0, 1)], [(0, 2)], [(0, 3)], 5, [(1, 0)], [(1, 1)], [(1, 2)]]
    assert_steps(workload)
    assert_needs(workload)
    workload.start()
    assert workload.steps == []


def test_what_is_computed_from_steps_is_of_those_there_are() -> None:
    workload = timed()
    schedule = workload.start()
    for count in range(1, 4):
        schedule.next(10 * count)
        assert len(workload.steps) == count
        assert len(workload.chosen[0]) == len(workload.scores) == len(workload.row) == workload.steps[-1].stop
        assert_needs(workload)


def test_the_schedule_of_an_earlier_run_cannot_go_on() -> None:
    workload = timed()
    earlier, later = workload.start(), workload.start()
    later.next(0)
    with pytest.raises(RuntimeError, match="another run of this workload has started"):
        earlier.next(0)
    untimed = timed(arrivals=None)
    one, other = untimed.start(), untimed.start()
    assert one.next(0) == other.next(0) == untimed.steps[0]


def test_a_poisson_process_gives_each_sequence_its_arrival_by_number() -> None:
    workload = timed(arrivals=None, arrivals_per_s=100.0, arrival_seed=3)
    assert workload.is_timed
    assert list(workload.arrivals_ns) == [0, 1]
    assert 0 < workload.arrivals_ns[0] < workload.arrivals_ns[1]
    assert workload.start().next(0) == workload.arrivals_ns[0]


def test_what_gates_will_need_is_not_known_before_a_timed_run() -> None:
    workload = timed()
    drive(workload, len)
    with pytest.raises(ValueError, match=r"sequences arrive over time.*workload\.arrivals_per_s=null"):
        workload.experts_by_gate()
    with pytest.raises(RuntimeError, match="no steps, and no needs, before the run"):
        _ = timed().needs


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "limits"),
    [
        ({"batching": "sequential"}, Limits(tokens=9, rows=5)),
        ({"batching": "static", "together": 2}, Limits(6 + 9, 7)),
        ({"batching": "static", "together": 9}, Limits(6 + 9, 8)),
        ({"batching": "continuous", "together": 2, "prefill_chunk": 3}, Limits(8 + 9, 4)),
        ({"batching": "continuous", "together": 2, "arrivals": [0, 0, 1]}, Limits(8 + 9, 7)),
        ({"batching": "continuous", "together": 9, "arrivals": [0, 0, 1]}, Limits(8 + 9 + 2, 8)),
        ({"batching": "continuous", "together": 2, "prefill_chunk": 3, "arrivals": [0, 0, 1]}, Limits(8 + 9, 4)),
    ],
)
def test_limits_hold_the_most_tokens_that_run_at_once_and_the_most_rows(
    choices: dict[str, Any], limits: Limits
) -> None:
    """Prompts of 2, 5 and 1 rows, 6, 4 and 1 decoded: 8, 9 and 2 tokens. In a group the second ends when the first has
    6; in chunks both end at once. Where the time is not known the longest ones may run together.
    """
    assert Workload(make_trace({0: (2, 6), 1: (5, 4), 2: (1, 1)}), split="all", **choices).limits == limits


def test_sequences_that_run_count_while_another_ones_prompt_is_read() -> None:
    """Two prompts of one row: never are both sequences in one step, but both run."""
    trace = make_trace({0: (1, 1), 1: (1, 1)})
    recorded = replace(trace, **{
        name: getattr(trace, name)[np.lexsort((trace.sequence, trace.position))]
        for name in ("sequence", "position", "phase", "valid", "ids", "weights")
    })  # fmt: skip
    workload = Workload(recorded, split="all", batching="recorded")
    assert [step.sequences for step in workload.steps] == [(0,), (1,), (0,), (1,)]
    assert workload.limits == Limits(tokens=2 + 1, rows=1), "one ends with 2 when the other has 1"


# ---- what is left out, and what is refused ---------------------------------------------------------------------------


def test_padding_runs_with_its_recorded_batch_and_in_no_composed_step() -> None:
    trace = make_trace({0: (1, 2), 1: (1, 1)}, padding=3)
    assert len(Workload(trace, split="all", batching="recorded").row) == 8
    assert trace.valid[Workload(trace, split="all", batching="static", together=2).row].all()


def test_padding_leaves_the_tokens_of_its_sequence_as_they_were() -> None:
    """A sequence of three tokens that is padded while another goes on to its second."""
    trace = make_trace({0: (3, 0), 1: (1, 1)})
    order = np.lexsort((trace.position, trace.sequence))
    rows = [*order[:3], order[3], order[0], order[4]]
    columns = {
        name: getattr(trace, name)[rows] for name in ("sequence", "position", "phase", "valid", "ids", "weights")
    }
    columns["step"] = np.array([0, 0, 0, 0, 1, 1], np.int32)
    columns["valid"][4], columns["position"][4], columns["phase"][4] = False, -1, DECODE
    steps = Workload(replace(trace, **columns, lookahead={}), split="all").steps
    assert [step.token for step in steps] == [3, 3]


def test_a_sequence_without_rows_is_no_request() -> None:
    trace = make_trace({0: (1, 1), 4: (1, 1)})
    assert len(trace.header.sequences) == 5
    workload = Workload(trace, split="all", batching="static", together=8)
    assert [s.sequence for s in workload.sequences] == [0, 4] == list(workload.arrivals_ns)
    with pytest.raises(ValueError, match="has no sequences for split=fit"):
        Workload(trace, split="fit", batching="static")  # odd sequences are for fitting


def test_a_prompt_recorded_in_parts_is_read_as_one_and_one_after_decoded_rows_is_refused() -> None:
    trace = make_trace({0: (3, 2)})
    in_parts = replace(trace, phase=np.array([PREFILL, PREFILL, CHUNK, DECODE, DECODE], np.uint8))
    assert [step.rows for step in Workload(in_parts, split="all", batching="sequential").steps] == [3, 1, 1]
    turns = replace(trace, phase=np.array([PREFILL, PREFILL, DECODE, CHUNK, DECODE], np.uint8))
    with pytest.raises(
        ValueError, match=r"prompt rows after decoded ones in sequence 0.*use workload\.batching=recorded"
    ):
        Workload(turns, split="all", batching="sequential")


def test_a_flag_that_no_sequence_carries_is_refused_by_name_with_those_there_are() -> None:
    trace = make_trace({0: (1, 1), 1: (1, 1)})
    with pytest.raises(ValueError, match=r"trace\.exclude names long, but the sequences of trace .* \(none\)"):
        Workload(trace, split="all", exclude=["long"])
    flagged = tuple(replace(s, flags={"has_repetition": False}) for s in trace.header.sequences)
    trace = replace(trace, header=replace(trace.header, sequences=flagged))
    assert len(Workload(trace, split="all", exclude=["has_repetition"]).sequences) == 2
    with pytest.raises(ValueError, match=r"names long, odd, but .* have the flags has_repetition; leave it out"):
        Workload(trace, split="all", exclude=["long", "has_repetition", "odd"])


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"batching": "rolling"}, r"workload\.batching=rolling; allowed: recorded, sequential, static, continuous"),
        ({"batching": "static", "together": 0}, r"workload\.together=0 must be a whole number >= 1"),
        ({"batching": "static", "together": 1.5}, r"workload\.together=1\.5 must be a whole number"),
        ({"batching": "sequential", "together": 4},
         r"together=4 does not go with workload\.batching=sequential, .*; choose workload\.batching=static or"),
        ({"batching": "recorded", "together": 4},
         r"together=4 does not go with workload\.batching=recorded, .*choose workload\.batching=sequential, static"),
        ({"batching": "recorded", "prefill_chunk": 8}, r"prefill_chunk=8 does not go with workload\.batching=recorded"),
        ({"batching": "recorded", "arrivals_per_s": 2}, r"arrivals_per_s=2 does not go with .*=recorded"),
        ({"batching": "recorded", "arrivals": [0, 0]}, r"arrivals=\[0, 0\] does not go with .*=recorded"),
        ({"batching": "static", "prefill_chunk": 0}, r"workload\.prefill_chunk=0 must be a whole number >= 1"),
        ({"batching": "static", "arrivals_per_s": 0}, r"workload\.arrivals_per_s=0 must be 1e-06 or more"),
        ({"batching": "static", "arrivals": [1]}, "1 arrivals are given for 2 sequences"),
    ],
)  # fmt: skip
def test_choices_that_do_not_go_together_are_refused_with_the_way_out(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workload(make_trace({0: (1, 1), 1: (1, 1)}), split="all", **choices)


def test_active_shares_stand_in_the_order_of_the_experts() -> None:
    trace = make_trace({0: (0, 1), 1: (0, 1)})
    shares = np.stack([trace.ids / 8, trace.ids / 16], axis=-1).astype(np.float32)
    workload = Workload(replace(trace, active_shares=shares), split="all", batching="static", together=2)
    gate = workload.gate()
    gate.open(workload.steps[0])
    for site in range(SITES):
        gate.visit(site)
        assert gate.share is not None
        np.testing.assert_array_equal(gate.share[..., 0] * 8, gate.experts)
        np.testing.assert_array_equal(gate.share[..., 1] * 16, gate.experts)
