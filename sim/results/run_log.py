"""Reads back the files of a run, as the history of its keys by gate (tick) and time (ns).

The files are described in contract C104.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from sim.results.kept import OF_HISTORY, check_whole, read_summary
from sim.results.kept_tables import columns_in, read_table
from sim.results.labels import Labels, labels_in

CONFIG_FILE = "config.yaml"
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "lookups": (
        "tick",
        "step",
        "phase",
        "site",
        "key",
        "expert",
        "wanted",
        "served",
        "outcome",
        "tokens",
        "gate_ns",
        "ready_ns",
    ),
    "transfers": (
        "number",
        "link",
        "hop",
        "key",
        "class",
        "moved_bytes",
        "queued_ns",
        "start_ns",
        "end_ns",
        "victim",
        "outcome",
    ),
    "decisions": ("call", "kind", "tick", "key", "victim", "outcome"),
    "tokens": ("step", "sequence", "position"),
}
OF_DRAFTS = ("phase", "drafts", "new_tokens")
"""Columns of ``tokens`` where tokens are drafted."""
OTHER_HITS = ("high_for_low", "low_for_high")
LARGEST_CONFIG_BYTES = 1 << 20
RUN_AGAIN = "name the output directory of `moelab run ... outputs=all`"


@dataclass(frozen=True)
class Move:
    """A transfer of one key.

    ``tick`` is the latest gate when the transfer was first issued; ``call`` is the call that issued
    it. ``queue_tick`` is the gate that queued a prefetch, None for other transfers. ``start_ns`` is
    on the first link, ``end_ns`` on the last, which ``link`` names.
    """

    number: int
    key: int
    kind: str
    tick: int
    call: int
    queue_tick: int | None
    queued_ns: int
    start_ns: int
    end_ns: int
    link: str
    outcome: str


@dataclass(frozen=True)
class Event:
    """Something that happened to a key.

    ``kind`` is one of ``decisions``, or ``evicted``; ``other`` is then the key that it made room
    for, if that is known.
    """

    kind: str
    call: int
    tick: int
    other: int | None = None


@dataclass(frozen=True)
class Stay:
    """A time that a key spent on the device, or on its way there.

    ``came`` is the transfer that brought it, None where it was there from the start. ``gone`` is
    its eviction, None where it stayed or left in a way that no row tells, such as from staging.
    """

    came: Move | None
    gone: Event | None


def draft_sites(config: Mapping[str, Any]) -> int:
    """How many sites draft layers have in a run of this configuration; they are the last ones."""
    workload = config.get("workload") or {}
    offloads = workload.get("draft_experts") == "offloaded" and workload.get("draft_tokens")
    return int(workload["draft_layers"]) if offloads else 0


class RunLog:
    """The tables and the configuration of one run. Of its ``sites`` the first ``own_sites`` are the
    model's, the others of draft layers.
    """

    def __init__(self, directory: str | Path) -> None:
        """Read the run in ``directory``.

        Raise ValueError, naming file, finding and way out, unless all of a run's files are there.
        """
        self.root = Path(directory)
        check_whole(self.root)
        self.config = self._read_config()
        model = self.config.get("model")
        sizes = (
            [model.get(name) for name in ("sites", "experts")]
            if isinstance(model, dict)
            else [None, None]
        )
        if not all(type(size) is int and 1 <= size <= 1 << 16 for size in sizes):
            raise ValueError(
                f"{self.root / CONFIG_FILE}: model.sites and model.experts are {sizes}, must be"
                f" whole numbers; {RUN_AGAIN}"
            )
        self.own_sites, self.experts = (int(size) for size in sizes)  # type: ignore[arg-type]
        self.sites = self.own_sites + draft_sites(self.config)
        self.units = self.experts + 1
        self.plane = self.sites * self.units
        self.lookups, self.transfers, self.decisions, self.tokens = (
            self._read(name) for name in COLUMNS
        )
        if not len(self.decisions):
            raise ValueError(
                f"{self.root / 'decisions.parquet'} has no rows, but every lookup is one;"
                f" {RUN_AGAIN}"
            )

    def _read_config(self) -> dict[str, Any]:
        place = self.root / CONFIG_FILE
        try:
            if not place.is_file():
                raise ValueError(f"{self.root} is no run: it has no {CONFIG_FILE}; {RUN_AGAIN}")
            if (size := place.stat().st_size) > LARGEST_CONFIG_BYTES:
                raise ValueError(
                    f"{place} has {size} B, must have at most {LARGEST_CONFIG_BYTES}; {RUN_AGAIN}"
                )
            found = OmegaConf.to_container(OmegaConf.load(place))
        except (OSError, OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
            told = " ".join(str(error).split())
            raise ValueError(f"{place} cannot be read ({told}); {RUN_AGAIN}") from None
        if not isinstance(found, dict):
            raise ValueError(f"{place} must be a section of values; {RUN_AGAIN}")
        return {str(name): value for name, value in found.items()}

    @cached_property
    def labels(self) -> Labels:
        """The labels in the run's summary; raise ValueError where it has none."""
        return labels_in(self.summary)

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The run's summary; raise ValueError where it cannot be read."""
        return read_summary(self.root, OF_HISTORY)

    def _read(self, name: str) -> pl.DataFrame:
        place = self.root / f"{name}.parquet"
        has = columns_in(place, RUN_AGAIN)
        more = OF_DRAFTS if name == "tokens" and has.issuperset(OF_DRAFTS) else ()
        return read_table(place, [*COLUMNS[name], *more], RUN_AGAIN)

    def choice(self, section: str, name: str, default: Any = None) -> Any:
        """A value of the run's configuration, such as ``loader.depth``."""
        part = self.config.get(section)
        return part.get(name, default) if isinstance(part, dict) else default

    def mechanism(self, section: str) -> str:
        """The class of a part of the system, without its module: ``LRU``."""
        return str(self.choice(section, "_target_", "?")).rpartition(".")[2]

    @cached_property
    def precision_names(self) -> dict[int, str]:
        """The names of the precisions at which something was served, by number."""
        served = (
            self.lookups.filter(pl.col("key") >= 0)
            .select(pl.col("key") // self.plane, "served")
            .unique()
        )
        return {plane: name for plane, name in served.iter_rows() if name is not None}

    # ---- gates

    @cached_property
    def _gates(self) -> dict[int, tuple[int, int, int]]:
        """The step, site and time (ns) of each gate that had needs, by tick."""
        gates = self.lookups.group_by("tick").agg(
            pl.col("step", "site").first(), pl.col("gate_ns").min()
        )
        return {tick: (step, site, at) for tick, step, site, at in gates.iter_rows()}

    def gate(self, tick: int) -> tuple[int, int, int]:
        """The step, site and time (ns) of a gate that had needs."""
        return self._gates[tick]

    def ticks_of_step(self, step: int) -> list[int]:
        """The gates of a step that had needs, in order."""
        ticks: list[int] = (
            self.lookups.filter(pl.col("step") == step)["tick"].unique().sort().to_list()
        )
        return ticks

    def last_gate(self, site: int, tick: int) -> int:
        """The last gate at ``site`` before ``tick``; -1 if there is none."""
        ticks = self.lookups.filter((pl.col("site") == site) & (pl.col("tick") < tick))[
            "tick"
        ].to_list()
        return max(ticks, default=-1)

    @cached_property
    def _gate_calls(self) -> dict[int, int]:
        calls = self._own_lookups.group_by("tick").agg(pl.col("call").min())
        return dict(calls.iter_rows())

    @cached_property
    def _own_lookups(self) -> pl.DataFrame:
        return self.decisions.filter(pl.col("kind") == "lookup")

    @cached_property
    def _lookup_calls(self) -> dict[tuple[int, int], int]:
        return {
            (tick, key): call
            for tick, key, call in self._own_lookups.select("tick", "key", "call").iter_rows()
        }

    @cached_property
    def _lookup_ns(self) -> dict[tuple[int, int], int]:
        return {
            (tick, key): at
            for tick, key, at in self.lookups.select("tick", "key", "gate_ns").iter_rows()
        }

    def is_gate(self, tick: int) -> bool:
        """Whether ``tick`` is a gate that had needs; calls before the first gate have tick -1."""
        return tick in self._gates

    # ---- keys

    @cached_property
    def moves(self) -> list[Move]:
        """Every transfer, by number, which is the order of first issues."""
        hops = (
            self.transfers.sort("hop")
            .group_by("number")
            .agg(
                pl.col("key", "class", "queued_ns", "start_ns", "outcome").first(),
                pl.col("end_ns", "link").last(),
            )
            .sort("number")
        )
        issues = self.decisions.filter(pl.col("kind") == "issue").select("tick", "call").rows()
        queued: dict[int, int] = {}
        queue_tick: list[int | None] = []
        rows = self.decisions.filter(pl.col("kind").is_in(["queue_prefetch", "issue"])).select(
            "kind", "key", "tick"
        )
        for kind, key, tick in rows.iter_rows():
            if kind == "queue_prefetch":
                queued[key] = tick
            else:
                queue_tick.append(queued.get(key))
        if len(issues) != len(hops):
            raise ValueError(
                f"{self.root}: {len(issues)} transfers are issued in decisions.parquet, but "
                f"transfers.parquet has {len(hops)}; {RUN_AGAIN}"
            )
        return [
            Move(
                n,
                row["key"],
                row["class"],
                tick,
                call,
                since if row["class"] == "prefetch" else None,
                row["queued_ns"],
                row["start_ns"],
                row["end_ns"],
                row["link"],
                row["outcome"],
            )
            for n, (row, (tick, call), since) in enumerate(
                zip(hops.iter_rows(named=True), issues, queue_tick, strict=True)
            )
        ]

    def moves_of(self, key: int) -> list[Move]:
        """The transfers of one key, in order."""
        return [move for move in self.moves if move.key == key]

    def events_of(self, key: int) -> list[Event]:
        """What happened to one key, in order: queued, issued, cancelled, dropped, evicted."""
        own = (pl.col("key") == key) & (pl.col("kind") != "lookup")
        rows = self.decisions.filter(own | (pl.col("victim") == key))
        found = []
        for call, kind, tick, of, victim in rows.select(
            "call", "kind", "tick", "key", "victim"
        ).iter_rows():
            if victim == key:
                found.append(Event("evicted", call, tick, of))
            if of == key:
                found.append(
                    Event("evicted", call, tick, self._incoming(call, key))
                    if kind == "evict"
                    else Event(kind, call, tick)
                )
        return found

    def _incoming(self, call: int, victim: int) -> int | None:
        """The key that a further ``victim`` made room for, if it is known.

        It is the key issued in the same call, or else that of a transfer which names the victim.
        """
        same = self.decisions.filter((pl.col("call") == call) & (pl.col("kind") == "issue"))[
            "key"
        ].to_list()
        if same:
            return int(same[0])
        tick = int(self.decisions.filter(pl.col("call") == call)["tick"][0])
        since = self.gate(tick)[2] if self.is_gate(tick) else 0
        named = self.transfers.filter(
            (pl.col("victim") == victim) & (pl.col("start_ns") >= since)
        ).sort("start_ns")
        return int(named["key"][0]) if len(named) and not self.trims_at(call) else None

    def trims_at(self, call: int) -> bool:
        """Whether what a call evicts without an issue was too much for its pool.

        Pools are trimmed after each batch, or, where slots shrink, at gates. Where there is staging a
        gate also lets keys into their pools, and then nobody can tell.
        """
        if self.choice("loader", "retention") != "strict":
            return True
        stages = self.choice("loader", "staging_slots")
        if self.choice("workload", "kv_allocation") != "growing" or stages:
            return False
        of_call = self.decisions.filter(pl.col("call") == call)
        return bool((of_call["kind"] == "lookup").any())

    def stays_of(self, key: int) -> list[Stay]:
        """The stays of a key on the device, or on its way there, in order."""
        moves = iter(self.moves_of(key))
        stays: list[Stay] = []
        steps = [event for event in self.events_of(key) if event.kind in ("issue", "evicted")]
        hits = self.lookups.filter(
            (pl.col("key") == key) & pl.col("outcome").is_in(["hit", *OTHER_HITS])
        )["tick"]
        first_hit = hits.min()
        starts = steps[0].kind == "evicted" if steps else first_hit is not None
        if steps and isinstance(first_hit, int) and first_hit < steps[0].tick:
            starts = True
        is_open = starts
        if starts:
            stays.append(Stay(None, None))
        for event in steps:
            if event.kind == "issue":
                stays.append(Stay(next(moves), None))
                is_open = True
            elif is_open:
                stays[-1] = Stay(stays[-1].came, event)
                is_open = False
        return stays

    def is_there(self, key: int, tick: int) -> bool:
        """Whether a key was on the device at a gate, as far as the log tells.

        If the key is a need of that gate, the time of its lookup counts, which in a later wave is
        after the gate.
        """
        at = self._lookup_ns.get((tick, key), self.gate(tick)[2])
        call = self._lookup_calls.get((tick, key), self._gate_calls[tick])
        for stay in self.stays_of(key):
            came = stay.came is None or (stay.came.end_ns <= at and stay.came.outcome != "dropped")
            if came and (stay.gone is None or stay.gone.call > call):
                return True
        return False

    def admitted_by(self, tick: int, call: int) -> list[int]:
        """The serving keys of a gate's needs that were admitted by ``call``, in need order."""
        keys = self.lookups.filter(pl.col("tick") == tick)["key"].to_list()
        return [key for key in keys if key >= 0 and self._lookup_calls[tick, key] <= call]

    def has_waves(self, tick: int) -> bool:
        """Whether a gate's needs were admitted at several times."""
        calls = self._own_lookups.filter(pl.col("tick") == tick)["call"]
        return calls.n_unique() > 1

    def uses_of(self, key: int) -> list[int]:
        """The ticks of the gates that a key served."""
        return self.lookups.filter(pl.col("key") == key)["tick"].to_list()

    def served_between(self, link: str, start_ns: int, end_ns: int) -> list[tuple[int, str, int]]:
        """The hops that ``link`` served in a span: key, class and ns inside the span."""
        rows = self.transfers.filter(
            (pl.col("link") == link) & (pl.col("start_ns") < end_ns) & (pl.col("end_ns") > start_ns)
        ).sort("start_ns")
        return [
            (key, kind, min(end, end_ns) - max(start, start_ns))
            for key, kind, start, end in rows.select(
                "key", "class", "start_ns", "end_ns"
            ).iter_rows()
        ]
