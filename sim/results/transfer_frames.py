"""The transfers of a run as a table of hops, with bytes by class and the busy time of each link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.core.controller import Controller
from sim.machine.devices import Devices
from sim.machine.durations import Durations
from sim.values.record import Record
from sim.values.types import PrefetchOutcome

Ints = NDArray[np.int64]
CLASSES = ("demand", "prefetch", "dense")
TRAFFIC = (*CLASSES, "write_back", "activation")
"""The kinds of bytes that are counted.

No driver moves activations over a link that it models, so these are 0.
"""
WASTED = (PrefetchOutcome.EVICTED_UNUSED, PrefetchOutcome.UNUSED_AT_END, PrefetchOutcome.DROPPED)
"""The ends of prefetches that no lookup found."""
OUTCOMES = [*(outcome.name.lower() for outcome in PrefetchOutcome), "loaded"]


@dataclass(frozen=True)
class Services:
    """The services of the links, one row each, in the order in which they began.

    A service that the end of the run cut ends there. ``moved_bytes`` are the transfer's own bytes;
    ``written_bytes`` those of its victims, written back before.
    """

    number: Ints
    link: Ints
    engine: Ints
    start_ns: Ints
    end_ns: Ints
    moved_bytes: Ints
    written_bytes: Ints

    def progress_ns(self, row: int, latency_ns: int, until_ns: int) -> Fraction:
        """How much of a service was done by ``until_ns``, in ns of a link that serves it alone.

        Engines that are past their latency share the link equally.
        """
        start = int(self.start_ns[row])
        of_link = (self.link == self.link[row]) & (self.end_ns > start)
        begins, ends = self.start_ns[of_link] + latency_ns, self.end_ns[of_link]
        drawn_from = min(until_ns, start + latency_ns)
        changes = np.unique(np.concatenate([begins, ends, [drawn_from, until_ns]]))
        changes = changes[(changes >= drawn_from) & (changes <= until_ns)]
        progress = Fraction(drawn_from - start)
        for since, until in pairwise(changes.tolist()):
            progress += Fraction(until - since, int(((begins <= since) & (ends > since)).sum()))
        return progress


@dataclass(frozen=True)
class Traffic:
    """The transfers of one run. Times are in ns since the run began, sizes in bytes.

    ``link_names`` are by number of the link.
    """

    controller: Controller
    durations: Durations
    record: Record
    link_names: Sequence[str]

    @cached_property
    def _hops(self) -> tuple[Ints, Ints, Ints, Ints]:
        """All hops by transfer, outermost first: four columns.

        They are the transfer's number, the link, the hop's place in the route, and the call that
        queued it.
        """
        issued = self.controller.issued
        number = np.arange(len(issued))
        link, call = issued.column("first_link"), issued.column("call")
        later = [
            (n, at, place, queued)
            for n, t in issued.objects()
            for place, (at, queued) in enumerate(t.later_hops, start=1)
        ]
        more = np.array(later, np.int64).reshape(-1, 4).T
        columns = (
            np.concatenate([number, more[0]]),
            np.concatenate([link, more[1]]),
            np.concatenate([np.zeros(len(issued), np.int64), more[2]]),
            np.concatenate([call, more[3]]),
        )
        # Later hops stand behind first ones, in their order.
        order = np.argsort(columns[0], kind="stable")
        return columns[0][order], columns[1][order], columns[2][order], columns[3][order]

    @cached_property
    def _kinds(self) -> Ints:
        """The place in `CLASSES` of each transfer."""
        issued = self.controller.issued
        kinds: Ints = np.where(issued.column("dense") > 0, 2, issued.column("prefetch"))
        return kinds

    @cached_property
    def _served(self) -> Ints:
        """The row in `_hops` of the hop that each service was of."""
        number, link, _, _ = self._hops
        links, services = len(self.link_names), self.services
        row_of = np.zeros(len(self.controller.issued) * links, np.int64)
        row_of[number * links + link] = np.arange(len(number))
        served: Ints = row_of[services.number * links + services.link]
        return served

    @cached_property
    def _moved(self) -> Ints:
        """The bytes that each hop has moved."""
        moved = np.zeros(len(self._hops[0]), np.int64)
        np.add.at(moved, self._served, self.services.moved_bytes)
        return moved

    @cached_property
    def table(self) -> pl.DataFrame:
        """One row for each hop of an issued transfer.

        A hop that the run's end cut has moved its share of the bytes, rounded down.
        """
        issued, makespan, services = self.controller.issued, self.record.makespan_ns, self.services
        number, link, place, call = self._hops
        start, end = np.full(len(number), makespan), np.full(len(number), -1)
        # Services stand in the order in which they began, and of one place the last value counts.
        start[self._served[::-1]] = services.start_ns[::-1]
        np.maximum.at(end, self._served, services.end_ns)
        kind, outcome = self._kinds[number], issued.column("outcome")[number]
        victim = pl.Series(issued.column("victim")[number]).replace(-1, None)
        return pl.DataFrame(
            {
                "number": number,
                "link": labels(link, list(self.link_names)),
                "hop": place,
                "key": issued.column("key")[number],
                "class": labels(kind, list(CLASSES)),
                "moved_bytes": self._moved,
                "queued_ns": self.record.array("call_ns")[call - 1],
                "start_ns": start,
                "end_ns": np.where(end < 0, makespan, end),
                "victim": pl.select(
                    pl.when(pl.Series(link < self.controller.route.ends)).then(victim)
                ).to_series(),
                "outcome": labels(np.where(kind == 1, outcome, len(OUTCOMES) - 1), OUTCOMES),
            }
        )

    @cached_property
    def services(self) -> Services:
        """The services of all links, in the order in which they began."""
        record, issued, key_bytes = (
            self.record,
            self.controller.issued,
            self.controller.slots.key_bytes,
        )
        number, link, engine, start = (
            record.array(f"service_{name}") for name in ("number", "link", "engine", "start_ns")
        )
        recorded_end = record.array("service_end_ns")
        end = np.where(recorded_end < 0, record.makespan_ns, recorded_end)
        back = np.zeros(len(issued), np.int64)
        for at, transfer in issued.objects():
            back[at] = sum(key_bytes[victim] for victim in transfer.write_back)
        moved, written = record.array("service_bytes").copy(), np.where(link == 0, back[number], 0)
        services = Services(number, link, engine, start, end, moved, written)
        for row in np.flatnonzero(recorded_end < 0).tolist():
            share = self._share(services, row)
            moved[row], written[row] = int(int(moved[row]) * share), int(int(written[row]) * share)
        return services

    def _share(self, services: Services, row: int) -> Fraction:
        """The share of a service that was done when the run's end cut it."""
        link, hop_ns = int(services.link[row]), self.durations.hop_ns
        total = hop_ns(link, self.record.service_bytes[row])
        if link == 0:
            key_bytes = self.controller.slots.key_bytes
            victims = self.controller.issued[services.number[row]].write_back
            total += sum(hop_ns(0, key_bytes[victim]) for victim in victims)
        left_ns = self.record.service_left_ns.get(row)
        if left_ns is not None:
            return Fraction(max(0, total - left_ns), max(total, 1))
        done = services.progress_ns(row, self.durations.latency_ns(link), self.record.makespan_ns)
        return min(Fraction(1), done / max(total, 1))

    # ---- sums

    def bytes_by_link(self, devices: Devices | None = None) -> dict[str, dict[str, int]]:
        """The bytes that each link of a name moved by kind (`TRAFFIC`); only link 0 writes back."""
        number, link, _, _ = self._hops
        moved = self._moved if devices is None else devices.over_link(self._moved)
        kind, kinds = self._kinds[number], range(len(CLASSES))
        found = {
            name: {
                **{CLASSES[k]: int(moved[(link == at) & (kind == k)].sum()) for k in kinds},
                **dict.fromkeys(TRAFFIC[len(CLASSES) :], 0),
            }
            for at, name in enumerate(self.link_names)
        }
        found[self.link_names[0]]["write_back"] = int(self.services.written_bytes.sum())
        return found

    def wasted_bytes(self) -> int:
        """What prefetches that no lookup found moved over the links to the devices."""
        is_wasted = (self._kinds == 1) & np.isin(self.controller.issued.column("outcome"), WASTED)
        number, link, _, _ = self._hops
        return int(self._moved[is_wasted[number] & (link < self.controller.route.ends)].sum())

    def busy_ns(self) -> dict[str, int]:
        """How long each link served anything, in ns, by name."""
        busy = {}
        for link, name in enumerate(self.link_names):
            mine = self.services.link == link
            start, end = self.services.start_ns[mine], self.services.end_ns[mine]
            # Rows stand in the order in which services began, so the running maximum of their
            # ends is the time until which the link has been busy so far.
            until = np.maximum.accumulate(end)
            before = np.concatenate([[0], until[:-1]])
            busy[name] = int(np.maximum(0, until - np.maximum(start, before)).sum())
        return busy


def named(codes: NDArray[Any], names: Sequence[str]) -> pl.Series:
    """``codes`` as an enumeration of ``names``; null where a code is -1."""
    known = pl.Series([*names, None], dtype=pl.Enum(names))
    # As an unsigned number -1 is larger than all codes, and the null stands last.
    return known.gather(pl.Series(np.minimum(codes.astype(np.uint32), len(names))))


def labels(codes: object, names: list[str] | list[str | None]) -> pl.Series:
    """``codes`` as a column of ``names``, made without a Python string for each row."""
    index = pl.Series(np.asarray(codes, np.uint32))
    return pl.Series(names, dtype=pl.String).gather(index)
