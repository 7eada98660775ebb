"""The rows of a run as tables (names and columns are a contract): derived after the run from what was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.controller import Controller, Event
from sim.costs import Durations
from sim.policies.base import IntArray
from sim.record import Record
from sim.stalls import STALL_PARTS, split_stalls
from sim.trace import TraceSequence
from sim.types import SKIP, Outcome, PrefetchOutcome
from sim.workload import Workload

Ints = NDArray[np.int64]
LOOKUP_OUTCOMES = [outcome.name.lower() for outcome in Outcome]
PREFETCH_OUTCOMES = [outcome.name.lower() for outcome in PrefetchOutcome]


@dataclass(frozen=True)
class Frames:
    """Tables of one run. Times in ns from the first arrival, sizes in bytes."""

    controller: Controller
    workload: Workload
    durations: Durations
    record: Record
    link_name: str

    @cached_property
    def lookups(self) -> pl.DataFrame:
        """One row a need. ``gate_ns`` is the time of its lookup: for a later wave, of its admission."""
        c, g, needs = self.controller, self.controller.geometry, self.workload.needs
        key = np.array(c.lookup_keys, np.int64)
        served = np.where(key == SKIP, SKIP, key // g.plane)
        wanted = np.array(c.lookup_wanted, np.int64) if c.lookup_wanted else np.zeros(len(key), np.int64)
        names = np.array([*g.precisions, None], dtype=object)  # index -1: skipped
        return pl.DataFrame({
            "tick": needs.tick,
            "step": needs.tick // g.sites,
            "site": needs.tick % g.sites,
            "key": key,
            "expert": needs.expert,
            "wanted": pl.Series(names[wanted].tolist(), dtype=pl.String),
            "served": pl.Series(names[served].tolist(), dtype=pl.String),
            "outcome": _labels(c.lookup_outcomes, LOOKUP_OUTCOMES),
            "tokens": needs.tokens,
            "weight": needs.weight,
            "gate_ns": np.array(self.record.lookup_ns, np.int64),
            "ready_ns": np.array(self.record.ready_ns, np.int64),
        })  # fmt: skip

    @cached_property
    def queued_ns(self) -> list[int]:
        """When each issued transfer was queued, by number."""
        calls = self.record.call_ns
        return [calls[transfer.call - 1] for transfer in self.controller.issued]

    @cached_property
    def transfers(self) -> pl.DataFrame:
        """One row a hop of an issued transfer. What the run's end cut has moved its share of bytes, rounded down."""
        c, makespan = self.controller, self.record.makespan_ns
        key = np.array([t.key for t in c.issued], np.int64)
        prefetch = np.array([t.prefetch for t in c.issued], np.bool_)
        start, end = np.array(self.record.start_ns, np.int64), np.array(self.record.service_end_ns, np.int64)
        size = np.array([t.moved_bytes for t in c.issued], np.int64)
        cut = np.flatnonzero(end < 0)
        start, end = np.where(start < 0, makespan, start), np.where(end < 0, makespan, end)
        for number in cut.tolist():
            service_ns = self.durations.transfer_ns(int(size[number]))
            size[number] = int(size[number]) * int(end[number] - start[number]) // max(service_ns, 1)
        outcome = np.where(prefetch, np.array([t.outcome for t in c.issued], np.int64), len(PREFETCH_OUTCOMES))
        victim = pl.Series([t.victims[0] if t.victims else None for t in c.issued], dtype=pl.Int64)
        return pl.DataFrame({
            "number": np.arange(len(key)),
            "link": pl.repeat(self.link_name, len(key), eager=True, dtype=pl.String),
            "hop": np.zeros(len(key), np.int64),
            "key": key,
            "class": pl.Series(["prefetch" if p else "demand" for p in prefetch.tolist()], dtype=pl.String),
            "moved_bytes": size,
            "queued_ns": np.array(self.queued_ns, np.int64),
            "start_ns": start,
            "end_ns": end,
            "victim": victim,
            "outcome": _labels(outcome, [*PREFETCH_OUTCOMES, "loaded"]),
        })  # fmt: skip

    @cached_property
    def stalls(self) -> dict[str, Ints]:
        """Each idle interval's parts, in ns."""
        return split_stalls(self.record, [t.prefetch for t in self.controller.issued], self.queued_ns)

    @cached_property
    def tokens(self) -> pl.DataFrame:
        """One row a token produced, or a prefill step, of a sequence."""
        steps, record, trace = self.workload.steps, self.record, self.workload.trace
        start, end = np.array(record.step_start_ns, np.int64), np.array(record.step_end_ns, np.int64)
        idle_from, idle_to = np.array(record.idle_start_ns, np.int64), np.array(record.idle_end_ns, np.int64)
        stall = np.zeros(len(steps), np.int64)
        np.add.at(stall, np.searchsorted(start, idle_from, side="right") - 1, idle_to - idle_from)
        hits, misses = self._hits_and_misses(len(steps))
        at = np.repeat(np.arange(len(steps)), [len(step.sequences) for step in steps])
        sequence = np.array([s for step in steps for s in step.sequences], np.int64)
        rows = self.workload.row
        last = {(int(s), i): int(p) for i, step in enumerate(steps)
                for s, p in zip(trace.sequence[rows[step.start:step.stop]], trace.position[rows[step.start:step.stop]],
                                strict=True)}  # fmt: skip
        decode = np.array([step.decode for step in steps], np.bool_)[at]
        return pl.DataFrame({
            "step": at,
            "sequence": sequence,
            "position": np.array([last[s, i] for s, i in zip(sequence.tolist(), at.tolist(), strict=True)], np.int64),
            "phase": pl.Series(["decode" if d else "prefill" for d in decode.tolist()], dtype=pl.String),
            "start_ns": start[at],
            "end_ns": end[at],
            "compute_ns": (end - start - stall)[at],
            "stall_ns": stall[at],
            "hits": hits[at],
            "misses": misses[at],
        })  # fmt: skip

    def _hits_and_misses(self, num_steps: int) -> tuple[Ints, Ints]:
        step = self.workload.needs.tick // self.workload.sites
        outcome = np.array(self.controller.lookup_outcomes, np.int64)
        hit = np.isin(outcome, [Outcome.HIT, Outcome.HIGH_FOR_LOW, Outcome.LOW_FOR_HIGH])
        miss = np.isin(outcome, [Outcome.LATE, Outcome.PROMOTED, Outcome.MISS])
        return (np.bincount(step[hit], minlength=num_steps).astype(np.int64),
                np.bincount(step[miss], minlength=num_steps).astype(np.int64))  # fmt: skip

    @cached_property
    def sequences(self) -> pl.DataFrame:
        """One row a request. Closed loop: a request arrives when its first step can begin."""
        by_number: dict[int, TraceSequence] = {s.sequence: s for s in self.workload.sequences}
        times = self.tokens.group_by("sequence", maintain_order=True).agg(
            arrival_ns=pl.col("start_ns").min(),
            first_token_ns=pl.col("end_ns").filter(pl.col("phase") == "prefill").max(),
            first_decode_ns=pl.col("end_ns").min(),
            end_ns=pl.col("end_ns").max(),
            stall_ns=pl.col("stall_ns").sum(),
        )
        known = [by_number[s] for s in times["sequence"].to_list()]
        return times.select(
            "sequence",
            pl.Series("split", [s.split for s in known], dtype=pl.String),
            pl.Series("domain", [s.domain for s in known], dtype=pl.String),
            pl.Series("prompt_tokens", [s.prompt_tokens for s in known], dtype=pl.Int64),
            pl.Series("decode_tokens", [s.decode_tokens for s in known], dtype=pl.Int64),
            "arrival_ns",
            # A trace without prompts gives its first token at the end of its first step.
            pl.coalesce("first_token_ns", "first_decode_ns").alias("first_token_ns"),
            "end_ns",
            "stall_ns",
        )

    @cached_property
    def decisions(self) -> pl.DataFrame:
        """One row an answer, by call: lookups, prefetches queued, cancelled or dropped, issues with their victim."""
        c = self.controller
        tick, calls = self.workload.needs.tick, np.array(c.gate_calls, np.int64)
        looked_up = self._lookup_calls(tick, calls)
        events = np.array(c.events, np.int64).reshape(-1, 4)
        kind = np.concatenate([np.full(len(tick), -1), events[:, 1]])
        call = np.concatenate([looked_up, events[:, 0]])
        key = np.concatenate([np.array(c.lookup_keys, np.int64), events[:, 2]])
        value = np.concatenate([np.full(len(tick), -1), events[:, 3]])
        outcome = np.concatenate([np.array(c.lookup_outcomes, np.int64), np.full(len(events), len(LOOKUP_OUTCOMES))])
        order = np.argsort(call, kind="stable")
        is_issue = kind[order] == Event.ISSUE
        victim = pl.Series(np.where(is_issue, value[order], -1), dtype=pl.Int64)
        names = ["lookup", *(event.name.lower() for event in Event)]
        return pl.DataFrame({
            "call": call[order],
            "kind": _labels(kind[order] + 1, names),
            "tick": np.searchsorted(calls, call[order], side="right") - 1,
            "key": key[order],
            "victim": victim.replace(-1, None),
            "outcome": _labels(outcome[order], [*LOOKUP_OUTCOMES, None]),
        })  # fmt: skip

    def _lookup_calls(self, tick: IntArray, gate_calls: Ints) -> Ints:
        """The call that looked each need up: its gate's, or the ``need_done`` that admitted it."""
        looked_up = gate_calls[tick]
        waves = np.array(self.controller.wave_calls, np.int64).reshape(-1, 2)
        gate_of = np.searchsorted(gate_calls, waves[:, 0], side="right") - 1
        stop = np.searchsorted(tick, np.arange(len(gate_calls)), side="right")
        for gate in np.unique(gate_of).tolist():
            of_gate = waves[gate_of == gate]
            late = np.repeat(of_gate[:, 0], of_gate[:, 1])
            looked_up[stop[gate] - len(late) : stop[gate]] = late
        return looked_up

    def tables(self) -> dict[str, pl.DataFrame]:
        """The parquet files of a run, by name."""
        return {name: getattr(self, name) for name in ("sequences", "tokens", "lookups", "transfers", "decisions")}


def idle_ns(frames: Frames) -> dict[str, int]:
    """Stall time by part, in ns."""
    return {part: int(frames.stalls[part].sum()) for part in STALL_PARTS}


def compute_busy_ns(frames: Frames) -> int:
    """What the compute stream had to do, summed operation by operation, in ns."""
    steps, durations = frames.workload.steps, frames.durations
    dense = sum(sum(durations.dense_ns(step)) + durations.tail_ns(step) for step in steps)
    key = np.array(frames.controller.lookup_keys, np.int64)
    kept = key != SKIP
    pairs = np.stack([key[kept] // frames.controller.geometry.plane, frames.workload.needs.tokens[kept]])
    kinds, count = np.unique(pairs, axis=1, return_counts=True)
    experts = sum(durations.expert_ns(int(p), int(t)) * int(n) for (p, t), n in zip(kinds.T, count, strict=True))
    return dense + experts


def _labels(codes: object, names: list[str] | list[str | None]) -> pl.Series:
    """Codes as strings: dictionary-encoded, so that a million rows cost a million bytes."""
    index = pl.Series(np.asarray(codes, np.uint32))
    return pl.Series(names, dtype=pl.String).gather(index)
