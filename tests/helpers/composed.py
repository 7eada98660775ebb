"""Random traces whose steps are composed, and their steps, unions and needs in plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from helpers.composer import Rows
from sim.traces.synthesis import synthesize
from sim.traces.trace import DECODE, PREFILL, ModelShape, Trace
from sim.values.types import Step
from sim.workload.steps import Workload

SITES, EXPERTS, TOP_K, DEPTH = 3, 5, 2, 2
SHAPE = ModelShape("tiny", "none", SITES, EXPERTS, TOP_K, 8, 8)


def make_trace(lengths: dict[int, tuple[int, int]], seed: int = 0, padding: int = 0) -> Trace:
    """Sequences of so many (prompt, decoded) rows, recorded in random turns with random choices.

    One choice in eight is dropped, and weights tie often. Prompts have no lookahead. ``padding``
    rows of the first sequence stand among the others.
    """
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    phases = {
        number: [PREFILL] * prompt + [DECODE] * decode
        for number, (prompt, decode) in lengths.items()
    }
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
    ids = rng.permuted(np.tile(np.arange(EXPERTS, dtype=np.int16), (count, SITES, 1)), axis=-1)[
        ..., :TOP_K
    ]
    ids = np.where(rng.random(ids.shape) < 1 / 8, np.int16(-1), ids)
    weights = np.where(ids < 0, 0, rng.integers(1, 5, ids.shape) / 4).astype(np.float32)
    lookahead = rng.integers(-9, 9, (count, SITES, DEPTH, EXPERTS)).astype(np.float32)
    lookahead[phase == PREFILL] = np.nan
    base = synthesize(SHAPE, tokens=1, sequences=max(lengths) + 1, lookahead=DEPTH)
    return replace(
        base,
        sequence=sequence.astype(np.int32),
        position=position.astype(np.int32),
        phase=phase.astype(np.uint8),
        step=np.arange(count, dtype=np.int32),
        token=np.full(count, -1, np.int32),
        valid=valid,
        ids=ids,
        weights=weights,
        logits=None,
        lookahead={"raw": lookahead},
    )


def random_lengths(draw: random.Random) -> dict[int, tuple[int, int]]:
    numbers = draw.sample(range(9), draw.randint(1, 6))
    lengths = {number: (draw.choice((0, 1, 2, 5)), draw.randint(0, 4)) for number in numbers}
    return {number: length if sum(length) else (1, 0) for number, length in lengths.items()}


def drive(
    workload: Workload, step_ns: Callable[[Rows], int]
) -> tuple[list[Step | int], list[Rows | int]]:
    """What a run's schedule answers to a driver whose steps take ``step_ns``.

    Returns the answers, and the same with each step as its (sequence, position) rows.
    """
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
        step = [
            *zip(trace.sequence[of_step].tolist(), trace.position[of_step].tolist(), strict=True)
        ]
        rows.append(step)
        now += step_ns(step)
    assert schedule.next(now) is None
    return told, rows


def in_need_order(ids: np.ndarray, weights: np.ndarray) -> list[tuple[int, float, float]]:
    """One row's choices as (expert, weight, score), in need order."""
    chosen = sorted((-w, e) for e, w in zip(ids.tolist(), weights.tolist(), strict=True) if e >= 0)
    total, above, needs = sum(-w for w, _ in chosen), 0.0, []
    for negative, expert in chosen:
        needs.append((expert, -negative, above / total if total else 0.0))
        above -= negative
    return needs


def union_by_hand(
    rows: list[list[tuple[int, float, float]]],
) -> list[tuple[int, int, float, float]]:
    """The union of one site's rows as (expert, tokens, weight, score), in need order."""
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
    """Check every gate of the walk, and the needs of the run, against the rows one by one."""
    trace, gate, tick = workload.trace, workload.gate(), -1
    needs = workload.needs
    columns = [
        c.tolist() for c in (needs.tick, needs.expert, needs.tokens, needs.weight, needs.score)
    ]
    told = list(zip(*columns, strict=True))
    expected = []
    for step in workload.steps:
        gate.open(step)
        rows = workload.row[step.start : step.stop]
        for site in step.sites:
            gate.visit(site)
            tick += 1
            union = union_by_hand(
                [in_need_order(trace.ids[row, site], trace.weights[row, site]) for row in rows]
            )
            assert (gate.tick, gate.step, gate.site, gate.token) == (
                tick,
                step.index,
                site,
                step.token,
            )
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
    assert workload.gate_step.tolist() == [
        step.index for step in workload.steps for _ in step.sites
    ]
    assert workload.gate_site.tolist() == [site for step in workload.steps for site in step.sites]


def assert_steps(workload: Workload) -> None:
    """Check each step's fields against its rows."""
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
        assert step.begins == tuple(
            sorted(number for number in step.sequences if first[number] == index)
        )
        assert step.ends == tuple(
            sorted(number for number in step.sequences if last[number] == index)
        )
        stop = step.stop
    assert len(workload.row) == stop == len(workload.chosen[0]) == len(workload.scores)
