"""What an engine writes down: lists that grow while it runs, and are the record's columns in the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.values.packing import COUNT32, INT8, INT32, INT64, Column, Packing, narrow, packed_column
from sim.values.record import COLUMNS, NotedRecord

SERVICES = {
    "service_number": COUNT32,
    "service_link": INT32,
    "service_engine": INT32,
    "service_urgent": INT8,
    "service_start_ns": INT64,
    "service_bytes": INT64,
}
"""The record's columns of a row of services, in its order, and how wide they are."""
SERVICE: Final = len(SERVICES)
STARTED: Final = list(SERVICES).index("service_start_ns")
"""The place of the start in a row."""


class Written:
    """The lists of one run, by the names of the columns that each of them gathers.

    ``services``: a flat list of rows with an int for each of `SERVICES`: the transfer's number, link,
    engine, urgent, start in ns, bytes.
    """

    def __init__(self, record: NotedRecord) -> None:
        self._record = record
        self.services: Column = []
        self._lists: dict[tuple[str, ...], list[int]] = {}
        self._packing: Packing | None = None

    def rows(self, *names: str) -> list[int]:
        """A new flat list of rows, with an entry for each of these columns of the record or of its
        notes.
        """
        gathered = self._lists[names] = list[int]()
        return gathered

    def keep_packed(self) -> None:
        """Keep long columns as arrays (`sim.values.packing`) from now on, before anything is written."""
        self._packing = Packing(self._lists, {"first_rows": COUNT32})
        self.services, self._record.service_end_ns = packed_column(), packed_column()

    @property
    def is_packed(self) -> bool:
        return self._packing is not None

    def pack(self) -> None:
        if self._packing is not None:
            self._packing.pack()

    def close(self) -> None:
        """Give the record and its notes all columns; nothing is written any more."""
        record, services = self._record, self.services
        for nth, (name, width) in enumerate(SERVICES.items()):
            setattr(record, name, narrow(services[nth::SERVICE], width))
        del services[:]  # a long run has no room for both
        for name, column in self._columns().items():
            setattr(record if name in COLUMNS else record.notes, name, column)

    def _columns(self) -> Mapping[str, Column]:
        if self._packing is not None:
            return self._packing.whole()
        return {
            name: rows[nth :: len(names)]
            for names, rows in self._lists.items()
            for nth, name in enumerate(names)
        }
