"""The sizes that experts had in the engine that recorded a trace, where a trace tells them.

They stand in a file beside the routes. Runs of the trace's own model take these sizes, site by
site, at the precision in which the engine stored its experts (the header's ``dtype``). At every
other precision, and with another model's sizes, runs take the model's nominal sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.machine.model import Model
from sim.machine.precision import PRECISIONS
from sim.traces.header import Header
from sim.traces.residency_log import EXPERT_BYTES_FILE, read_expert_bytes

MOST_APART = 2.0
"""The largest ratio of recorded to nominal bytes, or the reverse, in the mean over sites."""


@dataclass(frozen=True)
class RecordedBytes:
    """The bytes of one expert, by site, and the engine's name of the format it stored them in."""

    by_site: tuple[int, ...]
    stored_as: str

    @property
    def precision(self) -> str | None:
        """The precision that ``stored_as`` names, or None."""
        name = self.stored_as.lower()
        return name if name in PRECISIONS else None

    def sizes(self) -> Mapping[str, Sequence[int]]:
        """The bytes by site, under the name of their precision; empty if it is unknown."""
        return {} if self.precision is None else {self.precision: self.by_site}

    def told(self, precisions: Sequence[str]) -> str | None:
        """What to tell the reader of a run at ``precisions`` that does not take these sizes.

        None where the run takes them.
        """
        if self.precision in precisions:
            return None
        way = (
            f"precision={self.precision} takes these"
            if self.precision
            else (
                "import it again with dtype=NAME for runs at that precision to take these"
                f" ({', '.join(PRECISIONS)})"
            )
        )
        return (
            f"the trace's engine stored an expert as {self.stored_as} in {_span(self.by_site)}"
            f" bytes; this run takes the model's nominal ones of {', '.join(precisions)}; {way}"
        )


def recorded_bytes(directory: Path, header: Header, model: Model) -> RecordedBytes | None:
    """The recorded sizes of the trace at ``directory``.

    None if it has none, or if ``model`` is a transplant. Raise `TraceError` for a malformed file,
    ValueError where the bytes are more than `MOST_APART` times the model's, or less than that part.
    """
    if EXPERT_BYTES_FILE not in header.files or model.transplant is not None:
        return None
    _, by_site = read_expert_bytes(directory / EXPERT_BYTES_FILE, header.model.sites)
    # Runs whose draft layers have sites, which are the last ones, refuse such traces.
    by_site = by_site[: header.model.sites - header.draft_sites]
    found = RecordedBytes(by_site, header.dtype)
    if found.precision is not None:
        nominal, mean = model.expert_bytes(found.precision), sum(by_site) / len(by_site)
        if not 1 / MOST_APART <= mean / nominal <= MOST_APART:
            raise ValueError(
                f"trace {header.name} records experts of {_span(by_site)} bytes as {header.dtype},"
                f" those of model {model.name} take {nominal}; choose the trace's own model, or say"
                f" that it is another: model.gates_of={header.model.name}"
                f" model.sizes_of={model.name}"
            )
    return found


def _span(sizes: Sequence[int]) -> str:
    least, most = min(sizes), max(sizes)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"
