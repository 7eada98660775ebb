"""The tables of a run, derived after the run from what was recorded.

Their names and columns are a contract (docs/contracts/outputs.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.core.controller import Controller
from sim.machine.durations import Durations, OwnedDurations
from sim.results.decisions import Decisions
from sim.results.hits import SKIPS, skip_codes
from sim.results.lanes import lane_times
from sim.results.stalls import STALL_PARTS, split_stalls
from sim.results.transfer_frames import Traffic, named
from sim.traces.trace import DECODE, TraceSequence
from sim.values.record import NO_REQUEST, Record, require_equal_lengths
from sim.values.types import SKIP, Outcome
from sim.workload.kv_room import KvRoom
from sim.workload.steps import Workload

Ints = NDArray[np.int64]
LOOKUP_OUTCOMES = [outcome.name.lower() for outcome in Outcome]
PHASES = ["prefill", "decode", "draft"]
HITS = (Outcome.HIT, Outcome.HIGH_FOR_LOW, Outcome.LOW_FOR_HIGH)
MISSES = (Outcome.LATE, Outcome.PROMOTED, Outcome.MISS)
NOT_ON_DEVICE = (Outcome.CPU, Outcome.SKIP)
TABLES = ("sequences", "tokens", "lookups", "transfers", "decisions")
"""The tables that every run writes as parquet files."""


@dataclass(frozen=True, eq=False)
class Frames:
    """The tables of one run. Times are in ns since the run began, sizes in bytes.

    ``link_names`` go from the device outwards. ``computed`` has key, start and end of everything
    that the compute stream did, where that was measured; else each operation took its duration.
    ``kv_room``: the keys and values of each step, where slots shrink as they grow.
    """

    controller: Controller
    workload: Workload
    durations: Durations
    record: Record
    link_names: Sequence[str]
    computed: Sequence[tuple[int, int, int]] | None = None
    kv_room: KvRoom | None = None

    @cached_property
    def traffic(self) -> Traffic:
        """The transfers of the run and what they moved over the links."""
        return Traffic(self.controller, self.durations, self.record, self.link_names)

    @property
    def transfers(self) -> pl.DataFrame:
        """One row for each hop of an issued transfer."""
        return self.traffic.table

    # ---- time

    @property
    def first_arrival_ns(self) -> int:
        """The time of the first request; what passes before it is no part of the makespan."""
        return min(self.workload.arrivals_ns.values()) if self.workload.is_timed else 0

    @property
    def makespan_ns(self) -> int:
        """The time from the first arrival to the end of the last computation."""
        return self.record.makespan_ns - self.first_arrival_ns

    @cached_property
    def stalls(self) -> dict[str, Ints]:
        """The stall parts of each idle interval, in ns, counted from the first arrival on."""
        parts = split_stalls(
            self.record, self.controller.issued, self.durations, self.controller.slots.key_bytes
        )
        if self.first_arrival_ns:
            start, cause = (
                self.record.array("idle_start_ns"),
                self.record.array("idle_cause"),
            )
            early = np.where(cause == NO_REQUEST, np.maximum(0, self.first_arrival_ns - start), 0)
            parts["no_request"] = parts["no_request"] - early
        return parts

    # ---- needs

    @cached_property
    def num_needs(self) -> int:
        """How many needs the run had.

        Raise RuntimeError unless the workload, the controller and the record agree on that: their
        columns by need are joined by position.
        """
        c, record = self.controller, self.record
        columns: dict[str, Sized] = {
            "workload.needs": self.workload.needs.tick,
            "controller.lookup_keys": c.lookup_keys,
            "controller.lookup_outcomes": c.lookup_outcomes,
            "record.lookup_ns": record.array("lookup_ns"),
            "record.ready_ns": record.array("ready_ns"),
        }
        # Empty where every need wants precision 0, and where none is served by another expert.
        if c.lookup_wanted:
            columns["controller.lookup_wanted"] = c.lookup_wanted
        if c.lookup_tokens:
            columns["controller.lookup_tokens"] = c.lookup_tokens
        return require_equal_lengths(columns)

    @cached_property
    def outcomes(self) -> NDArray[np.uint8]:
        """The outcome of each lookup."""
        return np.asarray(self.controller.lookup_outcomes).astype(np.uint8)

    @cached_property
    def keys(self) -> Ints:
        """The key that each lookup asked for or was answered with."""
        return np.asarray(self.controller.lookup_keys, np.int64)

    @cached_property
    def computed_tokens(self) -> Ints:
        """For how many rows each need computes its expert; 0 where another need does it."""
        served = self.controller.lookup_tokens
        return (
            np.array(served, np.int64)
            if served
            else self.workload.needs.tokens.astype(np.int64, copy=False)
        )

    @cached_property
    def needs(self) -> pl.DataFrame:
        """One row for each need: the columns of ``lookups`` that sums are made of.

        Names are enumerations here, which take 1 B a row and are compared as numbers.
        """
        c, workload, needs = self.controller, self.workload, self.workload.needs
        count, key = self.num_needs, self.keys
        served = np.where(self.outcomes == Outcome.SKIP, SKIP, key // c.geometry.plane)
        wanted = (
            np.array(c.lookup_wanted, np.int64) if c.lookup_wanted else np.zeros(count, np.int64)
        )
        precisions = c.geometry.precisions
        step = workload.gate_step[needs.tick]
        phase = np.array([step.decode + step.drafting for step in workload.steps], np.uint8)
        return pl.DataFrame(
            {
                "step": step,
                "phase": named(phase[step], PHASES),
                "key": key,
                "expert": needs.expert,
                "wanted": named(wanted, precisions),  # SKIP, -1, has no name
                "served": named(served, precisions),
                "outcome": named(self.outcomes, LOOKUP_OUTCOMES),
                "skips": named(skip_codes(c.selector, needs.score), SKIPS),
                "weight": needs.weight,
            }
        )

    @cached_property
    def lookups(self) -> pl.DataFrame:
        """One row for each need: what `lookups_between` tells of all."""
        return self.lookups_between(0, self.num_needs)

    def lookups_of_steps(self, steps: int) -> pl.DataFrame:
        """The rows of `lookups` in the first ``steps`` steps, with how many rows were ``computed``."""
        step = self.workload.gate_step[self.workload.needs.tick]
        stop = int(np.searchsorted(step, steps))
        return self.lookups_between(0, stop).with_columns(computed=self.computed_tokens[:stop])

    def lookups_between(self, first: int, last: int) -> pl.DataFrame:
        """One row for each need from number ``first`` to before ``last``.

        ``gate_ns`` is the time of its lookup; in a later wave that is its admission. ``phase`` is
        that of its step: ``prefill`` where any row is a prompt's, ``draft`` where it drafts.
        ``skips`` says when its selector leaves it out (``never``, ``if_absent``, ``always``).
        """
        rows, workload, needs = slice(first, last), self.workload, self.workload.needs
        told = self.needs[rows].with_columns(pl.col(pl.Enum).cast(pl.String))
        tick = needs.tick[rows]
        return told.select(
            pl.Series("tick", tick),
            "step",
            "phase",
            pl.Series("site", workload.gate_site[tick]),
            "key",
            "expert",
            "wanted",
            "served",
            "outcome",
            "skips",
            pl.Series("tokens", needs.tokens[rows]),
            "weight",
            pl.Series("gate_ns", self.record.array("lookup_ns")[rows]),
            pl.Series("ready_ns", self.record.array("ready_ns")[rows]),
        )

    # ---- steps and requests

    @cached_property
    def tokens(self) -> pl.DataFrame:
        """One row for each token that a sequence got, and for each of its prefill steps.

        A step of several sequences gives each of them a row. ``phase`` is ``prefill`` where the
        sequence's last row in the step belongs to its prompt. Where tokens are drafted, a decoded
        row stands for all tokens that the step gave its sequence: ``new_tokens`` of them, up to
        ``position``, when it had checked so many ``drafts``. A step that drafts gives each of its
        sequences a row of phase ``draft``, and no token.
        """
        record = self.record
        require_equal_lengths(
            {
                "workload.steps": self.workload.steps,
                "record.step_start_ns": record.step_start_ns,
                "record.step_end_ns": record.step_end_ns,
            }
        )
        start, end = (
            record.array("step_start_ns"),
            record.array("step_end_ns"),
        )
        stall = self._stall_by_step(start, end)
        hits, misses = self._by_step(HITS), self._by_step(MISSES)
        last = self._last_rows()
        at = last["step"].to_numpy()
        return last.select(
            "step",
            "sequence",
            "position",
            pl.when(self._drafting(last))
            .then(pl.lit("draft"))
            .when(pl.col("phase") == DECODE)
            .then(pl.lit("decode"))
            .otherwise(pl.lit("prefill"))
            .alias("phase"),
            pl.Series("start_ns", start[at]),
            pl.Series("end_ns", end[at]),
            pl.Series("compute_ns", (end - start - stall)[at]),
            pl.Series("stall_ns", stall[at]),
            pl.Series("hits", hits[at]),
            pl.Series("misses", misses[at]),
            *last.select(pl.col("^new_tokens|drafts$")).get_columns(),
            *(
                pl.Series(name, times[at])
                for name, times in lane_times(record, self.durations, len(self.link_names)).items()
            ),
        )

    def _drafting(self, rows: pl.DataFrame) -> pl.Series:
        """Whether each of these rows, which have a step, is of a step that drafts."""
        drafting = np.array([step.drafting for step in self.workload.steps], np.bool_)
        return pl.Series(drafting[rows["step"].to_numpy()])

    def _last_rows(self) -> pl.DataFrame:
        """The last row of each sequence in each step, in order: step, sequence, position, phase.

        Where tokens are drafted it is the last row that was kept; ``new_tokens`` and ``drafts``
        follow.
        """
        steps, trace, row = self.workload.steps, self.workload.trace, self.workload.row
        rows = pl.DataFrame(
            {
                "step": np.repeat(np.arange(len(steps)), [step.rows for step in steps]),
                "sequence": trace.sequence[row].astype(np.int64),
                "position": trace.position[row].astype(np.int64),
                "phase": self.workload.phase[row].astype(np.int64),
            }
        )
        by_sequence = rows.group_by("step", "sequence", maintain_order=True)
        if not self.workload.speculation.tokens:
            return by_sequence.last()
        # A step's sequences stand in the order of its rows.
        kept = pl.Series([count for step in steps for count in step.kept], dtype=pl.Int64)
        last = by_sequence.agg(pl.col("position", "phase"), rows=pl.len())
        return last.with_columns(
            pl.col("position", "phase").list.get(pl.lit(kept) - 1), new_tokens=kept
        ).select(
            pl.exclude("rows", "new_tokens"),
            pl.when(pl.col("phase") == DECODE).then("new_tokens").otherwise(0).alias("new_tokens"),
            drafts=pl.when(pl.col("phase") == DECODE)
            .then(pl.col("rows").cast(pl.Int64) - 1)
            .otherwise(0),
        )

    def _stall_by_step(self, start: Ints, end: Ints) -> Ints:
        """The idle time inside each step; idle time between steps belongs to none."""
        record = self.record
        require_equal_lengths(
            {"record.idle_start_ns": record.idle_start_ns, "record.idle_end_ns": record.idle_end_ns}
        )
        idle_from, idle_to = (
            record.array("idle_start_ns"),
            record.array("idle_end_ns"),
        )
        at = np.searchsorted(start, idle_from, side="right") - 1
        inside = (at >= 0) & (idle_to <= end[at])
        # Intervals stand in order, so that those of a step are a range of their sums.
        until: Ints = np.concatenate([[0], np.cumsum(np.where(inside, idle_to - idle_from, 0))])
        steps = np.arange(len(start))
        return (
            until[np.searchsorted(at, steps, "right")] - until[np.searchsorted(at, steps, "left")]
        )

    def _by_step(self, outcomes: Sequence[Outcome]) -> Ints:
        """How many lookups of each step had one of ``outcomes``."""
        chosen = _is_one_of(outcomes)[self.outcomes]
        step = self.needs["step"].to_numpy()
        return np.bincount(step[chosen], minlength=len(self.workload.steps)).astype(np.int64)

    @cached_property
    def sequences(self) -> pl.DataFrame:
        """One row for each request; in a closed loop it arrives when its first step can begin."""
        by_number: dict[int, TraceSequence] = {s.sequence: s for s in self.workload.sequences}
        times = self.tokens.group_by("sequence", maintain_order=True).agg(
            start_ns=pl.col("start_ns").min(),
            first_token_ns=pl.col("end_ns").filter(pl.col("phase") == "prefill").max(),
            first_decode_ns=pl.col("end_ns").filter(pl.col("phase") != "draft").min(),
            end_ns=pl.col("end_ns").max(),
            stall_ns=pl.col("stall_ns").sum(),
        )
        numbers = times["sequence"].to_list()
        known = [by_number[s] for s in numbers]
        arrivals = self.workload.arrivals_ns
        arrival = [arrivals[s] for s in numbers] if self.workload.is_timed else times["start_ns"]
        return times.select(
            "sequence",
            pl.Series("split", [s.split for s in known], dtype=pl.String),
            pl.Series("domain", [s.domain for s in known], dtype=pl.String),
            pl.Series("prompt_tokens", [s.prompt_tokens for s in known], dtype=pl.Int64),
            pl.Series("decode_tokens", [s.decode_tokens for s in known], dtype=pl.Int64),
            pl.Series("arrival_ns", arrival, dtype=pl.Int64),
            # Without a prompt a sequence has its first token at the end of its first step.
            pl.coalesce("first_token_ns", "first_decode_ns").alias("first_token_ns"),
            "end_ns",
            "stall_ns",
        )

    # ---- what was decided

    @cached_property
    def _decided(self) -> Decisions:
        assert len(self.keys) == self.num_needs
        return Decisions(
            self.controller, self.workload.needs.tick, self.keys, self.outcomes, LOOKUP_OUTCOMES
        )

    @cached_property
    def decisions(self) -> pl.DataFrame:
        """One row for each thing that a call decided, in the order of calls.

        These are lookups, prefetches queued, cancelled or dropped, issues with their first victim,
        and further evictions.
        """
        return self._decided.table

    # ---- files

    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables that are written as parquet files, by name."""
        return {name: getattr(self, name) for name in self.names}

    @property
    def names(self) -> tuple[str, ...]:
        """The tables that this run has."""
        return TABLES if self.kv_room is None else (*TABLES, "ledger")

    @cached_property
    def ledger(self) -> pl.DataFrame:
        """One row for each step: what keys and values take at its end, and experts during it."""
        room, slots = self.kv_room, self.controller.slots
        assert room is not None
        steps = range(len(self.workload.steps))
        rooms = [slots.rooms(room.spare_bytes(step)) for step in steps]
        return pl.DataFrame(
            {
                "step": steps,
                "tokens": [room.tokens(step) for step in steps],
                "kv_bytes": [room.kv_bytes(step) for step in steps],
                "slot_bytes": [sum(of_pools) for of_pools in rooms],
                "slots": [slots.count_in(of_pools) for of_pools in rooms],
            },
            schema=dict.fromkeys(("step", "tokens", "kv_bytes", "slot_bytes", "slots"), pl.Int64),
        )

    def parts(self, name: str, rows: int) -> Iterator[pl.DataFrame]:
        """A table of `TABLES` in parts of about ``rows`` rows, in order; the last may be shorter.

        A long table need not be in memory as a whole then. There is one part at least.
        """
        if name == "lookups":
            yield from (
                self.lookups_between(first, first + rows)
                for first in range(0, max(1, self.num_needs), rows)
            )
        elif name == "decisions":
            yield from self._decided.parts(rows)
        else:
            yield getattr(self, name)


def _is_one_of(outcomes: Sequence[Outcome]) -> NDArray[np.bool_]:
    """Of each outcome, by its number, whether it is one of ``outcomes``."""
    found = np.zeros(len(Outcome), np.bool_)
    found[list(outcomes)] = True
    return found


def idle_ns(frames: Frames) -> dict[str, int]:
    """The stall time of a run by part, in ns."""
    return {part: int(frames.stalls[part].sum()) for part in STALL_PARTS}


def compute_busy_ns(frames: Frames) -> int:
    """The busy time of the compute stream, in ns.

    It is summed operation by operation, without regard to idle time. Where computation was measured
    it is the makespan less the idle time.
    """
    if frames.computed is not None:
        return frames.makespan_ns - sum(idle_ns(frames).values())
    workload, durations = frames.workload, frames.durations
    total = sum(frames.record.slowed_ns[:1])
    for step in workload.steps:
        dense = durations.dense_ns(step)
        visited = dense if len(step.sites) == len(dense) else map(dense.__getitem__, step.sites)
        total += sum(visited) + durations.tail_ns(step)
    tokens, geometry = frames.computed_tokens, frames.controller.geometry
    kept = ~_is_one_of(NOT_ON_DEVICE)[frames.outcomes] & (tokens > 0)
    if isinstance(durations, OwnedDurations):
        # The compute stream is home's.
        device_of = np.array(geometry.device_of)
        kept &= device_of[frames.keys % geometry.plane] == 0
    of_step = np.array([step.rows for step in workload.steps], np.int64)
    rows = of_step[workload.gate_step[workload.needs.tick]]
    kinds, sizes = int(tokens.max(initial=0)) + 1, int(of_step.max(initial=0)) + 1
    codes = (frames.keys // geometry.units * kinds + tokens) * sizes + rows
    for code, times in zip(*np.unique(codes[kept], return_counts=True), strict=True):
        (at, step_rows), number = divmod(int(code), sizes), int(times)
        variant, of_rows = divmod(at, kinds)
        place = divmod(variant, geometry.sites)
        total += durations.expert_ns(*place, of_rows, step_rows) * number
    return total
