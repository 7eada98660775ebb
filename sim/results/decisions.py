"""The table of what a run's calls decided, whole or in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.core.controller import Controller
from sim.policies.base import IntArray
from sim.results.transfer_frames import labels
from sim.values.types import Event

Ints = NDArray[np.int64]
WAVE_COLUMNS = ("call", "admitted")
"""The columns of a controller's ``wave_calls``: the call, and how many needs it admitted."""
KINDS = ["lookup", *(event.name.lower() for event in Event)]


class Decisions:
    """What the calls of ``controller`` decided.

    ``tick``, ``keys`` and ``outcomes`` have the gate, key and outcome of each lookup, in their
    order; ``names`` has the names of outcomes.
    """

    def __init__(
        self,
        controller: Controller,
        tick: IntArray,
        keys: Ints,
        outcomes: NDArray[np.uint8],
        names: Sequence[str],
    ) -> None:
        self._keys, self._outcomes, self._names = keys, outcomes, [*names, None]
        self._gate_calls = np.asarray(controller.gate_calls, np.int64)
        self._events = {
            name: np.asarray(column, np.int64) for name, column in controller.event_columns.items()
        }
        self._looked_up = self._lookup_calls(tick, controller.wave_calls)

    @property
    def table(self) -> pl.DataFrame:
        return self.between(0, self._end)

    def parts(self, rows: int) -> Iterator[pl.DataFrame]:
        """The table in parts of about ``rows`` rows, cut between calls."""
        count = max(1, round((len(self._keys) + len(self._events["call"])) / rows))
        cuts = [self._end * part // count for part in range(count + 1)]
        for first, last in pairwise(cuts):
            yield self.between(first, last)

    @cached_property
    def _end(self) -> int:
        """The number after that of the last call."""
        return 1 + max(
            (int(calls[-1]) for calls in (self._looked_up, self._events["call"]) if len(calls)),
            default=0,
        )

    def between(self, first: int, last: int) -> pl.DataFrame:
        """The rows of the calls from ``first`` to before ``last``. Both columns of calls ascend."""
        asked = slice(*np.searchsorted(self._looked_up, (first, last)))
        told = slice(*np.searchsorted(self._events["call"], (first, last)))
        events = {name: column[told] for name, column in self._events.items()}
        call = np.concatenate([self._looked_up[asked], events["call"]])
        order = np.argsort(call, kind="stable")
        call, lookups = call[order], asked.stop - asked.start

        def joined(
            of_lookups: NDArray[np.integer] | int, of_events: NDArray[np.integer] | int
        ) -> Ints:
            both = np.empty(len(order), np.int64)
            both[:lookups], both[lookups:] = of_lookups, of_events
            return both[order]

        kind = joined(-1, events["kind"])
        value = joined(-1, events["value"])
        victim = pl.Series(np.where(kind == Event.ISSUE, value, -1), dtype=pl.Int64)
        return pl.DataFrame(
            {
                "call": call,
                "kind": labels(kind + 1, KINDS),
                "tick": np.searchsorted(self._gate_calls, call, side="right") - 1,
                "key": joined(self._keys[asked], events["key"]),
                "victim": victim.replace(-1, None),
                "outcome": labels(joined(self._outcomes[asked], len(self._names) - 1), self._names),
            }
        )

    def _lookup_calls(self, tick: IntArray, wave_calls: Sequence[int]) -> Ints:
        """The call that looked each need up: its gate's, or the ``need_done`` that admitted it."""
        looked_up = self._gate_calls[tick]
        waves = _columns(wave_calls, WAVE_COLUMNS)
        gate_of = np.searchsorted(self._gate_calls, waves["call"], side="right") - 1
        stop = np.searchsorted(tick, np.arange(len(self._gate_calls)), side="right")
        for gate in np.unique(gate_of).tolist():
            of_gate = gate_of == gate
            late = np.repeat(waves["call"][of_gate], waves["admitted"][of_gate])
            looked_up[stop[gate] - len(late) : stop[gate]] = late
        return looked_up


def _columns(flat: Sequence[int], names: Sequence[str]) -> dict[str, Ints]:
    """The columns, by name, of a table whose rows follow each other in one list."""
    rows = np.asarray(flat, np.int64).reshape(-1, len(names))
    return dict(zip(names, rows.T, strict=True))
